"""Named tensors in a file, whichever library wrote them: safetensors, NumPy's .npz, torch.save."""

from __future__ import annotations

import json
import math
import shutil
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from safetensors import SafetensorError, safe_open

from rollout_audit.dumps.discovery import MAX_HEADER, PICKLE_ADVICE, DumpFile, members, open_binary, opens_by_path
from rollout_audit.dumps.torch_files import zip_footer
from rollout_audit.dumps.values import type_name
from rollout_audit.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["ArrayStore", "Opened", "SafetensorsStore", "Store", "Tensor", "npz_store"]

TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{letter}{bits}" for sign, letter in (("", "I"), ("u", "U")) for bits in (8, 16, 32, 64)},
}
"""name of a NumPy or torch type → the name that safetensors has for it"""


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a file says of one tensor without reading it."""

    name: str
    type: str
    """as safetensors spells it, e.g. `BF16`; `TEXT` for names"""
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Opened(Protocol):
    """An open file: whole tensors, and things that can be cut like them."""

    def get_tensor(self, name: str) -> Any: ...

    def get_slice(self, name: str) -> Any: ...


class Store(Protocol):
    """One file of named tensors."""

    footer: bytes
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def opened(self) -> Any:
        """A context that gives an `Opened`."""
        ...


class SafetensorsStore:
    """A safetensors file; only its header is read.

    Raises:
        UnreadableFileError: truncated or damaged.
    """

    def __init__(self, file: DumpFile) -> None:
        self._file = file
        with _local_path(file) as path:
            self.footer = _header(path)
            with self._open(path) as stored:
                self.metadata: Mapping[str, Any] = stored.metadata() or {}
                views = {name: stored.get_slice(name) for name in stored.keys()}  # noqa: SIM118 - not a dict
                self.tensors: Mapping[str, Tensor] = {
                    n: Tensor(n, str(v.get_dtype()), tuple(v.get_shape())) for n, v in views.items()
                }

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Opened anew each time, or every page of the mapping that was ever read stays in memory."""
        with _local_path(self._file) as path, self._open(path) as stored:
            yield stored

    @contextmanager
    def _open(self, path: str) -> Iterator[Any]:
        try:
            stored = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise UnreadableFileError(f"{self._file.path}: {_damage(self.footer, self._file.size)}") from error
        with stored:
            yield stored


class ArrayStore:
    """Arrays of NumPy or tensors of torch that are in memory, or mapped into it."""

    def __init__(self, arrays: Mapping[str, Any], footer: bytes) -> None:
        self.footer = footer
        self._arrays = arrays
        self.metadata: Mapping[str, Any] = {}
        self.tensors: Mapping[str, Tensor] = {
            name: Tensor(name, _type(array), tuple(array.shape)) for name, array in self._arrays.items()
        }

    @contextmanager
    def opened(self) -> Iterator[ArrayStore]:
        yield self

    def get_tensor(self, name: str) -> Any:
        return self._arrays[name]

    def get_slice(self, name: str) -> Any:
        return self._arrays[name]


def _type(array: Any) -> str:
    name = type_name(array)
    if getattr(array.dtype, "kind", "") in {"U", "S", "T"}:
        return "TEXT"
    return TYPES.get(name, name)


def npz_store(file: DumpFile) -> ArrayStore:
    """A `.npz` of NumPy; the whole file is the unit that is held in memory.

    Raises:
        UnreadableFileError: damaged, or an array of Python objects.
    """
    if not members(file.path):
        raise UnreadableFileError(f"{file.path}: not a .npz archive, damaged or still being written")
    try:
        with open_binary(file.path) as stream, np.load(stream, allow_pickle=False) as archive:
            members_read = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        if "pickle" in str(error).lower():
            raise UnreadableFileError(f"{file.path}: holds Python objects; {PICKLE_ADVICE}") from error
        raise UnreadableFileError(f"{file.path}: damaged .npz, or still being written ({error})") from error
    arrays = {name: _of_this_machine(value) for name, value in members_read.items() if hasattr(value, "dtype")}
    if not arrays and members_read:
        raise UnreadableFileError(f"{file.path}: a zip archive without an array of NumPy in it, so no .npz")
    return ArrayStore(arrays, zip_footer(file.path))


def _of_this_machine(array: Any) -> Any:
    """The same numbers in the byte order of this machine."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


@contextmanager
def _local_path(file: DumpFile) -> Iterator[str]:
    """A path that the library can open: of a copy, deleted afterwards, where it cannot open the file itself."""
    if opens_by_path(file.path):
        yield file.path
        return
    with TemporaryDirectory(prefix="rollout-audit-") as folder:
        path = Path(folder, "copy.safetensors")
        with open_binary(file.path) as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy, 2**20)
        yield str(path)


def _header(path: str) -> bytes:
    with open_binary(path) as stream:
        prefix = stream.read(8)
        return prefix + stream.read(min(int.from_bytes(prefix, "little"), MAX_HEADER))


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
