"""What must not be averaged: checks of one chunk, cheap where nothing is wrong.

The clean path is a handful of reductions a column. Only where one of them is out of bounds are places looked
up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_audit.dumps.chunk import Severity
from rollout_audit.errors import amount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

__all__ = ["KINDS", "LIKELY_CAUSE", "Fault", "TokenColumn", "check_tokens", "constant_tails", "without_rows"]

KINDS: dict[str, tuple[Severity, str]] = {
    "nan": ("error", "{column} is NaN under mask 1"),
    "infinite": ("error", "{column} is {detail} under mask 1"),
    "null": ("error", "{column} is null under mask 1"),
    "missing_row": ("error", "{column} has no list at all (a null row, not an empty response)"),
    "length_mismatch": ("error", "lists of one row differ in length ({detail})"),
    "mask_value": ("error", "{column} holds {detail} where only 0 and 1 are allowed"),
    "step_value": ("error", "step is {detail}, not a whole number that int64 holds"),
    "positive_log_prob": ("error", "{column} is {detail}, above 0.5: not a log-probability"),
    "slightly_positive": ("warning", "{column} is {detail}, above 0 (a bf16 artefact?)"),
    "placeholder": ("error", "{column} is the placeholder {detail} under mask 1"),
    "constant_rollout": ("error", "the rollout log-prob is 0.0 over the whole response while {detail} is not"),
    "constant_trainer": ("error", "{column} is 0.0 over the whole response while {detail} is not (no forward pass?)"),
    "zero_placeholder": ("error", "{column} is 0.0 in a run under mask 1 while {detail} is below -1"),
    "constant_tail": (
        "warning",
        "no response mask, and rows end in constant values in both columns (padding?)",
    ),
    "version_value": ("warning", "{column} is {detail}, not a version number: such rows have no version"),
    "token_id_value": ("warning", "{column} is {detail} under mask 1, not a token id: unknown (-1)"),
    "step_missing": ("info", "{rows} without a step {take} the file's step {detail}"),
    "ids_missing": ("info", "{column} has no list: the ids of the row are unknown (-1)"),
    "mask_missing": ("info", "{column} is null: all tokens of the row count as the response"),
}
"""kind → severity and message; `{detail}` is a value or a name of the first occurrence, `{rows}` says how many"""

LIKELY_CAUSE: dict[str, str] = {
    "placeholder": "placeholder",
    "zero_placeholder": "placeholder",
    "nan": "broken_rows",
    "infinite": "broken_rows",
    "null": "broken_rows",
    "missing_row": "broken_rows",
    "constant_rollout": "broken_rows",
    "constant_trainer": "broken_rows",
}
"""kind → the cause that it speaks for; the other kinds say themselves what is wrong"""

_ALWAYS = (-9999.0, -99999.0, -1e9, -1e10, float(np.finfo(np.float32).min))


def _stored_forms(value: float) -> set[float]:
    """The value as float64, float32, float16 and bfloat16 hold it, infinite ones left out."""
    with np.errstate(over="ignore"):
        single, half = np.float32(value), np.float16(value)
    bits = np.array([single]).view(np.uint32)
    brain = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)[0]
    return {float(x) for x in (value, single, half, brain) if np.isfinite(x)}


_SENTINELS: NDArray[np.float64] = np.array(sorted({1.0}.union(*map(_stored_forms, _ALWAYS))))
"""What is a placeholder wherever it stands under mask 1."""
_FLOOR = -9900.0
"""Above every placeholder of `_ALWAYS`, also when rounded to bfloat16."""
_MAX_ARTEFACT = 0.5
_RUN_GAP = 0.5
_MINUS_ONES = 3
"""A run of so many: two tokens that both happen to be −1 are real."""
_MIN_CONSTANT = 4
"""valid tokens of a row that is 0.0 throughout"""
_CONSTANT_OTHER = (-0.4, -0.1)
"""What some token and the mean of the other side must be below: tokens that are all but certain are 0.0 too."""
_LONE_GAPS = (5.0, 20.0)
"""A lone −1 is at odds with the other side between these; past 20 the pair is an extreme ratio of its own."""


@dataclass(frozen=True, slots=True)
class Fault:
    """All occurrences of one kind in one column of one chunk."""

    kind: str
    column: str
    rows: NDArray[np.int64]
    """faulty rows, ascending; in the chunk, or in the file once logged"""
    row: int
    position: int | None
    count: int
    detail: str = ""

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind][0]

    @property
    def message(self) -> str:
        take = "takes" if self.count == 1 else "take"
        return KINDS[self.kind][1].format(
            column=self.column, detail=self.detail, rows=amount(self.count, "row"), take=take
        )


@dataclass(frozen=True, slots=True)
class TokenColumn:
    """A log-prob column of a chunk, its null elements (NaN in `values`), the column it is compared with."""

    name: str
    values: NDArray[np.floating[Any]]
    """[tokens]"""
    nulls: NDArray[np.int64]
    other: str | None


def rows_of(places: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row that owns each place of the packed tokens."""
    return np.searchsorted(offsets, places, side="right").astype(np.int64) - 1


def fault_at(kind: str, column: str, places: NDArray[np.int64], offsets: NDArray[np.int64], detail: str = "") -> Fault:
    """The fault at these places (ascending, at least one) of the packed tokens."""
    rows = rows_of(places, offsets)
    return Fault(kind, column, np.unique(rows), int(rows[0]), int(places[0] - offsets[rows[0]]), len(places), detail)


def check_tokens(
    columns: Mapping[str, TokenColumn], mask: NDArray[np.bool_], offsets: NDArray[np.int64]
) -> Iterator[Fault]:
    """Faults of the values under mask 1, in every log-prob column.

    Args:
        columns: by field name; `other` names the field that a placeholder is held against.
        mask: [tokens]
        offsets: [rows + 1]
    """
    if not len(mask):
        return
    for column in columns.values():
        other = columns[column.other].values if column.other else None
        yield from _check_range(column, mask, offsets)
        if other is not None:
            constant = _constant_rows(column.values, other, mask, offsets)
            yield from _constant_faults(column, constant)
            rest = without_rows(mask, constant, offsets)
            yield from _check_zeros(column, other, rest, offsets)
            yield from _check_minus_one(column, other, mask, offsets)


def _check_range(column: TokenColumn, mask: NDArray[np.bool_], offsets: NDArray[np.int64]) -> Iterator[Fault]:
    values = column.values
    if values.min() > _FLOOR and values.max() <= 0:  # False with a NaN
        return
    places = np.flatnonzero(mask & ~((values > _FLOOR) & (values <= 0)))
    if not len(places):
        return
    found = values[places].astype(np.float64)
    null = np.isin(places, column.nulls)
    for kind, applies in _RANGE_TESTS:
        hit = applies(found, null)
        if hit.any():
            detail = _detail(kind, found[hit])
            yield fault_at(kind, column.name, places[hit], offsets, detail)


_RANGE_TESTS: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("null", lambda _, null: null),
    ("nan", lambda x, null: np.isnan(x) & ~null),
    ("infinite", lambda x, _: np.isinf(x)),
    ("placeholder", lambda x, _: np.isin(x, _SENTINELS)),
    ("positive_log_prob", lambda x, _: (x > _MAX_ARTEFACT) & (x != 1.0) & np.isfinite(x)),
    ("slightly_positive", lambda x, _: (x > 0) & (x <= _MAX_ARTEFACT)),
)


def _detail(kind: str, found: NDArray[np.float64]) -> str:
    value = found.max() if kind in {"positive_log_prob", "slightly_positive"} else found[0]
    prefix = "up to " if len(found) > 1 and kind in {"positive_log_prob", "slightly_positive"} else ""
    return f"{prefix}{value:.9g}"


def _constant_rows(
    values: NDArray[np.floating[Any]],
    other: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_],
    offsets: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Rows whose every valid token is 0.0 while the other side is clearly not certain."""
    rows = np.flatnonzero(np.diff(offsets) >= _MIN_CONSTANT)
    first, last = offsets[rows], offsets[rows + 1] - 1
    at_both_ends = ((values[first] == 0) | ~mask[first]) & ((values[last] == 0) | ~mask[last])
    rows = rows[at_both_ends]  # cheap: few are 0.0 at both ends
    return np.array([row for row in rows if _is_constant(values, other, mask, *offsets[row : row + 2])], np.int64)


def _is_constant(
    values: NDArray[np.floating[Any]],
    other: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_],
    start: int,
    end: int,
) -> bool:
    valid = mask[start:end]
    if values[start:end][valid].any():
        return False
    compared = other[start:end][valid].astype(np.float64)
    lowest, mean = _CONSTANT_OTHER
    return len(compared) >= _MIN_CONSTANT and bool(compared.min() < lowest and compared.mean() < mean)


def _constant_faults(column: TokenColumn, rows: NDArray[np.int64]) -> Iterator[Fault]:
    if len(rows):
        kind = "constant_rollout" if column.name == "rollout_log_probs" else "constant_trainer"
        yield Fault(kind, column.name, rows, int(rows[0]), None, len(rows), column.other or "")


def without_rows(mask: NDArray[np.bool_], rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The mask with 0 on these rows."""
    if not len(rows):
        return mask
    out = np.zeros(len(offsets) - 1, np.bool_)
    out[rows] = True
    return mask & ~np.repeat(out, np.diff(offsets))


def _check_zeros(
    column: TokenColumn,
    other: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_],
    offsets: NDArray[np.int64],
) -> Iterator[Fault]:
    places = np.flatnonzero(column.values == 0)
    places = places[mask[places] & (other[places] < -1)]
    if not len(places):
        return
    chosen = places[_in_runs(places, offsets, 2)]
    rest = np.setdiff1d(places, chosen, assume_unique=True)
    whole = [_zero_row(column.values, mask, offsets, row) for row in np.unique(rows_of(rest, offsets))]
    chosen = np.unique(np.concatenate([chosen, *whole]))
    if len(chosen):
        yield fault_at("zero_placeholder", column.name, chosen, offsets, column.other or "")


def _zero_row(
    values: NDArray[np.floating[Any]], mask: NDArray[np.bool_], offsets: NDArray[np.int64], row: int
) -> NDArray[np.int64]:
    """The valid places of a row if there are two or more and all are 0.0: a forward pass that was skipped."""
    start, end = int(offsets[row]), int(offsets[row + 1])
    places: NDArray[np.int64] = np.flatnonzero(mask[start:end]) + start
    skipped = len(places) > 1 and not values[places].any()
    return places if skipped else places[:0]


def _check_minus_one(
    column: TokenColumn, other: NDArray[np.floating[Any]], mask: NDArray[np.bool_], offsets: NDArray[np.int64]
) -> Iterator[Fault]:
    places = np.flatnonzero(column.values == -1)
    places = places[mask[places]]
    if not len(places):
        return
    gap = np.abs(other[places].astype(np.float64) + 1.0)
    apart = places[gap > _RUN_GAP]
    runs = apart[_in_runs(apart, offsets, _MINUS_ONES)]
    low, high = _LONE_GAPS
    near = places[(gap > _RUN_GAP) & (gap <= high)]
    lone = np.union1d(places[(gap > low) & (gap <= high)], near[_in_company(near, offsets)])
    if len(lone) and _is_coarse(column.values[mask]):
        lone = lone[:0]  # on a half-precision grid −1 is an ordinary value
    chosen = np.union1d(runs, lone)
    if len(chosen):
        yield fault_at("placeholder", column.name, chosen, offsets, "-1")


def _in_runs(places: NDArray[np.int64], offsets: NDArray[np.int64], least: int) -> NDArray[np.bool_]:
    """Which of the ascending places stand among `least` or more neighbours in the same row."""
    if not len(places):
        return np.zeros(0, np.bool_)
    apart = (np.diff(places) != 1) | (np.diff(rows_of(places, offsets)) != 0)
    run = np.concatenate(([0], np.cumsum(apart)))
    return np.asarray(np.bincount(run)[run] >= least)


def _in_company(places: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the places share their row with as many as make a run: a real log-prob is −1 once in ten million."""
    rows = rows_of(places, offsets)
    return np.asarray(np.bincount(rows, minlength=len(offsets))[rows] >= _MINUS_ONES)


def _is_coarse(values: NDArray[np.floating[Any]]) -> bool:
    """Whether float16 or bfloat16 could hold every value."""
    single = values.astype(np.float32)
    if not np.array_equal(single, values):
        return False
    on_brain_grid = not np.any(single.view(np.uint32) & 0xFFFF)
    with np.errstate(over="ignore"):
        return on_brain_grid or bool(np.array_equal(single.astype(np.float16).astype(np.float32), single))


def constant_tails(columns: Mapping[str, TokenColumn], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows whose last two tokens are equal in the rollout's column and in the one it is compared with."""
    last = offsets[1:] - 1
    rows = np.flatnonzero(np.diff(offsets) > 1)
    for name in ("rollout_log_probs", columns["rollout_log_probs"].other):
        if name:
            values = columns[name].values
            rows = rows[values[last[rows]] == values[last[rows] - 1]]
    return rows.astype(np.int64)
