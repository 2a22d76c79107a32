"""How many tokens and sequences lie within rounding of a threshold: the counts that another machine may see otherwise.

A log-ratio is an exact difference, but the cut it is held against comes from `exp` and may lie a few units in the last
place away elsewhere. A statistic of a row is a sum, which another order of addition moves by up to 1e-12 of its terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit.report import Edges
from rollout_audit.corrections.cuts import EVERYTHING, Interval, at_least, is_interval, token_interval, weight_interval
from rollout_audit.corrections.direct import statistic_bounds
from rollout_audit.corrections.model import SAFETY_CLAMP, Aggregation, Bound, Correction, Level, Rule, Statistic, Weight
from rollout_audit.statistics.native import BANDS, CATASTROPHIC

if TYPE_CHECKING:
    from rollout_audit.statistics.scope import Scope

__all__ = ["ROUNDING_OF_SUMS", "correction_edges", "edge_cuts", "native_edges", "slack_of_cut"]

ROUNDING_OF_SUMS = 1e-12
"""Of the sum of absolute terms: how far another chunk size or kernel may move a sum"""
ROUNDING_OF_CUTS = 8 * 2.0**-53
"""Of max(1, |cut|)"""
LONGEST_ROW_SUM = {
    **dict.fromkeys((Statistic.K1, Statistic.RATIO, Statistic.ABS_LOG_RATIO), "sum_abs_d"),
    Statistic.MULT_ERROR: "sum_exp_abs_d",
    Statistic.PROB_DIFF: "sum_abs_prob_diff",
}

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Near:
    tokens: int
    rows: int
    """rows that hold such a token, or that lie there themselves"""


def edge_cuts(corrections: Iterable[Correction]) -> tuple[float, ...]:
    """Cuts that set tokens within rounding of a threshold apart from the others, whatever the size of the dump."""
    ends = [*_native_ends(), *(end for c in corrections for end in _token_ends(c))]
    return tuple(side for end in ends for side in _around(end))


def native_edges(scope: Scope) -> Edges:
    """Of the native metrics that count, over one batch."""
    shares = {name: _tokens_at(scope, [at_least(1 - b), at_least(1 + b)]) for name, b in BANDS.items()}
    floor = at_least(CATASTROPHIC)
    return _some(
        shares
        | {
            "catastrophic_fraction": _tokens_at(scope, [floor]),
            "veto_fraction": _rows_at(scope.rows["min_d"], floor, slack_of_cut(floor)),
            "tokens_past_clamp": _tokens_at(scope, [-SAFETY_CLAMP, SAFETY_CLAMP]),
            "sequences_past_clamp": _rows_at(
                np.abs(scope.rows["sum_d"]), SAFETY_CLAMP, ROUNDING_OF_SUMS * scope.rows["sum_abs_d"]
            ),
        }
    )


def correction_edges(scope: Scope, correction: Correction) -> Edges:
    """Of one correction's metrics that count, over one batch."""
    bound, rejected = _at_bounds(scope, correction.applied_weight), _at_rules(scope, correction.all_rules)
    return _some(
        dict.fromkeys(("bounded.capped_fraction", "bounded.below_lower_fraction"), bound)
        | {"bounded.zeroed_fraction": bound if correction.applied_weight.bound is Bound.MASK else 0}
        | {"kept.masked_fraction": rejected.tokens}
        | dict.fromkeys(("kept.seq_masked_fraction", "kept.seq_touched_fraction"), rejected.rows)
    )


def _at_bounds(scope: Scope, weight: Weight) -> int:
    """Tokens whose own ratio, or whose sequence's, lies at a bound of the weight."""
    ends = [end for end in weight_interval(weight) if math.isfinite(end)]
    if weight.level is Level.TOKEN:
        return _tokens_at(scope, ends)
    if weight.level not in (Level.SEQUENCE, Level.GEOMETRIC):
        return 0
    rows = scope.rows
    size = rows["valid_tokens"] if weight.level is Level.GEOMETRIC else np.ones_like(rows["valid_tokens"])
    x, slack = rows["sum_d"] / size, ROUNDING_OF_SUMS * rows["sum_abs_d"] / size
    near = np.logical_or.reduce([np.abs(x - end) <= slack + slack_of_cut(end) for end in ends], axis=0)
    return int(rows["valid_tokens"][near].sum()) if ends else 0


def _at_rules(scope: Scope, rules: Sequence[Rule]) -> _Near:
    """Rules by token count tokens; rules by row count the row, and all of its tokens."""
    ends = [end for rule in rules if is_interval(rule) for end in token_interval(rule) if math.isfinite(end)]
    tokens = _tokens_at(scope, ends)
    near = np.zeros(scope.sequences, dtype=bool)
    for rule in rules:
        if rule.aggregation.per_row:
            near |= _row_near(scope, rule)
    return _Near(tokens + int(scope.rows["valid_tokens"][near].sum()), tokens + int(near.sum()))


def _row_near(scope: Scope, rule: Rule) -> NDArray[np.bool_]:
    bounds = [bound for bound in statistic_bounds(rule) if math.isfinite(bound)]
    values, slack = scope.row_statistic(rule), _slack_of_rows(scope.rows, rule)
    near: NDArray[np.bool_] = np.zeros(len(values), dtype=bool)
    for bound in bounds:
        near |= np.abs(values - bound) <= slack + slack_of_cut(bound)
    return near


def _slack_of_rows(rows: Mapping[str, Array], rule: Rule) -> Array:
    """How far rounding moves the statistic of each row; extremes of a row are no sums."""
    if rule.aggregation not in (Aggregation.SEQ_SUM, Aggregation.SEQ_MEAN):
        return np.zeros(len(rows["valid_tokens"]))
    terms = rows[LONGEST_ROW_SUM.get(rule.statistic, f"sum_{rule.statistic}")]
    size = rows["valid_tokens"] if rule.aggregation is Aggregation.SEQ_MEAN else 1.0
    return np.asarray(ROUNDING_OF_SUMS * terms / size)


def _tokens_at(scope: Scope, ends: Sequence[float]) -> int:
    cells = scope.token_cells()
    return sum(cells.between(math.nextafter(low, math.inf), high).size for low, high in map(_around, ends))


def _rows_at(values: Array, bound: float, slack: Array | float) -> int:
    return int(np.count_nonzero(np.abs(values - bound) <= slack))


def _around(end: float) -> tuple[float, float]:
    slack = slack_of_cut(end)
    return end - slack, end + slack


def slack_of_cut(end: float) -> float:
    """How far from a cut a log-ratio still lies within rounding of it."""
    return ROUNDING_OF_CUTS * max(1.0, abs(end))


def _native_ends() -> list[float]:
    bands = [at_least(1 + side * band) for band in BANDS.values() for side in (-1, 1)]
    return [*bands, at_least(CATASTROPHIC), -SAFETY_CLAMP, SAFETY_CLAMP]


def _token_ends(correction: Correction) -> list[float]:
    weight = correction.applied_weight
    intervals = [weight_interval(weight) if weight.level is Level.TOKEN else EVERYTHING]
    intervals += [token_interval(rule) for rule in correction.all_rules if is_interval(rule)]
    return [end for interval in intervals for end in Interval(*interval) if math.isfinite(end)]


def _some(counts: Mapping[str, int]) -> Edges:
    return {name: count for name, count in counts.items() if count}
