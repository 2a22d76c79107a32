"""From a correction back to a trainer's own keys: the inverse of what its module reads.

A trainer's option space is a table: products of axes, each axis a choice of settings, in which thresholds are filled
in from the correction. Every candidate is read by the trainer's own reader; the one that reads as the correction is
the answer, else the nearest, with what is different about it. Nothing here knows any trainer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, product
from typing import TypeAlias

from rollout_audit.corrections.describe import describe
from rollout_audit.corrections.equivalence import AGGREGATION_OF_LEVEL, PARTS, departures, essence
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Rule,
    Sign,
    Statistic,
)
from rollout_audit.errors import ConfigError

__all__ = [
    "MISSING",
    "Axis",
    "Choice",
    "Expression",
    "Fill",
    "Options",
    "Unexpressible",
    "express",
    "expressed",
    "lower",
    "or_else",
    "ratio_of",
    "rule_bound",
    "rule_lower",
    "rule_upper",
    "upper",
    "veto",
]


class _Missing(Enum):
    MISSING = "the correction has no such number"


MISSING = _Missing.MISSING

Fill: TypeAlias = Callable[[Correction], object]
"""What a correction says about one key; MISSING where it says nothing, and the choice drops out"""
Choice: TypeAlias = Mapping[str, object]
"""key (dotted where nested) → its value, or a `Fill`"""
Axis: TypeAlias = tuple[Choice, ...]
Options: TypeAlias = tuple[tuple[Axis, ...], ...]
"""A trainer's option space: the union of the products of axes"""

Read: TypeAlias = Callable[[Mapping[str, object]], Correction]
Candidate: TypeAlias = tuple[Mapping[str, object], Correction]
"""Settings and what they are read as"""


@dataclass(frozen=True, slots=True)
class Expression:
    """A trainer's settings for a correction, and what they are read as."""

    settings: Mapping[str, object]
    correction: Correction
    fine_print: tuple[str, ...] = ()
    """where it is not the same to the last bit: clamps of the log-ratio"""


@dataclass(frozen=True, slots=True)
class Unexpressible:
    """A correction that a trainer has no settings for."""

    reason: str
    nearest: Expression


NO_FLOOR, NO_CEILING = 1e-9, 1e9
"""Stand for no bound where a trainer wants both: ratios past e^±20 or so hardly ever occur"""


def express(options: Options, read: Read, wanted: Correction) -> Expression | Unexpressible:
    """The settings that `read` understands as the correction; of several that do, the first of the table.

    Where none does, the nearest by `remoteness`: with the same policies compared, the one that does the most alike to
    the tokens of a fixed batch. Looked for with the correction's own thresholds, for trainers that want a bound on both
    sides with 1e-9 or 1e9 for one it lacks, and with a rule in the place of a band that zeroes.
    """
    exact, candidates = _sought(options, read, wanted)
    if exact is not None:
        return exact
    from rollout_audit.corrections.likeness import remoteness  # loads torch, which the table of names does not need

    settings, nearest = min(candidates, key=lambda one: remoteness(wanted, one[1]))
    differing = departures(essence(wanted), essence(nearest))
    return Unexpressible(_reason(wanted, nearest, differing), Expression(settings, nearest))


def expressed(options: Options, read: Read, wanted: Correction) -> Expression | None:
    """The same without looking for what comes near (None: there are no such settings)."""
    return _sought(options, read, wanted)[0]


def _sought(options: Options, read: Read, wanted: Correction) -> tuple[Expression | None, list[Candidate]]:
    """The settings, or none and every candidate that was read in looking for them."""
    found = list(_readable(options, read, wanted))
    for settings, correction in found:
        if correction == wanted:
            return Expression(settings, correction), found
    others = (one for form in _other_forms(wanted) for one in _readable(options, read, form))
    target, looked_at = essence(wanted), list[Candidate]()
    for one in chain(found, others):
        if not departures(target, essence(one[1])):
            return Expression(*one, tuple(_fine_print(wanted, one[1]))), looked_at
        looked_at.append(one)
    return None, looked_at


def _other_forms(wanted: Correction) -> Iterator[Correction]:
    """Of the same or nearly the same effect, for trainers that want bounds elsewhere or on both sides."""
    by_rule = _by_rule(wanted)
    yield from (by_rule,) if by_rule is not None else ()
    yield _closed(wanted)
    yield from (_closed(by_rule),) if by_rule is not None else ()


def _by_rule(wanted: Correction) -> Correction | None:
    """What is zeroed outside a band, as a raw weight and a rule."""
    weight = wanted.weight
    if weight.bound is not Bound.MASK or weight.level is Level.NONE:
        return None
    rule = Rule(Statistic.RATIO, AGGREGATION_OF_LEVEL[weight.level], weight.lower, weight.upper, clamp=None)
    return replace(
        wanted,
        weight=replace(weight, bound=Bound.NONE, lower=None, upper=None),
        rules=(*wanted.rules, rule),
    )


def _closed(wanted: Correction) -> Correction:
    """With a bound that does next to nothing wherever it has none."""
    weight = wanted.weight
    if weight.level is not Level.NONE:
        bound = Bound.MASK if weight.bound is Bound.MASK else Bound.CLIP
        lower = None if weight.bound is Bound.TRUNCATE else weight.lower
        weight = replace(weight, bound=bound, lower=lower or NO_FLOOR, upper=weight.upper or NO_CEILING)
    return replace(wanted, weight=weight, rules=tuple(map(_closed_rule, wanted.rules)))


def _closed_rule(rule: Rule) -> Rule:
    if rule.statistic not in (Statistic.RATIO, Statistic.K1) or rule.sign is not Sign.ANY or rule.by_batch:
        return rule
    floor, ceiling = NO_FLOOR, NO_CEILING
    if rule.statistic is Statistic.K1:
        floor, ceiling = math.log(NO_FLOOR), math.log(NO_CEILING)
    lower, upper = (given if mine is None else mine for mine, given in ((rule.lower, floor), (rule.upper, ceiling)))
    return replace(rule, lower=lower, upper=upper) if lower <= upper else rule


def _readable(options: Options, read: Read, wanted: Correction) -> Iterator[Candidate]:
    """Every candidate that the trainer does not refuse."""
    for axes in options:
        filled = [[given for choice in axis if (given := _filled(choice, wanted)) is not None] for axis in axes]
        for chosen in product(*filled):
            settings = {key: value for part in chosen for key, value in part.items()}
            try:
                yield settings, read(settings)
            except ConfigError:
                continue


def _filled(choice: Choice, wanted: Correction) -> dict[str, object] | None:
    values = {key: value(wanted) if callable(value) else value for key, value in choice.items()}
    return None if MISSING in values.values() else values


def _reason(wanted: Correction, nearest: Correction, differing: tuple[str, ...]) -> str:
    """What is different about the nearest, in one line."""
    ours, theirs = describe(wanted), describe(nearest)
    if differing == (PARTS["denominator"],):
        by, instead_of = (_TOKENS[essence(one).denominator] for one in (nearest, wanted))
        return f"the loss divides by {by} instead of {instead_of}"
    return f'"{theirs}" instead of "{ours}", different in {", ".join(differing)}'


_TOKENS = {
    Denominator.KEPT: "the tokens that are left",
    Denominator.REMAINING: "the tokens that the first rules leave",
    Denominator.ORIGINAL: "all tokens",
}


def _fine_print(wanted: Correction, got: Correction) -> Iterator[str]:
    ours, theirs = _clamp(wanted), _clamp(got)
    if ours != theirs:
        yield f"the log-ratio of the weight is {theirs} instead of {ours}, which only ratios beyond that show"


def _clamp(correction: Correction) -> str:
    weight = correction.applied_weight
    if weight.level is Level.NONE:
        return "not clamped"
    texts = [
        f"clamped to ±{weight.clamp:g}" if weight.clamp else "",
        f"clamped to ±{weight.token_clamp:g} token by token" if weight.token_clamp else "",
        f"that of a weight of 0 past {weight.overflow:.3g}" if weight.loses_overflow else "",
    ]
    return " and ".join(filter(None, texts)) or "not clamped"


def _given(value: object) -> object:
    unbounded = value is None or (isinstance(value, float) and math.isinf(value))
    return MISSING if unbounded else value


def lower(correction: Correction) -> object:
    """Lower bound of the weight."""
    return MISSING if correction.weight.bound is Bound.TRUNCATE else _given(correction.weight.lower)


def upper(correction: Correction) -> object:
    """Upper bound of the weight."""
    return _given(correction.weight.upper)


def veto(correction: Correction) -> object:
    """Threshold of the least ratio of a response, as a veto or as a rule."""
    found = _given(correction.veto)
    return rule_lower(Aggregation.SEQ_MIN)(correction) if found is MISSING else found


def or_else(fill: Fill, default: object) -> Fill:
    """What `fill` finds, else `default`."""

    def filled(correction: Correction) -> object:
        found = fill(correction)
        return default if found is MISSING else found

    return filled


def rule_lower(aggregation: Aggregation) -> Fill:
    """Lower bound of the ratio in the rule of that aggregation, or in a weight that is zeroed outside."""
    return lambda correction: _given(_ratio_bounds(correction, aggregation)[0])


def rule_upper(aggregation: Aggregation) -> Fill:
    """Upper bound of the same."""
    return lambda correction: _given(_ratio_bounds(correction, aggregation)[1])


def rule_bound(statistic: Statistic, aggregation: Aggregation, end: str = "upper", *, scale: float = 1.0) -> Fill:
    """`lower` or `upper` of the first rule with that statistic and aggregation, in its own units times a factor."""

    def bound(correction: Correction) -> object:
        for rule in correction.rules:
            value = getattr(rule, end)
            if (rule.statistic, rule.aggregation) == (statistic, aggregation) and value is not None:
                return scale * value
        return MISSING

    return bound


def _ratio_bounds(correction: Correction, aggregation: Aggregation) -> tuple[float | None, float | None]:
    """The bounds as they are written where one rule of ratios has them, else from the logs."""
    direct = [r for r in correction.rules if (r.statistic, r.aggregation) == (Statistic.RATIO, aggregation)]
    if len(direct) == 1:
        return direct[0].lower, direct[0].upper
    weight = correction.applied_weight
    if not correction.rules and weight.bound is Bound.MASK and AGGREGATION_OF_LEVEL[weight.level] is aggregation:
        return weight.lower, weight.upper
    band = next((band for band in essence(correction).rules if band.kind == aggregation), None)
    return (None, None) if band is None else (_ratio(band.lower), _ratio(band.upper))


def _ratio(log: float) -> float | None:
    return None if math.isinf(log) else ratio_of(log)


def ratio_of(log: float) -> float:
    """A ratio whose logarithm is `log`, the shortest of those within a few units of the last place."""
    near = math.exp(log)
    short = [float(f"{near:.{digits}g}") for digits in (6, 12, 15)]
    around, step = [near], near
    for direction in (math.inf, 0.0):
        step = near
        for _ in range(4):
            step = math.nextafter(step, direction)
            around.append(step)
    return next((ratio for ratio in (*short, *around) if ratio > 0 and math.log(ratio) == log), near)
