"""Where a log-ratio falls: a fixed fine grid, split further at the cuts of the named configurations.

Fine bins are sign, exponent and the top 7 mantissa bits of the float64 d, for 2⁻³⁰ ≤ |d| < 2⁶, plus zero, underflow
and overflow on each side. A bin spans at most 2⁻⁷ of its magnitude, so a quantile read off its midpoint errs by at
most 0.4% of d. A cut c splits a bin into d ≤ c and d > c, so every bound that is a cut is answered exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["QUANTILE_ERROR", "CellGrid"]

MANTISSA_BITS = 7
LOWEST_EXPONENT = -30
HIGHEST_EXPONENT = 6
QUANTILE_ERROR = 2.0 ** -(MANTISSA_BITS + 1)
"""Largest relative error of a log-ratio read off a fine bin's midpoint"""

SHIFT = 52 - MANTISSA_BITS
FIRST_RANK = (1023 + LOWEST_EXPONENT) << MANTISSA_BITS
RANKS_PER_SIDE = (HIGHEST_EXPONENT - LOWEST_EXPONENT) << MANTISSA_BITS
ZERO_BIN = RANKS_PER_SIDE + 2
FINE_BINS = 2 * ZERO_BIN + 1
MAGNITUDE = 0x7FFF_FFFF_FFFF_FFFF


@dataclass(frozen=True)
class CellGrid:
    """Half-open cells (edge[i − 1], edge[i]] of the log-ratio; the last edge is +inf."""

    cuts: tuple[float, ...] = ()

    @classmethod
    def with_cuts(cls, cuts: Iterable[float]) -> CellGrid:
        """A grid whose cells end exactly at each finite cut that is not an edge already."""
        wanted = {float(cut) for cut in cuts if np.isfinite(cut)}
        return cls(tuple(sorted(wanted - set(_fine_edges().tolist()))))

    @cached_property
    def edges(self) -> NDArray[np.float64]:
        """[cells] upper end of each cell, ascending."""
        return np.sort(np.concatenate([_fine_edges(), np.asarray(self.cuts, dtype=np.float64)]))

    @property
    def cells(self) -> int:
        return FINE_BINS + len(self.cuts)

    @cached_property
    def midpoints(self) -> NDArray[np.float64]:
        """[cells] the log-ratio that stands for each cell."""
        lower = np.concatenate([[-(2.0**HIGHEST_EXPONENT)], self.edges[:-1]])
        upper = np.minimum(self.edges, 2.0**HIGHEST_EXPONENT)
        return (lower + upper) / 2.0

    @cached_property
    def ratios(self) -> NDArray[np.float64]:
        """[cells] exp of each midpoint"""
        with np.errstate(over="ignore"):  # a cut may lie anywhere
            return np.exp(self.midpoints)

    @cached_property
    def excesses(self) -> NDArray[np.float64]:
        """[cells] expm1 of each midpoint"""
        with np.errstate(over="ignore"):
            return np.expm1(self.midpoints)

    def cell_of(self, log_ratio: Tensor) -> Tensor:
        """[tokens] int64 index of the cell of each log-ratio: the number of edges below it."""
        fine = fine_bin(log_ratio)
        if not self.cuts:
            return fine
        cuts = torch.tensor(self.cuts, dtype=torch.float64, device=log_ratio.device)
        return fine + torch.bucketize(log_ratio, cuts)


def fine_bin(log_ratio: Tensor) -> Tensor:
    """[tokens] int64 fine bin, from the bits alone: no logarithm, the same on every device."""
    bits = log_ratio.view(torch.int64)
    magnitude = bits & MAGNITUDE
    rank = ((magnitude >> SHIFT) - FIRST_RANK + 1).clamp_(0, RANKS_PER_SIDE + 1) + 1
    signed = torch.where(bits < 0, -rank, rank)
    return torch.where(magnitude == 0, 0, signed) + ZERO_BIN


def _fine_edges() -> NDArray[np.float64]:
    """Upper ends of the fine bins, as "d ≤ edge"."""
    patterns = (np.arange(RANKS_PER_SIDE + 1, dtype=np.int64) + FIRST_RANK) << SHIFT
    magnitudes = patterns.view(np.float64)
    negative = [*-magnitudes[::-1], np.nextafter(0.0, -1.0)]
    positive = np.nextafter(magnitudes, 0.0)
    return np.concatenate([negative, [0.0], positive, [np.inf]])
