"""What `explain` shows of the catalogue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rollout_audit.reports.catalogue import CATALOGUE, MetricEntry, limits_text
from rollout_audit.reports.tables import Block, Cell, Column, Document, Table

__all__ = ["catalogue_document", "explanation_document"]

TITLES = {
    "mismatch": "The mismatch, before any correction",
    "correction": "A correction, at stages raw, bounded, normalised, kept",
}


def catalogue_document() -> Document:
    """All metrics, one line each."""
    entries = list(CATALOGUE.values())
    tables = tuple(_table(title, [e for e in entries if e.family == family]) for family, title in TITLES.items())
    return Document(tables, lambda: _json([record(e) for e in entries]), lambda: [_flat(e) for e in entries])


def explanation_document(entry: MetricEntry) -> Document:
    """One metric in full."""
    return Document(tuple(_blocks(entry)), lambda: _json(record(entry)), lambda: [_flat(entry)])


def record(entry: MetricEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "family": entry.family,
        "formula": entry.formula,
        "averaged_over": entry.unit,
        "range": entry.range,
        "worse": entry.worse,
        "meaning": entry.meaning,
        "limits": [limits_text(rule) for rule in entry.rules],
        "advice": list(dict.fromkeys(rule.advice for rule in entry.rules)),
        "source": entry.source,
    }


def _blocks(entry: MetricEntry) -> Iterator[Block]:
    where = (
        "report.json: overall, steps[].metrics" if entry.family == "mismatch" else "report.json: corrections[].stages"
    )
    limits: list[list[Cell]] = [["limit", limits_text(rule)] for rule in entry.rules]
    advice: list[list[Cell]] = [["what to try", a] for a in dict.fromkeys(rule.advice for rule in entry.rules)]
    facts: list[list[Cell]] = [
        ["formula", entry.formula],
        [
            "averaged over",
            {"token": "valid tokens", "sequence": "sequences with a valid token"}.get(entry.unit, entry.unit),
        ],
        ["range", entry.range],
        ["worse", entry.worse],
        ["meaning", entry.meaning],
        *limits,
        *advice,
        ["source", entry.source],
        ["stands in", where],
    ]
    caption = "d = log π − log μ of a token, ρ = exp d, w the applied weight; π trainer, μ rollout engine."
    yield Table(entry.name, (Column("fact", "", "label"), Column("value", "", "prose")), facts, caption)


def _table(title: str, entries: Sequence[MetricEntry]) -> Table:
    columns = (
        Column("name", "metric", "label"),
        Column("worse", "worse"),
        Column("formula", "formula, health limits", "prose"),
    )
    rows: list[list[Cell]] = [[e.name, e.worse, "; ".join((e.formula, *map(limits_text, e.rules)))] for e in entries]
    return Table(title, columns, rows)


def _flat(entry: MetricEntry) -> dict[str, object]:
    return {k: "; ".join(v) if isinstance(v, list) else v for k, v in record(entry).items()}


def _json(tree: object) -> str:
    return json.dumps(tree, ensure_ascii=False, indent=2) + "\n"
