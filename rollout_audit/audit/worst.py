"""The tokens and sequences on which the policies differ most, with where they stand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit.report import WorstSequence, WorstTokenReport
from rollout_audit.statistics.tail import WorstToken

__all__ = ["Places", "worst_sequences", "worst_tokens"]

LISTED = 20

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Places:
    """The rows of the pass by their place in the dump, which is the order they were read in."""

    names: Sequence[str]
    """of the files"""
    common: Mapping[str, Array]
    uid_parts: Sequence[tuple[str, ...] | None]
    part_rows: Sequence[int]

    @cached_property
    def uids(self) -> list[str]:
        """[rows] as recorded, else `file#row`."""
        uids: list[str] = []
        for part, rows in zip(self.uid_parts, self.part_rows, strict=True):
            span = range(len(uids), len(uids) + rows)
            uids += part if part is not None else [row_name(self.names, *self.place(i)) for i in span]
        return uids

    def place(self, index: int) -> tuple[int, int]:
        """File and row number of the row with that index."""
        return int(self.common["file"][index]), int(self.common["row"][index])

    def find(self, file: int, row: int) -> int:
        """The index of a row of the dump."""
        start, stop = np.searchsorted(self.common["file"], [file, file + 1])
        return int(start + np.searchsorted(self.common["row"][start:stop], row))

    def named(self, index: int) -> dict[str, str | int]:
        """The fields by which a report names a row."""
        file, row = self.place(index)
        step = int(self.common["step"][index])
        return {"file": self.names[file], "row": row, "uid": self.uids[index], "step": step}


def row_name(names: Sequence[str], file: int, row: int) -> str:
    """What a row without uid is called."""
    return f"{names[file]}#{row}"


def worst_tokens(tokens: Sequence[WorstToken], places: Places) -> list[WorstTokenReport]:
    """By |d|; ties by place."""
    return [
        WorstTokenReport.model_validate(
            places.named(places.find(token.file, token.row))
            | {
                "position": token.position,
                "training_log_prob": token.training_log_prob,
                "rollout_log_prob": token.rollout_log_prob,
                "log_ratio": token.training_log_prob - token.rollout_log_prob,
            }
        )
        for token in tokens[:LISTED]
    ]


def worst_sequences(rows: Mapping[str, Array], places: Places) -> list[WorstSequence]:
    """By mean k3, in which errors cannot cancel; ties by place.

    `rows` are the columns of the rows with a valid token.
    """
    k3_mean = rows["sum_k3"] / rows["valid_tokens"]
    order = np.argsort(-k3_mean, kind="stable")[:LISTED]
    return [_worst_sequence(rows, int(i), float(k3_mean[i]), places) for i in order if k3_mean[i] > 0]


def _worst_sequence(rows: Mapping[str, Array], i: int, k3_mean: float, places: Places) -> WorstSequence:
    index = places.find(int(rows["file"][i]), int(rows["row"][i]))
    figures = {
        "valid_tokens": int(rows["valid_tokens"][i]),
        "log_ratio_mean": float(rows["sum_d"][i] / rows["valid_tokens"][i]),
        "log_ratio_sum": float(rows["sum_d"][i]),
        "k3_mean": k3_mean if math.isfinite(k3_mean) else None,
        "log_ratio_max_abs": float(max(abs(rows["min_d"][i]), abs(rows["max_d"][i]))),
    }
    return WorstSequence.model_validate(places.named(index) | figures)
