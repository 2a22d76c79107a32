"""safetensors: padded [B, T] or packed [N] tensors, read a slice of rows at a time.

The format is a JSON header and raw bytes, so it is read here without torch and from any file system; bfloat16
is the upper half of a float32.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from rollout_audit.dumps.columns import Batch, ColumnInfo, Ragged, Scalars
from rollout_audit.dumps.discovery import DumpFile, open_binary
from rollout_audit.dumps.fields import FIELDS
from rollout_audit.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["TensorSource"]

Layout = Literal["padded", "packed"]

_TYPES: dict[str, tuple[str, str]] = {
    "F64": ("<f8", "float64"),
    "F32": ("<f4", "float32"),
    "F16": ("<f2", "float16"),
    "BF16": ("<u2", "bfloat16"),
    "I64": ("<i8", "int"),
    "I32": ("<i4", "int"),
    "I16": ("<i2", "int"),
    "I8": ("i1", "int"),
    "U64": ("<u8", "int"),
    "U32": ("<u4", "int"),
    "U16": ("<u2", "int"),
    "U8": ("u1", "int"),
    "BOOL": ("?", "bool"),
}
"""safetensors' name → how the bytes are read, and the element of `ColumnInfo`"""

_OFFSETS = "cu_seqlens"
_LENGTHS = ("lengths", "response_lengths")
_MAX_HEADER = 100_000_000
_LEAD_NAMES = next((field.name, *field.aliases) for field in FIELDS if field.name == "rollout_log_probs")


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    type: str
    shape: tuple[int, ...]
    start: int
    """of its bytes, in the file"""
    end: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class TensorSource:
    """One safetensors file; opening it reads the header and the row lengths.

    Raises:
        UnreadableFileError: truncated or damaged, packed without `cu_seqlens` or `lengths`, shapes that do
            not fit each other.
    """

    def __init__(self, file: DumpFile, layout: str | None = None) -> None:
        self._file = file
        with open_binary(file.path) as stream:
            self.footer, header = _header(file, stream)
            metadata = header.pop("__metadata__", None) or {}
            self._metadata: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
            self._tensors = {name: _tensor(file, name, entry, len(self.footer)) for name, entry in header.items()}
            self._check_extent()
            self._offsets, self._width = self._read_rows(stream, layout)

    @cached_property
    def columns(self) -> tuple[ColumnInfo, ...]:
        helpers = {_OFFSETS, *_LENGTHS}
        return tuple(self._info(tensor) for name, tensor in self._tensors.items() if name not in helpers)

    def _info(self, tensor: _Tensor) -> ColumnInfo:
        is_list = self._is_list(tensor)
        fits = is_list or tensor.size == self.rows or not tensor.shape
        element = _TYPES[tensor.type][1] if fits and tensor.type in _TYPES else "other"
        return ColumnInfo(tensor.name, f"{tensor.type}{list(tensor.shape)}", element, is_list)

    @property
    def rows(self) -> int:
        return len(self._offsets) - 1

    @property
    def row_groups(self) -> tuple[int, ...]:
        return (self.rows,)

    @cached_property
    def step(self) -> int | None:
        text = str(self._metadata.get("step", "")).strip()
        return int(text) if text.lstrip("-").isdecimal() else None

    def values(self, column: str) -> int:  # noqa: ARG002 - every token tensor has the same rows
        return int(self._offsets[-1])

    def batches(
        self,
        columns: Collection[str],
        *,
        size_by: str,  # noqa: ARG002 - see values
        chunk_tokens: int,
        row_groups: Sequence[int],  # noqa: ARG002 - there is one
    ) -> Iterator[Batch]:
        wanted = [tensor for name, tensor in self._tensors.items() if name in columns]
        with open_binary(self._file.path) as stream:
            for first, last in self._cuts(chunk_tokens):
                numbers = np.arange(first, last, dtype=np.int64)
                yield Batch(numbers, {t.name: self._slice(stream, t, first, last) for t in wanted})

    def _cuts(self, chunk_tokens: int) -> Iterator[tuple[int, int]]:
        """Row ranges of about `chunk_tokens` stored elements, padding included."""
        stored = self._offsets if self._width is None else np.arange(self.rows + 1) * self._width
        first = 0
        while first < self.rows:
            last = int(np.searchsorted(stored, stored[first] + chunk_tokens, side="right")) - 1
            last = min(max(last, first + 1), self.rows)
            yield first, last
            first = last

    def _slice(self, stream: IO[bytes], tensor: _Tensor, first: int, last: int) -> Ragged | Scalars:
        offsets = self._offsets[first : last + 1] - self._offsets[first]
        if not self._is_list(tensor):
            return _per_row(self._read(stream, tensor, *self._row_span(tensor, first, last)), last - first)
        if self._width is None:
            return Ragged(self._read(stream, tensor, int(self._offsets[first]), int(self._offsets[last])), offsets)
        values = self._read(stream, tensor, first * self._width, last * self._width)
        return Ragged(self._trimmed(values, offsets), offsets)

    def _row_span(self, tensor: _Tensor, first: int, last: int) -> tuple[int, int]:
        return (0, 1) if tensor.size == 1 and not tensor.shape else (first, last)

    def _trimmed(self, values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[Any]:
        lengths = np.diff(offsets)
        if self._width is None or len(values) == offsets[-1]:
            return values
        return values.reshape(-1, self._width)[np.arange(self._width) < lengths[:, None]]

    def _read(self, stream: IO[bytes], tensor: _Tensor, first: int, last: int) -> NDArray[Any]:
        """Elements first to last of the flat tensor; half precision widened to float32."""
        if tensor.type not in _TYPES:
            raise UnreadableFileError(
                f"{self._file.name}: tensor {tensor.name!r} is {tensor.type}, which is not read; "
                "store log-probs as F32, F64, F16 or BF16"
            )
        kind = np.dtype(_TYPES[tensor.type][0])
        stream.seek(tensor.start + first * kind.itemsize)
        return _widened(np.frombuffer(stream.read((last - first) * kind.itemsize), kind), tensor.type)

    def _is_list(self, tensor: _Tensor) -> bool:
        """Whether the tensor holds one value a token; where every row is one token its name decides."""
        if self._width is not None:
            return tensor.shape in {(self.rows, self._width), self._lead.shape}
        per_row = tensor.shape == (self.rows,) and tensor.name in _ROW_NAMES
        return tensor.size == self._offsets[-1] and not per_row

    def _check_extent(self) -> None:
        end = max((tensor.end for tensor in self._tensors.values()), default=len(self.footer))
        if end > self._file.size:
            raise UnreadableFileError(
                f"{self._file.path}: truncated safetensors ({self._file.size} of {end} bytes), or still being written"
            )

    def _read_rows(self, stream: IO[bytes], layout: str | None) -> tuple[NDArray[np.int64], int | None]:
        """Offsets of the rows, and the stored width of a padded tensor (None: packed)."""
        lead, lengths = self._lead, self._lengths(stream)
        if (layout or self._guess(lead)) == "packed":
            return self._packed_rows(lead, lengths), None
        rows, width = lead.shape if len(lead.shape) == 2 else (1, lead.size)
        if lengths is None:
            return np.arange(rows + 1, dtype=np.int64) * width, width
        if len(lengths) != rows or lengths.min(initial=0) < 0 or lengths.max(initial=0) > width:
            raise UnreadableFileError(
                f"{self._file.name}: lengths ([{len(lengths)}], up to {lengths.max(initial=0)}) do not fit "
                f"{lead.name} {list(lead.shape)}"
            )
        return _cumulated(lengths), width

    def _guess(self, lead: _Tensor) -> Layout:
        """Two dimensions are padded rows, but for one row that `cu_seqlens` cuts up."""
        packed_row = lead.shape[:1] == (1,) and _OFFSETS in self._tensors
        return "packed" if len(lead.shape) != 2 or packed_row else "padded"

    def _packed_rows(self, lead: _Tensor, lengths: NDArray[np.int64] | None) -> NDArray[np.int64]:
        if lengths is None:
            raise UnreadableFileError(
                f"{self._file.name}: {lead.name} is packed {list(lead.shape)}, but neither cu_seqlens nor "
                "lengths says where rows end; add one of them, or store [B, T]"
            )
        offsets = _cumulated(lengths)
        if lengths.min(initial=0) < 0 or offsets[-1] != lead.size:
            raise UnreadableFileError(
                f"{self._file.name}: rows end at {offsets[-1]} but {lead.name} holds {lead.size} values"
            )
        return offsets

    @cached_property
    def _lead(self) -> _Tensor:
        """The rollout's log-probs; with `--map` in play, the largest tensor."""
        named = next((self._tensors[name] for name in _LEAD_NAMES if name in self._tensors), None)
        floats = [t for t in self._tensors.values() if t.type in {"F64", "F32", "F16", "BF16"}]
        lead = named or max(floats, key=lambda t: (t.size, t.name), default=None)
        if lead is None:
            raise UnreadableFileError(f"{self._file.name}: no tensor of log-probs ({self._listed()})")
        return lead

    def _listed(self) -> str:
        return ", ".join(f"{t.name} {t.type}{list(t.shape)}" for t in self._tensors.values()) or "no tensor at all"

    def _lengths(self, stream: IO[bytes]) -> NDArray[np.int64] | None:
        """[rows] from `cu_seqlens` or one of the names of lengths."""
        for name in (_OFFSETS, *_LENGTHS):
            if name in self._tensors:
                values = self._read(stream, self._tensors[name], 0, self._tensors[name].size).astype(np.int64)
                return np.diff(values) if name == _OFFSETS else values
        return None


_ROW_NAMES = {name for field in FIELDS if field.kind != "token" for name in (field.name, *field.aliases)}


def _header(file: DumpFile, stream: IO[bytes]) -> tuple[bytes, dict[str, Any]]:
    prefix = stream.read(8)
    length = int.from_bytes(prefix, "little")
    if length > _MAX_HEADER:
        raise UnreadableFileError(f"{file.path}: not a safetensors file (its header would be {length} bytes long)")
    body = stream.read(length)
    try:
        header = json.loads(body)
    except ValueError as error:
        raise UnreadableFileError(f"{file.path}: damaged safetensors, its header is not JSON") from error
    if not isinstance(header, dict):
        raise UnreadableFileError(f"{file.path}: damaged safetensors, its header is not a JSON object")
    return prefix + body, header


def _tensor(file: DumpFile, name: str, entry: Any, data_start: int) -> _Tensor:
    try:
        start, end = entry["data_offsets"]
        shape = tuple(int(size) for size in entry["shape"])
        tensor = _Tensor(name, str(entry["dtype"]), shape, data_start + int(start), data_start + int(end))
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableFileError(f"{file.path}: damaged safetensors, tensor {name!r} is not described") from error
    kind = _TYPES.get(tensor.type)
    if kind and tensor.size * np.dtype(kind[0]).itemsize != tensor.end - tensor.start:
        raise UnreadableFileError(f"{file.path}: damaged safetensors, tensor {name!r} does not fill its bytes")
    return tensor


def _widened(values: NDArray[Any], kind: str) -> NDArray[Any]:
    if kind == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if kind == "F16" else values


def _per_row(values: NDArray[Any], rows: int) -> Scalars:
    wide = np.int64 if values.dtype.kind in "iub" else np.float64
    return Scalars(np.broadcast_to(values.astype(wide), (rows,)) if len(values) == 1 else values.astype(wide))


def _cumulated(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
