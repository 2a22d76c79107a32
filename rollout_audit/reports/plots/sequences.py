"""The perplexity ratio of every response: by length, by step, and how it is distributed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from rollout_audit.audit.report import Report
from rollout_audit.reports.plots.evidence import pictures_of
from rollout_audit.reports.plots.style import (
    BLUE,
    GREY,
    HALO,
    INK,
    ORANGE,
    RED,
    SKY,
    SMALL,
    heading,
    integer_ticks,
    log_axis,
    new_figure,
)
from rollout_audit.reports.plots.wording import counted, first_fitting, plain, power, ratio, short
from rollout_audit.reports.plots.zones import Zone, paint_zones, zones

__all__ = ["Responses", "draw"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

NAMED = 5
"""Worst responses written by uid"""
DRAWN_AT_MOST = 20_000
WIDEST = math.log(20)
"""log of the ratio that the axis reaches at most"""
NARROWEST = math.log(1.09)
RATIO_TICKS = (0.05, 0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.5, 2, 5, 10, 20)


def draw(report: Report) -> Figure | None:
    """Responses as points, the worst by name, with the limits of the mean ratio for scale."""
    pictures = pictures_of(report)
    found = None if pictures is None else Responses.of(pictures.sequences)
    if found is None or not len(found.log_ratio):
        return None
    by_step = len(np.unique(found.step)) > 1
    figure = new_figure(4.7, _finding(found), _subtitle(found, report))
    widths = [2, 1.6, 0.9] if by_step else [2.8, 1]
    panels = figure.subplots(1, len(widths), sharey=True, width_ratios=widths)
    _ratio_axis(panels[0], found)
    _by_length(panels[0], found)
    if by_step:
        _by_step(panels[1], found)
    _distribution(panels[-1], found)
    for axes in panels:
        paint_zones(axes, zones("ppl_ratio") if axes is panels[-1] else _unnamed(), "y")
    _name_worst(panels[0], found)
    return figure


@dataclass(frozen=True)
class Responses:
    """Scored responses; the log of a ratio is mean log μ − mean log π."""

    uid: Sequence[str]
    step: Integers
    length: Integers
    log_ratio: Array

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[object] | Array]) -> Responses:
        """From the columns of `Pictures.sequences`; rows without a valid token are left out."""
        length = np.asarray(columns["valid_tokens"], dtype=np.int64)
        scored = np.flatnonzero(length > 0)
        total = np.asarray(columns["sum_d"], dtype=np.float64)[scored]
        uids = [str(columns["uid"][int(i)]) for i in scored]
        return cls(uids, np.asarray(columns["step"], dtype=np.int64)[scored], length[scored], -total / length[scored])

    @cached_property
    def view(self) -> tuple[float, float]:
        """Ends of the ratio axis."""
        low, high = min(float(self.log_ratio.min()), -NARROWEST), max(float(self.log_ratio.max()), NARROWEST)
        margin = 0.06 * (high - low)
        return math.exp(max(low - margin, -WIDEST)), math.exp(min(high + margin, WIDEST))

    @cached_property
    def drawn(self) -> Array:
        """Ratios, those beyond the axis moved to its edge."""
        low, high = (math.log(end) for end in self.view)
        ratios: Array = np.exp(np.clip(self.log_ratio, low, high))
        return ratios

    @cached_property
    def beyond(self) -> NDArray[np.bool_]:
        return np.abs(self.log_ratio) > WIDEST

    @property
    def outside(self) -> int:
        """Responses past the limits."""
        ratios = np.exp(np.clip(self.log_ratio, -700, 700))
        return int(sum(((ratios > zone.low) & (ratios < zone.high)).sum() for zone in zones("ppl_ratio")))

    @cached_property
    def worst(self) -> Integers:
        """The farthest responses outside the limits; one where none is outside."""
        order: Integers = np.argsort(-np.abs(self.log_ratio), kind="stable")[: min(NAMED, max(1, self.outside))]
        found: Integers = order[self.log_ratio[order] != 0]
        return found

    @cached_property
    def thinned(self) -> slice:
        """Which points are drawn: all, or every k-th."""
        return slice(None, None, max(1, -(-len(self.log_ratio) // DRAWN_AT_MOST)))

    def ratio(self, at: int) -> str:
        x = float(self.log_ratio[at])
        return ratio(math.exp(x)) if abs(x) < 700 else f"e^{short(x)}"


def _finding(found: Responses) -> str:
    total = len(found.log_ratio)
    if not len(found.worst):
        return f"All {counted(total, 'response')} have a ratio of exactly 1"
    at = int(found.worst[0])
    if total == 1:
        return f"One response, its perplexity ratio is {found.ratio(at)}"
    farthest = f"the farthest, {plain(found.uid[at], 20)}, has {found.ratio(at)}"
    if not found.outside:
        return first_fitting([f"All {total:,} responses stay within 0.95–1.05; {farthest}"])
    share = f"{found.outside:,} of {total:,} responses leave 0.95–1.05"
    return first_fitting([f"{share}; {farthest}", share])


def _subtitle(found: Responses, report: Report) -> str:
    beyond = int(found.beyond.sum())
    clipped = f" {counted(beyond, 'response')} beyond 1/20–20 drawn at the edge." if beyond else ""
    every = found.thinned.step
    thinned = f" Every {every}th point drawn." if every > 1 else ""
    mean = short(report.overall.get("ppl_ratio"), 4)
    return (
        f"Perplexity of the trainer over that of the sampler, {counted(len(found.log_ratio), 'response')}. Shaded: "
        f"outside the limits of the mean ratio, which is {mean} here.{clipped}{thinned}"
    )


def _unnamed() -> list[Zone]:
    """Zones without their labels, for all panels but the last."""
    return [replace(zone, label="") for zone in zones("ppl_ratio")]


def _ratio_axis(axes: Axes, found: Responses) -> None:
    axes.set_yscale("log")
    axes.set_ylim(*found.view)
    low, high = (math.log(end) for end in found.view)
    kept: list[float] = []
    for tick in sorted(RATIO_TICKS, key=lambda r: (r != 1, r not in (0.95, 1.05, 0.5, 2), abs(math.log(r)))):
        place = math.log(tick)
        if low <= place <= high and all(abs(place - math.log(k)) > 0.055 * (high - low) for k in kept):
            kept.append(tick)
    axes.yaxis.set_major_locator(FixedLocator(sorted(kept)))
    axes.yaxis.set_major_formatter(FuncFormatter(power))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("perplexity ratio, π / μ (log scale)")


def _points(axes: Axes, found: Responses, x: Array) -> None:
    drawn = found.thinned
    many = len(found.log_ratio) > 2_000
    size, alpha = (6, 0.35) if many else (20, 0.6)
    axes.scatter(x[drawn], found.drawn[drawn], s=size, color=BLUE, alpha=alpha, lw=0, zorder=3, clip_on=False)
    axes.axhline(1, color=INK, lw=0.8, zorder=1)


def _by_length(axes: Axes, found: Responses) -> None:
    heading(axes, "By length")
    axes.set_xlabel("valid tokens of the response (log scale)")
    log_axis(axes, "x")
    low, high = int(found.length.min()), int(found.length.max())
    axes.set_xlim(low / 1.25 if high > low else low / 3, high * 1.25 if high > low else high * 3)
    _points(axes, found, found.length.astype(np.float64))


def _by_step(axes: Axes, found: Responses) -> None:
    heading(axes, "By step", [("━ median", ORANGE)])
    axes.set_xlabel("training step")
    steps = np.unique(found.step)
    gap = float(np.diff(steps).min())
    # A fixed pattern, not chance: the same report gives the same picture
    spread = (np.arange(len(found.step)) * 0.618034 % 1 - 0.5) * 0.55 * gap
    integer_ticks(axes, float(steps[0]), float(steps[-1]))
    axes.set_xlim(steps[0] - 0.6 * gap, steps[-1] + 0.6 * gap)
    _points(axes, found, found.step + spread)
    medians = [float(np.median(found.drawn[found.step == step])) for step in steps]
    axes.hlines(medians, steps - 0.36 * gap, steps + 0.36 * gap, color=ORANGE, lw=2.6, zorder=4)


def _distribution(axes: Axes, found: Responses) -> None:
    heading(axes, "All")
    low, high = (math.log(end) for end in found.view)
    edges = np.exp(np.linspace(low, high, 41))
    edges[0], edges[-1] = edges[0] * (1 - 1e-9), edges[-1] * (1 + 1e-9)
    counts, _ = np.histogram(found.drawn, bins=edges)
    axes.stairs(counts, edges, orientation="horizontal", fill=True, color=SKY, zorder=2)
    axes.stairs(counts, edges, orientation="horizontal", color=BLUE, lw=0.9, zorder=2.1)
    axes.set_xlim(0, max(1.0, float(counts.max())) * 1.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(power))
    axes.set_xlabel("responses")
    axes.axhline(1, color=INK, lw=0.8, zorder=3)


def _name_worst(axes: Axes, found: Responses) -> None:
    """Write the worst responses' uids beside their points, pushed apart where they would overlap."""
    axes.scatter(
        found.length[found.worst], found.drawn[found.worst], s=34, facecolor="none", edgecolor=RED, lw=1.4, zorder=5,
        clip_on=False,
    )  # fmt: skip
    low, high = (math.log(end) for end in found.view)
    wanted = [(math.log(found.drawn[i]) - low) / (high - low) for i in found.worst]
    for at, place in zip(found.worst, _apart(wanted), strict=True):
        _write_name(axes, found, int(at), place)


def _apart(places: Sequence[float], gap: float = 0.05) -> list[float]:
    """The places, moved up or down until no two are nearer than the gap, inside 0.03 to 0.97."""
    order = np.argsort(places)
    moved = np.clip(np.array(places, dtype=np.float64), 0.03, 0.97)
    for lower, upper in pairwise(order):
        moved[upper] = max(moved[upper], moved[lower] + gap)
    moved[order[-1:]] = np.minimum(moved[order[-1:]], 0.97)
    for upper, lower in pairwise(order[::-1]):
        moved[lower] = min(moved[lower], moved[upper] - gap)
    found: list[float] = moved.tolist()
    return found


def _write_name(axes: Axes, found: Responses, at: int, place: float) -> None:
    to_share = axes.transData + axes.transAxes.inverted()
    across = float(to_share.transform((float(found.length[at]), 1.0))[0])
    rightward = across < 0.6
    axes.annotate(
        f"{plain(found.uid[at], 24)}  {found.ratio(at)}", (float(found.length[at]), float(found.drawn[at])),
        xytext=(across + (0.04 if rightward else -0.04), place), textcoords="axes fraction", va="center",
        ha="left" if rightward else "right", fontsize=SMALL, color=INK, path_effects=HALO, zorder=6,
        arrowprops={"arrowstyle": "-", "color": GREY, "lw": 0.7, "shrinkB": 3},
    )  # fmt: skip
