"""Any dump as native Parquet: what is read is written, and reads back as the same numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump, FileInfo, OnFault, Part
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.dumps.fields import FIELDS
from rollout_audit.dumps.native import ints, lacks_training, list_column, native_field, native_file, reals, texts
from rollout_audit.dumps.rows import row_uid
from rollout_audit.dumps.streaming import Selection, stream
from rollout_audit.dumps.target import fresh_folder, names_with_suffix

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from rollout_audit.dumps.chunk import Chunk

__all__ = ["Converted", "convert_dump"]

_SINGLE = {"float32", "float16", "bfloat16"}
_HALF = {"float16", "bfloat16"}


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written."""

    folder: Path
    files: tuple[str, ...]
    """relative to the folder, in order"""
    rows: int
    tokens: int
    dropped: int
    """faulty rows that were left out"""


def convert_dump(
    dump: Dump,
    out: str | os.PathLike[str],
    *,
    on_fault: OnFault = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    log: FaultLog | None = None,
) -> Converted:
    """Write a dump as Parquet, one file for each of its files, a chunk at a time; every row with its step.

    A row without uid keeps the name it had, `file#row`, as its uid. Log-probs and advantages keep float32 or float64 as
    they were (half precision becomes float32, which holds it, and is remembered), one advantage a row becomes one a
    token.

    Args:
        dump: any dump, also one of the rollout alone.
        out: a folder that is new or empty.
        on_fault: `stop` raises at the first fault; `drop` leaves faulty rows out.
        steps, limit: as in `Dump.chunks`.
        chunk_tokens: about how many tokens a row group holds.
        log: gathers what reading the files finds.

    Raises:
        UsageError: the folder holds something.
        DumpFaultError: a fault that conversion would hide, with `on_fault="stop"`.
        NothingToAuditError: no row to write; no folder is left then.
        DumpError: the folder cannot be written.
    """
    log = FaultLog() if log is None else log
    selection = Selection(frozenset(f.name for f in FIELDS), chunk_tokens, on_fault, steps, limit)
    with fresh_folder(out) as folder:
        converted = Converted(Path(out), *_write_all(dump, selection, folder, log))
        if not converted.rows:
            dump.require_valid(log)  # says which of the reasons it is
    return converted


def _write_all(dump: Dump, selection: Selection, folder: Path, log: FaultLog) -> tuple[tuple[str, ...], int, int, int]:
    names = names_with_suffix([info.file.name for info in dump.infos], [".parquet"] * len(dump.infos))
    parts, left = dump.parts(), selection.limit
    for index, (info, name) in enumerate(zip(dump.infos, names, strict=True)):
        of_file = [part for part in parts if part.file == index]
        _write_file(dump, info, of_file, replace(selection, limit=left), log, folder / name)
        left = None if selection.limit is None else max(0, selection.limit - sum(log.rows.values()))
    written = tuple(name for name in names if (folder / name).exists())
    dropped = len(log.dropped)
    return written, sum(log.rows.values()) - dropped, sum(log.tokens.values()), dropped


def _write_file(
    dump: Dump, info: FileInfo, parts: Sequence[Part], selection: Selection, log: FaultLog, path: Path
) -> None:
    """A file without a row in the selection leaves none behind."""
    chunks = stream(dump, selection, log, parts)
    first = next(chunks, None)
    if first is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = _schema(info)
    with native_file(path, schema, lacks_training(info.lacks_training)) as writer:
        writer.write_table(_table(first, schema, info.file.name))
        for chunk in chunks:
            writer.write_table(_table(chunk, schema, info.file.name))


def _schema(info: FileInfo) -> list[Any]:
    """The fields that the file holds; step and uid always."""
    kinds = {
        "response_mask": pa.list_(pa.bool_()),
        "token_ids": pa.list_(pa.int64()),
        "reward": pa.float64(),
        "uid": pa.string(),
        "group_id": pa.string(),
    }
    fields = [native_field("step", pa.int64()), native_field("uid", kinds["uid"])]
    for field in FIELDS:
        if field.name in info.fields and field.name not in ("step", "uid"):
            element = info.column(info.fields[field.name].column).element
            default = _floats(element) if field.kind != "row" else pa.int64()
            if field.name == "policy_version" and info.column(info.fields[field.name].column).is_list:
                default = pa.list_(pa.int64())
            fields.append(native_field(field.name, kinds.get(field.name, default), _halved(field.kind, element)))
    return fields


def _floats(element: str) -> Any:
    return pa.list_(pa.float32() if element in _SINGLE else pa.float64())


def _halved(kind: str, element: str) -> str | None:
    return element if kind != "row" and element in _HALF else None


def _table(chunk: Chunk, schema: Sequence[Any], file: str) -> Any:
    held = {
        "step": ints(chunk.steps),
        "reward": None if chunk.reward is None else reals(chunk.reward),
        "uid": texts([row_uid(chunk, row, file) for row in range(chunk.rows)]),
        "group_id": None if chunk.group_ids is None else texts(chunk.group_ids),
        "policy_version": _policy_versions(chunk, schema),
        "trainer_version": None if chunk.trainer_versions is None else ints(chunk.trainer_versions, -1),
    }
    columns = [_column(chunk, field, held) for field in schema]
    return pa.Table.from_arrays(columns, schema=pa.schema(schema))


def _policy_versions(chunk: Chunk, schema: Sequence[Any]) -> Any:
    """One a row, or where lists are recorded the oldest and the newest."""
    oldest, kind = chunk.policy_versions, next((f.type for f in schema if f.name == "policy_version"), None)
    if oldest is None or not pa.types.is_list(kind):
        return None if oldest is None else ints(oldest, -1)
    newest = oldest if chunk.newest_versions is None else chunk.newest_versions
    spans = zip(oldest.tolist(), newest.tolist(), np.diff(chunk.offsets).tolist(), strict=True)
    return pa.array([_span(*span) for span in spans], kind)


def _span(oldest: int, newest: int, tokens: int) -> list[int] | None:
    """Never of the response's own length, which would be read as one version a token."""
    return None if oldest < 0 else [oldest, newest] if tokens != 2 else [oldest, newest, newest]


def _column(chunk: Chunk, field: Any, held: Mapping[str, Any]) -> Any:
    if field.name in held:
        return held[field.name]
    return list_column(getattr(chunk, field.name), chunk.offsets, field.type.value_type)
