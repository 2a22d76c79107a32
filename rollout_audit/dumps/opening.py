"""From the files found to what the footer of each says: fields, rows, step, digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rollout_audit.dumps.columns import ColumnInfo
from rollout_audit.dumps.discovery import DumpFile, discover_finished
from rollout_audit.dumps.fields import (
    FIELDS,
    LEADS,
    LOG_PROBS,
    NAMES,
    TRAINING,
    Mapped,
    RolloutAloneError,
    TrainerAloneError,
    named_log_probs,
    resolve_fields,
)
from rollout_audit.dumps.formats.table import FORMATS, recognise
from rollout_audit.dumps.naming import step_from_path
from rollout_audit.dumps.roster import audited, identify, without_marker
from rollout_audit.dumps.sources import open_source
from rollout_audit.dumps.twins import without_twins
from rollout_audit.errors import MissingFieldError, UnreadableFileError

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping, Sequence

    from rollout_audit.dumps.chunk import Finding
    from rollout_audit.dumps.columns import Source

__all__ = ["FileInfo", "found_files", "is_text_of_ids", "reopened"]

_NAMED = 3
"""files that an error lists"""
_LISTS = {field.name for field in FIELDS if field.kind == "token"}
_NUMERIC = {*_LISTS, "advantages", "reward", "step"}
_NUMBERS = {"float16", "bfloat16", "float32", "float64", "int", "bool", "null"}


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What the footer of one file says."""

    file: DumpFile
    columns: tuple[ColumnInfo, ...]
    fields: Mapping[str, Mapped]
    rows: int
    row_groups: tuple[int, ...]
    """rows of each"""
    values: int
    """elements of the rollout's log-probs; in Parquet an empty list counts as one"""
    step: int
    """of rows without one of their own: from the metadata, else from the path"""
    digest: str
    """SHA-256 over size and footer (header), hexadecimal"""

    own_digest: str = ""
    """the same, of a file to which nothing is joined"""
    lacks_training: str = ""
    """why no column is the trainer's, empty where one is"""
    takes_layout: bool = False
    """whether it is read in the layout that was asked for"""
    ids_differ: bool = False
    """whether metadata says that there are more or fewer token ids than log-probs"""

    @property
    def lead(self) -> str:
        """The column that says how many tokens a row has."""
        return next(self.fields[name].column for name in LEADS if name in self.fields)

    @property
    def own_map(self) -> dict[str, str]:
        """Field → column of this file, as found: what `open_source` needs to read it the same way again."""
        return {name: mapped.column for name, mapped in self.fields.items() if mapped.origin == "map"}

    def column(self, name: str) -> ColumnInfo:
        return next(column for column in self.columns if column.name == name)


def found_files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    field_map: Mapping[str, str],
    layout: str | None,
    input_format: str | None,
    *,
    needed: Collection[str] = LOG_PROBS,
    partial: bool = False,
    marker: str | None = None,
) -> tuple[list[FileInfo], list[Finding]]:
    """The files of one dump, and what was found beside them; `partial`: columns of the map may be elsewhere."""
    wanted = named_log_probs(needed) | set(field_map.values())
    complete, waiting = discover_finished(paths, input_format, marker)
    files, others = identify(complete, wanted, forced=input_format is not None)
    infos, more = audited(_informed(files, field_map, layout, needed, partial=partial))
    infos, twins = without_twins(infos, layout)
    return infos, [*without_marker(waiting, marker), *others, *more, *twins]


def _informed(
    files: Sequence[DumpFile],
    field_map: Mapping[str, str],
    layout: str | None,
    needed: Collection[str],
    *,
    partial: bool,
) -> list[FileInfo]:
    """What each file says, or one error that names every file without a rollout side.

    A file without a trainer's side is an error beside one that has it, else the dump is of the rollout alone.
    """
    infos: list[FileInfo] = []
    alone: list[tuple[str, TrainerAloneError]] = []
    bare: list[RolloutAloneError] = []
    for file in files:
        try:
            infos.append(_inform(file, field_map, layout, needed, partial=partial))
        except TrainerAloneError as error:
            alone.append((file.name, error))
        except RolloutAloneError as error:
            bare.append(error)
            infos.append(_inform(file, field_map, layout, LOG_PROBS[:1], partial=partial, lacks=error.reason))
    if alone:
        raise MissingFieldError(_trainer_alone(alone, len(files))) from alone[0][1]
    if bare and not all(info.lacks_training for info in infos):
        raise bare[0]
    return infos


def _trainer_alone(alone: Sequence[tuple[str, TrainerAloneError]], files: int) -> str:
    if len(alone) == files:
        return f"{alone[0][1]}, or give the dump of the rollout's side and this one as --join"
    named = ", ".join(name for name, _ in alone[:_NAMED])
    more = f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else ""
    return (
        f"no rollout_log_probs in {len(alone)} of {files} files, only the trainer's ({named}{more}): leave these files "
        "out, or give them as --join to the dump that has their rollout_log_probs under the same uid"
    )


def _inform(
    file: DumpFile,
    field_map: Mapping[str, str],
    layout: str | None,
    needed: Collection[str],
    *,
    partial: bool,
    lacks: str = "",
) -> FileInfo:
    source = open_source(file, layout, field_map)
    if file.format == "parquet":
        file = replace(file, format=recognise("parquet", [column.name for column in source.columns]))
    named = {*field_map.values(), *source.fields.values()}
    usable = [column.name for column in source.columns if column.name in named or _may_be_a_field(column)]
    lacks = lacks or source.lacks_training or FORMATS[file.format].lacks_training
    if lacks:
        needed = [name for name in needed if name == "rollout_log_probs"]
    if partial:
        field_map = {name: column for name, column in field_map.items() if column in usable}
    mapping = resolve_fields(usable, field_map, where=file.name, format_map=source.fields, needed=needed)
    _check_types(file, source.columns, mapping)
    return FileInfo(
        file=file,
        columns=source.columns,
        fields=mapping,
        rows=source.rows,
        row_groups=source.row_groups,
        values=(values := source.values(next(mapping[name].column for name in LEADS if name in mapping))),
        step=source.step if source.step is not None else step_from_path(file.path),
        digest=(digest := _digest(file, source)),
        own_digest=digest,
        lacks_training="" if TRAINING & mapping.keys() else lacks,
        takes_layout=source.takes_layout,
        ids_differ="token_ids" in mapping and source.values(mapping["token_ids"].column) != values,
    )


def reopened(info: FileInfo, layout: str | None) -> Source:
    """The file once more, to be read.

    Raises:
        UnreadableFileError: it is no longer the file that it was.
    """
    source = open_source(info.file, layout, info.own_map)
    if info.own_digest and _digest(info.file, source) != info.own_digest:
        raise UnreadableFileError(
            f"{info.file.name}: changed since the dump was opened; open it again when nothing writes to it any more"
        )
    return source


def _digest(file: DumpFile, source: Source) -> str:
    return hashlib.sha256(file.size.to_bytes(8, "little") + source.footer).hexdigest()


def _may_be_a_field(column: ColumnInfo) -> bool:
    return (column.is_list or column.element != "null") and not is_text_of_ids(column)


def is_text_of_ids(column: ColumnInfo) -> bool:
    """Whether it is called as some call their token ids, and holds the text of the responses or the like."""
    return column.name in NAMES["token_ids"][1:] and _type_problem("token_ids", column) is not None


def _check_types(file: DumpFile, columns: tuple[ColumnInfo, ...], mapping: Mapping[str, Mapped]) -> None:
    by_name = {column.name: column for column in columns}
    for name, mapped in mapping.items():
        column = by_name[mapped.column]
        if problem := _type_problem(name, column):
            raise UnreadableFileError(f"{file.name}: column {column.name!r} ({name}) holds {column.type}, {problem}")


def _type_problem(name: str, column: ColumnInfo) -> str | None:
    """Why the column cannot hold that field."""
    if name in _LISTS and not column.is_list:
        return "expected a list of numbers a row (of the shape of the rollout's log-probs)"
    if column.element == "misfit":
        return "expected one value a row"
    if name in _NUMERIC and column.element not in _NUMBERS:
        return "which is not read; store integers, float64, float32, float16 or bfloat16"
    return None
