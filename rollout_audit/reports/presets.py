"""Presets as a table, and one preset with the configuration to paste."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from rollout_audit.corrections.describe import describe, effective_intervals, log_intervals, what_is_left_of_rejected
from rollout_audit.corrections.presets import Preset
from rollout_audit.reports.correction_table import short_interval
from rollout_audit.reports.pasting import pasted
from rollout_audit.reports.tables import Block, Cell, Column, Document, Note, Table
from rollout_audit.trainers.base import Trainer
from rollout_audit.trainers.expression import Expression, Unexpressible

__all__ = ["preset_document", "presets_document", "translation_document"]


def presets_document(presets: Sequence[Preset]) -> Document:
    columns = (
        Column("name", "preset", "label"),
        Column("keeps", "in full where"),
        Column("mode", "mode"),
        Column("loss", "loss"),
        Column("recommended", "recommended"),
        Column("origin", "origin"),
    )
    rows: list[list[Cell]] = [
        [
            p.name,
            short_interval(effective_intervals(p.correction)),
            p.correction.mode.value,
            p.correction.loss.value,
            p.recommended,
            p.origin,
        ]
        for p in presets
    ]
    caption = (
        "ρ: ratio π/μ of the token; Πρ: product over the response; geo ρ: its geometric mean. What lies "
        "inside the interval counts in full. `rollout-audit presets NAME` shows one with its configuration."
    )
    records = [preset_record(p) for p in presets]
    return Document((Table("Presets", columns, rows, caption),), lambda: _json(records), lambda: _flat(records))


def preset_document(preset: Preset, trainer: Trainer[Any]) -> Document:
    """A preset of that trainer."""
    record = preset_record(preset)
    return Document(tuple(_blocks(preset, trainer)), lambda: _json(record), lambda: _flat([record]))


def preset_record(preset: Preset) -> dict[str, object]:
    """Everything about a preset, as plain data."""
    correction = preset.correction
    return {
        "name": preset.name,
        "origin": preset.origin,
        "use": preset.use,
        "mode": correction.mode.value,
        "loss": correction.loss.value,
        "denominator": correction.denominator.value,
        "formula": describe(correction),
        "keeps": effective_intervals(correction),
        "keeps_in_log_units": log_intervals(correction),
        "rejected": what_is_left_of_rejected(correction) or None,
        "recommended": preset.recommended,
        "config": dict(preset.config),
    }


def _to_paste(preset: Preset, trainer: Trainer[Any]) -> str:
    """The trainer's own keys where and how it takes them."""
    settings, _ = trainer.settings(preset.config)
    return pasted(trainer.nested(settings), trainer.syntax_of(settings))


def _blocks(preset: Preset, trainer: Trainer[Any]) -> Iterator[Block]:
    correction = preset.correction
    full: list[list[Cell]] = [["counts in full", text] for text in effective_intervals(correction)]
    full += [["in log units", text] for text in log_intervals(correction)]
    left = what_is_left_of_rejected(correction)
    taken: list[list[Cell]] = [["what it takes out", left]] if left else []
    facts: list[list[Cell]] = [
        ["what it is for", preset.use],
        ["what it does", describe(correction)],
        *full,
        *taken,
        ["mode, loss", f"{correction.mode.value}, {correction.loss.value}"],
        ["loss divides by", f"{correction.denominator.value} tokens"],
        ["recommended", preset.recommended or "no threshold to choose"],
        ["origin", preset.origin],
    ]
    yield Table(preset.name, (Column("fact", "", "label"), Column("value", "", "prose")), facts)
    yield Note("")
    yield Note(f"Configuration for {preset.origin.split(',')[0]}, to paste:")
    yield from (Note(line) for line in _to_paste(preset, trainer).splitlines())


def _json(tree: object) -> str:
    return json.dumps(tree, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def _flat(records: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    return [
        {k: v if isinstance(v, str | None) else json.dumps(v, ensure_ascii=False) for k, v in r.items()}
        for r in records
    ]


def translation_document(preset: Preset, trainer: Trainer[Any], found: Expression | Unexpressible) -> Document:
    """A preset in another trainer's settings, or why there are none and what comes nearest."""
    record = _translation(preset, trainer, found)
    return Document(
        tuple(Note(line) for line in _translation_lines(record)),
        json=lambda: _json(record),
        records=lambda: _flat([record]),
    )


def _translation(preset: Preset, trainer: Trainer[Any], found: Expression | Unexpressible) -> dict[str, object]:
    expression = found.nearest if isinstance(found, Unexpressible) else found
    config, syntax = trainer.nested(expression.settings), trainer.syntax_of(expression.settings)
    return {
        "preset": preset.name,
        "trainer": trainer.name,
        "version": trainer.version,
        "expressible": found is expression,
        "reason": found.reason if isinstance(found, Unexpressible) else None,
        "formula": describe(expression.correction),
        "config": config,
        "paste": pasted(config, syntax),
        "fine_print": list(expression.fine_print),
    }


def _translation_lines(record: Mapping[str, object]) -> Iterator[str]:
    """Comments and settings, so that what can be expressed may go straight into a file."""
    preset, trainer = record["preset"], f"{record['trainer']} {record['version']}"
    if record["expressible"]:
        yield f"# {preset} for {trainer}: {record['formula']}"
    else:
        yield f"# {trainer} cannot express {preset}; nearest is {record['reason']}:"
    yield from str(record["paste"]).splitlines()
    yield from (f"# {line}" for line in cast("list[str]", record["fine_print"]))
