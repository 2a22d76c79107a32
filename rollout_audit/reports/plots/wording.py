"""Numbers and names as a picture says them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

__all__ = ["TITLE_LENGTH", "counted", "first_fitting", "percent", "plain", "power", "ratio", "short"]

TITLE_LENGTH = 90
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_UNKNOWN_GLYPH = "□"


def short(value: float | None, digits: int = 2) -> str:
    """A number in few digits: 0.0014, 17.8, 4.5e23."""
    if value is None or math.isnan(value):
        return "n/a"
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e5:
        return _fixed(value, digits)
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")


def _fixed(value: float, digits: int) -> str:
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}".replace("-", "−")


def ratio(value: float) -> str:
    """A ratio near 1 with three decimals."""
    return f"{value:.3f}" if 0.1 <= value < 10 else short(value, 3)


def percent(share: float) -> str:
    """A share of 1 as a percentage that is 0% or 100% only where the share is."""
    value = 100 * share
    if value in (0, 100):
        return f"{value:.0f}%"
    if value < 0.01:
        return "<0.01%"
    if value > 99.9:
        return ">99.9%"
    if value >= 99:
        return f"{math.floor(value * 10) / 10:.1f}%"
    return f"{value:.0f}%" if value >= 9.95 else f"{_fixed(value, 2)}%"


def counted(number: int, noun: str) -> str:
    """'1 token', '7,966 tokens'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def power(value: float, _: object = None) -> str:
    """A tick of a log axis: plain from 0.001 to 9,999, a power of ten beyond."""
    if value == 0 or 0.001 <= abs(value) < 10_000:
        return f"{value:,.6g}".replace("-", "−")
    exponent = round(math.log10(abs(value)))
    lead = round(value / 10.0**exponent) if abs(exponent) < 300 else 1
    factor = {1: "", -1: "−"}.get(lead, f"{lead}·")
    return f"{factor}10{str(exponent).translate(_SUPERSCRIPT)}"


def plain(text: str, limit: int = 28) -> str:
    """A name from a dump as one short line of glyphs that the font has."""
    line = "".join(c if c.isprintable() else " " for c in text)
    drawn = "".join(c if ord(c) in _glyphs() else _UNKNOWN_GLYPH for c in line)
    if len(drawn) <= limit:
        return drawn
    tail = (limit - 1) // 2
    return f"{drawn[: limit - 1 - tail]}…{drawn[-tail:]}"


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def first_fitting(titles: Iterable[str]) -> str:
    """The first title that is short enough; the last one cut where none is."""
    last = ""
    for last in titles:
        if len(last) <= TITLE_LENGTH:
            return last
    return f"{last[: TITLE_LENGTH - 1]}…"
