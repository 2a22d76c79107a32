"""Sufficient statistics of each response: what every sequence metric and every sequence rule is read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rollout_audit.corrections.cuts import Interval
from rollout_audit.corrections.direct import statistic_bounds
from rollout_audit.corrections.model import Aggregation, Rule, Statistic
from rollout_audit.corrections.tokens import Tokens, k3, row_max, row_min, row_sum, spread

__all__ = ["row_columns", "row_rule_keeps", "row_statistic"]

Columns = Mapping[str, Tensor]


def row_columns(tokens: Tokens, clamps: Sequence[float] = ()) -> dict[str, Tensor]:
    """float64 [rows] sums over the valid tokens of each row; empty rows hold 0, and ±inf for extremes.

    For each clamp c, `sum_d@c` and its fellows hold the sums with d of each token clamped to ±c first.
    """
    d, lengths = tokens.log_ratio, tokens.lengths
    return (
        {"valid_tokens": lengths.to(torch.float64)}
        | _divergences(d, lengths)
        | _extremes(d, lengths)
        | _log_space_sums(d, lengths)
        | _probabilities(tokens)
        | _clamped(d, lengths, clamps)
    )


def row_statistic(rule: Rule, rows: Columns) -> Tensor:
    """[rows] the statistic of a sequence rule; for `ratio` its logarithm."""
    at = "" if rule.clamp is None else f"@{rule.clamp:g}"
    match rule.aggregation:
        case Aggregation.SEQ_SUM:
            return _row_sum_statistic(rule.statistic, rows, at)
        case Aggregation.SEQ_MEAN:
            return _row_sum_statistic(rule.statistic, rows, at) / rows["valid_tokens"].clamp(min=1)
        case Aggregation.SEQ_MAX:
            return _row_extreme(rule, rows)[1]
        case Aggregation.SEQ_MIN:
            return _row_extreme(rule, rows)[0]
    raise ValueError(f"{rule.name} does not decide on whole rows")


def row_rule_keeps(rule: Rule, rows: Columns) -> Tensor:
    """[rows] bool: which responses a sequence rule leaves."""
    bounds: Interval = statistic_bounds(rule)
    values = row_statistic(rule, rows)
    return (values >= bounds.lower) & (values <= bounds.upper)


def _divergences(d: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    magnitude = d.abs()
    return {
        "sum_d": row_sum(d, lengths),
        "sum_abs_d": row_sum(magnitude, lengths),
        "sum_exp_abs_d": row_sum(magnitude.exp(), lengths),
        "sum_k2": row_sum(d.square() / 2.0, lengths),
        "sum_k3": row_sum(k3(d), lengths),
        "beyond_20": row_sum((magnitude > 20.0).to(d.dtype), lengths),
    }


def _extremes(d: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    return {
        "min_d": row_min(d, lengths),
        "max_d": row_max(d, lengths),
        "below_zero_d": row_max(torch.where(d <= 0, d, -torch.inf), lengths),
        "above_zero_d": row_min(torch.where(d >= 0, d, torch.inf), lengths),
    }


def _log_space_sums(d: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """log Σρ and log Σρ² of each row, finite wherever the row has a token."""
    top = row_max(d, lengths)
    shifted = d - spread(torch.where(lengths > 0, top, 0.0), lengths)
    return {
        "log_sum_ratio": row_sum(shifted.exp(), lengths).log() + top,
        "log_sum_ratio_sq": row_sum((2.0 * shifted).exp(), lengths).log() + 2.0 * top,
    }


def _probabilities(tokens: Tokens) -> dict[str, Tensor]:
    """Sums of p − 1, in which probabilities close to 1 lose no digit; a correlation does not mind the shift."""
    lengths = tokens.lengths
    pi, mu = tokens.training_log_probs.expm1(), tokens.rollout_log_probs.expm1()
    difference = pi - mu
    return {
        "sum_log_pi": row_sum(tokens.training_log_probs, lengths),
        "sum_log_mu": row_sum(tokens.rollout_log_probs, lengths),
        "sum_pi_less_1": row_sum(pi, lengths),
        "sum_mu_less_1": row_sum(mu, lengths),
        "sum_pi_less_1_sq": row_sum(pi.square(), lengths),
        "sum_mu_less_1_sq": row_sum(mu.square(), lengths),
        "sum_pi_mu_less_1": row_sum(pi * mu, lengths),
        "sum_prob_diff": row_sum(difference, lengths),
        "sum_abs_prob_diff": row_sum(difference.abs(), lengths),
        "max_prob_diff": row_max(difference, lengths),
        "min_prob_diff": row_min(difference, lengths),
    }


def _clamped(d: Tensor, lengths: Tensor, clamps: Sequence[float]) -> dict[str, Tensor]:
    columns = {}
    for clamp in clamps:
        x = d.clamp(-clamp, clamp)
        columns[f"sum_d@{clamp:g}"] = row_sum(x, lengths)
        columns[f"sum_abs_d@{clamp:g}"] = row_sum(x.abs(), lengths)
        columns[f"sum_k2@{clamp:g}"] = row_sum(x.square() / 2.0, lengths)
        columns[f"sum_k3@{clamp:g}"] = row_sum(k3(x), lengths)
    return columns


def _row_sum_statistic(statistic: Statistic, rows: Columns, at: str) -> Tensor:
    match statistic:
        case Statistic.K1:
            return -rows[f"sum_d{at}"]
        case Statistic.RATIO:
            return rows[f"sum_d{at}"]
        case Statistic.K2:
            return rows[f"sum_k2{at}"]
        case Statistic.K3:
            return rows[f"sum_k3{at}"]
        case Statistic.ABS_LOG_RATIO:
            return rows[f"sum_abs_d{at}"]
        case Statistic.MULT_ERROR:
            return rows["sum_exp_abs_d"]
        case Statistic.PROB_DIFF:
            return rows["sum_prob_diff"]
    raise ValueError(f"rows keep no sum of {statistic.value}")


def _row_extreme(rule: Rule, rows: Columns) -> tuple[Tensor, Tensor]:
    """Least and greatest value of a token statistic in each row.

    k2, k3 and |d| are convex with their minimum at 0: the greatest lies at an end of d, the least next to 0.
    """
    if rule.statistic is Statistic.PROB_DIFF:
        return rows["min_prob_diff"], rows["max_prob_diff"]
    low, high = _clamp(rows["min_d"], rule), _clamp(rows["max_d"], rule)
    if rule.statistic is Statistic.K1:
        return -high, -low
    if rule.statistic is Statistic.RATIO:
        return low, high
    below, above = _clamp(rows["below_zero_d"], rule), _clamp(rows["above_zero_d"], rule)
    least = torch.minimum(_convex(rule.statistic, below), _convex(rule.statistic, above))
    greatest = torch.maximum(_convex(rule.statistic, low), _convex(rule.statistic, high))
    return least, greatest


def _clamp(d: Tensor, rule: Rule) -> Tensor:
    """An infinite end stands for no token and stays infinite."""
    if rule.clamp is None:
        return d
    return torch.where(d.isinf(), d, d.clamp(-rule.clamp, rule.clamp))


def _convex(statistic: Statistic, d: Tensor) -> Tensor:
    match statistic:
        case Statistic.K2:
            return d.square() / 2.0
        case Statistic.ABS_LOG_RATIO:
            return d.abs()
        case Statistic.MULT_ERROR:
            return d.abs().exp()
        case _:
            return torch.where(d.isinf(), torch.inf, k3(d))
