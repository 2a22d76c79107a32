"""The rows of one log file, each told by its suffix; a last row that was cut off is left out and said.

A run that still goes, or was killed, leaves an unfinished last line. What is broken before that is an error.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_audit.dumps.event_files import is_event_file, read_events
from rollout_audit.dumps.text import as_utf8, decoded, twice
from rollout_audit.errors import UnreadableFileError

__all__ = ["SUFFIXES", "LogFile", "Record", "is_log_file", "number", "read_log_file"]

Record = Mapping[str, Any]

CUT = "unfinished, left out: the run still writes it or was killed"
TRIPLE = ("Wall time", "Step", "Value")
"""Of TensorBoard"""


@dataclass(frozen=True)
class LogFile:
    """What stands in one file."""

    records: list[Record]
    notes: tuple[str, ...] = ()
    """where a last row was cut off"""


def is_log_file(path: Path) -> bool:
    """Whether its name is that of a log which can be read."""
    return path.suffix.lower() in _READERS or is_event_file(path)


def read_log_file(path: Path) -> LogFile:
    """The rows of one file, nested keys joined by `/`.

    Raises:
        UnreadableFileError: of no known kind, or not as its suffix says: one line with the line that is broken.
    """
    read = _read_events if is_event_file(path) else _READERS.get(path.suffix.lower())
    if read is None:
        raise UnreadableFileError(f"--log {path}: of no known kind; give {', '.join(SUFFIXES)}")
    try:
        return read(path)
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        kind = "an event file" if is_event_file(path) else path.suffix
        raise UnreadableFileError(f"--log {path}: cannot be read as {kind} ({reason})") from error


def number(value: Any) -> float | None:
    """A number, or text that spells one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _read_jsonl(path: Path) -> LogFile:
    return _rows_of_lines(as_utf8(path.read_bytes()), path.name)


def _rows_of_lines(data: bytes, name: str) -> LogFile:
    """Blank lines do not count; the last line may be cut off."""
    lines = [(at, line) for at, line in enumerate(data.split(b"\n"), 1) if line.strip(b" \t\r\0")]
    rows: list[Record] = []
    for at, line in lines:
        try:
            rows.append(_row(_parsed(line)))
        except ValueError as error:
            if rows and at == lines[-1][0] and _is_unfinished(line, error, ended=data.endswith(b"\n")):
                return LogFile(rows, (f"{name}, line {at:,}: {CUT}",))
            raise ValueError(f"line {at:,}: {error}") from None
    return LogFile(rows)


class _NotJSON(ValueError):
    def __init__(self, error: json.JSONDecodeError) -> None:
        super().__init__(f"not JSON: {error.msg} at column {error.colno}")
        self.at_end = _is_at_the_end(error)


def _is_at_the_end(error: json.JSONDecodeError) -> bool:
    """Whether what there is of the text is right, and more was to come."""
    return error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")


def _parsed(line: bytes) -> Any:
    try:
        return _tree(line)
    except json.JSONDecodeError as error:
        raise _NotJSON(error) from None


def _tree(data: bytes) -> Any:
    """Raises ValueError for what is no text, or nested beyond what the parser follows."""
    try:
        return json.loads(decoded(data), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("lists in lists too deep to read") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object, in which no key may stand twice."""
    tree: dict[str, Any] = {}
    for key, value in pairs:
        if key in tree and repr(tree[key]) != repr(value):
            raise ValueError(twice(key, f"as {tree[key]!r} and {value!r}"))
        tree[key] = value
    return tree


def _is_unfinished(line: bytes, error: ValueError, *, ended: bool) -> bool:
    """Whether the line begins as a row does and stops before its end."""
    begun = line.lstrip().startswith((b"{", b"["))
    return begun and (not ended or (isinstance(error, _NotJSON) and error.at_end))


def _row(value: Any) -> Record:
    """An object as a flat row; a `[wall time, step, value]` triple as TensorBoard's."""
    if isinstance(value, list) and len(value) == len(TRIPLE):
        return dict(zip(TRIPLE, value, strict=True))
    if isinstance(value, dict):
        return dict(_flat(value))
    raise ValueError(f"a JSON {type(value).__name__}, not an object")


def _flat(tree: Record, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _read_json(path: Path) -> LogFile:
    """A list of rows, `log_history` of transformers, or lines under another suffix."""
    data = as_utf8(path.read_bytes())
    try:
        tree = _tree(data)
    except json.JSONDecodeError as error:
        if _begins_with_a_row(data):
            return _rows_of_lines(data, path.name)
        if _is_at_the_end(error) and (rows := _whole_rows(decoded(data))):
            return LogFile(rows, (f"{path.name}, line {error.lineno:,}: {CUT}",))
        raise ValueError(f"line {error.lineno:,}: {error.msg} at column {error.colno}") from None
    if isinstance(tree, dict):
        tree = tree.get("log_history", [tree])
    if not isinstance(tree, list):
        raise ValueError(f"a JSON {type(tree).__name__}, not a list of rows")
    return LogFile([_numbered(i, value) for i, value in enumerate(tree)])


LIST = re.compile(r'\s*(?:\[|\{.*?"log_history"\s*:\s*\[)\s*', re.DOTALL)
SEPARATORS = re.compile(r"\s*,\s*")


def _whole_rows(text: str) -> list[Record]:
    """The rows of a list, or of `log_history`, up to the one in which the text breaks off."""
    decoder, rows = json.JSONDecoder(object_pairs_hook=_unique), list[Record]()
    place = LIST.match(text)
    while place is not None:
        try:
            value, end = decoder.raw_decode(text, place.end())
        except json.JSONDecodeError:
            break
        rows.append(_numbered(len(rows), value))
        place = SEPARATORS.match(text, end)
    return rows


def _begins_with_a_row(data: bytes) -> bool:
    first = next((line for line in data.split(b"\n") if line.strip()), b"")
    try:
        return isinstance(_parsed(first), dict | list)
    except ValueError:
        return False


def _numbered(i: int, value: Any) -> Record:
    try:
        return _row(value)
    except ValueError as error:
        raise ValueError(f"row {i}: {error}") from None


def _read_csv(path: Path) -> LogFile:
    """Comma, semicolon or tab between the cells, as the first line has it."""
    text = _whole_lines_decoded(as_utf8(path.read_bytes()))
    first = text.lstrip("\r\n").partition("\n")[0]
    delimiter = next((one for one in ",;\t" if one in first), ",")
    rows = _cells(text, delimiter)
    head = next(rows, (1, []))[1]
    _check_unique(head, "column")
    records, notes = [], []
    last = text.rstrip("\r\n").count("\n") + 1
    for at, cells in rows:
        if len(cells) != len(head):
            if at == last and len(cells) < len(head) and not text.endswith("\n"):
                notes.append(f"{path.name}, line {at:,}: {CUT}")
                break
            raise ValueError(f"line {at:,}: {len(cells)} cells under {len(head)} columns")
        records.append(_filled(dict(zip(head, cells, strict=True))))
        if at == last and cells[-1] and not text.endswith(("\n", '"')):
            notes.append(f"{path.name}, line {at:,}: no line break ends it, so its last value may be cut short")
    return LogFile(records, tuple(notes))


def _whole_lines_decoded(data: bytes) -> str:
    """As text; a character may be cut off in the last line, and there alone."""
    try:
        return decoded(data)
    except ValueError:
        lines, end, last = data.rpartition(b"\n")
        return decoded(lines + end) + last.decode(errors="replace")


def _cells(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line that it begins in, cells) of each row that is not blank; a quote open at the end is of a row cut off."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        at = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if at > 1 and "unexpected end" in str(error) and "\n" not in _from_line(text, at):
                yield at, []
                return
            raise ValueError(f"line {at:,}: {error}") from None
        if cells is None:
            return
        if any(cells):
            yield at, cells


def _from_line(text: str, at: int) -> str:
    return "".join(text.splitlines(keepends=True)[at - 1 :])


def _read_parquet(path: Path) -> LogFile:
    table = pq.ParquetFile(path)
    _check_unique(table.schema_arrow.names, "column")
    return LogFile([_filled(dict(_flat(row))) for row in table.read().to_pylist()])


def _check_unique(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen and name.strip():
            raise ValueError(f"{what} {name!r} stands there twice")
        seen.add(name)


def _filled(row: Record) -> Record:
    """Without empty cells, which pandas writes as NaN."""
    return {key: None if (n := number(value)) is not None and math.isnan(n) else value for key, value in row.items()}


def _read_events(path: Path) -> LogFile:
    events = read_events(path)
    records: list[Record] = [{"tag": tag, "step": step, "value": value} for tag, step, value in events.scalars]
    return LogFile(records, () if events.cut_at is None else (f"{path.name}, byte {events.cut_at:,}: {CUT}",))


_READERS: Mapping[str, Callable[[Path], LogFile]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}
SUFFIXES = (*_READERS, "*tfevents*")
