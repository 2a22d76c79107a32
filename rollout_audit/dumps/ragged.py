"""Arrow columns of any list and number type → NumPy values, offsets and the places of nulls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollout_audit.dumps.columns import Ragged, Scalars, as_wide, no_rows, offsets_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["element_name", "is_list_type", "to_ragged", "to_scalars"]

_LIST_TESTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_ELEMENTS = (
    (pa.types.is_float16, "float16"),
    (pa.types.is_float32, "float32"),
    (pa.types.is_float64, "float64"),
    (pa.types.is_decimal, "float64"),
    (pa.types.is_boolean, "bool"),
    (pa.types.is_integer, "int"),
    (pa.types.is_null, "null"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_string_view, "text"),
)


def is_list_type(kind: Any) -> bool:
    return any(test(kind) for test in _LIST_TESTS)


def element_name(kind: Any) -> str:
    """The number type inside lists and dictionaries: one of the names in `ColumnInfo.element`."""
    if is_list_type(kind) or pa.types.is_dictionary(kind):
        inner = element_name(kind.value_type)
        return "other" if is_list_type(kind) and is_list_type(kind.value_type) else inner
    return next((name for test, name in _ELEMENTS if test(kind)), "other")


def to_ragged(array: Any) -> Ragged:
    """A list column of one record batch, without a copy where no value is null.

    float16 is widened to float32 (exactly); decimals become float64; an all-null column has only null rows.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return Ragged(np.empty(0, np.float32), np.zeros(len(array) + 1, np.int64), np.arange(len(array)))
    null_rows = _null_places(array)
    offsets, elements = _spans(array, null_rows)
    values, nulls = _numbers(elements)
    return Ragged(values, offsets, null_rows, nulls)


def to_scalars(array: Any) -> Scalars:
    """A column of one value a row; text stays text (object array)."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    null_rows = _null_places(array)
    if element_name(array.type) in {"text", "other"}:
        return Scalars(np.array(array.cast(pa.string()).to_pylist(), dtype=object), null_rows)
    values, _ = _numbers(array)
    return Scalars(as_wide(values), null_rows)


def _spans(array: Any, null_rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Any]:
    """Offsets from 0 and the elements they point into; a null row gets an empty span."""
    if _plain_list(array.type) and not len(null_rows):
        raw = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        return raw - raw[0], array.values.slice(int(raw[0]), int(raw[-1] - raw[0]))
    lengths = _lengths(array)
    lengths[null_rows] = 0
    return offsets_of(lengths), array.flatten()


def _plain_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _lengths(array: Any) -> NDArray[np.int64]:
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size, np.int64)
    counted = pc.fill_null(pc.list_value_length(array), 0)
    return np.array(counted.to_numpy(zero_copy_only=False), dtype=np.int64)


def _null_places(array: Any) -> NDArray[np.int64]:
    if not array.null_count:
        return no_rows()
    return np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).astype(np.int64)


def _numbers(array: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Values with NaN (integers: 0) for null, and where the nulls are."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return np.full(len(array), np.nan, np.float32), np.arange(len(array))
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    nulls = _null_places(array)
    if not len(nulls):
        return _widened(array.to_numpy(zero_copy_only=False)), nulls
    return _filled(array, nulls), nulls


def _filled(array: Any, nulls: NDArray[np.int64]) -> NDArray[Any]:
    blank: Any = {"bool": False, "text": ""}.get(element_name(array.type), 0)
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    values = np.array(array.fill_null(blank).to_numpy(zero_copy_only=False))
    if values.dtype.kind == "f":
        values[nulls] = np.nan
    return values


def _widened(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.float32) if values.dtype == np.float16 else values
