"""Whether two corrections do the same, however they are written.

verl's k1 band is a band of ratios, IcePop over all tokens is a raw weight and a rule, a veto is a rule on the least
ratio of the response, and where nothing is removed all denominators are one. What is left after such rewriting is
compared part by part. Clamps of the log-ratio are not: they act on ratios past e^20 or below e^-20 (open-instruct:
e^10), where a bound has long decided; a weight without a bound keeps its clamp in the comparison. Nor is what becomes
of a ratio past float32, where one log-prob of the two means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from rollout_audit.corrections.cuts import has_interval, token_interval
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Loss,
    Mode,
    Over,
    Rule,
    Sign,
    Statistic,
    Weight,
)

__all__ = ["AGGREGATION_OF_LEVEL", "PARTS", "Band", "Essence", "bounds_apart", "departures", "essence", "rule_bands"]

AGGREGATION_OF_LEVEL = {
    Level.TOKEN: Aggregation.TOKEN,
    Level.SEQUENCE: Aggregation.SEQ_SUM,
    Level.GEOMETRIC: Aggregation.SEQ_MEAN,
    Level.SEGMENT: Aggregation.SEGMENT_MEAN,
}
"""The aggregation whose log-ratio is that of the level"""
CLOSE = 1e-9
"""Relative difference of thresholds that rounding may leave between a ratio and its logarithm"""
FAR = 50.0
"""What a bound counts, in logs, that one side has and the other has not"""


class Band(NamedTuple):
    """Keep where lower ≤ statistic ≤ upper; `kind` is an aggregation of the log-ratio, or the rule's name."""

    kind: str
    sign: Sign
    over: Over
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Essence:
    """What a correction does, without how it is written."""

    level: Level
    bound: Bound
    limits: tuple[float, float]
    """logs of the bounds on the weight, infinite where there is none"""
    details: tuple[object, ...]
    """batch normalisation, what sums and means are over, the clamp of a weight without a bound"""
    rules: tuple[Band, ...]
    mode: tuple[Mode, Loss | None]
    denominator: Denominator


PARTS = {
    "level": "level of the weight",
    "bound": "how the weight is bounded",
    "limits": "bounds of the weight",
    "rules": "what is rejected",
    "details": "how the weight is summed, clamped or normalised",
    "mode": "mode or loss",
    "denominator": "what the loss divides by",
}
"""Fields of `Essence`, most important first, in words"""


@lru_cache(maxsize=4096)
def essence(correction: Correction) -> Essence:
    """The correction, rewritten as far as that changes no applied weight, no mask and no denominator."""
    weight, bands = correction.applied_weight, _merged(correction.all_rules)
    denominator = _denominator(correction)
    if _masks_as_a_rule(weight, correction):
        band = Band(AGGREGATION_OF_LEVEL[weight.level], Sign.ANY, Over.EVERY, *_logs(weight.lower, weight.upper))
        bands, denominator = _joined([*bands, band]), Denominator.ORIGINAL
        weight = replace(weight, bound=Bound.NONE, lower=None, upper=None)
    bound, limits = _bounds(weight)
    return Essence(
        level=weight.level,
        bound=bound,
        limits=limits,
        details=_details(weight, limits[1], bands),
        rules=bands,
        mode=(correction.mode, correction.loss if correction.mode is Mode.BYPASS else None),
        denominator=denominator if bands else Denominator.ORIGINAL,
    )


def departures(wanted: Essence, got: Essence) -> tuple[str, ...]:
    """The parts that are not the same, in words; empty where the two do the same.

    Another level says all of the weight, and where one side rejects nothing, that says all of the denominator.
    """
    without_rules = not (wanted.rules and got.rules)
    moot = {"denominator"} if without_rules else set[str]()
    if wanted.level is not got.level:
        moot |= {"bound", "limits", "details"}
    parts = {part: words for part, words in PARTS.items() if part not in moot}
    return tuple(words for part, words in parts.items() if not _alike(getattr(wanted, part), getattr(got, part)))


def bounds_apart(wanted: Essence, got: Essence) -> float:
    """Sum of the distances of all bounds, in logs where they are of ratios."""
    return _apart(wanted.limits, got.limits) + _rules_apart(wanted.rules, got.rules)


def rule_bands(rule: Rule) -> tuple[Band, ...]:
    """A rule as bands of a log-ratio, joined by AND; of what is no log-ratio the rule's own name and bounds."""
    aggregation = rule.aggregation
    if rule.statistic is Statistic.RATIO:
        return (Band(aggregation, rule.sign, rule.over, *_logs(rule.lower, rule.upper)),)
    if rule.statistic is Statistic.K1:
        lower, upper = _open(rule.lower, rule.upper)
        return (Band(_MIRRORED.get(aggregation, aggregation), rule.sign, rule.over, -upper, -lower),)
    of_token = replace(rule, aggregation=Aggregation.TOKEN, clamp=None)
    if aggregation in (Aggregation.TOKEN, Aggregation.SEQ_MAX) and has_interval(of_token):
        low, high = token_interval(of_token)
        if aggregation is Aggregation.TOKEN:
            return (Band(aggregation, rule.sign, rule.over, low, high),)
        least = Band(Aggregation.SEQ_MIN, rule.sign, rule.over, low, math.inf)
        return least, Band(Aggregation.SEQ_MAX, rule.sign, rule.over, -math.inf, high)
    return (Band(rule.name, rule.sign, rule.over, *_open(rule.lower, rule.upper)),)


_MIRRORED = {Aggregation.SEQ_MAX: Aggregation.SEQ_MIN, Aggregation.SEQ_MIN: Aggregation.SEQ_MAX}
"""The largest −d is minus the least d"""


def _merged(rules: Sequence[Rule]) -> tuple[Band, ...]:
    return _joined([band for rule in rules for band in rule_bands(rule)])


def _joined(bands: Sequence[Band]) -> tuple[Band, ...]:
    """Bands of one kind intersected, those that let everything through left out, in a fixed order."""
    found: dict[tuple[str, Sign, Over], tuple[float, float]] = {}
    for band in bands:
        low, high = found.get(band[:3], (-math.inf, math.inf))
        found[band[:3]] = max(low, band.lower), min(high, band.upper)
    open_band = (-math.inf, math.inf)
    return tuple(Band(*key, *limits) for key, limits in sorted(found.items()) if limits != open_band)


def _denominator(correction: Correction) -> Denominator:
    """Without a rule over what the others leave, all rules are over every token."""
    if any(rule.over is Over.REMAINING for rule in correction.rules):
        return correction.denominator
    remaining = correction.denominator is Denominator.REMAINING
    return Denominator.KEPT if remaining else correction.denominator


def _masks_as_a_rule(weight: Weight, correction: Correction) -> bool:
    """Whether zeroing weights outside the bounds leaves the loss that rejecting these tokens would leave."""
    plain = weight.over is Over.EVERY and not weight.normalise and weight.outside is None and not weight.pooled
    apart = all(rule.over is Over.EVERY for rule in correction.rules)
    undivided = correction.denominator is Denominator.ORIGINAL or not correction.all_rules
    return weight.bound is Bound.MASK and weight.level is not Level.NONE and plain and apart and undivided


def _bounds(weight: Weight) -> tuple[Bound, tuple[float, float]]:
    """Truncation is a clip without a lower bound."""
    if weight.level is Level.NONE or weight.bound is Bound.NONE:
        return Bound.NONE, (-math.inf, math.inf)
    truncates = weight.bound is Bound.TRUNCATE
    limits = _logs(None if truncates else weight.lower, weight.upper)
    return (Bound.CLIP if truncates else weight.bound), limits


def _details(weight: Weight, limit: float, bands: Sequence[Band]) -> tuple[object, ...]:
    if weight.level is Level.NONE:
        return ()
    by_row = weight.level in (Level.SEQUENCE, Level.GEOMETRIC)
    own = AGGREGATION_OF_LEVEL[weight.level]
    bounded = math.isfinite(limit) or any(b.kind == own and math.isfinite(b.upper) for b in bands)
    return (
        weight.normalise,
        weight.mean_over if weight.normalise and by_row else None,
        weight.over if weight.level is not Level.TOKEN else Over.EVERY,
        None if bounded else weight.clamp,
        weight.pooled,
        None if weight.outside is None else rule_bands(weight.outside),
    )


def _open(lower: float | None, upper: float | None) -> tuple[float, float]:
    return (-math.inf if lower is None else lower), (math.inf if upper is None else upper)


def _logs(lower: float | None, upper: float | None) -> tuple[float, float]:
    low = -math.inf if lower is None or lower <= 0 else math.log(lower)
    return low, (math.inf if upper is None or math.isinf(upper) else math.log(upper))


def _alike(one: object, other: object) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE)
    return one == other


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(_distance(a, b) for a, b in zip(one, other, strict=True))


def _distance(one: float, other: float) -> float:
    return 0.0 if one == other else min(abs(one - other), FAR)


def _rules_apart(wanted: Sequence[Band], got: Sequence[Band]) -> float:
    """Rules that only one side has count in full, those that both have by their bounds."""
    ours, theirs = ({band[:3]: band[3:] for band in bands} for bands in (wanted, got))
    return sum(_rule_distances(ours, theirs))


def _rule_distances(
    ours: dict[tuple[str, Sign, Over], tuple[float, float]], theirs: dict[tuple[str, Sign, Over], tuple[float, float]]
) -> Iterator[float]:
    for kind in ours.keys() | theirs.keys():
        both = kind in ours and kind in theirs
        yield _apart(ours[kind], theirs[kind]) if both else 2 * FAR
