"""One value a row, whatever a trainer made of it: a number, a text or a list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_audit.dumps.columns import Batch, Ragged, Scalars, as_wide, no_rows, offsets_of
from rollout_audit.dumps.naming import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = [
    "ROW_FIELDS",
    "NotANumberError",
    "WholeNumbers",
    "as_names",
    "as_reals",
    "as_texts",
    "as_whole",
    "one_per_row",
    "shown_number",
    "steps_in",
    "steps_of",
    "version_span",
    "whole_numbers",
]

_INT64_MAX = 2**63 - 1


class NotANumberError(ValueError):
    """A value of a row that is no number; `row` counts from the first of the column."""

    def __init__(self, name: str, values: NDArray[Any]) -> None:
        self.row = next(row for row, value in enumerate(values.tolist()) if not _is_real(value))
        super().__init__(f"{name} is {values[self.row]!r}, which is no number")


def _is_real(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return value is None
    return True


@dataclass(frozen=True, slots=True)
class WholeNumbers:
    """One int64 a row, and where the file holds none."""

    values: NDArray[np.int64]
    """[rows] the blank where the row has none"""
    absent: NDArray[np.int64] = field(default_factory=no_rows)
    """rows without a value"""
    wrong: NDArray[np.int64] = field(default_factory=no_rows)
    """rows whose value is no int64, or too low"""
    shown: str = ""
    """the first wrong value"""


def steps_of(batch: Batch, mapping: Mapping[str, str], default_step: int) -> WholeNumbers:
    """The step of each row of the batch."""
    column = batch.columns.get(mapping.get("step", ""))
    return steps_in(one_per_row("step", column) if column else None, batch.rows, default_step)


def steps_in(column: Scalars | None, rows: int, default_step: int) -> WholeNumbers:
    return as_whole(column, default_step) or WholeNumbers(np.full(rows, default_step, np.int64))


ROW_FIELDS: dict[str, Any] = {
    "reward": np.add,
    "step": np.minimum,
    "uid": None,
    "group_id": None,
}
"""Fields of one value a row, and what makes one of a list: rewards add up, the least step
counts, of texts the first."""


def one_per_row(field_name: str, column: Ragged | Scalars) -> Scalars:
    """The column itself, or what `ROW_FIELDS` makes of its lists; an empty list counts as null.

    A null element leaves a sum unknown and otherwise says nothing.
    """
    if isinstance(column, Scalars):
        return column
    values, offsets = column.values, column.offsets
    if field_name == "reward":
        values = values.astype(np.float64)
        values[column.nulls] = np.nan
    elif len(column.nulls):
        values, offsets = _without_nulls(column)
    filled = np.diff(offsets) > 0
    starts = offsets[:-1][filled]
    if values.dtype != object:
        values = as_wide(values)
    reducer = ROW_FIELDS[field_name] if len(starts) and values.dtype != object else None
    one = np.zeros(len(filled), values.dtype)
    one[filled] = values[starts] if reducer is None else reducer.reduceat(values, starts)
    return Scalars(one, np.flatnonzero(~filled))


def _without_nulls(column: Ragged) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Values and offsets of the elements that are there."""
    present = np.ones(len(column.values), np.bool_)
    present[column.nulls] = False
    return column.values[present], offsets_of(present)[column.offsets]


def as_reals(name: str, column: Scalars | None) -> NDArray[np.float64] | None:
    """[rows] NaN where a row has none.

    Raises:
        NotANumberError: text that spells no number.
    """
    if column is None:
        return None
    try:
        values = column.values.astype(np.float64)
    except (TypeError, ValueError):
        raise NotANumberError(name, column.values) from None
    values[column.null_rows] = np.nan
    return values


def as_whole(column: Scalars | None, blank: int, least: int | None = None) -> WholeNumbers | None:
    if column is None:
        return None
    values, wrong = whole_numbers(column.values, blank)
    if least is not None:
        wrong |= values < least
    wrong[column.null_rows] = False
    values[column.null_rows] = blank
    values[wrong] = blank
    rows = np.flatnonzero(wrong)
    return WholeNumbers(values, column.null_rows, rows, shown_number(column.values[rows[0]]) if len(rows) else "")


def whole_numbers(values: NDArray[Any], blank: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A fresh array, the blank where a value is no int64; and where that is."""
    if values.dtype == object:
        found = [whole_number(str(value)) for value in values]
        wrong = np.array([number is None for number in found], np.bool_)
        return np.array([blank if number is None else number for number in found], np.int64), wrong
    if values.dtype.kind == "f":
        fits = (np.trunc(values) == values) & (np.abs(values) < 2.0**63)  # False with NaN, and infinity is too large
    else:
        fits = values <= _INT64_MAX if values.dtype == np.uint64 else np.ones(len(values), np.bool_)
    whole = np.full(len(values), blank, np.int64)
    whole[fits] = values[fits].astype(np.int64)
    return whole, ~fits


def version_span(
    column: Ragged, mask: NDArray[np.bool_], offsets: NDArray[np.int64]
) -> tuple[WholeNumbers, NDArray[np.int64]]:
    """The oldest and the newest version in the list of each row, -1 where it holds none.

    A list of one version a token is asked under the mask alone, any other (one a turn) whole. Elements that are null or
    -1, as prompts have, say nothing.
    """
    values, wrong = whole_numbers(column.values, -1)
    wrong |= values < -1
    wrong[column.nulls] = False
    values[column.nulls] = -1
    said = (values >= 0) & _under_mask(column, mask, offsets)
    row = np.repeat(np.arange(len(column.offsets) - 1), np.diff(column.offsets))
    faulty = np.unique(row[wrong])
    oldest = np.full(len(column.offsets) - 1, _INT64_MAX)
    newest = np.full(len(column.offsets) - 1, -1)
    np.minimum.at(oldest, row[said], values[said])
    np.maximum.at(newest, row[said], values[said])
    newest[faulty] = -1
    oldest[newest < 0] = -1
    shown = shown_number(column.values[np.flatnonzero(wrong)[0]]) if len(faulty) else ""
    return WholeNumbers(oldest, np.setdiff1d(np.flatnonzero(newest < 0), faulty), faulty, shown), newest


def _under_mask(column: Ragged, mask: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[values] False where the list has the length of the response and the token is masked."""
    fits = np.diff(column.offsets) == np.diff(offsets)
    under = np.ones(len(column.values), np.bool_)
    under[np.repeat(fits, np.diff(column.offsets))] = mask[np.repeat(fits, np.diff(offsets))]
    return under


def shown_number(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value)


def as_names(column: Scalars | None) -> tuple[str, ...] | None:
    texts = as_texts(column)
    return None if texts is None else tuple("" if text is None else text for text in texts)


def as_texts(column: Scalars | None) -> tuple[str | None, ...] | None:
    if column is None:
        return None
    absent = set(column.null_rows.tolist())
    return tuple(None if i in absent or v != v else str(v) for i, v in enumerate(column.values.tolist()))
