"""What `explain` shows of the catalogue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollout_audit.reports.catalogue import CATALOGUE, MetricEntry, limits_text
from rollout_audit.reports.tables import Block, Cell, Column, Document, Table

if TYPE_CHECKING:
    from rollout_audit.trainers.base import Counterpart, Trainer
    from rollout_audit.trainers.logged import LoggedName

__all__ = ["catalogue_document", "explanation_document", "logged_document"]

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


def logged_document(found: Sequence[tuple[LoggedName, str]]) -> Document:
    """Names that trainers log: of each its reduction, the native figure beside it and the quirk between them."""
    from rollout_audit.trainers.registry import get_trainer  # loads torch, which no native metric needs

    records = [_logged_record(one, full, get_trainer(trainer)) for one, full in found for trainer in one.trainers]
    return Document(tuple(map(_logged_table, records)), lambda: _json(records), lambda: records)


def _logged_record(one: LoggedName, full: str, trainer: Trainer[Any]) -> dict[str, object]:
    # slime and miles log under train/, which their counterparts leave off
    beside = trainer.counterparts.get(full) or trainer.counterparts.get(full.removeprefix("train/"))
    quirk = None if beside is None else trainer.quirk(beside.quirk)
    return {
        "name": full,
        "trainer": trainer.name,
        "version": trainer.version,
        "reduction": one.reduction,
        "native": None if beside is None else _native(beside),
        "quirk": None if quirk is None else quirk.name,
        "quirk_sentence": None if quirk is None else quirk.sentence,
    }


def _native(beside: Counterpart) -> str:
    """The metric without its stage; of a rule what it removes."""
    where, _, name = beside.native.partition(".")
    text = f"share of tokens that {name} removes" if where == "removed" else name
    return text if beside.of == "value" else f"1 − {text}"


def _logged_table(one: Mapping[str, object]) -> Table:
    rows: list[list[Cell]] = [["reduction", str(one["reduction"])]]
    if one["native"] is not None:
        name = str(one["native"]).split()[-1]
        hint = f"; `rollout-audit explain {name}`" if name in CATALOGUE else ""
        rows.append(["native", f"{one['native']}{hint}"])
        rows.append(["quirk", f"{one['quirk']}: {one['quirk_sentence']}"])
    columns = (Column("fact", "", "label"), Column("value", "", "prose"))
    return Table(f"{one['name']}, {one['trainer']} {one['version']}", columns, rows)


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
