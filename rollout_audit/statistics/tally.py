"""Importance weights summed up as they come: for corrections that are evaluated token by token.

Moments merge by the pairwise update of mean and squared deviations (Chan, Golub & LeVeque 1983), so weights that are
alike do not cancel; sums of raw weights are kept as logarithms and cannot overflow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from rollout_audit.statistics.grid import CellGrid
from rollout_audit.statistics.population import log_sum, weighted_quantiles

__all__ = ["Tally"]

Array = NDArray[np.float64]
GRID = CellGrid()


@dataclass
class Tally:
    """Some weights. The identity is a fresh instance; `absorb` leaves its argument alone.

    Quantiles are exact where the weights themselves are kept, else read off bins of log w as everywhere in the tool.
    """

    size: int = 0
    zeros: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Σ(w − mean)²"""
    least: float = math.inf
    greatest: float = -math.inf
    log_sum: float = -math.inf
    """log Σw"""
    log_square_sum: float = -math.inf
    """log Σw²"""
    values: list[Array] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    """cell of log w → how many"""

    @classmethod
    def of(cls, log_weights: Array, *, keep_values: bool) -> Tally:
        """Of weights given by their logarithms; −inf is a weight of 0."""
        if not len(log_weights):
            return cls()
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.exp(log_weights)
            mean = float(weights.mean())
            squares = float(((weights - mean) ** 2).sum())
        return cls(
            size=len(weights),
            zeros=int(np.count_nonzero(weights == 0)),
            mean=mean,
            squares=squares,
            least=float(weights.min()),
            greatest=float(weights.max()),
            log_sum=log_sum(log_weights),
            log_square_sum=log_sum(2.0 * log_weights),
            values=[weights] if keep_values else [],
            counts={} if keep_values else _binned(log_weights),
        )

    def absorb(self, other: Tally) -> None:
        size = self.size + other.size
        if math.isinf(self.mean) or math.isinf(other.mean):
            self.mean = self.squares = math.inf
        elif other.size:
            delta = other.mean - self.mean
            self.mean += delta * other.size / size
            self.squares += other.squares + delta**2 * self.size * other.size / size
        self.size, self.zeros = size, self.zeros + other.zeros
        self.least, self.greatest = min(self.least, other.least), max(self.greatest, other.greatest)
        self.log_sum = float(np.logaddexp(self.log_sum, other.log_sum))
        self.log_square_sum = float(np.logaddexp(self.log_square_sum, other.log_square_sum))
        self.values.extend(other.values)
        for cell, count in other.counts.items():
            self.counts[cell] = self.counts.get(cell, 0) + count

    @property
    def variance(self) -> float:
        """Around the mean, divided by the size."""
        return self.squares / self.size

    @property
    def ess(self) -> float:
        """(Σw)² / (n Σw²); NaN where every weight is 0, or too small to be squared."""
        square = self.mean**2
        return square / (square + self.variance) if square else math.nan

    @property
    def log_ess(self) -> float:
        """The same from logarithms: never overflows."""
        return math.exp(min(2.0 * self.log_sum - self.log_square_sum - math.log(self.size), 0.0))

    def quantiles(self, at: Sequence[float]) -> list[float]:
        """Linear between order statistics."""
        return weighted_quantiles(*self._ascending(), at)

    def _ascending(self) -> tuple[Array, NDArray[np.int64]]:
        """Weights and how often each occurs: themselves, or one for each cell."""
        if self.values:
            weights = np.sort(np.concatenate(self.values))
            return weights, np.ones(len(weights), dtype=np.int64)
        cells = np.array(sorted(self.counts), dtype=np.int64)
        weights = np.exp(GRID.midpoints[cells])
        weights[cells == 0] *= not self.zeros
        counts = np.array([self.counts[cell] for cell in cells.tolist()], dtype=np.int64)
        return np.clip(weights, self.least, self.greatest), counts


def _binned(log_weights: Array) -> dict[int, int]:
    cells, counts = np.unique(GRID.cell_of(torch.from_numpy(log_weights)).numpy(), return_counts=True)
    return dict(zip(cells.tolist(), counts.tolist(), strict=True))
