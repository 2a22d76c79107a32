"""The corrections side by side: what each keeps of the batch and what it costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from rollout_audit.audit.alike import Group, alike, equals, trainer_of
from rollout_audit.audit.report import Report
from rollout_audit.reports.tables import Cell, Column, Table

__all__ = ["correction_tables", "short_interval"]

INTERVAL_WORDS = {
    "ρ of the token": "ρ",
    "product ratio of the sequence": "Πρ",
    "geometric ratio of the sequence": "geo ρ",
    "geometric ratio of the segment": "segment ρ",
    "every ρ of the sequence": "every ρ",
    " in full": "",
}
LONG_NUMBER = re.compile(r"\d+\.\d{5,}")

MOST_IN_ONE = 24
"""Rows; more are split by origin"""

Reader: TypeAlias = Callable[[Group], Cell]


def correction_tables(report: Report) -> Iterator[Table]:
    """The reference first, then the rest in their own order; many in two tables, its own trainer's and the others'."""
    name = report.settings.reference
    groups = alike(sorted(report.corrections, key=lambda c: c.name != name))
    own = trainer_of(groups[0][0])
    apart = len(groups) > MOST_IN_ONE
    others = [group for group in groups if apart and trainer_of(group[0]) != own]
    mode = report.settings.mode
    yield _table("Corrections, whole dump", [g for g in groups if g not in others], mode, _legend(name))
    if others:
        yield _table("Corrections of other trainers, whole dump", others, mode)


def _table(title: str, groups: Sequence[Group], mode: str, legend: str = "") -> Table:
    """Without the column of modes where all have the report's own."""
    one_mode = all(group[0].mode == mode for group in groups)
    shown = [(column, read) for column, read in _COLUMNS if not (one_mode and column.key == "mode")]
    same = equals(groups)
    captions = (legend, f"Alike on this dump, in intervals and every figure: {same}." if same else "")
    rows = [[read(group) for _, read in shown] for group in groups]
    return Table(title, tuple(column for column, _ in shown), rows, " ".join(filter(None, captions)))


def _legend(reference: str) -> str:
    return (
        f"{reference} is the reference of the health rules. What lies inside the interval counts "
        "in full: ρ of the token, Πρ product over the response, geo ρ its geometric mean. "
        "zeroed: weight 0 and still in the mask. "
        "kept: of the tokens that no rule rejects; rejected ones keep their weight, only the mask takes them out. "
        "mark: own figures against the health limits."
    )


def short_interval(keeps: Iterable[str]) -> str:
    """Effective intervals in the table's own signs: `ρ ≤ 2; geo ρ in [0.999, 1.001]`."""
    text = "; ".join(keeps)
    for words, sign in INTERVAL_WORDS.items():
        text = text.replace(words, sign)
    return LONG_NUMBER.sub(lambda match: f"{float(match[0]):.4g}", text) or "all"


def _stage(stage: str, metric: str) -> Reader:
    return lambda group: getattr(group[0].stages, stage).get(metric)


_COLUMNS: tuple[tuple[Column, Reader], ...] = (
    (Column("name", "preset", "label"), lambda group: group[0].name),
    (Column("keeps", "in full where"), lambda group: short_interval(group[0].keeps)),
    (Column("ess_raw", "ess\nraw", "number", 3), _stage("raw", "ess")),
    (Column("ess_kept", "ess\nkept", "number", 3), _stage("kept", "ess")),
    (Column("ess_seq", "ess_seq\nkept", "number", 3), _stage("kept", "ess_seq")),
    (Column("capped_fraction", "capped", "percent"), _stage("bounded", "capped_fraction")),
    (Column("zeroed_fraction", "zeroed", "percent"), _stage("bounded", "zeroed_fraction")),
    (Column("masked_fraction", "masked\ntokens", "percent"), _stage("kept", "masked_fraction")),
    (Column("seq_masked_fraction", "masked\nseqs", "percent"), _stage("kept", "seq_masked_fraction")),
    (Column("kept_reward_mean", "kept\nreward", "number", 3), _stage("kept", "kept_reward_mean")),
    (Column("alike", "others\nalike", "count"), lambda group: len(group) - 1 or None),
    (Column("mode", "mode"), lambda group: group[0].mode),
    (Column("status", "mark", "status"), lambda group: group[0].status),
)
