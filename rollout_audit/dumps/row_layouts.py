"""A trainer's layout over rows of lists: the cuts and shifts of its tensors, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollout_audit.dumps.columns import Batch, ColumnInfo, Ragged, Scalars, counts_by_row, flagged, offsets_of
from rollout_audit.dumps.fields import LEADS, NAMES
from rollout_audit.dumps.layouts import (
    LAYOUTS,
    MASKS,
    Layout,
    areal_doubt,
    mask_column,
    moved,
    needs,
    response_places,
    roll_doubt,
    told_by_names,
)
from rollout_audit.errors import UnreadableFileError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rollout_audit.dumps.columns import Source

__all__ = ["laid_out"]

_ALIGNED = "; --layout padded where index t of every column is of one token"


def laid_out(source: Source, asked: str | None, where: str, field_map: Mapping[str, str]) -> Source:
    """The rows as their layout has them: the one asked for where they have its columns, else the one names tell.

    A layout that only names tell does not overrule the mask of this tool's name.

    Args:
        field_map: field → column, as `--map` gives it.

    Raises:
        UsageError: the names leave two readings.
    """
    lists = [column.name for column in source.columns if column.is_list]
    lead = _lead(lists, field_map)
    if lead is None:
        return source
    mask = field_map.get("response_mask", "response_mask")
    told, doubt = told_by_names(lists), _doubt(source, lists, lead, mask)
    wanted = LAYOUTS[asked] if asked else None
    if wanted and (set(needs(wanted)) <= set(lists) if wanted.start else (told or doubt)):
        return LaidOutRows(source, wanted, lead, where, takes_layout=True)
    if told:
        return source if "response_mask" in lists else LaidOutRows(source, told, lead, where)
    if doubt:
        raise UsageError(f"{where}: {doubt}{_ALIGNED}")
    return source


def _lead(lists: Collection[str], field_map: Mapping[str, str]) -> str | None:
    """The rollout's log-probs, else the trainer's: by the map, else the name, else an alias."""
    names = (name for field in LEADS for name in (field_map.get(field), *NAMES[field]))
    return next((name for name in names if name in lists), None)


def _doubt(source: Source, lists: Collection[str], lead: str, mask: str) -> str | None:
    if text := areal_doubt(lists):
        return text
    if mask in lists and source.values(mask) == source.values(lead):
        return None
    one_more = source.values(lead) + source.rows if source.rows else -1
    wider = next((name for name in MASKS if name in lists and source.values(name) == one_more), None)
    return roll_doubt(wider, lead) if wider else None


class LaidOutRows:
    """Rows of another source under the layout's mask, and without their prompts where the layout has some in a row.

    A row whose lists are of other lengths stays whole, as a fault.
    """

    def __init__(self, source: Source, layout: Layout, lead: str, where: str, *, takes_layout: bool = False) -> None:
        self._source = source
        self._layout = layout
        self._lead = lead
        self._where = where
        self._lists = {column.name for column in source.columns if column.is_list}
        self._mask = mask_column(layout, self._lists)
        self.takes_layout = takes_layout
        self.lacks_training = source.lacks_training

    @property
    def columns(self) -> tuple[ColumnInfo, ...]:
        if self._mask is None or self._mask in self._lists:
            return self._source.columns
        return (*self._source.columns, ColumnInfo(self._mask, "product", "float64", is_list=True))

    @property
    def fields(self) -> Mapping[str, str]:
        named = {field: column for field, column in self._layout.fields.items() if column in self._lists}
        return {**self._source.fields, **named, **({"response_mask": self._mask} if self._mask else {})}

    @property
    def rows(self) -> int:
        return self._source.rows

    @property
    def row_groups(self) -> tuple[int, ...]:
        return self._source.row_groups

    @property
    def step(self) -> int | None:
        return self._source.step

    @property
    def footer(self) -> bytes:
        return self._source.footer

    def values(self, column: str) -> int:
        """As stored, prompts included."""
        return self._source.values(self._lead if column == self._mask else column)

    def batches(
        self, columns: Collection[str], *, size_by: str, chunk_tokens: int, row_groups: Sequence[int]
    ) -> Iterator[Batch]:
        layout = self._layout
        more = {name for name in (self._lead, layout.start, layout.stop, *layout.masks) if name in self._lists}
        stored = {name for name in columns if name != self._mask or name in self._lists}
        for batch in self._source.batches(
            stored | more, size_by=size_by, chunk_tokens=chunk_tokens, row_groups=row_groups
        ):
            yield Batch(batch.row_numbers, self._cut(batch, columns))

    def _cut(self, batch: Batch, columns: Collection[str]) -> dict[str, Ragged | Scalars]:
        lists = {name: c for name, c in batch.columns.items() if isinstance(c, Ragged)}
        lengths = np.diff(lists[self._lead].offsets)
        grid = {name: self._on_grid(name, column, lengths) for name, column in lists.items()}
        if self._mask in columns and self._mask is not None and self._mask not in self._lists:
            grid[self._mask] = self._product(grid, lengths, batch)
        kept = self._kept(grid, lengths)
        cut = {name: _selected(column, kept, lengths) for name, column in grid.items()}
        return {name: cut.get(name, batch.columns.get(name)) for name in columns}  # type: ignore[misc]

    def _on_grid(self, name: str, column: Ragged, lengths: NDArray[np.int64]) -> Ragged:
        """Its values where the log-probs of their tokens stand."""
        if self._layout.right_aligned:
            column = _last_of_each(column, lengths)
        places = (name in self._layout.rolled) - (name in self._layout.unrolled)
        if not places:
            return column
        nulls = np.flatnonzero(moved(flagged(column.nulls, len(column.values)), column.offsets, places))
        return Ragged(moved(column.values, column.offsets, places), column.offsets, column.null_rows, nulls)

    def _kept(self, grid: Mapping[str, Ragged], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[tokens of the log-probs] which belong to a response."""
        layout, offsets = self._layout, offsets_of(lengths)
        if layout.start is None or not layout.prompts:
            return np.ones(int(offsets[-1]), np.bool_)
        begins = _flags(grid[layout.start], lengths)
        if layout.stop is not None and layout.stop in grid:
            ends: NDArray[np.bool_] | None = _flags(grid[layout.stop], lengths)
        else:  # a row that was rolled ends with a place that is not its own
            ends = None if layout.unrolled else np.ones(len(begins), np.bool_)
        return response_places(begins, ends, offsets)

    def _product(self, grid: Mapping[str, Ragged], lengths: NDArray[np.int64], batch: Batch) -> Ragged:
        """The mask of several parts; a row that lacks one of them counts all of its tokens there."""
        product = np.ones(int(lengths.sum()))
        for name in (name for name in self._layout.masks if name in grid):
            part = grid[name]
            given = ~flagged(part.null_rows, len(lengths))
            odd = np.flatnonzero(given & (np.diff(part.offsets) != lengths))
            if len(odd):
                raise UnreadableFileError(
                    f"{self._where}, row {batch.row_numbers[odd[0]]}: {name} has {np.diff(part.offsets)[odd[0]]} "
                    f"values, {self._lead} {lengths[odd[0]]}: the layout {self._layout.name} needs one value a token"
                )
            product[np.repeat(given, lengths)] *= part.values
        return Ragged(product, offsets_of(lengths))


def _flags(column: Ragged, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[tokens of the log-probs] whether the column is not 0; everywhere in rows of another length."""
    fits = np.diff(column.offsets) == lengths
    flags = np.ones(int(lengths.sum()), np.bool_)
    flags[np.repeat(fits, lengths)] = (column.values != 0)[np.repeat(fits, np.diff(column.offsets))]
    return flags


def _selected(column: Ragged, kept: NDArray[np.bool_], lengths: NDArray[np.int64]) -> Ragged:
    """The column's values at the places that are kept; rows of another length whole."""
    own = np.diff(column.offsets)
    fits = own == lengths
    keep = np.ones(len(column.values), np.bool_)
    keep[np.repeat(fits, own)] = kept[np.repeat(fits, lengths)]
    nulls = np.flatnonzero(flagged(column.nulls, len(column.values))[keep])
    return Ragged(column.values[keep], offsets_of(counts_by_row(keep, column.offsets)), column.null_rows, nulls)


def _last_of_each(column: Ragged, lengths: NDArray[np.int64]) -> Ragged:
    """Of rows that are longer the last values: the first ones are prompt."""
    own = np.diff(column.offsets)
    place = np.arange(len(column.values)) - np.repeat(column.offsets[:-1], own)
    keep = place >= np.repeat(np.maximum(own - lengths, 0), own)
    nulls = np.flatnonzero(flagged(column.nulls, len(column.values))[keep])
    return Ragged(column.values[keep], offsets_of(np.minimum(own, lengths)), column.null_rows, nulls)
