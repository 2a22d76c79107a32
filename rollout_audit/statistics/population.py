"""A population of importance weights, and what bounds do to it.

Tokens binned by cell, rows weighted by their tokens, rows counted once: all are the same thing, log-ratios in ascending
order with multiplicities and exact sums. A bounded weight is piecewise: on each interval of the log-ratio it is either
the ratio itself or a constant, so every moment is a sum over slices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollout_audit.corrections.cuts import weight_interval
from rollout_audit.corrections.model import Bound, Weight

__all__ = [
    "Moments",
    "Piece",
    "Population",
    "mass_lost",
    "moments",
    "pieces",
    "piecewise",
    "weight_quantiles",
    "weighted_quantiles",
]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Population:
    """Log-ratios in ascending order; each atom stands for `counts` weights.

    Both Σρ and Σ(ρ − 1) are kept: one is exact for tiny weights, the other for weights close to 1.
    """

    edges: Array
    """[atoms] upper end of the atom; the log-ratio itself where an atom holds one value"""
    values: Array
    """[atoms] the log-ratio that stands for the atom in quantiles"""
    counts: NDArray[np.int64]
    ratio: Array
    """[atoms] Σρ"""
    excess: Array
    """[atoms] Σ(ρ − 1)"""
    spread: Array
    """[atoms] Σ(ρ − mean of the atom)²; 0 where an atom holds one value"""

    @classmethod
    def of_values(cls, log_ratio: Array, counts: NDArray[np.int64] | None = None) -> Population:
        """Each value an atom of its own, repeated `counts` times (once by default)."""
        order = np.argsort(log_ratio, kind="stable")
        repeats = np.ones(len(log_ratio), dtype=np.int64) if counts is None else counts[order]
        values, repeats = log_ratio[order][repeats > 0], repeats[repeats > 0]
        with np.errstate(over="ignore"):
            ratio: Array = np.exp(values) * repeats
            excess: Array = np.expm1(values) * repeats
        return cls(values, values, repeats, ratio, excess, np.zeros(len(values)))

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    def between(self, lower: float, upper: float) -> Population:
        """The atoms with lower ≤ d ≤ upper; both ends must be cuts where atoms are cells."""
        start = int(np.searchsorted(self.edges, lower, side="left"))
        stop = int(np.searchsorted(self.edges, upper, side="right"))
        return self.part(slice(start, max(start, stop)))

    def part(self, span: slice) -> Population:
        return Population(
            self.edges[span],
            self.values[span],
            self.counts[span],
            self.ratio[span],
            self.excess[span],
            self.spread[span],
        )


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
    return tuple(
        p for p, before in zip(listed, [None, *listed], strict=False) if before is None or p.upper > before.upper
    )


@dataclass(frozen=True)
class Moments:
    """Of the weights of a population."""

    size: int
    zeros: int
    mean: float
    variance: float
    """around the mean, divided by the size"""

    @property
    def std(self) -> float:
        return math.sqrt(self.variance)

    @property
    def ess(self) -> float:
        """(Σw)² / (n Σw²); NaN where every weight is 0, or too small to be squared."""
        square = self.mean**2
        return square / (square + self.variance) if square else math.nan

    def scaled(self, factor: float) -> Moments:
        """The moments of w / factor."""
        return Moments(self.size, self.zeros, self.mean / factor, self.variance / factor**2)


def moments(population: Population, parts: Sequence[Piece]) -> Moments:
    """Moments of the piecewise weight, exact where every piece ends at a cut of the population.

    The variance is summed around the mean, atom by atom, so that weights that are alike do not cancel.
    """
    spans = [(piece.value, population.part(span)) for piece, span in _spans(population, parts)]
    size = sum(atoms.size for _, atoms in spans)
    zeros = sum(atoms.size for value, atoms in spans if value == 0.0)
    excess = sum(_excess(value, atoms) for value, atoms in spans) / max(size, 1)
    if abs(excess) < 0.5:
        squares = sum(_squares(value, atoms, atoms.excess, 1.0, excess) for value, atoms in spans)
        return Moments(size, zeros, 1.0 + excess, squares / max(size, 1))
    mean = sum(_total(value, atoms) for value, atoms in spans) / max(size, 1)
    squares = sum(_squares(value, atoms, atoms.ratio, 0.0, mean) for value, atoms in spans)
    return Moments(size, zeros, mean, squares / max(size, 1))


def _excess(value: float | None, atoms: Population) -> float:
    return float(atoms.excess.sum()) if value is None else atoms.size * (value - 1.0)


def _total(value: float | None, atoms: Population) -> float:
    return float(atoms.ratio.sum()) if value is None else atoms.size * value


def _squares(value: float | None, atoms: Population, sums: Array, origin: float, mean: float) -> float:
    """Σ(w − origin − mean)², where `sums` are the atoms' Σ(ρ − origin)."""
    if value is not None:
        return atoms.size * (value - origin - mean) ** 2
    with np.errstate(over="ignore", invalid="ignore"):
        return float((atoms.spread + atoms.counts * (sums / atoms.counts - mean) ** 2).sum())


def _spans(population: Population, parts: Sequence[Piece]) -> Iterator[tuple[Piece, slice]]:
    """The atoms of each piece that has any."""
    start = 0
    for piece in parts:
        stop = max(start, int(np.searchsorted(population.edges, piece.upper, side="right")))
        if stop > start:
            yield piece, slice(start, stop)
        start = stop


def piecewise(population: Population, parts: Sequence[Piece]) -> Array:
    """[atoms] the weight of each atom's value."""
    with np.errstate(over="ignore"):
        weights = np.exp(population.values)
    for piece, span in _spans(population, parts):
        if piece.value is not None:
            weights[span] = piece.value
    return weights


def mass_lost(population: Population, parts: Sequence[Piece]) -> float:
    """Σ max(ρ − w, 0): every piece lies wholly above or wholly below its constant."""
    lost = 0.0
    for piece, span in _spans(population, parts):
        if piece.value is not None:
            atoms = population.part(span)
            lost += max(float(atoms.ratio.sum()) - atoms.size * piece.value, 0.0)
    return lost


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
