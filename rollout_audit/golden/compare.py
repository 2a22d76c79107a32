"""Figures against those of a golden file: a verdict for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from rollout_audit.dumps.naming import natural_key
from rollout_audit.golden.figures import Figure, FigureKey
from rollout_audit.golden.tolerances import Tolerance, default_tolerance, is_counted

__all__ = ["VERDICTS", "Comparison", "Verdict", "compare"]

Number = float | int | None
Verdict = Literal["worse", "unmeasured", "better", "new", "same"]
VERDICTS: tuple[Verdict, ...] = ("worse", "unmeasured", "better", "new", "same")
"""Worst first"""
WHOLE = 1e-6
"""Of one token or sequence: more than the rounding of a share, less than any that is there"""
ABSENT = Figure(None, "no longer there")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure: what it was, what it is, how far it may move."""

    key: FigureKey
    expected: Number
    got: Number
    difference: float | None
    """got − expected"""
    tolerance: float | None
    """largest |difference| that passes; 0 for a count, null where nothing is compared"""
    direction: str
    """which way is worse"""
    verdict: Verdict
    note: str = ""

    @property
    def failed(self) -> bool:
        return self.verdict in ("worse", "unmeasured")

    @property
    def changed(self) -> bool:
        return self.verdict != "same" or bool(self.note)


def compare(
    expected: Mapping[FigureKey, Figure],
    got: Mapping[FigureKey, Figure],
    tolerances: Mapping[str, Tolerance],
    recorded: Collection[str] = (),
) -> list[Comparison]:
    """Hold each figure against what is expected of it, worst first.

    Args:
        expected: from the golden file; every one of them must be there and be a number.
        got: of the report; metrics and subjects that nothing is expected of are `new`, unless they have no value
            either. A figure whose metric the golden file has in another scope is missing from it: `unmeasured`.
        tolerances: metric → what it may do; metrics without one get the default.
        recorded: metrics that the golden file was made with: one of them that a subject of its lacks is missing too.
    """
    added = [key for key, figure in got.items() if key not in expected and figure.value is not None]
    rows = [_row(key, was, got.get(key, ABSENT), _of(key, tolerances)) for key, was in expected.items()]
    known, subjects = {(key.subject, key.metric) for key in expected}, {key.subject for key in expected}
    for key in added:
        direction, value = _of(key, tolerances).direction, got[key].value
        if (key.subject, key.metric) in known or (key.subject in subjects and key.name in recorded):
            rows.append(Comparison(key, None, value, None, None, direction, "unmeasured", "not in the golden file"))
        else:
            rows.append(Comparison(key, None, value, None, None, direction, "new"))
    return sorted(rows, key=_rank)


def _row(key: FigureKey, expected: Figure, got: Figure, tolerance: Tolerance) -> Comparison:
    was, now = _measured(expected.value), _measured(got.value)
    if was is None or now is None:
        side = f"in the golden file: {_value(expected)}" if was is None else f"now: {_value(got)}"
        return Comparison(key, was, now, None, None, tolerance.direction, "unmeasured", side)
    allowed = tolerance.atol + tolerance.rtol * abs(was)
    difference = now - was
    exact = is_counted(key.name) and allowed == 0
    verdict, note = _count(was, now, expected, got) if exact else _within(abs(difference) <= allowed)
    if verdict is None:
        verdict = "worse" if _is_worse(was, now, tolerance.direction) else "better"
    return Comparison(key, was, now, difference, allowed, tolerance.direction, verdict, note)


def _within(holds: bool) -> tuple[Verdict | None, str]:  # noqa: FBT001
    return ("same" if holds else None), ""


def _count(was: float, now: float, expected: Figure, got: Figure) -> tuple[Verdict | None, str]:
    """Whole numbers must agree, but for those within rounding of the threshold that counts them."""
    units, edge = abs(now - was) * got.size, max(expected.edge, got.edge)
    if units <= WHOLE:
        return "same", ""
    if units <= edge + WHOLE:
        return "same", f"edge-sensitive: {units:.0f} of {edge} within rounding of the threshold"
    return None, ""


_WORSE: Mapping[str, Callable[[float, float], bool]] = {
    "higher": lambda was, now: now > was,
    "lower": lambda was, now: now < was,
    "away from 0": lambda was, now: abs(now) >= abs(was),
    "away from 1": lambda was, now: abs(now - 1.0) >= abs(was - 1.0),
    "neither": lambda was, now: True,  # noqa: ARG005
}


def _is_worse(was: float, now: float, direction: str) -> bool:
    return _WORSE[direction](was, now)


def _measured(value: Number) -> Number:
    return value if value is not None and math.isfinite(value) else None


def _value(figure: Figure) -> str:
    if figure.value is None:
        return f"null ({figure.reason})" if figure.reason else "null"
    return str(figure.value)


def _of(key: FigureKey, tolerances: Mapping[str, Tolerance]) -> Tolerance:
    return tolerances[key.name] if key.name in tolerances else default_tolerance(key.name)


def _rank(row: Comparison) -> tuple[object, ...]:
    """By verdict, then how far past the tolerance, then by name."""
    past = 0.0 if row.difference is None else abs(row.difference) / (row.tolerance or _smallest(row))
    return VERDICTS.index(row.verdict), -past, natural_key(str(row.key))


def _smallest(row: Comparison) -> float:
    return 1e-6 * max(abs(row.expected or 0.0), abs(row.got or 0.0), 1e-300)
