"""What verl logs about importance weights, in all its versions, and about the two policies.

The versions differ in which weight they show (raw or bounded) and in the bounds of its copy for std and ESS.
Source: reference/trainers.md 1B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollout_audit.corrections.model import SAFETY_CLAMP, Level
from rollout_audit.corrections.tokens import row_max, row_min, row_sum
from rollout_audit.trainers.off_policy import off_policy_rows
from rollout_audit.trainers.reductions import (
    EPSILON,
    fraction,
    largest,
    mean,
    row_values,
    smallest,
    token_mean,
    unbiased_std,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from rollout_audit.corrections.tokens import Tokens
    from rollout_audit.trainers.base import Columns

__all__ = [
    "Weights",
    "eleven_off_policy",
    "extremes",
    "outside",
    "sequence_weights",
    "spread_of_weights",
    "vetoing",
    "weight_columns",
]


@dataclass(frozen=True, slots=True)
class Weights:
    """float64 [tokens] the weights of one chunk in the three forms that verl looks at."""

    raw: Tensor
    """exp of the clamped log-ratio of the level"""
    shown: Tensor
    """what mean, max, min and the row means are taken of"""
    spread: Tensor
    """what std and effective sample size are taken of"""


def weight_columns(weights: Weights, lower: float, upper: float, lengths: Tensor) -> dict[str, Tensor]:
    """float64 [rows] sums, extremes and counts outside [lower, upper] of the weights."""
    sums = {
        "is_raw": weights.raw,
        "is_shown": weights.shown,
        "is_spread": weights.spread,
        "is_spread_squared": weights.spread.square(),
        "is_above": (weights.raw > upper).double(),
        "is_below": (weights.raw < lower).double(),
    }
    return {name: row_sum(values, lengths) for name, values in sums.items()} | {
        "is_max": row_max(weights.shown, lengths),
        "is_min": row_min(weights.shown, lengths),
    }


def vetoing(tokens: Tokens, veto: float | None) -> Tensor:
    """float64 [rows] tokens of ρ < veto, strict, unclamped; none without a veto."""
    below = tokens.log_ratio < (-math.inf if veto is None else math.log(veto))
    return row_sum(below.double(), tokens.lengths)


def extremes(rows: Columns, level: Level) -> dict[str, float]:
    """max and min: over valid tokens, or from the log-ratio of all B rows, only the maximum of it clamped."""
    if level is Level.TOKEN:
        return {"rollout_is_max": largest(rows["is_max"]), "rollout_is_min": smallest(rows["is_min"])}
    log_ratio = level_of_rows(rows, level)
    return {
        "rollout_is_max": float(np.exp(min(largest(log_ratio), SAFETY_CLAMP))),
        "rollout_is_min": float(np.exp(smallest(log_ratio))),
    }


def level_of_rows(rows: Columns, level: Level) -> NDArray[np.float64]:
    """[rows] Σd or mean d of each row; 0 for a row without a valid token."""
    return rows["log_ratio"] if level is Level.SEQUENCE else row_values(rows["log_ratio"], rows["tokens"])


def outside(rows: Columns, level: Level, lower: float, upper: float) -> dict[str, float]:
    """Share above and below the bounds: of all B rows at sequence level, else of valid tokens."""
    if level is Level.SEQUENCE:
        high, low = (fraction(hits) for hits in (rows["log_ratio"] > np.log(upper), rows["log_ratio"] < np.log(lower)))
    else:
        high, low = (token_mean(rows[count], rows["tokens"]) for count in ("is_above", "is_below"))
    return {"rollout_is_ratio_fraction_high": high, "rollout_is_ratio_fraction_low": low}


def spread_of_weights(rows: Columns) -> dict[str, float]:
    """std √(E[x²] − E[x]²), 0 for one token; sample size 1 / E[(x / (E[x] + ε))²], 0 where all x are 0."""
    n = rows["tokens"]
    first, second = token_mean(rows["is_spread"], n), token_mean(rows["is_spread_squared"], n)
    std = float(np.sqrt(max(second - first**2, 0.0))) if n.sum() > 1 else 0.0
    ess = (first + EPSILON) ** 2 / second if second else 0.0
    return {"rollout_is_std": std, "rollout_is_eff_sample_size": ess}


def sequence_weights(rows: Columns, lower: float, upper: float) -> dict[str, float]:
    """Row means of the weight over all B rows, where a row without a valid token has weight 0."""
    n = rows["tokens"]
    shown, raw = row_values(rows["is_shown"], n), row_values(rows["is_raw"], n)
    return {
        "rollout_is_seq_mean": mean(shown),
        "rollout_is_seq_std": unbiased_std(shown),
        "rollout_is_seq_max": largest(shown),
        "rollout_is_seq_min": smallest(shown),
        "rollout_is_seq_max_deviation": largest(np.abs(shown - 1)),
        "rollout_is_seq_fraction_high": fraction(raw > upper),
        "rollout_is_seq_fraction_low": fraction(raw < lower),
    }


def eleven_off_policy(rows: Columns) -> dict[str, float]:
    """The figures of every version: row values averaged over all B rows, KL estimates over valid tokens."""
    per_row = off_policy_rows(rows)
    n = rows["tokens"]
    means = {name: mean(values) for name, values in per_row.items() if name != "chi2_seq"}
    return means | {
        "kl": token_mean(-rows["log_ratio"], n),
        "k3_kl": token_mean(rows["k3"], n),
        "log_ppl_diff_max": largest(per_row["log_ppl_diff"]),
        "log_ppl_diff_min": smallest(per_row["log_ppl_diff"]),
    }
