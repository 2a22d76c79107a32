"""Rows that a trainer wrote one by one (JSON objects, dictionaries of tensors) as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from rollout_audit.dumps.columns import Batch, ColumnInfo, Ragged, Scalars, as_wide, offsets_of
from rollout_audit.dumps.ragged import to_ragged, to_scalars
from rollout_audit.dumps.values import HALVES, on_host, type_name
from rollout_audit.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


__all__ = ["Record", "RecordSource", "batches_of", "column_infos", "tokens_in"]

Record: TypeAlias = "Mapping[str, Any]"
"""Column → what one row holds: a list, an array or a tensor of one value a token, a single value, or None."""

_ARRAY_ELEMENTS = {"f": "float64", "i": "int", "u": "int", "b": "bool", "U": "text", "O": "other"}
_NUMBERS = ("float64", "float32", "bfloat16", "float16", "int")
"""widest first"""
_PLAIN_ELEMENTS = ((bool, "bool"), (int, "int"), (float, "float64"), (str, "text"))


def column_infos(records: Sequence[Record]) -> tuple[ColumnInfo, ...]:
    """What the rows looked at say of each column; a column without a value has the element `null`."""
    names = dict.fromkeys(name for record in records for name in record)
    return tuple(_info(name, [record.get(name) for record in records]) for name in names)


def _info(name: str, values: Sequence[Any]) -> ColumnInfo:
    """Told by the first value that is there; a row of another kind is an error once it is read."""
    present = [value for value in values if value is not None]
    is_list = bool(present) and _is_list(present[0])
    element = _widest([_list_element(value) if is_list else _element(value) for value in present])
    return ColumnInfo(name, f"list<{element}>" if is_list else element, element, is_list)


def _widest(kinds: Sequence[str]) -> str:
    known = [kind for kind in kinds if kind != "null"]
    if not known or known[0] not in _NUMBERS:
        return known[0] if known else "null"
    return next(kind for kind in _NUMBERS if kind in known)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or (hasattr(value, "dtype") and len(value.shape) > 0)


def _list_element(value: Any) -> str:
    if hasattr(value, "dtype"):
        return _array_element(value) if len(value.shape) == 1 else "other"
    if not isinstance(value, list | tuple):
        return "other"
    return next((_element(item) for item in value if item is not None), "null")


def _array_element(value: Any) -> str:
    name = type_name(value)
    if name in {*HALVES, "float32", "float64", "bool"}:
        return name
    return (
        "int" if name.lstrip("u").startswith("int") else _ARRAY_ELEMENTS.get(getattr(value.dtype, "kind", "O"), "other")
    )


def _element(value: Any) -> str:
    if hasattr(value, "dtype"):
        return _array_element(value)
    return next((name for kind, name in _PLAIN_ELEMENTS if isinstance(value, kind)), "other")


def tokens_in(record: Record, column: str) -> int:
    """Tokens of a row, 0 where it has no list."""
    value: Any = record.get(column)
    return len(value) if _is_list(value) else 0


def batches_of(
    records: Iterable[Record], columns: Sequence[ColumnInfo], *, size_by: str, chunk_tokens: int, first: int, where: str
) -> Iterator[Batch]:
    """Consecutive rows in batches of about `chunk_tokens` tokens, the first of them row `first` of the file.

    Raises:
        UnreadableFileError: values of one column that do not go together.
    """
    held: list[Record] = []
    tokens = 0
    for record in records:
        length = tokens_in(record, size_by)
        if held and tokens + length > chunk_tokens:
            yield _batch(held, columns, first, where)
            first, tokens, held = first + len(held), 0, []
        held.append({column.name: record.get(column.name) for column in columns})
        tokens += length
    if held:
        yield _batch(held, columns, first, where)


def _batch(records: Sequence[Record], columns: Sequence[ColumnInfo], first: int, where: str) -> Batch:
    numbers = np.arange(first, first + len(records), dtype=np.int64)
    read = {c.name: _column(c, [record[c.name] for record in records], first, where) for c in columns}
    return Batch(numbers, read)


def _column(column: ColumnInfo, values: list[Any], first: int, where: str) -> Ragged | Scalars:
    odd = [row for row, value in enumerate(values) if value is not None and _is_list(value) != column.is_list]
    if odd:
        kinds = ("a single value", "a list") if column.is_list else ("a list", "a single value")
        raise UnreadableFileError(
            f"{where}, row {first + odd[0]}: {column.name!r} is {kinds[0]}, in other rows it is {kinds[1]}"
        )
    shown = [value for value in values if value is not None]
    if column.is_list and shown and all(hasattr(value, "dtype") for value in shown):
        deep = [row for row, value in enumerate(values) if value is not None and len(value.shape) > 1]
        if deep:
            shape = list(values[deep[0]].shape)
            raise UnreadableFileError(
                f"{where}, row {first + deep[0]}: {column.name!r} is {shape}, expected one value a token"
            )
        return _joined(values)
    values = [_plain(value) for value in values]
    try:
        return to_ragged(pa.array(values)) if column.is_list else _scalars(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UnreadableFileError(f"{where}: {_culprit(column.name, values, first)}") from error


def _joined(values: Sequence[Any]) -> Ragged:
    """Tensors end to end; a row without one has an empty span."""
    arrays = [np.empty(0, np.float32) if value is None else on_host(value) for value in values]
    kinds = [array for array, value in zip(arrays, values, strict=True) if value is not None]
    kind = np.result_type(*kinds) if kinds else np.float32
    offsets = offsets_of([len(array) for array in arrays])
    absent = [row for row, value in enumerate(values) if value is None]
    return Ragged(np.concatenate([a.astype(kind, copy=False) for a in arrays]), offsets, np.array(absent, np.int64))


def _plain(value: Any) -> Any:
    if not hasattr(value, "dtype"):
        return value
    return value.item() if not len(value.shape) else value.tolist()


def _scalars(values: list[Any]) -> Scalars:
    if any(isinstance(value, str) for value in values):
        values = [None if value is None else str(value) for value in values]
    column = to_scalars(pa.array(values))
    return Scalars(as_wide(column.values) if column.values.dtype != object else column.values, column.null_rows)


def _culprit(name: str, values: Sequence[Any], first: int) -> str:
    """The first row that does not go with the rows before it."""
    for row in range(len(values)):
        try:
            pa.array(list(values[: row + 1]))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, OverflowError) or "too large" in str(error):
                return f"row {first + row}, column {name!r}: holds a number beyond 64 bits"
            reason = str(error).splitlines()[0][:120]
            return f"row {first + row}, column {name!r}: not of the same kind as in the rows before ({reason})"
    return f"column {name!r}: values that do not go together"


class RecordSource:
    """Rows that are all in memory: one row group."""

    lacks_training = ""
    takes_layout = False

    def __init__(
        self,
        records: Sequence[Record],
        *,
        where: str,
        footer: bytes,
        step: int | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        self._records = records
        self._where = where
        self.footer = footer
        self.step = step
        self.fields = fields or {}
        self.columns = column_infos(records)

    @property
    def rows(self) -> int:
        return len(self._records)

    @property
    def row_groups(self) -> tuple[int, ...]:
        return (self.rows,)

    def values(self, column: str) -> int:
        return sum(tokens_in(record, column) for record in self._records)

    def batches(
        self,
        columns: Collection[str],
        *,
        size_by: str,
        chunk_tokens: int,
        row_groups: Sequence[int],  # noqa: ARG002 - there is one
    ) -> Iterator[Batch]:
        wanted = [column for column in self.columns if column.name in columns]
        return batches_of(self._records, wanted, size_by=size_by, chunk_tokens=chunk_tokens, first=0, where=self._where)
