"""Every error the tool raises on purpose.

    RolloutAuditError            one line for the user; exit code 2
    ├── UsageError               options that contradict each other or name nothing that exists
    ├── ConfigError              a setting that the trainer itself would refuse: key and value
    ├── DumpError                a dump that cannot be read as asked
    │   ├── DumpNotFoundError    no file at that path, or none of a known format below it
    │   ├── UnreadableFileError  truncated, foreign or damaged
    │   ├── MissingFieldError    a needed column is not there
    │   ├── DumpFaultError       values that must not be audited (NaN under the mask, placeholders, …)
    │   └── NothingToAuditError  zero rows, or no valid token in the whole dump
    └── ReportError              a report, golden file or export that cannot be read or written
        └── OldGoldenError       a golden file of a schema that is no longer read

Each message says what is wrong, which value, where, and what to do.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ConfigError",
    "DumpError",
    "DumpFaultError",
    "DumpNotFoundError",
    "MissingFieldError",
    "NothingToAuditError",
    "OldGoldenError",
    "ReportError",
    "RolloutAuditError",
    "UnreadableFileError",
    "UsageError",
    "amount",
    "suggest",
]


class RolloutAuditError(Exception):
    """Base of every deliberate error: its text is one line that a person can act on."""

    exit_code = 2


class UsageError(RolloutAuditError):
    """Options that contradict each other, or that name nothing that exists."""


class ConfigError(RolloutAuditError):
    """A trainer setting that the trainer itself would refuse.

    Attributes:
        key: the setting, in the trainer's own spelling.
        value: what was given.
    """

    def __init__(self, key: str, value: object, reason: str) -> None:
        super().__init__(f"{key} = {value!r}: {reason}")
        self.key = key
        self.value = value


class DumpError(RolloutAuditError):
    """A dump that cannot be read as asked."""


class DumpNotFoundError(DumpError):
    """No file at that path, or no file of a known format below it."""


class UnreadableFileError(DumpError):
    """A file that is truncated, damaged or of another format than its name says."""


class MissingFieldError(DumpError):
    """A field that the audit needs has no column in the dump."""


class DumpFaultError(DumpError):
    """Values that must not be averaged: see the findings of `inspect`."""


class NothingToAuditError(DumpError):
    """Zero rows, or no valid token in the whole dump."""


class ReportError(RolloutAuditError):
    """A report, golden file or export that cannot be read or written."""


class OldGoldenError(ReportError):
    """A golden file of a schema that is no longer read: the message has the command that writes it anew."""


def amount(size: int, noun: str) -> str:
    """`1 file`, `7,966 tokens`."""
    return f"{size:,} {noun}{'' if size == 1 else 's'}"


def suggest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest of the known names but for case, else an empty string."""
    lowered = {one.lower(): one for one in known}
    close = get_close_matches(str(name).lower(), list(lowered), n=1, cutoff=0.6)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ""
