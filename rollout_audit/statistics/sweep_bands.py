"""Bands of k1 that are given one by one: they need not contain each other, so no order of the rows answers them all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollout_audit.corrections.cuts import token_interval
from rollout_audit.corrections.model import Aggregation, Correction, Rule
from rollout_audit.statistics.scope import Scope
from rollout_audit.statistics.sweep import Sweep, kept_divergence

__all__ = ["sweep_bands"]

Array = NDArray[np.float64]


def sweep_bands(scope: Scope, rules: Sequence[Rule]) -> Sweep:
    """Rules with two bounds of k1, each by itself, weights all 1. A band by token must contain ρ = 1."""
    kept = np.array([_kept_by_band(scope, rule) for rule in rules]).reshape(-1, 5)
    tokens, rows, touched, reward, length = kept.T
    some = np.where(tokens > 0, 1.0, np.nan)
    return Sweep.of(
        [Correction(rules=(rule,)) for rule in rules],
        ess=some,
        weight_mean=some,
        weight_std=np.where(tokens > 1, 0.0, np.nan),
        weight_max=some,
        capped_fraction=0.0,
        below_lower_fraction=0.0,
        zeroed_fraction=0.0,
        mass_lost=0.0,
        gradient_scale_kept=some,
        gradient_scale_original=tokens / scope.tokens,
        masked_fraction=1.0 - tokens / scope.tokens,
        seq_masked_fraction=1.0 - rows / scope.sequences,
        seq_touched_fraction=touched / scope.sequences,
        kept_reward_mean=reward,
        kept_length_mean=length,
        kept_kl_k3=np.array([kept_divergence(scope, (rule,)) for rule in rules]),
    )


def _kept_by_band(scope: Scope, rule: Rule) -> tuple[float, float, float, float, float]:
    """Kept tokens, rows with one, rows with a token that is not; mean reward and length of the rows with one."""
    if rule.aggregation is not Aggregation.TOKEN:
        some = scope.row_keeps(rule)
        tokens, touched = float(scope.rows["valid_tokens"][some].sum()), ~some
    else:
        interval = token_interval(rule)
        tokens = float(scope.token_cells().between(*interval).size)
        rows = scope.rows
        some = (rows["below_zero_d"] >= interval.lower) | (rows["above_zero_d"] <= interval.upper)
        touched = (rows["min_d"] < interval.lower) | (rows["max_d"] > interval.upper)
    lengths = scope.rows["valid_tokens"][some]
    length = float(lengths.mean()) if len(lengths) else np.nan
    counts = tokens, float(np.count_nonzero(some)), float(np.count_nonzero(touched))
    return *counts, _mean_reward(scope, some), length


def _mean_reward(scope: Scope, kept: NDArray[np.bool_]) -> float:
    """Over the kept rows that have one."""
    if "reward" not in scope.rows:
        return np.nan
    values: Array = scope.rows["reward"][kept]
    recorded = values[~np.isnan(values)]
    return float(recorded.mean()) if len(recorded) else np.nan
