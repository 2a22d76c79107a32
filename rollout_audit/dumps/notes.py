"""Findings that the footers alone give reason for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_audit.dumps.chunk import Finding
from rollout_audit.dumps.fields import NAMES
from rollout_audit.dumps.layouts import told_by_names
from rollout_audit.dumps.opening import is_text_of_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollout_audit.dumps.opening import FileInfo

__all__ = ["notes_on"]

_LOG_PROBS = ("rollout_log_probs", "old_log_probs", "log_probs")
_COARSE = {"float16": "3 digits", "bfloat16": "2 digits"}


def notes_on(infos: Sequence[FileInfo]) -> tuple[Finding, ...]:
    """Absent trainer or mask, two mask columns, text for ids, half precision, types that differ: each said once."""
    return (*_rollout_notes(infos), *_mask_notes(infos), *_id_notes(infos), *_type_notes(infos))


def _rollout_notes(infos: Sequence[FileInfo]) -> Iterator[Finding]:
    alone = [info for info in infos if info.lacks_training]
    if alone:
        text = (
            f"no log-probs of the trainer in {len(alone)} of {len(infos)} files, {alone[0].lacks_training}; "
            "--join DUMP adds them by uid"
        )
        yield Finding("rollout_only", "error", text, alone[0].file.name, count=len(alone))


def _mask_notes(infos: Sequence[FileInfo]) -> Iterator[Finding]:
    without = [info.file.name for info in infos if "response_mask" not in info.fields]
    if without:
        text = f"no response mask in {len(without)} of {len(infos)} files: every token counts as the response"
        yield Finding("no_mask", "info", text, without[0], count=len(without))
    double = [(info, other) for info in infos if (other := _other_mask(info))]
    if double:
        info, other = double[0]
        used = info.fields["response_mask"].column
        layout = told_by_names([column.name for column in info.columns])  # its mask may be a product of several
        choice = f"--layout {layout.name}" if layout else f"--map response_mask={other}"
        text = f"both {used!r} and {other!r} are there: {used!r} is used (else {choice})"
        yield Finding("two_masks", "info", text, info.file.name, count=len(double))


def _id_notes(infos: Sequence[FileInfo]) -> Iterator[Finding]:
    text = [(info, column) for info in infos for column in info.columns if is_text_of_ids(column)]
    if text:
        info, column = text[0]
        what = (
            f"{column.name!r} holds {column.type}, not token ids: it is not read (--map token_ids=COLUMN names others)"
        )
        yield Finding("no_token_ids", "info", what, info.file.name, count=len({info.file.name for info, _ in text}))


def _other_mask(info: FileInfo) -> str | None:
    """The alias of a mask beside the one of this tool's name."""
    used = info.fields.get("response_mask")
    if used is None or used.origin != "exact":
        return None
    lists = {column.name for column in info.columns if column.is_list}
    return next((name for name in NAMES["response_mask"][1:] if name in lists), None)


def _type_notes(infos: Sequence[FileInfo]) -> Iterator[Finding]:
    for field in _LOG_PROBS:
        holders = [(info, info.column(info.fields[field].column).element) for info in infos if field in info.fields]
        kinds = sorted({kind for _, kind in holders if kind != "null"})
        for kind, digits in _COARSE.items():
            files = [info.file.name for info, element in holders if element == kind]
            if files:
                text = f"{field} is stored as {kind} (about {digits}) in {len(files)} of {len(holders)} files"
                yield Finding("half_precision", "info", text, files[0], count=len(files))
        if len(kinds) > 1:
            first = next(info.file.name for info, kind in holders if kind not in {holders[0][1], "null"})
            text = f"{field} is stored as {' and '.join(kinds)} in different files: all are widened exactly"
            yield Finding("mixed_types", "info", text, first, count=len(kinds))
