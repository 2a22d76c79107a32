"""The tokens on which the two policies differ most: an exact top-k, whatever the chunking."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollout_audit.corrections.tokens import Tokens

__all__ = ["KEPT", "TokenPlaces", "WorstToken", "WorstTokens", "worst_tokens"]

KEPT = 100


class WorstToken(NamedTuple):
    """Ordered worst first: by |d|, ties by place in the dump."""

    minus_abs_log_ratio: float
    file: int
    row: int
    position: int
    training_log_prob: float
    rollout_log_prob: float


@dataclass(frozen=True)
class TokenPlaces:
    """Where the packed valid tokens of a chunk stand in the dump."""

    file: int
    row_numbers: NDArray[np.int64]
    """[rows] in the file"""
    offsets: NDArray[np.int64]
    """[rows + 1] of the full rows, masked tokens included"""
    flat: NDArray[np.int64]
    """[tokens] place of each valid token among all tokens of the chunk"""

    def locate(self, index: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """Row number in the file and position in the row of the tokens at `index`."""
        flat = self.flat[index]
        row = np.searchsorted(self.offsets, flat, side="right") - 1
        return self.row_numbers[row].tolist(), (flat - self.offsets[row]).tolist()


@dataclass
class WorstTokens:
    """The KEPT worst tokens seen so far."""

    tokens: list[WorstToken] = field(default_factory=list)

    def absorb(self, other: WorstTokens) -> None:
        self.tokens = sorted([*self.tokens, *other.tokens])[:KEPT]


def worst_tokens(tokens: Tokens, places: TokenPlaces) -> WorstTokens:
    """The worst tokens of one chunk, equal log-ratios left out."""
    at = _largest(tokens.log_ratio.abs())
    pi, mu = (x[at].tolist() for x in (tokens.training_log_probs, tokens.rollout_log_probs))
    rows, positions = places.locate(at.cpu().numpy())
    found = [
        WorstToken(-abs(p - m), places.file, row, position, p, m)
        for p, m, row, position in zip(pi, mu, rows, positions, strict=True)
        if p != m
    ]
    return WorstTokens(sorted(found))


def _largest(magnitude: Tensor) -> Tensor:
    """int64 indices of the KEPT largest; of those tied for the last places the first in order."""
    if magnitude.numel() <= KEPT:
        return torch.arange(magnitude.numel(), device=magnitude.device)
    least = torch.topk(magnitude, KEPT, sorted=False).values.min()
    above = (magnitude > least).nonzero()[:, 0]
    tied = (magnitude == least).nonzero()[: KEPT - above.numel(), 0]
    return torch.cat([above, tied])
