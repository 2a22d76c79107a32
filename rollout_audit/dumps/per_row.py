"""One value a row, whatever a trainer made of it: a number, a text or a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_audit.dumps.columns import Batch, Ragged, Scalars

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = [
    "ROW_FIELDS",
    "as_names",
    "as_reals",
    "as_texts",
    "as_whole",
    "one_per_row",
    "steps_in",
    "steps_of",
]


def steps_of(batch: Batch, mapping: Mapping[str, str], default_step: int) -> NDArray[np.int64]:
    """[rows] the step of each row of the batch."""
    column = batch.columns.get(mapping.get("step", ""))
    return steps_in(one_per_row("step", column) if column else None, batch.rows, default_step)


def steps_in(column: Scalars | None, rows: int, default_step: int) -> NDArray[np.int64]:
    steps = as_whole(column, default_step)
    return np.full(rows, default_step, np.int64) if steps is None else steps


ROW_FIELDS: dict[str, Any] = {
    "reward": np.add,
    "policy_version": np.minimum,
    "trainer_version": np.minimum,
    "step": np.minimum,
    "uid": None,
    "group_id": None,
}
"""Fields of one value a row, and what makes one of a list: rewards add up, the oldest version
counts, of texts the first."""


def one_per_row(field: str, column: Ragged | Scalars) -> Scalars:
    """The column itself, or what `ROW_FIELDS` makes of its lists; an empty list counts as null."""
    if isinstance(column, Scalars):
        return column
    lengths = np.diff(column.offsets)
    filled = np.flatnonzero(lengths > 0)
    empty = np.flatnonzero(lengths == 0).astype(np.int64)
    starts = column.offsets[:-1][filled]
    reducer = ROW_FIELDS[field] if len(filled) and column.values.dtype != object else None
    got = column.values[starts] if reducer is None else reducer.reduceat(column.values, starts)
    wide = object if column.values.dtype == object else np.float64 if field == "reward" else np.int64
    values = np.zeros(len(lengths), wide)
    values[filled] = got
    return Scalars(values, empty)


def as_reals(column: Scalars | None) -> NDArray[np.float64] | None:
    if column is None:
        return None
    values = column.values.astype(np.float64)
    values[column.null_rows] = np.nan
    return values


def as_whole(column: Scalars | None, blank: int) -> NDArray[np.int64] | None:
    if column is None:
        return None
    values = _integers(column.values, blank)
    values[column.null_rows] = blank
    return values


def _integers(values: NDArray[Any], blank: int) -> NDArray[np.int64]:
    """A fresh array; what is no whole number (a version such as `default`) becomes the blank."""
    if values.dtype == object:
        return np.array([int(v) if str(v).isdecimal() else blank for v in values], dtype=np.int64)
    return np.array(np.nan_to_num(values, nan=blank), dtype=np.int64)


def as_names(column: Scalars | None) -> tuple[str, ...] | None:
    texts = as_texts(column)
    return None if texts is None else tuple("" if text is None else text for text in texts)


def as_texts(column: Scalars | None) -> tuple[str | None, ...] | None:
    if column is None:
        return None
    absent = set(column.null_rows.tolist())
    return tuple(None if i in absent else str(v) for i, v in enumerate(column.values.tolist()))
