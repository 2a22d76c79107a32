"""What a path tells: the order of files, the name in the report, the step (or the metadata's)."""

from __future__ import annotations

import re
from os import fsencode
from posixpath import commonpath, dirname, relpath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["natural_key", "report_names", "step_from_path", "step_in_metadata", "whole_number"]

_DIGITS = re.compile(r"(\d+)")
_LABELLED = (
    re.compile(r"(?<![a-z])(?:global[_-]?)?step[_\-=]?(\d+)", re.IGNORECASE),
    re.compile(r"(?<![a-z])rollout[_\-=]?(\d+)", re.IGNORECASE),
)
_STEM_INTEGER = re.compile(r"(?<!\d)(\d+)(?![0-9A-Za-z])")
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
_AFTER_RANK = re.compile(r"rank[_\-=]?$", re.IGNORECASE)
_FOLDERS_LOOKED_AT = 2
_INT64_MAX = 2**63 - 1


def natural_key(path: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Sort key under which `step_9` comes before `step_10`, folder by folder; a total order."""
    parts = tuple(piece for folder in path.split("/") for piece in (*_pieces(folder), (-1, 0, "")))
    return parts, path


def _pieces(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in _DIGITS.split(text) if p]


def report_names(paths: list[str]) -> list[str]:
    """Each path relative to the folder that all of them share, however they were typed, as printable text."""
    if not paths:
        return []
    try:
        parent = commonpath([dirname(path) for path in paths])
    except ValueError:  # on different file systems
        return [_printable(path) for path in paths]
    return [_printable(relpath(path, parent)) for path in paths]


def _printable(path: str) -> str:
    """Bytes that the locale cannot decode arrive as lone surrogates, which no report can hold."""
    return fsencode(path).decode("utf-8", "backslashreplace")


def step_from_path(path: str) -> int:
    """The training step that a file's path names, 0 where it names none.

    Digits after `step`, `global_step` or `rollout` in the file name, else in the nearest of its two folders,
    else the last integer of the stem that does not follow `rank`.
    """
    *folders, name = path.replace("\\", "/").split("/")
    for text in (name, *reversed(folders[-_FOLDERS_LOOKED_AT:])):
        for pattern in _LABELLED:
            if found := pattern.findall(text):
                return _bounded(found[-1])
    return _last_integer(name.rpartition(".")[0] or name)


def step_in_metadata(metadata: Mapping[Any, Any]) -> int | None:
    """The whole number (of int64) under the key `step`, text or bytes; None where there is none."""
    raw = metadata.get(b"step", metadata.get("step"))
    return whole_number(raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw))


def whole_number(text: str) -> int | None:
    """The int64 that a text spells, None where it spells none."""
    text = text.strip()
    return int(text) if _WHOLE_NUMBER.fullmatch(text) and abs(int(text)) <= _INT64_MAX else None


def _last_integer(stem: str) -> int:
    found = [m for m in _STEM_INTEGER.finditer(stem) if not _AFTER_RANK.search(stem[: m.start()])]
    return _bounded(found[-1].group(1)) if found else 0


def _bounded(digits: str) -> int:
    number = int(digits[:20])
    return number if number <= _INT64_MAX else 0
