"""From what a person types to an ordered list of files of a known format."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from posixpath import basename, splitext
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from rollout_audit.dumps.naming import natural_key, report_names
from rollout_audit.errors import DumpNotFoundError, UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["DumpFile", "Format", "discover", "open_binary", "spelt_in_utf8"]

Format = Literal["parquet", "safetensors"]

SUFFIXES: dict[str, Format] = {".parquet": "parquet", ".pq": "parquet", ".safetensors": "safetensors"}
_REPORT_FILES = {"report.json", "sequences.parquet"}
_MAX_HEADER = 100_000_000
"""bytes; the cap of the safetensors library"""
_HEAD = 512


@dataclass(frozen=True, slots=True)
class DumpFile:
    """One file of a dump."""

    name: str
    """Relative to the folder that all files share: what the report shows."""
    path: str
    """Absolute path, or the URI of a file elsewhere."""
    format: Format
    size: int
    """bytes"""


@dataclass(frozen=True, slots=True)
class _Place:
    """A file system and a path on it; `prefix` makes a URI of the path again."""

    fs: Any
    path: str
    prefix: str

    @property
    def uri(self) -> str:
        return self.prefix + self.path


def discover(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[DumpFile, ...]:
    """The files of a dump, in natural order and each once, whatever the order of the arguments.

    A path is a file, a folder (searched recursively for Parquet and safetensors), a glob or a URI.

    Raises:
        DumpNotFoundError: nothing there, or nothing of a known format.
        UnreadableFileError: a file that is empty, truncated or of another kind than its name says.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise DumpNotFoundError("no dump given: name a file, a folder, a glob or a URI")
    found = sorted((place for path in given for place in _expand(os.fspath(path))), key=_order)
    places = sorted({_identity(place): place for place in found}.values(), key=_order)
    names = report_names([place.uri for place in places])
    return tuple(_describe(place, name) for place, name in zip(places, names, strict=True))


def open_binary(path: str) -> IO[bytes]:
    """The file, open for reading bytes, on whatever file system its path or URI names."""
    if "://" not in path:
        return open(path, "rb")
    import fsspec

    return cast("IO[bytes]", fsspec.open(path, "rb").open())


def spelt_in_utf8(path: str) -> bool:
    """Whether libraries written in C++ and Rust can open the path: a name's undecodable bytes are not UTF-8."""
    return path.encode("utf-8", "replace").decode() == path


def _order(place: _Place) -> Any:
    return natural_key(place.uri)


def _identity(place: _Place) -> str:
    return place.uri if place.prefix else os.path.realpath(place.path)


def _locate(path: str) -> _Place:
    import fsspec

    if "://" not in path:
        local = os.path.abspath(os.path.expanduser(path)).replace(os.sep, "/")
        return _Place(fsspec.filesystem("file"), local, "")
    try:
        fs, inner = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError, OSError) as error:
        raise DumpNotFoundError(f"{path}: cannot open this kind of URI ({type(error).__name__}: {error})") from error
    protocol = path.partition("://")[0]
    return _Place(fs, inner, "" if protocol == "file" else f"{protocol}://")


def _expand(path: str) -> Iterator[_Place]:
    if not path:
        raise DumpNotFoundError("the path is empty: name a file, a folder, a glob or a URI")
    place = _locate(path)
    if place.fs.isfile(place.path):
        yield place
    elif place.fs.isdir(place.path):
        yield from _folder(place, path)
    else:
        yield from _glob(place, path)


def _glob(place: _Place, typed: str) -> Iterator[_Place]:
    hits = [_Place(place.fs, hit, place.prefix) for hit in _matches(place)]
    if not hits:
        raise DumpNotFoundError(f"{typed}: {_nothing_there(place)}")
    files = [hit for hit in hits if hit.fs.isfile(hit.path)]
    known = [hit for hit in files if _suffix(hit.path) in SUFFIXES]
    folders = [hit for hit in hits if hit.fs.isdir(hit.path) and any(map(_is_known, _walk(hit)))]
    yield from known if known or folders else files
    for folder in folders:
        yield from _folder(folder, folder.path)
    if not (files or folders):
        raise DumpNotFoundError(f"{typed}: no .parquet or .safetensors file in the folders that match")


def _matches(place: _Place) -> list[str]:
    found = place.fs.glob(place.path) if _is_pattern(place.path) else []
    return [hit for hit in found if _visible(basename(hit))]


def _is_pattern(path: str) -> bool:
    return any(mark in path for mark in "*?[")


def _is_known(path: str) -> bool:
    return _suffix(path) in SUFFIXES


def _nothing_there(place: _Place) -> str:
    return "no file matches this pattern" if _is_pattern(place.path) else "no such file or folder"


def _folder(place: _Place, typed: str) -> Iterator[_Place]:
    paths = list(_walk(place))
    if not any(map(_is_known, paths)):
        raise DumpNotFoundError(f"{typed}: {_what_is_there(place, paths)}")
    yield from (_Place(place.fs, path, place.prefix) for path in paths if _is_known(path))


def _walk(place: _Place) -> Iterator[str]:
    """Files below a folder, without hidden ones and without those of reports that this tool wrote."""
    for folder, _, files in place.fs.walk(place.path):
        inner = folder[len(place.path) :].strip("/")
        if not _is_report(files) and all(map(_visible, inner.split("/"))):
            yield from (f"{folder}/{name}" for name in files if _visible(name))


def _is_report(names: Iterable[str]) -> bool:
    return set(names) >= _REPORT_FILES


def _visible(name: str) -> bool:
    return not name.startswith(".")


def _what_is_there(place: _Place, paths: Sequence[str]) -> str:
    if not paths and _is_report(map(basename, place.fs.ls(place.path, detail=False))):
        return "a report of this tool, not a dump"
    if not paths:
        return "the folder holds no file; expected .parquet or .safetensors"
    counts = Counter(_suffix(path) or "no suffix" for path in paths)
    listed = ", ".join(f"{count} × {suffix}" for suffix, count in sorted(counts.items()))
    return f"no .parquet or .safetensors file in the folder (found {listed})"


def _suffix(path: str) -> str:
    return splitext(path)[1].lower()


def _describe(place: _Place, name: str) -> DumpFile:
    try:
        size = int(place.fs.size(place.path))
        with place.fs.open(place.path, "rb") as stream:
            head = stream.read(_HEAD)
            stream.seek(max(size - 4, 0))
            tail = stream.read(4)
    except OSError as error:
        raise UnreadableFileError(f"{place.uri}: cannot be read ({error.strerror or type(error).__name__})") from error
    return DumpFile(name, place.uri, _recognise(place.uri, size, head, tail), size)


def _recognise(path: str, size: int, head: bytes, tail: bytes) -> Format:
    """The format by content; the name only helps to say what is wrong."""
    if head[:4] == b"PAR1" and tail == b"PAR1" and size >= 12:
        return "parquet"
    if problem := _foreign(head, size):
        raise UnreadableFileError(f"{path}: {problem}")
    if head[:4] == b"PAR1":
        raise UnreadableFileError(f"{path}: Parquet without its footer, truncated or still being written")
    if SUFFIXES.get(_suffix(path)) == "parquet":
        raise UnreadableFileError(f"{path}: not a Parquet file (begins with {head[:8]!r})")
    return _recognise_tensors(path, size, head)


def _recognise_tensors(path: str, size: int, head: bytes) -> Format:
    named = SUFFIXES.get(_suffix(path)) == "safetensors"
    if not named and not _looks_like_tensors(head):
        raise UnreadableFileError(
            f"{path}: neither Parquet nor safetensors (begins with {head[:8]!r}), the formats that are read"
        )
    length = int.from_bytes(head[:8], "little")
    if len(head) < 8 or (8 + length > size and _looks_like_tensors(head)):
        raise UnreadableFileError(f"{path}: truncated safetensors ({size} bytes), or still being written")
    if length > _MAX_HEADER or not _looks_like_tensors(head):
        raise UnreadableFileError(f"{path}: not a safetensors file (its header would be {length} bytes long)")
    return "safetensors"


def _looks_like_tensors(head: bytes) -> bool:
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _MAX_HEADER


def _foreign(head: bytes, size: int) -> str | None:
    text = head.lstrip().lower()
    signs: Iterable[tuple[bool, str]] = (
        (size == 0, "the file is empty (0 bytes)"),
        (head.startswith(b"version https://git-lfs"), "a Git-LFS pointer, not the data: run `git lfs pull`"),
        (
            text.startswith((b"<!doctype", b"<html", b"<?xml")),
            "an HTML or XML page, not the data: was the download refused?",
        ),
    )
    return next((problem for applies, problem in signs if applies), None)
