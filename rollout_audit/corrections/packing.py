"""From a chunk of a dump to the packed tokens that corrections and statistics act on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollout_audit.corrections.tokens import Tokens
from rollout_audit.dumps.chunk import Chunk

__all__ = ["Packed"]


@dataclass(frozen=True)
class Packed:
    """The valid tokens of a chunk, selected once for every pair of policies that is compared on it."""

    chunk: Chunk
    device: torch.device

    @cached_property
    def flat(self) -> NDArray[np.int64]:
        """[tokens] place of each valid token among all tokens of the chunk."""
        return np.flatnonzero(self.chunk.response_mask)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[rows] valid tokens of each row; 0 for a row without one."""
        return np.diff(np.searchsorted(self.flat, self.chunk.offsets))

    @cached_property
    def segment_lengths(self) -> Tensor:
        """int64 [segments] length of each run of mask 1."""
        return torch.from_numpy(_segment_lengths(self.flat, self.lengths)).to(self.device)

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """[tokens, 3] file, row in the file and position in the row of each valid token."""
        row = np.repeat(np.arange(self.chunk.rows), self.lengths)
        position = self.flat - self.chunk.offsets[row]
        return np.stack([np.full(len(row), self.chunk.file), self.chunk.row_numbers[row], position], axis=1)

    def column(self, name: str) -> Tensor:
        """float64 [tokens] a token column of the chunk on the device."""
        values: NDArray[np.floating[Any]] = getattr(self.chunk, name)
        return torch.from_numpy(values[self.flat].astype(np.float64)).to(self.device)

    def tokens(self, training: str, rollout: str = "rollout_log_probs") -> Tokens:
        """The pair of policies in those two columns."""
        has_advantages = self.chunk.advantages is not None
        rewards = self.chunk.reward
        return Tokens(
            lengths=torch.from_numpy(self.lengths).to(self.device),
            training_log_probs=self.column(training),
            rollout_log_probs=self.column(rollout),
            segment_lengths=self.segment_lengths,
            advantages=self.column("advantages") if has_advantages else None,
            response_lengths=torch.from_numpy(np.diff(self.chunk.offsets)).to(self.device),
            rewards=None if rewards is None else torch.from_numpy(rewards).to(self.device),
        )

    def masked(self, training: str) -> Tokens:
        """The positions under a mask of 0 in the same shape; whatever stands there."""
        excluded = replace(self.chunk, response_mask=~self.chunk.response_mask)
        return Packed(excluded, self.device).tokens(training)


def _segment_lengths(flat: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """A run ends where the next valid token is not the next token, or is in the next row."""
    if not len(flat):
        return np.empty(0, dtype=np.int64)
    starts = np.empty(len(flat), dtype=bool)
    starts[0] = True
    np.not_equal(np.diff(flat), 1, out=starts[1:])
    row_starts = np.cumsum(lengths)[:-1]
    starts[row_starts[row_starts < len(flat)]] = True
    return np.diff(np.flatnonzero(starts), append=len(flat))
