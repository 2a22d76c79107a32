"""What one correction does to each of some batches: its weights raw, bounded, normalised and kept.

Moments come from exact sums. Quantiles are exact while the token log-ratios are kept (see `TokenValues`), and for
sequence, geometric and segment weights always.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollout_audit.corrections.cuts import EVERYTHING, Interval, weight_interval
from rollout_audit.corrections.model import Correction, Denominator, Level, Rows, Weight
from rollout_audit.statistics.batches import Batches, Units
from rollout_audit.statistics.metrics import OVERFLOW, UNDERFLOW, Absent, Figure, Metrics, Noted
from rollout_audit.statistics.plan import partial_rules, rejection_interval, unordered_rules
from rollout_audit.statistics.populations import Piece, PiecewiseWeights, Populations, pieces
from rollout_audit.statistics.scope import Scope

__all__ = [
    "METRICS_OF_STAGE",
    "NONE_KEPT",
    "NOTHING_TO_WEIGH",
    "NO_WEIGHT",
    "QUANTILES",
    "STAGES",
    "correction_stages",
    "stages_of_batches",
]

STAGES: Final = ("raw", "bounded", "normalised", "kept")
QUANTILES: Final = {"p01": 0.01, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99}
RAW_PIECES: Final = (Piece(math.inf, None),)
NO_WEIGHT: Final = Noted(0.0, "every weight is 0")
NONE_KEPT: Final = Absent("no token is kept")
NO_TOKEN: Final = Absent("no valid token")

WEIGHT_METRICS: Final = (
    *("weight_mean", "weight_std", "weight_min", "weight_max"),
    *(f"weight_{q}" for q in QUANTILES),
    *("ess", "ess_seq"),
)
BOUND_METRICS: Final = ("capped_fraction", "below_lower_fraction", "zeroed_fraction", "mass_lost")
REJECTION_METRICS: Final = (
    *("masked_fraction", "seq_masked_fraction", "seq_touched_fraction"),
    *("kept_reward_mean", "kept_positive_fraction"),
    *("gradient_scale_kept", "gradient_scale_original", "gradient_scale"),
)

METRICS_OF_STAGE: Final = {
    "kept": (*WEIGHT_METRICS, *REJECTION_METRICS),
    "bounded": (*WEIGHT_METRICS, *BOUND_METRICS),
    "normalised": (*WEIGHT_METRICS, "batch_norm_factor"),
    "raw": WEIGHT_METRICS,
}
"""In the order in which a metric without a stage is looked for"""

Array = NDArray[np.float64]
Column = list[Figure]
"""one figure a batch"""
Columns = dict[str, Column]
Stages = Mapping[str, Metrics]

NOTHING_TO_WEIGH: Final[Stages] = {stage: Metrics(dict.fromkeys(METRICS_OF_STAGE[stage], NO_TOKEN)) for stage in STAGES}
"""Of a batch without a valid token"""


def correction_stages(scope: Scope, name: str, correction: Correction) -> Stages:
    """Metrics of one correction at each stage, on one batch (see `stages_of_batches`)."""
    if not scope.tokens:
        return NOTHING_TO_WEIGH
    alone = scope.remember("alone", lambda: Batches((scope,)))
    return stages_of_batches(alone, name, correction)[0]


def stages_of_batches(batches: Batches, name: str, correction: Correction) -> list[Stages]:
    """Metrics of one correction at each stage, on each batch.

    `name` is the correction's name in the plan of the pass, under which its segments stand.
    """
    weight = correction.applied_weight
    segments = name if weight.level is Level.SEGMENT else None
    every = batches.remember((weight, segments), lambda: _EveryToken(batches, weight, segments))
    kept = _KeptTokens(batches, correction, every)
    by_stage = {**every.stages, "kept": _by_batch(kept.weights() | kept.rejection())}
    return [dict(zip(by_stage, metrics, strict=True)) for metrics in zip(*by_stage.values(), strict=True)]


def _by_batch(columns: Columns) -> list[Metrics]:
    return [Metrics(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _column(values: Array, *instead: tuple[NDArray[np.bool_], Figure]) -> Column:
    """The values as figures; of the exceptions that apply to a batch the last counts."""
    figures: Column = values.tolist()
    for applies, figure in instead:
        for batch in np.flatnonzero(applies):
            figures[batch] = figure
    return figures


@dataclass(frozen=True)
class _Weights:
    """Some weights: for moments, for quantiles, and one a sequence where that means something."""

    moments: PiecewiseWeights
    quantiles: PiecewiseWeights
    per_sequence: PiecewiseWeights | None


@dataclass(frozen=True)
class _EveryToken:
    """A weight on all valid tokens: what presets with the same weight share."""

    batches: Batches
    weight: Weight
    segments: str | None
    """whose segments, at segment level"""

    @cached_property
    def stages(self) -> dict[str, list[Metrics]]:
        bounded = self.figures_of(self.bounded, np.ones(len(self.batches.scopes)))
        normalised = self.figures_of(self.bounded, self.factor) if self.weight.normalise else bounded
        return {
            "raw": _by_batch(self._raw()),
            "bounded": _by_batch(bounded | self._bounding()),
            "normalised": _by_batch(normalised | {"batch_norm_factor": _column(self.factor)}),
        }

    @property
    def level(self) -> Level:
        return self.weight.level

    @cached_property
    def bounded(self) -> _Weights:
        return self.weights(pieces(self.weight))

    def weights(self, parts: tuple[Piece, ...]) -> _Weights:
        if self.level is Level.TOKEN:
            return _of_tokens(self.batches.token_cells(), self.batches.token_values(), parts, EVERYTHING)
        return self.of_units(self.units["valid_tokens"], parts)

    def of_units(self, tokens: Array, parts: tuple[Piece, ...]) -> _Weights:
        """Weights of rows or segments of which so many tokens each are left."""
        by_token = PiecewiseWeights(self.units.population(self.level, tokens), parts)
        if self.level not in (Level.SEQUENCE, Level.GEOMETRIC):
            return _Weights(by_token, by_token, None)
        by_sequence = PiecewiseWeights(self.units.population(self.level, (tokens > 0).astype(np.float64)), parts)
        return _Weights(by_token, by_token, by_sequence)

    @cached_property
    def units(self) -> Units:
        return self.batches.rows if self.segments is None else self.batches.segments(self.segments)

    @cached_property
    def factor(self) -> Array:
        """[batches] what batch normalisation divides by"""
        if not self.weight.normalise:
            return np.ones(len(self.batches.scopes))
        mean = (self.bounded.per_sequence or self.bounded.moments).mean
        if self.bounded.per_sequence is not None and self.weight.mean_over is Rows.ALL:
            mean = mean * self.batches.sequences / self.batches.all_rows
        return np.where(mean > 1e-8, mean, 1.0)

    def figures_of(self, weights: _Weights, factor: Array) -> Columns:
        some, drawn = weights.moments, weights.quantiles
        none = (some.size == 0, NONE_KEPT)
        overflow = ~np.isfinite(some.variance)
        quantiles = drawn.quantiles(list(QUANTILES.values())) / factor
        with np.errstate(invalid="ignore"):
            std = np.sqrt(some.variance) / factor
        return {
            "weight_mean": _column(some.mean / factor, none),
            "weight_std": _column(std, (overflow, OVERFLOW), (some.size < 2, Absent("n < 2")), none),
            "weight_min": _column(drawn.least / factor, none),
            "weight_max": _column(drawn.greatest / factor, none),
            **{f"weight_{q}": _column(x, none) for q, x in zip(QUANTILES, quantiles, strict=True)},
            "ess": _ess(some, none),
            "ess_seq": self._ess_seq(weights, none),
        }

    def _ess_seq(self, weights: _Weights, none: tuple[NDArray[np.bool_], Figure]) -> Column:
        if weights.per_sequence is not None:
            return _ess(weights.per_sequence, none)
        missing = Absent(f"no one weight a sequence at {self.level.value} level")
        return _column(np.zeros(len(self.batches.scopes)), (~none[0], missing), none)

    def _raw(self) -> Columns:
        figures = self.figures_of(self.weights(RAW_PIECES), np.ones(len(self.batches.scopes)))
        tokens = np.log(self.batches.tokens)
        if self.level is Level.TOKEN:
            logs = self.units["log_sum_ratio"], self.units["log_sum_ratio_sq"]
        else:
            x, counts = self.units.log_ratio(self.level), np.log(self.units["valid_tokens"])
            logs = x + counts, 2.0 * x + counts
        figures["ess"] = _column(self._log_ess(*logs, tokens))
        if self.level in (Level.SEQUENCE, Level.GEOMETRIC):
            x = self.units.log_ratio(self.level)
            figures["ess_seq"] = _column(self._log_ess(x, 2.0 * x, np.log(self.batches.sequences)))
        return figures

    def _log_ess(self, log_sums: Array, log_square_sums: Array, log_size: Array) -> Array:
        """From logs of Σρ and Σρ² of each unit: never overflows."""
        first, second = self.units.log_sums(log_sums), self.units.log_sums(log_square_sums)
        return np.exp(np.minimum(2.0 * first - second - log_size, 0.0))

    def _bounding(self) -> Columns:
        inside, n, every = weight_interval(self.weight), self.batches.tokens, self.bounded.moments
        below = Interval(-math.inf, math.nextafter(inside.lower, -math.inf))
        return {
            "capped_fraction": _column((n - self._tokens_in(Interval(-math.inf, inside.upper))) / n),
            "below_lower_fraction": _column(self._tokens_in(below) / n),
            "zeroed_fraction": _column(every.zeros / n),
            "mass_lost": self._mass_lost(),
        }

    def _tokens_in(self, interval: Interval) -> Array:
        return PiecewiseWeights(self.bounded.moments.populations, RAW_PIECES, interval).size

    def _mass_lost(self) -> Column:
        """Σ max(ρ − w, 0) / Σρ."""
        every = self.bounded.moments
        total = every.mass()
        with np.errstate(invalid="ignore", divide="ignore"):
            lost = every.mass_lost() / total
        return _column(lost, (total == 0, Absent("no mass: every ratio is 0")), (~np.isfinite(total), OVERFLOW))


def _of_tokens(cells: Populations, values: Populations, parts: tuple[Piece, ...], kept: Interval) -> _Weights:
    moments = PiecewiseWeights(cells, parts, kept)
    return _Weights(moments, moments if values is cells else PiecewiseWeights(values, parts, kept), None)


@dataclass(frozen=True)
class _KeptTokens:
    """What the rules and the veto leave of a weight's tokens."""

    batches: Batches
    correction: Correction
    every: _EveryToken

    def weights(self) -> Columns:
        return self.every.figures_of(self.kept, self.every.factor)

    @cached_property
    def kept(self) -> _Weights:
        if not self.correction.all_rules:
            return self.every.bounded
        parts = pieces(self.every.weight)
        if self.every.level is not Level.TOKEN:
            counts = self.row_kept if self.every.segments is None else self.every.units["kept"]
            return self.every.of_units(counts, parts)
        rules = unordered_rules(self.correction)
        keep = self.batches.plan.filters.index(rules) if rules else None
        cells, values = self.batches.token_cells(keep), self.batches.token_values(keep)
        return _of_tokens(cells, values, parts, rejection_interval(self.correction))

    @cached_property
    def row_kept(self) -> Array:
        """[rows] tokens of each row that are kept."""
        return kept_of_rows(self.batches, self.correction)

    def rejection(self) -> Columns:
        rows, kept = self.batches.rows, self.row_kept
        total = rows.sums(kept)
        return {
            "masked_fraction": _column(1.0 - total / self.batches.tokens),
            "seq_masked_fraction": _column(rows.sums(kept == 0) / self.batches.sequences),
            "seq_touched_fraction": _column(rows.sums(kept < rows["valid_tokens"]) / self.batches.sequences),
            "kept_reward_mean": _kept_reward(rows, kept),
            "kept_positive_fraction": _kept_positive(rows, kept),
            **self._gradient_scale(total),
        }

    def _gradient_scale(self, kept_tokens: Array) -> Columns:
        none = kept_tokens == 0
        with np.errstate(invalid="ignore"):
            mean = self.kept.moments.mean / self.every.factor
            original = np.where(none, 0.0, mean * kept_tokens / self.batches.tokens)
        over_kept = _column(mean, (none, NONE_KEPT))
        over_all = _column(original)
        own = _column(mean, (none, 0.0)) if self.correction.denominator is Denominator.KEPT else over_all
        return {"gradient_scale_kept": over_kept, "gradient_scale_original": over_all, "gradient_scale": own}


def kept_of_rows(batches: Batches, correction: Correction) -> Array:
    """[rows] how many tokens of each row the rules and the veto leave."""
    partial = partial_rules(correction)
    kept = batches.rows[f"kept_{batches.plan.counters.index(partial)}" if partial else "valid_tokens"]
    for rule in correction.all_rules:
        if rule not in partial:
            kept = np.where(batches.row_keeps(rule), kept, 0.0)
    return kept


def _ess(of: PiecewiseWeights, none: tuple[NDArray[np.bool_], Figure]) -> Column:
    return _column(
        of.ess,
        (np.isnan(of.ess), UNDERFLOW),
        (~np.isfinite(of.variance), OVERFLOW),
        (of.zeros == of.size, NO_WEIGHT),
        none,
    )


def _kept_reward(rows: Units, kept: Array) -> Column:
    if "reward" not in rows:
        return _column(np.zeros(len(rows.parts)), (np.ones(len(rows.parts), dtype=bool), Absent("needs rewards")))
    reward = rows["reward"]
    recorded = (kept > 0) & ~np.isnan(reward)
    infinite = rows.sums(recorded & np.isinf(reward)) > 0
    mean, none = _mean(rows, reward, recorded)
    return _column(mean, (none, NONE_KEPT), (infinite, Absent("a reward is infinite")))


def _kept_positive(rows: Units, kept: Array) -> Column:
    if "advantage" not in rows:
        return _column(np.zeros(len(rows.parts)), (np.ones(len(rows.parts), dtype=bool), Absent("needs advantages")))
    advantage = rows["advantage"]
    share, none = _mean(rows, (advantage > 0).astype(np.float64), (kept > 0) & ~np.isnan(advantage))
    return _column(share, (none, NONE_KEPT))


def _mean(rows: Units, values: Array, chosen: NDArray[np.bool_]) -> tuple[Array, NDArray[Any]]:
    """[batches] mean over the chosen rows, and where there is none."""
    count = rows.sums(chosen)
    total = rows.sums(np.where(chosen, values, 0.0))
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / count, count == 0
