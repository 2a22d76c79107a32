"""π against μ, token by token, as a density."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from rollout_audit.audit.pictures import TokenSample
from rollout_audit.audit.report import Report
from rollout_audit.reports.plots.evidence import pictures_of
from rollout_audit.reports.plots.stories import EQUAL
from rollout_audit.reports.plots.style import HALO, INK, RED, LogTicks, heading, new_figure
from rollout_audit.reports.plots.wording import counted, percent, power, short

__all__ = ["draw", "log_prob_floor"]

Array = NDArray[np.float64]

CELLS, FEW_CELLS, MANY = 90, 45, 1_000
LEFT_OUT = 0.0005
"""Share of tokens that the log-prob axes may leave out"""
LOPSIDED = 0.65
# Without the palest end of the scale, in which a lone token would be lost on white
_COLOURS = ListedColormap(matplotlib.colormaps["viridis_r"](np.linspace(0.12, 1, 256)))


def draw(report: Report) -> Figure | None:
    """Two densities of the same tokens: probabilities from 0 to 1, and log-probs, which show the rare ones."""
    pictures = pictures_of(report)
    if pictures is None or not len(pictures.sample.positions):
        return None
    sample = pictures.sample
    floor = log_prob_floor(sample)
    figure = new_figure(4.3, _finding(report, sample), _subtitle(report, sample, floor))
    left, right = figure.subplots(1, 2)
    top = _probabilities(left, sample)
    top = max(top, _log_probs(right, sample, floor))
    _same_colours(figure, [left, right], top)
    return figure


def log_prob_floor(sample: TokenSample) -> float:
    """Lower end of the log-prob axes: all but a stated share of the tokens lie above it."""
    lower = np.minimum(sample.training_log_probs, sample.rollout_log_probs)
    return float(np.floor(min(np.quantile(lower, LEFT_OUT), -1.0)))


def _finding(report: Report, sample: TokenSample) -> str:
    d = sample.log_ratio
    if (d == 0).all():
        return f"{EQUAL}: every token lies on the diagonal"
    if len(d) == 1:
        pi, mu = np.exp(sample.training_log_probs[0]), np.exp(sample.rollout_log_probs[0])
        return f"A single token: π = {short(float(pi), 3)}, μ = {short(float(mu), 3)}"
    correlation = report.overall.get("prob_pearson")
    known = "" if correlation is None else f"; the probabilities correlate at r = {correlation:.4f}"
    within, higher = float((np.abs(np.expm1(d)) <= 0.1).mean()), float((d > 0).mean())
    lower = float((d < 0).mean())
    if max(higher, lower) > LOPSIDED:
        word, share = ("likelier", higher) if higher > lower else ("less likely", lower)
        return f"The trainer finds {percent(share)} of tokens {word} than the sampler did"
    return f"{percent(within).replace('>', 'Over ')} of tokens agree within ±10%{known}"


def _subtitle(report: Report, sample: TokenSample, floor: float) -> str:
    lower = np.minimum(sample.training_log_probs, sample.rollout_log_probs)
    outside = int((lower < floor).sum())
    rows = "" if sample.stride == 1 else f" of one sequence in {sample.stride}"
    hidden = f" {counted(outside, 'token')} below {short(floor, 2)} not shown on the right." if outside else ""
    return (
        f"{counted(len(lower), 'valid token')}{rows}; π is {report.settings.training_column}, μ is "
        f"{report.settings.rollout_column}. Solid: equal; dashed: ratio 0.9 and 1.1.{hidden}"
    )


def _probabilities(axes: Axes, sample: TokenSample) -> float:
    pi, mu = np.exp(sample.training_log_probs), np.exp(sample.rollout_log_probs)
    ends = np.array([0.0, 1.0])
    top = _cells(axes, (mu, pi), (0.0, 1.0))
    axes.plot(ends, ends, color=INK, lw=0.8)
    for factor in (0.9, 1.1):
        axes.plot(ends, factor * ends, color=RED, lw=1.0, ls=(0, (4, 2)))
    _frame(axes, "Probability", (0.0, 1.0), ("μ, sampler", "π, trainer"))
    return top


def _log_probs(axes: Axes, sample: TokenSample, floor: float) -> float:
    ends = np.array([floor, 0.0])
    # A bf16 log-prob may lie a little above 0: it belongs to the last cell, not outside the picture
    pi, mu = np.minimum(sample.training_log_probs, 0), np.minimum(sample.rollout_log_probs, 0)
    top = _cells(axes, (mu, pi), (floor, 0.0))
    axes.plot(ends, ends, color=INK, lw=0.8)
    for factor in (0.9, 1.1):
        axes.plot(ends, ends + np.log(factor), color=RED, lw=1.0, ls=(0, (4, 2)))
    _frame(axes, "Log-probability, nats", (floor, 0.0), ("log μ, sampler", "log π, trainer"))
    return top


def _cells(axes: Axes, points: tuple[Array, Array], ends: tuple[float, float]) -> float:
    """Draw the counts of a square grid; returns the largest."""
    edges = np.linspace(*ends, (CELLS if len(points[0]) >= MANY else FEW_CELLS) + 1)
    counts, _, _ = np.histogram2d(*points, bins=[edges, edges])
    axes.pcolormesh(edges, edges, np.ma.masked_equal(counts.T, 0), cmap=_COLOURS, zorder=2)
    return float(counts.max())


def _frame(axes: Axes, name: str, ends: tuple[float, float], labels: tuple[str, str]) -> None:
    heading(axes, name)
    axes.set(xlim=ends, ylim=ends, xlabel=labels[0], ylabel=labels[1], box_aspect=1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=5))
        axis.set_major_formatter(FuncFormatter(power))
    axes.text(0.04, 0.93, "π above μ", transform=axes.transAxes, color=INK, style="italic", path_effects=HALO, zorder=4)
    axes.text(
        0.96, 0.05, "π below μ", transform=axes.transAxes, ha="right", style="italic", path_effects=HALO, zorder=4
    )


def _same_colours(figure: Figure, panels: list[Axes], top: float) -> None:
    norm = LogNorm(vmin=1, vmax=max(10.0, top))
    meshes = [panel.collections[0] for panel in panels]
    for mesh in meshes:
        mesh.set_norm(norm)
    bar = figure.colorbar(meshes[0], ax=panels, shrink=0.82, pad=0.015, aspect=28)
    bar.set_label("tokens per cell (log scale)")
    bar.ax.yaxis.set_major_locator(LogTicks())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(power))
    bar.ax.yaxis.set_minor_locator(NullLocator())
