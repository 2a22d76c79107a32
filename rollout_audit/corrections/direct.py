"""The readable definition of every correction, on one batch of packed tokens.

This is what the streamed tables of `statistics` are tested against, and what `apply_correction` hands out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rollout_audit.corrections.batch_order import BatchOrder, keeps
from rollout_audit.corrections.cuts import (
    Interval,
    has_interval,
    overflown_weight,
    ratio_interval,
    token_interval,
    weight_interval,
)
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Level,
    Over,
    Rows,
    Rule,
    Sign,
    Statistic,
    Weight,
)
from rollout_audit.corrections.tokens import Tokens, k3, row_max, row_mean, row_min, row_sum, signed_binary_kl, spread
from rollout_audit.errors import MissingFieldError

__all__ = [
    "Applied",
    "aggregated",
    "apply",
    "bounded_weight",
    "has_sign",
    "kept_tokens",
    "level_log_ratio",
    "normalisation_factor",
    "remaining_tokens",
    "rule_keeps",
    "rule_values",
    "statistic_bounds",
    "token_statistic",
]


@dataclass(frozen=True)
class Applied:
    """A correction's weights at each stage and the tokens it leaves, all [tokens]."""

    log_ratio: Tensor
    """at the weight's level, unclamped"""
    bounded: Tensor
    normalised: Tensor
    remaining: Tensor
    """bool; what the rules over every token leave"""
    kept: Tensor
    """bool; rejected tokens keep their weight"""
    factor: Tensor
    """what batch normalisation divided by; 1 without it"""

    @property
    def raw(self) -> Tensor:
        """exp of the level's log-ratio, unclamped"""
        return self.log_ratio.exp()


def apply(correction: Correction, tokens: Tokens, factor: Tensor | None = None) -> Applied:
    """Apply a correction to one batch.

    Args:
        correction: what to apply; in bypass mode with ppo_clip no weight multiplies the loss.
        tokens: the whole batch, or a part of it where nothing is normalised or `factor` is given, and where no rule
            needs the batch or `tokens.decided` answers for it.
        factor: [tokens] or scalar, the normalisation divisor of the batches that `tokens` is a part of.

    Raises:
        MissingFieldError: a rule asks for the sign of the advantages and there are none.
    """
    weight = correction.applied_weight
    remaining = remaining_tokens(correction, tokens)
    log_ratio, bounded = _log_ratio_and_weight(weight, tokens, remaining)
    divisor = normalisation_factor(weight, bounded, tokens) if factor is None else factor
    kept = _kept_of(correction, tokens, remaining)
    bounded = _pooled(bounded, kept, tokens) if weight.pooled else bounded
    return Applied(log_ratio, bounded, bounded / divisor, remaining, kept, divisor)


POOLED_FLOOR = 1e-10
"""What verl's geo_mean adds to a weight before its logarithm"""


def _pooled(bounded: Tensor, kept: Tensor, tokens: Tokens) -> Tensor:
    """[tokens] the geometric mean over the kept tokens of the row; 1 where none is kept."""
    logs = (bounded + POOLED_FLOOR).log().masked_fill(~kept, 0.0)
    counts = row_sum(kept.double(), tokens.lengths).clamp(min=1)
    return spread((row_sum(logs, tokens.lengths) / counts).exp(), tokens.lengths)


def _log_ratio_and_weight(weight: Weight, tokens: Tokens, remaining: Tensor) -> tuple[Tensor, Tensor]:
    """[tokens] the log-ratio at the weight's level; and the weight with clamp and bounds."""
    part = tokens if weight.over is Over.EVERY else tokens.only(remaining)
    log_ratio = _log_ratio_of(weight.level, part, tokens, weight.token_clamp)
    bounded = bounded_weight(weight, log_ratio)
    if weight.outside is not None:
        acts = ~rule_keeps(weight.outside, tokens, remaining)
        bounded = torch.where(acts, bounded, _clamped(log_ratio, weight.clamp).exp())
    return log_ratio, bounded


def level_log_ratio(level: Level, tokens: Tokens) -> Tensor:
    """[tokens] the log-ratio that a weight of this level exponentiates."""
    return _log_ratio_of(level, tokens, tokens, None)


def _log_ratio_of(level: Level, part: Tokens, tokens: Tokens, clamp: float | None) -> Tensor:
    """[tokens] the same, summed or averaged over the tokens of `part` only."""
    d = _clamped(part.log_ratio, clamp)
    match level:
        case Level.NONE:
            return torch.zeros_like(tokens.log_ratio)
        case Level.TOKEN:
            return _clamped(tokens.log_ratio, clamp)
        case Level.SEQUENCE:
            return spread(row_sum(d, part.lengths), tokens.lengths)
        case Level.GEOMETRIC:
            return spread(row_mean(d, part.lengths), tokens.lengths)
        case Level.SEGMENT:
            return spread(row_mean(d, part.segment_lengths), tokens.segment_lengths)


def _clamped(log_ratio: Tensor, clamp: float | None) -> Tensor:
    return log_ratio if clamp is None else log_ratio.clamp(-clamp, clamp)


def bounded_weight(weight: Weight, log_ratio: Tensor) -> Tensor:
    """[tokens] exp of the clamped log-ratio, then truncated, clipped or zeroed outside the bounds."""
    bounded = _bounded(weight, log_ratio)
    if weight.overflow is None:
        return bounded
    return bounded.masked_fill(log_ratio > weight.overflow, overflown_weight(weight))


def _bounded(weight: Weight, log_ratio: Tensor) -> Tensor:
    ratio = _clamped(log_ratio, weight.clamp).exp()
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
    return _kept_of(correction, tokens, remaining_tokens(correction, tokens))


def remaining_tokens(correction: Correction, tokens: Tokens) -> Tensor:
    """[tokens] bool: what the rules over every token and the veto leave."""
    remaining = torch.ones_like(tokens.log_ratio, dtype=torch.bool)
    for rule in correction.all_rules:
        if rule.over is Over.EVERY:
            remaining &= rule_keeps(rule, tokens)
    return remaining


def _kept_of(correction: Correction, tokens: Tokens, remaining: Tensor) -> Tensor:
    kept = remaining.clone()
    for rule in correction.all_rules:
        if rule.over is Over.REMAINING:
            kept &= rule_keeps(rule, tokens, remaining)
    return kept


def rule_keeps(rule: Rule, tokens: Tokens, remaining: Tensor | None = None) -> Tensor:
    """[tokens] bool: what one rule leaves; a sequence rule decides for the whole row.

    `remaining` ([tokens] bool): what a rule over the remaining tokens aggregates.
    """
    if has_interval(rule):
        inside = _inside(tokens.log_ratio, token_interval(rule))
    elif rule.by_batch:
        inside = tokens.decided[rule] if rule in tokens.decided else _smallest(rule, tokens)
    else:
        inside = _inside(rule_values(rule, tokens, remaining), statistic_bounds(rule))
    return inside if rule.sign is Sign.ANY else inside | ~has_sign(rule, tokens)


def has_sign(rule: Rule, tokens: Tokens) -> Tensor:
    """[tokens] bool: where the advantage lets the rule remove anything; NaN never does."""
    if rule.sign is Sign.ANY:
        return torch.ones_like(tokens.log_ratio, dtype=torch.bool)
    advantages = tokens.advantages
    if advantages is None:
        raise MissingFieldError(f"{rule.name} on the sign of the advantage needs advantages, which are not recorded")
    match rule.sign:
        case Sign.POSITIVE:
            return advantages > 0
        case Sign.NOT_POSITIVE:
            return advantages <= 0
        case Sign.NEGATIVE:
            return advantages < 0
        case Sign.NEGATIVE_MEAN:
            return spread(row_mean(advantages, tokens.lengths) < 0, tokens.lengths)
        case Sign.OUTWARD:
            return tokens.log_ratio * advantages > 0


def _smallest(rule: Rule, batch: Tokens) -> Tensor:
    """[tokens] bool: the smallest values of a whole batch whose mean is below the bound (`batch_order`)."""
    values = token_statistic(rule, batch).cpu().numpy()
    places = np.zeros((len(values), 3), dtype=np.int64)
    places[:, 2] = np.arange(len(values))
    order = BatchOrder.of(statistic_bounds(rule).upper, values, places)
    return torch.from_numpy(keeps(order.cut(), values, places)).to(batch.lengths.device)


def rule_values(rule: Rule, tokens: Tokens, remaining: Tensor | None = None) -> Tensor:
    """[tokens] what the rule holds against its bounds (of `ratio` the logarithm), of a unit on each of its tokens."""
    if rule.aggregation in (Aggregation.TOKEN, Aggregation.BATCH_MEAN):
        return token_statistic(rule, tokens)
    part = tokens if remaining is None or rule.over is Over.EVERY else tokens.only(remaining)
    units = tokens.segment_lengths if rule.aggregation is Aggregation.SEGMENT_MEAN else tokens.lengths
    return spread(aggregated(rule, part), units)


def statistic_bounds(rule: Rule) -> Interval:
    """Bounds of an aggregated statistic; ratios are compared in log space."""
    if rule.statistic is Statistic.RATIO:
        return ratio_interval(rule.lower, rule.upper)
    lower = -torch.inf if rule.lower is None else rule.lower
    upper = torch.inf if rule.upper is None else rule.upper
    return Interval(lower, upper)


def token_statistic(rule: Rule, tokens: Tokens) -> Tensor:
    """[tokens] the rule's statistic; the log-ratio itself for `ratio`."""
    d = _clamped(tokens.log_ratio, rule.clamp)
    match rule.statistic:
        case Statistic.K1:
            return -d
        case Statistic.K2:
            return d.square() / 2.0
        case Statistic.K3:
            return k3(d)
        case Statistic.K3_REVERSE:
            return k3(-d)
        case Statistic.RATIO:
            return d
        case Statistic.ABS_LOG_RATIO:
            return d.abs()
        case Statistic.MULT_ERROR:
            return d.abs().exp()
        case Statistic.PROB_DIFF:
            return tokens.training_log_probs.expm1() - tokens.rollout_log_probs.expm1()
        case Statistic.BINARY_KL:
            return signed_binary_kl(tokens)
        case Statistic.RATIO_DISTANCE:
            return d.expm1().abs()


_BY_ROW = {
    Aggregation.SEQ_SUM: row_sum,
    Aggregation.SEQ_MEAN: row_mean,
    Aggregation.SEQ_MAX: row_max,
    Aggregation.SEQ_MIN: row_min,
}


def aggregated(rule: Rule, tokens: Tokens) -> Tensor:
    """[rows] or [segments] the statistic of each unit; an empty unit has the neutral element."""
    values = token_statistic(rule, tokens)
    if rule.aggregation is Aggregation.SEGMENT_MEAN:
        return row_mean(values, tokens.segment_lengths)
    return _BY_ROW[rule.aggregation](values, tokens.lengths)


def _inside(values: Tensor, interval: Interval) -> Tensor:
    return (values >= interval.lower) & (values <= interval.upper)
