"""What is wrong with the dump itself: faults, and the sequences that were left out for them."""

from __future__ import annotations

from collections.abc import Sequence

from rollout_audit.audit.report import DroppedSequence, FindingReport
from rollout_audit.dumps.chunk import Finding
from rollout_audit.reports.tables import Cell, Column, Table

__all__ = ["dropped_table", "findings_table", "place"]

DROPPED_SHOWN = 8


def findings_table(findings: Sequence[FindingReport | Finding]) -> Table:
    columns = (
        Column("severity", "severity", "status"),
        Column("kind", "kind", "label"),
        Column("count", "count", "count"),
        Column("where", "first at"),
        Column("message", "what", "prose"),
    )
    rows: list[list[Cell]] = [
        [f.severity, f.kind, f.count, place(f.file, f.row, f.position), f.message] for f in findings
    ]
    return Table("Findings in the dump", columns, rows)


def place(file: str | None, row: int | None, position: int | None = None) -> str:
    """`file row 3 position 17`, as much of it as is known."""
    parts = [
        file,
        None if row is None else f"row {row}",
        None if position is None else f"position {position}",
    ]
    return " ".join(part for part in parts if part)


def dropped_table(dropped: Sequence[DroppedSequence]) -> Table:
    """The first of the sequences that `--on-fault drop` left out."""
    columns = (
        Column("uid", "uid", "label"),
        Column("file", "file"),
        Column("row", "row", "index"),
        Column("kind", "fault"),
    )
    rows: list[list[Cell]] = [[d.uid, d.file, d.row, d.kind] for d in dropped[:DROPPED_SHOWN]]
    more = len(dropped) - len(rows)
    return Table("Sequences left out", columns, rows, caption=f"and {more:,} more, in report.json" if more > 0 else "")
