"""Grids of one's own: lists and ranges of thresholds as they are written, and the sweep that they make."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeAlias, TypeVar

import numpy as np

from rollout_audit.audit.sweep import MOST_POINTS, Grid, check_points, default_grid
from rollout_audit.corrections.cuts import token_interval
from rollout_audit.corrections.model import Aggregation, Bound, Level, Rule, Statistic, Weight
from rollout_audit.errors import ConfigError, UsageError, suggest
from rollout_audit.statistics.sweep import nested_rule
from rollout_audit.trainers.thresholds import REJECTION_OPTIONS, parse_rejection

__all__ = ["sweep_grid", "thresholds"]

LEVELS = (Level.TOKEN, Level.SEQUENCE, Level.GEOMETRIC)
TOKEN_CAPS = 8
"""Caps of token weights under sequence rules, at most"""
BOUNDS = (Bound.TRUNCATE, Bound.CLIP, Bound.MASK)
EMPTY = "none"
SPACINGS: Mapping[str, Callable[[float, float, int], Iterable[float]]] = {"log": np.geomspace, "lin": np.linspace}
HOW = "write numbers parted by commas, or FIRST:LAST:log|lin:COUNT, e.g. 1.1:10:log:64"

Numbers: TypeAlias = str | Sequence[float]
Choice = TypeVar("Choice", Level, Bound)


def sweep_grid(
    *,
    levels: Collection[str] | None = None,
    bounds: Collection[str] | None = None,
    upper: Numbers | None = None,
    lower: Numbers | None = None,
    rules: Mapping[str, str | Sequence[float | str]] | None = None,
    veto: Numbers | None = None,
    joint: bool = True,
) -> Grid:
    """The default grid with each axis that is given in the place of its own.

    Args:
        levels: of weights: token, sequence, geometric; empty for no weights.
        bounds: truncate, clip, mask.
        upper: upper bounds of the ratio; clip and mask get the reciprocal as lower bound.
        lower: lower bounds below them, each with each upper bound that is larger.
        rules: verl's option names → thresholds in verl's notation, k1 as a number or a band "lower_upper" of the
            ratio; empty for no rules.
        veto: thresholds of ρ; empty for none.
        joint: whether token and sequence weights are swept together with sequence rules; with given `upper` or
            `rules` over these, token weights over eight of the upper bounds at most, evenly chosen.

    Raises:
        UsageError: a name, a number or a range that cannot be, or more than 200,000 points.
    """
    grid = replace(
        default_grid(),
        weights=tuple(_weights(_chosen("level", levels, LEVELS), _chosen("bound", bounds, BOUNDS), upper, lower)),
    )
    if rules is not None:
        grid = _with_rules(grid, [rule for name, given in rules.items() for rule in _rules(name, given)])
    if veto is not None:
        grid = replace(grid, vetoes=tuple(sorted(thresholds("veto", veto), reverse=True)))
    grid = replace(grid, joint=tuple(_joint(grid, _chosen("level", levels, LEVELS), upper)) if joint else ())
    check_points(grid.points, MOST_POINTS, "the grid")
    return grid


def thresholds(name: str, given: Numbers) -> list[float]:
    """Positive numbers, ascending and each once: `1.5,2,3`, `1.1:10:log:64`, a mix of both, or `none`.

    Raises:
        UsageError: not of that form; a range that is not ascending or longer than a sweep may be.
    """
    if not isinstance(given, str):
        return sorted({_positive(name, given, value) for value in given})
    if given.strip() == EMPTY:
        return []
    return sorted({value for part in given.split(",") for value in _part(name, given, part.strip())})


def _part(name: str, given: str, part: str) -> Sequence[float]:
    if ":" not in part:
        return [_positive(name, given, part)]
    first, last, spacing, count = [*part.split(":"), "", "", ""][:4]
    if part.count(":") != 3 or spacing not in SPACINGS:
        raise UsageError(f"--{name} {given!r}: {part!r} is no range; {HOW}")
    low, high = _positive(name, given, first), _positive(name, given, last)
    if not (count.isascii() and count.isdecimal() and 2 <= int(count) <= MOST_POINTS):
        raise UsageError(f"--{name} {given!r}: {count!r} is no count from 2 to {MOST_POINTS:,}; {HOW}")
    if low >= high:
        raise UsageError(f"--{name} {given!r}: {part!r} does not ascend; {HOW}")
    return [float(value) for value in SPACINGS[spacing](low, high, int(count))]


def _positive(name: str, given: object, text: object) -> float:
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UsageError(f"--{name} {given!r}: {text!r} is no number; {HOW}") from None
    if not 0 < value < np.inf:
        raise UsageError(f"--{name} {given!r}: {text} is no positive number, as every threshold is; {HOW}")
    return value


def _chosen(name: str, given: Collection[str] | None, known: Sequence[Choice]) -> list[Choice]:
    if given is None:
        return list(known)
    by_name = {one.value: one for one in known}
    for text in given:
        if text not in by_name:
            near = suggest(text, by_name) or f"; choose from {', '.join(by_name)}, or none"
            raise UsageError(f"--{name} {text!r}: no such {name}{near}")
    return [by_name[text] for text in dict.fromkeys(given)]


def _weights(
    levels: Sequence[Level], bounds: Sequence[Bound], upper: Numbers | None, lower: Numbers | None
) -> Iterator[tuple[Weight, ...]]:
    own = [part for part in default_grid().weights if part[0].level in levels and part[0].bound in bounds]
    if upper is None and lower is None:
        yield from own
        return
    for level, bound in dict.fromkeys((part[0].level, part[0].bound) for part in own):
        defaults = {w.upper for part in own for w in part if w.level is level and w.upper is not None}
        uppers = sorted(defaults) if upper is None else thresholds("upper", upper)
        if bound is Bound.TRUNCATE or lower is None:
            yield tuple(_bounded(level, bound, value) for value in uppers)
        else:
            lowers = thresholds("lower", lower)
            found = tuple(Weight(level, bound, low, high) for low in lowers for high in uppers if low < high)
            if lowers and uppers and not found:
                raise UsageError(
                    f"--lower {lowers[0]:g}: not below any upper bound of {level} weights, which end at "
                    f"{uppers[-1]:g}; give a smaller one, or --bound truncate"
                )
            yield found


def _joint(grid: Grid, levels: Sequence[Level], upper: Numbers | None) -> Iterator[Weight]:
    """Truncated weights; those of tokens at few caps, since each needs sums of its own in every row."""
    own = [weight for weight in grid.joint if weight.level in levels]
    if upper is None:
        yield from own
        return
    caps = thresholds("upper", upper)
    few = [caps[i] for i in np.unique(np.linspace(0, len(caps) - 1, min(TOKEN_CAPS, len(caps))).astype(int))]
    for level in dict.fromkeys(weight.level for weight in own):
        yield from (Weight(level, Bound.TRUNCATE, upper=cap) for cap in (few if level is Level.TOKEN else caps))


def _bounded(level: Level, bound: Bound, upper: float) -> Weight:
    if bound is Bound.TRUNCATE:
        return Weight(level, bound, upper=upper)
    if upper < 1:
        raise UsageError(
            f"--upper {upper:g}: below 1, so that its reciprocal is no lower bound of it; give --lower, or "
            "--bound truncate"
        )
    return Weight(level, bound, 1.0 / upper, upper)


def _rules(name: str, given: str | Sequence[float | str]) -> Iterator[Rule]:
    """Numbers as rules that contain each other, bands as they are."""
    if name not in REJECTION_OPTIONS:
        near = suggest(name, REJECTION_OPTIONS) or f"; choose from {', '.join(REJECTION_OPTIONS)}"
        raise UsageError(f"--rule {name!r}: no such rule{near}")
    parts = [part.strip() for part in given.split(",")] if isinstance(given, str) else list(map(str, given))
    numbers = [value for part in parts if "_" not in part for value in thresholds(f"rule {name}", part)]
    statistic, aggregation = REJECTION_OPTIONS[name]
    for value in numbers:
        if statistic is Statistic.K1 and value < 1:
            raise UsageError(f"--rule {name}={value:g}: a lone bound below 1 is an empty band; write 'lower_upper'")
        yield nested_rule(statistic, aggregation, value)
    for part in parts:
        if "_" in part:
            yield _band(name, part)


def _band(name: str, text: str) -> Rule:
    """verl's k1 compares −log ρ with the logs of the band: "0.5_5.0" keeps ρ from 0.2 to 2."""
    try:
        (rule,) = parse_rejection(name, text)
    except ConfigError as error:
        raise UsageError(f"--rule {name}={text}: {str(error).partition(': ')[2]}") from error
    if rule.aggregation is Aggregation.TOKEN and not token_interval(rule).lower <= 0.0 <= token_interval(rule).upper:
        raise UsageError(f"--rule {name}={text}: a band by token is swept where it holds ρ = 1, as 0.5_2 does")
    return rule


def _with_rules(grid: Grid, rules: Sequence[Rule]) -> Grid:
    """The given rules instead of the grid's own: families that are nested apart from single bands."""
    nested = [rule for rule in rules if rule.statistic is not Statistic.K1 or rule.lower == -(rule.upper or 0.0)]
    families = [tuple(sorted(set(found), key=_upper)) for _, found in groupby(sorted(nested, key=_family), _family)]
    return replace(
        grid,
        token_rules=tuple(part for part in families if part[0].aggregation is Aggregation.TOKEN),
        given=tuple(part for part in families if part[0].aggregation.per_row),
        bands=tuple(dict.fromkeys(rule for rule in rules if rule not in nested)),
    )


def _family(rule: Rule) -> str:
    return rule.name


def _upper(rule: Rule) -> float:
    return rule.upper or 0.0
