"""One batch of finished evidence: the whole dump, or one step of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rollout_audit.corrections.model import Rule
from rollout_audit.statistics.cells import Cells, population_of
from rollout_audit.statistics.grid import CellGrid
from rollout_audit.statistics.pair import PairState
from rollout_audit.statistics.plan import PairPlan
from rollout_audit.statistics.population import Population
from rollout_audit.statistics.rows import row_rule_keeps, row_statistic

__all__ = ["Evidence", "Scope"]

Array = NDArray[np.float64]
Values = tuple[Array, NDArray[np.int64]]
T = TypeVar("T")

_NO_VALUES: Values = (np.empty(0), np.empty(0, dtype=np.int64))


@dataclass(frozen=True)
class Scope:
    """Evidence of one batch on one pair of policies. Rows without a valid token are not in it."""

    rows: Mapping[str, Array]
    """columns [rows] of `row_columns`, with `reward` and `advantage` (mean over valid tokens) where recorded"""
    classes: Mapping[int, Cells]
    values: Values | None
    """log-ratios ascending with the class of each; None where there were too many to keep"""
    segments: Mapping[str, Mapping[str, Array]]
    plan: PairPlan
    all_rows: int
    """rows of the batch, those without a valid token too"""
    _remembered: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def remember(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What `compute` returned when it was first asked for under that key."""
        if key not in self._remembered:
            self._remembered[key] = compute()
        found: T = self._remembered[key]
        return found

    @property
    def grid(self) -> CellGrid:
        return self.plan.grid

    @cached_property
    def sequences(self) -> int:
        return len(self.rows["valid_tokens"])

    @cached_property
    def tokens(self) -> int:
        return int(self.rows["valid_tokens"].sum())

    @property
    def greatest(self) -> float:
        """log-ratio of all tokens; −inf without one"""
        return float(self.rows["max_d"].max(initial=-np.inf))

    def token_cells(self, keep: int | None = None) -> Population:
        """Token weights by cell, for exact moments; of the classes that filter `keep` leaves."""

        def compute() -> Population:
            chosen = (c for bits, c in self.classes.items() if keep is None or bits >> keep & 1)
            return population_of(chosen, self.grid, self.greatest)

        return self.remember(("cells", keep), compute)

    def by_value(self) -> Scope:
        """The same batch with every token a cell of its own: any threshold is a cut of it. Needs the values."""
        return replace(self, _remembered={("cells", None): self.token_values()})

    def row_statistic(self, rule: Rule) -> Array:
        """[rows] the statistic of a sequence rule."""
        values: Array = row_statistic(rule, self._tensors).numpy()
        return values

    @property
    def _tensors(self) -> Mapping[str, torch.Tensor]:
        return self.remember("tensors", lambda: {n: torch.from_numpy(c) for n, c in self.rows.items()})

    def row_keeps(self, rule: Rule) -> NDArray[np.bool_]:
        """[rows] which rows a sequence rule leaves."""
        keeps: NDArray[np.bool_] = self.remember(rule, lambda: row_rule_keeps(rule, self._tensors).numpy())
        return keeps

    def token_values(self, keep: int | None = None) -> Population:
        """Token weights for quantiles: value by value where these were kept, else by cell."""
        if self.values is None:
            return self.token_cells(keep)
        values, classes = self.values
        chosen = values if keep is None else values[(classes >> keep & 1).astype(bool)]
        return self.remember(("values", keep), lambda: Population.of_values(chosen))


@dataclass(frozen=True)
class Evidence:
    """The finished pass over one pair, cut into scopes on demand."""

    state: PairState
    plan: PairPlan
    common: Mapping[str, Array]
    """columns [rows] that do not depend on the pair: step, reward, advantage"""

    @cached_property
    def rows(self) -> Mapping[str, Array]:
        """[rows] all columns, rows without a valid token included."""
        return {**self.state.rows.columns(), **self.common}

    def scope(self, step: int | None = None) -> Scope:
        """The rows of one step, or of the whole dump, that have a valid token."""
        if step is None:
            chosen: Any = np.flatnonzero(self.rows["valid_tokens"] > 0)
            all_rows = len(self.rows["valid_tokens"])
            values, segments = self._pooled_values, self._segments
            classes = self.state.cells.pooled()
        else:
            chosen = self._rows_of_step.get(step, [])
            all_rows = self._row_count_of_step.get(step, 0)
            values = None if self._pooled_values is None else self._values_of_step.get(step, _NO_VALUES)
            segments = {name: _of_step(columns, step) for name, columns in self._segments.items()}
            classes = self._cells_of_step.get(step, {})
        span = _as_span(np.asarray(chosen, dtype=np.int64))
        rows = {name: column[span] for name, column in self.rows.items()}
        return Scope(rows, classes, values, segments, self.plan, all_rows)

    @cached_property
    def _segments(self) -> Mapping[str, Mapping[str, Array]]:
        return {name: table.columns() for name, table in self.state.segments.items()}

    @cached_property
    def _rows_of_step(self) -> Mapping[int, NDArray[np.int64]]:
        scored = np.flatnonzero(self.rows["valid_tokens"] > 0)
        return {step: scored[at] for step, at in _groups(self.rows["step"][scored]).items()}

    @cached_property
    def _row_count_of_step(self) -> Mapping[int, int]:
        steps, counts = np.unique(self.rows["step"], return_counts=True)
        return {int(step): int(count) for step, count in zip(steps, counts, strict=True)}

    @cached_property
    def _cells_of_step(self) -> Mapping[int, Mapping[int, Cells]]:
        return self.state.cells.by_step()

    @cached_property
    def _values(self) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
        return self.state.values.sorted()

    @property
    def _pooled_values(self) -> Values | None:
        return (self._values[0], self._values[2]) if self.state.values.complete else None

    @cached_property
    def _values_of_step(self) -> Mapping[int, Values]:
        values, steps, classes = self._values
        return {step: (values[at], classes[at]) for step, at in _groups(steps).items()}


def _as_span(places: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Ascending places; as a slice, which copies nothing, where none is left out between them."""
    if len(places) and places[-1] - places[0] + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def _groups(keys: NDArray[Any]) -> Mapping[int, NDArray[np.int64]]:
    """key → the places that hold it, in ascending order."""
    order = np.argsort(keys, kind="stable")
    distinct, starts = np.unique(keys[order], return_index=True)
    return {int(key): at for key, at in zip(distinct, np.split(order, starts[1:]), strict=True)} if len(keys) else {}


def _of_step(columns: Mapping[str, Array], step: int) -> Mapping[str, Array]:
    chosen = columns["step"] == step
    return {name: column[chosen] for name, column in columns.items()}
