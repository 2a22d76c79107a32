"""Tensors of a batch: padded [B, T], packed [N], or as one trainer lays them out, read a slice of rows at a time."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_audit.dumps.columns import Batch, ColumnInfo, Ragged, Scalars, as_wide, counts_by_row, offsets_of
from rollout_audit.dumps.fields import FIELDS, NAMES, TRAINING
from rollout_audit.dumps.layouts import Layout, layout_of, mask_column, moved, response_places
from rollout_audit.dumps.naming import step_in_metadata
from rollout_audit.dumps.stores import SafetensorsStore
from rollout_audit.dumps.values import on_host
from rollout_audit.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rollout_audit.dumps.discovery import DumpFile
    from rollout_audit.dumps.stores import Opened, Store, Tensor

__all__ = ["TensorSource"]

_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_WHOLE = dict.fromkeys(("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"), "int")
_ELEMENTS = {**_FLOATS, **_WHOLE, "BOOL": "bool", "TEXT": "text"}
"""the type's name → the element of `ColumnInfo`"""

_OFFSETS = "cu_seqlens"
_LENGTHS = ("lengths", "response_lengths")
_LEAD_NAMES = NAMES["rollout_log_probs"]
_ROW_NAMES = {name for field in FIELDS if field.kind != "token" for name in NAMES[field.name]}


class TensorSource:
    """One file of named tensors; opening it reads what describes them, and the row lengths.

    Raises:
        UnreadableFileError: packed without `cu_seqlens` or `lengths`, shapes that do not fit each other.
        UsageError: content leaves two readings, or lacks what the layout asked for needs.
    """

    lacks_training = ""
    takes_layout = True

    def __init__(self, file: DumpFile, store: Store, layout: str | None = None) -> None:
        self._file = file
        self._store = store
        self._tensors = store.tensors
        self.footer = store.footer
        self._layout = layout_of(self._tensors, self._lead, layout, file.name)
        self._mask = mask_column(self._layout, self._tensors)
        with store.opened() as stored:
            self._offsets, self._width = self._read_rows(stored, self._layout)
        self._padding = self._padding_mask()
        self._check_masks()

    @classmethod
    def of(cls, file: DumpFile, layout: str | None) -> TensorSource:
        """A safetensors file."""
        return cls(file, SafetensorsStore(file), layout)

    @property
    def fields(self) -> Mapping[str, str]:
        """What the layout says of names; nothing where content is read as it is."""
        named = {f: c for f, c in (self._layout.fields if self._layout else {}).items() if c in self._tensors}
        return named | ({"response_mask": self._mask} if self._mask else {})

    @cached_property
    def columns(self) -> tuple[ColumnInfo, ...]:
        stored = tuple(self._info(t) for name, t in self._tensors.items() if name not in {_OFFSETS, *_LENGTHS})
        if self._mask is None or self._mask in self._tensors:
            return stored
        return (*stored, ColumnInfo(self._mask, "product", "float64", is_list=True))

    def _info(self, tensor: Tensor) -> ColumnInfo:
        is_list = self._is_list(tensor)
        fits = is_list or tensor.size == self.rows or not tensor.shape
        element = _ELEMENTS.get(tensor.type, "other") if fits else "misfit"
        return ColumnInfo(tensor.name, f"{tensor.type}{list(tensor.shape)}", element, is_list)

    @property
    def rows(self) -> int:
        return len(self._offsets) - 1

    @property
    def row_groups(self) -> tuple[int, ...]:
        return (self.rows,)

    @property
    def step(self) -> int | None:
        return step_in_metadata(self._store.metadata)

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
        for first, last in self._cuts(chunk_tokens):
            numbers = np.arange(first, last, dtype=np.int64)
            with self._store.opened() as stored:
                yield Batch(numbers, self._slice(stored, columns, first, last))

    @property
    def shape(self) -> tuple[int, ...]:
        """As the rollout's log-probs are stored."""
        return self._lead.shape

    @property
    def row_ends(self) -> tuple[Tensor, NDArray[Any]] | None:
        """What says where packed rows end, as it is stored; None where the tensor is padded."""
        name = self._ends_name
        if self._width is not None or name is None:
            return None
        tensor = self._tensors[name]
        with self._store.opened() as stored:
            return tensor, self._read(stored, tensor, 0, tensor.size)

    def places(self, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[tokens] place of each token of these rows in the flat tensor, and [rows + 1] where rows begin and end."""
        with self._store.opened() as stored:
            offsets, kept = self._kept(stored, first, last)
        start = int(self._offsets[first]) if self._width is None else first * self._width
        return start + (np.arange(int(offsets[-1])) if kept is None else np.flatnonzero(kept)), offsets

    def _cuts(self, chunk_tokens: int) -> Iterator[tuple[int, int]]:
        """Row ranges of about `chunk_tokens` stored elements, padding included."""
        stored = self._offsets if self._width is None else np.arange(self.rows + 1) * self._width
        first = 0
        while first < self.rows:
            last = int(np.searchsorted(stored, stored[first] + chunk_tokens, side="right")) - 1
            last = min(max(last, first + 1), self.rows)
            yield first, last
            first = last

    def _slice(self, stored: Opened, columns: Collection[str], first: int, last: int) -> dict[str, Ragged | Scalars]:
        offsets, kept = self._kept(stored, first, last)
        read: dict[str, Ragged | Scalars] = {}
        for name in columns:
            tensor = self._tensors.get(name)
            if tensor is not None and not self._is_list(tensor):
                span = (first, last) if tensor.shape else (0, 1)
                read[name] = _per_row(self._read(stored, tensor, *span), last - first)
            else:
                values = self._column(stored, name, first, last)
                read[name] = Ragged(values if kept is None else values[kept], offsets)
        return read

    def _column(self, stored: Opened, name: str, first: int, last: int) -> NDArray[Any]:
        """[places] of these rows: a tensor, or the product that is the layout's mask."""
        if name != self._mask or name in self._tensors:
            return self._on_grid(stored, self._tensors[name], first, last)
        assert self._layout is not None
        parts = [self._on_grid(stored, self._tensors[n], first, last) for n in self._layout.masks if n in self._tensors]
        return np.asarray(np.prod([part.astype(np.float64) for part in parts], axis=0))

    def _on_grid(self, stored: Opened, tensor: Tensor, first: int, last: int) -> NDArray[Any]:
        """Values of a token tensor where the log-probs of these rows stand, flat."""
        if self._width is None:
            values = self._read(stored, tensor, int(self._offsets[first]), int(self._offsets[last]))
            return self._aligned(tensor.name, values, self._offsets[first : last + 1] - self._offsets[first])
        width = self._width if tensor.size == self.rows * self._width else tensor.shape[1]
        values = self._read(stored, tensor, first * width, last * width)
        if width != self._width:
            values = values.reshape(-1, width)[:, width - self._width :].reshape(-1)
        return self._aligned(tensor.name, values, np.arange(last - first + 1, dtype=np.int64) * self._width)

    def _aligned(self, name: str, values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[Any]:
        """Values where the log-probs of their tokens stand, should the layout hold them a place off."""
        if self._layout is None:
            return values
        if name in self._layout.unrolled:
            return moved(values, offsets, -1)
        return moved(values, offsets, 1) if name in self._layout.rolled else values

    def _kept(self, stored: Opened, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Offsets of these rows, and which places of the stored rows they keep (None: all)."""
        offsets = self._offsets[first : last + 1] - self._offsets[first]
        if self._layout is not None and self._layout.start:
            if self._width is not None:
                offsets = np.arange(last - first + 1, dtype=np.int64) * self._width
            kept = self._responses(stored, self._layout, offsets, first, last)
            return offsets_of(counts_by_row(kept, offsets)), kept
        if self._padding:
            ends = np.asarray(self._on_grid(stored, self._padding, first, last) != 0)
            kept = response_places(np.ones(len(ends), np.bool_), ends, offsets)
            return offsets_of(counts_by_row(kept, offsets)), kept
        if self._width is None or offsets[-1] == (last - first) * self._width:
            return offsets, None
        return offsets, (np.arange(self._width) < np.diff(offsets)[:, None]).reshape(-1)

    def _responses(
        self, stored: Opened, layout: Layout, offsets: NDArray[np.int64], first: int, last: int
    ) -> NDArray[np.bool_]:
        def flags(name: str) -> NDArray[np.bool_]:
            return np.asarray(self._on_grid(stored, self._tensors[name], first, last) != 0)

        assert layout.start is not None
        begins = flags(layout.start)
        if self._width is not None:
            stop = layout.stop if layout.stop in self._tensors else layout.start
            return response_places(begins, begins if stop == layout.start else flags(str(stop)), offsets)
        # a packed row that was rolled ends with a place that is not its own
        ends = None if layout.unrolled else np.ones(len(begins), np.bool_)
        return response_places(begins, ends, offsets)

    def _read(self, stored: Opened, tensor: Tensor, first: int, last: int) -> NDArray[Any]:
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
        return np.array(on_host(values))

    def _is_list(self, tensor: Tensor) -> bool:
        """Whether the tensor holds one value a token; where every row is one token its name decides."""
        if self._width is not None:
            return tensor.shape in {(self.rows, self._width), self._lead.shape} or self._is_wider(tensor)
        per_row = tensor.shape == (self.rows,) and tensor.name in _ROW_NAMES
        return tensor.size == self._offsets[-1] and not per_row

    def _is_wider(self, tensor: Tensor) -> bool:
        aligned = self._layout is not None and self._layout.right_aligned
        return aligned and len(tensor.shape) == 2 and tensor.shape[0] == self.rows and tensor.shape[1] > self._width  # type: ignore[operator]

    def _read_rows(self, stored: Opened, layout: Layout | None) -> tuple[NDArray[np.int64], int | None]:
        """Offsets of the rows, and the stored width of a padded tensor (None: packed)."""
        lead, lengths = self._lead, self._lengths(stored)
        if len(lead.shape) > 2:
            raise UnreadableFileError(
                f"{self._file.name}: {lead.name} has {len(lead.shape)} dimensions {list(lead.shape)}; "
                "expected padded [B, T] or packed [N]"
            )
        # two dimensions are padded rows, but for one row that `cu_seqlens` cuts up
        cut_up = len(lead.shape) != 2 or (lead.shape[0] == 1 and _OFFSETS in self._tensors)
        packed = layout.packed if layout is not None and layout.packed is not None else cut_up
        if packed:
            return self._packed_rows(lead, lengths), None
        rows, width = lead.shape if len(lead.shape) == 2 else (1, lead.size)
        if lengths is None or (layout is not None and layout.start):
            return np.arange(rows + 1, dtype=np.int64) * width, width
        if len(lengths) != rows or lengths.max(initial=0) > width:
            raise UnreadableFileError(
                f"{self._file.name}: lengths ([{len(lengths)}], up to {lengths.max(initial=0)}) do not fit "
                f"{lead.name} {list(lead.shape)}"
            )
        return offsets_of(lengths), width

    def _check_masks(self) -> None:
        """Raises UnreadableFileError where a tensor by which the layout finds the responses is of another shape."""
        if self._layout is None:
            return
        named = {self._layout.start, self._layout.stop, *self._layout.masks}
        for tensor in (tensor for name, tensor in self._tensors.items() if name in named):
            if not self._is_list(tensor):
                raise UnreadableFileError(
                    f"{self._file.name}: {tensor.name} {list(tensor.shape)} does not fit {self._lead.name} "
                    f"{list(self._lead.shape)}: the layout {self._layout.name} needs one value a token"
                )

    def _padding_mask(self) -> Tensor | None:
        """The mask whose last 1 ends a padded row, where nothing else says how long it is.

        A file of one side alone keeps its width: the other side, which is joined to it, may come without a mask.
        """
        if self._width is None or (self._layout and self._layout.start) or {*_LENGTHS, _OFFSETS} & self._tensors.keys():
            return None
        trained = [name for side in sorted(TRAINING) for name in NAMES[side]]
        if not all(any(name in self._tensors for name in side) for side in (_LEAD_NAMES, trained)):
            return None
        masks = (self._tensors[name] for name in NAMES["response_mask"] if name in self._tensors)
        return next((mask for mask in masks if mask.shape == self._lead.shape), None)

    def _packed_rows(self, lead: Tensor, lengths: NDArray[np.int64] | None) -> NDArray[np.int64]:
        if lengths is None:
            raise UnreadableFileError(
                f"{self._file.name}: {lead.name} is packed {list(lead.shape)}, but neither cu_seqlens nor "
                "lengths says where rows end; add one of them, store [B, T], or take it as one row with --layout padded"
            )
        offsets = offsets_of(lengths)
        if offsets[-1] != lead.size:
            raise UnreadableFileError(
                f"{self._file.name}: rows end at {offsets[-1]} but {lead.name} holds {lead.size} values"
            )
        return offsets

    @cached_property
    def _lead(self) -> Tensor:
        """The rollout's log-probs; with `--map` in play, the largest tensor."""
        named = next((self._tensors[name] for name in _LEAD_NAMES if name in self._tensors), None)
        floats = [t for t in self._tensors.values() if t.type in _FLOATS]
        lead = named or max(floats, key=lambda t: (t.size, t.name), default=None)
        if lead is None:
            listed = ", ".join(f"{t.name} {t.type}{list(t.shape)}" for t in self._tensors.values())
            raise UnreadableFileError(f"{self._file.name}: no tensor of log-probs ({listed or 'no tensor at all'})")
        return lead

    @property
    def _ends_name(self) -> str | None:
        return next((name for name in (_OFFSETS, *_LENGTHS) if name in self._tensors), None)

    def _lengths(self, stored: Opened) -> NDArray[np.int64] | None:
        """[rows] from `cu_seqlens` or one of the names of lengths."""
        name = self._ends_name
        if name is None:
            return None
        tensor = self._tensors[name]
        values = self._read(stored, tensor, 0, tensor.size)
        if misfit := _misfit(tensor, values):
            raise UnreadableFileError(f"{self._file.name}: {name} {misfit}")
        whole: NDArray[np.int64] = values.astype(np.int64)
        return whole[1:] - whole[:-1] if name == _OFFSETS else whole


def _misfit(tensor: Tensor, values: NDArray[Any]) -> str | None:
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


def _per_row(values: NDArray[Any], rows: int) -> Scalars:
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "backslashreplace")
    values = values.astype(object) if values.dtype.kind in "UT" else as_wide(values)
    return Scalars(np.broadcast_to(values, (rows,)) if len(values) == 1 else values)
