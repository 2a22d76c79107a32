"""A correction in words: its formula, and the ratios that each of its bounds and rules lets through."""

from __future__ import annotations

import math

from rollout_audit.corrections.cuts import CONVEX, k3_roots
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Level,
    Loss,
    Mode,
    Over,
    Rule,
    Sign,
    Statistic,
    Weight,
)

__all__ = ["describe", "effective_intervals", "log_intervals", "what_is_left_of_rejected"]

_RATIO_OF_LEVEL = {
    Level.TOKEN: "ρ of the token",
    Level.SEQUENCE: "product ratio of the sequence",
    Level.GEOMETRIC: "geometric ratio of the sequence",
    Level.SEGMENT: "geometric ratio of the segment",
}
_RATIO_OF_AGGREGATION = {
    Aggregation.TOKEN: "ρ of the token",
    Aggregation.SEQ_SUM: "product ratio of the sequence",
    Aggregation.SEQ_MEAN: "geometric ratio of the sequence",
    Aggregation.SEQ_MAX: "every ρ of the sequence",
    Aggregation.SEQ_MIN: "every ρ of the sequence",
    Aggregation.SEGMENT_MEAN: "geometric ratio of the segment",
    Aggregation.BATCH_MEAN: "geometric ratio of the batch",
}
_D_OF_LEVEL = {
    Level.TOKEN: "d of the token",
    Level.SEQUENCE: "sum of d over the sequence",
    Level.GEOMETRIC: "mean d over the sequence",
    Level.SEGMENT: "mean d over the segment",
}
_D_OF_AGGREGATION = {
    Aggregation.TOKEN: "d of the token",
    Aggregation.SEQ_SUM: "sum of d over the sequence",
    Aggregation.SEQ_MEAN: "mean d over the sequence",
    Aggregation.SEQ_MAX: "every d of the sequence",
    Aggregation.SEQ_MIN: "every d of the sequence",
    Aggregation.SEGMENT_MEAN: "mean d over the segment",
}
_WHERE = {
    Sign.ANY: "",
    Sign.POSITIVE: " where A > 0",
    Sign.NOT_POSITIVE: " where A ≤ 0",
    Sign.NEGATIVE: " where A < 0",
    Sign.NEGATIVE_MEAN: " where mean A of the response < 0",
    Sign.OUTWARD: " where d·A > 0",
}
_OVER = {Over.EVERY: "", Over.REMAINING: ", over the tokens that the other rules leave"}


def describe(correction: Correction) -> str:
    """One line: weight, rejection, veto, mode."""
    rules = (_rule_text(rule) + _conditions(rule) for rule in correction.rules)
    parts = [_weight_text(correction.applied_weight), *rules]
    if correction.veto is not None:
        parts.append(f"veto below ρ {correction.veto:g}")
    if correction.mode is Mode.BYPASS:
        parts.append(
            "bypass, PPO ratio carries the weight" if correction.loss is Loss.PPO_CLIP else "bypass, reinforce"
        )
    return "; ".join(part for part in parts if part) or "no correction"


def effective_intervals(correction: Correction) -> list[str]:
    """What each bound and rule lets through, as ratios: verl's k1 band "0.5_5.0" lets [0.2, 2] through."""
    weight = correction.applied_weight
    texts = []
    if weight.bound is not Bound.NONE:
        enters = " enters the mean" if weight.pooled else ""
        texts.append(f"{_RATIO_OF_LEVEL[weight.level]} {_weight_interval(weight)}{enters} in full")
    return texts + [_rule_interval(rule) + _conditions(rule) for rule in correction.all_rules]


def log_intervals(correction: Correction) -> list[str]:
    """The same for bounds on ratios in log units: trainers differ in which of the two a threshold is written in."""
    weight = correction.applied_weight
    texts = []
    if weight.bound is not Bound.NONE:
        texts.append(f"{_D_OF_LEVEL[weight.level]} {_log_interval(weight.lower, weight.upper)}")
    for rule in correction.all_rules:
        if rule.statistic in (Statistic.K1, Statistic.RATIO) and _binds_all(rule) and not rule.by_batch:
            low, high = (rule.lower, rule.upper) if rule.statistic is Statistic.RATIO else _from_k1(rule)
            texts.append(f"{_D_OF_AGGREGATION[rule.aggregation]} {_log_interval(low, high)}{_conditions(rule)}")
    return texts


def what_is_left_of_rejected(correction: Correction) -> str:
    """Whether tokens that are taken out still carry a weight; empty where none is taken out."""
    weight = correction.applied_weight
    weighted = weight.level is not Level.NONE
    texts = []
    if weighted and weight.bound is Bound.MASK:
        texts.append("tokens outside the bound have weight 0 and stay in the mask")
    if correction.all_rules:
        texts.append(f"rejected tokens keep their weight{'' if weighted else ' of 1'}: only the mask takes them out")
    return "; ".join(texts)


def _conditions(rule: Rule) -> str:
    return _WHERE[rule.sign] + _OVER[rule.over]


def _weight_text(weight: Weight) -> str:
    if weight.level is Level.NONE:
        return ""
    text = f"{weight.level} weight"
    if weight.bound is not Bound.NONE:
        text += f" {_bound_text(weight)}"
    if weight.outside is not None:
        text += f" only outside {_rule_interval(weight.outside)}{_conditions(weight.outside)}"
    if weight.token_clamp is not None:
        text += f", log-ratio of each token clamped to ±{weight.token_clamp:g}"
    if weight.loses_overflow:
        text += f", 0 past a log-ratio of {weight.overflow:.3g}"
    if weight.pooled:
        text += ", geometric mean over the response"
    by_token = weight.level is Level.TOKEN
    return text + ("" if by_token else _OVER[weight.over]) + (", batch-normalised" if weight.normalise else "")


def _bound_text(weight: Weight) -> str:
    masks = weight.bound is Bound.MASK
    if weight.upper is not None and (not weight.lower or weight.bound is Bound.TRUNCATE):
        return f"{'0 above' if masks else 'capped at'} {weight.upper:g}"
    if weight.upper is None:
        return f"{'0 below' if masks else 'raised to at least'} {weight.lower:g}"
    return f"{'0 outside' if masks else 'clipped into'} {_weight_interval(weight).removeprefix('in ')}"


def _weight_interval(weight: Weight) -> str:
    return _interval(0.0 if weight.lower is None else weight.lower, math.inf if weight.upper is None else weight.upper)


def _rule_text(rule: Rule) -> str:
    if rule.by_batch:
        return _batch_text(rule)
    if rule.statistic in (Statistic.K1, Statistic.RATIO):
        return f"{rule.name} keeps ρ {_ratio_bounds(rule)}"
    return f"{rule.name} {_bounds_text(rule)}"


def _batch_text(rule: Rule) -> str:
    return f"largest {rule.statistic.value} of the batch removed until the mean is < {rule.upper:g}"


def _rule_interval(rule: Rule) -> str:
    if rule.by_batch:
        return _batch_text(rule)
    where = _RATIO_OF_AGGREGATION[rule.aggregation]
    if not _binds_all(rule):
        return f"{rule.name} {_bounds_text(rule)}"
    if rule.statistic in (Statistic.K1, Statistic.RATIO):
        return f"{where} {_ratio_bounds(rule)}"
    by_token = rule.aggregation in (Aggregation.TOKEN, Aggregation.SEQ_MAX)
    if by_token and rule.upper is not None and rule.lower is None and rule.statistic in CONVEX:
        return f"{where} {_token_ratios(rule.statistic, rule.upper)}"
    return f"{rule.name} {_bounds_text(rule)}"


def _binds_all(rule: Rule) -> bool:
    """Whether the bounds hold for each token as they do for the extreme: a largest value has no floor to share."""
    free = {Aggregation.SEQ_MAX: rule.lower, Aggregation.SEQ_MIN: rule.upper}
    return free.get(rule.aggregation) is None


def _ratio_bounds(rule: Rule) -> str:
    """k1 is −log ρ: its bounds swap ends as ratios."""
    if rule.statistic is Statistic.RATIO:
        lower = 0.0 if rule.lower is None else rule.lower
        return _interval(lower, math.inf if rule.upper is None else rule.upper)
    low, high = _from_k1(rule)
    return _interval(low or 0.0, math.inf if high is None else high)


def _from_k1(rule: Rule) -> tuple[float | None, float | None]:
    """Bounds on −log ρ as bounds on ρ."""
    return (
        None if rule.upper is None else math.exp(-rule.upper),
        None if rule.lower is None else math.exp(-rule.lower),
    )


def _log_interval(lower: float | None, upper: float | None) -> str:
    """Bounds on a ratio as bounds on its logarithm; a ratio of 0 is no bound."""
    if not lower:
        return "free" if upper is None else f"≤ {math.log(upper):.5g}"
    return f"≥ {math.log(lower):.5g}" if upper is None else f"in [{math.log(lower):.5g}, {math.log(upper):.5g}]"


def _token_ratios(statistic: Statistic, upper: float) -> str:
    if statistic is Statistic.K3:
        low, high = k3_roots(upper)
    elif statistic is Statistic.K3_REVERSE:
        high, low = (-root for root in k3_roots(upper))
    elif statistic is Statistic.MULT_ERROR:
        return _interval(1 / upper, upper)
    else:
        high = math.sqrt(2.0 * upper) if statistic is Statistic.K2 else upper
        low = -high
    return _interval(math.exp(low), math.exp(min(high, 700.0)))


def _bounds_text(rule: Rule) -> str:
    if rule.lower is None:
        return f"≤ {rule.upper:g}"
    return f"≥ {rule.lower:g}" if rule.upper is None else f"in [{rule.lower:g}, {rule.upper:g}]"


def _interval(lower: float, upper: float) -> str:
    if math.isinf(upper):
        return f"≥ {lower:g}"
    return f"≤ {upper:g}" if lower == 0.0 else f"in [{lower:g}, {upper:g}]"
