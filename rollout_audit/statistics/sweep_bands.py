"""Bands of k1 that are given one by one: they need not contain each other, so no order of the rows answers them all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollout_audit.corrections.cuts import token_interval
from rollout_audit.corrections.model import Aggregation, Rule, Weight
from rollout_audit.statistics.scope import Scope
from rollout_audit.statistics.sweep import Sweep, joint, kept_divergence, mean_reward, unweighted, weights_of_rows

__all__ = ["sweep_bands", "sweep_joint_bands"]

Array = NDArray[np.float64]


def sweep_bands(scope: Scope, rules: Sequence[Rule]) -> Sweep:
    """Rules with two bounds of k1, each by itself, weights all 1. A band by token must contain ρ = 1."""
    tokens, left = _left(scope, rules)
    return unweighted(scope, rules, tokens, **left)


def sweep_joint_bands(scope: Scope, weight: Weight, rules: Sequence[Rule]) -> Sweep:
    """A weight under bands by sequence, each by itself; token weights truncated at one of the plan's caps."""
    of_row = weights_of_rows(scope, weight)
    tokens, left = _left(scope, rules)
    kept = [scope.row_keeps(rule) for rule in rules]
    first, second = (np.array([column[k].sum() for k in kept]) for column in (of_row.excess, of_row.square))
    greatest = np.array([of_row.greatest[k].max() if k.any() else np.nan for k in kept])
    ess_seq = np.array([np.nan if of_row.own is None else _ess(of_row.own[k]) for k in kept])
    return joint(scope, weight, rules, tokens, first, second, weight_max=greatest, ess_seq=ess_seq, **left)


def _ess(weights: Array) -> float:
    """(Σw)² / (n Σw²); NaN of none."""
    square = float((weights * weights).sum())
    return float(weights.sum()) ** 2 / (len(weights) * square) if square else np.nan


def _left(scope: Scope, rules: Sequence[Rule]) -> tuple[Array, dict[str, Array]]:
    """[rules] kept tokens, and what else is said of what each rule leaves."""
    kept = np.array([_kept_by_band(scope, rule) for rule in rules]).reshape(-1, 5)
    tokens, rows, touched, reward, length = kept.T
    return tokens, {
        "masked_fraction": (scope.tokens - tokens) / scope.tokens,
        "seq_masked_fraction": (scope.sequences - rows) / scope.sequences,
        "seq_touched_fraction": touched / scope.sequences,
        "kept_reward_mean": reward,
        "kept_length_mean": length,
        "kept_kl_k3": np.array([kept_divergence(scope, (rule,)) for rule in rules]),
    }


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
    return *counts, mean_reward(scope, some), length
