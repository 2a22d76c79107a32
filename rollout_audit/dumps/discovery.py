"""From what a person types to an ordered list of files of a known format."""

from __future__ import annotations

import os
import re
import zipfile
from collections import Counter
from dataclasses import dataclass
from posixpath import basename, splitext
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from rollout_audit.dumps.formats.table import FORMATS, SUFFIXES, Container, check_format, suffixes_of
from rollout_audit.dumps.naming import natural_key, report_names
from rollout_audit.errors import DumpNotFoundError, UnreadableFileError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "GONE",
    "MAX_HEADER",
    "PICKLE_ADVICE",
    "DumpFile",
    "discover",
    "members",
    "named_container",
    "open_binary",
    "opens_by_path",
    "sibling_exists",
]

_REPORT_FILES = {"report.json", "sequences.parquet"}
MAX_HEADER = 100_000_000
"""bytes; the cap of the safetensors library"""
_HEAD = 512
_BLANKS = b" \t\r\n\xef\xbb\xbf"
_MARKS: tuple[tuple[bytes, Container | Literal["zip"]], ...] = (
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),  # with nothing in it
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "torch"),  # of torch before 1.6
    (b"{", "jsonl"),
)
_OTHER_KINDS: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", "packed by gzip; unpack it first: gunzip FILE"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd; unpack it first: unzstd FILE"),
    (b"BZh", "packed by bzip2; unpack it first: bunzip2 FILE"),
    (b"\xff\xfe", "UTF-16 text; JSON Lines are UTF-8: iconv -f utf-16 -t utf-8 FILE > FILE.jsonl"),
    (b"\xfe\xff", "UTF-16 text; JSON Lines are UTF-8: iconv -f utf-16 -t utf-8 FILE > FILE.jsonl"),
    (
        b"\x93NUMPY",
        "one array without a name; numpy.savez('step_7.npz', rollout_log_probs=…, …) names them",
    ),
    (b"ARROW1", "an Arrow file; pyarrow.parquet.write_table writes the same table as Parquet"),
)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_PICKLES = {".pkl", ".pickle"}
GONE = "no longer there: moved or deleted since the dump was opened"
PICKLE_ADVICE = (
    "a pickle can run any code when it is opened, so it is not; where it was made, save its tensors: "
    "safetensors.torch.save_file({name: batch[name].contiguous() for name in names}, 'step_7.safetensors')"
)


@dataclass(frozen=True, slots=True)
class DumpFile:
    """One file of a dump."""

    name: str
    """Relative to the folder that all files share: what the report shows."""
    path: str
    """Absolute path, or the URI of a file elsewhere."""
    format: str
    """a name in `formats.table.FORMATS`"""
    size: int
    """bytes"""
    parts: tuple[str, ...] = ()
    """the paths of all files that are read as one, where there are several"""


@dataclass(frozen=True, slots=True)
class _Place:
    """A file system and a path on it; `prefix` makes a URI of the path again."""

    fs: Any
    path: str
    prefix: str

    @property
    def uri(self) -> str:
        return self.prefix + self.path


def discover(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], input_format: str | None = None
) -> tuple[DumpFile, ...]:
    """The files of a dump, in natural order and each once, whatever the order of the arguments.

    A path is a file, a folder (searched recursively for the suffixes of `formats.table`), a glob or a URI.
    `format` of a file is what its first bytes tell; `identify` looks further into it. `input_format` forces one.

    Raises:
        DumpNotFoundError: nothing there, or nothing of a known format.
        UnreadableFileError: a file that is empty, truncated or of another kind than its name says.
        UsageError: no such input format.
    """
    return discover_finished(paths, input_format, None)[0]


def discover_finished(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], input_format: str | None, marker: str | None
) -> tuple[tuple[DumpFile, ...], tuple[str, ...]]:
    """As `discover`, without the files that have no marker beside them: their names, since they may be half written.

    Raises:
        UnreadableFileError: also where no file has the marker beside it.
        UsageError: also where the marker is no name of a file.
    """
    check_format(input_format)
    if marker is not None and (not marker.strip() or "/" in marker):
        raise UsageError(f"--require-marker {marker!r}: expected the name of a file, such as STABLE or _SUCCESS")
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise DumpNotFoundError("no dump given: name a file, a folder, a glob or a URI")
    suffixes = suffixes_of(input_format)
    found = sorted((place for path in given for place in _expand(os.fspath(path), suffixes)), key=_order)
    places = sorted({_identity(place): place for place in found}.values(), key=_order)
    complete = places if marker is None else [place for place in places if sibling_exists(place.uri, marker)]
    if places and not complete:
        raise UnreadableFileError(
            f"{places[0].uri}: no {marker} beside it: still being written? without --require-marker it is read"
        )
    names = report_names([place.uri for place in complete])
    files = tuple(_describe(place, name, input_format) for place, name in zip(complete, names, strict=True))
    return files, tuple(place.uri.rpartition("/")[2] for place in places if place not in complete)


def open_binary(path: str) -> IO[bytes]:
    """The file, open for reading bytes, on whatever file system its path or URI names.

    Raises:
        UnreadableFileError: it was there when the dump was opened, and is no longer.
    """
    try:
        if "://" not in path:
            return open(path, "rb")
        import fsspec

        return cast("IO[bytes]", fsspec.open(path, "rb").open())
    except FileNotFoundError as error:
        raise UnreadableFileError(f"{path}: {GONE}") from error


def members(path: str) -> tuple[str, ...] | None:
    """Names in a zip archive, None where it is cut off."""
    try:
        with open_binary(path) as stream, zipfile.ZipFile(stream) as archive:
            return tuple(archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return None


def sibling_exists(path: str, name: str) -> bool:
    """Whether a file of that name stands in the folder of the file."""
    place = _locate(path)
    return bool(place.fs.exists(f"{place.path.rpartition('/')[0]}/{name}"))


def opens_by_path(path: str) -> bool:
    """Whether libraries written in C++ and Rust can open it: no URI, and no byte in its name that is not UTF-8."""
    return "://" not in path and path.encode("utf-8", "replace").decode() == path


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


def _expand(path: str, suffixes: Sequence[str]) -> Iterator[_Place]:
    if not path:
        raise DumpNotFoundError("the path is empty: name a file, a folder, a glob or a URI")
    place = _locate(path)
    if place.fs.isfile(place.path):
        yield place
    elif place.fs.isdir(place.path):
        yield from _folder(place, path, suffixes)
    else:
        yield from _glob(place, path, suffixes)


def _glob(place: _Place, typed: str, suffixes: Sequence[str]) -> Iterator[_Place]:
    hits = [_Place(place.fs, hit, place.prefix) for hit in _matches(place)]
    if not hits:
        raise DumpNotFoundError(f"{typed}: {_nothing_there(place)}")
    files = [hit for hit in hits if hit.fs.isfile(hit.path)]
    known = [hit for hit in files if _suffix(hit.path) in suffixes]
    folders = [hit for hit in hits if hit.fs.isdir(hit.path) and any(_suffix(p) in suffixes for p in _walk(hit))]
    yield from known if known or folders else files
    for folder in folders:
        yield from _folder(folder, folder.path, suffixes)
    if not (files or folders):
        raise DumpNotFoundError(f"{typed}: no {_either(suffixes)} file in the folders that match")


def _matches(place: _Place) -> list[str]:
    found = place.fs.glob(place.path) if _is_pattern(place.path) else []
    return [hit for hit in found if _visible(basename(hit))]


def _is_pattern(path: str) -> bool:
    return any(mark in path for mark in "*?[")


def _either(suffixes: Sequence[str]) -> str:
    return " or ".join((", ".join(suffixes[:-1]), suffixes[-1]) if suffixes[1:] else suffixes)


def _nothing_there(place: _Place) -> str:
    return "no file matches this pattern" if _is_pattern(place.path) else "no such file or folder"


def _folder(place: _Place, typed: str, suffixes: Sequence[str]) -> Iterator[_Place]:
    paths = list(_walk(place))
    known = [path for path in paths if _suffix(path) in suffixes]
    if not known:
        raise DumpNotFoundError(f"{typed}: {_what_is_there(place, paths, suffixes)}")
    yield from (_Place(place.fs, path, place.prefix) for path in known)


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


def _what_is_there(place: _Place, paths: Sequence[str], suffixes: Sequence[str]) -> str:
    if not paths and _is_report(map(basename, place.fs.ls(place.path, detail=False))):
        return "a report of this tool, not a dump"
    if not paths:
        return f"the folder holds no file; expected {_either(suffixes)}"
    counts = Counter(_suffix(path) or "no suffix" for path in paths)
    listed = ", ".join(f"{count} × {suffix}" for suffix, count in sorted(counts.items()))
    pickles = f"; {PICKLE_ADVICE}" if counts.keys() & _PICKLES else ""
    return f"no {_either(suffixes)} file in the folder (found {listed}){pickles}"


def named_container(path: str) -> Container | None:
    """The kind of file that the name promises, None where it promises none."""
    return SUFFIXES.get(_suffix(path))


def _suffix(path: str) -> str:
    return splitext(path)[1].lower()


def _describe(place: _Place, name: str, input_format: str | None) -> DumpFile:
    try:
        size = int(place.fs.size(place.path))
        with place.fs.open(place.path, "rb") as stream:
            head = stream.read(_HEAD)
            stream.seek(max(size - 4, 0))
            tail = stream.read(4)
    except OSError as error:
        raise UnreadableFileError(f"{place.uri}: cannot be read ({error.strerror or type(error).__name__})") from error
    if input_format is None:
        return DumpFile(name, place.uri, _recognise(place.uri, size, head, tail), size)
    if problem := _foreign(head, size):
        raise UnreadableFileError(f"{place.uri}: {problem}")
    return DumpFile(name, place.uri, input_format, size)


def _recognise(path: str, size: int, head: bytes, tail: bytes) -> Container:
    """The kind of file by content; the name only helps to say what is wrong."""
    named = named_container(path)
    if head[:4] == b"PAR1" and tail == b"PAR1" and size >= 12:
        return "parquet"
    if named == "jsonl" and size <= len(head) and not head.strip(_BLANKS):
        return "jsonl"  # a rank that had nothing to write
    if problem := _foreign(head, size):
        raise UnreadableFileError(f"{path}: {problem}")
    if head[:4] == b"PAR1":
        raise UnreadableFileError(f"{path}: Parquet without its footer, truncated or still being written")
    if not _looks_like_tensors(head):
        if kind := next((kind for mark, kind in _MARKS if head.lstrip(_BLANKS).startswith(mark)), None):
            return _in_archive(path) if kind == "zip" else kind
        if _PICKLE.match(head):
            raise UnreadableFileError(f"{path}: a pickle; {PICKLE_ADVICE}")
        if named == "parquet":
            raise UnreadableFileError(f"{path}: not a Parquet file (begins with {head[:8]!r})")
        if named != "safetensors":
            raise UnreadableFileError(f"{path}: {_unknown(head)}")
    _check_tensors(path, size, head)
    return "safetensors"


def _unknown(head: bytes) -> str:
    if head.lstrip(_BLANKS).startswith(b"["):
        return "a JSON array; one object a line is read (JSON Lines): jq -c '.[]' FILE > FILE.jsonl"
    return (
        f"of no format that is read (begins with {head[:8]!r}); known are {', '.join(FORMATS)}, "
        "and --input-format forces one"
    )


def _in_archive(path: str) -> Container:
    """torch.save and numpy.savez both write zip archives."""
    inside = members(path)
    if inside is None:
        raise UnreadableFileError(f"{path}: zip archive without its directory, truncated or still being written")
    if not inside:
        raise UnreadableFileError(f"{path}: an archive without a single array or tensor in it; write it again")
    if any(name.endswith("data.pkl") for name in inside):
        return "torch"
    if any(name.endswith(".npy") for name in inside):
        return "npz"
    raise UnreadableFileError(f"{path}: a zip archive of {inside[0]!r}; unpack it, or give a .pt or .npz file")


def _check_tensors(path: str, size: int, head: bytes) -> None:
    length = int.from_bytes(head[:8], "little")
    if len(head) < 8 or (8 + length > size and _looks_like_tensors(head)):
        raise UnreadableFileError(f"{path}: truncated safetensors ({size} bytes), or still being written")
    if length > MAX_HEADER or not _looks_like_tensors(head):
        raise UnreadableFileError(f"{path}: not a safetensors file (its header would be {length} bytes long)")


def _looks_like_tensors(head: bytes) -> bool:
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= MAX_HEADER


def _foreign(head: bytes, size: int) -> str | None:
    text = head.lstrip().lower()
    signs: Iterable[tuple[bool, str]] = (
        (size == 0, "the file is empty (0 bytes): cut off, or still being written? leave it out or write it again"),
        (head.startswith(b"version https://git-lfs"), "a Git-LFS pointer, not the data: run `git lfs pull`"),
        (
            text.startswith((b"<!doctype", b"<html", b"<?xml")),
            "an HTML or XML page, not the data: was the download refused?",
        ),
        *((head.startswith(mark) and not _looks_like_tensors(head), kind) for mark, kind in _OTHER_KINDS),
    )
    return next((problem for applies, problem in signs if applies), None)
