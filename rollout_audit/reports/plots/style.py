"""How every picture looks: colours, type, the head with its finding, saving.

Only `Figure` and the Agg canvas are used: no pyplot, no global state, no display.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, MaxNLocator, NullLocator

from rollout_audit.reports.plots.wording import power

__all__ = [
    "AMBER", "BLUE", "GREEN", "GREY", "HALO", "INK", "ORANGE", "PURPLE", "RED", "RULE", "SKY", "SMALL", "WIDTH",
    "ZONES", "ZONE_INK", "LogTicks", "heading", "integer_ticks", "log_axis", "look", "new_figure", "note", "save",
]  # fmt: skip

# Okabe and Ito's colours, told apart by all common kinds of colour blindness
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
RED, SKY, PURPLE = "#D55E00", "#56B4E9", "#A65A85"
INK, GREY, RULE = "#1F2328", "#656D76", "#D8DEE4"
AMBER = "#8A5A00"
ZONES = {"warn": "#FDF0D2", "critical": "#F9DCCF"}
ZONE_INK = {"warn": AMBER, "critical": "#A33F00"}

DPI = 150
WIDTH = 9.6
"""inches"""
SMALL = 8.5
"""points; the smallest type, 9 pixels high at half size"""
HALO = [withStroke(linewidth=2.5, foreground="white")]

_LOOKS = (
    "agg", "axes", "figure", "font", "grid", "hatch", "image", "legend", "lines", "markers", "mathtext", "patch",
    "path", "pcolor", "savefig", "scatter", "text", "xaxis", "xtick", "yaxis", "ytick",
)  # fmt: skip
_OWN = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
_EVEN = MaxNLocator(nbins=4)
_TITLE = FontProperties(family="sans-serif", size=13.5, weight="bold")
_SUBTITLE = FontProperties(family="sans-serif", size=9.5, weight="normal")
_MARGIN = 0.012
"""Of the width, on either side of text"""
_LINE = DPI * WIDTH * (1 - 2 * _MARGIN)
"""Pixels that a line of text may take"""
_MEASURE = RendererAgg(1, 1, DPI)  # type: ignore[no-untyped-call]
_TITLE_LINE, _SUBTITLE_LINE = 0.245, 0.18


@contextmanager
def look() -> Iterator[None]:
    """Matplotlib's defaults with our style on top, whatever a matplotlibrc says; the old settings come back after."""
    defaults: dict[Any, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if k.split(".")[0] in _LOOKS}
    with matplotlib.rc_context(defaults | _OWN):
        yield


def new_figure(height: float, title: str, subtitle: str, foot: str = "") -> Figure:
    """An empty figure under a head: the finding in bold, below it what is drawn.

    Args:
        height: inches below the head and above the foot.
        title: one sentence.
        subtitle: what is drawn, of how many.
        foot: a remark below everything.
    """
    titles, subtitles = _balanced(title, _TITLE), _wrapped(subtitle, _SUBTITLE)
    head = 0.3 + _TITLE_LINE * len(titles) + _SUBTITLE_LINE * len(subtitles)
    feet = _wrapped(foot, _SUBTITLE)
    below = 0.12 + _SUBTITLE_LINE * len(feet) if feet else 0.0
    total = height + head + below
    figure = Figure(figsize=(WIDTH, total), dpi=DPI)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", rect=(0.01, 0.01 + below / total, 0.98, 1 - (head + below) / total))
    _write(figure, 0.1, titles, _TITLE, color=INK)
    _write(figure, 0.14 + _TITLE_LINE * len(titles), subtitles, _SUBTITLE, color=GREY)
    if feet:
        _write(figure, total - below, feet, _SUBTITLE, color=GREY)
    return figure


def _wrapped(text: str, font: FontProperties, width: float = _LINE) -> list[str]:
    """Lines that are no wider, in pixels; broken at spaces that may break."""
    lines: list[str] = []
    for word in filter(None, text.split(" ")):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and _pixels(longer, font) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _balanced(text: str, font: FontProperties) -> list[str]:
    """Lines of about the same width, as many as are needed."""
    lines = _wrapped(text, font)
    narrower = (_wrapped(text, font, _LINE * share / 20) for share in range(20 // max(len(lines), 1), 20))
    return next((found for found in narrower if len(found) == len(lines)), lines)


def _pixels(text: str, font: FontProperties) -> float:
    return float(_MEASURE.get_text_width_height_descent(text, font, ismath=False)[0])  # type: ignore[no-untyped-call]


def _write(figure: Figure, down: float, lines: Sequence[str], font: FontProperties, *, color: str) -> None:
    text = figure.text(_MARGIN, 1 - down / figure.get_figheight(), "\n".join(lines), fontproperties=font, va="top")
    text.set(color=color, linespacing=1.2, in_layout=False)


def heading(axes: Axes, text: str, keys: Sequence[tuple[str, str]] = ()) -> None:
    """What a panel shows, and the key of its marks as coloured words beside it."""
    parts = [(text, INK, "bold"), *((label, colour, "normal") for label, colour in keys)]
    areas: list[Artist] = [TextArea(t, textprops={"color": c, "weight": w, "size": 9.5}) for t, c, w in parts if t]
    row = HPacker(children=areas, pad=0, sep=9)
    box = AnchoredOffsetbox(
        "lower left", child=row, pad=0, borderpad=0.25, frameon=False,
        bbox_to_anchor=(0, 1), bbox_transform=axes.transAxes,
    )  # fmt: skip
    # A long heading must not squeeze its panel; a title of the same height keeps the room above it
    box.set_in_layout(False)
    axes.add_artist(box)
    axes.set_title(" ", fontsize=9.5, pad=5)


def note(axes: Axes, text: str) -> None:
    """A remark in the middle of a panel, for what could not be drawn."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY, path_effects=HALO)


class LogTicks(Locator):
    """Powers of ten; where few are in view also 2 and 5 times them, within one decade finer ones, at last even ones."""

    def __call__(self) -> Sequence[float]:
        assert self.axis is not None
        low, high = sorted(self.axis.get_view_interval())
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        decades = range(math.floor(math.log10(vmin)), math.ceil(math.log10(vmax)) + 1)
        span = math.log10(vmax / vmin)
        if span > 2.5:
            stride = -(-len(decades) // 7)
            return [10.0**e for e in decades if e % stride == 0 and vmin <= 10.0**e <= vmax]
        factors = (1, 2, 5) if span > 0.7 else (1, 1.5, 2, 3, 4, 5, 7)
        found = [x for e in decades for f in factors if vmin <= (x := f * 10.0**e) <= vmax]
        return found if len(found) > 1 else [x for x in _EVEN.tick_values(vmin, vmax) if vmin <= x <= vmax]


def log_axis(axes: Axes, which: Literal["x", "y"]) -> None:
    """A log scale with few ticks that need no mathtext."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis.set_major_locator(LogTicks())
    axis.set_major_formatter(FuncFormatter(power))
    axis.set_minor_locator(NullLocator())


def integer_ticks(axes: Axes, first: float, last: float) -> None:
    """Whole numbers from first to last on the x axis, none beyond."""
    places = MaxNLocator(nbins=8, integer=True).tick_values(first, max(last, first + 1))
    axes.xaxis.set_major_locator(FixedLocator([x for x in places if first <= x <= last]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}"))


def save(figure: Figure, path: Path) -> None:
    """Write a PNG that depends on nothing but the picture: two saves are equal byte for byte."""
    # print_png lays out and draws once; savefig does both twice
    with look():
        canvas: Any = FigureCanvasAgg(figure)
        canvas.print_png(path, metadata={"Software": None})
