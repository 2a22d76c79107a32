"""What `inspect` shows of a dump."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from rollout_audit.audit.causes.model import Cause
from rollout_audit.dumps.inspection import FileInspection, Inspection
from rollout_audit.reports.causes import causes_blocks
from rollout_audit.reports.figures import amount
from rollout_audit.reports.findings import findings_table
from rollout_audit.reports.tables import Block, Cell, Column, Document, Note, Table, Verdict

__all__ = ["inspection_document"]

FILES_SHOWN = 20
OF_THE_WHOLE = ("nothing_to_audit", "rollout_only")
"""Kinds of findings that leaving rows out does not help"""


def inspection_document(inspection: Inspection, causes: Sequence[Cause] = ()) -> Document:
    """As JSON everything; as records one line a finding."""
    whole = asdict(inspection) | {"causes": [asdict(cause) for cause in causes]}
    return Document(
        tuple(_blocks(inspection, causes)),
        json=lambda: json.dumps(whole, ensure_ascii=False, allow_nan=False, indent=2) + "\n",
        records=lambda: [asdict(finding) for finding in inspection.findings],
    )


def _blocks(inspection: Inspection, causes: Sequence[Cause]) -> Iterator[Block]:
    yield _verdict(inspection, causes)
    yield Note(
        f"{amount(len(inspection.files), 'file')}, {amount(inspection.rows, 'row')} ({inspection.empty_rows:,} "
        f"without a token), {amount(inspection.tokens, 'token')}, {inspection.valid_tokens:,} of them valid."
    )
    yield from causes_blocks(causes)
    if inspection.findings:
        yield findings_table(inspection.findings)
    yield _files(inspection.files)
    yield from _fields(inspection.files)
    if inspection.ranges:
        yield _ranges(inspection)


def _verdict(inspection: Inspection, causes: Sequence[Cause]) -> Verdict:
    counts = {kind: sum(f.severity == kind for f in inspection.findings) for kind in ("error", "warning")}
    if stopper := next((f for f in inspection.findings if f.kind in OF_THE_WHOLE), None):
        return Verdict("error", f"No audit can be made: {stopper.message}.")
    if counts["error"]:
        return Verdict(
            "error",
            f"{amount(counts['error'], 'kind')} of fault at error level: an audit that reads such a row stops "
            "(see --on-fault drop).",
        )
    if counts["warning"]:
        return Verdict("warn", f"{amount(counts['warning'], 'warning')}; nothing that would stop an audit.")
    if grave := [cause.cause for cause in causes if cause.severity != "info"]:
        return Verdict("warn", f"No value is at fault, but what the mismatch looks like is: {', '.join(grave)}.")
    return Verdict("ok", "No fault found.")


def _files(files: tuple[FileInspection, ...]) -> Table:
    columns = (
        Column("name", "file", "label"),
        Column("format", "format"),
        Column("size", "bytes", "count"),
        Column("rows", "rows", "count"),
        Column("empty_rows", "empty", "count"),
        Column("tokens", "tokens", "count"),
        Column("valid_tokens", "valid", "count"),
        Column("steps", "steps"),
    )
    rows: list[list[Cell]] = [
        [f.name, f.format, f.size, f.rows, f.empty_rows, f.tokens, f.valid_tokens, _steps(f)]
        for f in files[:FILES_SHOWN]
    ]
    more = len(files) - len(rows)
    return Table("Files", columns, rows, caption=f"and {more:,} more; --format json lists all" if more else "")


def _steps(file: FileInspection) -> str:
    if file.first_step is None:
        return "–"
    return str(file.first_step) if file.first_step == file.last_step else f"{file.first_step} to {file.last_step}"


def _fields(files: tuple[FileInspection, ...]) -> Iterator[Block]:
    """Once for files that are mapped alike, however wide their tensors are."""
    groups: dict[tuple[object, ...], list[FileInspection]] = {}
    for file in files:
        fields = tuple(replace(field, type=_without_shape(field.type)) for field in file.fields)
        groups.setdefault((fields, file.unused_columns), []).append(file)
    for group in groups.values():
        unused, more = group[0].unused_columns, f" and {len(group) - 1} more" if len(group) > 1 else ""
        where = "all files" if len(groups) == 1 else f"{group[0].name}{more}"
        columns = (
            Column("field", "field", "label"),
            Column("column", "column"),
            Column("origin", "found by"),
            Column("type", "type"),
        )
        types = [_shown_type([file.fields[i].type for file in group]) for i in range(len(group[0].fields))]
        rows = [[f.field, f.column, str(f.origin), shown] for f, shown in zip(group[0].fields, types, strict=True)]
        caption = f"Columns not used: {', '.join(unused)}." if unused else ""
        yield Table(f"Fields of {where}", columns, rows, caption)


def _without_shape(kind: str) -> str:
    return kind.partition("[")[0]


def _shown_type(kinds: Sequence[str]) -> str:
    """`F32[16, 71]`, with … where other files have other shapes."""
    return kinds[0] if len(set(kinds)) == 1 else f"{kinds[0]} …"


def _ranges(inspection: Inspection) -> Table:
    columns = (
        Column("field", "field", "label"),
        Column("tokens", "tokens", "count"),
        Column("minimum", "least", "figure"),
        Column("mean", "mean", "figure"),
        Column("maximum", "greatest", "figure"),
        Column("zeros", "zeros", "count"),
        Column("bf16_fraction", "exact in\nbf16", "percent"),
    )
    rows: list[list[Cell]] = [
        [r.field, r.tokens, r.minimum, r.mean, r.maximum, r.zeros, r.bf16_fraction] for r in inspection.ranges
    ]
    return Table("Values under mask 1", columns, rows)
