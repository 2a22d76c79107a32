"""Columns as NumPy arrays, whatever file they came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "Batch",
    "Batches",
    "ColumnInfo",
    "Ragged",
    "Scalars",
    "Source",
    "as_wide",
    "counts_by_row",
    "end_to_end",
    "flagged",
    "no_rows",
    "offsets_of",
    "rows_taken",
]


def no_rows() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


def as_wide(values: NDArray[Any]) -> NDArray[Any]:
    """The numbers as int64, uint64 or float64, whichever holds the type."""
    if values.dtype.kind not in "iub":
        return values.astype(np.float64, copy=False)
    return values.astype(np.int64, copy=False) if values.dtype != np.uint64 else values


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lists of consecutive rows, end to end: row i is `values[offsets[i]:offsets[i + 1]]`."""

    values: NDArray[Any]
    """[tokens] numbers; NaN (0 for integers) where the element is null"""
    offsets: NDArray[np.int64]
    """[rows + 1], from 0"""
    null_rows: NDArray[np.int64] = field(default_factory=no_rows)
    """rows without a list (not: with an empty one); their span is empty"""
    nulls: NDArray[np.int64] = field(default_factory=no_rows)
    """places in `values` of null elements"""


@dataclass(frozen=True, slots=True)
class Scalars:
    """One value a row."""

    values: NDArray[Any]
    """[rows] int64, uint64, float64 or object (str)"""
    null_rows: NDArray[np.int64] = field(default_factory=no_rows)


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive whole rows of one file, by column name."""

    row_numbers: NDArray[np.int64]
    """[rows] in the file, from 0"""
    columns: Mapping[str, Ragged | Scalars]

    @property
    def rows(self) -> int:
        return len(self.row_numbers)

    def select(self, keep: NDArray[np.bool_]) -> Batch:
        """The batch with only the rows where `keep` ([rows]) is true."""
        if keep.all():
            return self
        columns = {name: _selected(column, keep) for name, column in self.columns.items()}
        return Batch(self.row_numbers[keep], columns)


def _selected(column: Ragged | Scalars, keep: NDArray[np.bool_]) -> Ragged | Scalars:
    null_rows = _renumbered(column.null_rows, keep)
    if isinstance(column, Scalars):
        return Scalars(column.values[keep], null_rows)
    lengths = np.diff(column.offsets)
    tokens = np.repeat(keep, lengths)
    offsets = offsets_of(lengths[keep])
    return Ragged(column.values[tokens], offsets, null_rows, _renumbered(column.nulls, tokens))


def _renumbered(places: NDArray[np.int64], keep: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Places that are kept, counted among what is kept."""
    return (np.cumsum(keep)[places[keep[places]]] - 1).astype(np.int64)


def rows_taken(column: Ragged | Scalars, rows: NDArray[np.int64]) -> Ragged | Scalars:
    """These rows of a column, in their order."""
    absent = np.flatnonzero(flagged(column.null_rows, _rows_of(column))[rows])
    if isinstance(column, Scalars):
        return Scalars(column.values[rows], absent)
    lengths = np.diff(column.offsets)[rows]
    offsets = offsets_of(lengths)
    places = np.arange(offsets[-1]) + np.repeat(column.offsets[:-1][rows] - offsets[:-1], lengths)
    nulls = np.flatnonzero(flagged(column.nulls, len(column.values))[places])
    return Ragged(column.values[places], offsets, absent, nulls)


def end_to_end(columns: Sequence[Ragged | Scalars]) -> Ragged | Scalars:
    """Columns one after another; as lists where one of them holds lists."""
    firsts = offsets_of(np.array([_rows_of(column) for column in columns], np.int64))
    absent = np.concatenate([column.null_rows + first for column, first in zip(columns, firsts, strict=False)])
    values = np.concatenate([column.values for column in columns])
    if all(isinstance(column, Scalars) for column in columns):
        return Scalars(values, absent)
    lists = [_as_lists(column) for column in columns]
    starts = offsets_of(np.array([len(column.values) for column in lists], np.int64))
    nulls = np.concatenate([column.nulls + start for column, start in zip(lists, starts, strict=False)])
    return Ragged(values, offsets_of(np.concatenate([np.diff(column.offsets) for column in lists])), absent, nulls)


def _rows_of(column: Ragged | Scalars) -> int:
    return len(column.values) if isinstance(column, Scalars) else len(column.offsets) - 1


def _as_lists(column: Ragged | Scalars) -> Ragged:
    """One value a row as a list of one."""
    if isinstance(column, Ragged):
        return column
    return Ragged(column.values, np.arange(len(column.values) + 1), column.null_rows)


def offsets_of(lengths: Sequence[int] | NDArray[np.integer[Any]] | NDArray[np.bool_]) -> NDArray[np.int64]:
    """[rows + 1] where rows of those lengths begin and end, laid end to end."""
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def counts_by_row(flags: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """[rows] how many values of each row are flagged."""
    return np.diff(offsets_of(flags)[offsets])


def flagged(places: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
    """[size] True at these places."""
    flags = np.zeros(size, np.bool_)
    flags[places] = True
    return flags


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """What the metadata says of one column."""

    name: str
    type: str
    """as stored, e.g. `list<float>` or `BF16`"""
    element: str
    """`float16`, `bfloat16`, `float32`, `float64`, `int`, `bool`, `null`, `text`, `other`, `misfit` (not one a row)"""
    is_list: bool


class Batches(Protocol):
    """What can be streamed in batches of whole rows."""

    def batches(
        self, columns: Collection[str], *, size_by: str, chunk_tokens: int, row_groups: Sequence[int]
    ) -> Iterator[Batch]:
        """Whole rows of these row groups, about `chunk_tokens` elements of the column `size_by` at a time."""
        ...


class Source(Batches, Protocol):
    """One open file; all but the batches comes from its metadata alone where the format has such."""

    @property
    def columns(self) -> tuple[ColumnInfo, ...]: ...

    @property
    def fields(self) -> Mapping[str, str]:
        """field → column, where the format says more than the names do"""
        ...

    @property
    def lacks_training(self) -> str:
        """why there are no log-probs of the trainer, where the file says so itself"""
        ...

    @property
    def takes_layout(self) -> bool:
        """whether it is read in the layout that was asked for"""
        ...

    @property
    def rows(self) -> int: ...

    @property
    def row_groups(self) -> tuple[int, ...]:
        """rows of each"""
        ...

    @property
    def step(self) -> int | None:
        """from the metadata"""
        ...

    @property
    def footer(self) -> bytes:
        """the bytes that describe the file"""
        ...

    def values(self, column: str) -> int:
        """Elements of a column in all rows, nulls included."""
        ...
