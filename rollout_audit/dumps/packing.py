"""One batch of columns → one chunk, with every fault of its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_audit.dumps.chunk import Chunk
from rollout_audit.dumps.columns import Batch, Ragged, Scalars, flagged, no_rows, offsets_of
from rollout_audit.dumps.faults import Fault, TokenColumn, check_tokens, constant_tails, fault_at, without_rows
from rollout_audit.dumps.per_row import (
    ROW_FIELDS,
    WholeNumbers,
    as_names,
    as_reals,
    as_texts,
    as_whole,
    one_per_row,
    shown_number,
    steps_in,
    version_span,
    whole_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["LOG_PROB_FIELDS", "CheckedChunk", "pack", "select_rows"]

LOG_PROB_FIELDS = ("rollout_log_probs", "old_log_probs", "log_probs")
_COMPARED_WITH = {
    "rollout_log_probs": ("old_log_probs", "log_probs"),
    "old_log_probs": ("rollout_log_probs",),
    "log_probs": ("rollout_log_probs",),
}
_TOKEN_FIELDS = (*LOG_PROB_FIELDS, "response_mask", "advantages", "token_ids")
_VERSIONS = ("policy_version", "trainer_version")
_FILLERS: dict[str, float] = {"response_mask": 1, "token_ids": -1}


@dataclass(frozen=True, slots=True)
class CheckedChunk:
    """A chunk as read, and what is wrong with it; rows in faults are counted in the chunk."""

    chunk: Chunk
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class _Aligned:
    """A token column on the rows of the rollout's log-probs."""

    values: NDArray[Any]
    nulls: NDArray[np.int64]
    absent: NDArray[np.int64]
    """rows without a list"""
    differs: NDArray[np.int64]
    """rows of another length"""


def pack(batch: Batch, mapping: Mapping[str, str], *, file: int, default_step: int) -> CheckedChunk:
    """Line the columns up on one set of offsets and check every value.

    Args:
        batch: columns by name.
        mapping: field → column, of the fields wanted.
        file: index of the file in the dump.
        default_step: for rows without a step of their own.

    Raises:
        NotANumberError: a reward or an advantage that is text.
    """
    columns = {field: batch.columns[column] for field, column in mapping.items()}
    lists = {field: columns[field] for field in _TOKEN_FIELDS if isinstance(columns.get(field), Ragged)}
    lead = _as_lists(columns["rollout_log_probs"])
    tokens = {field: _align(field, _as_lists(column), lead) for field, column in lists.items()}
    row_faults = [*_absent_rows(tokens), *_length_faults(tokens, lists)]
    mask, mask_faults = _mask(tokens.get("response_mask"), lead.offsets)
    mask = _without(mask, row_faults, lead.offsets)
    ids, id_faults = _ids(tokens.get("token_ids"), mask, lead.offsets)
    row = {field: one_per_row(field, column) for field, column in columns.items() if field in ROW_FIELDS}
    steps = steps_in(row.get("step"), batch.rows, default_step)
    spans = {field: _versions(columns.get(field), mask, lead.offsets) for field in _VERSIONS}
    versions = {field: span.oldest for field, span in spans.items()}
    number_faults = [*_step_faults(steps, default_step), *_version_faults(versions)]
    compared = {field: _token_column(field, tokens) for field in LOG_PROB_FIELDS if field in tokens}
    faults = [*row_faults, *mask_faults, *number_faults, *id_faults, *check_tokens(compared, mask, lead.offsets)]
    if "response_mask" not in columns:
        faults += _row_fault("constant_tail", "rollout_log_probs", constant_tails(compared, lead.offsets))
    values = {field: aligned.values for field, aligned in tokens.items()}
    chunk = Chunk(
        file=file,
        row_numbers=batch.row_numbers,
        offsets=lead.offsets,
        steps=steps.values,
        response_mask=mask,
        rollout_log_probs=values["rollout_log_probs"],
        old_log_probs=values.get("old_log_probs"),
        log_probs=values.get("log_probs"),
        advantages=_advantages(values.get("advantages"), columns.get("advantages"), lead.offsets),
        reward=as_reals("reward", row.get("reward")),
        uids=as_names(row.get("uid")),
        token_ids=ids,
        group_ids=as_texts(row.get("group_id")),
        policy_versions=_values(versions["policy_version"]),
        newest_versions=spans["policy_version"].newest,
        trainer_versions=_values(versions["trainer_version"]),
    )
    return CheckedChunk(chunk, tuple(sorted(faults, key=lambda fault: (fault.row, fault.position or 0))))


@dataclass(frozen=True, slots=True)
class _Span:
    """Versions of the weights behind each row."""

    oldest: WholeNumbers | None
    newest: NDArray[np.int64] | None
    """None: one version a row"""


def _versions(column: Ragged | Scalars | None, mask: NDArray[np.bool_], offsets: NDArray[np.int64]) -> _Span:
    if isinstance(column, Ragged):
        return _Span(*version_span(column, mask, offsets))
    return _Span(as_whole(column, -1, least=-1), None)


def _as_lists(column: Ragged | Scalars) -> Ragged:
    assert isinstance(column, Ragged)  # the dump checks types before it reads
    return column


def _row_fault(kind: str, column: str, rows: NDArray[np.int64], detail: str = "") -> list[Fault]:
    return [Fault(kind, column, rows, int(rows[0]), None, len(rows), detail)] if len(rows) else []


def _align(field: str, column: Ragged, lead: Ragged) -> _Aligned:
    if field in LOG_PROB_FIELDS and column.values.dtype.kind != "f":
        column = replace(column, values=_as_float(column))
    if np.array_equal(column.offsets, lead.offsets) and not len(column.null_rows):
        return _Aligned(column.values, column.nulls, no_rows(), no_rows())
    rows = len(lead.offsets) - 1
    same = np.diff(column.offsets) == np.diff(lead.offsets)
    absent, lead_absent = flagged(column.null_rows, rows), flagged(lead.null_rows, rows)
    values, nulls = _regathered(column, lead, same & ~absent, _FILLERS.get(field, np.nan))
    return _Aligned(values, nulls, column.null_rows, np.flatnonzero(~same & ~absent & ~lead_absent))


def _as_float(column: Ragged) -> NDArray[np.float64]:
    values = column.values.astype(np.float64)
    values[column.nulls] = np.nan
    return values


def _regathered(
    column: Ragged, lead: Ragged, fits: NDArray[np.bool_], filler: float
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The values of fitting rows on the lead's offsets, a filler elsewhere; and the places of nulls there."""
    into = np.repeat(fits, np.diff(lead.offsets))
    out_of = np.repeat(fits, np.diff(column.offsets))
    kind = column.values.dtype if column.values.dtype.kind != "i" else np.dtype(np.int64)
    values = np.full(len(into), filler, dtype=kind)
    values[into] = column.values[out_of]
    null = np.zeros(len(into), np.bool_)
    null[into] = flagged(column.nulls, len(column.values))[out_of]
    return values, np.flatnonzero(null)


def _absent_rows(tokens: Mapping[str, _Aligned]) -> list[Fault]:
    kinds = dict.fromkeys(LOG_PROB_FIELDS, "missing_row") | {
        "response_mask": "mask_missing",
        "token_ids": "ids_missing",
    }
    return [
        fault
        for field, kind in kinds.items()
        if field in tokens
        for fault in _row_fault(kind, field, tokens[field].absent)
    ]


def _length_faults(tokens: Mapping[str, _Aligned], lists: Mapping[str, Ragged | Scalars]) -> list[Fault]:
    rows = np.unique(np.concatenate([aligned.differs for aligned in tokens.values()]))
    if not len(rows):
        return []
    first = int(rows[0])
    lengths = [f"{field} {_length(_as_lists(column), first)}" for field, column in lists.items()]
    return _row_fault("length_mismatch", "lists", rows, ", ".join(lengths))


def _length(column: Ragged, row: int) -> int:
    return int(column.offsets[row + 1] - column.offsets[row])


def _without(mask: NDArray[np.bool_], faults: list[Fault], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The mask with 0 on rows that cannot be compared at all, so that their fillers raise no second fault."""
    broken = [fault.rows for fault in faults if fault.severity == "error"]
    return without_rows(mask, np.concatenate(broken), offsets) if broken else mask


def _mask(aligned: _Aligned | None, offsets: NDArray[np.int64]) -> tuple[NDArray[np.bool_], list[Fault]]:
    if aligned is None:
        return np.ones(int(offsets[-1]), np.bool_), []
    values, nulls = aligned.values, aligned.nulls
    if not len(nulls):
        if values.dtype == np.bool_:
            return values, []
        if values.dtype.itemsize == 1 and (not len(values) or values.view(np.uint8).max() <= 1):
            return values.view(np.bool_), []
    wrong = (values != 0) & (values != 1)
    wrong[nulls] = True
    mask = values == 1
    mask[nulls] = False
    places = np.flatnonzero(wrong)
    if not len(places):
        return mask, []
    shown = "null" if places[0] in nulls else f"{float(values[places[0]]):g}"
    return mask, [fault_at("mask_value", "response_mask", places, offsets, shown)]


def _token_column(field: str, tokens: Mapping[str, _Aligned]) -> TokenColumn:
    other = next((name for name in _COMPARED_WITH[field] if name in tokens), None)
    return TokenColumn(field, tokens[field].values, tokens[field].nulls, other)


def _values(column: WholeNumbers | None) -> NDArray[np.int64] | None:
    return None if column is None else column.values


def _step_faults(steps: WholeNumbers, default_step: int) -> list[Fault]:
    wrong = _row_fault("step_value", "step", steps.wrong, steps.shown)
    return [*wrong, *_row_fault("step_missing", "step", steps.absent, str(default_step))]


def _version_faults(versions: Mapping[str, WholeNumbers | None]) -> list[Fault]:
    return [
        fault
        for field, column in versions.items()
        if column is not None
        for fault in _row_fault("version_value", field, column.wrong, column.shown)
    ]


def _ids(
    aligned: _Aligned | None, mask: NDArray[np.bool_], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64] | None, list[Fault]]:
    """The token ids, -1 where there is none; and the places under the mask that hold something else."""
    if aligned is None:
        return None, []
    if aligned.values.dtype.kind == "i" and not len(aligned.nulls):
        return aligned.values.astype(np.int64, copy=False), []
    ids, wrong = whole_numbers(aligned.values, -1)
    ids[aligned.nulls] = -1
    wrong[aligned.nulls] = True
    wrong &= mask & ~np.repeat(flagged(aligned.absent, len(offsets) - 1), np.diff(offsets))
    places = np.flatnonzero(wrong)
    if not len(places):
        return ids, []
    shown = "null" if places[0] in aligned.nulls else shown_number(aligned.values[places[0]])
    return ids, [fault_at("token_id_value", "token_ids", places, offsets, shown)]


def _advantages(
    values: NDArray[Any] | None, column: Ragged | Scalars | None, offsets: NDArray[np.int64]
) -> NDArray[np.float64] | None:
    if values is not None:
        return values.astype(np.float64, copy=False)
    per_row = as_reals("advantages", column) if isinstance(column, Scalars) else None
    return None if per_row is None else np.repeat(per_row, np.diff(offsets))


_ROW_ARRAYS = ("row_numbers", "steps", "reward", "policy_versions", "newest_versions", "trainer_versions")
_TOKEN_ARRAYS = (*LOG_PROB_FIELDS, "response_mask", "advantages", "token_ids")


def select_rows(chunk: Chunk, keep: NDArray[np.bool_]) -> Chunk:
    """The chunk with only the rows where `keep` ([rows]) is true; itself where all are."""
    if keep.all():
        return chunk
    lengths = np.diff(chunk.offsets)
    tokens = np.repeat(keep, lengths)
    changed = {name: _taken(getattr(chunk, name), keep) for name in _ROW_ARRAYS}
    changed |= {name: _taken(getattr(chunk, name), tokens) for name in _TOKEN_ARRAYS}
    offsets = offsets_of(lengths[keep])
    return replace(
        chunk,
        **changed,
        offsets=offsets,
        uids=_kept(chunk.uids, keep),
        group_ids=_kept(chunk.group_ids, keep),
    )


def _taken(values: NDArray[Any] | None, keep: NDArray[np.bool_]) -> Any:
    return None if values is None else values[keep]


def _kept(texts: tuple[Any, ...] | None, keep: NDArray[np.bool_]) -> Any:
    return None if texts is None else tuple(text for text, kept in zip(texts, keep, strict=True) if kept)
