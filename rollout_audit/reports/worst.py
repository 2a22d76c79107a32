"""The tail: which tokens and sequences carry the mismatch, and where they stand."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_audit.audit.report import Report
from rollout_audit.reports.tables import Block, Cell, Column, Table

__all__ = ["worst_tables"]

WORST_SHOWN = 8


def worst_tables(report: Report) -> Iterator[Block]:
    """Nothing where the two policies agree on every token."""
    if report.worst_tokens:
        yield _worst_tokens(report)
    if report.worst_sequences:
        yield _worst_sequences(report)


def _worst_tokens(report: Report) -> Table:
    columns = (
        Column("file", "file", "label"),
        Column("row", "row", "index"),
        Column("position", "position", "index"),
        Column("uid", "uid"),
        Column("step", "step", "index"),
        Column("training_log_prob", "log π", "number", 3),
        Column("rollout_log_prob", "log μ", "number", 3),
        Column("log_ratio", "d", "number", 3),
    )
    rows: list[list[Cell]] = [
        [t.file, t.row, t.position, t.uid, t.step, t.training_log_prob, t.rollout_log_prob, t.log_ratio]
        for t in report.worst_tokens[:WORST_SHOWN]
    ]
    return Table("Worst tokens, by |d|", columns, rows)


def _worst_sequences(report: Report) -> Table:
    columns = (
        Column("file", "file", "label"),
        Column("row", "row", "index"),
        Column("uid", "uid"),
        Column("step", "step", "index"),
        Column("valid_tokens", "tokens", "count"),
        Column("k3_mean", "mean\nk3", "number"),
        Column("log_ratio_mean", "mean\nd", "number"),
        Column("log_ratio_sum", "sum\nd", "number"),
        Column("log_ratio_max_abs", "max\n|d|", "number"),
    )
    rows: list[list[Cell]] = [
        [
            s.file,
            s.row,
            s.uid,
            s.step,
            s.valid_tokens,
            s.k3_mean,
            s.log_ratio_mean,
            s.log_ratio_sum,
            s.log_ratio_max_abs,
        ]
        for s in report.worst_sequences[:WORST_SHOWN]
    ]
    return Table("Worst sequences, by mean k3", columns, rows)
