"""The first token on which two engines that should agree bit for bit do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rollout_audit.audit.pairs import pair_for, pairs_in, primary_mode
from rollout_audit.corrections.model import Mode
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump

__all__ = ["FirstDifference", "first_difference"]


@dataclass(frozen=True, slots=True)
class FirstDifference:
    file: str
    row: int
    position: int
    step: int
    training_log_prob: float
    rollout_log_prob: float

    @property
    def text(self) -> str:
        gap = self.training_log_prob - self.rollout_log_prob
        return (
            f"{self.file} row {self.row} position {self.position} (step {self.step}): "
            f"log π {self.training_log_prob!r}, log μ {self.rollout_log_prob!r}, d = {gap:.3g}"
        )


def first_difference(
    dump: Dump,
    *,
    mode: Literal["decoupled", "bypass"] | None = None,
    on_fault: Literal["stop", "drop"] = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
) -> FirstDifference | None:
    """The first valid token, in the order of the files, with d ≠ 0; None where there is none.

    Raises:
        DumpError: as `Dump.chunks`.
    """
    pairs = pairs_in(dump)
    pair = pair_for(primary_mode(None if mode is None else Mode(mode), pairs), pairs)
    fields = (pair.training, pair.rollout)
    for chunk in dump.chunks(fields=fields, chunk_tokens=chunk_tokens, on_fault=on_fault, steps=steps, limit=limit):
        if (found := _first_in(chunk, pair.training, pair.rollout, dump)) is not None:
            return found
    return None


def _first_in(chunk: Chunk, training: str, rollout: str, dump: Dump) -> FirstDifference | None:
    pi, mu = getattr(chunk, training), getattr(chunk, rollout)
    at = np.flatnonzero((pi.astype(np.float64) != mu.astype(np.float64)) & chunk.response_mask)
    if not len(at):
        return None
    token = int(at[0])
    row = int(np.searchsorted(chunk.offsets, token, side="right")) - 1
    return FirstDifference(
        file=dump.files[chunk.file].name,
        row=int(chunk.row_numbers[row]),
        position=token - int(chunk.offsets[row]),
        step=int(chunk.steps[row]),
        training_log_prob=float(pi[token]),
        rollout_log_prob=float(mu[token]),
    )
