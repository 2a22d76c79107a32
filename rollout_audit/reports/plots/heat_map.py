"""Caps and rejection together: ess over both, with what rejection masks as contours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator
from numpy.typing import NDArray

from rollout_audit.audit.report import Report, SweepReport
from rollout_audit.reports.plots.evidence import in_line, pictures_of
from rollout_audit.reports.plots.named import Mark, legend, mark_at, marks
from rollout_audit.reports.plots.style import AMBER, HALO, INK, ORANGE, SMALL, heading, log_axis, new_figure
from rollout_audit.reports.plots.wording import counted, first_fitting, percent, short

__all__ = ["Grid", "draw", "grids"]

Array = NDArray[np.float64]

MOST_PANELS = 8
JOINED = " + "
MASKED = (0.1, 0.3)
LARGEST_RATIO = 9.2
"""log of the largest band of a ratio that is drawn, 10,000"""
ROOM_ABOVE = 0.14
"""For the shares masked, of the height of the cells"""
_LIGHT_TO_DARK = LinearSegmentedColormap.from_list("ess", ["#F4F8FC", "#9CC4E4", "#3C86BE", "#0B3C68"])


@dataclass(frozen=True)
class Grid:
    """One joint family: figures over caps and thresholds."""

    family: str
    rule: str
    caps: Array
    """[caps] ascending"""
    thresholds: Array
    """[thresholds] ascending; of k1 the band's half width as a log-ratio"""
    figures: Mapping[str, Array]
    """name → [caps, thresholds]; NaN where there is no point"""
    reciprocal: bool = True
    """else its thresholds are the upper ends of bands"""

    @property
    def of_ratio(self) -> bool:
        return self.rule.endswith("k1")

    def within(self, limits: SweepReport) -> NDArray[np.bool_]:
        """[caps, thresholds] which points keep the limits."""
        kept: NDArray[np.bool_] = (
            (self.figures["ess"] >= limits.min_ess)
            & (self.figures["masked_fraction"] <= limits.max_masked)
            & (self.figures["mass_lost"] <= limits.max_mass_lost)
        )
        return kept


def grids(sweep: Mapping[str, object]) -> list[Grid]:
    """Every family that joins a weight with a rule; bands by themselves only where it has no others."""
    families, line = np.asarray(sweep["family"]), in_line(sweep)
    found = []
    for name in dict.fromkeys(families.tolist()):
        chosen = families == name
        if JOINED in name:
            found.append(_grid(sweep, chosen & line if (chosen & line).any() else chosen, name))
    return found


def _grid(sweep: Mapping[str, object], chosen: NDArray[np.bool_], family: str) -> Grid:
    caps, row = np.unique(np.asarray(sweep["upper"], dtype=np.float64)[chosen], return_inverse=True)
    bounds, column = np.unique(np.asarray(sweep["rule_upper"], dtype=np.float64)[chosen], return_inverse=True)
    figures = {}
    for name in ("ess", "masked_fraction", "mass_lost"):
        table = np.full((len(caps), len(bounds)), np.nan)
        table[row, column] = np.asarray(sweep[name], dtype=np.float64)[chosen]
        figures[name] = table
    return Grid(family, family.partition(JOINED)[2], caps, bounds, figures, bool(in_line(sweep)[chosen].all()))


def draw(report: Report) -> Figure | None:
    """One panel a joint family; None where the sweep joins nothing."""
    pictures = pictures_of(report)
    if pictures is None or pictures.sweep is None or report.sweep is None:
        return None
    found = [grid for grid in grids(pictures.sweep) if np.isfinite(grid.figures["ess"]).any()]
    if not found:
        return None
    shown = found[:MOST_PANELS]
    rows = -(-len(shown) // 2)
    families = {grid.family for grid in shown}
    named = [mark for mark in marks(report) if _family(mark) in families]
    subtitle = f"{_subtitle(found, report.sweep)}{legend(named)}"
    figure = new_figure(2.3 * rows + 0.4, _finding(found, report.sweep), subtitle)
    panels = list(figure.subplots(rows, 2, squeeze=False).flat)
    palest = _palest(shown)
    meshes = [_draw_grid(axes, grid, report.sweep, palest) for axes, grid in zip(panels, shown, strict=False)]
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    for axes, grid in zip(panels, shown, strict=False):
        _mark(axes, grid, [mark for mark in named if _family(mark) == grid.family])
    bar = figure.colorbar(meshes[0], ax=panels, shrink=0.7, pad=0.02)
    bar.set_label("ess")
    bar.outline.set_visible(False)
    return figure


def _finding(found: Sequence[Grid], limits: SweepReport) -> str:
    best: tuple[float, Grid, int, int] | None = None
    for grid in found:
        ess = np.where(grid.within(limits), grid.figures["ess"], -np.inf)
        row, column = divmod(int(np.argmax(ess)), ess.shape[1])
        if np.isfinite(ess[row, column]) and (best is None or ess[row, column] > best[0]):
            best = float(ess[row, column]), grid, row, column
    if best is None:
        return "No weight joined with a rule keeps all limits"
    ess_there, grid, row, column = best
    masked = percent(float(grid.figures["masked_fraction"][row, column]))
    what = f"ess {short(ess_there)} at a cap of {grid.caps[row]:g}"
    return first_fitting([f"Best within the limits: {what} under {grid.rule}, {masked} masked", f"Best: {what}"])


def _subtitle(found: Sequence[Grid], limits: SweepReport) -> str:
    points = sum(int(np.isfinite(grid.figures["ess"]).sum()) for grid in found)
    more = f" {len(found) - MOST_PANELS} more families stand in sweep.parquet." if len(found) > MOST_PANELS else ""
    return (
        f"{counted(points, 'joint configuration')}, the dump as one batch: darker keeps more. Orange: that share of "
        f"the tokens is masked. Dots: within the limits ess\u00a0≥\u00a0{limits.min_ess:g}, "
        f"masked\u00a0≤\u00a0{limits.max_masked:g}, mass lost\u00a0≤\u00a0{limits.max_mass_lost:g}.{more}"
    )


def _palest(shown: Sequence[Grid]) -> float:
    """The tenth below the least ess: where all are high a scale from 0 would hide what differs."""
    least = min(float(np.nanmin(grid.figures["ess"])) for grid in shown)
    return min(math.floor(10 * least) / 10, 0.9)


def _draw_grid(axes: Axes, grid: Grid, limits: SweepReport, palest: float) -> QuadMesh:
    heading(axes, grid.family)
    bounds = _places(grid, grid.thresholds)
    drawn = np.flatnonzero(np.diff(bounds, prepend=-1.0) > 0)
    x = bounds[drawn]
    rows = np.arange(len(grid.caps))
    edges, ess = _edges(x), grid.figures["ess"][:, drawn]
    mesh = axes.pcolormesh(
        edges, np.arange(len(rows) + 1) - 0.5, np.ma.masked_invalid(ess), cmap=_LIGHT_TO_DARK, vmin=palest, vmax=1.0
    )
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(-0.5, len(rows) - 0.5 + ROOM_ABOVE * len(rows))
    log_axis(axes, "x")
    band = "T − 1 of the band 1/T to T" if grid.reciprocal else "upper end of the band of −log ρ, T − 1"
    axes.set_xlabel(band if grid.of_ratio else "largest statistic that is kept")
    axes.yaxis.set_major_locator(FixedLocator(rows.tolist()))
    axes.set_yticklabels([f"{cap:g}" for cap in grid.caps])
    axes.set_ylabel("cap")
    axes.grid(visible=False)
    at = np.argwhere(grid.within(limits)[:, drawn])
    axes.plot(x[at[:, 1]], at[:, 0], ls="", marker=".", ms=5, color="white", mec=INK, mew=0.6, zorder=4, label="within")
    _contours(axes, x, grid.figures["masked_fraction"][0, drawn])
    return mesh


def _places(grid: Grid, thresholds: Array) -> Array:
    """On the horizontal axis; a band of the ratio by its half width."""
    return np.exp(np.minimum(thresholds, LARGEST_RATIO)) - 1.0 if grid.of_ratio else thresholds


def _family(mark: Mark) -> str:
    return f"{mark.weight}{JOINED}{mark.rule}"


def _mark(axes: Axes, grid: Grid, named: Sequence[Mark]) -> None:
    """Between the rows of its neighbouring caps; at the edge where it lies beyond the grid."""
    rows, (left, right) = np.arange(len(grid.caps)), axes.get_xlim()
    for mark in named:
        row = np.interp(math.log(mark.setting("upper")), np.log(grid.caps), rows)
        (x,) = _places(grid, np.array([mark.setting("rule_upper")]))
        mark_at(axes, mark, float(np.clip(x, left, right)), float(row))


def _contours(axes: Axes, x: Array, masked: Array) -> None:
    """Masking depends on the rule alone: its contours stand upright where the share is crossed."""
    for share, side in zip(MASKED, (3, -3), strict=True):
        below = np.flatnonzero(masked <= share)
        if not len(below) or below[0] == 0:
            continue
        place = float(np.sqrt(x[below[0]] * x[below[0] - 1]))
        axes.axvline(
            place, color=ORANGE, lw=1.6, zorder=3, path_effects=[withStroke(linewidth=3.4, foreground="white")]
        )
        axes.annotate(
            f"{100 * share:.0f}%", (place, 0.985), xycoords=("data", "axes fraction"), xytext=(side, 0), color=AMBER,
            textcoords="offset points", ha="left" if side > 0 else "right", va="top", fontsize=SMALL,
            path_effects=HALO, zorder=5,
        )  # fmt: skip


def _edges(x: Array) -> Array:
    """Half way between neighbours, on a log scale."""
    logs = np.log(x)
    if len(logs) == 1:
        return np.exp([logs[0] - 0.5, logs[0] + 0.5])
    middle = (logs[1:] + logs[:-1]) / 2
    ends = [2 * logs[0] - middle[0]], [2 * logs[-1] - middle[-1]]
    edges: Array = np.exp(np.concatenate([ends[0], middle, ends[1]]))
    return edges
