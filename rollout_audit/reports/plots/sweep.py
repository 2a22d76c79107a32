"""What a threshold costs: ess and mass lost along caps, tokens and sequences masked along weights and rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, PercentFormatter
from numpy.typing import NDArray

from rollout_audit.audit.report import Report, SweepReport
from rollout_audit.reports.plots.evidence import in_line, pictures_of
from rollout_audit.reports.plots.named import Mark, legend, mark_at, marks
from rollout_audit.reports.plots.style import (
    BLUE,
    GREEN,
    GREY,
    HALO,
    INK,
    ORANGE,
    SMALL,
    heading,
    log_axis,
    new_figure,
    note,
)
from rollout_audit.reports.plots.wording import counted, first_fitting, percent, short
from rollout_audit.reports.plots.zones import paint_zones, zones

__all__ = ["draw"]

Array = NDArray[np.float64]
Table = Mapping[str, NDArray[Any]]

COLUMNS = 3
LARGEST_SHOWN = 1e4
FEW_TICKS_FROM = 25.0
RANGE_AT = 1.085
LABEL_HEIGHTS, LABEL_ROOM = (0.72, 0.58, 0.86), 0.11
VETO_K2 = 0.5 * math.log(1e-4) ** 2
"""The bound on both sides that on the lower one is the veto at 1e-4"""
MASKED = ("masked_fraction", "seq_masked_fraction")
GEO_PRESET, GEO_BAND = "decoupled_geo_rs", 0.001


@dataclass(frozen=True)
class _Line:
    """One family of the sweep: where its thresholds lie, what of them the presets use, what its origin recommends."""

    family: str
    title: str
    axis: str
    threshold: Callable[[Table], Array]
    preset: float | None = None
    recommended: tuple[float, float] | None = None


def _cap(table: Table) -> Array:
    return table["upper"]


def _cap_above_one(table: Table) -> Array:
    return table["upper"] - 1.0


def _ratio_band(table: Table) -> Array:
    return np.exp(table["rule_upper"])


def _ratio_band_above_one(table: Table) -> Array:
    return np.expm1(table["rule_upper"])


def _bound(table: Table) -> Array:
    return table["rule_upper"]


CAPS = (
    _Line("token truncate", "Token weights", "cap on ρ", _cap, 2.0, (1.5, 5.0)),
    _Line("sequence truncate", "Sequence weights", "cap on the product ratio", _cap, 2.0, (2.0, 10.0)),
    _Line("geometric truncate", "Geometric weights", "cap on the geometric ratio, above 1", _cap_above_one),
)
RULES = (
    _Line("token_k1", "Rejected by token", "T of the band 1/T to T", _ratio_band, 2.0, (1.5, 5.0)),
    _Line("seq_sum_k1", "By product ratio", "T of the band 1/T to T", _ratio_band, 2.0),
    _Line("seq_mean_k1", "By geometric mean", "half width of the band around 1", _ratio_band_above_one, GEO_BAND,
          (0.001, 0.01)),
    _Line("seq_mean_k3", "Rejected by mean k3", "largest mean k3 that is kept", _bound, 0.01, (0.001, 0.01)),
    _Line("seq_mean_k2", "By mean k2", "largest mean k2 that is kept", _bound),
    _Line("seq_max_k2", "By largest k2", "largest token k2 that is kept", _bound, VETO_K2),
)  # fmt: skip


def draw(report: Report) -> Figure | None:
    """Up to nine families of the sweep: what each threshold would do, the presets' own and those asked for marked."""
    pictures = pictures_of(report)
    if pictures is None or pictures.sweep is None or report.sweep is None or not report.sweep.points:
        return None
    tables = _by_family(pictures.sweep)
    lines = {line.family: line for line in (*CAPS, *RULES) if line.family in tables}
    caps, rules = ([line for line in some if line.family in lines] for some in (CAPS, RULES))
    if not lines:
        return None
    named = [m for m in marks(report) if any(len(_thresholds(lines[f], [m])) for f in (m.weight, m.rule) if f in lines)]
    alone = any(not tables[line.family]["in_line"].all() for line in rules)
    rows = -(-len(caps) // COLUMNS) + -(-len(rules) // COLUMNS)
    figure = new_figure(0.4 + 2.5 * rows, _finding(report, report.sweep, tables), _subtitle(report, named, alone=alone))
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    of_rules = panels[-(-len(caps) // COLUMNS) * COLUMNS :]
    for axes in panels:
        axes.set_axis_off()
    for axes, line in zip(panels, caps, strict=False):
        own = [m for m in named if m.weight == line.family]
        outside = tables.get(line.family.replace("truncate", "mask"))
        _draw_cap(axes, line, tables[line.family], outside, own, keyed=line is caps[0])
    for i, (axes, line) in enumerate(zip(of_rules, rules, strict=False)):
        own = [m for m in named if m.rule == line.family]
        _draw_rule(axes, line, tables[line.family], own, keyed=i % COLUMNS == 0)
    return figure


def _by_family(sweep: Mapping[str, object]) -> dict[str, Table]:
    families = np.asarray(sweep["family"])
    numbers: dict[str, NDArray[Any]] = {
        name: np.asarray(sweep[name], dtype=np.float64)
        for name in ("lower", "upper", "rule_upper", "ess", "mass_lost", "zeroed_fraction", *MASKED)
    }
    numbers["in_line"] = in_line(sweep)
    found = dict.fromkeys(families.tolist())
    return {family: {name: column[families == family] for name, column in numbers.items()} for family in found}


def _finding(report: Report, limits: SweepReport, tables: Mapping[str, Table]) -> str:
    geo = tables.get("seq_mean_k1")
    preset = {c.name: c.stages.kept["masked_fraction"] for c in report.corrections}.get(GEO_PRESET)
    if geo is not None and preset is not None and preset > limits.max_masked:
        kept = (geo["masked_fraction"] <= limits.max_masked) & geo["in_line"]
        if kept.any():
            width = float(np.expm1(geo["rule_upper"][kept].min()))
            text = f"The geometric band ±0.1% masks {percent(preset)} of the tokens"
            band = f"±{percent(width)}" if width < 0.5 else f"a factor of {short(1 + width, 3)}"
            return first_fitting([f"{text}; {100 * limits.max_masked:.3g}% would take {band}", text])
    token = tables.get("token truncate")
    if token is None:
        return "What each threshold would cost"
    cheap = token["upper"][token["mass_lost"] <= limits.max_mass_lost]
    most = f"{100 * limits.max_mass_lost:.3g}%"
    if len(cheap):
        return f"Token caps from {short(float(cheap.min()), 3)} up lose at most {most} of the weight"
    return f"Every token cap of the grid loses more than {most} of the weight"


def _subtitle(report: Report, named: Sequence[Mark], *, alone: bool) -> str:
    points = report.sweep.points if report.sweep else 0
    bands = " Dots: bands by themselves, at their upper end." if alone else ""
    return (
        f"{counted(points, 'configuration')} of one pass, {counted(report.counts.valid_tokens, 'valid token')} as one "
        "batch. Lost: mass above the cap. Masked: tokens, if weights beyond the cap or its reciprocal were 0. Dotted: "
        "the presets' threshold (of largest k2: as the veto at 1e-4); grey bar: the range its origin recommends; "
        f"shaded: past a health limit, in the first row of ess.{bands}{legend(named)}"
    )


def _draw_cap(
    axes: Axes, line: _Line, table: Table, outside: Table | None, named: Sequence[Mark], *, keyed: bool
) -> None:
    """`outside`: the weights that are 0 beyond the cap and its reciprocal, instead of cut off there."""
    axes.set_axis_on()
    keys = [("ess", BLUE), ("lost", ORANGE), *([] if outside is None else [("masked", GREEN)])]
    heading(axes, line.title, keys if keyed else ())
    x = line.threshold(table)
    axes.set_ylim(0, 1.12)
    _frame(axes, line, np.concatenate([x, _thresholds(line, named)]), [m.kept("ess") for m in named])
    _plot(axes, x, table["ess"], BLUE, "solid")
    _plot(axes, x, table["mass_lost"], ORANGE, "dashed")
    if outside is not None:
        even = np.isclose(outside["lower"] * outside["upper"], 1.0)
        _plot(axes, line.threshold(outside)[even], outside["zeroed_fraction"][even], GREEN, "dashdot")
    _mark(axes, line, named, "ess")
    paint_zones(axes, zones("ess"), "y")


def _draw_rule(axes: Axes, line: _Line, table: Table, named: Sequence[Mark], *, keyed: bool) -> None:
    axes.set_axis_on()
    heading(axes, line.title, (("tokens", BLUE), ("sequences", ORANGE)) if keyed else ())
    axes.set_ylim(0, 1.12)
    x = line.threshold(table)
    inside = (x > 0) & (x <= LARGEST_SHOWN)
    if not inside.any():
        axes.set_axis_off()
        note(axes, "every threshold lies past 10,000")
        return
    marked = [m.kept("masked_fraction") for m in named]
    _frame(axes, line, np.concatenate([x[inside], _thresholds(line, named)]), marked)
    for name, colour, style in (("masked_fraction", BLUE, "solid"), ("seq_masked_fraction", ORANGE, "dashed")):
        line_of, alone = inside & table["in_line"], inside & ~table["in_line"]
        if line_of.any():
            _plot(axes, x[line_of], table[name][line_of], colour, style)
        if alone.any():
            axes.plot(x[alone], table[name][alone], color=colour, ls="", marker="o", ms=4, clip_on=False)
    _mark(axes, line, named, "masked_fraction")
    paint_zones(axes, zones("masked_fraction"), "y")


def _thresholds(line: _Line, named: Sequence[Mark]) -> Array:
    """Where the corrections asked for lie on the line's axis, those that lie on it."""
    x = line.threshold({name: np.array([m.setting(name) for m in named]) for name in ("upper", "rule_upper")})
    return x[(x > 0) & (x <= LARGEST_SHOWN)]


def _mark(axes: Axes, line: _Line, named: Sequence[Mark], figure: str) -> None:
    """At their own figures, which other parts of the same correction may move off the line."""
    for mark in named:
        for x in _thresholds(line, [mark]).tolist():
            mark_at(axes, mark, x, mark.kept(figure))


def _frame(axes: Axes, line: _Line, x: Array, marked_at: Sequence[float]) -> None:
    """The axis of the thresholds, with the presets' own and the recommended range."""
    marked = (*(() if line.preset is None else (line.preset,)), *(line.recommended or ()))
    ends = [float(x.min()), float(x.max()), *marked]
    low, high = min(ends), max(ends)
    low, high = (low / 1.1, high * 1.1) if low < high else (low / 2, high * 2)
    axes.set_xlim(low, high)
    log_axis(axes, "x")
    if high / low > FEW_TICKS_FROM:
        powers = 10.0 ** np.arange(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
        axes.xaxis.set_major_locator(FixedLocator(powers[:: -(-len(powers) // 4)].tolist()))
    axes.set_xlabel(line.axis)
    axes.yaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if line.recommended is not None:
        axes.plot(line.recommended, [RANGE_AT] * 2, color=GREY, linewidth=4.5, solid_capstyle="butt", zorder=3.5)
    if line.preset is not None:
        axes.axvline(line.preset, color=INK, linewidth=1.0, linestyle="dotted", zorder=3)
        late = math.log(line.preset / low) > 0.75 * math.log(high / low)
        axes.annotate(
            f"{line.preset:.4g}", (line.preset, _free_height(marked_at)), xytext=(-3 if late else 3, 0),
            textcoords="offset points", fontsize=SMALL, color=GREY, ha="right" if late else "left", va="center",
            path_effects=HALO,
        )  # fmt: skip


def _free_height(marked_at: Sequence[float]) -> float:
    """Where a label does not lie under a diamond."""
    return next((y for y in LABEL_HEIGHTS if all(abs(y - at) > LABEL_ROOM for at in marked_at)), LABEL_HEIGHTS[0])


def _plot(axes: Axes, x: Array, y: Array, colour: str, style: str) -> None:
    """A line; one point alone as a dot."""
    axes.plot(x, y, color=colour, linewidth=1.8, linestyle=style, marker="o" if len(x) == 1 else "", clip_on=False)
