"""What every reader yields: whole rows of one file, packed end to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SEVERITIES", "Chunk", "Finding", "Row", "Severity"]

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""Gravest first"""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the dump that a person must know, never repaired silently.

    `file` is the name used in the report; `row` (in the file) and `position` (in the row) count from 0 and
    point at the first of `count` occurrences.
    """

    kind: str
    severity: Severity
    message: str
    file: str | None = None
    row: int | None = None
    position: int | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One response, as `Dump.rows()` streams it: arrays of the row's full length, as in `Chunk`."""

    file: str
    row: int
    uid: str
    step: int
    rollout_log_probs: NDArray[np.floating[Any]]
    old_log_probs: NDArray[np.floating[Any]] | None
    log_probs: NDArray[np.floating[Any]] | None
    response_mask: NDArray[np.bool_]
    advantages: NDArray[np.float64] | None
    reward: float | None
    token_ids: NDArray[np.int64] | None
    group_id: str | None
    policy_version: int | None
    """the oldest of its tokens"""
    newest_version: int | None
    """None where one version a row is recorded"""
    trainer_version: int | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive whole rows of one file.

    Token arrays are packed: row i owns `[offsets[i], offsets[i + 1])`. Rows without a single token stay in,
    with an empty span. Values are float32 or float64 as stored (float16 and bfloat16 are widened to float32,
    exactly), the mask is boolean. Columns of one chunk may differ in type. All arrays are on the host and
    must not be written to.
    """

    file: int
    """Index into `Dump.files`."""
    row_numbers: NDArray[np.int64]
    """[rows] place of each row in its file, counted from 0."""
    offsets: NDArray[np.int64]
    """[rows + 1]"""
    steps: NDArray[np.int64]
    """[rows]"""
    response_mask: NDArray[np.bool_]
    """[tokens]"""
    rollout_log_probs: NDArray[np.floating[Any]]
    """[tokens] natural logarithm"""
    old_log_probs: NDArray[np.floating[Any]] | None = None
    log_probs: NDArray[np.floating[Any]] | None = None
    advantages: NDArray[np.float64] | None = None
    """[tokens]; one value a row is spread over its tokens"""
    reward: NDArray[np.float64] | None = None
    """[rows], NaN where the row has none"""
    uids: tuple[str, ...] | None = None
    """[rows], empty where the row has none: see `rows.row_uid` for what it is then called"""
    token_ids: NDArray[np.int64] | None = None
    """[tokens]"""
    group_ids: tuple[str | None, ...] | None = None
    policy_versions: NDArray[np.int64] | None = None
    """[rows] the oldest of the row, -1 where it has none"""
    newest_versions: NDArray[np.int64] | None = None
    """[rows] the newest, -1 where the row has none; None: one policy version a row"""
    trainer_versions: NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        return len(self.row_numbers)

    @property
    def tokens(self) -> int:
        return int(self.offsets[-1])
