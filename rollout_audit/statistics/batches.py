"""Scopes side by side, so that a correction is evaluated on every step at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rollout_audit.corrections.model import Level, Rule
from rollout_audit.statistics.cells import SharedCells
from rollout_audit.statistics.plan import PairPlan
from rollout_audit.statistics.population import Population
from rollout_audit.statistics.populations import Populations
from rollout_audit.statistics.rows import row_rule_keeps
from rollout_audit.statistics.scope import Scope

__all__ = ["Batches", "Units"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True)
class Batches:
    """Batches of one plan, each with a valid token; rows, segments and atoms of one after those of another."""

    scopes: tuple[Scope, ...]
    _remembered: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def remember(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What `compute` returned when it was first asked for under that key."""
        if key not in self._remembered:
            self._remembered[key] = compute()
        found: T = self._remembered[key]
        return found

    @property
    def plan(self) -> PairPlan:
        return self.scopes[0].plan

    @cached_property
    def tokens(self) -> Array:
        """[batches] valid tokens"""
        return np.array([scope.tokens for scope in self.scopes], dtype=np.float64)

    @property
    def sequences(self) -> Array:
        """[batches] rows with a valid token"""
        return np.diff(self.rows.starts).astype(np.float64)

    @property
    def all_rows(self) -> Array:
        """[batches] rows, those without a valid token too"""
        return np.array([scope.all_rows for scope in self.scopes], dtype=np.float64)

    @cached_property
    def rows(self) -> Units:
        return Units(tuple(scope.rows for scope in self.scopes))

    def segments(self, name: str) -> Units:
        """The runs of mask 1 under the correction of that name."""
        return self.remember(("segments", name), lambda: Units(tuple(s.segments[name] for s in self.scopes)))

    def token_cells(self, keep: int | None = None) -> Populations:
        """Token weights by cell, for exact moments; of the classes that filter `keep` leaves."""
        return self.remember(("cells", keep), lambda: self._population_of_cells(keep))

    def _population_of_cells(self, keep: int | None) -> Populations:
        greatest = np.array([scope.greatest for scope in self.scopes])
        batch, atoms = self._cells.population(self.plan.grid, keep, greatest)
        return Populations(np.searchsorted(batch, np.arange(len(self.scopes) + 1)), atoms)

    @cached_property
    def _cells(self) -> SharedCells:
        return SharedCells.of([scope.classes for scope in self.scopes], self.plan.grid)

    def token_values(self, keep: int | None = None) -> Populations:
        """Token weights for quantiles: value by value where these were kept, else by cell."""
        if any(scope.values is None for scope in self.scopes):
            return self.token_cells(keep)
        return self.remember(("values", keep), lambda: Populations.of([s.token_values(keep) for s in self.scopes]))

    def row_keeps(self, rule: Rule) -> NDArray[np.bool_]:
        """[rows] which rows a sequence rule leaves."""
        keeps: NDArray[np.bool_] = self.remember(rule, lambda: row_rule_keeps(rule, self.rows.tensors).numpy())
        return keeps


@dataclass(frozen=True)
class Units:
    """Rows, or segments, of several batches: columns end to end."""

    parts: tuple[Any, ...]
    """a batch each: column name → [units]"""
    _columns: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def __getitem__(self, name: str) -> Array:
        """[units]"""
        if name not in self._columns:
            own = [part[name] for part in self.parts]
            self._columns[name] = own[0] if len(own) == 1 else np.concatenate(own)
        column: Array = self._columns[name]
        return column

    def __contains__(self, name: str) -> bool:
        return name in self.parts[0]

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(self[name]) for name in self.parts[0]}

    @cached_property
    def starts(self) -> Ints:
        """[batches + 1]"""
        sizes = [len(part["valid_tokens"]) for part in self.parts]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def sums(self, values: NDArray[Any]) -> Array:
        """[…, units] → […, batches], each of which has a unit"""
        return np.add.reduceat(values.astype(np.float64, copy=False), self.starts[:-1], axis=-1)

    def log_sums(self, logs: Array) -> Array:
        """[units] → [batches] log Σ exp"""
        top = np.maximum.reduceat(logs, self.starts[:-1])
        base = np.where(np.isfinite(top), top, 0.0)
        with np.errstate(divide="ignore"):
            return base + np.log(self.sums(np.exp(logs - np.repeat(base, np.diff(self.starts)))))

    def log_ratio(self, level: Level) -> Array:
        """[units] what the weights of this level exponentiate"""
        match level:
            case Level.SEQUENCE:
                return self["sum_d"]
            case Level.GEOMETRIC:
                return self["sum_d"] / self["valid_tokens"]
            case Level.SEGMENT:
                return self["log_ratio"]
            case _:
                return np.zeros(int(self.starts[-1]))

    def population(self, level: Level, repeats: Array) -> Populations:
        """The level's weights, each as often as `repeats` [units] says."""
        order, values, ratio, excess = self._ordered(level)
        counts = repeats[order]
        some = counts > 0
        batch = np.repeat(np.arange(len(self.parts)), np.diff(self.starts))
        sizes = np.bincount(batch[some], minlength=len(self.parts))
        values, counts = values[some], counts[some]
        atoms = Population(
            values, values, counts.astype(np.int64), ratio[some] * counts, excess[some] * counts, np.zeros(len(values))
        )
        return Populations(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), atoms)

    def _ordered(self, level: Level) -> tuple[Ints, Array, Array, Array]:
        """Units of each batch in ascending order of their log-ratio, with exp and expm1 of it."""
        if level not in self._columns:
            x = self.log_ratio(level)
            batch = np.repeat(np.arange(len(self.parts)), np.diff(self.starts))
            order = np.lexsort((x, batch))
            with np.errstate(over="ignore"):
                self._columns[level] = order, x[order], np.exp(x[order]), np.expm1(x[order])
        found: tuple[Ints, Array, Array, Array] = self._columns[level]
        return found
