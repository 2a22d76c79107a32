"""The trainer's log beside the recomputed metrics, as `analyze` shows it."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_audit.audit.report import LoggedMetric, LogReport
from rollout_audit.reports.figures import amount
from rollout_audit.reports.tables import Block, Cell, Column, Note, Table

__all__ = ["log_blocks"]

NAMES_SHOWN = 6


def log_blocks(log: LogReport) -> Iterator[Block]:
    """The table, why figures may differ, and what was not compared."""
    columns = (
        Column("metric", "metric", "label"),
        Column("key", "logged as"),
        Column("steps", "steps", "count"),
        Column("departing", "depart", "count"),
        Column("first_step", "first\nat step", "index"),
        Column("logged", "logged\nthere", "figure"),
        Column("recomputed", "recomputed\nthere", "figure"),
        Column("worst_step", "worst\nat step", "index"),
        Column("worst_difference", "difference\nthere", "figure"),
    )
    rows = [_cells(one) for one in log.metrics if one.departing]
    if rows:
        yield Table(f"Log of {log.trainer} beside the dump", columns, rows, caption=_caption(log))
    else:
        yield Note(_caption(log))
    for one in log.metrics:
        if one.note is not None and one.departing:
            yield Note(f"{one.metric}: {one.note}")
    yield from (Note(text, quiet=True) for text in (*_left_over(log), *log.notes))


def _cells(one: LoggedMetric) -> list[Cell]:
    at = None if one.first_step is None else one.steps.index(one.first_step)
    logged, recomputed = (None, None) if at is None else (one.logged[at], one.recomputed[at])
    return [
        one.metric,
        _logged_as(one),
        len(one.steps),
        one.departing,
        one.first_step,
        logged,
        recomputed,
        one.worst_step,
        one.worst_difference,
    ]


def _logged_as(one: LoggedMetric) -> str:
    """What stands before the metric's name, or the whole key where it is another."""
    if one.matched == "exact":
        return "its name"
    return one.key.removesuffix(one.metric) + "…" if one.key.endswith(one.metric) else one.key


def _caption(log: LogReport) -> str:
    shifted = f" Step of the log − step of the dump: {log.offset}." if log.offset else ""
    return (
        f"Values depart where |logged − recomputed| > {log.relative_tolerance:g} of the recomputed and "
        f"{log.absolute_tolerance:g}. Its steps stand in {', '.join(log.step_keys)}.{_agreeing(log)}{shifted}"
    )


def _agreeing(log: LogReport) -> str:
    agreeing = sum(bool(one.steps) and not one.departing for one in log.metrics)
    return f" Nowhere departing: {amount(agreeing, 'metric')}." if agreeing else ""


def _left_over(log: LogReport) -> Iterator[str]:
    if log.unlogged_metrics:
        yield f"Not in the log: {_some(log.unlogged_metrics)}."
    if log.unmatched_keys:
        yield f"In the log and no metric of this configuration: {_some(log.unmatched_keys)}."
    for count, where in ((log.steps_in_log_alone, "log"), (log.steps_in_dump_alone, "dump")):
        if count:
            yield f"In the {where} alone: {amount(count, 'step')}."


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{', '.join(names[:NAMES_SHOWN])}{more}"
