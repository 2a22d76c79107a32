"""Sampler and trainer with different weights: stale ones, several versions at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rollout_audit.audit.causes.exhibit import Exhibit, in_words, known
from rollout_audit.audit.causes.model import Hit
from rollout_audit.audit.causes.noise import TAIL_SHARE
from rollout_audit.audit.causes.sampled import Array, Flags, Ints

__all__ = ["mixed_versions", "stale_weights"]

GROWS = 1.3
"""Factor between typical rows; two halves of one sound recording differ by a tenth"""
SURE = 4.0
SURE_OF_STEPS = 6.0
"""More where no version backs it, because every split of the steps is tried"""
LEAST_ROWS = 8
CHANGES = 1.5
TOKEN_SPREAD = 1.2
"""Standard deviation of |d| over its mean, of one token"""
LEAST_TOKENS = 100
STEPS_NAMED = 6


class _Contrast(NamedTuple):
    """How far typical rows of one group lie above those of another."""

    factor: float
    z: float


def _contrast(exhibit: Exhibit, low: Flags | Ints, high: Flags | Ints) -> _Contrast:
    """Of two groups of rows, by medians of log mean |d|: a few wild rows do not count."""
    medians, errors = zip(*(_typical(exhibit, rows) for rows in (low, high)), strict=True)
    return _Contrast(float(np.exp(medians[1] - medians[0])), (medians[1] - medians[0]) / float(np.hypot(*errors)))


def _typical(exhibit: Exhibit, rows: Flags | Ints) -> tuple[float, float]:
    """Median of log mean |d| and its standard error: from the spread of the rows, and no less than the tokens allow."""
    gaps, tokens = exhibit.row_gap[rows], exhibit.table["valid_tokens"][rows].sum()
    median = float(np.median(gaps))
    spread = 1.4826 * float(np.median(np.abs(gaps - median)))
    return median, max(1.2533 * spread / np.sqrt(len(gaps)), TOKEN_SPREAD / np.sqrt(tokens))


def stale_weights(exhibit: Exhibit) -> Hit | None:
    """The gap grows with the recorded age; else with the step, or at a step; else there is only its size to go by.

    Where ages are recorded and it does not grow with them, the sampler's weights are not what is stale.
    """
    if not exhibit.tokens:
        return None
    ages = _ages(exhibit)
    if len(np.unique(ages[np.isfinite(ages)])) > 1:
        return _by_age(exhibit)
    return _by_age(exhibit) or _by_step(exhibit) or _by_size(exhibit)


def _ages(exhibit: Exhibit) -> Array:
    ages = exhibit.table.get("policy_age")
    return np.full(len(exhibit.table["step"]), np.nan) if ages is None else ages


def _by_age(exhibit: Exhibit) -> Hit | None:
    ages = _ages(exhibit)
    recorded = np.unique(ages[np.isfinite(ages)])
    groups = [age for age in recorded if np.sum(ages == age) >= LEAST_ROWS]
    if len(groups) < 2:
        return None
    young, old = groups[0], groups[-1]
    found = _contrast(exhibit, ages == young, ages == old)
    if found.factor < GROWS or found.z < SURE:
        return None
    sizes = ", ".join(f"{_mean_gap(exhibit, ages == age):.3g} at age {age:g}" for age in groups[:STEPS_NAMED])
    text = f"mean |d| grows with the age of the sampler's weights: {sizes} (typical rows ×{found.factor:.2g})"
    figures = {"factor": found.factor, "z": found.z, "youngest": young, "oldest": old}
    return Hit(text, 0.95, figures, harmless=not exhibit.past_limits)


def _by_step(exhibit: Exhibit) -> Hit | None:
    steps = exhibit.steps
    if len(steps) < 2:
        return None
    step = exhibit.table["step"]
    typical = np.array([np.median(exhibit.row_gap[rows]) for rows in exhibit.rows_of_steps])
    change = _change_point(exhibit, typical)
    if change is None:
        return _uneven_steps(exhibit, typical)
    at, found = change
    before, after = (_mean_gap(exhibit, side) for side in (step < at, step >= at))
    text = (
        f"mean |d| is {before:.3g} before step {at} and {after:.3g} from it on "
        f"(typical rows ×{found.factor:.2g}): step {at} is the change point"
    )
    figures = {"change_point": at, "factor": found.factor, "z": found.z}
    return Hit(text, 0.75, figures, harmless=not exhibit.past_limits)


def _change_point(exhibit: Exhibit, typical: Array) -> tuple[int, _Contrast] | None:
    """The split that leaves least variance among the steps of either side, if every later step lies above."""
    cuts = range(1, len(typical))
    left = min(cuts, key=lambda c: float(np.var(typical[:c]) * c + np.var(typical[c:]) * (len(typical) - c)))
    at, step = int(exhibit.steps[left]), exhibit.table["step"]
    found = _contrast(exhibit, step < at, step >= at)
    apart = typical[left:].min() > typical[:left].max()
    return (at, found) if apart and found.factor >= CHANGES and found.z >= SURE_OF_STEPS else None


def _uneven_steps(exhibit: Exhibit, typical: Array) -> Hit | None:
    """A saw-tooth: the gap grows and falls back."""
    step, (low, high) = exhibit.table["step"], exhibit.steps[[typical.argmin(), typical.argmax()]]
    groups = step == low, step == high
    found = _contrast(exhibit, *groups)
    if min(g.sum() for g in groups) < LEAST_ROWS or found.factor < CHANGES or found.z < SURE_OF_STEPS:
        return None
    sizes = ", ".join(f"{_mean_gap(exhibit, step == s):.3g}" for s in exhibit.steps[: 2 * STEPS_NAMED])
    text = f"mean |d| differs from step to step ({sizes}): least in step {low}, most in step {high}"
    figures = {"factor": found.factor, "z": found.z, "least_step": int(low), "most_step": int(high)}
    return Hit(text, 0.6, figures, harmless=not exhibit.past_limits)


def _by_size(exhibit: Exhibit) -> Hit | None:
    """Even noise past the limit: wider than precision makes it."""
    k3 = exhibit.pooled.get("kl_k3")
    even = int(exhibit.clean.sum()) >= LEAST_TOKENS and exhibit.tail_share < TAIL_SHARE
    if k3 is None or k3 <= 0.01 or not even or exhibit.kinds.flagged.any() or exhibit.appended.any():
        return None
    ages = _ages(exhibit)
    age = float(np.nanmean(ages)) if np.isfinite(ages).any() else 0.0
    old = f"; the sampler's weights are {age:.2g} updates old" if age > 0 else "; no version says how old they are"
    text = (
        f"the log-ratios are even noise of standard deviation {_spread(exhibit):.2g} (k3 {in_words(k3)}), wider than "
        f"precision makes it{old}"
    )
    figures = known({"kl_k3": k3, "spread": _spread(exhibit), "age": age})
    return Hit(text, 0.6 if age > 0 else 0.35, figures, by_elimination=True)


def mixed_versions(exhibit: Exhibit) -> Hit | None:
    """Rows of one step, or tokens of one row, that were sampled by several versions of the weights."""
    oldest = exhibit.table.get("policy_version")
    if oldest is None:
        return None
    newest = exhibit.table.get("newest_version", oldest)
    spread = newest > oldest
    by_step = zip(exhibit.steps.tolist(), exhibit.rows_of_steps, strict=True)
    mixed = {step: rows for step, rows in by_step if _several(oldest[rows]) or spread[rows].any()}
    if not mixed:
        return None
    contrasts = [_version_contrast(exhibit, rows, oldest) for rows in mixed.values() if _several(oldest[rows])]
    worst = max(contrasts, key=lambda c: c.z, default=_Contrast(1.0, 0.0))
    matters = worst.factor >= GROWS and worst.z >= SURE
    text = "; ".join(filter(None, (_where_mixed(exhibit, mixed, oldest), _rows_spread(exhibit, oldest, newest))))
    alike = "their rows are alike" if contrasts else "no rows of an older version to hold against newer ones"
    rest = f"rows of the oldest are ×{worst.factor:.2g} further off" if matters else alike
    figures: dict[str, float | int] = {"steps": len(mixed), "factor": worst.factor, "z": worst.z}
    if spread.any():
        figures["rows_of_several"] = int(spread.sum())
    harmless = not (matters and exhibit.past_limits)
    return Hit(f"{text}; {rest}", 0.95 if matters else 0.6, figures, harmless=harmless)


def _several(versions: Array) -> bool:
    return len(np.unique(versions[np.isfinite(versions)])) > 1


def _where_mixed(exhibit: Exhibit, mixed: Mapping[int, Ints], oldest: Array) -> str:
    steps = [step for step, rows in mixed.items() if _several(oldest[rows])]
    if not steps:
        return ""
    return f"{len(steps)} of {len(exhibit.steps)} steps hold rows of several policy versions (first: step {min(steps)})"


def _rows_spread(exhibit: Exhibit, oldest: Array, newest: Array) -> str:
    """What is to be said of rows that were begun by one version and finished by another."""
    spread = newest > oldest
    if not spread.any():
        return ""
    first, most = int(exhibit.table["step"][spread].min()), int((newest - oldest)[spread].max())
    return (
        f"{int(spread.sum()):,} of {len(oldest):,} rows hold tokens of several policy versions, up to {most} apart "
        f"(first: step {first})"
    )


def _version_contrast(exhibit: Exhibit, rows: Ints, versions: Array) -> _Contrast:
    """The oldest version of a step against the newest; `rows` are those of the step."""
    its = versions[rows]
    return _contrast(exhibit, rows[its == np.nanmax(its)], rows[its == np.nanmin(its)])


def _mean_gap(exhibit: Exhibit, rows: Flags) -> float:
    return float(exhibit.table["sum_abs_d"][rows].sum() / max(exhibit.table["valid_tokens"][rows].sum(), 1.0))


def _spread(exhibit: Exhibit) -> float:
    return float(exhibit.clean_log_ratio.std())
