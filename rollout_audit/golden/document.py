"""What `check` prints: the verdict, what is said first, and the figures that moved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from rollout_audit.golden.compare import VERDICTS, Comparison
from rollout_audit.golden.result import CheckResult
from rollout_audit.reports.figures import amount
from rollout_audit.reports.tables import Block, Cell, Column, Document, Note, Table, Verdict

__all__ = ["check_document", "check_headline", "held_as_null", "record"]

STATUS = {0: "ok", 1: "critical", 2: "unmeasured"}
DIRECTIONS = {
    "higher": "up is worse",
    "lower": "down is worse",
    "above 0": "up above 0 is worse",
    "away from 0": "away from 0 is worse",
    "away from 1": "away from 1 is worse",
    "neither": "any change is worse",
}


def check_document(result: CheckResult, *, every: bool = False) -> Document:
    """For people and programs; unchanged figures are hidden unless `every`."""
    shown = [row for row in result.rows if every or row.changed]
    return Document(
        tuple(_blocks(result, shown)),
        json=lambda: json.dumps(_tree(result, shown), ensure_ascii=False, allow_nan=False, indent=2) + "\n",
        records=lambda: [record(row) for row in shown],
    )


def check_headline(result: CheckResult) -> str:
    """The outcome in one sentence."""
    if result.stopped is not None:
        return f"could not tell: {result.stopped}"
    parts = []
    if result.golden is not None and not (result.updated and not result.rows):
        counts = ", ".join(f"{result.count(v)} {v}" for v in VERDICTS if result.count(v) or v == "same")
        nulls = result.nulls_as_approved
        parts.append(f"{counts}, {nulls} of them null as approved" if nulls else counts)
    if result.updated:
        parts.append("golden file written")
    if result.agreement is not None:
        parts.append(result.agreement.text)
    verdicts = [gate.verdict for gate in result.gates]
    if verdicts:
        parts.append(", ".join(f"{amount(verdicts.count(v), 'gate')} {v}" for v in dict.fromkeys(verdicts)))
    return f"{'; '.join(parts)}{f' ({result.reading})' if result.reading else ''}."


def held_as_null(result: CheckResult) -> list[str]:
    """One line for each figure that an update found no value of, whatever the number of steps that lack it."""
    lacking: dict[tuple[str, str], list[str]] = {}
    for key, reason in (result.nulls or {}).items():
        name, _, scope = key.rpartition("@")
        lacking.setdefault((name, reason), []).append(scope)
    return [
        f"no value, held as null: {name}@{scopes[0]}{f' and {len(scopes) - 1} more' if scopes[1:] else ''} ({reason})"
        for (name, reason), scopes in lacking.items()
    ]


def record(row: Comparison) -> dict[str, object]:
    """One figure as a flat record."""
    return {
        "verdict": row.verdict,
        "figure": str(row.key),
        "subject": row.key.subject,
        "metric": row.key.metric,
        "scope": row.key.scope,
        "expected": row.expected,
        "got": row.got,
        "difference": row.difference,
        "tolerance": row.tolerance,
        "direction": row.direction,
        "note": row.note,
    }


def _tree(result: CheckResult, shown: Sequence[Comparison]) -> Mapping[str, object]:
    first = result.bitwise
    return {
        "exit_code": result.exit_code,
        "headline": check_headline(result),
        "golden": result.golden,
        "error": result.stopped,
        "notes": list(result.notes),
        "gaps": list(result.gaps),
        "reading": result.reading,
        "counts": {verdict: result.count(verdict) for verdict in VERDICTS},
        "gates": [{"gate": g.gate.text, "verdict": g.verdict, "value": g.value, "text": g.text} for g in result.gates],
        "bitwise": {
            "asked": result.agreement is not None,
            "outcome": None if result.agreement is None else result.agreement.text,
            "first_difference": None if first is None else first.text,
        },
        "figures": [record(row) for row in shown],
    }


def _blocks(result: CheckResult, shown: Sequence[Comparison]) -> Iterator[Block]:
    remedy = "restore it, or write it anew with --update"
    yield from (Verdict("unmeasured", f"damaged golden file, {gap}: {remedy}") for gap in result.gaps)
    yield from (Verdict("warn", note) for note in result.notes)
    yield Verdict(STATUS[result.exit_code], check_headline(result))
    if result.bitwise is not None:
        yield Note(f"first d ≠ 0: {result.bitwise.text}")
    yield from (Note(f"gate {gate.verdict}: {gate.text}") for gate in result.gates)
    if shown:
        yield _table(shown)


def _table(rows: Sequence[Comparison]) -> Table:
    columns = (
        Column("verdict", "verdict", "status"),
        Column("figure", "figure", "label"),
        Column("expected", "expected", "figure"),
        Column("got", "got", "figure"),
        Column("difference", "difference", "figure"),
        Column("tolerance", "tolerance", "figure"),
        Column("direction", "direction"),
        Column("note", "note", "prose"),
    )
    cells: list[list[Cell]] = [
        [
            row.verdict,
            str(row.key),
            row.expected,
            row.got,
            row.difference,
            row.tolerance,
            DIRECTIONS[row.direction],
            row.note,
        ]
        for row in rows
    ]
    return Table("Against the golden file", columns, cells)
