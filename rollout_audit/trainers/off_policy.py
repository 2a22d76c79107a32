"""Perplexities, KL estimates and χ² of the two policies, which verl and the mis.py of slime and miles share.

Both trainers compute the same per-row quantities and differ only in how rows are averaged.
Source: reference/trainers.md 1B and 2B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from rollout_audit.corrections.direct import level_log_ratio
from rollout_audit.corrections.model import SAFETY_CLAMP, Level
from rollout_audit.corrections.tokens import Tokens, row_sum
from rollout_audit.trainers.reductions import row_values

if TYPE_CHECKING:
    from torch import Tensor

    from rollout_audit.trainers.base import Columns

__all__ = ["off_policy_columns", "off_policy_rows", "raw_weight"]


def clamped(log_ratio: Tensor) -> Tensor:
    """The log-ratio inside ±20, as trainers make it before exp."""
    return log_ratio.clamp(-SAFETY_CLAMP, SAFETY_CLAMP)


def raw_weight(tokens: Tokens, level: Level) -> Tensor:
    """float64 [tokens] exp of the level's log-ratio, clamped to ±20 after it was summed or averaged."""
    return torch.exp(clamped(level_log_ratio(level, tokens)))


def off_policy_columns(tokens: Tokens) -> dict[str, Tensor]:
    """Per-row sums, float64 [rows], from which every off-policy figure follows.

    `tokens` is the count of valid tokens n; `log_ratio` is S = Σd.
    """
    d = tokens.log_ratio
    per_token = {
        "training": tokens.training_log_probs,
        "rollout": tokens.rollout_log_probs,
        "log_ratio": d,
        "k3": torch.expm1(d) - d,
        "ratio_squared": torch.exp(2 * clamped(d)),
    }
    sums = {name: row_sum(values, tokens.lengths) for name, values in per_token.items()}
    return {"tokens": tokens.lengths.to(torch.float64), **sums}


def off_policy_rows(rows: Columns) -> dict[str, NDArray[np.float64]]:
    """[rows] each figure of one row by itself; a row without a valid token has ppl 1, differences 0, χ² 0."""
    n = rows["tokens"]
    training, rollout = (row_values(rows[policy], n) for policy in ("training", "rollout"))
    log_ppl_diff = rollout - training
    return {
        "training_ppl": np.exp(-training),
        "training_log_ppl": -training,
        "rollout_ppl": np.exp(-rollout),
        "rollout_log_ppl": -rollout,
        "log_ppl_diff": log_ppl_diff,
        "log_ppl_abs_diff": np.abs(log_ppl_diff),
        "ppl_ratio": np.exp(log_ppl_diff),
        "chi2_seq": np.exp(2 * np.clip(rows["log_ratio"], -SAFETY_CLAMP, SAFETY_CLAMP)) - 1,
    }
