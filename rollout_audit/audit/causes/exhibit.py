"""The evidence that detectors look at: sampled rows with their kinds, sums of every row, faults of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rollout_audit.audit import health
from rollout_audit.audit.causes.kinds import RowKinds
from rollout_audit.audit.causes.sampled import EDGE, Array, Flags, Ints, SampledRows
from rollout_audit.corrections.model import SAFETY_CLAMP
from rollout_audit.dumps.chunk import Finding

__all__ = ["Exhibit", "in_words", "known"]

STEP_ROWS, STEP_TOKENS = 8, 200
"""A step with less is too small a batch for a limit to mean anything"""
TAIL_TOKENS = 0.01
LAST_ROWS, LAST_AGAINST_REST = 3, 10.0
"""Rows, and how much oftener a last token is off than another one"""
EDGE_SHARE = 0.05
"""Of the rows, before an edge of the mask is called wrong"""
PAST_FLOAT = 1e300
"""What stands for a figure past float64, so that it is compared with limits all the same"""


def in_words(figure: float) -> str:
    """Two digits of a figure of `Exhibit.figures`."""
    return f"{figure:.2g}" if abs(figure) < PAST_FLOAT else "past float64"


def known(figures: Mapping[str, float]) -> dict[str, float]:
    """Those that float64 holds."""
    return {name: value for name, value in figures.items() if abs(value) < PAST_FLOAT}


@dataclass(frozen=True)
class Exhibit:
    """Everything is plain NumPy."""

    sample: SampledRows
    table: Mapping[str, Array]
    """columns [rows] of every row with a valid token: step, valid_tokens, sum_d, sum_abs_d, sum_k3, min_d, …; and
    policy_age, policy_version, newest_version where recorded"""
    findings: Sequence[Finding]
    training: str
    """name of the column"""
    rollout: str
    files: Sequence[str]

    @cached_property
    def kinds(self) -> RowKinds:
        return RowKinds(self.sample)

    @cached_property
    def clean(self) -> Flags:
        """[tokens] of the sample that no kind of row explains, and no appended end of sequence."""
        tokens = ~self.kinds.flagged[self.sample.row]
        tokens[self.sample.last[self.appended | self.odd_last]] = False
        return np.asarray(tokens & ~self.odd_edges)

    @cached_property
    def clean_log_ratio(self) -> Array:
        """d of the clean tokens."""
        return self.sample.log_ratio[self.clean]

    @cached_property
    def tail_share(self) -> float:
        """Share of Σk3 that the worst hundredth of the clean tokens carries."""
        d = np.clip(self.clean_log_ratio, -SAFETY_CLAMP, SAFETY_CLAMP)
        if not len(d):
            return 0.0
        k3 = np.expm1(d) - d
        total, worst = float(k3.sum()), max(1, int(TAIL_TOKENS * len(k3)))
        return float(np.partition(k3, -worst)[-worst:].sum()) / total if total > 0 else 0.0

    @cached_property
    def appended(self) -> Flags:
        """[rows] whose last token alone is certain to the rollout side and not to the trainer.

        None where a single one is only nearly certain, or where others are as well, as a truncation makes them.
        """
        rows, found = self.sample, self.sample.appended & ~self.kinds.flagged
        enough = found.sum() >= LAST_ROWS or np.any(rows.rollout[rows.last[found]] == 0.0)
        stands_out = found.sum() >= LAST_AGAINST_REST * rows.rows * self.share_before_last(rows.certain)
        return np.asarray(found & enough & stands_out)

    @cached_property
    def odd_last(self) -> Flags:
        """[rows] whose last token is off, where that is frequent at the end and rare elsewhere."""
        rows, judged = self.sample, ~self.kinds.flagged & (self.sample.lengths > 4)
        odd = judged & rows.big[rows.last]
        share = odd.sum() / max(judged.sum(), 1)
        stands_out = share >= LAST_AGAINST_REST * self.share_before_last(rows.big)
        return np.asarray(odd & stands_out & (odd.sum() >= LAST_ROWS))

    @cached_property
    def odd_edges(self) -> Flags:
        """[tokens] beside an edge of the mask that are off, where that is frequent there and rare elsewhere."""
        rows = self.sample
        odd = rows.big | rows.certain
        judged = (~self.kinds.flagged & (rows.lengths > 2 * EDGE))[rows.row]
        at = judged & rows.edges
        found = at & odd
        share, of_rows = found.sum() / max(at.sum(), 1), len(np.unique(rows.row[found]))
        stands_out = share >= LAST_AGAINST_REST * self.share_before_last(odd, rows.edges)
        return np.asarray(found & stands_out & (of_rows >= max(LAST_ROWS, EDGE_SHARE * rows.rows)))

    def share_before_last(self, tokens: Flags, left_out: Flags | None = None) -> float:
        """Of the tokens that are no row's last one, and in no row of a kind."""
        others = ~self.kinds.flagged[self.sample.row]
        others[self.sample.last] = False
        if left_out is not None:
            others &= ~left_out
        return float((tokens & others).sum() / max(others.sum(), 1))

    def count(self, *kinds: str) -> int:
        """Occurrences of faults of those kinds."""
        return sum(finding.count for finding in self.findings if finding.kind in kinds)

    def place(self, row: int) -> str:
        """A sampled row, by name."""
        return f"{self.files[self.sample.file[row]]} row {self.sample.number[row]}"

    @cached_property
    def tokens(self) -> int:
        return int(self.table["valid_tokens"].sum()) if len(self.table) else 0

    @cached_property
    def steps(self) -> Ints:
        """Distinct steps, ascending."""
        return np.unique(self.table["step"]).astype(np.int64) if len(self.table) else np.empty(0, np.int64)

    @cached_property
    def rows_of_steps(self) -> tuple[Ints, ...]:
        """For each of `steps` its rows in the table, ascending; sorted once: a dump may have thousands."""
        step = self.table["step"]
        order = np.argsort(step, kind="stable")
        parts = np.split(order, np.searchsorted(step[order], self.steps[1:]))
        return tuple(np.asarray(part, dtype=np.int64) for part in parts) if len(self.steps) else ()

    @cached_property
    def row_gap(self) -> Array:
        """[rows of the table] log of the mean |d|: what a few wild rows or long ones do not move."""
        mean = self.table["sum_abs_d"] / np.maximum(self.table["valid_tokens"], 1)
        return np.asarray(np.log(mean + 1e-9))

    def figures(self, rows: Ints | slice) -> dict[str, float | int | None]:
        """The metrics of those rows, taken as one batch, that have a health limit of their own."""
        column = {name: self.table[name][rows] for name in ("valid_tokens", "sum_d", "sum_k3", "min_d", "sum_chi2")}
        if not len(column["sum_d"]):
            return {}
        n = max(float(column["valid_tokens"].sum()), 1.0)
        with np.errstate(over="ignore"):
            ratio = float(np.exp(-column["sum_d"] / np.maximum(column["valid_tokens"], 1)).mean())
        vetoed = column["min_d"] < np.log(1e-4)
        found = {
            "kl_k1": -float(column["sum_d"].sum()) / n,
            "kl_k3": float(column["sum_k3"].sum()) / n,
            "chi2_token": float(column["sum_chi2"].sum()) / n - 1.0,
            "ppl_ratio": ratio,
            "veto_fraction": float(vetoed.mean()) if len(vetoed) else 0.0,
        }
        return {name: value if np.isfinite(value) else PAST_FLOAT for name, value in found.items()}

    @cached_property
    def pooled(self) -> Mapping[str, float | int | None]:
        return self.figures(slice(None))

    @cached_property
    def past_limits(self) -> tuple[str, ...]:
        """Metrics past a health limit, pooled or in a step that is large enough to say."""
        if not self.tokens:
            return ()
        scopes = [self.pooled]
        for rows in self.rows_of_steps if len(self.steps) > 1 else ():
            if len(rows) >= STEP_ROWS and self.table["valid_tokens"][rows].sum() >= STEP_TOKENS:
                scopes.append(self.figures(rows))
        return tuple(dict.fromkeys(name for scope in scopes for name in health.past_limits(scope)))
