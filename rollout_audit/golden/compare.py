"""Figures against those of a golden file: a verdict for each."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from rollout_audit.dumps.naming import natural_key
from rollout_audit.golden.figures import Figure, FigureKey
from rollout_audit.golden.tolerances import Tolerance, default_tolerance, is_counted

__all__ = ["EDGE_SENSITIVE", "VERDICTS", "Comparison", "Mask", "Verdict", "compare", "compare_masks", "rank"]

Number = float | int | None
Verdict = Literal["worse", "unmeasured", "better", "new", "same"]
VERDICTS: tuple[Verdict, ...] = ("worse", "unmeasured", "better", "new", "same")
"""Worst first"""
WHOLE = 1e-6
"""Of one token or sequence: more than the rounding of a share, less than any that is there"""
EDGE_SENSITIVE = "edge-sensitive"
OTHER_TOKENS = "as many, but other tokens"
OTHER_ROWS = "none either, but the responses or their masks are others"
LARGEST = int(sys.float_info.max)
LACKING = "not in the golden file"
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
        return self.verdict != "same" or (bool(self.note) and not self.is_null)

    @property
    def is_edge_sensitive(self) -> bool:
        """The same but for values within rounding of a threshold."""
        return self.verdict == "same" and self.note.startswith(EDGE_SENSITIVE)

    @property
    def is_null(self) -> bool:
        """Null for the reason that it was approved with, which is in the note."""
        return self.verdict == "same" and self.expected is None


class Mask(Protocol):
    """Which tokens a correction leaves, as a golden file and an audit tell it (`audit.masks.MaskDigest`)."""

    @property
    def digest(self) -> str: ...
    @property
    def removed(self) -> int: ...
    @property
    def edge(self) -> int: ...
    @property
    def beside_edge(self) -> str: ...


def compare(
    expected: Mapping[FigureKey, Figure],
    got: Mapping[FigureKey, Figure],
    tolerances: Mapping[str, Tolerance],
    *,
    whole: bool = True,
) -> list[Comparison]:
    """Hold each figure against what is expected of it, worst first.

    Args:
        expected: from the golden file; every one of them must be there and be a number, or null still where it was
            approved as null, with its reason.
        got: of the report; metrics and subjects that nothing is expected of are `new` where they have a value. One
            that is expected in another scope alone, as of a step that was not there, is `unmeasured`.
        tolerances: metric → what it may do; metrics without one get the default.
        whole: whether the golden file is known to hold all that was approved. Of one that does not, what it lacks
            may have been deleted: `unmeasured`.
    """
    rows = [_row(key, was, got.get(key, ABSENT), _of(key, tolerances)) for key, was in expected.items()]
    numbers = {key: figure.value for key, figure in got.items()}
    return sorted([*rows, *_unexpected(expected, numbers, tolerances, whole=whole)], key=rank)


def compare_masks(
    expected: Mapping[FigureKey, Mask],
    got: Mapping[FigureKey, Mask],
    tolerances: Mapping[str, Tolerance],
    *,
    whole: bool = True,
) -> list[Comparison]:
    """Hold the tokens that each correction leaves against those that are expected, worst first.

    Every token counts, but for those within rounding of a threshold. Fewer removed tokens are better, more are worse,
    others are worse; a tolerance, in tokens, looks at their number alone. Unexpected masks are as in `compare`.
    """
    rows = [_mask_row(key, was, got.get(key), _of(key, tolerances)) for key, was in expected.items()]
    numbers = {key: mask.removed for key, mask in got.items()}
    return sorted([*rows, *_unexpected(expected, numbers, tolerances, whole=whole)], key=rank)


def _unexpected(
    expected: Collection[FigureKey],
    got: Mapping[FigureKey, Number],
    tolerances: Mapping[str, Tolerance],
    *,
    whole: bool,
) -> Iterator[Comparison]:
    known = {(key.subject, key.metric) for key in expected}
    for key in (key for key in got if key not in expected):
        missing = not whole or (key.subject, key.metric) in known
        if got[key] is None and not missing:
            continue  # nothing expected, nothing measured
        verdict: Verdict = "unmeasured" if missing else "new"
        direction = _of(key, tolerances).direction
        yield Comparison(key, None, _measured(got[key]), None, None, direction, verdict, LACKING if missing else "")


def _mask_row(key: FigureKey, was: Mask, now: Mask | None, tolerance: Tolerance) -> Comparison:
    if now is None:
        note = f"now: {_value(ABSENT)}"
        return Comparison(key, was.removed, None, None, None, tolerance.direction, "unmeasured", note)
    if was.digest == now.digest and was.removed != now.removed:
        note = f"damaged golden file: the mask of that digest removes {now.removed}"
        return Comparison(key, was.removed, now.removed, None, None, tolerance.direction, "unmeasured", note)
    allowed = _allowed(tolerance, was.removed)
    difference, edge = now.removed - was.removed, max(was.edge, now.edge)
    verdict, note = _within(abs(difference) <= allowed) if allowed else (None, "")
    if was.digest == now.digest:
        verdict = "same"
    elif verdict is None and edge and was.beside_edge == now.beside_edge:
        verdict, note = "same", f"{EDGE_SENSITIVE}: other tokens only among {edge} within rounding of a threshold"
    elif verdict is None and difference:
        verdict = "worse" if _is_worse(was.removed, now.removed, tolerance.direction) else "better"
    elif verdict is None:
        verdict, note = "worse", OTHER_TOKENS if now.removed else OTHER_ROWS
    return Comparison(key, was.removed, now.removed, difference, allowed, tolerance.direction, verdict, note)


def _row(key: FigureKey, expected: Figure, got: Figure, tolerance: Tolerance) -> Comparison:
    was, now = _measured(expected.value), _measured(got.value)
    if expected.value is None and got.value is None and expected.reason and expected.reason == got.reason:
        return Comparison(key, None, None, None, None, tolerance.direction, "same", expected.reason)
    if was is None or now is None:
        sides = {"in the golden file": (was, expected), "now": (now, got)}
        note = "; ".join(f"{side}: {_value(figure)}" for side, (value, figure) in sides.items() if value is None)
        return Comparison(key, was, now, None, None, tolerance.direction, "unmeasured", note)
    allowed = _allowed(tolerance, was)
    difference = max(-sys.float_info.max, min(now - was, sys.float_info.max))
    exact = is_counted(key.name) and allowed == 0
    below = tolerance.direction == "above 0" and max(was, now) <= 0.0
    verdict, note = _count(was, now, got) if exact else _within(below or abs(difference) <= allowed)
    if verdict is None:
        verdict = "worse" if _is_worse(was, now, tolerance.direction) else "better"
    return Comparison(key, was, now, difference, allowed, tolerance.direction, verdict, note)


def _allowed(tolerance: Tolerance, was: float) -> float:
    """Finite, as the difference is: no JSON holds more."""
    return min(tolerance.atol + tolerance.rtol * abs(was), sys.float_info.max)


def _within(holds: bool) -> tuple[Verdict | None, str]:  # noqa: FBT001
    return ("same" if holds else None), ""


def _count(was: float, now: float, got: Figure) -> tuple[Verdict | None, str]:
    """Whole numbers must agree, but for those within rounding of the threshold that counts them.

    How many these are is counted from the data: a golden file may be edited.
    """
    units = abs(now - was) * got.size
    if units <= WHOLE:
        return "same", ""
    if units <= got.edge + WHOLE:
        return "same", f"{EDGE_SENSITIVE}: {units:.0f} of {got.edge} within rounding of the threshold"
    return None, ""


_WORSE: Mapping[str, Callable[[float, float], bool]] = {
    "higher": lambda was, now: now > was,
    "lower": lambda was, now: now < was,
    "above 0": lambda was, now: max(now, 0.0) > max(was, 0.0),
    "away from 0": lambda was, now: abs(now) >= abs(was),
    "away from 1": lambda was, now: abs(now - 1.0) >= abs(was - 1.0),
    "neither": lambda was, now: True,  # noqa: ARG005
}


def _is_worse(was: float, now: float, direction: str) -> bool:
    return _WORSE[direction](was, now)


def _measured(value: Number) -> Number:
    return value if value is not None and not _is_past_float(value) and math.isfinite(value) else None


def _is_past_float(value: float | int) -> bool:
    """Whole numbers of any length stand in JSON."""
    return isinstance(value, int) and abs(value) > LARGEST


def _value(figure: Figure) -> str:
    if figure.value is None:
        return f"null ({figure.reason})" if figure.reason else "null"
    return "past the largest float64" if _is_past_float(figure.value) else str(figure.value)


def _of(key: FigureKey, tolerances: Mapping[str, Tolerance]) -> Tolerance:
    return tolerances[key.name] if key.name in tolerances else default_tolerance(key.name)


def rank(row: Comparison) -> tuple[object, ...]:
    """By verdict, then how far past the tolerance, then by name."""
    past = 0.0 if row.difference is None else abs(row.difference) / (row.tolerance or _smallest(row))
    return VERDICTS.index(row.verdict), -past, natural_key(str(row.key))


def _smallest(row: Comparison) -> float:
    return 1e-6 * max(abs(row.expected or 0.0), abs(row.got or 0.0), 1e-300)
