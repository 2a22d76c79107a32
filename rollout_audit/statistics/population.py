"""A population of importance weights.

Tokens binned by cell, rows weighted by their tokens, rows counted once: all are the same thing, log-ratios in ascending
order with multiplicities and exact sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

__all__ = ["Population", "log_sum", "weighted_quantiles"]

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

    @classmethod
    def joined(cls, parts: Sequence[Population]) -> Population:
        """The atoms of all parts end to end."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    def between(self, lower: float, upper: float) -> Population:
        """The atoms with lower ≤ d ≤ upper; both ends must be cuts where atoms are cells."""
        start = int(np.searchsorted(self.edges, lower, side="left"))
        stop = int(np.searchsorted(self.edges, upper, side="right"))
        return self.part(slice(start, max(start, stop)))

    def part(self, span: slice | NDArray[np.bool_]) -> Population:
        return Population(
            self.edges[span],
            self.values[span],
            self.counts[span],
            self.ratio[span],
            self.excess[span],
            self.spread[span],
        )


def log_sum(logs: Array) -> float:
    """log Σ exp; −inf for no values."""
    top = float(logs.max(initial=-math.inf))
    if not math.isfinite(top):
        return top
    return top + math.log(float(np.exp(logs - top).sum()))


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
