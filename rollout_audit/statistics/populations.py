"""Importance weights of several batches side by side, and what bounds and rejection make of them.

A bounded weight is piecewise: on each interval of the log-ratio it is either the ratio itself or a constant. Every
moment is then a sum over spans of atoms, one a batch and piece, and all batches are summed at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollout_audit.corrections.cuts import EVERYTHING, Interval, at_most, overflown_weight, weight_interval
from rollout_audit.corrections.model import Bound, Weight
from rollout_audit.statistics.population import Population

__all__ = ["EqualWeights", "Piece", "PiecewiseWeights", "Populations", "Spans", "pieces"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


class Piece(NamedTuple):
    """On log-ratios in (the piece before, upper] the weight is `value`, or the ratio itself where that is None."""

    upper: float
    value: float | None


def pieces(weight: Weight) -> tuple[Piece, ...]:
    """The bounded weight as a function of the log-ratio at its own level, in ascending order."""
    listed = _bounded_pieces(weight)
    if weight.overflow is None:
        return listed
    last = next(piece for piece in listed if piece.upper >= weight.overflow)
    below = [piece for piece in listed if piece.upper < weight.overflow]
    above = [Piece(piece.upper, overflown_weight(weight)) for piece in listed if piece.upper > weight.overflow]
    return (*below, Piece(weight.overflow, last.value), *above)


def _bounded_pieces(weight: Weight) -> tuple[Piece, ...]:
    inside = weight_interval(weight)
    clamp = math.inf if weight.clamp is None else weight.clamp
    zeroes = weight.bound is Bound.MASK
    below, above = (0.0, 0.0) if zeroes else (weight.lower, weight.upper)
    if inside.lower == math.inf or inside.upper == -math.inf:
        return _constant(above if inside.upper == -math.inf else below)
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


def _constant(value: float | None) -> tuple[Piece, ...]:
    """One weight for all, since no clamped ratio lies inside the bounds: parted where the ratio itself passes it."""
    whole = Piece(math.inf, value)
    return (Piece(at_most(value), value), whole) if value else (whole,)


@dataclass(frozen=True)
class Spans:
    """Stretches of atoms, ascending, none over another."""

    start: Ints
    """[...]"""
    stop: Ints
    """[...]"""

    @cached_property
    def some(self) -> NDArray[np.bool_]:
        """[...] which hold an atom"""
        return np.asarray(self.start < self.stop)

    @cached_property
    def _ends(self) -> Ints:
        return np.stack([self.start[self.some], self.stop[self.some]], axis=-1).ravel()

    def sums(self, values: NDArray[Any]) -> Array:
        """[columns, atoms] or [atoms] → [columns, ...] or [...]"""
        out = np.zeros((*values.shape[:-1], *self.start.shape))
        ends = self._ends
        if len(ends):
            closed = ends if ends[-1] < values.shape[-1] else ends[:-1]
            out[..., self.some] = np.add.reduceat(values, closed, axis=-1)[..., ::2]
        return out


@dataclass(frozen=True)
class Populations:
    """One population a batch, end to end: batch i owns atoms [starts[i], starts[i + 1])."""

    starts: Ints
    """[batches + 1]"""
    atoms: Population
    """ascending within each batch"""
    _ends: dict[tuple[float, bool], Ints] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, parts: Sequence[Population]) -> Populations:
        starts = np.concatenate([[0], np.cumsum([len(part.edges) for part in parts])]).astype(np.int64)
        return cls(starts, parts[0] if len(parts) == 1 else Population.joined(parts))

    @property
    def batches(self) -> int:
        return len(self.starts) - 1

    def atoms_below(self, bound: float, *, inclusive: bool) -> Ints:
        """[batches] where the atoms end whose edges are below the bound."""
        if bound == math.inf:
            return self.starts[1:]
        if bound == -math.inf:
            return self.starts[:-1]
        key = (bound, inclusive)
        if key not in self._ends:
            below = self.atoms.edges <= bound if inclusive else self.atoms.edges < bound
            self._ends[key] = self.starts[:-1] + self._whole.sums(below.astype(np.int64)).astype(np.int64)
        return self._ends[key]

    def within(self, interval: Interval) -> tuple[Ints, Ints]:
        """[batches] each: where the atoms of the interval start and stop; both its ends must be cuts."""
        first = self.atoms_below(interval.lower, inclusive=False)
        return first, np.maximum(first, self.atoms_below(interval.upper, inclusive=True))

    @cached_property
    def _whole(self) -> Spans:
        """[batches]"""
        return Spans(self.starts[:-1], self.starts[1:])

    @cached_property
    def totals(self) -> Array:
        """[3, atoms] counts, Σ(ρ − 1), Σρ"""
        return np.stack([self.atoms.counts, self.atoms.excess, self.atoms.ratio])

    @cached_property
    def own_ratio(self) -> Array:
        """[atoms] mean ratio of each atom"""
        return _over_counts(self.atoms.ratio, self.atoms.counts)

    @cached_property
    def own_excess(self) -> Array:
        """[atoms] mean of ρ − 1 of each atom"""
        return _over_counts(self.atoms.excess, self.atoms.counts)

    @cached_property
    def ranks(self) -> Ints:
        """[atoms + 1] how many weights come before each atom, over all batches"""
        return np.concatenate([[0], np.cumsum(self.atoms.counts)])

    def spread_out(self, per_batch: Array) -> Array:
        """[batches] → [atoms]"""
        return np.repeat(per_batch, np.diff(self.starts))


def _over_counts(sums: Array, counts: Ints) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / counts)


@dataclass(frozen=True)
class PiecewiseWeights:
    """The weights that `parts` make of populations; of the atoms inside `kept` alone.

    Exact where every piece and both ends of `kept` are cuts of the populations. All results are [batches].
    """

    populations: Populations
    parts: tuple[Piece, ...]
    kept: Interval = EVERYTHING

    @cached_property
    def _spans(self) -> Spans:
        """[batches, pieces]"""
        first, last = self.populations.within(self.kept)
        ends = [self.populations.atoms_below(piece.upper, inclusive=True) for piece in self.parts]
        bounds = np.stack([self.populations.starts[:-1], *ends], axis=1)
        bounds = np.clip(bounds, first[:, None], last[:, None])
        return Spans(bounds[:, :-1], bounds[:, 1:])

    @cached_property
    def _totals(self) -> Array:
        """[3, batches, pieces] counts, Σ(ρ − 1), Σρ"""
        return self._spans.sums(self.populations.totals)

    @cached_property
    def _constants(self) -> Array:
        """[pieces] NaN where the weight is the ratio"""
        return np.array([math.nan if piece.value is None else piece.value for piece in self.parts])

    @property
    def _varies(self) -> NDArray[np.bool_]:
        return np.isnan(self._constants)

    @property
    def _counts(self) -> Array:
        """[batches, pieces]"""
        return np.asarray(self._totals[0])

    @cached_property
    def size(self) -> Array:
        return np.asarray(self._counts.sum(axis=1))

    @cached_property
    def zeros(self) -> Array:
        return np.asarray(self._counts[:, self._constants == 0.0].sum(axis=1))

    @cached_property
    def _excess(self) -> Array:
        """mean of w − 1"""
        own = np.where(self._varies, self._totals[1], 0.0)
        constant = self._counts * np.where(self._varies, 0.0, self._constants - 1.0)
        return np.asarray((own + constant).sum(axis=1) / np.maximum(self.size, 1.0))

    @cached_property
    def _near_one(self) -> NDArray[np.bool_]:
        return np.asarray(np.abs(self._excess) < 0.5)

    @cached_property
    def mean(self) -> Array:
        if self._near_one.all():
            return 1.0 + self._excess
        own = np.where(self._varies, self._totals[2], 0.0)
        constant = self._counts * np.where(self._varies, 0.0, self._constants)
        far = (own + constant).sum(axis=1) / np.maximum(self.size, 1.0)
        return np.where(self._near_one, 1.0 + self._excess, far)

    @cached_property
    def variance(self) -> Array:
        """Around the mean, divided by the size; summed atom by atom, so that weights that are alike do not cancel."""
        populations, near = self.populations, self._near_one
        center, origin = np.where(near, self._excess, self.mean), np.where(near, 1.0, 0.0)
        own = populations.own_excess
        if not near.all():
            own = np.where(populations.spread_out(origin) == 1.0, own, populations.own_ratio)
        atoms = populations.atoms
        with np.errstate(over="ignore", invalid="ignore"):
            squares = self._spans.sums(atoms.spread + atoms.counts * (own - populations.spread_out(center)) ** 2)
            constant = self._counts * (self._constants - origin[:, None] - center[:, None]) ** 2
        total = np.where(self._varies, squares, constant).sum(axis=1)
        return np.asarray(total / np.maximum(self.size, 1.0))

    @cached_property
    def ess(self) -> Array:
        """(Σw)² / (n Σw²); NaN where every weight is 0, or too small to be squared."""
        with np.errstate(over="ignore", invalid="ignore"):
            square = self.mean**2
            return np.where(square > 0, square / (square + self.variance), math.nan)

    @cached_property
    def least(self) -> Array:
        return np.asarray(self._ends_of(self._spans.start, np.inf).min(axis=1))

    @cached_property
    def greatest(self) -> Array:
        return np.asarray(self._ends_of(self._spans.stop - 1, -np.inf).max(axis=1))

    def _ends_of(self, at: Ints, empty: float) -> Array:
        values = self.populations.atoms.values
        with np.errstate(over="ignore"):
            own = np.exp(values[np.clip(at, 0, max(len(values) - 1, 0))]) if len(values) else np.zeros(at.shape)
        return np.where(self._spans.some, np.where(self._varies, own, self._constants), empty)

    def count_within(self, interval: Interval) -> Array:
        """How many weights of the populations have a log-ratio there, kept or not."""
        first, last = self.populations.within(interval)
        return (self.populations.ranks[last] - self.populations.ranks[first]).astype(np.float64)

    def mass(self) -> Array:
        """Σρ"""
        return np.asarray(self._totals[2].sum(axis=1))

    def mass_lost(self) -> Array:
        """Σ max(ρ − w, 0): every piece lies wholly above or wholly below its constant."""
        mass = self._totals[2]
        with np.errstate(invalid="ignore"):
            lost = np.maximum(mass - self._counts * self._constants, 0.0)
        return np.asarray(np.where(self._varies, 0.0, lost).sum(axis=1))

    def quantiles(self, at: Sequence[float]) -> Array:
        """[levels, batches] linear between order statistics, as numpy's "linear" method; NaN for no weight."""
        place = np.asarray(at)[:, None] * np.maximum(self.size - 1.0, 0.0)
        floor = np.floor(place)
        low, high = np.split(self._ranked(np.concatenate([floor, np.ceil(place)])), 2)
        with np.errstate(invalid="ignore"):
            between = low + (place - floor) * (high - low)
        return np.where(self.size > 0, np.where(low == high, low, between), math.nan)

    @cached_property
    def _ascending(self) -> Ints:
        """The pieces in ascending order of their weights: constants lie below or above the ratios of the others."""
        lower = [-math.inf, *(piece.upper for piece in self.parts)]
        middle = [_middle(low, piece.upper) for low, piece in zip(lower, self.parts, strict=False)]
        return np.argsort(np.where(self._varies, np.exp(middle), self._constants), kind="stable")

    def _ranked(self, ranks: Array) -> Array:
        """[levels, batches] the weight of each rank, counted from 0 in ascending order."""
        order = self._ascending
        last = np.cumsum(self._counts[:, order], axis=1)
        which = (ranks[..., None] >= last).sum(axis=-1).clip(max=len(order) - 1)
        batch = np.arange(self.populations.batches)
        inside = ranks - (last - self._counts[:, order])[batch, which]
        start = self._spans.start[batch, order[which]]
        populations = self.populations
        if not len(populations.atoms.values):
            return np.full(ranks.shape, math.nan)
        rank = populations.ranks[start] + inside.astype(np.int64)
        atom = np.searchsorted(populations.ranks[1:], rank, side="right").clip(max=len(populations.atoms.values) - 1)
        with np.errstate(over="ignore"):
            own = np.exp(populations.atoms.values[atom])
        constant = self._constants[order[which]]
        return np.asarray(np.where(np.isnan(constant), own, constant))


@dataclass(frozen=True)
class EqualWeights:
    """Weights that are all 1: `PiecewiseWeights` of as many log-ratios of 0."""

    size: Array
    """[batches]"""

    @property
    def mean(self) -> Array:
        return np.ones_like(self.size)

    @property
    def variance(self) -> Array:
        return np.zeros_like(self.size)

    @property
    def zeros(self) -> Array:
        return np.zeros_like(self.size)

    ess = least = greatest = mean

    def quantiles(self, at: Sequence[float]) -> Array:
        return np.ones((len(at), *self.size.shape))

    def count_within(self, interval: Interval) -> Array:
        return self.size if interval.lower <= 0.0 <= interval.upper else self.zeros

    def mass(self) -> Array:
        return self.size

    def mass_lost(self) -> Array:
        return self.zeros


def _middle(lower: float, upper: float) -> float:
    """A log-ratio between the two."""
    low, high = max(lower, -700.0), min(upper, 700.0)
    return (low + high) / 2.0
