"""Thousands of thresholds from one pass.

Bounds on weights that grow along a grid are read off prefix sums over the population; rules whose kept sets grow with
their threshold (|k1| ≤ log T, k2 ≤ T, k3 ≤ T, the veto) are read off the rows sorted by their statistic. Each point
equals `correction_stages` of the same correction, up to rounding; token thresholds must be cuts of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rollout_audit.corrections.cuts import at_most, has_interval, token_interval, weight_interval
from rollout_audit.corrections.direct import bounded_weight
from rollout_audit.corrections.model import SAFETY_CLAMP, Aggregation, Bound, Correction, Level, Rule, Statistic, Weight
from rollout_audit.statistics.population import Population
from rollout_audit.statistics.scope import Scope

__all__ = [
    "COLUMNS",
    "RowWeights",
    "Sweep",
    "joint",
    "kept_divergence",
    "mean_reward",
    "nested_rule",
    "rows_kept",
    "sweep_joint",
    "sweep_rules",
    "sweep_weights",
    "unweighted",
    "weights_of_rows",
]

Array = NDArray[np.float64]

ROUNDING = 2.0**-50
"""Share of a mean square that is lost to rounding when the square of the mean is taken from it"""
BOUNDING = ("capped_fraction", "below_lower_fraction", "zeroed_fraction", "mass_lost")
"""What bounds do to all valid tokens, before any rejection"""
COLUMNS = (
    *("ess", "ess_seq", "weight_mean", "weight_std", "weight_max"),
    *BOUNDING,
    *("masked_fraction", "seq_masked_fraction", "seq_touched_fraction", "kept_reward_mean"),
    *("kept_length_mean", "kept_kl_k3"),
    *("gradient_scale_kept", "gradient_scale_original"),
)


@dataclass(frozen=True)
class Sweep:
    """Corrections and their figures, point by point; NaN where a figure has no value."""

    corrections: tuple[Correction, ...]
    figures: dict[str, Array]
    """name of COLUMNS → [points]"""

    @classmethod
    def of(cls, corrections: Sequence[Correction], **figures: Array | float) -> Sweep:
        columns = np.full((len(COLUMNS), len(corrections)), np.nan)
        for name, values in figures.items():
            columns[COLUMNS.index(name)] = values
        return cls(tuple(corrections), dict(zip(COLUMNS, columns, strict=True)))

    @classmethod
    def joined(cls, parts: Sequence[Sweep]) -> Sweep:
        return cls(
            tuple(c for part in parts for c in part.corrections),
            {name: np.concatenate([part.figures[name] for part in parts]) for name in COLUMNS},
        )


def nested_rule(
    statistic: Statistic, aggregation: Aggregation, threshold: float, clamp: float | None = SAFETY_CLAMP
) -> Rule:
    """The rule of a family that grows with its threshold; for k1 the band [1/threshold, threshold] of the ratio."""
    if statistic is Statistic.K1:
        return Rule(statistic, aggregation, -math.log(threshold), math.log(threshold), clamp)
    return Rule(statistic, aggregation, None, threshold, clamp)


def sweep_weights(scope: Scope, weights: Sequence[Weight]) -> Sweep:
    """Weights of one level and clamp under many bounds, nothing rejected."""
    level, clamp = weights[0].level, weights[0].clamp
    population = _tokens_at(scope, level, clamp)
    bounded = population.bounded(weights)
    exact = bounded if level is not Level.TOKEN else _Prefix.of(scope.token_values(), clamp).bounded(weights)
    ess_seq = np.nan if level is Level.TOKEN else _sequences_at(scope, level, clamp).bounded(weights).ess
    return Sweep.of(
        [Correction(weight) for weight in weights],
        ess=bounded.ess,
        ess_seq=ess_seq,
        weight_mean=bounded.mean,
        weight_std=bounded.std,
        weight_max=exact.greatest,
        capped_fraction=bounded.above / population.size,
        below_lower_fraction=bounded.below / population.size,
        zeroed_fraction=bounded.zeros / population.size,
        mass_lost=bounded.mass_lost,
        masked_fraction=0.0,
        seq_masked_fraction=0.0,
        seq_touched_fraction=0.0,
        kept_reward_mean=mean_reward(scope),
        kept_length_mean=scope.tokens / scope.sequences,
        kept_kl_k3=kept_divergence(scope, ()),
        gradient_scale_kept=bounded.mean,
        gradient_scale_original=bounded.mean,
    )


def sweep_rules(scope: Scope, rules: Sequence[Rule]) -> Sweep:
    """One nested family of rules under many thresholds, weights all 1."""
    by_row = rules[0].aggregation.per_row
    kept = _sequence_rules(scope, rules) if by_row else _token_rules(scope, rules)
    return unweighted(scope, rules, kept.tokens, **kept.fractions(scope))


def unweighted(scope: Scope, rules: Sequence[Rule], tokens: Array, **figures: Array | float) -> Sweep:
    """Rules that leave so many tokens [points], weights all 1; the other figures as given."""
    some = np.where(tokens > 0, 1.0, np.nan)
    return Sweep.of(
        [Correction(rules=(rule,)) for rule in rules],
        **dict.fromkeys(("ess", "weight_mean", "weight_max", "gradient_scale_kept"), some),
        weight_std=np.where(tokens > 1, 0.0, np.nan),
        **dict.fromkeys(BOUNDING, 0.0),
        gradient_scale_original=tokens / scope.tokens,
        **figures,
    )


def sweep_joint(scope: Scope, weight: Weight, rules: Sequence[Rule]) -> Sweep:
    """A weight under one nested family of sequence rules; token weights truncated at one of the plan's caps."""
    of_row = scope.remember(("weights of rows", weight), lambda: weights_of_rows(scope, weight))
    kept = scope.remember(("kept", *rules), lambda: _sequence_rules(scope, rules))
    left = scope.remember(("left", *rules), lambda: kept.fractions(scope))
    with np.errstate(invalid="ignore", divide="ignore"):
        ess_seq = np.nan if of_row.own is None else kept.ess_of(of_row.own)
    greatest = kept.greatest(of_row.greatest)
    sums = kept.tokens, kept.along(of_row.excess), kept.along(of_row.square)
    return joint(scope, weight, rules, *sums, weight_max=greatest, ess_seq=ess_seq, **left)


def joint(
    scope: Scope,
    weight: Weight,
    rules: Sequence[Rule],
    tokens: Array,
    first: Array,
    second: Array,
    **figures: Array | float,
) -> Sweep:
    """A weight under rules that leave so many tokens, Σ(w − 1) and Σ(w − 1)² [points]; the other figures as given."""
    every = scope.remember(("sweep of one", weight), lambda: sweep_weights(scope, [weight])).figures
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = first / tokens
        mean, variance = 1.0 + excess, _variance(excess, second / tokens)
        return Sweep.of(
            [Correction(weight, (rule,)) for rule in rules],
            ess=mean**2 / (mean**2 + variance),
            weight_mean=mean,
            weight_std=np.sqrt(np.where(tokens > 1, variance, np.nan)),
            **{name: every[name][0] for name in BOUNDING},
            gradient_scale_kept=mean,
            gradient_scale_original=np.where(tokens > 0, mean * tokens, 0.0) / scope.tokens,
            **figures,
        )


def kept_divergence(scope: Scope, rules: Sequence[Rule]) -> float:
    """Mean k3 of the tokens that the rules keep; NaN where none is kept, or where rules of tokens and rows are joined.

    For a token rule it is exact while the log-ratios are kept one by one; off the cells within 1% of itself.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if all(rule.aggregation.per_row for rule in rules):
            keeps = rows_kept(scope, rules)
            return float(scope.rows["sum_k3"][keeps].sum() / scope.rows["valid_tokens"][keeps].sum())
        (rule, *others) = rules
        if others or not has_interval(rule):
            return math.nan
        return float(_divergence_within(scope, [rule])[0])


def rows_kept(scope: Scope, rules: Sequence[Rule]) -> NDArray[np.bool_]:
    """[rows] which rows all of some sequence rules leave."""
    keeps: NDArray[np.bool_] = np.ones(scope.sequences, dtype=bool)
    for rule in rules:
        keeps &= scope.row_keeps(rule)
    return keeps


@dataclass(frozen=True)
class RowWeights:
    """Weights w of the tokens of each row, all [rows]."""

    excess: Array
    """Σ(w − 1)"""
    square: Array
    """Σ(w − 1)²"""
    greatest: Array
    own: Array | None
    """the one weight of the row, where it has one"""


def weights_of_rows(scope: Scope, weight: Weight) -> RowWeights:
    if weight.level is Level.TOKEN:
        assert weight.upper in scope.plan.token_caps
        assert weight.clamp == SAFETY_CLAMP
        rows, cap = scope.rows, weight.upper
        greatest = np.exp(np.clip(rows["max_d"], -SAFETY_CLAMP, SAFETY_CLAMP))
        return RowWeights(rows[f"sum_excess@{cap:g}"], rows[f"sum_excess_sq@{cap:g}"], np.minimum(greatest, cap), None)
    w = bounded_weight(weight, torch.from_numpy(_row_log_ratio(scope, weight.level))).numpy()
    n = scope.rows["valid_tokens"]
    return RowWeights(n * (w - 1.0), n * (w - 1.0) ** 2, w, w)


@dataclass(frozen=True)
class _Bounded:
    mean: Array
    std: Array
    ess: Array
    greatest: Array
    above: Array
    below: Array
    zeros: Array
    mass_lost: Array


@dataclass(frozen=True)
class _Prefix:
    """Prefix sums over the atoms of a population, d clamped first: entry k is the sum over the first k atoms."""

    edges: Array
    values: Array
    counts: Array
    near: tuple[Array, Array]
    """Σ(ρ − 1) and Σ(ρ − 1)²: exact for weights close to 1"""
    far: tuple[Array, Array]
    """Σρ and Σρ²: exact for tiny weights"""
    mass: Array
    """Σρ, unclamped"""
    clamp: float | None

    @classmethod
    def of(cls, population: Population, clamp: float | None) -> _Prefix:
        values = population.values if clamp is None else np.clip(population.values, -clamp, clamp)
        inside = np.ones(len(values), dtype=bool) if clamp is None else _within(population.edges, clamp)
        with np.errstate(over="ignore", invalid="ignore"):
            near = _moments_of(population, population.excess, np.expm1(values), inside)
            far = _moments_of(population, population.ratio, np.exp(values), inside)
        return cls(
            edges=population.edges,
            values=values,
            counts=_running(population.counts.astype(np.float64)),
            near=near,
            far=far,
            mass=_running(population.ratio),
            clamp=clamp,
        )

    @property
    def size(self) -> float:
        return float(self.counts[-1])

    def bounded(self, weights: Sequence[Weight]) -> _Bounded:
        start, stop = self._span(weights)
        below, above = np.array([_constants(weight) for weight in weights]).T
        n_below, n_above = self.counts[start], self.size - self.counts[stop]
        below, above = np.where(n_below, below, 0.0), np.where(n_above, above, 0.0)
        excess, about_one = self._moments(self.near, 1.0, (start, stop), (n_below, below), (n_above, above))
        plain, about_zero = self._moments(self.far, 0.0, (start, stop), (n_below, below), (n_above, above))
        is_near = np.abs(excess) < 0.5
        mean, variance = np.where(is_near, 1.0 + excess, plain), np.where(is_near, about_one, about_zero)
        mask = np.array([weight.bound is Bound.MASK for weight in weights])
        zeros = np.where(mask, n_below + n_above, 0.0)
        lost = self._lost(weights, start, stop) + np.where(mask, self.mass[start], 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return _Bounded(
                mean=mean,
                std=np.sqrt(variance) if self.size > 1 else np.full(len(mean), np.nan),
                ess=np.where(zeros == self.size, 0.0, mean**2 / (mean**2 + variance)),
                greatest=self._greatest(start, stop, n_below, n_above, below, above),
                above=n_above,
                below=n_below,
                zeros=zeros,
                mass_lost=lost / self.mass[-1],
            )

    def _lost(self, weights: Sequence[Weight], start: NDArray[np.int64], stop: NDArray[np.int64]) -> Array:
        """[points] Σ max(ρ − w, 0) above the bounds, and of ratios that the clamp alone cuts off."""
        below, above = np.array([_constants(weight) for weight in weights]).T
        # where no clamped ratio lies inside the bounds every weight is one constant, which small ratios are below
        flat = (start == stop) & np.array([_is_flat(weight) for weight in weights])
        cap = np.where(flat & (stop > 0), below, above)
        past = np.where(flat, np.searchsorted(self.edges, [at_most(c) if c else -math.inf for c in cap], "right"), stop)
        lost: Array = np.maximum(self.mass[-1] - self.mass[past] - (self.size - self.counts[past]) * cap, 0.0)
        if self.clamp is None:
            return lost
        top = np.clip(np.searchsorted(self.edges, self.clamp, side="right"), start, stop)
        clamped = self.mass[stop] - self.mass[top] - (self.counts[stop] - self.counts[top]) * math.exp(self.clamp)
        lost += np.maximum(clamped, 0.0)
        return lost

    def _moments(
        self,
        sums: tuple[Array, Array],
        origin: float,
        span: tuple[NDArray[np.int64], NDArray[np.int64]],
        *constants: tuple[Array, Array],
    ) -> tuple[Array, Array]:
        """[points] mean of w − origin and variance of w: ratios in the span, and so many of each constant."""
        start, stop = span
        first, second = (column[stop] - column[start] for column in sums)
        for count, value in constants:
            first, second = first + count * (value - origin), second + count * (value - origin) ** 2
        mean = first / self.size
        with np.errstate(invalid="ignore"):
            return mean, _variance(mean, second / self.size)

    def _span(self, weights: Sequence[Weight]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The atoms that each weight's bounds leave alone."""
        lower, upper = np.array([weight_interval(weight) for weight in weights]).T
        start = np.searchsorted(self.edges, lower, side="left")
        return start, np.maximum(start, np.searchsorted(self.edges, upper, side="right"))

    def _greatest(
        self,
        start: NDArray[np.int64],
        stop: NDArray[np.int64],
        n_below: Array,
        n_above: Array,
        below: Array,
        above: Array,
    ) -> Array:
        inside = np.where(stop > start, np.exp(self.values[np.maximum(stop - 1, 0)]), -np.inf)
        ends = np.maximum(np.where(n_below, below, -np.inf), np.where(n_above, above, -np.inf))
        return np.maximum(inside, ends)


def _variance(mean: Array, square: Array) -> Array:
    """From the first two moments; 0 where no more than their rounding is left, NaN where they are past float64."""
    variance = square - mean**2
    return np.where(variance <= ROUNDING * square, 0.0, variance)


def _moments_of(population: Population, sums: Array, clamped: Array, inside: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Running sums over the atoms, and of squares; `sums` where the clamp leaves an atom alone."""
    own = sums / population.counts
    first = np.where(inside, sums, population.counts * clamped)
    second = np.where(inside, population.spread + sums * own, population.counts * clamped**2)
    return _running(first), _running(second)


@dataclass(frozen=True)
class _Kept:
    """What each threshold of a nested family keeps: rows in the order in which they come in."""

    tokens: Array
    """[points] kept tokens"""
    order: NDArray[np.int64]
    """[rows] those that come in first, first"""
    stops: NDArray[np.int64]
    """[points] how many of them are in"""
    touched: Array
    """[points] rows with a token that is not kept"""
    divergence: Array
    """[points] mean k3 of the kept tokens"""

    @property
    def rows(self) -> Array:
        return self.stops.astype(np.float64)

    def along(self, values: Array) -> Array:
        """[points] sum over the rows that are in."""
        return _running(values[self.order])[self.stops]

    def greatest(self, values: Array) -> Array:
        """[points] maximum over the rows that are in; NaN where none is."""
        most: Array = np.concatenate([[np.nan], np.maximum.accumulate(values[self.order])])[self.stops]
        return most

    def ess_of(self, values: Array) -> Array:
        """[points] (Σw)² / (n Σw²) over the rows that are in"""
        square: Array = self.along(values) ** 2 / (self.rows * self.along(values * values))
        return square

    def fractions(self, scope: Scope) -> dict[str, Array]:
        """What is left, whatever the weight."""
        reward = scope.rows.get("reward", np.full(scope.sequences, np.nan))
        recorded = ~np.isnan(reward)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = self.along(np.where(recorded, reward, 0.0)) / self.along(recorded.astype(np.float64))
            length = self.along(scope.rows["valid_tokens"]) / self.rows
        return {
            "masked_fraction": (scope.tokens - self.tokens) / scope.tokens,
            "seq_masked_fraction": (scope.sequences - self.rows) / scope.sequences,
            "seq_touched_fraction": self.touched / scope.sequences,
            "kept_reward_mean": mean,
            "kept_length_mean": length,
            "kept_kl_k3": self.divergence,
        }


def _sequence_rules(scope: Scope, rules: Sequence[Rule]) -> _Kept:
    statistic, order = _ordered(scope, rules[0])
    stops = np.searchsorted(statistic[order], [_threshold(rule) for rule in rules], side="right")
    tokens, divergence = (_running(scope.rows[name][order])[stops] for name in ("valid_tokens", "sum_k3"))
    with np.errstate(invalid="ignore", divide="ignore"):
        return _Kept(tokens, order, stops, scope.sequences - stops.astype(np.float64), divergence / tokens)


def _token_rules(scope: Scope, rules: Sequence[Rule]) -> _Kept:
    """Rows come in with their least token; they are touched until their greatest is in."""
    least = _extreme(scope, rules[0], Aggregation.SEQ_MIN)
    greatest = np.sort(_extreme(scope, rules[0], Aggregation.SEQ_MAX))
    order = np.argsort(least, kind="stable")
    thresholds = [_threshold(rule) for rule in rules]
    cells = scope.token_cells()
    tokens = np.array([cells.between(*token_interval(rule)).size for rule in rules], dtype=np.float64)
    stops = np.searchsorted(least[order], thresholds, side="right")
    whole = np.searchsorted(greatest, thresholds, side="right")
    touched = scope.sequences - whole.astype(np.float64)
    return _Kept(tokens, order, stops, touched, _divergence_within(scope, rules))


def _divergence_within(scope: Scope, rules: Sequence[Rule]) -> Array:
    """[rules] mean k3 of the tokens that each token rule keeps."""
    population = scope.token_values()
    intervals = [token_interval(rule) for rule in rules]
    start = np.searchsorted(population.edges, [i.lower for i in intervals], side="left")
    stop = np.maximum(start, np.searchsorted(population.edges, [i.upper for i in intervals], side="right"))
    counts = population.counts.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # Σ(ρ − 1) is exact, Σd is read off midpoints: small beside it for d above 1, not so below
        of_sums = population.excess - counts * population.values
        of_midpoints = counts * (np.expm1(population.values) - population.values)
        k3 = _running(np.where(population.values > 1.0, of_sums, of_midpoints))
        mean: Array = (k3[stop] - k3[start]) / (_running(counts)[stop] - _running(counts)[start])
    return mean


def _extreme(scope: Scope, rule: Rule, which: Aggregation) -> Array:
    """[rows] least or greatest value of the nested statistic, which for k1 is |d|."""
    statistic = Statistic.ABS_LOG_RATIO if rule.statistic is Statistic.K1 else rule.statistic
    return scope.row_statistic(Rule(statistic, which, None, 1.0, rule.clamp))


def _magnitude(rule: Rule, statistic: Array) -> Array:
    return np.abs(statistic) if rule.statistic is Statistic.K1 and rule.lower is not None else statistic


def _threshold(rule: Rule) -> float:
    assert rule.upper is not None
    return rule.upper


def _running(values: Array) -> Array:
    """0, then the sum of the first, of the first two, …"""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def _within(edges: Array, clamp: float) -> NDArray[np.bool_]:
    """Atoms that the clamp leaves alone; one that ends at −clamp lies below it."""
    return (edges > -clamp) & (edges <= clamp)


def _is_flat(weight: Weight) -> bool:
    """Whether its bounds leave no clamped ratio alone."""
    inside = weight_interval(weight)
    return weight.bound is not Bound.MASK and (inside.lower == math.inf or inside.upper == -math.inf)


def _constants(weight: Weight) -> tuple[float, float]:
    """What a weight is below and above its bounds."""
    if weight.bound is Bound.MASK:
        return 0.0, 0.0
    return weight.lower or 0.0, 0.0 if weight.upper is None else weight.upper


def _ordered(scope: Scope, rule: Rule) -> tuple[Array, NDArray[np.int64]]:
    """[rows] the nested statistic of a sequence rule, and the rows in its ascending order."""

    def compute() -> tuple[Array, NDArray[np.int64]]:
        statistic = _magnitude(rule, scope.row_statistic(rule))
        return statistic, np.argsort(statistic, kind="stable")

    return scope.remember(("ordered", rule.statistic, rule.aggregation, rule.clamp, rule.lower is None), compute)


def _tokens_at(scope: Scope, level: Level, clamp: float | None) -> _Prefix:
    def compute() -> _Prefix:
        if level is Level.TOKEN:
            return _Prefix.of(scope.token_cells(), clamp)
        counts = scope.rows["valid_tokens"].astype(np.int64)
        return _Prefix.of(Population.of_values(_row_log_ratio(scope, level), counts), clamp)

    return scope.remember(("prefix of tokens", level, clamp), compute)


def _sequences_at(scope: Scope, level: Level, clamp: float | None) -> _Prefix:
    """One weight a sequence."""

    def compute() -> _Prefix:
        return _Prefix.of(Population.of_values(_row_log_ratio(scope, level)), clamp)

    return scope.remember(("prefix of sequences", level, clamp), compute)


def _row_log_ratio(scope: Scope, level: Level) -> Array:
    total = scope.rows["sum_d"]
    return total if level is Level.SEQUENCE else total / scope.rows["valid_tokens"]


def mean_reward(scope: Scope, kept: NDArray[np.bool_] | slice = slice(None)) -> float:
    """Over the kept rows that have one; NaN where none has, or where one is infinite."""
    reward = scope.rows.get("reward", np.full(scope.sequences, np.nan))[kept]
    recorded = reward[~np.isnan(reward)]
    return float(recorded.mean()) if len(recorded) and np.isfinite(recorded).all() else math.nan
