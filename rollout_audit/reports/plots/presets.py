"""The presets side by side: what each leaves of the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from rollout_audit.audit.alike import Group, alike, equals
from rollout_audit.audit.report import CorrectionReport, Report
from rollout_audit.reports.plots.style import (
    BLUE,
    GREY,
    HALO,
    INK,
    ORANGE,
    PURPLE,
    RULE,
    SMALL,
    ZONE_INK,
    heading,
    new_figure,
)
from rollout_audit.reports.plots.wording import counted, first_fitting, percent, plain
from rollout_audit.reports.plots.zones import paint_zones, zones

__all__ = ["draw", "in_order"]

ROW_HEIGHT = 0.232
COLOURS = {"decoupled": BLUE, "bypass": ORANGE}
_GROUP_GAP = 1.3
ROOM_BESIDE = 0.35
"""Where the longest text still ends within its panel"""


def draw(report: Report) -> Figure | None:
    """One row a preset and those that come to the same: effective sample size, tokens and sequences that it removes."""
    if not report.corrections or not report.steps:
        return None
    groups = {group[0].name: group for group in alike(_reference_first(report))}
    corrections = in_order([group[0] for group in groups.values()])
    places = _places(corrections)
    height = ROW_HEIGHT * (places[-1] + 2) + 0.9
    figure = new_figure(height, _finding(report.corrections), _subtitle(report), _foot(list(groups.values())))
    panels = figure.subplots(1, 3, sharey=True, width_ratios=[1.4, 1, 1])
    _names(panels[0], report, [groups[c.name] for c in corrections], places)
    for axes in panels:
        _background(axes, report, corrections, places)
    _ess(panels[0], corrections, places)
    zeroed = [c.stages.bounded.get("zeroed_fraction") or 0.0 for c in corrections]
    _removed(panels[1], corrections, places, "masked_fraction", "Tokens masked", zeroed)
    _removed(panels[2], corrections, places, "seq_masked_fraction", "Sequences masked", [0.0] * len(zeroed))
    return figure


def _reference_first(report: Report) -> list[CorrectionReport]:
    """So that it gives its row the name."""
    return sorted(report.corrections, key=lambda c: c.name != report.settings.reference)


def in_order(corrections: Sequence[CorrectionReport]) -> list[CorrectionReport]:
    """Decoupled before bypass; in each what removes least first, then the higher effective sample size."""
    return sorted(corrections, key=_rank)


def _rank(correction: CorrectionReport) -> tuple[object, ...]:
    kept = correction.stages.kept
    masked, ess = kept.get("masked_fraction"), kept.get("ess")
    return (
        correction.mode != "decoupled",
        round(1.0 if masked is None else masked, 9),
        -round(-1.0 if ess is None else ess, 9),
        correction.name,
    )


def _places(corrections: Sequence[CorrectionReport]) -> list[float]:
    """Row of each preset, a gap between the modes."""
    first = corrections[0].mode
    return [i + (0 if c.mode == first else _GROUP_GAP) for i, c in enumerate(corrections)]


def _finding(corrections: Sequence[CorrectionReport]) -> str:
    fine, total = sum(c.status == "ok" for c in corrections), len(corrections)
    head = f"{fine} of {counted(total, 'preset')} within the health limits"
    masked = {c.name: c.stages.kept.get("masked_fraction") or 0.0 for c in corrections}
    most = max(masked, key=lambda name: masked[name])
    if not masked[most]:
        return f"{head}; none masks a token"
    share = percent(masked[most])
    tied = sum(percent(x) == share for x in masked.values())
    worst = f"{tied} mask {share} of the tokens" if tied > 1 else f"{plain(most, 40)} masks {share} of tokens"
    return first_fitting([f"{head}; {worst}", f"{head}; up to {share} of tokens masked"])


def _subtitle(report: Report) -> str:
    return (
        f"{counted(report.counts.valid_tokens, 'valid token')} in "
        f"{counted(report.counts.scored_sequences, 'sequence')}, all steps as one batch. "
        "Thin lines lead from the raw weights to those applied. Open bars: in the mask with a weight of 0. "
        "Shaded: past a health limit. "
        "A coloured name breaks a limit, of weights too. Bold: the reference."
    )


def _foot(groups: Sequence[Group]) -> str:
    same = equals(groups)
    return f"+n: as many more presets come to the same on this dump. {plain(same, len(same))}" if same else ""


def _label(group: Group) -> str:
    more = f" +{len(group) - 1}" if len(group) > 1 else ""
    return f"{plain(group[0].name, 40)}{more}"


def _names(axes: Axes, report: Report, groups: Sequence[Group], places: Sequence[float]) -> None:
    corrections = [group[0] for group in groups]
    axes.set_yticks(places, [_label(group) for group in groups])
    axes.set_ylim(places[-1] + 0.7, -0.7 - (1.0 if len({c.mode for c in corrections}) > 1 else 0.0))
    for tick, correction in zip(axes.get_yticklabels(), corrections, strict=True):
        tick.set_color(ZONE_INK.get(correction.status, INK))
        if correction.name == report.settings.reference:
            tick.set_fontweight("bold")


def _background(axes: Axes, report: Report, corrections: Sequence[CorrectionReport], places: Sequence[float]) -> None:
    axes.set_xlim(-0.03, 1.08)
    axes.xaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    for place, correction in zip(places, corrections, strict=True):
        axes.axhline(place, color=RULE, lw=0.6, zorder=0.6)
        if correction.name == report.settings.reference:
            axes.axhspan(place - 0.46, place + 0.46, color="#DCE9F5", lw=0, zorder=0.55)


def _ess(axes: Axes, corrections: Sequence[CorrectionReport], places: Sequence[float]) -> None:
    heading(axes, "ess", [("● of tokens", INK), ("◇ of sequences", PURPLE)])
    paint_zones(axes, zones("ess"), "x")
    axes.set_xlabel("effective sample size, share")
    for place, correction in zip(places, corrections, strict=True):
        _dumbbell(axes, correction, place + 0.17, "ess_seq", PURPLE, "D")
        _dumbbell(axes, correction, place - 0.1, "ess", COLOURS[correction.mode], "o")
        if correction.stages.kept.get("ess") is None:
            axes.text(0.5, place, "no token kept", ha="center", va="center", fontsize=SMALL, color=GREY)
    for mode in dict.fromkeys(c.mode for c in corrections):
        start = next(p for p, c in zip(places, corrections, strict=True) if c.mode == mode)
        _group(axes, mode, start, corrections)


def _dumbbell(axes: Axes, correction: CorrectionReport, place: float, metric: str, colour: str, marker: str) -> None:
    """A mark at the kept value, and a thin line from the raw one."""
    raw, kept = correction.stages.raw.get(metric), correction.stages.kept.get(metric)
    if kept is None:
        return
    if raw is not None:
        axes.plot([raw, kept], [place, place], color=colour, lw=1.1, marker="|", ms=5, markevery=[0], zorder=2)
    face = colour if marker == "o" else "white"
    axes.plot(
        [kept], [place], marker=marker, ms=6 if marker == "o" else 5, mfc=face, mec=colour, ls="", zorder=3,
        clip_on=False, label=f"{correction.name} {metric}",
    )  # fmt: skip


def _group(axes: Axes, mode: str, start: float, corrections: Sequence[CorrectionReport]) -> None:
    if len({c.mode for c in corrections}) < 2:
        return
    column = next(c.training_column for c in corrections if c.mode == mode)
    axes.annotate(
        f"{mode}, π = {column}", (0, start - 0.95), xycoords=("axes fraction", "data"), xytext=(-6, 0), ha="right",
        textcoords="offset points", va="center", color=COLOURS[mode] if mode == "decoupled" else "#8A5A00",
        weight="bold", fontsize=9, annotation_clip=False,
    )  # fmt: skip


def _removed(
    axes: Axes,
    corrections: Sequence[CorrectionReport],
    places: Sequence[float],
    metric: str,
    name: str,
    zeroed: Sequence[float],
) -> None:
    """Bars of what is masked, and open ones of what stays in the mask with a weight of 0."""
    seen = [share if percent(share) != percent(0.0) else 0.0 for share in zeroed]
    heading(axes, name)
    paint_zones(axes, zones(metric), "x")
    axes.xaxis.set_major_formatter(FuncFormatter(_as_percent))
    axes.set_xlabel("share of all")
    values = [c.stages.kept.get(metric) for c in corrections]
    shares = np.array([0.0 if v is None else v for v in values])
    colours = [COLOURS[c.mode] for c in corrections]
    axes.barh(places, shares, height=0.62, color=colours, zorder=2)
    axes.barh(places, seen, height=0.62, facecolor="none", edgecolor=colours, lw=[1.0 if s else 0.0 for s in seen])
    for place, value, open_to, correction in zip(places, values, seen, corrections, strict=True):
        _value(axes, place, value, open_to, "white" if correction.mode == "decoupled" else INK)


def _as_percent(share: float, _: object) -> str:
    return f"{100 * share:.0f}%"


def _value(axes: Axes, place: float, value: float | int | None, zeroed: float, on_bar: str) -> None:
    text = "n/a" if value is None else percent(value) + (f", {percent(zeroed)} weight 0" if zeroed else "")
    masked = value or 0.0
    filled = masked > 0.8
    beside = masked if filled or zeroed > ROOM_BESIDE else max(masked, zeroed)
    axes.annotate(
        text, (min(beside, ROOM_BESIDE) if zeroed and not filled else beside, place), xytext=(-4 if filled else 4, 0),
        textcoords="offset points", ha="right" if filled else "left", va="center_baseline", fontsize=SMALL,
        color=on_bar if filled else INK if value or zeroed else GREY, path_effects=None if filled else HALO, zorder=4,
    )  # fmt: skip
