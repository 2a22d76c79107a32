"""Corrections that were asked for by name: diamonds on the pictures of a sweep, numbered where there are several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from rollout_audit.audit.report import CorrectionReport, Report
from rollout_audit.reports.plots.style import HALO, INK, SMALL, ZONE_INK
from rollout_audit.reports.plots.wording import plain

__all__ = ["LOOK", "Mark", "asked", "legend", "mark_at", "marks"]

LOOK: dict[str, Any] = {"marker": "D", "mfc": "white", "mec": ZONE_INK["critical"], "ls": ""}
MOST = 6
"""Marked at most; the table has them all"""


@dataclass(frozen=True)
class Mark:
    """One correction, and the number that stands at its diamond; empty where it is the only one."""

    correction: CorrectionReport
    number: str

    @property
    def weight(self) -> str:
        """The family of its weight by itself: `token truncate`; empty without one."""
        settings = self.correction.settings
        return "" if settings["level"] == "none" else f"{settings['level']} {settings['bound']}"

    @property
    def rule(self) -> str:
        return str(self.correction.settings["rule"] or "")

    def setting(self, name: str) -> float:
        value = self.correction.settings[name]
        return float("nan") if value is None else float(value)

    def kept(self, name: str) -> float:
        value = self.correction.stages.kept.get(name)
        return float("nan") if value is None else float(value)


def asked(report: Report) -> Sequence[str]:
    """Names of the corrections that were asked for beside the grid."""
    return () if report.sweep is None else report.sweep.named


def marks(report: Report) -> list[Mark]:
    """Those of the report's own mode: the others compare another pair of policies than the grid does."""
    by_name = {c.name: c for c in report.corrections}
    found = [by_name[name] for name in asked(report) if by_name[name].mode == report.settings.mode][:MOST]
    return [Mark(one, str(i) if len(found) > 1 else "") for i, one in enumerate(found, 1)]


def legend(drawn: Sequence[Mark]) -> str:
    """` Diamonds: 1 verl-config, 2 seq_rs.`; empty where nothing is marked."""
    named = [" ".join(filter(None, (m.number, plain(m.correction.name, 40)))) for m in drawn]
    word = "Diamond" if len(named) == 1 else "Diamonds"
    return f" {word}: {', '.join(named)}." if named else ""


def mark_at(axes: Axes, mark: Mark, x: float, y: float) -> None:
    axes.plot([x], [y], ms=6.5, mew=1.6, zorder=6, clip_on=False, **LOOK)
    if mark.number:
        axes.annotate(
            mark.number, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=SMALL, color=INK,
            path_effects=HALO, zorder=6, annotation_clip=False,
        )  # fmt: skip
