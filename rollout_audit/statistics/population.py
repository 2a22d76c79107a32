"""A population of importance weights, and what bounds do to it.

Tokens binned by cell, rows weighted by their tokens, rows counted once: all are the same thing, log-ratios in ascending
order with multiplicities and exact sums. A bounded weight is piecewise: on each interval of the log-ratio it is either
the ratio itself or a constant, so every moment is a sum over slices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollout_audit.corrections.cuts import weight_interval
from rollout_audit.corrections.model import Bound, Weight

__all__ = ["Moments", "Piece", "Population", "moments", "pieces", "weight_quantiles", "weighted_quantiles"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Population:
    """Log-ratios in ascending order; each atom stands for `counts` weights.

    Sums are kept as ρ − 1: weights close to 1 lose no digit and equal weights have a spread of exactly 0.
    """

    edges: Array
    """[atoms] upper end of the atom; the log-ratio itself where an atom holds one value"""
    values: Array
    """[atoms] the log-ratio that stands for the atom in quantiles"""
    counts: NDArray[np.int64]
    excess: Array
    """[atoms] Σ(ρ − 1)"""
    excess_sq: Array
    """[atoms] Σ(ρ − 1)²"""

    @classmethod
    def of_values(cls, log_ratio: Array, counts: NDArray[np.int64] | None = None) -> Population:
        """Each value an atom of its own, repeated `counts` times (once by default)."""
        order = np.argsort(log_ratio, kind="stable")
        values = log_ratio[order]
        weights = np.ones(len(values), dtype=np.int64) if counts is None else counts[order]
        occupied = weights > 0
        values, weights = values[occupied], weights[occupied]
        with np.errstate(over="ignore"):
            excess = np.expm1(values)
            return cls(values, values, weights, weights * excess, weights * excess**2)

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    def between(self, lower: float, upper: float) -> Population:
        """The atoms with lower ≤ d ≤ upper; both ends must be cuts where atoms are cells."""
        start = int(np.searchsorted(self.edges, lower, side="left"))
        stop = int(np.searchsorted(self.edges, upper, side="right"))
        part = slice(start, max(start, stop))
        return Population(*(getattr(self, name)[part] for name in _FIELDS))


_FIELDS = ("edges", "values", "counts", "excess", "excess_sq")


class Piece(NamedTuple):
    """On log-ratios in (the piece before, upper] the weight is `value`, or the ratio itself where that is None."""

    upper: float
    value: float | None


def pieces(weight: Weight) -> tuple[Piece, ...]:
    """The bounded weight as a function of the log-ratio at its own level, in ascending order."""
    inside = weight_interval(weight)
    clamp = math.inf if weight.clamp is None else weight.clamp
    zeroes = weight.bound is Bound.MASK
    below, above = (0.0, 0.0) if zeroes else (weight.lower, weight.upper)
    listed = [
        Piece(math.nextafter(inside.lower, -math.inf), below),
        Piece(math.nextafter(min(max(-clamp, inside.lower), inside.upper), -math.inf), math.exp(-clamp)),
        Piece(min(clamp, inside.upper), None),
        Piece(inside.upper, math.exp(clamp) if clamp < math.inf else None),
        Piece(math.inf, above),
    ]
    return tuple(p for p, before in zip(listed, [None, *listed], strict=False) if before is None or p.upper > before.upper)


@dataclass(frozen=True)
class Moments:
    """Of the weights of a population: size, zeros, mean of (w − 1), mean of (w − 1)²."""

    size: int
    zeros: int
    excess_mean: float
    excess_sq_mean: float

    @property
    def mean(self) -> float:
        return 1.0 + self.excess_mean

    @property
    def std(self) -> float:
        """Population standard deviation."""
        return math.sqrt(max(self.excess_sq_mean - self.excess_mean**2, 0.0))

    @property
    def ess(self) -> float:
        """(Σw)² / (n Σw²); NaN where every weight is 0."""
        mean_sq = 1.0 + 2.0 * self.excess_mean + self.excess_sq_mean
        return self.mean**2 / mean_sq if self.zeros < self.size else math.nan

    def scaled(self, factor: float) -> Moments:
        """The moments of w / factor."""
        mean = self.mean / factor
        mean_sq = (1.0 + 2.0 * self.excess_mean + self.excess_sq_mean) / factor**2
        variance = self.std**2 / factor**2
        excess = mean - 1.0
        excess_sq = variance + excess**2 if math.isfinite(variance) else mean_sq - 2.0 * mean + 1.0
        return Moments(self.size, self.zeros, excess, excess_sq)


def moments(population: Population, parts: Sequence[Piece]) -> Moments:
    """Exact moments of the piecewise weight, where every piece ends at a cut of the population."""
    size, zeros, excess, excess_sq = 0, 0, 0.0, 0.0
    start = 0
    for piece in parts:
        stop = max(start, int(np.searchsorted(population.edges, piece.upper, side="right")))
        span, start = slice(start, stop), stop
        count = int(population.counts[span].sum())
        size += count
        if piece.value is None:
            excess += float(population.excess[span].sum())
            excess_sq += float(population.excess_sq[span].sum())
        else:
            zeros += count if piece.value == 0.0 else 0
            excess += count * (piece.value - 1.0)
            excess_sq += count * (piece.value - 1.0) ** 2
    divisor = max(size, 1)
    return Moments(size, zeros, excess / divisor, excess_sq / divisor)


def piecewise(population: Population, parts: Sequence[Piece]) -> Array:
    """[atoms] the weight of each atom's value."""
    with np.errstate(over="ignore"):
        weights = np.exp(population.values)
    start = 0
    for piece in parts:
        stop = max(start, int(np.searchsorted(population.edges, piece.upper, side="right")))
        if piece.value is not None:
            weights[start:stop] = piece.value
        start = stop
    return weights


def weight_quantiles(population: Population, parts: Sequence[Piece], at: Sequence[float]) -> list[float]:
    """Quantiles of the piecewise weight, linear between order statistics."""
    weights = piecewise(population, parts)
    order = np.argsort(weights, kind="stable")
    return weighted_quantiles(weights[order], population.counts[order], at)


def weighted_quantiles(ascending: Array, counts: NDArray[np.int64], at: Sequence[float]) -> list[float]:
    """Quantiles of the multiset in which ascending[i] occurs counts[i] times, as numpy's "linear" method."""
    last = np.cumsum(counts)
    if not len(last) or last[-1] == 0:
        return [math.nan] * len(at)
    ranks = np.asarray(at) * (last[-1] - 1)
    floor = np.floor(ranks)
    low = ascending[np.searchsorted(last, floor, side="right")]
    high = ascending[np.searchsorted(last, np.ceil(ranks), side="right")]
    with np.errstate(invalid="ignore"):
        between = low + (ranks - floor) * (high - low)
    return [float(x) for x in np.where(low == high, low, between)]
