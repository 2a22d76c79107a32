"""A trainer's flat metrics, pooled or step by step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from rollout_audit.reports.figures import ABSENT
from rollout_audit.reports.tables import Block, Cell, Column, Document, Note, Table
from rollout_audit.statistics.metrics import Metrics

__all__ = ["padding_note", "pooled_document", "steps_document"]

METRIC = Column("metric", "metric", "label")


def pooled_document(trainer: str, metrics: Metrics) -> Document:
    """All rows as one batch. JSON is the flat dictionary that can be laid beside the run's own log."""
    rows: list[list[Cell]] = [[name, value] for name, value in metrics.items()]
    table = Table(f"{trainer}, whole dump as one batch", (METRIC, Column("value", "value", "figure")), rows)
    records = [_record(name, value, metrics) for name, value in metrics.items()]
    return Document(
        (table, *_padded(trainer, metrics), *_reasons({"": metrics})),
        json=lambda: _json(dict(metrics)),
        records=lambda: records,
        lines=lambda: [dict(metrics)],
    )


def steps_document(trainer: str, by_step: Mapping[int, Metrics]) -> Document:
    """One column a step; JSON is step → flat dictionary, JSON lines one dictionary a step."""
    names = list(dict.fromkeys(name for metrics in by_step.values() for name in metrics))
    columns = (METRIC, *(Column(f"step_{step}", f"step {step}", "figure") for step in by_step))
    rows: list[list[Cell]] = [[name, *(metrics.get(name) for metrics in by_step.values())] for name in names]
    table = Table(f"{trainer}, one batch a step", columns, rows)
    return Document(
        (
            table,
            *_padded(trainer, names),
            *_reasons({f" in step {step}": metrics for step, metrics in by_step.items()}),
        ),
        json=lambda: _json({str(step): dict(metrics) for step, metrics in by_step.items()}),
        records=lambda: [
            {"step": step, **_record(name, value, metrics)}
            for step, metrics in by_step.items()
            for name, value in metrics.items()
        ],
        lines=lambda: [{"step": step, **metrics} for step, metrics in by_step.items()],
    )


def padding_note(trainer: str, names: Iterable[str]) -> str:
    """Which figures depend on how long the batch is padded, and what is taken for it; empty where none does."""
    from rollout_audit.trainers.registry import get_trainer

    padded = [name for name in names if name.endswith(get_trainer(trainer).padded)]
    if not padded:
        return ""
    return f"{', '.join(padded)}: over all positions of a padded batch, here as long as its longest response."


def _padded(trainer: str, names: Iterable[str]) -> Iterator[Block]:
    if text := padding_note(trainer, names):
        yield Note(text, quiet=True)


def _record(name: str, value: float | int | None, metrics: Metrics) -> dict[str, object]:
    return {"metric": name, "value": value, "reason": metrics.reasons.get(name)}


def _json(tree: Mapping[str, object]) -> str:
    return json.dumps(tree, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def _reasons(scopes: Mapping[str, Metrics]) -> Iterator[Block]:
    """Why a value is null, once a reason."""
    found: dict[str, list[str]] = {}
    for scope, metrics in scopes.items():
        for name, reason in metrics.reasons.items():
            found.setdefault(reason, []).append(name + scope)
    for reason, names in found.items():
        yield Note(f"{ABSENT} {', '.join(names)}: {reason}", quiet=True)
