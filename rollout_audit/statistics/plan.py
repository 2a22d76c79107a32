"""What one pass must keep so that every named correction can be answered afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rollout_audit.corrections.cuts import EVERYTHING, Interval, is_interval, token_interval
from rollout_audit.corrections.model import Correction, Level, Over, Rule, Sign, Statistic
from rollout_audit.statistics.grid import CellGrid
from rollout_audit.statistics.population import pieces

__all__ = ["PairPlan", "is_streamed", "partial_rules", "rejection_interval", "unordered_rules"]

Rules = tuple[Rule, ...]


def rejection_interval(correction: Correction) -> Interval:
    """The log-ratios that all token rules of a correction keep."""
    return _intersection([rule for rule in correction.all_rules if is_interval(rule)])


def unordered_rules(correction: Correction) -> Rules:
    """The rules that no interval of d expresses: by row, by segment, by probability."""
    return tuple(rule for rule in correction.all_rules if not is_interval(rule))


def partial_rules(correction: Correction) -> Rules:
    """The rules that can take part of a row; the others take it whole or leave it."""
    return tuple(rule for rule in correction.all_rules if not rule.aggregation.per_row)


NOT_IN_ROWS = (Statistic.K3_REVERSE, Statistic.RATIO_DISTANCE)
"""Statistics of which a row keeps neither sum nor extreme"""


def is_streamed(correction: Correction) -> bool:
    """Whether intervals of d, rows and single tokens say all of it; else it is evaluated chunk by chunk (`direct`)."""
    weight = correction.applied_weight
    plain = weight.over is Over.EVERY and weight.token_clamp is None and weight.outside is None
    return plain and all(map(_is_streamed, correction.all_rules))


def _is_streamed(rule: Rule) -> bool:
    in_rows = not rule.aggregation.per_row or rule.statistic not in NOT_IN_ROWS
    return in_rows and rule.sign is Sign.ANY and rule.over is Over.EVERY and not rule.by_batch


@dataclass(frozen=True)
class PairPlan:
    """The corrections to answer on one pair of policies, and cuts that must be exact besides theirs."""

    corrections: Mapping[str, Correction]
    extra_cuts: tuple[float, ...] = ()
    extra_clamps: tuple[float, ...] = ()
    """clamps on |d| under which row sums are wanted besides those of the corrections"""
    keep_values: bool = True
    """whether the log-ratios themselves are kept, for exact quantiles"""
    compiled: bool = False
    """whether the pass is long enough for compiled loops to pay"""

    @cached_property
    def filters(self) -> tuple[Rules, ...]:
        """Distinct conjunctions of unordered rules; filter i is bit i of a token's class."""
        return _distinct(unordered_rules(c) for c in self.corrections.values())

    @cached_property
    def counters(self) -> tuple[Rules, ...]:
        """Distinct conjunctions of partial rules: their kept tokens are counted for each row."""
        return _distinct(partial_rules(c) for c in self.corrections.values())

    @cached_property
    def clamps(self) -> tuple[float, ...]:
        """Clamps on |d| under which row sums are needed, ascending."""
        rules = (rule for c in self.corrections.values() for rule in c.all_rules)
        own = {rule.clamp for rule in rules if rule.clamp is not None and rule.aggregation.per_row}
        return tuple(sorted(own | set(self.extra_clamps)))

    @cached_property
    def fits_loops(self) -> bool:
        """Whether whole rows and intervals of d say it all: no segment, no probability difference of a token."""
        by_row = all(rule.aggregation.per_row for rules in self.filters for rule in rules)
        return by_row and not self.segment_corrections and all(map(_is_one_interval, self.counters))

    @cached_property
    def counted_intervals(self) -> NDArray[np.float64]:
        """[counters, 2] the interval of each counter, where the plan fits the loops."""
        intervals = [_intersection(rules) for rules in self.counters]
        return np.array(intervals, dtype=np.float64).reshape(-1, 2)

    @cached_property
    def segment_corrections(self) -> Mapping[str, Correction]:
        return {n: c for n, c in self.corrections.items() if c.applied_weight.level is Level.SEGMENT}

    @cached_property
    def grid(self) -> CellGrid:
        return CellGrid.with_cuts([*self.extra_cuts, *(cut for c in self.corrections.values() for cut in _cuts(c))])


def _intersection(rules: Sequence[Rule]) -> Interval:
    interval = EVERYTHING
    for rule in rules:
        interval = interval.intersect(token_interval(rule))
    return interval


def _is_one_interval(rules: Rules) -> bool:
    return all(map(is_interval, rules))


def _distinct(rule_sets: Iterable[Rules]) -> tuple[Rules, ...]:
    return tuple(dict.fromkeys(rules for rules in rule_sets if rules))


def _cuts(correction: Correction) -> Sequence[float]:
    kept = rejection_interval(correction)
    ends = [math.nextafter(kept.lower, -math.inf), kept.upper]
    weight = correction.applied_weight
    if weight.level is Level.TOKEN:
        ends += [piece.upper for piece in pieces(weight)]
    return ends
