"""The arrays behind pictures and Parquet tables: plain NumPy, no tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Histogram", "Pictures", "States", "TokenSample"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Histogram:
    """Counts of log-ratios between edges: counts[i] lie in (edges[i], edges[i + 1]]."""

    edges: Array
    """[bins + 1] ascending, finite"""
    counts: NDArray[np.int64]
    """[bins]"""


@dataclass(frozen=True)
class TokenSample:
    """Valid tokens of every `stride`-th block of eight rows: all tokens while the dump is small."""

    stride: int
    training_log_probs: Array
    rollout_log_probs: Array
    positions: NDArray[np.int64]
    """place in the response, masked tokens counted"""
    row_lengths: NDArray[np.int64]
    """valid tokens of the token's row"""

    @property
    def log_ratio(self) -> Array:
        return self.training_log_probs - self.rollout_log_probs


@dataclass(frozen=True)
class States:
    """What the pass kept beside the rows, as `audit.states` lays it out."""

    header: str
    """JSON"""
    tensors: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Pictures:
    """Evidence of the primary pair that a reader would rather see than read."""

    histogram: Histogram
    sample: TokenSample
    sequences: Mapping[str, Sequence[object] | Array]
    """one entry a row, those without a valid token too: uid, file, row, step, valid_tokens, reward, … and the columns
    of `row_columns`; of other pairs as `PAIR/COLUMN`"""
    states: States | None = None
    sweep: Mapping[str, Sequence[object] | Array] | None = None
    """one entry a point of the sweep over the whole dump: its settings, then its figures"""
    points: Mapping[str, Sequence[object] | Array] | None = None
    """the same in long form, with presets, and with steps"""
