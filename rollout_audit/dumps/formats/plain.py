"""Files of one's own: JSON objects, and what `torch.save` was given, with the columns of this tool or of a trainer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_audit.dumps.fields import COLUMN_NAMES, LOG_PROBS, named_log_probs
from rollout_audit.errors import NothingToAuditError, UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rollout_audit.dumps.columns import Source
    from rollout_audit.dumps.discovery import DumpFile
    from rollout_audit.dumps.records import Record

__all__ = ["FIELDS", "source_of", "unpack"]

FIELDS: Mapping[str, str] = {}


def unpack(record: Record) -> dict[str, Any]:
    return dict(record)


def source_of(file: DumpFile, content: Any, layout: str | None, field_map: Mapping[str, str]) -> Source:
    """A list of dictionaries is rows; a dictionary is a batch where its log-probs are tensors, else columns of rows.

    Raises:
        UnreadableFileError: it is none of these.
        NothingToAuditError: there is not one row.
    """
    from rollout_audit.dumps.records import RecordSource
    from rollout_audit.dumps.row_layouts import laid_out
    from rollout_audit.dumps.stores import ArrayStore
    from rollout_audit.dumps.tensors import TensorSource
    from rollout_audit.dumps.torch_files import zip_footer

    footer = zip_footer(file.path)
    if isinstance(content, dict):
        content = {name: _unbound(value) for name, value in content.items() if isinstance(name, str)}
    if (rows := _rows(file, content, set(field_map.values()))) is not None:
        if not rows:
            raise NothingToAuditError(f"{file.name}: zero rows, nothing to audit; name a dump that has some")
        return laid_out(RecordSource(rows, where=file.name, footer=footer), layout, file.name, field_map)
    return TensorSource(file, ArrayStore(_arrays(file, content), footer), layout)


def _rows(file: DumpFile, content: Any, mapped: Collection[str]) -> list[Record] | None:
    """One dictionary a row, None where the content is a batch of tensors.

    Known and mapped columns say how many rows there are; of the others those that have no more and no fewer are kept.
    """
    if isinstance(content, list) and all(isinstance(row, dict) for row in content):
        return content
    if not isinstance(content, dict):
        raise UnreadableFileError(
            f"{file.path}: holds a {type(content).__name__}; expected tensors by name, or a list of rows"
        )
    if not any(_is_list_of_rows(value) for value in _told_by(content, mapped)):
        return [] if content and all(isinstance(value, list) and not value for value in content.values()) else None
    sizes = {name: size for name, value in content.items() if (size := _rows_in(value)) is not None}
    deciding = {name: size for name, size in sizes.items() if name in COLUMN_NAMES or name in mapped} or sizes
    if len(set(deciding.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in deciding.items())
        raise UnreadableFileError(f"{file.path}: columns of different numbers of rows ({listed})")
    rows = next(iter(deciding.values()))
    columns = {name: _by_row(value, rows) for name, value in content.items() if sizes.get(name, rows) == rows}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _unbound(value: Any) -> Any:
    """A nested tensor as the list of its rows."""
    return list(value.unbind()) if getattr(value, "is_nested", False) else value


def _told_by(content: Mapping[str, Any], mapped: Collection[str]) -> list[Any]:
    """What says whether there are rows or tensors: the log-probs, or all that may be some under a name of its own."""
    known = [content[name] for name in named_log_probs(LOG_PROBS).union(mapped) if name in content]
    return known or [value for value in content.values() if _is_real(value)] or list(content.values())


def _is_real(value: Any) -> bool:
    """Whether there are fractions in it: log-probs are no whole numbers."""
    if isinstance(value, list):
        return any(_is_real(row) for row in value)
    return isinstance(value, float) or "float" in str(getattr(value, "dtype", ""))


def _is_list_of_rows(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(row, list) or len(getattr(row, "shape", ())) for row in value)


def _rows_in(value: Any) -> int | None:
    """Rows of a column, None where one value stands for all."""
    if isinstance(value, list):
        return len(value)
    shape: Any = getattr(value, "shape", ())
    return None if math.prod(shape) == 1 else int(shape[0])


def _by_row(value: Any, rows: int) -> list[Any]:
    if isinstance(value, list):
        return value
    shape: Any = getattr(value, "shape", ())
    if len(shape) and shape[0] == rows:
        return list(value)
    return [value.reshape(()) if len(shape) else value] * rows


def _arrays(file: DumpFile, content: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a batch, and what else is one value a row or for all; the rest says nothing of the responses.

    Raises:
        UnreadableFileError: a field whose rows are not of one length.
    """
    arrays = {name: _as_array(value) for name, value in content.items()}
    uneven = [
        name for name, array in arrays.items() if array is None and name in COLUMN_NAMES and content[name] is not None
    ]
    if uneven:
        raise UnreadableFileError(
            f"{file.path}: {uneven[0]} is a list of rows of uneven length, beside log-probs that are one tensor; "
            "save both in one form"
        )
    return {name: array for name, array in arrays.items() if array is not None}


def _as_array(value: Any) -> Any:
    """A tensor as it is; numbers, texts and lists of even length as an array; None: nothing of the kind."""
    if hasattr(value, "dtype"):
        return value
    if isinstance(value, list):
        value = [row.tolist() if hasattr(row, "dtype") else row for row in value]
    elif not isinstance(value, int | float):
        return None
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "biufU" else None
