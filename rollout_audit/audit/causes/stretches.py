"""Rows with one stretch in which the two sides differ, and which side is off there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollout_audit.audit.causes.exhibit import Exhibit
from rollout_audit.audit.causes.kinds import UNLIKELY
from rollout_audit.audit.causes.sampled import BIG, CERTAIN, Flags

__all__ = ["Stretches", "stretches_of"]

EDGE_ROWS, EDGE_SHARE = 3, 0.05
"""So many rows, and such a share of them, must agree before an edge of the mask is called wrong"""
MOST = 0.33
"""Share of all big log-ratios that short stretches hold; those of a heavy tail stand alone, but for one in thirty"""
ONE_SIGN = 0.7
"""|Σd| over Σ|d|: near 1 where one side is off, some 1/√n where both are strange to the tokens"""

THROUGHOUT = 0.95
UNLIKE_OTHERS = 3.0
"""Factor of |d| over that of unlikely tokens elsewhere, each as a share of the lower log-prob"""


class Stretches(NamedTuple):
    """Of rows that have one each."""

    rows: Flags
    side: str | None
    """the column that is off; None: as for tokens that nobody sampled"""
    text: str
    """how many rows, where, how long, how the sides differ"""
    tokens: float
    """median length"""


def stretches_of(exhibit: Exhibit) -> Stretches | None:
    """Short ones count where many rows have one, and hardly anything else is off; of others only long ones."""
    kinds = exhibit.kinds
    rows = kinds.wide if _many(exhibit) else kinds.long
    if not rows.any():
        return None
    inside = kinds.inside & rows[exhibit.sample.row]
    outside = ~kinds.inside & (rows | ~kinds.flagged)[exhibit.sample.row]
    if not _unlike_others(exhibit, inside, outside):
        return None
    place, tokens = _place(exhibit, rows)
    side, why = _side(exhibit, inside, outside)
    text = (
        f"{int(rows.sum()):,} of {exhibit.sample.rows:,} rows have one stretch of |d| above {BIG:g} ({place} of the "
        f"response, some {tokens:.0f} tokens) and agree outside of it; {why}"
    )
    return Stretches(rows, side, text, tokens)


def _many(exhibit: Exhibit) -> bool:
    kinds, sample = exhibit.kinds, exhibit.sample
    wide = kinds.wide
    big = sample.big & (wide | ~kinds.flagged)[sample.row]
    most = (big & kinds.inside & wide[sample.row]).sum() >= MOST * big.sum()
    return bool(most and wide.sum() >= EDGE_ROWS and wide.mean() >= EDGE_SHARE)


def _unlike_others(exhibit: Exhibit, inside: Flags, outside: Flags) -> bool:
    """A temperature moves unlikely tokens everywhere, in proportion to their log-prob."""
    sample = exhibit.sample
    lower = np.minimum(sample.training, sample.rollout)
    moved = np.abs(sample.log_ratio) / np.maximum(-lower, 1e-9)
    others = moved[outside & (lower < UNLIKELY)]
    return len(others) == 0 or bool(np.median(moved[inside]) >= UNLIKE_OTHERS * np.median(others))


def _side(exhibit: Exhibit, inside: Flags, outside: Flags) -> tuple[str | None, str]:
    """The one that is off, and what speaks for it: the sides are strange to each other, or one lies off the other."""
    sample = exhibit.sample
    d = sample.log_ratio[inside]
    if abs(d.sum()) < ONE_SIGN * np.abs(d).sum():
        return None, "d has both signs there, as if neither side had sampled these tokens"
    sides = {exhibit.training: sample.training, exhibit.rollout: sample.rollout}
    for name, values in sides.items():
        if np.mean(values[inside] > CERTAIN) >= THROUGHOUT:
            return None, f"{name} is near 0 there, as for tokens that nobody sampled"
    moved = {name: abs(float(values[inside].mean() - values[outside].mean())) for name, values in sides.items()}
    off = max(moved, key=lambda name: moved[name])
    return off, f"d has one sign there, {off} is off (were the tokens not sampled, the mask would be too wide)"


def _place(exhibit: Exhibit, rows: Flags) -> tuple[str, float]:
    """Where most of them stand, and their median length."""
    sample, (first, last) = exhibit.sample, exhibit.kinds.stretch
    at_start = np.mean(first[rows] - sample.starts[rows] <= 2)
    at_end = np.mean(sample.last[rows] - last[rows] <= 2)
    place = "at the start" if at_start > 0.5 else "at the end" if at_end > 0.5 else "in the middle"
    return place, float(np.median(last[rows] - first[rows] + 1.0))
