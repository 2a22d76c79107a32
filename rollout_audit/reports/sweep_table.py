"""The points of a sweep that criteria pick, and how far each family can be tightened within the limits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from rollout_audit.audit.report import CorrectionReport, Report, SweepFamily, SweepReport
from rollout_audit.errors import amount
from rollout_audit.reports.tables import Cell, Column, Document, Note, Table

__all__ = ["best_table", "named_table", "sweep_document", "sweep_table"]

_BEST = (
    Column("criterion", "best by", "label"),
    Column("ess", "ess", "number", 3),
    Column("ess_seq", "ess\nseq", "number", 3),
    Column("bounded_fraction", "bounded", "percent"),
    Column("mass_lost", "mass\nlost", "percent"),
    Column("masked_fraction", "masked\ntokens", "percent"),
    Column("kept_kl_k3", "k3 of\nkept", "figure"),
    Column("formula", "configuration", "prose"),
)
_BEST_FIGURES = ("ess", "ess_seq", "bounded_fraction", "mass_lost", "masked_fraction", "kept_kl_k3")

_COLUMNS = (
    Column("family", "family", "label"),
    Column("within", "within\nlimits"),
    Column("formula", "strictest within limits", "prose"),
    Column("ess", "ess", "number", 3),
    Column("ess_seq", "ess\nseq", "number", 3),
    Column("capped_fraction", "capped", "percent"),
    Column("zeroed_fraction", "zeroed", "percent"),
    Column("mass_lost", "mass\nlost", "percent"),
    Column("masked_fraction", "masked\ntokens", "percent"),
    Column("kept_reward_mean", "kept\nreward", "number", 3),
)
_NAMED = (
    Column("name", "beside the grid", "label"),
    Column("within", "within\nlimits"),
    *_COLUMNS[3:],
    Column("formula", "what it does", "prose"),
)
_STAGE_OF = dict.fromkeys(("capped_fraction", "zeroed_fraction", "mass_lost"), "bounded")
_FIGURES = ("ess", "ess_seq", "capped_fraction", "zeroed_fraction", "mass_lost", "masked_fraction", "kept_reward_mean")


def sweep_document(report: Report) -> Document:
    """The strictest point of each family for people, every point for programs."""
    tables = [table for table in (named_table(report), sweep_table(report)) if table is not None]
    counts = report.counts
    read = (
        f"{amount(counts.sequences, 'sequence')}, {amount(counts.valid_tokens, 'valid token')} in "
        f"{amount(counts.steps, 'step')}."
    )
    return Document(
        (Note(read), *tables, Note(""), *(Note(note, quiet=True) for note in report.notes)),
        json=lambda: json.dumps(_points(report), ensure_ascii=False, allow_nan=False, indent=2) + "\n",
        records=lambda: _points(report),
    )


def _points(report: Report) -> list[Mapping[str, object]]:
    """One record a row of sweep.parquet."""
    columns = report.pictures.points or {}
    return [dict(zip(columns, map(_plain, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(value: object) -> object:
    """Null for what is no number."""
    if not isinstance(value, float):
        return value
    return float(value) if math.isfinite(value) else None


def best_table(report: Report) -> Table | None:
    """One row for each criterion; None where no sweep was made."""
    sweep = report.sweep
    if sweep is None or not sweep.best:
        return None
    caption = (
        f"Limits: ess ≥ {sweep.min_ess:g}, masked ≤ {sweep.max_masked:g}, mass lost ≤ {sweep.max_mass_lost:g}, weights "
        f"replaced by bounds ≤ {sweep.max_bounded:g}; without weights k3 of what is kept ≤ {sweep.max_kl:.2g}. "
        + "; ".join(f"{point.criterion}: {point.sentence}" for point in sweep.best)
        + ". `rollout-audit recommend` weighs them against the presets."
    )
    rows = [
        [point.criterion, *(point.figures.get(name) for name in _BEST_FIGURES), point.formula or "no point within"]
        for point in sweep.best
    ]
    return Table(f"Best of {sweep.points:,} configurations, whole dump", _BEST, rows, caption)


def named_table(report: Report) -> Table | None:
    """The corrections that were asked for by name; None where none was."""
    sweep = report.sweep
    if sweep is None or not sweep.named:
        return None
    by_name = {correction.name: correction for correction in report.corrections}
    rows = [_named_row(by_name[name], sweep) for name in sweep.named]
    other = sorted({by_name[name].mode for name in sweep.named} - {report.settings.mode})
    caption = "Over the whole dump as one batch; per step in sweep.parquet." + "".join(
        f" Those of {mode} mode compare {column} with {report.settings.rollout_column}."
        for mode, column in ((m, next(c.training_column for c in report.corrections if c.mode == m)) for m in other)
    )
    return Table("Asked for by name", _NAMED, rows, caption)


def _named_row(correction: CorrectionReport, sweep: SweepReport) -> list[Cell]:
    figures = {name: getattr(correction.stages, _STAGE_OF.get(name, "kept"))[name] for name in _FIGURES}
    within = _at_least(figures["ess"], sweep.min_ess) and all(
        _at_least(limit, figures[name])
        for name, limit in (("masked_fraction", sweep.max_masked), ("mass_lost", sweep.max_mass_lost))
    )
    return [correction.name, "yes" if within else "no", *figures.values(), correction.formula]


def _at_least(value: float | None, bound: float | None) -> bool:
    return value is not None and bound is not None and value >= bound


def sweep_table(report: Report) -> Table | None:
    """None where no sweep was made."""
    sweep = report.sweep
    if sweep is None or not sweep.points:
        return None
    caption = (
        f"Limits: ess ≥ {sweep.min_ess:g}, masked ≤ {sweep.max_masked:g}, mass lost ≤ {sweep.max_mass_lost:g}. "
        "Strictest: the largest ess, of bare rules the one that masks most. All points stand in sweep.parquet."
        f"{_inexact(sweep)}"
    )
    rows = [_row(family) for family in sweep.families]
    return Table(f"Sweep, {sweep.points:,} configurations, whole dump", _COLUMNS, rows, caption)


def _inexact(sweep: SweepReport) -> str:
    if not sweep.inexact:
        return ""
    return (
        f" {sweep.inexact:,} of {sweep.points:,} points have a token threshold that the pass had no cut for: "
        "they show the middle of what is possible, and the columns _error in sweep.parquet say how far off it may be."
    )


def _row(family: SweepFamily) -> list[Cell]:
    within = f"{family.within} of {family.points}"
    return [family.family, within, family.formula or "none", *(family.figures.get(name) for name in _FIGURES)]
