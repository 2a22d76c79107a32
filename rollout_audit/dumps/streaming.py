"""Parts of a dump → checked chunks, faulty rows left out or refused."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from rollout_audit.dumps.fault_log import DroppedRow, FaultLog
from rollout_audit.dumps.faults import KINDS, LIKELY_CAUSE, Fault
from rollout_audit.dumps.packing import CheckedChunk, pack, select_rows
from rollout_audit.dumps.per_row import NotANumberError, WholeNumbers, steps_of
from rollout_audit.dumps.rows import row_uid
from rollout_audit.errors import DumpFaultError, UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rollout_audit.dumps.chunk import Chunk
    from rollout_audit.dumps.columns import Batch
    from rollout_audit.dumps.dump import Dump, FileInfo, Part

__all__ = ["Selection", "read_checked", "stream"]


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a dump is read, and what happens to faulty rows."""

    fields: frozenset[str]
    chunk_tokens: int
    on_fault: str
    steps: tuple[int | None, int | None] | None = None
    limit: int | None = None


def stream(dump: Dump, selection: Selection, log: FaultLog, parts: Sequence[Part]) -> Iterator[Chunk]:
    """Chunks of these row groups, in order, checked; what was found goes to the log."""
    for checked in read_checked(dump, selection, parts):
        chunk = _settle(checked, dump.infos[checked.chunk.file].file.name, selection.on_fault, log)
        if chunk.rows:
            yield chunk


def read_checked(dump: Dump, selection: Selection, parts: Sequence[Part]) -> Iterator[CheckedChunk]:
    """The chosen rows of these row groups as they are, faulty ones included, with what is wrong with them."""
    left = selection.limit
    for info, index, mapping, batch in _batches(dump, selection, parts):
        if left is not None and left <= 0:
            return
        chosen = _chosen(steps_of(batch, mapping, info.step), selection.steps, left)
        left = None if left is None else left - int(chosen.sum())
        if chosen.any():
            yield _packed(batch.select(chosen), info, index, mapping)


def _packed(batch: Batch, info: FileInfo, index: int, mapping: Mapping[str, str]) -> CheckedChunk:
    try:
        return pack(batch, mapping, file=index, default_step=info.step)
    except NotANumberError as error:
        raise UnreadableFileError(f"{info.file.name}, row {batch.row_numbers[error.row]}: {error}") from error


def _batches(
    dump: Dump, selection: Selection, parts: Sequence[Part]
) -> Iterator[tuple[FileInfo, int, dict[str, str], Batch]]:
    for index, of_file in groupby(parts, key=lambda part: part.file):
        info = dump.infos[index]
        if _file_is_outside(info, selection.steps):
            continue
        source = dump.source(index)
        wanted = selection.fields | {"token_ids"} if info.ids_differ else selection.fields
        mapping = {name: mapped.column for name, mapped in info.fields.items() if name in wanted}
        for batch in source.batches(
            frozenset(mapping.values()),
            size_by=mapping["rollout_log_probs"],
            chunk_tokens=selection.chunk_tokens,
            row_groups=[part.row_group for part in of_file],
        ):
            yield info, index, mapping, batch


def _file_is_outside(info: FileInfo, steps: tuple[int | None, int | None] | None) -> bool:
    return steps is not None and "step" not in info.fields and not _within(np.array([info.step]), steps)[0]


def _within(values: NDArray[np.int64], steps: tuple[int | None, int | None]) -> NDArray[np.bool_]:
    low, high = steps
    inside = np.ones(len(values), np.bool_)
    if low is not None:
        inside &= values >= low
    if high is not None:
        inside &= values < high
    return inside


def _chosen(
    row_steps: WholeNumbers, steps: tuple[int | None, int | None] | None, left: int | None
) -> NDArray[np.bool_]:
    """Rows of these steps; also those whose step cannot be told, since nothing says that they are others."""
    chosen = np.ones(len(row_steps.values), np.bool_) if steps is None else _within(row_steps.values, steps)
    chosen[row_steps.wrong] = True
    return chosen if left is None else chosen & (np.cumsum(chosen) <= left)


def _settle(checked: CheckedChunk, file: str, on_fault: str, log: FaultLog) -> Chunk:
    """Log what is wrong; refuse the chunk, or leave its faulty rows out."""
    chunk = checked.chunk
    errors = [fault for fault in checked.faults if fault.severity == "error"]
    log.add(file, checked.faults, chunk.row_numbers)
    if errors and on_fault == "stop":
        raise DumpFaultError(_refusal(errors, file, chunk))
    kept = _without(chunk, errors)
    log.dropped.extend(_dropped(errors, chunk, file))
    log.take(file, chunk, kept)
    return kept


def _without(chunk: Chunk, errors: Sequence[Fault]) -> Chunk:
    keep = np.ones(chunk.rows, np.bool_)
    for fault in errors:
        keep[fault.rows] = False
    return select_rows(chunk, keep)


def _dropped(errors: Sequence[Fault], chunk: Chunk, file: str) -> list[DroppedRow]:
    kinds = list(KINDS)
    worst: dict[int, str] = {}
    for fault in sorted(errors, key=lambda fault: kinds.index(fault.kind)):
        for row in fault.rows.tolist():
            worst.setdefault(row, fault.kind)
    return [
        DroppedRow(file, int(chunk.row_numbers[row]), row_uid(chunk, row, file), kind)
        for row, kind in sorted(worst.items())
    ]


def _refusal(errors: Sequence[Fault], file: str, chunk: Chunk) -> str:
    first, rows = errors[0], len(np.unique(np.concatenate([fault.rows for fault in errors])))
    place = f"row {chunk.row_numbers[first.row]}"
    if first.position is not None:
        place += f", position {first.position}"
    more = sum(fault.count for fault in errors) - 1
    others = f" (and {more} more so far)" if more else ""
    cause = f"; likely cause: {LIKELY_CAUSE[first.kind]}" if first.kind in LIKELY_CAUSE else ""
    sequences = "1 sequence" if rows == 1 else f"{rows} sequences"
    return (
        f"{file}, {place}: {first.message}{others}{cause}; run `rollout-audit inspect` to see all, "
        f"or --on-fault drop to leave {sequences} out so far"
    )
