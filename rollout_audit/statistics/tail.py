"""The tokens on which the two policies differ most: an exact top-k, whatever the chunking."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollout_audit.dumps.chunk import Chunk

__all__ = ["KEPT", "WorstToken", "WorstTokens", "largest", "worst_of"]

KEPT = 100


class WorstToken(NamedTuple):
    """Ordered worst first: by |d|, ties by place in the dump."""

    minus_abs_log_ratio: float
    file: int
    row: int
    position: int
    training_log_prob: float
    rollout_log_prob: float


@dataclass
class WorstTokens:
    """The KEPT worst tokens seen so far."""

    tokens: list[WorstToken] = field(default_factory=list)

    def absorb(self, other: WorstTokens) -> None:
        self.tokens = sorted([*self.tokens, *other.tokens])[:KEPT]


def worst_of(chunk: Chunk, training: str, rollout: str, at: NDArray[np.int64]) -> WorstTokens:
    """Those of the tokens at the places `at` of a chunk on which the two columns differ, worst first."""
    row = np.searchsorted(chunk.offsets, at, side="right") - 1
    pi, mu = (getattr(chunk, name)[at].astype(np.float64).tolist() for name in (training, rollout))
    numbers, positions = chunk.row_numbers[row].tolist(), (at - chunk.offsets[row]).tolist()
    found = [
        WorstToken(-abs(p - m), chunk.file, number, position, p, m)
        for p, m, number, position in zip(pi, mu, numbers, positions, strict=True)
        if p != m
    ]
    return WorstTokens(sorted(found)[:KEPT])


def largest(magnitude: Tensor) -> Tensor:
    """int64 indices of the KEPT largest; of those tied for the last places the first in order."""
    if magnitude.numel() <= KEPT:
        return torch.arange(magnitude.numel(), device=magnitude.device)
    least = torch.topk(magnitude, KEPT, sorted=False).values.min()
    above = (magnitude > least).nonzero()[:, 0]
    tied = (magnitude == least).nonzero()[: KEPT - above.numel(), 0]
    return torch.cat([above, tied])
