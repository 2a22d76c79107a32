"""A panel of figures over training steps, and the same panel as one line where there is a single step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from rollout_audit.reports.plots.style import (
    GREY,
    HALO,
    INK,
    RULE,
    SMALL,
    heading,
    integer_ticks,
    log_axis,
    note,
)
from rollout_audit.reports.plots.wording import counted, power, ratio, short
from rollout_audit.reports.plots.zones import Zone, paint_zones, zones

__all__ = ["Panel", "Track", "draw_over_steps", "draw_single", "finite", "running_median"]

Array = NDArray[np.float64]
Scale = Literal["linear", "log", "symlog"]

MARKERS_UP_TO = 40
"""Steps; beyond, lines turn pale under their running median"""
ROOM = 0.27
"""Share of the axis kept free on the right for the names of the limits"""
WIDE = 30.0
"""A linear panel whose data reach further turns logarithmic around zero"""


@dataclass(frozen=True)
class Track:
    """One line: a value a step, NaN where there is none."""

    label: str
    metric: str
    values: Array
    colour: str
    dashed: Literal["dashed", "solid"] = "solid"


@dataclass(frozen=True)
class Panel:
    """Tracks on one axis. `span` is shown at least; `ideal` is the value from which the worst step is farthest."""

    name: str
    tracks: tuple[Track, ...]
    span: tuple[float, float]
    ideal: float | None = 0.0
    log: Literal["log", "linear"] = "linear"
    gap: str = "not computed"
    """why a value is missing"""

    @property
    def shown(self) -> Array:
        """All values that the panel can place."""
        values = np.concatenate([finite(track.values) for track in self.tracks])
        return values[values > 0] if self.log == "log" else values

    @property
    def scale(self) -> Scale:
        if self.log == "log":
            return "log"
        wide = self.ideal is not None and len(self.shown) and np.abs(self.shown).max() > WIDE
        return "symlog" if wide else "linear"

    @property
    def view(self) -> tuple[float, float]:
        """Axis limits: the data and the span, with a margin."""
        low, high = min(self.span[0], *self.shown), max(self.span[1], *self.shown)
        if self.log == "log":
            return float(low / (high / low) ** 0.08), float(high * (high / low) ** 0.04)
        if self.scale == "symlog":
            return float(low * 2 if low < 0 else low), float(high * 10)
        margin = 0.05 * (high - low)
        return float(low - margin), float(high + margin)

    @property
    def zones(self) -> list[Zone]:
        """What the health rules of the first track's metric object to."""
        return zones(self.tracks[0].metric)

    def say(self, value: float) -> str:
        return ratio(value) if self.ideal == 1.0 else short(value, 3)


def finite(values: Array) -> Array:
    return values[np.isfinite(values)]


def draw_over_steps(
    axes: Axes, panel: Panel, steps: Array, refreshes: Sequence[float] = (), *, room: float = ROOM
) -> None:
    """Lines over steps with limits, gaps left open and the worst step named."""
    heading(axes, panel.name, [(_key(track), track.colour) for track in panel.tracks if track.label])
    axes.set_xlim(*_padded(steps, room))
    integer_ticks(axes, float(steps[0]), float(steps[-1]))
    if not len(panel.shown):
        _nothing(axes, panel)
        return
    _scale(axes, panel, "y")
    for at in refreshes:
        axes.axvline(at, color=GREY, lw=0.9, ls=(0, (2, 2)), zorder=0.8)
    paint_zones(axes, panel.zones, "y")
    for track in panel.tracks:
        _draw_track(axes, track, steps)
    _name_worst(axes, panel, steps)
    _mention_gaps(axes, panel)


def _key(track: Track) -> str:
    return f"{'○' if track.dashed == 'dashed' else '●'} {track.label}"


def _draw_track(axes: Axes, track: Track, steps: Array) -> None:
    """A line with its points; of many steps a pale line under its running median."""
    style = _line(track)
    if len(steps) <= MARKERS_UP_TO:
        axes.plot(steps, track.values, **style)
        return
    plain = {"marker": None, "ls": "-", "lw": 0.8, "alpha": 0.3}
    axes.plot(steps, track.values, **(style | plain))
    median = {"marker": None, "label": f"running median of {style['label']}"}
    axes.plot(steps, running_median(track.values), **(style | median))


def running_median(values: Array) -> Array:
    """Over a fiftieth of the steps around each, missing ones left out; NaN where all are missing."""
    reach = max(2, len(values) // 100)
    padded = np.pad(values, reach, constant_values=np.nan)
    windows = np.sort(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1), axis=1)
    there = np.isfinite(windows).sum(axis=1)
    row = np.arange(len(values))
    middle = (windows[row, np.maximum(there - 1, 0) // 2] + windows[row, there // 2]) / 2
    medians: Array = np.where(there > 0, middle, np.nan)
    return medians


def _line(track: Track) -> dict[str, Any]:
    dashed = track.dashed == "dashed"
    return {
        "color": track.colour,
        "lw": 1.8,
        "ls": (0, (4, 2)) if dashed else "-",
        "marker": "o",
        "ms": 6.5 if dashed else 4.5,
        "mfc": "white" if dashed else track.colour,
        "zorder": 3 if dashed else 3.5,
        "label": track.label or track.metric,
    }


def _padded(steps: Array, room: float) -> tuple[float, float]:
    width = float(steps[-1] - steps[0]) or 1.0
    return float(steps[0] - 0.03 * width), float(steps[-1] + room * width)


def _nothing(axes: Axes, panel: Panel) -> None:
    """Say why a panel is empty: nothing computed, or zeros that a log axis cannot place."""
    zero = all((track.values == 0).all() for track in panel.tracks)
    note(axes, "0 at every step" if zero else panel.gap)
    axes.set_yticks([])


def _scale(axes: Axes, panel: Panel, which: Literal["x", "y"]) -> None:
    axis = axes.yaxis if which == "y" else axes.xaxis
    set_scale = axes.set_yscale if which == "y" else axes.set_xscale
    if panel.scale == "log":
        log_axis(axes, which)
    elif panel.scale == "symlog":
        set_scale("symlog", linthresh=1.0)
    else:
        axis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(power)
    (axes.set_ylim if which == "y" else axes.set_xlim)(*panel.view)


def _name_worst(axes: Axes, panel: Panel, steps: Array) -> None:
    """Write its value beside the point that is farthest from the ideal."""
    if panel.ideal is None:
        return
    distance = [np.nan_to_num(np.abs(track.values - panel.ideal)) for track in panel.tracks]
    track, at = np.unravel_index(int(np.argmax(distance)), (len(distance), len(steps)))
    if distance[track][at] == 0:
        return
    value, share = float(panel.tracks[track].values[at]), _share(axes, float(panel.tracks[track].values[at]))
    left = at < len(steps) / 2
    axes.annotate(
        panel.say(value), (float(steps[at]), value), xytext=(7 if left else -7, -9 if share > 0.8 else 7),
        textcoords="offset points", ha="left" if left else "right", va="center", color=panel.tracks[track].colour,
        fontsize=9, weight="bold", path_effects=HALO, zorder=6,
    )  # fmt: skip


def _share(axes: Axes, value: float) -> float:
    """Height of a value in the panel, 0 to 1."""
    to_share = axes.transData + axes.transAxes.inverted()
    return float(to_share.transform((axes.get_xlim()[0], value))[1])


def _mention_gaps(axes: Axes, panel: Panel) -> None:
    missing = int(np.isnan(panel.tracks[0].values).sum())
    if missing:
        axes.text(
            0.01, 0.03, f"gap: {panel.gap} at {counted(missing, 'step')}", transform=axes.transAxes, fontsize=SMALL,
            color=GREY, path_effects=HALO, zorder=5,
        )  # fmt: skip


def draw_single(axes: Axes, panel: Panel) -> None:
    """One value on a horizontal scale between its limits."""
    axes.set_yticks([])
    axes.set_ylim(-1, 1)
    axes.spines["left"].set_visible(False)
    axes.text(-0.015, 0.5, panel.name, transform=axes.transAxes, ha="right", va="center", weight="bold")
    if not len(panel.shown):
        _nothing_single(axes, panel)
        return
    _scale(axes, panel, "x")
    if panel.scale == "linear" and np.ptp(panel.view) < 3 * np.ptp(panel.span):
        edges = [edge for zone in panel.zones for edge in (zone.low, zone.high) if np.isfinite(edge)]
        axes.set_xticks(sorted({*edges, panel.ideal or 0.0}))
    axes.grid(visible=False, axis="y")
    axes.axhline(0, color=RULE, lw=1, zorder=0.6)
    paint_zones(axes, panel.zones, "x")
    for track in panel.tracks:
        line = _line(track) | {"ms": 11 if track.dashed == "dashed" else 8, "clip_on": False}
        axes.plot(track.values, np.zeros(1), **line)
    _write_value(axes, panel)


def _nothing_single(axes: Axes, panel: Panel) -> None:
    axes.set_xticks([])
    value = panel.tracks[0].values[0]
    axes.text(1.015, 0.5, "0" if value == 0 else "–", transform=axes.transAxes, va="center", weight="bold")
    note(axes, "exactly 0" if value == 0 else panel.gap)


def _write_value(axes: Axes, panel: Panel) -> None:
    texts = [f"{panel.say(float(t.values[0]))} {t.label}".strip() for t in panel.tracks if np.isfinite(t.values[0])]
    axes.text(1.015, 0.5, "\n".join(texts), transform=axes.transAxes, va="center", weight="bold", color=INK)
