"""One batch of finished evidence: the whole dump, or one step of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
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
from rollout_audit.statistics.rows import row_rule_keeps

__all__ = ["Evidence", "Scope"]

Array = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class Scope:
    """Evidence of one batch on one pair of policies. Rows without a valid token are not in it."""

    rows: Mapping[str, Array]
    """columns [rows] of `row_columns`, with `reward` and `advantage` (mean over valid tokens) where recorded"""
    classes: Mapping[int, Cells]
    values: tuple[Array, NDArray[np.int64]] | None
    """log-ratios ascending with the class of each; None where there were too many to keep"""
    segments: Mapping[str, Mapping[str, Array]]
    plan: PairPlan
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

    def token_cells(self, keep: int | None = None) -> Population:
        """Token weights by cell, for exact moments; of the classes that filter `keep` leaves."""
        chosen = (c for bits, c in self.classes.items() if keep is None or bits >> keep & 1)
        return self.remember(("cells", keep), lambda: population_of(chosen, self.grid))

    def row_keeps(self, rule: Rule) -> NDArray[np.bool_]:
        """[rows] which rows a sequence rule leaves."""
        columns = {name: torch.from_numpy(column) for name, column in self.rows.items()}
        keeps: NDArray[np.bool_] = row_rule_keeps(rule, columns).numpy()
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

    @cached_property
    def _values(self) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]] | None:
        return self.state.values.sorted() if self.state.values.complete else None

    @cached_property
    def _segments(self) -> Mapping[str, Mapping[str, Array]]:
        return {name: table.columns() for name, table in self.state.segments.items()}

    def scope(self, step: int | None = None) -> Scope:
        """The rows of one step, or of the whole dump, that have a valid token."""
        chosen = self.rows["valid_tokens"] > 0
        if step is not None:
            chosen &= self.rows["step"] == step
        return Scope(
            rows={name: column[chosen] for name, column in self.rows.items()},
            classes=self.state.cells.classes(step),
            values=self._values_of(step),
            segments={n: _of_step(columns, step) for n, columns in self._segments.items()},
            plan=self.plan,
        )

    def _values_of(self, step: int | None) -> tuple[Array, NDArray[np.int64]] | None:
        if self._values is None:
            return None
        values, steps, classes = self._values
        chosen = slice(None) if step is None else steps == step
        return values[chosen], classes[chosen]


def _of_step(columns: Mapping[str, Array], step: int | None) -> Mapping[str, Array]:
    if step is None:
        return columns
    chosen = columns["step"] == step
    return {name: column[chosen] for name, column in columns.items()}
