"""Titles of the figures over steps: each claim is checked on the numbers before it is made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit.report import Report
from rollout_audit.reports.plots.wording import counted, first_fitting, short
from rollout_audit.reports.plots.zones import worst_zone

__all__ = ["EQUAL", "limit_story", "rank_correlation", "step_story"]

Array = NDArray[np.float64]

EQUAL = "The two policies agree bit for bit"
NO_BREAK = "\u00a0"
"""A space at which a title is not wrapped"""
CLEAR_CORRELATION = 0.6
CLEAR_FACTOR = 1.5


def step_story(report: Report) -> str:
    """What k3 does over the steps."""
    k3, number = _measured(report, "kl_k3")
    if not len(k3):
        return "The mismatch could not be computed at any step"
    if report.overall.get("log_prob_diff_abs_max") == 0:
        return f"{EQUAL} at every step"
    ages = [step.policy_age for step in report.steps if step.metrics.get("kl_k3") is not None]
    recorded = np.array([np.nan if age is None else age for age in ages], dtype=np.float64)
    return first_fitting([_age_story(k3, recorded) or _trend(k3) or _limit_over_steps(k3, number)])


def _measured(report: Report, metric: str) -> tuple[Array, list[int]]:
    found = [(v, step.step) for step in report.steps if (v := step.metrics.get(metric)) is not None]
    return np.array([v for v, _ in found], dtype=np.float64), [step for _, step in found]


def _age_story(k3: Array, ages: Array) -> str | None:
    """Only where k3 rises with the age over all steps."""
    if np.isnan(ages).any() or rank_correlation(ages, k3) < CLEAR_CORRELATION:
        return None
    young, old = float(np.median(k3[ages == ages.min()])), float(np.median(k3[ages == ages.max()]))
    if old < CLEAR_FACTOR * young:
        return None
    first = _first_cycle(k3, ages)
    if first is not None:
        start, end, after = (short(x) for x in first)
        change = f"k3 {start} → {end}".replace(" ", NO_BREAK)
        head = f"Mismatch grows with the sampler's age: {change}"
        return first_fitting([f"{head}, back to {after} after the refresh", f"{head}, {after} after the refresh"])
    return f"Mismatch grows with the sampler's age: median k3 {short(young)} when newest, {short(old)} when oldest"


def _first_cycle(k3: Array, ages: Array) -> tuple[float, float, float] | None:
    """k3 at the start, before the first refresh and after it, where it rises and falls back."""
    drops = np.flatnonzero(np.diff(ages) < 0)
    if not len(drops) or drops[0] == 0:
        return None
    start, end, after = float(k3[0]), float(k3[drops[0]]), float(k3[drops[0] + 1])
    rises_and_falls = end > CLEAR_FACTOR * start and end > CLEAR_FACTOR * after
    return (start, end, after) if rises_and_falls else None


def _trend(k3: Array) -> str | None:
    if len(k3) < 4:
        return None
    part = max(1, len(k3) // 4)
    early, late = float(np.median(k3[:part])), float(np.median(k3[-part:]))
    correlation = rank_correlation(np.arange(len(k3), dtype=np.float64), k3)
    if correlation > CLEAR_CORRELATION and late > CLEAR_FACTOR * early:
        return f"Mismatch grows over {len(k3):,} steps: k3 from {short(early)} to {short(late)}"
    if correlation < -CLEAR_CORRELATION and early > CLEAR_FACTOR * late:
        return f"Mismatch shrinks over {len(k3):,} steps: k3 from {short(early)} to {short(late)}"
    return None


def _limit_over_steps(k3: Array, numbers: Sequence[int]) -> str:
    worst = int(np.argmax(k3))
    peak = f"highest at step {numbers[worst]} ({short(float(k3[worst]))})"
    past = sum(worst_zone("kl_k3", float(x)) is not None for x in k3)
    if past:
        return f"k3 is past its limit at {past:,} of {counted(len(k3), 'step')}, {peak}"
    return f"k3 stays within its limits at all {len(k3):,} steps, {peak}"


def limit_story(values: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Which of the drawn figures are past a limit; several values of a metric count by their worst."""
    measured = [(metric, x) for metric, group in values for x in group if not np.isnan(x)]
    past = [(metric, x, zone) for metric, x in measured if (zone := worst_zone(metric, x)) is not None]
    broken = {metric: x for metric, x, zone in sorted(past, key=lambda p: p[2].severity == "critical")}
    names = [f"{metric}{NO_BREAK}{short(x)}" for metric, x in reversed(broken.items())]
    total = len({metric for metric, _ in measured})
    if not names:
        return f"All {total} figures are within their health limits" if total else "No figure could be computed"
    head = f"{len(names)} of {total} figures past a health limit: "
    return first_fitting(
        [head + ", ".join(names[:n]) + ("" if n == len(names) else " …") for n in range(len(names), 0, -1)]
    )


def rank_correlation(x: Array, y: Array) -> float:
    """Spearman's; 0 where one side does not vary."""
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(_ranks(x), _ranks(y))[0, 1])


def _ranks(x: Array) -> Array:
    """Ranks, ties averaged."""
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: Array = last - (counts - 1) / 2
    return mean[place]
