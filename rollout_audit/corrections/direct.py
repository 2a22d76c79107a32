"""The readable definition of every correction, on one batch of packed tokens.

This is what the streamed tables of `statistics` are tested against, and what `apply_correction` hands out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rollout_audit.corrections.cuts import Interval, ratio_interval, token_interval, weight_interval
from rollout_audit.corrections.model import Aggregation, Bound, Correction, Level, Rows, Rule, Statistic, Weight
from rollout_audit.corrections.tokens import Tokens, k3, row_max, row_mean, row_min, row_sum, spread

__all__ = [
    "Applied",
    "apply",
    "bounded_weight",
    "kept_tokens",
    "level_log_ratio",
    "normalisation_factor",
    "rule_keeps",
    "statistic_bounds",
    "token_statistic",
]


@dataclass(frozen=True)
class Applied:
    """A correction's weights at each stage and the tokens it leaves, all [tokens]."""

    raw: Tensor
    """exp of the level's log-ratio, unclamped"""
    bounded: Tensor
    normalised: Tensor
    kept: Tensor
    """bool; rejected tokens keep their weight"""
    factor: Tensor
    """what batch normalisation divided by; 1 without it"""


def apply(correction: Correction, tokens: Tokens, factor: Tensor | None = None) -> Applied:
    """Apply a correction to one batch.

    Args:
        correction: what to apply; in bypass mode with ppo_clip no weight multiplies the loss.
        tokens: the whole batch, or a part of it where nothing is normalised or `factor` is given.
        factor: [tokens] or scalar, the normalisation divisor of the batches that `tokens` is a part of.
    """
    weight = correction.applied_weight
    log_ratio = level_log_ratio(weight.level, tokens)
    bounded = bounded_weight(weight, log_ratio)
    divisor = normalisation_factor(weight, bounded, tokens) if factor is None else factor
    return Applied(log_ratio.exp(), bounded, bounded / divisor, kept_tokens(correction, tokens), divisor)


def level_log_ratio(level: Level, tokens: Tokens) -> Tensor:
    """[tokens] the log-ratio that a weight of this level exponentiates."""
    d = tokens.log_ratio
    match level:
        case Level.NONE:
            return torch.zeros_like(d)
        case Level.TOKEN:
            return d
        case Level.SEQUENCE:
            return spread(row_sum(d, tokens.lengths), tokens.lengths)
        case Level.GEOMETRIC:
            return spread(row_mean(d, tokens.lengths), tokens.lengths)
        case Level.SEGMENT:
            return spread(row_mean(d, tokens.segment_lengths), tokens.segment_lengths)


def bounded_weight(weight: Weight, log_ratio: Tensor) -> Tensor:
    """[tokens] exp of the clamped log-ratio, then truncated, clipped or zeroed outside the bounds."""
    clamped = log_ratio if weight.clamp is None else log_ratio.clamp(-weight.clamp, weight.clamp)
    ratio = clamped.exp()
    inside = weight_interval(weight)
    below, above = log_ratio < inside.lower, log_ratio > inside.upper
    match weight.bound:
        case Bound.NONE:
            return ratio
        case Bound.MASK:
            return ratio.masked_fill(below | above, 0.0)
        case Bound.TRUNCATE | Bound.CLIP:
            capped = ratio if weight.upper is None else ratio.masked_fill(above, weight.upper)
            return capped if weight.lower is None else capped.masked_fill(below, weight.lower)


def normalisation_factor(weight: Weight, bounded: Tensor, tokens: Tokens) -> Tensor:
    """Mean bounded weight of the batch before rejection: over tokens, or over the sequences of `mean_over`.

    1 where nothing is normalised, or where the mean is too small to divide by (≤ 1e-8, as verl and slime do).
    """
    one = bounded.new_tensor(1.0)
    if not weight.normalise or bounded.numel() == 0:
        return one
    if weight.level in (Level.SEQUENCE, Level.GEOMETRIC):
        counted = tokens.rows if weight.mean_over is Rows.ALL else torch.count_nonzero(tokens.lengths)
        mean = row_mean(bounded, tokens.lengths).sum() / counted
    else:
        mean = bounded.mean()
    return torch.where(mean > 1e-8, mean, one)


def kept_tokens(correction: Correction, tokens: Tokens) -> Tensor:
    """[tokens] bool: what every rule and the veto leave."""
    kept = torch.ones_like(tokens.log_ratio, dtype=torch.bool)
    for rule in correction.all_rules:
        kept &= rule_keeps(rule, tokens)
    return kept


def rule_keeps(rule: Rule, tokens: Tokens) -> Tensor:
    """[tokens] bool: what one rule leaves; a sequence rule decides for the whole row."""
    if rule.aggregation is Aggregation.TOKEN and rule.statistic is not Statistic.PROB_DIFF:
        return _inside(tokens.log_ratio, token_interval(rule))
    values, lengths = _aggregated(rule, tokens)
    return spread(_inside(values, statistic_bounds(rule)), lengths)


def statistic_bounds(rule: Rule) -> Interval:
    """Bounds of an aggregated statistic; ratios are compared in log space."""
    if rule.statistic is Statistic.RATIO:
        return ratio_interval(rule.lower, rule.upper)
    lower = -torch.inf if rule.lower is None else rule.lower
    upper = torch.inf if rule.upper is None else rule.upper
    return Interval(lower, upper)


def token_statistic(rule: Rule, tokens: Tokens) -> Tensor:
    """[tokens] the rule's statistic; the log-ratio itself for `ratio`."""
    d = tokens.log_ratio if rule.clamp is None else tokens.log_ratio.clamp(-rule.clamp, rule.clamp)
    match rule.statistic:
        case Statistic.K1:
            return -d
        case Statistic.K2:
            return d.square() / 2.0
        case Statistic.K3:
            return k3(d)
        case Statistic.RATIO:
            return d
        case Statistic.ABS_LOG_RATIO:
            return d.abs()
        case Statistic.MULT_ERROR:
            return d.abs().exp()
        case Statistic.PROB_DIFF:
            return tokens.training_log_probs.expm1() - tokens.rollout_log_probs.expm1()


def _aggregated(rule: Rule, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """The statistic per unit, and the number of tokens of each unit."""
    values = token_statistic(rule, tokens)
    match rule.aggregation:
        case Aggregation.TOKEN:
            return values, torch.ones_like(values, dtype=torch.int64)
        case Aggregation.SEGMENT_MEAN:
            return row_mean(values, tokens.segment_lengths), tokens.segment_lengths
        case Aggregation.SEQ_SUM:
            return row_sum(values, tokens.lengths), tokens.lengths
        case Aggregation.SEQ_MEAN:
            return row_mean(values, tokens.lengths), tokens.lengths
        case Aggregation.SEQ_MAX:
            return row_max(values, tokens.lengths), tokens.lengths
        case Aggregation.SEQ_MIN:
            return row_min(values, tokens.lengths), tokens.lengths


def _inside(values: Tensor, interval: Interval) -> Tensor:
    return (values >= interval.lower) & (values <= interval.upper)
