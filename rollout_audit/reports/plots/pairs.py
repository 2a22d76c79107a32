"""Engine mismatch and policy update shown apart, where all three log-probs are recorded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rollout_audit.audit.report import Report, StepReport
from rollout_audit.reports.plots.panels import Panel, Track, draw_over_steps
from rollout_audit.reports.plots.style import BLUE, GREY, ORANGE, SMALL, heading, new_figure
from rollout_audit.reports.plots.wording import counted, first_fitting, power, short

__all__ = ["draw"]

Array = NDArray[np.float64]

SOURCES: Mapping[str, tuple[str, str]] = {
    "engine": ("engine", BLUE),
    "policy_update": ("policy update", ORANGE),
    "total": ("both", GREY),
}
_PANELS = (("kl_k3", "k3, nats per token"), ("log_prob_diff_abs_mean", "Mean |d|, nats"))


def draw(report: Report) -> Figure | None:
    """k3 and mean |d| of the engine pair, of the policy update and of both together."""
    if not report.steps or {pair.name for pair in report.pairs} != set(SOURCES):
        return None
    figure = new_figure(3.5, _finding(report), _subtitle(report))
    panels = figure.subplots(1, 2)
    for axes, (metric, name) in zip(panels, _PANELS, strict=True):
        if len(report.steps) == 1:
            _bars(axes, report, metric, name)
        else:
            _lines(axes, report, metric, name)
    return figure


def _finding(report: Report) -> str:
    k3 = {pair.name: pair.metrics.get("kl_k3") for pair in report.pairs}
    engine, update = k3["engine"], k3["policy_update"]
    if engine is None or update is None:
        return "Engine mismatch and policy update could not both be computed"
    if engine == update:
        return f"Engine mismatch and policy update are equal: k3 {short(engine)}"
    (more, large), (less, small) = sorted(
        [("engine mismatch", engine), ("the policy update", update)], key=lambda pair: -pair[1]
    )
    numbers = f"k3 {short(large)} against {short(small)}"
    if small == 0:
        return _sentence(f"All of the mismatch is {more}: {numbers}")
    factor = large / small
    if factor < 1.2:
        return _sentence(f"{more} and {less} are of one size: {numbers}")
    return _sentence(f"{more} is {short(factor)} times {less}: {numbers}")


def _sentence(text: str) -> str:
    return first_fitting([text[0].upper() + text[1:]])


def _subtitle(report: Report) -> str:
    columns = {pair.name: f"{pair.training_column} − {pair.rollout_column}" for pair in report.pairs}
    return (
        f"{counted(len(report.steps), 'step')}, {counted(report.counts.valid_tokens, 'valid token')}. d of the engine "
        f"mismatch: {columns['engine']}; of the policy update: {columns['policy_update']}; of both: {columns['total']}."
    )


def _figure_of(step: StepReport, pair: str, metric: str) -> float:
    """The report's main pair stands in the step's own metrics, the others beside it."""
    figures = step.pairs[pair].metrics if pair in step.pairs else step.metrics
    value = figures.get(metric)
    return float("nan") if value is None else float(value)


def _values(report: Report, pair: str, metric: str) -> Array:
    return np.array([_figure_of(step, pair, metric) for step in report.steps], dtype=np.float64)


def _lines(axes: Axes, report: Report, metric: str, name: str) -> None:
    tracks = tuple(
        Track(label, metric if metric != "kl_k3" else "", _values(report, pair, metric), colour,
              "dashed" if pair == "total" else "solid")
        for pair, (label, colour) in SOURCES.items()
    )  # fmt: skip
    values = np.concatenate([track.values for track in tracks])
    positive = values[values > 0]
    ends = (float(positive.min()), float(positive.max())) if len(positive) else (1e-3, 1.0)
    span = (ends[0] / 1.5, ends[1] * 1.5)
    steps = np.array([step.step for step in report.steps], dtype=np.float64)
    draw_over_steps(axes, Panel(name, tracks, span, None, log="log"), steps, room=0.03)
    axes.set_xlabel("training step")


def _bars(axes: Axes, report: Report, metric: str, name: str) -> None:
    heading(axes, name)
    labels, colours = zip(*SOURCES.values(), strict=True)
    values = np.concatenate([_values(report, pair, metric) for pair in SOURCES])
    axes.barh(labels, np.nan_to_num(values), color=colours, height=0.6, zorder=2)
    axes.set_xlim(0, 1.25 * float(np.nan_to_num(values).max()) or 1.0)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(power)
    for place, value in enumerate(values):
        axes.annotate(
            short(float(value), 3), (float(np.nan_to_num(value)), place), xytext=(5, 0), textcoords="offset points",
            va="center", fontsize=SMALL + 0.5, weight="bold",
        )  # fmt: skip
