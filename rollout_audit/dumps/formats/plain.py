"""Files of one's own: JSON objects, and what `torch.save` was given, with the columns of this tool or of a trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_audit.errors import NothingToAuditError, UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollout_audit.dumps.columns import Source
    from rollout_audit.dumps.discovery import DumpFile
    from rollout_audit.dumps.records import Record

__all__ = ["FIELDS", "source_of", "unpack"]

FIELDS: Mapping[str, str] = {}


def unpack(record: Record) -> dict[str, Any]:
    return dict(record)


def source_of(file: DumpFile, content: Any, layout: str | None) -> Source:
    """A dictionary of tensors is a batch; a list of dictionaries, or a dictionary of lists of tensors, are rows.

    Raises:
        UnreadableFileError: it is none of these.
        NothingToAuditError: there is not one row.
    """
    from rollout_audit.dumps.records import RecordSource
    from rollout_audit.dumps.stores import ArrayStore
    from rollout_audit.dumps.tensors import TensorSource
    from rollout_audit.dumps.torch_files import zip_footer

    footer = zip_footer(file.path)
    if (rows := _rows(file, content)) is not None:
        if not rows:
            raise NothingToAuditError(f"{file.name}: zero rows, nothing to audit; name a dump that has some")
        return RecordSource(rows, where=file.name, footer=footer)
    arrays = {name: value for name, value in content.items() if _is_array(value)}
    return TensorSource(file, ArrayStore(arrays, footer), layout)


def _rows(file: DumpFile, content: Any) -> list[Record] | None:
    """One dictionary a row, None where the content is a batch of tensors."""
    if isinstance(content, list) and all(isinstance(row, dict) for row in content):
        return content
    if not isinstance(content, dict):
        raise UnreadableFileError(
            f"{file.path}: holds a {type(content).__name__}; expected tensors by name, or a list of rows"
        )
    lists = {name: value for name, value in content.items() if _is_list_of_rows(value)}
    if not lists:
        return [] if content and all(isinstance(value, list) and not value for value in content.values()) else None
    sizes = {name: len(value) for name, value in content.items() if isinstance(value, list)}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise UnreadableFileError(f"{file.path}: lists of different numbers of rows ({listed})")
    rows = next(iter(sizes.values()))
    columns = {name: value if isinstance(value, list) else [value] * rows for name, value in content.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _is_list_of_rows(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(row, list) or hasattr(row, "dtype") for row in value)


def _is_array(value: Any) -> bool:
    if hasattr(value, "dtype"):
        return True
    flat = isinstance(value, list) and all(isinstance(item, int | float | str) for item in value)
    return flat or isinstance(value, int | float)
