"""What the run's trainer would have logged, beside the native figures it departs from."""

from __future__ import annotations

from rollout_audit.audit.report import TrainerReport
from rollout_audit.reports.dialect import padding_note
from rollout_audit.reports.tables import Cell, Column, Table

__all__ = ["trainer_table"]


def trainer_table(trainer: TrainerReport) -> Table:
    columns = (
        Column("metric", "logged as", "label"),
        Column("value", "value", "figure"),
        Column("native_value", "natively", "figure"),
        Column("native", "which is"),
        Column("quirk", "more than 5 % off by"),
    )
    beside = {one.metric: one for one in trainer.beside}
    rows: list[list[Cell]] = []
    for name, value in trainer.metrics.items():
        one = beside.get(name)
        native: list[Cell] = [None] * 3 if one is None else [one.native_value, one.native, one.quirk * one.departs]
        rows.append([name, value, *native])
    caption = "The whole dump as one batch; `rollout-audit metrics --per-step` has one batch a step."
    caption = " ".join(filter(None, (caption, padding_note(trainer.name, trainer.metrics))))
    return Table(f"What {trainer.name} {trainer.version} would have logged", columns, rows, caption)
