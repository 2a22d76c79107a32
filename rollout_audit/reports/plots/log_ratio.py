"""Distribution of the log-ratio, with the thresholds that corrections use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray

from rollout_audit.audit.pictures import Histogram
from rollout_audit.audit.report import Report
from rollout_audit.reports.plots.evidence import pictures_of
from rollout_audit.reports.plots.stories import EQUAL
from rollout_audit.reports.plots.style import (
    BLUE,
    GREEN,
    GREY,
    HALO,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    log_axis,
    new_figure,
)
from rollout_audit.reports.plots.wording import counted, first_fitting, percent, power, short

__all__ = ["THRESHOLDS", "Distribution", "draw", "rebinned"]

Array = NDArray[np.float64]

THRESHOLDS: tuple[tuple[float, float | None, str], ...] = ((0.5, 2.0, ORANGE), (0.2, 5.0, RED), (1e-4, None, PURPLE))
"""Ratios: lower, upper, colour. The last one is the veto."""
NARROWEST, WIDEST = 2.6, 12.0
"""The axis reaches at least and at most so far on either side"""
MOST_BINS = 180
BIN_WIDTHS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
RATIO_TICKS = (1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100, 1e3, 1e4, 1e5)


def draw(report: Report) -> Figure | None:
    """Tokens by log-ratio on a log count axis; each threshold says how many tokens lie beyond it."""
    pictures = pictures_of(report)
    if pictures is None or not pictures.histogram.counts.sum():
        return None
    found = Distribution(pictures.histogram)
    figure = new_figure(5.0, _finding(found, _mean(report)), _subtitle(report, found))
    axes = figure.subplots()
    _bars(axes, found)
    _ratio_axis(axes)
    _band(axes, found)
    for row, (lower, upper, colour) in enumerate(THRESHOLDS):
        _threshold(axes, found, (lower, upper), colour, 0.965 - 0.085 * (row % 2))
    return figure


@dataclass(frozen=True)
class Distribution:
    """Counts of log-ratios in bins of one width, and shares beyond a ratio."""

    histogram: Histogram

    @property
    def tokens(self) -> int:
        return int(self.histogram.counts.sum())

    @property
    def is_zero(self) -> bool:
        """Every log-ratio is exactly 0."""
        occupied = self.histogram.edges[1:][self.histogram.counts > 0]
        return bool((occupied == 0).all())

    @cached_property
    def view(self) -> tuple[float, float]:
        """What the axis shows of the data's range."""
        occupied = np.flatnonzero(self.histogram.counts)
        low, high = self.histogram.edges[occupied[0]], self.histogram.edges[occupied[-1] + 1]
        low, high = min(float(low), -NARROWEST), max(float(high), NARROWEST)
        return max(low, -WIDEST), min(high, WIDEST)

    @cached_property
    def bin_edges(self) -> Array:
        """Edges of equal bins over the view, zero in the middle of one."""
        low, high = self.view
        width = next((w for w in BIN_WIDTHS if (high - low) / w <= MOST_BINS), BIN_WIDTHS[-1])
        first, last = math.floor(low / width), math.ceil(high / width)
        edges: Array = (np.arange(first, last + 2, dtype=np.float64) - 0.5) * width
        return edges

    @cached_property
    def binned(self) -> Array:
        return rebinned(self.histogram, self.bin_edges)

    def share_below(self, log_ratio: float) -> float:
        return float(_cumulative(self.histogram, np.array([log_ratio]))[0]) / self.tokens

    def outside(self, lower: float, upper: float) -> float:
        """Share of tokens whose ratio is outside [lower, upper]."""
        return self.below(lower) + self.above(upper)

    def below(self, ratio: float) -> float:
        # Cells end at a threshold or just inside it: a token exactly on it is not beyond
        return self.share_below(math.nextafter(math.log(ratio), -math.inf))

    def above(self, ratio: float) -> float:
        return max(0.0, 1 - self.share_below(math.nextafter(math.log(ratio), math.inf)))

    @property
    def hidden(self) -> int:
        """Tokens that the axis does not show."""
        return round(self.tokens - float(self.binned.sum()))


def rebinned(histogram: Histogram, edges: Array) -> Array:
    """Counts between equal edges: a narrow cell counts where its middle lies, one wider than a bin is spread."""
    cells, counts = histogram.edges, histogram.counts
    wide = np.diff(cells) > edges[1] - edges[0]
    middles = (cells[:-1] + cells[1:]) / 2
    whole, _ = np.histogram(middles[~wide], bins=edges, weights=counts[~wide])
    spread = np.diff(_cumulative(Histogram(cells, np.where(wide, counts, 0)), edges))
    total: Array = whole + spread
    return total


def _cumulative(histogram: Histogram, at: Array) -> Array:
    """Number of tokens at or below each place, cells filled evenly."""
    edges, total = histogram.edges, np.concatenate([[0], np.cumsum(histogram.counts)])
    cell = np.clip(np.searchsorted(edges, at, side="left") - 1, 0, len(histogram.counts) - 1)
    # The cell of zero is one denormal wide
    with np.errstate(over="ignore"):
        filled = np.clip((at - edges[cell]) / (edges[cell + 1] - edges[cell]), 0, 1)
    cumulative: Array = total[cell] + filled * histogram.counts[cell]
    return cumulative


def _finding(found: Distribution, mean: float | None) -> str:
    if found.is_zero:
        return f"{EQUAL}: all {counted(found.tokens, 'log-ratio')} are 0"
    if found.tokens == 1:
        return f"A single token, its log-ratio is {short(mean, 3)}"
    low, high, near = found.below(0.5), found.above(2.0), found.outside(0.9, 1.1)
    if low + high < 0.0005:
        inside = (
            "Every token stays"
            if low + high == 0
            else f"{percent(1 - low - high).replace('>', 'Over ')} of tokens stay"
        )
        return f"{inside} between half and twice the ratio; {percent(near)} leave ±10%"
    side = "mostly below" if low > 2 * high else "mostly above" if high > 2 * low else "on both sides"
    return first_fitting([f"{percent(low + high)} of tokens leave 0.5–2, {side}; {percent(near)} leave ±10%"])


def _mean(report: Report) -> float | None:
    k1 = report.overall.get("kl_k1")
    return None if k1 is None else -k1


def _subtitle(report: Report, found: Distribution) -> str:
    width = found.bin_edges[1] - found.bin_edges[0]
    low, high = found.bin_edges[0], found.bin_edges[-1]
    hidden = (
        f" {counted(found.hidden, 'token')} beyond [{short(low, 3)}, {short(high, 3)}] not shown."
        if found.hidden
        else ""
    )
    return (
        f"{counted(found.tokens, 'valid token')} in bins of {width:.3g}; π is {report.settings.training_column}, μ is "
        f"{report.settings.rollout_column}. The geometric band 0.999–1.001, too narrow to draw, holds "
        f"{percent(1 - found.outside(0.999, 1.001))} of the tokens.{hidden}"
    )


def _bars(axes: Axes, found: Distribution) -> None:
    drawn = np.where(found.binned > 0, np.maximum(found.binned, 0.55), 0.5)
    axes.stairs(drawn, found.bin_edges, baseline=0.5, fill=True, color=SKY, zorder=2)
    axes.stairs(drawn, found.bin_edges, baseline=0.5, color=BLUE, lw=0.9, zorder=2.1)
    log_axis(axes, "y")
    axes.set_xlim(found.bin_edges[0], found.bin_edges[-1])
    top = max(10.0, float(drawn.max()))
    axes.set_ylim(0.5, top * (top / 0.5) ** 0.42)
    axes.set_ylabel("tokens per bin (log scale)")
    axes.set_xlabel("log-ratio d = log π − log μ")


def _ratio_axis(axes: Axes) -> None:
    upper = axes.secondary_xaxis("top")
    low, high = axes.get_xlim()
    upper.xaxis.set_major_locator(FixedLocator([math.log(r) for r in RATIO_TICKS if low <= math.log(r) <= high]))
    upper.xaxis.set_major_formatter(FuncFormatter(lambda d, _: power(math.exp(d))))
    upper.set_xlabel("ratio ρ = π / μ")


def _band(axes: Axes, found: Distribution) -> None:
    axes.axvspan(math.log(0.9), math.log(1.1), color=GREEN, alpha=0.22, lw=0, zorder=0.5)
    axes.text(
        0, 0.79, f"±10%: {percent(1 - found.outside(0.9, 1.1))}\nof tokens inside", ha="center", va="top", fontsize=9,
        transform=axes.get_xaxis_transform(), color="#00694C", path_effects=HALO, zorder=4,
    )  # fmt: skip


def _threshold(axes: Axes, found: Distribution, bounds: tuple[float, float | None], colour: str, top: float) -> None:
    """A line at each bound, and beside it the share of tokens farther out."""
    low, high = axes.get_xlim()
    lower, upper = bounds
    if math.log(lower) > low:
        _bound(axes, math.log(lower), f"{_share(found.below(lower))} below {_name(lower)}", colour, top, "right")
    if upper is not None and math.log(upper) < high:
        _bound(axes, math.log(upper), f"{_share(found.above(upper))} above {_name(upper)}", colour, top, "left")


def _share(share: float) -> str:
    return percent(share) if share else "none"


def _name(ratio: float) -> str:
    return f"{ratio:g} (veto)" if ratio < 0.001 else f"{ratio:g}"


def _bound(axes: Axes, at: float, text: str, colour: str, top: float, side: str) -> None:
    axes.axvline(at, ymax=top + 0.03, color=colour, lw=1.4, ls=(0, (5, 2)), zorder=3)
    axes.annotate(
        text, (at, top), xycoords=axes.get_xaxis_transform(), xytext=(-5 if side == "right" else 5, 0), va="center",
        textcoords="offset points", ha=side, fontsize=9, weight="bold", color=_DARK.get(colour, colour),
        path_effects=HALO, zorder=5,
    )  # fmt: skip


_DARK = {ORANGE: "#8A5A00", RED: "#A33F00", GREY: GREY}
