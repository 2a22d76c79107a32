"""What one correction does to each of some batches: its weights raw, bounded, normalised and kept.

Moments come from exact sums. Quantiles are exact while the token log-ratios are kept (see `TokenValues`), and for
sequence, geometric and segment weights always.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollout_audit.corrections.cuts import EVERYTHING, Interval, weight_interval
from rollout_audit.corrections.model import Correction, Denominator, Level, Rows, Rule, Weight
from rollout_audit.statistics.batches import Batches, Units
from rollout_audit.statistics.metrics import OVERFLOW, UNDERFLOW, Absent, Figure, Metrics, Noted
from rollout_audit.statistics.plan import partial_rules, rejection_interval, unordered_rules
from rollout_audit.statistics.populations import EqualWeights, Piece, PiecewiseWeights, Populations, pieces
from rollout_audit.statistics.scope import Scope

__all__ = [
    "METRICS_OF_STAGE",
    "NONE_KEPT",
    "NOTHING_TO_WEIGH",
    "NO_WEIGHT",
    "QUANTILES",
    "STAGES",
    "Evaluation",
    "correction_stages",
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
Flags = NDArray[np.bool_]
Stages = Mapping[str, Metrics]

NOTHING_TO_WEIGH: Final[Stages] = {stage: Metrics(dict.fromkeys(METRICS_OF_STAGE[stage], NO_TOKEN)) for stage in STAGES}
"""Of a batch without a valid token"""


def correction_stages(scope: Scope, name: str, correction: Correction) -> Stages:
    """Metrics of one correction at each stage, on one batch (see `Evaluation.stages`)."""
    return Evaluation(Batches((scope,))).stages(name, correction)[0] if scope.tokens else NOTHING_TO_WEIGH


@dataclass(frozen=True)
class Evaluation:
    """Corrections on the same batches, one after another: what they have in common is computed once."""

    batches: Batches
    _weights: dict[tuple[Weight, str | None], _EveryToken] = field(default_factory=dict, repr=False, compare=False)

    def stages(self, name: str, correction: Correction) -> list[Stages]:
        """Metrics of one correction at each stage, on each batch.

        `name` is the correction's name in the plan of the pass, under which its segments stand.
        """
        weight = correction.applied_weight
        segments = name if weight.level is Level.SEGMENT else None
        every = self._weights.setdefault((weight, segments), _EveryToken(self.batches, weight, segments))
        kept = _KeptTokens(self.batches, correction, every)
        by_stage = {**every.stages, "kept": kept.figures.by_batch()}
        return [dict(zip(by_stage, metrics, strict=True)) for metrics in zip(*by_stage.values(), strict=True)]


class _Instead(NamedTuple):
    """In those batches these figures have no value, or a remark."""

    names: Collection[str]
    where: Flags
    figure: Figure


@dataclass(frozen=True)
class _Table:
    """Figures of several batches. Of the exceptions that apply to one the last counts."""

    columns: dict[str, Array]
    """name → [batches]"""
    instead: tuple[_Instead, ...] = ()

    def __or__(self, other: _Table) -> _Table:
        return _Table(self.columns | other.columns, self.instead + other.instead)

    def by_batch(self) -> list[Metrics]:
        names, matrix = tuple(self.columns), np.stack([*self.columns.values()], axis=1)
        rows = [dict(zip(names, row, strict=True)) for row in matrix.tolist()]
        instead: list[dict[str, Figure]] = [{} for _ in rows]
        for batch, column in np.argwhere(~np.isfinite(matrix)).tolist():
            instead[batch][names[column]] = rows[batch][names[column]]
        for columns, where, figure in self.instead:
            for batch in np.flatnonzero(where).tolist() if where.any() else ():
                instead[batch].update(dict.fromkeys(columns, figure))
        return [Metrics.of_finite(row, exceptions) for row, exceptions in zip(rows, instead, strict=True)]


@dataclass(frozen=True)
class _Weights:
    """Some weights: for moments, for quantiles, and one a sequence where that means something."""

    moments: PiecewiseWeights | EqualWeights
    quantiles: PiecewiseWeights | EqualWeights
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
        return {
            "raw": self.batches.remember(("raw", self.level, self.segments), self._raw),
            "bounded": (self.unnormalised | self._bounding()).by_batch(),
            "normalised": (self.normalised | _Table({"batch_norm_factor": self.factor})).by_batch(),
        }

    @cached_property
    def unnormalised(self) -> _Table:
        return self.figures_of(self.bounded, np.ones(len(self.batches.scopes)))

    @cached_property
    def normalised(self) -> _Table:
        return self.figures_of(self.bounded, self.factor) if self.weight.normalise else self.unnormalised

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
        if self.level is Level.NONE:
            equal = EqualWeights(self.units.sums(tokens))
            return _Weights(equal, equal, None)
        by_token = PiecewiseWeights(self.units.population(self.level, tokens), parts)
        if self.level is Level.SEGMENT:
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

    def figures_of(self, weights: _Weights, factor: Array) -> _Table:
        ess = _ess("ess", weights.moments) | self._ess_seq(weights.per_sequence)
        return _none_kept(self._spread(weights, factor) | ess, weights.moments)

    def _spread(self, weights: _Weights, factor: Array) -> _Table:
        some, drawn = weights.moments, weights.quantiles
        quantiles = drawn.quantiles(list(QUANTILES.values()))
        with np.errstate(invalid="ignore"):
            columns = {
                "weight_mean": some.mean,
                "weight_std": np.sqrt(some.variance),
                "weight_min": drawn.least,
                "weight_max": drawn.greatest,
                **{f"weight_{q}": x for q, x in zip(QUANTILES, quantiles, strict=True)},
            }
        overflow = _Instead(("weight_std",), ~np.isfinite(some.variance), OVERFLOW)
        alone = _Instead(("weight_std",), some.size < 2, Absent("n < 2"))
        return _Table({name: column / factor for name, column in columns.items()}, (overflow, alone))

    def _ess_seq(self, of: PiecewiseWeights | None) -> _Table:
        if of is not None:
            return _ess("ess_seq", of)
        return _absent("ess_seq", self.units, Absent(f"no one weight a sequence at {self.level.value} level"))

    def _raw(self) -> list[Metrics]:
        weights = self.weights(RAW_PIECES)
        figures = self._spread(weights, np.ones(len(self.batches.scopes)))
        tokens = np.log(self.batches.tokens)
        if self.level is Level.TOKEN:
            logs = self.units["log_sum_ratio"], self.units["log_sum_ratio_sq"]
        else:
            x, counts = self.units.log_ratio(self.level), np.log(self.units["valid_tokens"])
            logs = x + counts, 2.0 * x + counts
        ess = _Table({"ess": self._log_ess(*logs, tokens)})
        if self.level not in (Level.SEQUENCE, Level.GEOMETRIC):
            return (figures | ess | self._ess_seq(None)).by_batch()
        x = self.units.log_ratio(self.level)
        ess_seq = _Table({"ess_seq": self._log_ess(x, 2.0 * x, np.log(self.batches.sequences))})
        return (figures | ess | ess_seq).by_batch()

    def _log_ess(self, log_sums: Array, log_square_sums: Array, log_size: Array) -> Array:
        """From logs of Σρ and Σρ² of each unit: never overflows."""
        first, second = self.units.log_sums(log_sums), self.units.log_sums(log_square_sums)
        return np.exp(np.minimum(2.0 * first - second - log_size, 0.0))

    def _bounding(self) -> _Table:
        inside, n, every = weight_interval(self.weight), self.batches.tokens, self.bounded.moments
        total = every.mass()
        with np.errstate(invalid="ignore", divide="ignore"):
            lost = every.mass_lost() / total
        below = Interval(-math.inf, math.nextafter(inside.lower, -math.inf))
        columns = {
            "capped_fraction": (n - every.count_within(Interval(-math.inf, inside.upper))) / n,
            "below_lower_fraction": every.count_within(below) / n,
            "zeroed_fraction": every.zeros / n,
            "mass_lost": lost,
        }
        no_mass = _Instead(("mass_lost",), total == 0, Absent("no mass: every ratio is 0"))
        return _Table(columns, (no_mass, _Instead(("mass_lost",), ~np.isfinite(total), OVERFLOW)))


def _of_tokens(cells: Populations, values: Populations, parts: tuple[Piece, ...], kept: Interval) -> _Weights:
    moments = PiecewiseWeights(cells, parts, kept)
    return _Weights(moments, moments if values is cells else PiecewiseWeights(values, parts, kept), None)


@dataclass(frozen=True)
class _KeptTokens:
    """What the rules and the veto leave of a weight's tokens."""

    batches: Batches
    correction: Correction
    every: _EveryToken

    @property
    def figures(self) -> _Table:
        weights = self.every.figures_of(self.kept, self.every.factor) if self.rules else self.every.normalised
        rejection = self.batches.remember(("rejection", self.rules), lambda: _rejection(self.batches, self.row_kept))
        return weights | rejection | self._gradient_scale()

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.correction.all_rules

    @cached_property
    def kept(self) -> _Weights:
        if not self.rules:
            return self.every.bounded
        parts = pieces(self.every.weight)
        if self.every.level is not Level.TOKEN:
            counts = self.row_kept if self.every.segments is None else self.every.units["kept"]
            return self.every.of_units(counts, parts)
        rules = unordered_rules(self.correction)
        keep = self.batches.plan.filters.index(rules) if rules else None
        cells, values = self.batches.token_cells(keep), self.batches.token_values(keep)
        return _of_tokens(cells, values, parts, rejection_interval(self.correction))

    @property
    def row_kept(self) -> Array:
        """[rows] tokens of each row that are kept."""
        return self.batches.remember(("kept", self.rules), lambda: kept_of_rows(self.batches, self.correction))

    def _gradient_scale(self) -> _Table:
        kept = self.batches.rows.sums(self.row_kept)
        none = kept == 0
        mean = self.kept.moments.mean / self.every.factor
        original = np.where(none, 0.0, mean * kept / self.batches.tokens)
        # the rules of what is streamed are all over every token, so what these leave is what is kept
        over_kept = self.correction.denominator is not Denominator.ORIGINAL
        columns = {
            "gradient_scale_kept": mean,
            "gradient_scale_original": original,
            "gradient_scale": np.where(none, 0.0, mean) if over_kept else original,
        }
        return _Table(columns, (_Instead(("gradient_scale_kept",), none, NONE_KEPT),))


def kept_of_rows(batches: Batches, correction: Correction) -> Array:
    """[rows] how many tokens of each row the rules and the veto leave."""
    partial = partial_rules(correction)
    kept = batches.rows[f"kept_{batches.plan.counters.index(partial)}" if partial else "valid_tokens"]
    for rule in correction.all_rules:
        if rule not in partial:
            kept = np.where(batches.row_keeps(rule), kept, 0.0)
    return kept


def _ess(name: str, of: PiecewiseWeights | EqualWeights) -> _Table:
    instead = (
        _Instead((name,), np.isnan(of.ess), UNDERFLOW),
        _Instead((name,), ~np.isfinite(of.variance), OVERFLOW),
        _Instead((name,), of.zeros == of.size, NO_WEIGHT),
    )
    return _Table({name: of.ess}, instead)


def _none_kept(figures: _Table, weights: PiecewiseWeights | EqualWeights) -> _Table:
    return figures | _Table({}, (_Instead(tuple(figures.columns), weights.size == 0, NONE_KEPT),))


def _rejection(batches: Batches, kept: Array) -> _Table:
    """What the loss of tokens means for sequences, rewards and signs; `kept` [rows] tokens are left of each."""
    rows, n = batches.rows, batches.sequences
    total, gone, touched = rows.sums(np.stack([kept, kept == 0, kept < rows["valid_tokens"]]))
    columns = {
        "masked_fraction": (batches.tokens - total) / batches.tokens,
        "seq_masked_fraction": gone / n,
        "seq_touched_fraction": touched / n,
    }
    return _Table(columns) | _kept_reward(rows, kept) | _kept_positive(rows, kept)


def _kept_reward(rows: Units, kept: Array) -> _Table:
    name = "kept_reward_mean"
    needed = Absent("needs rewards")
    if "reward" not in rows:
        return _absent(name, rows, needed)
    reward = rows["reward"]
    mean, none = _mean(rows, reward, (kept > 0) & ~np.isnan(reward))
    infinite = _Instead((name,), ~np.isfinite(mean), Absent("a reward is infinite"))
    instead = (infinite, _Instead((name,), none, NONE_KEPT), _Instead((name,), _unrecorded(rows, reward), needed))
    return _Table({name: mean}, instead)


def _kept_positive(rows: Units, kept: Array) -> _Table:
    name = "kept_positive_fraction"
    needed = Absent("needs advantages")
    if "advantage" not in rows:
        return _absent(name, rows, needed)
    advantage = rows["advantage"]
    share, none = _mean(rows, advantage > 0, (kept > 0) & ~np.isnan(advantage))
    return _Table(
        {name: share}, (_Instead((name,), none, NONE_KEPT), _Instead((name,), _unrecorded(rows, advantage), needed))
    )


def _unrecorded(rows: Units, column: Array) -> Flags:
    """[batches] whether no row has a value, as where the files of one step lack the column."""
    return np.asarray(rows.sums(~np.isnan(column)[None])[0] == 0)


def _absent(name: str, rows: Units, why: Absent) -> _Table:
    size = len(rows.parts)
    return _Table({name: np.zeros(size)}, (_Instead((name,), np.ones(size, dtype=bool), why),))


def _mean(rows: Units, values: NDArray[Any], chosen: Flags) -> tuple[Array, Flags]:
    """[batches] mean over the chosen rows, and where there is none."""
    total, count = rows.sums(np.stack([np.where(chosen, values, 0.0), chosen]))
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / count, count == 0
