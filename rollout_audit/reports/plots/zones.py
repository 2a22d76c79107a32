"""Health limits as shaded zones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes

from rollout_audit.audit.health import HealthRule, limits
from rollout_audit.reports.plots.style import HALO, SMALL, ZONE_INK, ZONES

__all__ = ["Zone", "paint_zones", "worst_zone", "zones"]

_ROOM_FOR_LABEL = 0.085
"""share of a panel's height"""


@dataclass(frozen=True, slots=True)
class Zone:
    """Values that a health rule objects to."""

    low: float
    high: float
    severity: Literal["warn", "critical"]
    label: str

    def holds(self, value: float) -> bool:
        return self.low < value < self.high


def zones(metric: str) -> list[Zone]:
    """The zones of a metric's rules, mild ones first. Rules on |x| are for panels that draw |x|."""
    rules = [rule for rule in limits(metric) if rule.name == metric]
    found = [zone for rule in rules for zone in _zones(rule)]
    return sorted(found, key=lambda zone: zone.severity, reverse=True)


def _zones(rule: HealthRule) -> list[Zone]:
    severity, limit = rule.severity, rule.limit
    below = Zone(-math.inf, limit[0], severity, f"{severity} < {limit[0]:g}")
    above = Zone(limit[-1], math.inf, severity, f"{severity} > {limit[-1]:g}")
    if rule.comparison == "outside":
        return [below, above]
    return [below] if rule.comparison == "<" else [above]


def worst_zone(metric: str, value: float) -> Zone | None:
    """The severest zone that a value lies in."""
    return next((zone for zone in reversed(zones(metric)) if zone.holds(value)), None)


def paint_zones(axes: Axes, found: Sequence[Zone], which: Literal["x", "y"]) -> None:
    """Shade zones inside the axis limits, which must be set before; on a y axis with their labels."""
    view = axes.get_ylim() if which == "y" else axes.get_xlim()
    span = axes.axhspan if which == "y" else axes.axvspan
    line = axes.axhline if which == "y" else axes.axvline
    for zone in found:
        low, high = max(zone.low, view[0]), min(zone.high, view[1])
        if low < high:
            span(low, high, color=ZONES[zone.severity], lw=0, zorder=0.4)
            line(zone.low if math.isfinite(zone.low) else zone.high, color=ZONE_INK[zone.severity], lw=0.7, zorder=0.5)
            if which == "y":
                _label(axes, zone)


def _label(axes: Axes, zone: Zone) -> None:
    upward = math.isfinite(zone.low)
    edge = zone.low if upward else zone.high
    to_share = axes.transData + axes.transAxes.inverted()
    place = float(to_share.transform((axes.get_xlim()[0], edge))[1])
    if (1 - place if upward else place) > _ROOM_FOR_LABEL:
        axes.text(
            0.995, place + (0.012 if upward else -0.012), zone.label, transform=axes.transAxes, ha="right",
            va="bottom" if upward else "top", fontsize=SMALL, color=ZONE_INK[zone.severity],
            path_effects=HALO, zorder=5,
        )  # fmt: skip
