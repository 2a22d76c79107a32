"""Faults of a whole dump, gathered chunk by chunk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from rollout_audit.dumps.chunk import SEVERITIES, Finding
from rollout_audit.dumps.faults import KINDS, Fault
from rollout_audit.errors import amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rollout_audit.dumps.chunk import Chunk

__all__ = ["DroppedRow", "FaultLog"]

_JUDGED_FROM = 16
"""valid tokens of a file; a handful may be the same by chance"""


@dataclass(frozen=True, slots=True, order=True)
class DroppedRow:
    """A sequence that `--on-fault drop` left out."""

    file: str
    row: int
    """in the file, from 0"""
    uid: str
    kind: str
    """of its first error in the order of `faults.KINDS`"""


@dataclass(frozen=True, slots=True, order=True)
class _Mark:
    """One row of a file, by what is under its mask."""

    row: int
    digest: bytes


@dataclass(slots=True)
class FaultLog:
    """What the checks found, and which rows were left out. Mergeable; independent of the order of chunks."""

    faults: dict[tuple[str, str, str], Fault] = field(default_factory=dict)
    """(file, kind, column) → all occurrences, rows numbered in the file"""
    dropped: list[DroppedRow] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    """file → rows looked at"""
    tokens: dict[str, int] = field(default_factory=dict)
    valid: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    """valid tokens of the rows that were not left out"""
    ends: dict[str, tuple[_Mark, _Mark]] = field(default_factory=dict)
    """file → the first and the last row looked at"""
    notes: set[Finding] = field(default_factory=set)
    """findings about the dump as a whole"""

    def add(self, file: str, faults: Iterable[Fault], row_numbers: NDArray[np.int64]) -> None:
        """Faults of one chunk, whose row i is `row_numbers[i]` of the file."""
        for fault in faults:
            self._join(file, replace(fault, rows=row_numbers[fault.rows], row=int(row_numbers[fault.row])))

    def count(self, file: str, *, rows: int, tokens: int, valid: int, kept: int) -> None:
        """Rows, tokens and valid tokens of a chunk, and the valid ones of its rows without an error."""
        for total, more in ((self.rows, rows), (self.tokens, tokens), (self.valid, valid), (self.kept, kept)):
            total[file] = total.get(file, 0) + more

    def take(self, file: str, chunk: Chunk, kept: Chunk) -> None:
        """Count a chunk, and what was left of it once faulty rows were out."""
        valid, valid_kept = (int(np.count_nonzero(part.response_mask)) for part in (chunk, kept))
        self.count(file, rows=chunk.rows, tokens=chunk.tokens, valid=valid, kept=valid_kept)
        if chunk.rows:
            self._mark(file, _mark(chunk, 0), _mark(chunk, chunk.rows - 1))

    def _mark(self, file: str, first: _Mark, last: _Mark) -> None:
        known = self.ends.get(file, (first, last))
        self.ends[file] = min(known[0], first), max(known[1], last)

    def merge(self, other: FaultLog) -> None:
        """Take in the log of another part of the same dump."""
        for (file, _, _), fault in other.faults.items():
            self._join(file, fault)
        for file, rows in other.rows.items():
            self.count(file, rows=rows, tokens=other.tokens[file], valid=other.valid[file], kept=other.kept[file])
        for file, ends in other.ends.items():
            self._mark(file, *ends)
        self.dropped.extend(other.dropped)
        self.notes |= other.notes

    def _join(self, file: str, fault: Fault) -> None:
        key = (file, fault.kind, fault.column)
        known = self.faults.get(key)
        self.faults[key] = _joined(known, fault) if known else fault

    def errors(self) -> list[tuple[str, Fault]]:
        """(file, fault) of every error, in file order as logged."""
        return [(file, fault) for (file, _, _), fault in self.faults.items() if fault.severity == "error"]

    def faulty_rows(self) -> Mapping[str, NDArray[np.int64]]:
        """file → rows with an error, ascending."""
        rows: dict[str, list[NDArray[np.int64]]] = {}
        for file, fault in self.errors():
            rows.setdefault(file, []).append(fault.rows)
        return {file: np.unique(np.concatenate(parts)) for file, parts in rows.items()}

    def findings(self, files: Sequence[str]) -> tuple[Finding, ...]:
        """Everything found: errors first, then in order of `files`, then of `faults.KINDS`."""
        place = {file: index for index, file in enumerate(files)}
        found = [_finding(file, fault) for (file, _, _), fault in self.faults.items()]
        found += [*self.notes, *self._files_without_valid_tokens(), *self._repeated(files)]
        kinds = list(KINDS)
        return tuple(
            sorted(
                found,
                key=lambda f: (
                    SEVERITIES.index(f.severity),
                    place.get(f.file or "", -1),
                    kinds.index(f.kind) if f.kind in kinds else len(kinds),
                    f.message,
                ),
            )
        )

    def _files_without_valid_tokens(self) -> list[Finding]:
        return [
            Finding("no_valid_token", "warning", f"no valid token in {amount(rows, 'row')}", file, count=rows)
            for file, rows in self.rows.items()
            if not self.valid[file]
        ]

    def _repeated(self, files: Sequence[str]) -> Iterator[Finding]:
        """Files that begin, end and count as an earlier one does: which two batches never do."""
        known: dict[tuple[object, ...], str] = {}
        for file in files:
            if self.valid.get(file, 0) >= _JUDGED_FROM:
                rows, (first, last) = self.rows[file], self.ends[file]
                other = known.setdefault((rows, self.valid[file], first.digest, last.digest), file)
                if other != file:
                    same = "the same row" if rows == 1 else f"the same {rows:,} rows"
                    text = f"{same} as {other}: every figure counts them twice; give one of the two files"
                    yield Finding("repeated_file", "warning", text, file, count=rows)


def _mark(chunk: Chunk, row: int) -> _Mark:
    span = slice(int(chunk.offsets[row]), int(chunk.offsets[row + 1]))
    mask, found = chunk.response_mask[span], hashlib.blake2b(digest_size=16)
    for values in (chunk.rollout_log_probs, chunk.old_log_probs, chunk.log_probs):
        found.update(b"" if values is None else values[span][mask].astype(np.float64).tobytes())
        found.update(b"|")
    return _Mark(int(chunk.row_numbers[row]), found.digest())


def _joined(one: Fault, two: Fault) -> Fault:
    first, second = sorted((one, two), key=lambda fault: (fault.row, fault.position or 0))
    return replace(first, rows=np.union1d(first.rows, second.rows), count=first.count + second.count)


def _finding(file: str, fault: Fault) -> Finding:
    return Finding(fault.kind, fault.severity, fault.message, file, fault.row, fault.position, fault.count)
