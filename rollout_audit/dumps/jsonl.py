"""JSON Lines: a row a line, indexed once and then read a block of lines at a time."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_audit.dumps.discovery import DumpFile, open_binary
from rollout_audit.dumps.fields import COLUMN_NAMES
from rollout_audit.dumps.records import Record, batches_of, column_infos, tokens_in
from rollout_audit.dumps.text import TwiceError, each_once
from rollout_audit.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from rollout_audit.dumps.columns import Batch

__all__ = ["JsonlSource", "first_line", "first_object"]

BLOCK = 1 << 23
"""bytes of lines that one unit of work holds, about"""
SAMPLE = 100
"""rows that say which columns there are, and how many tokens a byte holds"""
_READ = 1 << 20
_ONCE_EACH = partial(each_once, among=COLUMN_NAMES)


class _Index(NamedTuple):
    """Where blocks of lines begin, and how many rows (lines that are not blank) each holds."""

    starts: list[int]
    rows: tuple[int, ...]
    digest: bytes


def first_line(path: str) -> bytes:
    """The first line that is not blank, empty where there is none."""
    with open_binary(path) as stream:
        return next((line for line in stream if line.strip()), b"")


def first_object(line: bytes) -> dict[str, Any] | None:
    """What the line holds, None where it is no JSON object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class JsonlSource:
    """One file of JSON objects; opening it reads it once to count lines, and parses the first hundred.

    `NaN` and `Infinity` are accepted, which some trainers write although JSON has no such words.

    Raises:
        UnreadableFileError: a line that is no JSON object, or lacks what its format promises.
    """

    lacks_training = ""
    takes_layout = False

    def __init__(
        self,
        file: DumpFile,
        unpack: Callable[[Record], dict[str, Any]],
        fields: Mapping[str, str],
    ) -> None:
        self._file = file
        self._unpack = unpack
        self._index = _indexed(file.path, file.size)
        self.fields = fields
        sample = self._sample()
        self.columns = column_infos(sample)
        self._seen = {column.name for column in self.columns if column.is_list or column.element != "null"}
        self._sampled = sample

    @property
    def footer(self) -> bytes:
        """A digest of the contents: there is no footer."""
        return self._index.digest

    @property
    def rows(self) -> int:
        return sum(self.row_groups)

    @property
    def row_groups(self) -> tuple[int, ...]:
        return self._index.rows

    @property
    def step(self) -> int | None:
        return None

    def values(self, column: str) -> int:
        """Exact for a file of up to a hundred rows, beyond that in proportion to its first hundred."""
        tokens = sum(tokens_in(record, column) for record in self._sampled)
        return tokens if self.rows <= SAMPLE else tokens * self.rows // SAMPLE

    def batches(
        self, columns: Collection[str], *, size_by: str, chunk_tokens: int, row_groups: Sequence[int]
    ) -> Iterator[Batch]:
        firsts = [0, *accumulate(self.row_groups)]
        for group in row_groups:
            yield from batches_of(
                self._records(group, firsts[group]),
                [column for column in self.columns if column.name in columns],
                size_by=size_by,
                chunk_tokens=chunk_tokens,
                first=firsts[group],
                where=self._file.name,
            )

    def _sample(self) -> list[Record]:
        sample: list[Record] = []
        for group in range(len(self.row_groups)):
            for record in self._records(group, len(sample), known=False):
                sample.append(record)
                if len(sample) == SAMPLE:
                    return sample
        return sample

    def _records(self, group: int, first: int, *, known: bool = True) -> Iterator[Record]:
        with open_binary(self._file.path) as stream:
            stream.seek(self._index.starts[group])
            found = 0
            while found < self.row_groups[group]:
                line = stream.readline()
                if line.strip():
                    record = self._parsed(line, first + found)
                    if known:
                        self._check_known(record, first + found)
                    yield record
                    found += 1

    def _parsed(self, line: bytes, row: int) -> Record:
        try:
            value = json.loads(line, object_pairs_hook=_ONCE_EACH)
        except TwiceError as error:
            twice = f"two values are named {error.key!r}; rename or remove one"
            raise UnreadableFileError(f"{self._file.name}, row {row}: {twice}") from error
        except RecursionError as error:
            raise UnreadableFileError(f"{self._file.name}, row {row}: lists in lists too deep to read") from error
        except ValueError as error:
            cut = "" if line.endswith(b"\n") else ", or still being written"
            if line.strip() == b"{":
                cut = "; an object over several lines? jq -c . FILE > FILE.jsonl puts it on one"
            reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise UnreadableFileError(f"{self._file.name}, row {row}: not JSON ({reason}){cut}") from error
        if not isinstance(value, dict):
            raise UnreadableFileError(f"{self._file.name}, row {row}: a JSON {type(value).__name__}, not an object")
        try:
            return self._unpack(value)
        except (LookupError, TypeError, ValueError) as error:
            reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise UnreadableFileError(
                f"{self._file.name}, row {row}: not as {self._file.format} writes it ({reason})"
            ) from error

    def _check_known(self, record: Record, row: int) -> None:
        """A column that first shows up late would be left out of the audit without a word."""
        late = sorted(name for name in (record.keys() & COLUMN_NAMES) - self._seen if record[name] is not None)
        if late:
            raise UnreadableFileError(
                f"{self._file.name}, row {row}: has {late[0]!r}, which no row before {SAMPLE} has; "
                "write every column in every row (null where a row has none)"
            )


def _indexed(path: str, size: int) -> _Index:
    """One pass over the bytes: block starts, rows of each block, and a digest of all of it.

    Args:
        size: bytes that there were when the file was found; what was appended since is not looked at.
    """
    starts, rows, digest = [0], [0], hashlib.sha256()
    place = 0
    with open_binary(path) as stream:
        for line in stream:
            if place >= size:
                break
            if place - starts[-1] >= BLOCK:
                starts.append(place)
                rows.append(0)
            digest.update(line[: size - place])
            rows[-1] += bool(line.strip())
            place += len(line)
    return _Index(starts, tuple(rows), digest.digest())
