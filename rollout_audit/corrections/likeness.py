"""How alike two corrections are in what they do to tokens, for those that cannot be the same.

Both weigh one fixed batch, and what is compared is the weight that multiplies the loss of each token. Its rows differ
from the policy that sampled them by from 0.03 % to a factor of 7 a token, so that a threshold of any size in use binds
somewhere.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from rollout_audit.corrections.direct import apply
from rollout_audit.corrections.equivalence import bounds_apart, departures, essence
from rollout_audit.corrections.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor

    from rollout_audit.corrections.model import Correction

__all__ = ["remoteness", "unlikeness"]

SCALES = (0.0003, 0.002, 0.01, 0.05, 0.2, 0.6, 2.0)
"""Of the log-ratio, one a row"""
ROWS_OF_EACH, LENGTHS = 8, (3, 12, 48)
DIGITS = 6
"""Of a difference: what is less is none"""


def remoteness(wanted: Correction, got: Correction) -> tuple[float, ...]:
    """How far apart, in the order of importance: smaller tuples are nearer.

    First which policies are compared, then what becomes of the tokens of a fixed batch; where that is the same, how
    many parts differ, how far apart the bounds are, and the denominator.
    """
    ours, theirs = essence(wanted), essence(got)
    return (
        float(ours.mode != theirs.mode),
        unlikeness(wanted, got),
        float(len(departures(ours, theirs))),
        bounds_apart(ours, theirs),
        float(ours.denominator is not theirs.denominator),
    )


def unlikeness(one: Correction, other: Correction) -> float:
    """Mean difference of the weights in the loss, in [0, 1]; a weight w counts as w / (1 + w).

    What the loss divides by is left out: it is one factor for all tokens.
    """
    difference = (_weights(one) - _weights(other)).abs().mean()
    return round(float(difference), DIGITS)


@lru_cache(maxsize=4096)
def _weights(correction: Correction) -> Tensor:
    """float64 [tokens] of the fixed batch, squeezed into [0, 1)."""
    applied = apply(correction, _batch())
    weight = (applied.normalised * applied.kept).nan_to_num(posinf=torch.finfo(torch.float64).max)
    return weight / (1.0 + weight)


@lru_cache(maxsize=1)
def _batch() -> Tokens:
    """Log-ratios with the heavy tails of two engines, of both signs, under advantages of both signs."""
    random = np.random.default_rng(0)
    scales = np.repeat(SCALES, ROWS_OF_EACH)
    lengths = np.resize(LENGTHS, len(scales))
    shift = random.normal(0.0, 0.3, len(scales))
    d = np.repeat(scales, lengths) * (random.laplace(0.0, 1.0, lengths.sum()) + np.repeat(shift, lengths))
    rollout = -random.exponential(1.0, lengths.sum()) - np.maximum(d, 0.0)  # no probability above 1
    advantages = np.repeat(np.resize([1.0, -1.0], len(scales)), lengths)
    rows, mu, signs = torch.tensor(lengths), torch.tensor(rollout), torch.tensor(advantages)
    return Tokens(rows, mu + torch.tensor(d), mu, segment_lengths=rows, advantages=signs)
