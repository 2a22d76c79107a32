"""A batch as a training loop has it → packed columns of its responses, and from there a native file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rollout_audit.dumps.columns import counts_by_row, offsets_of
from rollout_audit.dumps.fields import TRAINING
from rollout_audit.dumps.layouts import response_places
from rollout_audit.dumps.native import lacks_training, list_column, native_field, native_file
from rollout_audit.dumps.text import on_one_line
from rollout_audit.dumps.values import HALVES, on_host
from rollout_audit.errors import DumpError, amount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Recorded", "recorded", "write_recorded"]

_EITHER = ("advantages", "policy_version")
"""Arguments with one value a token or one a response"""
_NAMES = ("uid", "group_id")
_REALS = ("reward", "advantages")
_BEYOND = 2**63
_LOG_PROBS = ("rollout_log_probs", "old_log_probs", "log_probs")
_NO_TRAINER = "this file was recorded on the rollout's side"


@dataclass(frozen=True, slots=True)
class _Tokens:
    """One per-token argument, end to end."""

    values: NDArray[Any]
    lengths: NDArray[np.int64]
    stored_as: str | None
    shown: str
    """the shape, for an error"""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Columns of one file and the fields that describe them."""

    fields: tuple[Any, ...]
    columns: tuple[Any, ...]
    lacks_training: str


def recorded(step: int, per_token: Mapping[str, Any], mask: Any, per_row: Mapping[str, Any]) -> Recorded:
    """The responses of a batch, without prompt and padding.

    Raises:
        DumpError: no log-probs at all, shapes that differ, a mask that is not 0 and 1.
    """
    given = {name: _in_order(name, value) for name, value in per_token.items() if value is not None}
    lead_name = next((name for name in _LOG_PROBS if name in given), None)
    if lead_name is None:
        raise DumpError("no log-probs given: rollout_log_probs and old_log_probs or log_probs are what is recorded")
    of_rows = {name: value for name, value in per_row.items() if value is not None}
    for name in _EITHER:
        if name in given and _is_flat(given[name]):
            of_rows[name] = given.pop(name)
    tokens = {name: _packed(name, value) for name, value in given.items()}
    lead = tokens[lead_name]
    tokens["response_mask"] = _mask(_in_order("response_mask", mask), lead)
    _check_shapes(lead_name, tokens)
    keep, lengths = _responses(tokens["response_mask"])
    columns = {"step": (pa.array(np.full(len(lengths), step)), None), **_lists(tokens, keep, lengths)}
    columns |= {name: (_one_a_row(name, value, len(lengths)), None) for name, value in of_rows.items()}
    fields = tuple(native_field(name, column.type, stored_as) for name, (column, stored_as) in columns.items())
    lacks = "" if TRAINING & tokens.keys() else _NO_TRAINER
    return Recorded(fields, tuple(column for column, _ in columns.values()), lacks)


def _lists(
    tokens: Mapping[str, _Tokens], keep: NDArray[np.bool_], lengths: NDArray[np.int64]
) -> dict[str, tuple[Any, str | None]]:
    offsets = offsets_of(lengths)
    return {
        name: (list_column(one.values[keep], offsets, pa.from_numpy_dtype(one.values.dtype)), one.stored_as)
        for name, one in tokens.items()
    }


def write_recorded(batch: Recorded, path: Path) -> None:
    """Write the file, or none."""
    with native_file(path, batch.fields, lacks_training(batch.lacks_training)) as writer:
        writer.write_table(pa.Table.from_arrays(list(batch.columns), schema=pa.schema(batch.fields)))


def _in_order(name: str, value: Any, most: int | None = None) -> Any:
    """Views, ranges and iterators as the list of what they give, `most` of it; all else as it is.

    Raises:
        DumpError: a collection whose order says nothing of the responses'.
    """
    if hasattr(value, "shape") or isinstance(value, list | tuple | str | bytes) or not hasattr(value, "__iter__"):
        return value
    if isinstance(value, set | frozenset | dict):
        raise DumpError(f"{name} is a {type(value).__name__}, whose order is not that of the responses; give a list")
    return value if getattr(value, "is_nested", False) else list(islice(value, most))


def _is_flat(value: Any) -> bool:
    """Whether a value holds one number a row."""
    if getattr(value, "is_nested", False):
        return False
    if hasattr(value, "shape"):
        return len(value.shape) < 2
    return not hasattr(value, "__iter__") or not any(
        isinstance(row, list | tuple) or getattr(row, "shape", ()) for row in value
    )


def _packed(name: str, value: Any) -> _Tokens:
    """Any of the accepted forms, on the host."""
    if getattr(value, "is_nested", False):
        value = list(value.unbind())
    if hasattr(value, "shape"):
        if len(value.shape) != 2:
            raise DumpError(f"{name} is {list(value.shape)}; expected [B, T], or a list of B responses")
        rows, width = value.shape
        array, stored_as = _host(name, value)
        shown = f"{type(value).__name__} {[int(rows), int(width)]}"
        return _Tokens(array.reshape(-1), np.full(rows, width, np.int64), stored_as, shown)
    if not hasattr(value, "__iter__") or isinstance(value, str):
        raise DumpError(f"{name} is {on_one_line(repr(value))}; expected [B, T], or a list of B responses")
    hosts = [_host(name, row) for row in value]
    arrays = [array for array, _ in hosts]
    odd = next((array for array in arrays if array.ndim != 1), None)
    if odd is not None:
        raise DumpError(f"{name} holds a response of shape {list(odd.shape)}; expected one value a token")
    lengths = np.array([len(array) for array in arrays], np.int64)
    filled = [(array, half) for array, half in hosts if len(array)]  # an empty list has no type of its own
    stored_as = next((half for _, half in filled if half), None)
    values = np.concatenate([array for array, _ in filled]) if filled else np.empty(0)
    return _Tokens(values, lengths, stored_as, f"{len(arrays)} responses")


def _host(name: str, value: Any) -> tuple[NDArray[Any], str | None]:
    """The numbers, and the half precision they were widened from."""
    kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
    half = kind if kind in HALVES else None
    try:
        array = on_host(value) if hasattr(value, "detach") else np.asarray(value)
        if array.dtype == object and not any(isinstance(one, str | bytes) for one in array.flat):
            array = array.astype(np.float64)  # None where the engine gave no number
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise DumpError(f"{name} cannot be taken as numbers ({on_one_line(str(error))})") from error
    if array.dtype.kind not in "biuf":
        raise DumpError(f"{name} holds {on_one_line(repr(array.flat[0]))}, which is no number")
    return (array.astype(np.float32) if half else array), half


def _check_shapes(lead_name: str, tokens: Mapping[str, _Tokens]) -> None:
    lead = tokens[lead_name]
    for name, one in tokens.items():
        if not np.array_equal(one.lengths, lead.lengths):
            raise DumpError(f"{name} ({_sizes(one)}) does not fit {lead_name} ({_sizes(lead)})")


def _sizes(tokens: _Tokens) -> str:
    return f"{tokens.shown}, {len(tokens.values)} values"


def _mask(mask: Any, lead: _Tokens) -> _Tokens:
    """The mask as booleans; all 1 where none is given."""
    if mask is None:
        return replace(lead, values=np.ones(len(lead.values), np.bool_), stored_as=None)
    given = _packed("response_mask", mask)
    wrong = np.flatnonzero((given.values != 0) & (given.values != 1))
    if len(wrong):
        raise DumpError(f"response_mask holds {given.values[wrong[0]]}; only 0 and 1 are allowed")
    return replace(given, values=given.values == 1, stored_as=None)


def _responses(mask: _Tokens) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which places to keep, from the first to the last 1 of each row, and how many in each row."""
    offsets = offsets_of(mask.lengths)
    keep = response_places(mask.values, mask.values, offsets)
    return keep, counts_by_row(keep, offsets)


def _one_a_row(name: str, value: Any, rows: int) -> Any:
    """A column from one value a row, or from one for all."""
    if hasattr(value, "shape"):
        value = value.tolist() if _is_text(value) else _host(name, value)[0].tolist()
    value = _in_order(name, value, rows + 1)
    if not isinstance(value, list | tuple):
        value = [value] * rows
    values: Sequence[Any] = [item.item() if getattr(item, "shape", None) == () else item for item in value]
    if len(values) != rows:
        raise DumpError(f"{name} has {amount(len(values), 'value')} for {amount(rows, 'response')}")
    if name in _NAMES:
        return pa.array([None if item is None else str(item) for item in values], pa.string())
    of_numbers = "number" if name in _REALS else "whole number"
    if odd := next(([item] for item in values if not _fits(name, item)), None):
        raise DumpError(f"{name} holds {on_one_line(repr(odd[0]))}; expected one {of_numbers} a response")
    kind = float if name in _REALS else int
    return pa.array([None if item is None else kind(item) for item in values], pa.from_numpy_dtype(np.dtype(kind)))


def _is_text(value: Any) -> bool:
    """Whether an array holds names, as NumPy keeps them."""
    return getattr(value.dtype, "kind", "") in "OUS"


def _fits(name: str, item: Any) -> bool:
    """Whether a value is one that the column of this name can hold as it is."""
    if item is None or (name in _REALS and isinstance(item, int | float)):
        return True
    return isinstance(item, int | float) and abs(item) < _BEYOND and item % 1 == 0
