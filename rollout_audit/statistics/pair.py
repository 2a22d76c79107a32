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
from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.tokens import Tokens, row_sum, spread
from rollout_audit.statistics import fused
from rollout_audit.statistics.cells import Cells, CellTable, cell_table
from rollout_audit.statistics.plan import PairPlan
from rollout_audit.statistics.rows import row_columns, row_rule_keeps
from rollout_audit.statistics.tail import KEPT, WorstTokens, largest, worst_of

__all__ = ["PairState", "RowTable", "TokenValues", "pair_state"]

Ints = NDArray[np.int64]


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
    """The log-ratios themselves with their step and class, where the plan keeps them."""

    parts: list[tuple[NDArray[np.float64], Ints, Ints]] = field(default_factory=list)
    size: int = 0

    @property
    def complete(self) -> bool:
        return sum(len(values) for values, _, _ in self.parts) == self.size

    def absorb(self, other: TokenValues) -> None:
        self.size += other.size
        self.parts.extend(other.parts)

    def sorted(self) -> tuple[NDArray[np.float64], Ints, Ints]:
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


def pair_state(packed: Packed, training: str, rollout: str, plan: PairPlan) -> PairState:
    """Evidence of one chunk on one pair: by the fused loops where they can, else by tensors.

    Args:
        packed: the chunk's valid tokens.
        training: column of the training policy π; `rollout` of the policy μ it is held against.
        plan: what the named corrections need.
    """
    loops = plan.compiled and plan.fits_loops and packed.device.type == "cpu" and fused.is_available()
    evidence = _by_loops if loops else _by_tensors
    return evidence(packed, training, rollout, plan)


def _by_tensors(packed: Packed, training: str, rollout: str, plan: PairPlan) -> PairState:
    tokens = packed.tokens(training, rollout)
    steps = torch.from_numpy(packed.chunk.steps.astype(np.int64)).to(packed.device)
    rows = row_columns(tokens, plan.clamps)
    token_class = _token_class(tokens, rows, plan.filters)
    for i, rules in enumerate(plan.counters):
        rows[f"kept_{i}"] = row_sum(_all_keep(rules, tokens).to(torch.float64), tokens.lengths)
    step_of_token = spread(steps, tokens.lengths)
    d = tokens.log_ratio
    worst = packed.flat[largest(d.abs()).cpu().numpy()]
    return PairState(
        rows=RowTable([{name: column.cpu().numpy() for name, column in rows.items()}]),
        segments={n: _segment_table(c, tokens, steps) for n, c in plan.segment_corrections.items()},
        cells=cell_table(d, step_of_token, token_class, plan.grid),
        values=_values(plan, d.cpu().numpy(), step_of_token.cpu().numpy(), token_class.cpu().numpy()),
        worst=worst_of(packed.chunk, training, rollout, worst),
    )


def _by_loops(packed: Packed, training: str, rollout: str, plan: PairPlan) -> PairState:
    chunk = packed.chunk
    pi, mu = getattr(chunk, training), getattr(chunk, rollout)
    found = fused.row_pass(
        pi, mu, chunk.response_mask, chunk.offsets, plan.grid, plan.clamps, plan.counted_intervals, KEPT
    )
    lengths = found.columns["valid_tokens"].astype(np.int64)
    rows = {name: torch.from_numpy(column) for name, column in found.columns.items()}
    row_class = _row_class(rows, plan.filters).numpy()
    values = TokenValues([], len(found.u))
    if plan.keep_values:
        values = _values(plan, found.log_ratio.copy(), np.repeat(chunk.steps, lengths), np.repeat(row_class, lengths))
    return PairState(
        rows=RowTable([found.columns]),
        cells=_binned(found, lengths, chunk.steps, row_class, plan),
        values=values,
        worst=worst_of(chunk, training, rollout, found.worst),
    )


def _binned(found: fused.RowPass, lengths: Ints, steps: Ints, row_class: Ints, plan: PairPlan) -> CellTable:
    """Cells by (step, class); rows without a valid token belong to no group."""
    scored = np.flatnonzero(lengths)
    order = scored[np.lexsort((row_class[scored], steps[scored]))]
    keys = np.stack([steps[order], row_class[order]], axis=1)
    last = np.append(np.flatnonzero((np.diff(keys, axis=0) != 0).any(axis=1)), len(order) - 1) if len(order) else order
    binned = fused.bin_tokens(found, order, np.cumsum(lengths), last + 1, plan.grid.cells)
    parts, start = {}, 0
    for (step, its_class), end in zip(keys[last].tolist(), binned.group_ends.tolist(), strict=True):
        span, start = slice(start, end), end
        parts[step, its_class] = Cells(
            binned.index[span], binned.counts[span], binned.sum_u[span], binned.sum_u_sq[span]
        )
    return CellTable(parts)


def _token_class(tokens: Tokens, rows: Mapping[str, Tensor], filters: Sequence[tuple[Rule, ...]]) -> Tensor:
    """int64 [tokens]: bit i is set where filter i keeps the token."""
    token_class = spread(_row_class(rows, filters), tokens.lengths)
    for i, rules in enumerate(filters):
        if not _decides_on_rows(rules):
            token_class |= _all_keep(rules, tokens).to(torch.int64) << i
    return token_class


def _row_class(rows: Mapping[str, Tensor], filters: Sequence[tuple[Rule, ...]]) -> Tensor:
    """int64 [rows]: bit i is set where filter i decides on whole rows and keeps the row."""
    row_class = torch.zeros_like(rows["valid_tokens"], dtype=torch.int64)
    for i, rules in enumerate(filters):
        if _decides_on_rows(rules):
            keeps = torch.ones_like(row_class, dtype=torch.bool)
            for rule in rules:
                keeps &= row_rule_keeps(rule, rows)
            row_class |= keeps.to(torch.int64) << i
    return row_class


def _decides_on_rows(rules: Sequence[Rule]) -> bool:
    return all(rule.aggregation.per_row for rule in rules)


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


def _values(plan: PairPlan, d: NDArray[np.float64], step: Ints, token_class: Ints) -> TokenValues:
    return TokenValues([(d, step, token_class)] if plan.keep_values else [], len(d))
