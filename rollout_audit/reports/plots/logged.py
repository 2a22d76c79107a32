"""What the trainer logged beside what the dump gives, for the metrics that depart."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from rollout_audit.audit.report import LoggedMetric, LogReport, Report
from rollout_audit.reports.plots.panels import MARKERS_UP_TO, Panel, Track, draw_over_steps, finite
from rollout_audit.reports.plots.style import BLUE, ORANGE, new_figure
from rollout_audit.reports.plots.wording import counted, first_fitting, plain

__all__ = ["draw"]

SHOWN = 6
PANEL_HEIGHT = 1.7
RIGHT_MARGIN = 0.05
NAME_LENGTH = 46


def draw(report: Report) -> Figure | None:
    """Up to six metrics of the log that depart, the earliest first; None without a log, or where all agree."""
    log = report.log
    if log is None or not log.departing:
        return None
    shown = [one for one in log.metrics if one.departing][:SHOWN]
    columns = 1 if len(shown) == 1 else 2
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(PANEL_HEIGHT * rows + 0.6, _title(log), _subtitle(log, len(shown)))
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, one in zip(grid.flat, shown, strict=False):
        first = [] if one.first_step is None else [float(one.first_step)]
        draw_over_steps(axes, _panel(one), np.array(one.steps, np.float64), first, room=RIGHT_MARGIN)
        axes.set_xlabel("training step")
    for axes in grid.flat[len(shown) :]:
        axes.set_axis_off()
    return figure


def _panel(one: LoggedMetric) -> Panel:
    tracks = (
        Track("", one.metric, np.array(one.recomputed, np.float64), BLUE),
        Track("", one.metric, np.array(one.logged, np.float64), ORANGE, "dashed"),
    )
    values = np.concatenate([finite(track.values) for track in tracks])
    low, high = float(values.min()), float(values.max())
    room = 0.0 if high > low else abs(high) or 1.0
    return Panel(plain(one.metric, NAME_LENGTH), tracks[::-1], (low - room, high + room), None, gap="NaN logged")


def _title(log: LogReport) -> str:
    first = f"The log departs from the dump first at step {log.first_step}"
    return first_fitting((f"{first}, in {plain(log.first_metric or '', 60)}", first))


def _subtitle(log: LogReport, shown: int) -> str:
    metrics = sum(one.departing > 0 for one in log.metrics)
    which = "" if metrics == shown else f"; the first {shown} are shown"
    many = " Bold: running median." if any(len(one.steps) > MARKERS_UP_TO for one in log.metrics) else ""
    return (
        f"{log.trainer}: {log.departing:,} of {counted(log.compared, 'value')} further apart than "
        f"{log.relative_tolerance:g}, in {counted(metrics, 'metric')}{which}. "
        f"● Blue: recomputed, ○ orange: logged. Dotted: where each departs first.{many}"
    )
