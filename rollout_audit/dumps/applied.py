"""Weights and masks beside a dump: a file for each of its files, row for row, in the layout of that file.

What the source holds and the correction was not applied to (faulty rows, other steps) keeps its place: null in Parquet,
weight 0 and mask 0 in safetensors.
"""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from rollout_audit.dumps.columns import offsets_of
from rollout_audit.dumps.native import native_field, native_file
from rollout_audit.dumps.rows import row_uid
from rollout_audit.dumps.tensors import TensorSource
from rollout_audit.errors import DumpError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from rollout_audit.dumps.chunk import Chunk
    from rollout_audit.dumps.dump import Dump
    from rollout_audit.dumps.opening import FileInfo

__all__ = ["APPLIED", "AppliedChunk", "AppliedWriter", "applied_file", "suffix_of"]

APPLIED = "rollout_audit.apply"
"""key of the metadata: what was applied, as JSON (one key, in which order is kept)"""
_WITHIN_64_BITS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})
_FIELDS = (
    native_field("step", pa.int64()),
    native_field("weights", pa.list_(pa.float32())),
    native_field("mask", pa.list_(pa.bool_())),
)


@dataclass(frozen=True, slots=True)
class AppliedChunk:
    """The rows of a chunk with what a correction makes of them, tokens packed as in the chunk."""

    chunk: Chunk
    weights: NDArray[np.float32]
    """[tokens] 0 under a response mask of 0"""
    mask: NDArray[np.bool_]
    """[tokens] whether the token is in the loss"""


class AppliedWriter(Protocol):
    def write(self, applied: AppliedChunk) -> None:
        """The next rows of the file."""
        ...


def suffix_of(format_name: str) -> str:
    """`.safetensors` for such a file, `.parquet` for every other."""
    return ".safetensors" if format_name == "safetensors" else ".parquet"


def applied_file(
    dump: Dump, file: int, path: Path, settings: Mapping[str, object]
) -> AbstractContextManager[AppliedWriter]:
    """A writer for the rows of one file of a dump, in the order of the file.

    Args:
        dump: what is applied to.
        file: index of the file in the dump.
        path: what is written; its folder exists.
        settings: kept in the metadata.
    """
    info, text = dump.infos[file], json.dumps(settings, ensure_ascii=False)
    if info.file.format == "safetensors":
        return _tensors(dump, file, path, text)
    return _parquet(info, path, text)


@contextmanager
def _parquet(info: FileInfo, path: Path, settings: str) -> Iterator[_Table]:
    fields = (native_field("uid", _uid_type(info)), *_FIELDS)
    with native_file(path, fields, {APPLIED.encode(): settings}) as writer:
        table = _Table(info.file.name, writer, fields)
        yield table
        table.skip_to(info.rows)


def _uid_type(info: FileInfo) -> Any:
    """Whole numbers stay what they are in a Parquet source; a row without one is null there and here."""
    mapped = info.fields.get("uid")
    column = next((c for c in info.columns if mapped is not None and c.name == mapped.column), None)
    whole = info.file.format == "parquet" and column is not None and column.type in _WITHIN_64_BITS
    return pa.int64() if whole else pa.string()


class _Table:
    def __init__(self, name: str, writer: Any, fields: tuple[Any, ...]) -> None:
        self._name = name
        self._writer = writer
        self._next = 0
        self._schema = pa.schema(fields)

    def write(self, applied: AppliedChunk) -> None:
        """One row group; the rows that are missing before and between its rows are null."""
        chunk = applied.chunk
        span = int(chunk.row_numbers[-1]) + 1 - self._next
        there = np.zeros(span, np.bool_)
        there[chunk.row_numbers - self._next] = True
        lengths = np.zeros(span, np.int64)
        lengths[there] = np.diff(chunk.offsets)
        offsets = pa.array(offsets_of(lengths).astype(np.int32))
        at = np.cumsum(there) - 1
        columns = [
            self._uids(chunk, [int(i) if here else None for i, here in zip(at, there, strict=True)]),
            pa.array(chunk.steps[np.maximum(at, 0)], mask=~there),
            *(
                pa.ListArray.from_arrays(offsets, pa.array(values), mask=pa.array(~there))
                for values in (applied.weights, applied.mask)
            ),
        ]
        self._put(columns, span)

    def _uids(self, chunk: Chunk, rows: list[int | None]) -> Any:
        """Of the rows of the chunk, null for None."""
        if pa.types.is_string(self._schema.field("uid").type):
            return pa.array([None if i is None else row_uid(chunk, i, self._name) for i in rows], pa.string())
        given = chunk.uids or ()
        return pa.array([int(given[i]) if i is not None and given and given[i] else None for i in rows], pa.int64())

    def skip_to(self, row: int) -> None:
        if row > self._next:
            self._put([pa.nulls(row - self._next, field.type) for field in self._schema], row - self._next)

    def _put(self, columns: list[Any], rows: int) -> None:
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        self._next += rows


@contextmanager
def _tensors(dump: Dump, file: int, path: Path, settings: str) -> Iterator[_Tensors]:
    source = TensorSource.of(dump.infos[file].file, dump.layout)
    ends = source.row_ends
    places: dict[str, tuple[str, tuple[int, ...], int]] = {
        "weights": ("F32", source.shape, 4),
        "mask": ("BOOL", source.shape, 1),
    }
    if ends is not None:
        stored, values = ends
        places[stored.name] = (stored.type, values.shape, values.itemsize)
    with path.open("wb") as stream:
        starts = _begin(stream, places, settings)
        if ends is not None:
            _put(stream, starts[stored.name], values)
        yield _Tensors(dump.infos[file].file.name, source, stream, starts)


def _begin(stream: Any, tensors: Mapping[str, tuple[str, tuple[int, ...], int]], settings: str) -> dict[str, int]:
    """The header and zeros to the end of the file; where each tensor begins.

    Written by hand since the library wants every tensor whole and in memory, and a dump need not fit.
    """
    header: dict[str, object] = {"__metadata__": {APPLIED: settings}}
    starts, end = {}, 0
    for name, (kind, shape, size) in sorted(tensors.items(), key=lambda item: (-item[1][2], item[0])):
        starts[name], end = end, end + math.prod(shape) * size
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [starts[name], end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)
    stream.truncate(8 + len(text) + end)
    return {name: 8 + len(text) + start for name, start in starts.items()}


def _put(stream: Any, place: int, values: NDArray[Any]) -> None:
    stream.seek(place)
    stream.write(values.tobytes())


class _Tensors:
    def __init__(self, name: str, source: TensorSource, stream: Any, starts: Mapping[str, int]) -> None:
        self._name = name
        self._source = source
        self._stream = stream
        self._starts = starts

    def write(self, applied: AppliedChunk) -> None:
        """The span of the stored tensors that these rows and the ones between them take, zeros where nothing is."""
        rows = applied.chunk.row_numbers
        places, offsets = self._source.places(int(rows[0]), int(rows[-1]) + 1)
        lengths = np.diff(offsets)
        there = np.zeros(len(lengths), np.bool_)
        there[rows - rows[0]] = True
        places = places[np.repeat(there, lengths)]
        if len(places) != applied.chunk.tokens:
            raise DumpError(f"{self._name}: changed while it was read; run again when nothing writes to it")
        if not len(places):
            return
        first, last = int(places[0]), int(places[-1]) + 1
        for name, values, kind in (("weights", applied.weights, "<f4"), ("mask", applied.mask, "?")):
            span = np.zeros(last - first, kind)
            span[places - first] = values
            _put(self._stream, self._starts[name] + first * span.itemsize, span)
