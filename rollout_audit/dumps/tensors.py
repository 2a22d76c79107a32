"""safetensors: padded [B, T] or packed [N] tensors, read a slice of rows at a time."""

from __future__ import annotations

import json
import math
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from rollout_audit.dumps.columns import Batch, ColumnInfo, Ragged, Scalars, as_wide
from rollout_audit.dumps.discovery import DumpFile, open_binary, spelt_in_utf8
from rollout_audit.dumps.fields import FIELDS
from rollout_audit.dumps.naming import step_in_metadata
from rollout_audit.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["TensorSource"]

_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_WHOLE = dict.fromkeys(("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"), "int")
_ELEMENTS = {**_FLOATS, **_WHOLE, "BOOL": "bool"}
"""safetensors' name → the element of `ColumnInfo`"""

_OFFSETS = "cu_seqlens"
_LENGTHS = ("lengths", "response_lengths")
_LEAD_NAMES = next((field.name, *field.aliases) for field in FIELDS if field.name == "rollout_log_probs")
_ROW_NAMES = {name for field in FIELDS if field.kind != "token" for name in (field.name, *field.aliases)}


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    type: str
    shape: tuple[int, ...]

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
        with _local_path(file) as path:
            self.footer = _header(path)
            with self._opened(path) as stored:
                self._metadata: dict[str, str] = stored.metadata() or {}
                views = {name: stored.get_slice(name) for name in stored.keys()}  # noqa: SIM118 - not a dict
                self._tensors = {n: _Tensor(n, str(v.get_dtype()), tuple(v.get_shape())) for n, v in views.items()}
                self._offsets, self._width = self._read_rows(stored, layout)

    @contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        try:
            stored = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise UnreadableFileError(f"{self._file.path}: {_damage(self.footer, self._file.size)}") from error
        with stored:
            yield stored

    @cached_property
    def columns(self) -> tuple[ColumnInfo, ...]:
        return tuple(self._info(t) for name, t in self._tensors.items() if name not in {_OFFSETS, *_LENGTHS})

    def _info(self, tensor: _Tensor) -> ColumnInfo:
        is_list = self._is_list(tensor)
        fits = is_list or tensor.size == self.rows or not tensor.shape
        element = _ELEMENTS.get(tensor.type, "other") if fits else "other"
        return ColumnInfo(tensor.name, f"{tensor.type}{list(tensor.shape)}", element, is_list)

    @property
    def rows(self) -> int:
        return len(self._offsets) - 1

    @property
    def row_groups(self) -> tuple[int, ...]:
        return (self.rows,)

    @property
    def step(self) -> int | None:
        return step_in_metadata(self._metadata)

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
        with _local_path(self._file) as path:
            for first, last in self._cuts(chunk_tokens):
                numbers = np.arange(first, last, dtype=np.int64)
                with self._opened(path) as stored:  # anew, or every page of the mapping read so far stays in memory
                    read = {tensor.name: self._slice(stored, tensor, first, last) for tensor in wanted}
                yield Batch(numbers, read)

    def _cuts(self, chunk_tokens: int) -> Iterator[tuple[int, int]]:
        """Row ranges of about `chunk_tokens` stored elements, padding included."""
        stored = self._offsets if self._width is None else np.arange(self.rows + 1) * self._width
        first = 0
        while first < self.rows:
            last = int(np.searchsorted(stored, stored[first] + chunk_tokens, side="right")) - 1
            last = min(max(last, first + 1), self.rows)
            yield first, last
            first = last

    def _slice(self, stored: Any, tensor: _Tensor, first: int, last: int) -> Ragged | Scalars:
        offsets = self._offsets[first : last + 1] - self._offsets[first]
        if not self._is_list(tensor):
            span = (first, last) if tensor.shape else (0, 1)
            return _per_row(self._read(stored, tensor, *span), last - first)
        if self._width is None:
            return Ragged(self._read(stored, tensor, int(self._offsets[first]), int(self._offsets[last])), offsets)
        values = self._read(stored, tensor, first * self._width, last * self._width)
        if len(values) > offsets[-1]:  # padding
            values = values.reshape(-1, self._width)[np.arange(self._width) < np.diff(offsets)[:, None]]
        return Ragged(values, offsets)

    def _read(self, stored: Any, tensor: _Tensor, first: int, last: int) -> NDArray[Any]:
        """Elements first to last of the flat tensor, a copy; half precision widened to float32."""
        if tensor.type not in _ELEMENTS:
            raise UnreadableFileError(
                f"{self._file.name}: tensor {tensor.name!r} is {tensor.type}, which is not read; "
                "store integers, float64, float32, float16 or bfloat16"
            )
        if tensor.size <= 1 or first == last:
            values = stored.get_tensor(tensor.name).reshape(-1)[first:last]
        else:
            axis = next(i for i, size in enumerate(tensor.shape) if size > 1)
            width = tensor.size // tensor.shape[axis]
            low, high = first // width, -(-last // width)
            values = stored.get_slice(tensor.name)[(*[slice(0, 1)] * axis, slice(low, high))].reshape(-1)
            values = values[first - low * width : last - low * width]
        return np.array((values.float() if tensor.type in {"F16", "BF16"} else values).numpy())

    def _is_list(self, tensor: _Tensor) -> bool:
        """Whether the tensor holds one value a token; where every row is one token its name decides."""
        if self._width is not None:
            return tensor.shape in {(self.rows, self._width), self._lead.shape}
        per_row = tensor.shape == (self.rows,) and tensor.name in _ROW_NAMES
        return tensor.size == self._offsets[-1] and not per_row

    def _read_rows(self, stored: Any, layout: str | None) -> tuple[NDArray[np.int64], int | None]:
        """Offsets of the rows, and the stored width of a padded tensor (None: packed)."""
        lead, lengths = self._lead, self._lengths(stored)
        if len(lead.shape) > 2:
            raise UnreadableFileError(
                f"{self._file.name}: {lead.name} has {len(lead.shape)} dimensions {list(lead.shape)}; "
                "expected padded [B, T] or packed [N]"
            )
        # two dimensions are padded rows, but for one row that `cu_seqlens` cuts up
        cut_up = len(lead.shape) != 2 or (lead.shape[0] == 1 and _OFFSETS in self._tensors)
        if layout == "packed" or (layout is None and cut_up):
            return self._packed_rows(lead, lengths), None
        rows, width = lead.shape if len(lead.shape) == 2 else (1, lead.size)
        if lengths is None:
            return np.arange(rows + 1, dtype=np.int64) * width, width
        if len(lengths) != rows or lengths.max(initial=0) > width:
            raise UnreadableFileError(
                f"{self._file.name}: lengths ([{len(lengths)}], up to {lengths.max(initial=0)}) do not fit "
                f"{lead.name} {list(lead.shape)}"
            )
        return _cumulated(lengths), width

    def _packed_rows(self, lead: _Tensor, lengths: NDArray[np.int64] | None) -> NDArray[np.int64]:
        if lengths is None:
            raise UnreadableFileError(
                f"{self._file.name}: {lead.name} is packed {list(lead.shape)}, but neither cu_seqlens nor "
                "lengths says where rows end; add one of them, store [B, T], or take it as one row with --layout padded"
            )
        offsets = _cumulated(lengths)
        if offsets[-1] != lead.size:
            raise UnreadableFileError(
                f"{self._file.name}: rows end at {offsets[-1]} but {lead.name} holds {lead.size} values"
            )
        return offsets

    @cached_property
    def _lead(self) -> _Tensor:
        """The rollout's log-probs; with `--map` in play, the largest tensor."""
        named = next((self._tensors[name] for name in _LEAD_NAMES if name in self._tensors), None)
        floats = [t for t in self._tensors.values() if t.type in _FLOATS]
        lead = named or max(floats, key=lambda t: (t.size, t.name), default=None)
        if lead is None:
            listed = ", ".join(f"{t.name} {t.type}{list(t.shape)}" for t in self._tensors.values())
            raise UnreadableFileError(f"{self._file.name}: no tensor of log-probs ({listed or 'no tensor at all'})")
        return lead

    def _lengths(self, stored: Any) -> NDArray[np.int64] | None:
        """[rows] from `cu_seqlens` or one of the names of lengths."""
        name = next((name for name in (_OFFSETS, *_LENGTHS) if name in self._tensors), None)
        if name is None:
            return None
        tensor = self._tensors[name]
        values = self._read(stored, tensor, 0, tensor.size)
        if misfit := _misfit(tensor, values):
            raise UnreadableFileError(f"{self._file.name}: {name} {misfit}")
        whole: NDArray[np.int64] = values.astype(np.int64)
        return whole[1:] - whole[:-1] if name == _OFFSETS else whole


def _misfit(tensor: _Tensor, values: NDArray[Any]) -> str | None:
    """Why a tensor cannot say where rows end."""
    if tensor.type not in _WHOLE:
        return f"holds {tensor.type}, expected integers"
    if tensor.name == _OFFSETS and len(values) and values[0] != 0:
        return f"begins with {values[0]}, expected 0"
    least = np.concatenate((values[:1], values[:-1])) if tensor.name == _OFFSETS else np.zeros_like(values)
    for place in np.flatnonzero(values < least)[:1]:
        if tensor.name == _OFFSETS:
            return f"descends at index {place}, from {least[place]} to {values[place]}: offsets only rise"
        return f"is {values[place]} at index {place}: no row has fewer than 0 tokens"
    return None


@contextmanager
def _local_path(file: DumpFile) -> Iterator[str]:
    """A path that the library can open: of a copy, deleted afterwards, where it cannot open the file itself."""
    if "://" not in file.path and spelt_in_utf8(file.path):
        yield file.path
        return
    with TemporaryDirectory(prefix="rollout-audit-") as folder:
        path = Path(folder, "copy.safetensors")
        with open_binary(file.path) as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy, 2**20)
        yield str(path)


def _header(path: str) -> bytes:
    with open(path, "rb") as stream:
        prefix = stream.read(8)
        return prefix + stream.read(int.from_bytes(prefix, "little"))  # discovery has checked its length


def _damage(footer: bytes, size: int) -> str:
    """What is wrong with a file that the library refuses, whatever the words of its version are."""
    end, guess = len(footer), "its header is not JSON"
    try:
        header = json.loads(footer[8:])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            guess = f"tensor {name!r} is not described"
            end = max(end, len(footer) + int(entry["data_offsets"][1]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return f"damaged safetensors, {guess}"
    if end > size:
        return f"truncated safetensors ({size} of {end} bytes), or still being written"
    return "damaged safetensors (its header does not fit its bytes), or of a type that the library does not know"


def _per_row(values: NDArray[Any], rows: int) -> Scalars:
    values = as_wide(values)
    return Scalars(np.broadcast_to(values, (rows,)) if len(values) == 1 else values)


def _cumulated(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
