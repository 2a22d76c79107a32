"""A dump: files, what their columns mean, and a stream of chunks over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from rollout_audit.dumps.discovery import DumpFile
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.dumps.fields import FIELDS, LOG_PROBS, Mapped
from rollout_audit.dumps.join import Join, JoinedSource, join_dumps
from rollout_audit.dumps.layouts import LAYOUTS, check_layout, needs
from rollout_audit.dumps.notes import notes_on
from rollout_audit.dumps.opening import FileInfo, found_files, reopened
from rollout_audit.dumps.rows import rows_of_chunk
from rollout_audit.dumps.streaming import Selection, stream
from rollout_audit.errors import MissingFieldError, NothingToAuditError, UsageError, amount

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from rollout_audit.dumps.chunk import Chunk, Finding, Row
    from rollout_audit.dumps.columns import Batches

__all__ = ["DEFAULT_CHUNK_TOKENS", "Dump", "FileInfo", "OnFault", "Part", "open_dump"]

DEFAULT_CHUNK_TOKENS = 2**19
OnFault = Literal["stop", "drop"]


@dataclass(frozen=True, slots=True)
class Part:
    """One row group of one file: the unit of work."""

    file: int
    row_group: int
    rows: int


@dataclass(frozen=True)
class Dump:
    """Files opened for reading, footers only. Plain data: it can be pickled and read from elsewhere."""

    infos: tuple[FileInfo, ...]
    layout: str | None = None
    field_map: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[Finding, ...] = ()
    """files that were found and are no part of the dump, rows that have no partner in a joined one"""
    join: Join | None = None

    @property
    def files(self) -> tuple[DumpFile, ...]:
        return tuple(info.file for info in self.infos)

    @property
    def names(self) -> list[str]:
        """Of the files, in their order: a chunk knows its file by its place there."""
        return [info.file.name for info in self.infos]

    @property
    def fields(self) -> Mapping[str, Mapping[str, Mapped]]:
        """file name → field → column and how it was found"""
        return {info.file.name: info.fields for info in self.infos}

    @property
    def columns_read(self) -> tuple[str, ...]:
        """Columns that hold a field, in the order of the field table, of all files."""
        columns = (info.fields[f.name].column for f in FIELDS for info in self.infos if f.name in info.fields)
        return tuple(dict.fromkeys(columns))

    @property
    def total_rows(self) -> int:
        return sum(info.rows for info in self.infos)

    @property
    def total_values(self) -> int:
        """Tokens, masked ones included, from metadata; in Parquet every empty response counts as one."""
        return sum(info.values for info in self.infos)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What the footers alone give reason to say: absent mask, half precision, mixed types, files left out."""
        return (*notes_on(self.infos), *self.left_out)

    def has(self, field_name: str) -> bool:
        """Whether every file holds the field."""
        return all(field_name in info.fields for info in self.infos)

    def has_any(self, field_name: str) -> bool:
        """Whether some file holds the field."""
        return any(field_name in info.fields for info in self.infos)

    def source(self, file: int) -> Batches:
        """The file of that index, open for reading, with what is joined to it."""
        info = self.infos[file]
        source = reopened(info, self.layout)
        return JoinedSource(source, info, self.join) if self.join else source

    def require_training(self) -> None:
        """Raises MissingFieldError if a file holds the rollout's log-probs alone: rows can be read, not compared."""
        info = next((info for info in self.infos if info.lacks_training), None)
        if info is not None:
            raise MissingFieldError(
                f"{info.file.name}: no log-probs of the trainer, {info.lacks_training}; add them with --join DUMP, "
                "where DUMP holds them beside the same uid"
            )

    def digest(self, file: DumpFile) -> str:
        """SHA-256 over the size and the footer (header) of the file, hexadecimal."""
        return next(info.digest for info in self.infos if info.file == file)

    def row_name(self, file: int, row: int) -> str:
        """`file#row`: what a row without uid is called."""
        return f"{self.infos[file].file.name}#{row}"

    def parts(self) -> tuple[Part, ...]:
        """The row groups, in order: reading each by itself gives the very chunks of the whole."""
        return tuple(
            Part(index, group, rows)
            for index, info in enumerate(self.infos)
            for group, rows in enumerate(info.row_groups)
        )

    def chunks(
        self,
        *,
        fields: Collection[str] | None = None,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
        on_fault: OnFault = "stop",
        steps: tuple[int | None, int | None] | None = None,
        limit: int | None = None,
        log: FaultLog | None = None,
        parts: Sequence[Part] | None = None,
    ) -> Iterator[Chunk]:
        """Stream the dump in file order. Chunks depend on the files and `chunk_tokens` alone.

        Args:
            fields: the optional fields wanted; log-probs and mask come always. None: all there are.
            chunk_tokens: about how many tokens a chunk holds; one row is never split.
            on_fault: `stop` raises at the first chunk with an error; `drop` leaves the faulty rows out.
            steps: first step and the one after the last; None is open.
            limit: the first rows only, counted after `steps` and before faulty ones are left out.
            log: gathers findings, counts and rows left out.
            parts: only these row groups; whether anything was left to audit is then for the caller to ask of
                the merged log (`require_valid`).

        Raises:
            DumpFaultError: an error-level fault, with `on_fault="stop"`.
            MissingFieldError: a file holds the rollout's log-probs alone.
            NothingToAuditError: no row, or no valid token.
            UnreadableFileError: damaged data.
        """
        self.require_training()
        log = FaultLog() if log is None else log
        log.notes.update(self.notes)
        selection = Selection(_wanted(fields), chunk_tokens, on_fault, steps, limit)
        yield from stream(self, selection, log, self.parts() if parts is None else parts)
        if parts is None:
            self.require_valid(log)

    def require_valid(self, log: FaultLog) -> None:
        """Raises NothingToAuditError if what the log has seen holds no valid token."""
        if not self.total_rows:
            raise NothingToAuditError(f"{self._named()}: zero rows, nothing to audit; name a dump that has some")
        rows = sum(log.rows.values())
        if not rows:
            raise NothingToAuditError(
                f"{self._named()}: no row is in the steps asked for, nothing to audit; `rollout-audit inspect` shows "
                "which there are"
            )
        if not sum(log.kept.values()):
            dropped = f" with {amount(len(log.dropped), 'faulty row')} left out" if log.dropped else ""
            raise NothingToAuditError(
                f"{self._named()}: no valid token in {amount(rows, 'row')}{dropped}, nothing to audit; is the mask the "
                "one meant? --map response_mask=COLUMN names another"
            )

    def _named(self) -> str:
        more = len(self.files) - 1
        return self.files[0].name + (f" and {amount(more, 'more file')}" if more else "")

    def rows(
        self,
        *,
        on_fault: OnFault = "stop",
        steps: tuple[int | None, int | None] | None = None,
        limit: int | None = None,
    ) -> Iterator[Row]:
        """Stream the responses one by one, all fields, as views into the chunk they came in.

        Raises:
            DumpFaultError: an error-level fault, with `on_fault="stop"`.
            UnreadableFileError: damaged data.
        """
        selection = Selection(_wanted(None), DEFAULT_CHUNK_TOKENS, on_fault, steps, limit)
        for chunk in stream(self, selection, FaultLog(), self.parts()):
            yield from rows_of_chunk(chunk, self.files[chunk.file].name)


def open_dump(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    field_map: Mapping[str, str] | None = None,
    layout: str | None = None,
    input_format: str | None = None,
    join: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    require_marker: str | None = None,
) -> Dump:
    """Find the files of a dump and read their footers.

    Args:
        paths: files, folders, globs or URIs.
        field_map: field → column, where a column has a name of its own.
        layout: how tensors are laid out, where content cannot tell: a name in `layouts.LAYOUTS`.
        input_format: a name in `formats.table.FORMATS`, where content cannot tell or is to be overruled.
        join: a second dump, whose rows add the trainer's log-probs (and whatever the first lacks) by `uid`.
            `field_map` then speaks of whichever dump has the column.
        require_marker: name of a file that a writer leaves beside what is complete; the rest is left out, and said.

    Raises:
        DumpNotFoundError: nothing there, or nothing of a known format.
        UnreadableFileError: truncated, foreign or damaged.
        MissingFieldError: a needed column is not there.
        UsageError: an unknown field, layout or format, an ambiguous column, or a layout that must be named.
    """
    check_layout(layout)
    mapping = dict(field_map or {})
    if join is None:
        infos, others = found_files(paths, mapping, layout, input_format, marker=require_marker)
        _check_layout_taken(infos, layout)
        return Dump(tuple(infos), layout, mapping, tuple(others))
    how = partial(found_files, field_map=mapping, layout=layout, partial=True, marker=require_marker)
    infos, others = how(paths, input_format=input_format, needed=LOG_PROBS[:1])
    second, more = how(join, input_format=None, needed=LOG_PROBS[1:])
    _check_maps(mapping, [*infos, *second])
    _check_layout_taken([*infos, *second], layout)
    joined, made, unmatched = join_dumps(infos, second, layout)
    return Dump(tuple(joined), layout, mapping, (*others, *more, *unmatched), made)


def _check_maps(field_map: Mapping[str, str], infos: Sequence[FileInfo]) -> None:
    """Raises MissingFieldError for a column that is in neither dump."""
    for name, column in field_map.items():
        if not any(name in info.fields and info.fields[name].column == column for info in infos):
            raise MissingFieldError(f"--map {name}={column}: no column is named {column!r} in either dump")


def _check_layout_taken(infos: Sequence[FileInfo], layout: str | None) -> None:
    """Raises UsageError for a layout that no file is read in."""
    if layout is None or any(info.takes_layout for info in infos):
        return
    named = needs(LAYOUTS[layout])
    lacks = f" with {' and '.join(map(repr, named))}" if named else " that could be laid out in two ways"
    raise UsageError(
        f"{infos[0].file.name}: --layout {layout} changes nothing: no file is a batch of tensors or has rows{lacks}; "
        "leave it out"
    )


def _wanted(fields: Collection[str] | None) -> frozenset[str]:
    always = {"rollout_log_probs", "old_log_probs", "log_probs", "response_mask", "step"}
    return frozenset(f.name for f in FIELDS) if fields is None else frozenset(always | set(fields))
