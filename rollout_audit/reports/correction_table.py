"""The corrections side by side: what each keeps of the batch and what it costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from rollout_audit.audit.report import CorrectionReport, Report
from rollout_audit.reports.tables import Cell, Column, Table

__all__ = ["correction_table", "short_interval"]

INTERVAL_WORDS = {
    "ρ of the token": "ρ",
    "product ratio of the sequence": "Πρ",
    "geometric ratio of the sequence": "geo ρ",
    "geometric ratio of the segment": "segment ρ",
    " in full": "",
}
LONG_NUMBER = re.compile(r"\d+\.\d{5,}")

CorrectionReader: TypeAlias = Callable[[CorrectionReport], Cell]


def correction_table(report: Report) -> Table:
    """The reference first, then the rest in their own order."""
    reference = report.settings.reference
    ordered = sorted(report.corrections, key=lambda c: c.name != reference)
    columns = tuple(column for column, _ in _PRESET_COLUMNS)
    rows = [[read(correction) for _, read in _PRESET_COLUMNS] for correction in ordered]
    caption = (
        f"{reference} is the reference of the health rules. What lies inside the interval counts "
        "in full: ρ of the token, Πρ product over the response, geo ρ its geometric mean. "
        "mark: own figures against the health limits."
    )
    return Table("Corrections, whole dump", columns, rows, caption)


def short_interval(keeps: Iterable[str]) -> str:
    """Effective intervals in the table's own signs: `ρ ≤ 2; geo ρ in [0.999, 1.001]`."""
    text = "; ".join(keeps)
    for words, sign in INTERVAL_WORDS.items():
        text = text.replace(words, sign)
    return LONG_NUMBER.sub(lambda match: f"{float(match[0]):.4g}", text) or "all"


def _stage(stage: str, metric: str) -> CorrectionReader:
    return lambda c: getattr(c.stages, stage).get(metric)


_PRESET_COLUMNS: tuple[tuple[Column, CorrectionReader], ...] = (
    (Column("name", "preset", "label"), lambda c: c.name),
    (Column("keeps", "in full where"), lambda c: short_interval(c.keeps)),
    (Column("ess_raw", "ess\nraw", "number", 3), _stage("raw", "ess")),
    (Column("ess_kept", "ess\nkept", "number", 3), _stage("kept", "ess")),
    (Column("ess_seq", "ess_seq\nkept", "number", 3), _stage("kept", "ess_seq")),
    (Column("capped_fraction", "capped", "percent"), _stage("bounded", "capped_fraction")),
    (Column("masked_fraction", "masked\ntokens", "percent"), _stage("kept", "masked_fraction")),
    (Column("seq_masked_fraction", "masked\nseqs", "percent"), _stage("kept", "seq_masked_fraction")),
    (Column("kept_reward_mean", "kept\nreward", "number", 3), _stage("kept", "kept_reward_mean")),
    (Column("mode", "mode"), lambda c: c.mode),
    (Column("status", "mark", "status"), lambda c: c.status),
)
