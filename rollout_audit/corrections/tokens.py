"""The batch that corrections act on: valid tokens only, packed row after row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rollout_audit.corrections.model import Rule

__all__ = ["SERIES_BELOW", "Tokens", "k3", "row_max", "row_mean", "row_min", "row_sum", "signed_binary_kl", "spread"]


SERIES_BELOW = 2.0**-20
"""|d| below which two terms of the series of k3 are exact in float64"""
OF_THE_REST = 1e-8
"""What verl adds to the probability of every other token before it takes the logarithm"""


@dataclass(frozen=True)
class Tokens:
    """Valid tokens of whole rows, end to end, float64 on one device.

    Masked positions were dropped before anything was computed, so nothing under a 0 mask can change a number.
    """

    lengths: Tensor
    """int64 [rows] valid tokens of each row; 0 for a row without any"""
    training_log_probs: Tensor
    """float64 [tokens] log π"""
    rollout_log_probs: Tensor
    """float64 [tokens] log μ"""
    segment_lengths: Tensor
    """int64 [segments] length of each run of mask 1, in order; runs never cross a row"""
    advantages: Tensor | None = None
    """float64 [tokens]"""
    response_lengths: Tensor | None = None
    """int64 [rows] all positions of each response, masked ones too: what a trainer pads to"""
    rewards: Tensor | None = None
    """float64 [rows]"""
    masked: Tokens | None = None
    """positions under a mask of 0, for the one trainer whose figures count them; nothing else may look"""
    decided: Mapping[Rule, Tensor] = field(default_factory=dict)
    """rule over the whole batch → [tokens] bool, what it leaves here: where these are only a part of the batch"""

    @cached_property
    def log_ratio(self) -> Tensor:
        """float64 [tokens] d = log π − log μ, the difference of the stored values."""
        return self.training_log_probs - self.rollout_log_probs

    @property
    def rows(self) -> int:
        return self.lengths.shape[0]

    def only(self, chosen: Tensor) -> Tokens:
        """The batch with only the tokens where `chosen` ([tokens] bool) is true; rows and segments may be empty."""
        hits = chosen.to(torch.float64)
        return replace(
            self,
            lengths=row_sum(hits, self.lengths).long(),
            training_log_probs=self.training_log_probs[chosen],
            rollout_log_probs=self.rollout_log_probs[chosen],
            segment_lengths=row_sum(hits, self.segment_lengths).long(),
            advantages=None if self.advantages is None else self.advantages[chosen],
            decided={rule: left[chosen] for rule, left in self.decided.items()},
        )


def k3(log_ratio: Tensor) -> Tensor:
    """expm1(d) − d, by its series where the difference would lose its digits; never negative."""
    d = log_ratio
    return torch.where(d.abs() < SERIES_BELOW, d.square() * (0.5 + d / 6.0), d.expm1() - d)


def signed_binary_kl(tokens: Tokens) -> Tensor:
    """[tokens] sign(d) · [μ log(μ/π) + (1 − μ) log((1 − μ + 1e-8)/(1 − π + 1e-8))]: finite where π is 1."""
    mu, d = tokens.rollout_log_probs.exp(), tokens.log_ratio
    not_mu, not_pi = -tokens.rollout_log_probs.expm1(), -tokens.training_log_probs.expm1()
    return d.sign() * (not_mu * ((not_mu + OF_THE_REST) / (not_pi + OF_THE_REST)).log() - mu * d)


def row_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """[tokens] → [rows] sums; 0 for an empty row."""
    return _reduce(values, "sum", lengths, 0.0)


def row_mean(values: Tensor, lengths: Tensor) -> Tensor:
    """[tokens] → [rows] means; 0 for an empty row."""
    return row_sum(values, lengths) / lengths.clamp(min=1)


def row_max(values: Tensor, lengths: Tensor) -> Tensor:
    """[tokens] → [rows] maxima; −inf for an empty row."""
    return _reduce(values, "max", lengths, -torch.inf)


def row_min(values: Tensor, lengths: Tensor) -> Tensor:
    """[tokens] → [rows] minima; +inf for an empty row."""
    return _reduce(values, "min", lengths, torch.inf)


def spread(per_row: Tensor, lengths: Tensor) -> Tensor:
    """[rows] → [tokens]: each row's value on every token of the row."""
    return torch.repeat_interleave(per_row, lengths)


def _reduce(values: Tensor, how: str, lengths: Tensor, empty: float) -> Tensor:
    if not lengths.numel():
        return values.new_empty(0)
    return torch.segment_reduce(values, how, lengths=lengths, initial=empty)
