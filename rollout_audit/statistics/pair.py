"""Everything one pass keeps about a training policy against a rollout policy, and how a chunk adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollout_audit.corrections.direct import rule_keeps
from rollout_audit.corrections.model import Correction, Rule
from rollout_audit.corrections.tokens import Tokens, row_sum, spread
from rollout_audit.statistics.cells import CellTable, cell_table
from rollout_audit.statistics.plan import PairPlan
from rollout_audit.statistics.rows import row_columns, row_rule_keeps
from rollout_audit.statistics.tail import TokenPlaces, WorstTokens, worst_tokens

__all__ = ["EXACT_QUANTILES_UP_TO", "PairState", "RowTable", "TokenValues", "pair_state"]

EXACT_QUANTILES_UP_TO = 1 << 20
"""Valid tokens up to which quantiles are exact; beyond it they are read off the cells"""


@dataclass
class RowTable:
    """Columns of equal length, row after row in the order of the dump."""

    parts: list[Mapping[str, NDArray[np.float64]]] = field(default_factory=list)

    def absorb(self, other: RowTable) -> None:
        self.parts.extend(other.parts)

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """All parts end to end; NaN where a part lacks the column, empty where nothing was read."""
        names = dict.fromkeys(name for part in self.parts for name in part)
        return {name: np.concatenate([_column(part, name) for part in self.parts]) for name in names}


def _column(part: Mapping[str, NDArray[np.float64]], name: str) -> NDArray[np.float64]:
    return part[name] if name in part else np.full(len(next(iter(part.values()))), np.nan)


@dataclass
class TokenValues:
    """The log-ratios themselves with their step and class, while they are few enough to keep."""

    parts: list[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    size: int = 0

    @property
    def complete(self) -> bool:
        return self.size <= EXACT_QUANTILES_UP_TO

    def absorb(self, other: TokenValues) -> None:
        self.size += other.size
        self.parts = [*self.parts, *other.parts] if self.complete else []

    def sorted(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Log-ratios ascending, with step and class."""
        if not self.parts:
            return np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        values, steps, classes = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        order = np.argsort(values, kind="stable")
        return values[order], steps[order], classes[order]


@dataclass
class PairState:
    """Mergeable evidence on one pair. The identity is a fresh instance; `absorb` leaves its argument alone."""

    rows: RowTable = field(default_factory=RowTable)
    segments: dict[str, RowTable] = field(default_factory=dict)
    cells: CellTable = field(default_factory=CellTable)
    values: TokenValues = field(default_factory=TokenValues)
    worst: WorstTokens = field(default_factory=WorstTokens)

    def absorb(self, other: PairState) -> None:
        self.rows.absorb(other.rows)
        for name, table in other.segments.items():
            self.segments.setdefault(name, RowTable()).absorb(table)
        self.cells.absorb(other.cells)
        self.values.absorb(other.values)
        self.worst.absorb(other.worst)


def pair_state(tokens: Tokens, steps: Tensor, places: TokenPlaces, plan: PairPlan) -> PairState:
    """Evidence of one chunk.

    Args:
        tokens: the chunk's valid tokens.
        steps: int64 [rows].
        places: where each token stands in the dump.
        plan: what the named corrections need.
    """
    rows = row_columns(tokens, plan.clamps)
    token_class = _token_class(tokens, rows, plan.filters)
    for i, rules in enumerate(plan.counters):
        rows[f"kept_{i}"] = row_sum(_all_keep(rules, tokens).to(torch.float64), tokens.lengths)
    step_of_token = spread(steps, tokens.lengths)
    d = tokens.log_ratio
    return PairState(
        rows=RowTable([{name: column.cpu().numpy() for name, column in rows.items()}]),
        segments={n: _segment_table(c, tokens, steps) for n, c in plan.segment_corrections.items()},
        cells=cell_table(d, step_of_token, token_class, plan.grid),
        values=_values(d, step_of_token, token_class),
        worst=worst_tokens(tokens, places),
    )


def _token_class(tokens: Tokens, rows: Mapping[str, Tensor], filters: Sequence[tuple[Rule, ...]]) -> Tensor:
    """int64 [tokens]: bit i is set where filter i keeps the token."""
    per_row = torch.zeros_like(tokens.lengths)
    per_token = torch.zeros_like(tokens.log_ratio, dtype=torch.int64)
    for i, rules in enumerate(filters):
        if all(rule.aggregation.per_row for rule in rules):
            keeps = torch.ones_like(tokens.lengths, dtype=torch.bool)
            for rule in rules:
                keeps &= row_rule_keeps(rule, rows)
            per_row |= keeps.to(torch.int64) << i
        else:
            per_token |= _all_keep(rules, tokens).to(torch.int64) << i
    return per_token | spread(per_row, tokens.lengths)


def _all_keep(rules: Sequence[Rule], tokens: Tokens) -> Tensor:
    kept = torch.ones_like(tokens.log_ratio, dtype=torch.bool)
    for rule in rules:
        kept &= rule_keeps(rule, tokens)
    return kept


def _segment_table(correction: Correction, tokens: Tokens, steps: Tensor) -> RowTable:
    """One row a run of mask 1: its mean log-ratio, its tokens, and how many of them the correction keeps."""
    lengths = tokens.segment_lengths
    kept = _all_keep(correction.all_rules, tokens).to(torch.float64)
    starts = lengths.cumsum(0) - lengths
    columns = {
        "log_ratio": row_sum(tokens.log_ratio, lengths) / lengths,
        "valid_tokens": lengths.to(torch.float64),
        "kept": row_sum(kept, lengths),
        "step": spread(steps, tokens.lengths)[starts].to(torch.float64),
    }
    return RowTable([{name: column.cpu().numpy() for name, column in columns.items()}])


def _values(d: Tensor, step: Tensor, token_class: Tensor) -> TokenValues:
    size = d.numel()
    if size > EXACT_QUANTILES_UP_TO:
        return TokenValues([], size)
    arrays = (d.cpu().numpy(), step.cpu().numpy(), token_class.cpu().numpy())
    return TokenValues([arrays], size)
