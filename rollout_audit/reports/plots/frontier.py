"""The trade between even weights and an unbiased gradient: ess against mass lost, with the frontier and the presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from rollout_audit.audit.alike import trainer_of
from rollout_audit.audit.report import CorrectionReport, Report
from rollout_audit.reports.plots.evidence import pictures_of
from rollout_audit.reports.plots.named import LOOK, asked
from rollout_audit.reports.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    RULE,
    SMALL,
    heading,
    new_figure,
    note,
)
from rollout_audit.reports.plots.wording import counted, percent, plain
from rollout_audit.reports.plots.zones import paint_zones, zones

__all__ = ["MOST_LABELS", "draw", "on_frontier", "spread_out"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

LEVELS = {"token": "Token weights", "sequence": "Sequence weights"}
MARKS = {"truncate": (BLUE, "o"), "clip": (ORANGE, "s"), "mask": (GREEN, "^")}
SIGNS = {"o": "●", "s": "■", "^": "▲"}
PRESETS_AT_TWO = ("decoupled_token_is", "decoupled_seq_is")
LEADER = {"arrowstyle": "-", "color": GREY, "lw": 0.6, "shrinkB": 4, "relpos": (0, 0.5)}
LEAST_SPAN = 0.01
LABEL_GAP = 0.1
"""share of a panel's height"""
MOST_LABELS = 7
"""names beside a panel; the other presets are small"""


@dataclass(frozen=True)
class _Cloud:
    """Points of one level: bounded weights without a rule, and those under a rule."""

    bound: NDArray[np.str_]
    bare: Flags
    lost: Array
    ess: Array

    @classmethod
    def of(cls, sweep: Mapping[str, object], level: str) -> _Cloud:
        chosen = np.asarray(sweep["level"]) == level
        lost, ess = (np.asarray(sweep[name], dtype=np.float64)[chosen] for name in ("mass_lost", "ess"))
        bare = np.array([rule is None for rule in np.asarray(sweep["rule"], dtype=object)[chosen]], dtype=bool)
        known = np.isfinite(lost) & np.isfinite(ess)
        return cls(np.asarray(sweep["bound"])[chosen][known], bare[known], lost[known], ess[known])


def draw(report: Report) -> Figure | None:
    """One panel for token weights, one for sequence weights; the names of presets stand beside it."""
    pictures = pictures_of(report)
    if pictures is None or pictures.sweep is None or report.sweep is None or not report.sweep.points:
        return None
    figure = new_figure(6.4, _finding(report), _subtitle(report))
    for axes, (level, title) in zip(figure.subplots(2, 1), LEVELS.items(), strict=True):
        _draw_level(axes, title, _Cloud.of(pictures.sweep, level), _places(report, level), report)
    return figure


def on_frontier(lost: Array, ess: Array) -> NDArray[np.int64]:
    """Places of the points that no other beats in both, by growing mass lost."""
    order = np.lexsort((-ess, lost))
    best = np.concatenate([[-np.inf], np.maximum.accumulate(ess[order])[:-1]])
    return order[ess[order] > best]


def spread_out(places: Sequence[float], gap: float) -> list[float]:
    """The places moved apart so that neighbours are `gap` from each other, inside 0 to 1 where there is room."""
    order = np.argsort(places)
    placed = np.array(places, dtype=np.float64)[order]
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + gap)
    if len(placed) and placed[-1] > 1.0:
        placed[-1] = 1.0
        for i in range(len(placed) - 2, -1, -1):
            placed[i] = min(placed[i], placed[i + 1] - gap)
    back = np.empty_like(placed)
    back[order] = placed
    return [float(x) for x in back]


@dataclass(frozen=True)
class _Place:
    """Where one or several presets stand, under the name that a reader looks for first."""

    corrections: tuple[CorrectionReport, ...]
    lost: float
    ess: float

    @property
    def label(self) -> str:
        name, more = plain(self.corrections[0].name, 40), len(self.corrections) - 1
        return f"{name} +{more}" if more else name


def _places(report: Report, level: str) -> list[_Place]:
    """Of the report's mode: what was asked for, the reference's, its trainer's, what none beats, the others."""
    first = _First.of(report)
    found = _at_their_places(sorted(report.corrections, key=first.rank), level, report)
    lost, ess = (np.array([getattr(place, name) for place in found], dtype=np.float64) for name in ("lost", "ess"))
    unbeaten = [found[i] for i in on_frontier(lost, ess)]
    return sorted(found, key=lambda p: min(first.rank(p.corrections[0]), 4 - (p in unbeaten)))


@dataclass(frozen=True)
class _First:
    """Which names a reader looks for first."""

    named: Sequence[str]
    reference: CorrectionReport

    @classmethod
    def of(cls, report: Report) -> _First:
        reference = next((c for c in report.corrections if c.name == report.settings.reference), report.corrections[0])
        return cls(asked(report), reference)

    def rank(self, correction: CorrectionReport) -> int:
        if correction.name in self.named:
            return 0
        if correction is self.reference:
            return 1
        return 2 if trainer_of(correction) == trainer_of(self.reference) else 4


def _at_their_places(corrections: Sequence[CorrectionReport], level: str, report: Report) -> list[_Place]:
    places: dict[tuple[float, float], list[CorrectionReport]] = {}
    for correction in corrections:
        lost, ess = correction.stages.bounded.get("mass_lost"), correction.stages.kept.get("ess")
        shown = correction.mode == report.settings.mode and correction.settings["level"] == level
        if shown and lost is not None and ess is not None:
            places.setdefault((round(lost, 6), round(ess, 6)), []).append(correction)
    return [_Place(tuple(found), *place) for place, found in places.items()]


def _finding(report: Report) -> str:
    by_name = {c.name: c for c in report.corrections}
    token, sequence = (by_name.get(name) for name in PRESETS_AT_TWO)
    if token is None or sequence is None:
        return "What bounding weights gains in effective sample size it pays for in lost weight"
    ess = [f"{c.stages.kept.get('ess') or 0.0:.2f}" for c in (token, sequence)]
    text = f"Capped at 2 token weights keep ess {ess[0]} ({_loss(token)} lost), sequence weights {ess[1]}"
    return f"{text} ({_loss(sequence)})"


def _loss(correction: CorrectionReport) -> str:
    lost = correction.stages.bounded.get("mass_lost")
    return "n/a" if lost is None else percent(lost)


def _subtitle(report: Report) -> str:
    points = report.sweep.points if report.sweep else 0
    lost = report.sweep.max_mass_lost if report.sweep else 0.0
    return (
        f"Of {counted(points, 'configuration')} those with such weights, the dump as one batch; upper left is better. "
        f"Bold: frontier of the weights without rejection. Grey: under a sequence rule. Diamonds: presets, "
        f"+n: as many more stand there, small: unnamed, name in bold: asked for. Dotted: {100 * lost:g}% of the weight."
    )


def _draw_level(axes: Axes, title: str, cloud: _Cloud, presets: Sequence[_Place], report: Report) -> None:
    heading(axes, title, [(f"{SIGNS[mark]} {bound}", colour) for bound, (colour, mark) in MARKS.items()])
    if not cloud.bare.any():
        axes.set_axis_off()
        note(axes, "no point has a figure")
        return
    lost, ess = cloud.lost[cloud.bare], cloud.ess[cloud.bare]
    best = on_frontier(lost, ess)
    _frame(axes, cloud, best, presets)
    axes.plot(cloud.lost[~cloud.bare], cloud.ess[~cloud.bare], ls="", marker=".", ms=3, color="#AEB6BF", zorder=1)
    for bound, (colour, marker) in MARKS.items():
        of = cloud.bare & (cloud.bound == bound)
        axes.plot(cloud.lost[of], cloud.ess[of], ls="", marker=marker, ms=3.2, color=colour, alpha=0.55, zorder=2)
    mark = "o" if len(best) == 1 else ""
    axes.plot(lost[best], ess[best], color=INK, lw=2, drawstyle="steps-post", marker=mark, zorder=2.5, label="frontier")
    if report.sweep is not None:
        axes.axvline(report.sweep.max_mass_lost, color=INK, lw=1.0, ls="dotted", zorder=1.5)
    _draw_presets(axes, presets, set(asked(report)))


def _frame(axes: Axes, cloud: _Cloud, best: NDArray[np.int64], presets: Sequence[_Place]) -> None:
    """As far as the frontier and the presets go: what lies beyond loses more and keeps less."""
    right = 1.16 * max(0.025, float(cloud.lost[cloud.bare][best].max()), *(place.lost for place in presets))
    ess = np.concatenate([cloud.ess[cloud.lost <= right], [place.ess for place in presets]])
    low, high = float(ess.min()), float(ess.max())
    room = 0.06 * (high - low) if high - low > LEAST_SPAN else LEAST_SPAN
    axes.set_xlim(-0.03 * right, right)
    axes.set_ylim(max(0.0, low - room), min(1.0, high) + room)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:.3g}%"))
    axes.set_xlabel("mass lost: share of Σρ that bounding cuts away")
    axes.set_ylabel("ess")
    paint_zones(axes, zones("ess"), "y")


def _draw_presets(axes: Axes, presets: Sequence[_Place], bold: Set[str]) -> None:
    """Diamonds, and leader lines to names beside the panel that keep apart whatever the points do."""
    low, high = axes.get_ylim()
    for place in presets[MOST_LABELS:]:
        axes.plot([place.lost], [place.ess], ms=3.5, mew=1.0, zorder=3.8, **LOOK)
    labelled = presets[:MOST_LABELS]
    shares = [(place.ess - low) / (high - low) for place in labelled]
    for place, height in zip(labelled, spread_out(shares, LABEL_GAP), strict=True):
        axes.plot([place.lost], [place.ess], ms=6.5, mew=1.6, zorder=4, **LOOK)
        axes.annotate(
            place.label, (place.lost, place.ess), xytext=(1.03, height), textcoords="axes fraction", fontsize=SMALL,
            arrowprops=LEADER, annotation_clip=False, zorder=3,
            color=INK, va="center", weight="bold" if {c.name for c in place.corrections} & bold else "normal",
        )  # fmt: skip
    axes.axhline(1.0, color=RULE, lw=0.8, zorder=0.6)
