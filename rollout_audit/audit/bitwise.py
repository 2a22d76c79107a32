"""Whether two engines that should agree bit for bit do, and the first token on which they do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rollout_audit.audit.pairs import pair_for, pairs_in, primary_mode
from rollout_audit.corrections.model import Mode
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.errors import amount

__all__ = ["Agreement", "FirstDifference", "agreement"]


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


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two columns held against each other, token by token."""

    training: str
    rollout: str
    first: FirstDifference | None
    tokens: int
    """valid tokens looked at; up to the end of the chunk of the first difference, where there is one"""
    left_out: int
    """faulty rows that were not compared"""

    @property
    def text(self) -> str:
        pair = f"{self.training} and {self.rollout}"
        if self.first is not None:
            return f"not bitwise equal: {pair}"
        equal = f"bitwise equal: {pair} on {amount(self.tokens, 'token')}"
        return f"{equal}, but {amount(self.left_out, 'faulty row')} left out, not compared" if self.left_out else equal


def agreement(
    dump: Dump,
    *,
    mode: Literal["decoupled", "bypass"] | None = None,
    on_fault: Literal["stop", "drop"] = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
) -> Agreement:
    """Look, in the order of the files, for the first valid token with d ≠ 0.

    Raises:
        DumpError: as `Dump.chunks`.
    """
    pairs = pairs_in(dump)
    pair = pair_for(primary_mode(None if mode is None else Mode(mode), pairs), pairs)
    fields, log, first = (pair.training, pair.rollout), FaultLog(), None
    for chunk in dump.chunks(
        fields=fields, chunk_tokens=chunk_tokens, on_fault=on_fault, steps=steps, limit=limit, log=log
    ):
        if (first := _first_in(chunk, pair.training, pair.rollout, dump)) is not None:
            break
    return Agreement(*fields, first, sum(log.kept.values()), len(log.dropped))


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
