"""Numbers as people read them: three to four significant digits, and one number of decimals down a column."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollout_audit.errors import amount

__all__ = ["ABSENT", "amount", "column_of", "count", "fixed", "number", "percent"]

ABSENT = "–"
"""Stands for null"""
SIGNIFICANT = 3
MOST_DECIMALS = 6
FIXED_UP_TO = 1e6
FIXED_FROM = 1e-4


def number(value: float | int | None, digits: int = 4) -> str:
    """One figure by itself: 0.009648, 1.016, 7,966, 2.3e-07, and – for null."""
    if value is None:
        return ABSENT
    if isinstance(value, int):
        return count(value)
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not FIXED_FROM <= abs(value) < FIXED_UP_TO:
        return f"{value:.{digits - 1}g}"
    return f"{value:,.{max(0, digits - 1 - _magnitude(value))}f}"


def count(value: float | int | None) -> str:
    return ABSENT if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """A share as 12.3%; what is not quite nothing, or not quite all, does not read as 0% or 100%."""
    if value is None:
        return ABSENT
    if value in (0, 1):
        return f"{value:.0%}"
    text = f"{value:.1%}"
    return {"0.0%": "<0.1%", "100.0%": ">99.9%"}.get(text, text)


def fixed(value: float | int | None, decimals: int) -> str:
    """That many decimals, fewer above 10; what they would show as 0 in two digits."""
    if value is None:
        return ABSENT
    kept = max(0, decimals - max(0, _magnitude(value))) if value else decimals
    text = f"{value:,.{kept}f}" if abs(value) < FIXED_UP_TO else number(value, SIGNIFICANT)
    return number(value, 2) if value and not float(text.replace(",", "")) else text


def column_of(values: Sequence[float | int | None]) -> list[str]:
    """A column with the same decimals, so that it lines up; each figure by itself where scales differ."""
    sizes = [_magnitude(v) for v in values if v and math.isfinite(v)]
    if not sizes or all(isinstance(v, int | None) for v in values):
        return [number(v) for v in values]
    decimals = max(SIGNIFICANT - max(sizes) - (max(sizes) < 0), 1 - min(sizes), 0)
    if decimals > MOST_DECIMALS or max(sizes) >= 6 or max(sizes) - min(sizes) > 3:
        return [number(v) for v in values]
    return [ABSENT if v is None else f"{v:,.{decimals}f}" for v in values]


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value)))
