"""What a dump holds and what is wrong with it, without auditing it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_audit.dumps.chunk import Finding
from rollout_audit.dumps.columns import counts_by_row
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump, FileInfo
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.dumps.fields import FIELDS, Origin
from rollout_audit.dumps.packing import LOG_PROB_FIELDS, CheckedChunk
from rollout_audit.dumps.streaming import Selection, read_checked
from rollout_audit.errors import NothingToAuditError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from rollout_audit.dumps.chunk import Chunk

__all__ = ["FieldInspection", "FileInspection", "Inspection", "ValueRange", "inspect_dump"]


NOTHING = "nothing_to_audit"


@dataclass(frozen=True, slots=True)
class FieldInspection:
    """Where one field of one file comes from."""

    field: str
    column: str
    origin: Origin
    type: str


@dataclass(frozen=True, slots=True)
class FileInspection:
    name: str
    format: str
    size: int
    """bytes"""
    rows: int
    empty_rows: int
    """responses without a token"""
    row_groups: int
    tokens: int
    valid_tokens: int
    first_step: int | None
    """None where no row has one"""
    last_step: int | None
    fields: tuple[FieldInspection, ...]
    unused_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Finite values of one token column under mask 1, over the whole dump."""

    field: str
    tokens: int
    minimum: float | None
    """None where there is no token"""
    maximum: float | None
    mean: float | None
    zeros: int
    bf16_fraction: float | None
    """share of values that bfloat16 holds exactly: 1 says the engine wrote bfloat16"""


@dataclass(frozen=True, slots=True)
class Inspection:
    files: tuple[FileInspection, ...]
    ranges: tuple[ValueRange, ...]
    findings: tuple[Finding, ...]
    """errors first"""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def empty_rows(self) -> int:
        return sum(file.empty_rows for file in self.files)

    @property
    def tokens(self) -> int:
        return sum(file.tokens for file in self.files)

    @property
    def valid_tokens(self) -> int:
        return sum(file.valid_tokens for file in self.files)

    @property
    def is_empty(self) -> bool:
        """Whether no row, or no valid token, is there to audit."""
        return any(finding.kind == NOTHING for finding in self.findings)

    @property
    def has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)


@dataclass(slots=True)
class _FileTally:
    empty_rows: int = 0
    steps: tuple[int, int] | None = None

    def add(self, checked: CheckedChunk) -> None:
        self.empty_rows += int(np.count_nonzero(np.diff(checked.chunk.offsets) == 0))
        unknown = [fault.rows for fault in checked.faults if fault.kind == "step_value"]
        steps = np.delete(checked.chunk.steps, np.concatenate(unknown)) if unknown else checked.chunk.steps
        if not len(steps):
            return
        low, high = int(steps.min()), int(steps.max())
        first, last = self.steps or (low, high)
        self.steps = (min(first, low), max(last, high))


@dataclass(slots=True)
class _RangeTally:
    tokens: int = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    zeros: int = 0
    on_grid: int = 0

    def add(self, values: NDArray[Any]) -> None:
        """Values under mask 1."""
        values = values[np.isfinite(values)]
        if not len(values):
            return
        self.tokens += len(values)
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self.total += float(values.sum(dtype=np.float64))
        self.zeros += int(np.count_nonzero(values == 0))
        self.on_grid += _on_bf16_grid(values)

    def result(self, name: str) -> ValueRange:
        if not self.tokens:
            return ValueRange(name, 0, None, None, None, 0, None)
        mean, share = self.total / self.tokens, self.on_grid / self.tokens
        return ValueRange(name, self.tokens, self.low, self.high, mean, self.zeros, share)


def _on_bf16_grid(values: NDArray[Any]) -> int:
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return int(np.count_nonzero((single == values) & (single.view(np.uint32) & 0xFFFF == 0)))


@dataclass(slots=True)
class _Uids:
    """Hashes of the uids seen, and the repeated ones; of each, with step and length, the file that had it first."""

    seen: set[int] = field(default_factory=set)
    repeated: int = 0
    first: tuple[str, int, str] | None = None
    owner: dict[int, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    owned_elsewhere: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, chunk: Chunk, file: str) -> None:
        self.rows[file] = self.rows.get(file, 0) + chunk.rows
        valid = counts_by_row(chunk.response_mask, chunk.offsets)
        columns = (chunk.row_numbers.tolist(), chunk.steps.tolist(), valid.tolist())
        for uid, row, step, tokens in zip(chunk.uids or (), *columns, strict=False):
            if uid and (owner := self.owner.setdefault(hash((uid, step, tokens)), file)) != file:
                self.owned_elsewhere.setdefault(file, Counter())[owner] += 1
            if uid and hash(uid) in self.seen:
                self.repeated += 1
                self.first = self.first or (file, row, uid)
            self.seen.add(hash(uid))

    def findings(self, told: Collection[str | None]) -> list[Finding]:
        """`told`: files that are known to repeat another one."""
        if not self.first:
            return []
        file, row, uid = self.first
        text = f"uid {uid!r} was there before: rows cannot be told apart by uid"
        return [Finding("duplicate_uid", "info", text, file, row, count=self.repeated), *self._twins(told)]

    def _twins(self, told: Collection[str | None]) -> Iterator[Finding]:
        """Files whose every row, by uid, step and valid tokens, stood in one other file before."""
        for file, owners in self.owned_elsewhere.items():
            (other, count), *_ = owners.most_common(1)
            if count == self.rows[file] and file not in told:
                text = (
                    f"every row has the uid, the step and the length of one of {other}, with other values: the same "
                    "batch twice? Give one of them"
                )
                yield Finding("repeated_file", "warning", text, file, count=count)


def inspect_dump(
    dump: Dump,
    *,
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
) -> Inspection:
    """Read the whole dump once and say what it holds; collects every fault and stops at none.

    Args:
        dump: what `open_dump` returned.
        steps: first step and the one after the last; files without a row of them are left out.
        limit: number of rows from the start of the dump.
        chunk_tokens: tokens that one unit of work holds.

    Raises:
        UnreadableFileError: damaged data.
    """
    log = FaultLog(notes=set(dump.notes))
    tallies = [_FileTally() for _ in dump.infos]
    ranges = {name: _RangeTally() for name in LOG_PROB_FIELDS if dump.has_any(name)}
    uids = _Uids()
    selection = Selection(frozenset(f.name for f in FIELDS), chunk_tokens, "drop", steps, limit)
    for checked in read_checked(dump, selection, dump.parts()):
        chunk, file = checked.chunk, dump.infos[checked.chunk.file].file.name
        log.add(file, checked.faults, chunk.row_numbers)
        log.take(file, chunk, chunk)
        tallies[chunk.file].add(checked)
        uids.add(chunk, file)
        for name, tally in ranges.items():
            values = getattr(chunk, name)
            if values is not None:
                tally.add(values[chunk.response_mask])
    told = {finding.file for finding in log.findings(dump.names) if finding.kind == "repeated_file"}
    log.notes.update(uids.findings(told), _emptiness(dump, log))
    in_part = steps is not None or limit is not None
    files = tuple(
        _file(info, tally, log, in_part=in_part)
        for info, tally in zip(dump.infos, tallies, strict=True)
        if not in_part or info.file.name in log.rows
    )
    results = tuple(tally.result(name) for name, tally in ranges.items())
    return Inspection(files, results, log.findings(dump.names))


def _emptiness(dump: Dump, log: FaultLog) -> list[Finding]:
    try:
        dump.require_valid(log)
    except NothingToAuditError as error:
        return [Finding(NOTHING, "error", str(error))]
    return []


def _file(info: FileInfo, tally: _FileTally, log: FaultLog, *, in_part: bool) -> FileInspection:
    first, last = tally.steps or (None, None)
    name = info.file.name
    used = {mapped.column for mapped in info.fields.values()}
    return FileInspection(
        name=name,
        format=info.file.format,
        size=info.file.size,
        rows=log.rows[name] if in_part else info.rows,
        empty_rows=tally.empty_rows,
        row_groups=len(info.row_groups),
        tokens=log.tokens.get(name, 0),
        valid_tokens=log.valid.get(name, 0),
        first_step=first,
        last_step=last,
        fields=tuple(
            FieldInspection(f.name, mapped.column, mapped.origin, info.column(mapped.column).type)
            for f in FIELDS
            if (mapped := info.fields.get(f.name))
        ),
        unused_columns=tuple(column.name for column in info.columns if column.name not in used),
    )
