"""Token rules and bounds as intervals of the log-ratio.

Every bound on ρ, k1, k2, k3 or |d| is a closed interval of d. A rule is *defined* by that interval: the direct
definition and the streamed tables both compare d with it, so they agree on every tie. exp(log 3.0) > 3.0 in
floating point, so each end is moved to the last float64 that still satisfies the inequality as written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple

from rollout_audit.corrections.model import Aggregation, Bound, Correction, Over, Rule, Sign, Statistic, Weight
from rollout_audit.errors import ConfigError

__all__ = [
    "CONVEX",
    "EVERYTHING",
    "NOT_IN_ROWS",
    "Interval",
    "at_least",
    "at_most",
    "has_interval",
    "is_interval",
    "is_streamed",
    "k3_roots",
    "overflown_weight",
    "ratio_interval",
    "token_interval",
    "weight_interval",
]


class Interval(NamedTuple):
    """lower ≤ d ≤ upper."""

    lower: float
    upper: float

    def intersect(self, other: Interval) -> Interval:
        return Interval(max(self.lower, other.lower), min(self.upper, other.upper))


EVERYTHING = Interval(-math.inf, math.inf)
ROUNDING = 8 * 2.0**-53


@cache
def at_most(upper: float) -> float:
    """The largest float64 d with exp(d) ≤ upper."""
    return _last(log := math.log(upper), 1.0, lambda d: math.exp(d) <= upper, ROUNDING * max(1.0, abs(log)))


@cache
def at_least(lower: float) -> float:
    """The smallest float64 d with exp(d) ≥ lower."""
    return _last(log := math.log(lower), -1.0, lambda d: math.exp(d) >= lower, ROUNDING * max(1.0, abs(log)))


@cache
def k3_roots(threshold: float) -> Interval:
    """All d with expm1(d) − d ≤ threshold.

    Newton's method from ±√(2t): the Lambert-W form loses every digit below t ≈ 1e-6 and overflows above 700.
    """
    return Interval(_k3_root(threshold, -1.0), _k3_root(threshold, 1.0))


def ratio_interval(lower: float | None, upper: float | None) -> Interval:
    """The log-ratios whose ratio lies in [lower, upper]; None leaves a side open."""
    low = -math.inf if lower is None or lower <= 0 else at_least(lower)
    high = math.inf if upper is None or math.isinf(upper) else at_most(upper)
    return Interval(low, high)


@lru_cache(1 << 14)
def weight_interval(weight: Weight) -> Interval:
    """The log-ratios, at the weight's own level, that its bounds leave alone."""
    lower = None if weight.bound is Bound.TRUNCATE else weight.lower
    upper = weight.upper
    if weight.bound is Bound.NONE:
        return EVERYTHING
    return _open_beyond(ratio_interval(lower, upper), weight.clamp)


def overflown_weight(weight: Weight) -> float:
    """What becomes of a ratio past `overflow`: it counts as 0, which a clip raises to its lower bound."""
    return (weight.lower or 0.0) if weight.bound is Bound.CLIP else 0.0


_MONOTONE = (Statistic.RATIO, Statistic.K1)
CONVEX = (Statistic.K2, Statistic.K3, Statistic.K3_REVERSE, Statistic.ABS_LOG_RATIO, Statistic.MULT_ERROR)
"""Least at d = 0 and rising to both sides: below a bound they hold an interval around it"""


def has_interval(rule: Rule) -> bool:
    """Whether the rule looks at single tokens, and lets an interval of d through."""
    from_zero = rule.upper is not None and (rule.lower or 0.0) <= 0
    one_piece = rule.statistic in _MONOTONE or (rule.statistic in CONVEX and from_zero)
    return one_piece and rule.aggregation is Aggregation.TOKEN


def is_interval(rule: Rule) -> bool:
    """Whether the rule keeps exactly the tokens of an interval of d, whatever their advantage."""
    return has_interval(rule) and rule.sign is Sign.ANY


NOT_IN_ROWS = (Statistic.K3_REVERSE, Statistic.BINARY_KL, Statistic.RATIO_DISTANCE)
"""Statistics of which a row keeps neither sum nor extreme"""


def is_streamed(correction: Correction) -> bool:
    """Whether intervals of d, rows and single tokens say all of it; else it is evaluated chunk by chunk."""
    weight = correction.applied_weight
    plain = weight.over is Over.EVERY and weight.token_clamp is None and weight.outside is None and not weight.pooled
    return plain and all(map(_is_streamed, correction.all_rules))


def _is_streamed(rule: Rule) -> bool:
    in_rows = not rule.aggregation.per_row or rule.statistic not in NOT_IN_ROWS
    return in_rows and rule.sign is Sign.ANY and rule.over is Over.EVERY and not rule.by_batch


def token_interval(rule: Rule) -> Interval:
    """The log-ratios that a token rule keeps, whatever the advantage.

    Raises:
        ConfigError: for what no interval can express: a lower bound on k2, k3, |d| or exp |d|, differences.
    """
    return _open_beyond(_statistic_interval(rule), rule.clamp)


def _statistic_interval(rule: Rule) -> Interval:
    match rule.statistic:
        case Statistic.RATIO:
            return ratio_interval(rule.lower, rule.upper)
        case Statistic.K1:
            low = -math.inf if rule.upper is None else -rule.upper
            high = math.inf if rule.lower is None else -rule.lower
            return Interval(low, high)
        case Statistic.PROB_DIFF | Statistic.BINARY_KL | Statistic.RATIO_DISTANCE:
            raise ConfigError(rule.name, rule.upper, "is no interval of the log-ratio")
    if rule.upper is None or (rule.lower or 0.0) > 0:
        raise ConfigError(rule.name, (rule.lower, rule.upper), "takes one upper bound")
    if rule.statistic is Statistic.K3:
        return k3_roots(rule.upper)
    if rule.statistic is Statistic.K3_REVERSE:
        low, high = k3_roots(rule.upper)
        return Interval(-high, -low)
    if rule.statistic in (Statistic.ABS_LOG_RATIO, Statistic.MULT_ERROR):
        limit = rule.upper if rule.statistic is Statistic.ABS_LOG_RATIO else _log_of_error(rule)
        return Interval(-limit, limit)
    limit = rule.upper
    root = math.sqrt(2.0 * limit)
    end = _last(root, 1.0, lambda d: d * d / 2.0 <= limit, ROUNDING * root)
    return Interval(-end, end)


def _log_of_error(rule: Rule) -> float:
    """exp |d| is never below 1: a smaller bound keeps nothing."""
    return at_most(rule.upper) if rule.upper is not None and rule.upper >= 1 else -math.inf


def _open_beyond(interval: Interval, clamp: float | None) -> Interval:
    """Where d is clamped to ±c first, an end beyond c never rejects, and one beyond the other side always does."""
    if clamp is None:
        return interval
    return Interval(_beyond(interval.lower, clamp), -_beyond(-interval.upper, clamp))


def _beyond(lower: float, clamp: float) -> float:
    """A lower end on d clamped to ±c, as one on d itself."""
    if lower <= -clamp:
        return -math.inf
    return math.inf if lower > clamp else lower


def _last(start: float, direction: float, satisfies: Callable[[float], bool], reach: float) -> float:
    """The float64 farthest in `direction` that satisfies a monotone predicate, within `reach` of `start`.

    `reach` covers the rounding of `start`. Where the predicate is flat beyond it (k3 of a tiny d is 0 in floating
    point) the search stops there: the cut is what counts.
    """
    inside, outside = start - math.copysign(reach, direction), start + math.copysign(reach, direction)
    if satisfies(outside):
        return outside
    while (middle := (inside + outside) / 2.0) not in (inside, outside):
        inside, outside = (middle, outside) if satisfies(middle) else (inside, middle)
    return inside


def _k3_root(threshold: float, sign: float) -> float:
    if threshold <= 0:
        return 0.0
    root = _newton(threshold, sign)
    return _last(root, sign, lambda d: _k3(d) <= threshold, ROUNDING * abs(root))


def _newton(threshold: float, sign: float) -> float:
    """Root of k3(d) = threshold on one side of 0; starts outside the root, where k3 is convex, so it descends to it."""
    value = sign * math.sqrt(2.0 * threshold)
    if sign > 0:
        value = min(value, math.log1p(threshold) + 2.0)
    else:
        value -= threshold
    for _ in range(100):
        step = (_k3(value) - threshold) / math.expm1(value)
        value -= step
        if abs(step) <= 1e-16 * abs(value):
            break
    return value


def _k3(d: float) -> float:
    return math.inf if d > 709.0 else math.expm1(d) - d
