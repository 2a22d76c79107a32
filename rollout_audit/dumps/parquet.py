"""Parquet, row group by row group, only the columns in use."""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_audit.dumps.columns import Batch, ColumnInfo, Ragged, Scalars
from rollout_audit.dumps.discovery import GONE, DumpFile, open_binary, opens_by_path
from rollout_audit.dumps.naming import step_in_metadata
from rollout_audit.dumps.native import LACKS_TRAINING, STORED_AS
from rollout_audit.dumps.ragged import element_name, is_list_type, to_ragged, to_scalars
from rollout_audit.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

__all__ = ["ParquetSource"]

_BOUNDED: dict[str, Any] = {"pre_buffer": False, "buffer_size": 2**20}
"""Without these pyarrow holds the compressed bytes of a whole row group; the speed is the same."""

_SIDE_BY_SIDE: dict[str, Any] = {"use_threads": False}
"""Row groups are read side by side by threads of ours; pyarrow's own would take a fifth more processor time."""


class ParquetSource:
    """One Parquet file. Opening it reads the footer and nothing else.

    Raises:
        UnreadableFileError: damaged footer or pages.
    """

    takes_layout = False

    def __init__(self, file: DumpFile) -> None:
        self._file = file
        try:
            self._footer_of = pq.read_metadata(self._handle())
            self._schema = self._footer_of.schema.to_arrow_schema()
        except (pa.ArrowException, OSError) as error:
            raise _damaged(file, "footer", error) from error

    def _handle(self) -> Any:
        """Arrow reads local files itself, where it can spell their names: it takes UTF-8 only."""
        path = self._file.path
        return path if opens_by_path(path) else open_binary(path)

    @property
    def fields(self) -> Mapping[str, str]:
        return {}

    @property
    def lacks_training(self) -> str:
        return str((self._schema.metadata or {}).get(LACKS_TRAINING, b""), "utf-8", "replace")

    @cached_property
    def columns(self) -> tuple[ColumnInfo, ...]:
        return tuple(map(_described, self._schema))

    @property
    def rows(self) -> int:
        return int(self._footer_of.num_rows)

    @cached_property
    def row_groups(self) -> tuple[int, ...]:
        metadata = self._footer_of
        return tuple(int(metadata.row_group(i).num_rows) for i in range(metadata.num_row_groups))

    @cached_property
    def _starts(self) -> list[int]:
        """first row of each row group"""
        return [0, *accumulate(self.row_groups)]

    @property
    def step(self) -> int | None:
        return step_in_metadata(self._schema.metadata or {})

    @cached_property
    def footer(self) -> bytes:
        with open_binary(self._file.path) as stream:
            stream.seek(self._file.size - 8)
            length = int.from_bytes(stream.read(4), "little")
            stream.seek(max(self._file.size - 8 - length, 0))
            return stream.read(length + 8)

    def values(self, column: str) -> int:
        return sum(self._values(column, group) for group in range(len(self.row_groups)))

    def batches(
        self, columns: Collection[str], *, size_by: str, chunk_tokens: int, row_groups: Sequence[int]
    ) -> Iterator[Batch]:
        wanted = [info.name for info in self.columns if info.name in columns]
        with pq.ParquetFile(self._handle(), metadata=self._footer_of, **_BOUNDED) as parquet:
            for group in row_groups:
                yield from self._group(parquet, group, wanted, self._rows_a_batch(group, size_by, chunk_tokens))

    def _group(self, parquet: Any, group: int, wanted: list[str], batch_rows: int) -> Iterator[Batch]:
        first = self._starts[group]
        try:
            for batch in parquet.iter_batches(batch_rows, row_groups=[group], columns=wanted, **_SIDE_BY_SIDE):
                columns = {name: self._column(batch, name) for name in wanted}
                yield Batch(np.arange(first, first + batch.num_rows, dtype=np.int64), columns)
                first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise _damaged(self._file, f"row group {group}", error) from error

    def _column(self, batch: Any, name: str) -> Ragged | Scalars:
        array = batch.column(batch.schema.get_field_index(name))
        return to_ragged(array) if is_list_type(_plain(array.type)) else to_scalars(array)

    def _rows_a_batch(self, group: int, size_by: str, chunk_tokens: int) -> int:
        rows = self.row_groups[group]
        values = max(self._values(size_by, group), rows, 1)
        return max(1, rows * chunk_tokens // values)

    def _values(self, column: str, group: int) -> int:
        place = self._leaf_of.get(column)
        return 0 if place is None else int(self._footer_of.row_group(group).column(place).num_values)

    @cached_property
    def _leaf_of(self) -> dict[str, int]:
        """column name → its place among the leaves of the schema"""
        schema = self._footer_of.schema
        paths = [schema.column(i).path for i in range(len(schema))]
        return {
            info.name: place
            for info in self.columns
            for place, path in enumerate(paths)
            if path == info.name or path.startswith(f"{info.name}.")
        }


def _described(field: Any) -> ColumnInfo:
    """The column as it is; one that this tool widened from half precision as what it was."""
    half = (field.metadata or {}).get(STORED_AS, b"").decode()
    kind = f"{field.type} of {half}" if half else str(field.type)
    return ColumnInfo(field.name, kind, half or element_name(field.type), is_list_type(_plain(field.type)))


def _plain(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _damaged(file: DumpFile, where: str, error: Exception) -> UnreadableFileError:
    if isinstance(error, FileNotFoundError):
        return UnreadableFileError(f"{file.path}: {GONE}")
    first_line = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
    return UnreadableFileError(f"{file.path}: damaged Parquet, the {where} cannot be read ({first_line})")
