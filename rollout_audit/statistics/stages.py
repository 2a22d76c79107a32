"""What one correction does to a batch: its weights raw, bounded, normalised and kept.

Moments come from exact sums. Quantiles are exact while the token log-ratios are kept (see `TokenValues`), and for
sequence, geometric and segment weights always.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rollout_audit.corrections.cuts import weight_interval
from rollout_audit.corrections.model import Correction, Denominator, Level, Rows, Weight
from rollout_audit.statistics.metrics import OVERFLOW, UNDERFLOW, Absent, Figure, Metrics, Noted
from rollout_audit.statistics.native import log_sum
from rollout_audit.statistics.plan import partial_rules, rejection_interval, unordered_rules
from rollout_audit.statistics.population import (
    Moments,
    Piece,
    Population,
    mass_lost,
    moments,
    pieces,
    piecewise,
    weight_quantiles,
)
from rollout_audit.statistics.scope import Scope

__all__ = ["METRICS_OF_STAGE", "STAGES", "correction_stages"]

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
Figures = dict[str, Figure]


def correction_stages(scope: Scope, name: str, correction: Correction) -> Mapping[str, Metrics]:
    """Metrics of one correction at each stage.

    `name` is the correction's name in the plan of the pass, under which its segments stand.
    """
    if not scope.tokens:
        return _nothing_to_weigh()
    weight = correction.applied_weight
    segments = name if weight.level is Level.SEGMENT else None
    every = scope.remember((weight, segments), lambda: _EveryToken(scope, weight, segments))
    kept = _KeptTokens(scope, correction, every)
    return {**every.stages, "kept": Metrics(kept.weights() | kept.rejection())}


def _nothing_to_weigh() -> Mapping[str, Metrics]:
    empty = Metrics(dict.fromkeys(WEIGHT_METRICS, NO_TOKEN))
    return {
        "raw": empty,
        "bounded": Metrics(dict.fromkeys((*WEIGHT_METRICS, *BOUND_METRICS), NO_TOKEN)),
        "normalised": Metrics(dict.fromkeys((*WEIGHT_METRICS, "batch_norm_factor"), NO_TOKEN)),
        "kept": Metrics(dict.fromkeys((*WEIGHT_METRICS, *REJECTION_METRICS), NO_TOKEN)),
    }


@dataclass(frozen=True)
class _Units:
    """Some weights before bounds: for moments, for quantiles, and one a sequence where that means something."""

    moments: Population
    quantiles: Population
    per_sequence: Population | None


@dataclass(frozen=True)
class _EveryToken:
    """A weight on all valid tokens: what presets with the same weight share."""

    scope: Scope
    weight: Weight
    segments: str | None
    """whose segments, at segment level"""

    @cached_property
    def stages(self) -> Mapping[str, Metrics]:
        bounded = self.weights_of(self.units, self.parts, 1.0)
        normalised = self.weights_of(self.units, self.parts, self.factor) if self.weight.normalise else bounded
        return {
            "raw": Metrics(self._raw()),
            "bounded": Metrics(bounded | self._bounding()),
            "normalised": Metrics(normalised | {"batch_norm_factor": self.factor}),
        }

    @property
    def level(self) -> Level:
        return self.weight.level

    @cached_property
    def parts(self) -> tuple[Piece, ...]:
        return pieces(self.weight)

    @cached_property
    def units(self) -> _Units:
        if self.level is Level.TOKEN:
            return _Units(self.scope.token_cells(), self.scope.token_values(), None)
        return self.units_with(self.table["valid_tokens"])

    def units_with(self, counts: Array) -> _Units:
        """Weights of rows or segments of which `counts` tokens each are left."""
        by_token = Population.of_values(self.log_ratio, counts.astype(np.int64))
        if self.level not in (Level.SEQUENCE, Level.GEOMETRIC):
            return _Units(by_token, by_token, None)
        return _Units(by_token, by_token, Population.of_values(self.log_ratio[counts > 0]))

    @property
    def table(self) -> Mapping[str, Array]:
        return self.scope.rows if self.segments is None else self.scope.segments[self.segments]

    @cached_property
    def log_ratio(self) -> Array:
        """[rows] or [segments]"""
        match self.level:
            case Level.SEQUENCE:
                return self.table["sum_d"]
            case Level.GEOMETRIC:
                return self.table["sum_d"] / self.table["valid_tokens"]
            case Level.SEGMENT:
                return self.table["log_ratio"]
            case _:
                return np.zeros(self.scope.sequences)

    @cached_property
    def factor(self) -> float:
        """What batch normalisation divides by, the scope taken as one batch."""
        if not self.weight.normalise:
            return 1.0
        mean = moments(self.units.per_sequence or self.units.moments, self.parts).mean
        if self.units.per_sequence is not None and self.weight.mean_over is Rows.ALL:
            mean *= self.scope.sequences / self.scope.all_rows
        return mean if mean > 1e-8 else 1.0

    def weights_of(self, units: _Units, parts: tuple[Piece, ...], factor: float) -> Figures:
        if not units.moments.size:
            return dict.fromkeys(WEIGHT_METRICS, NONE_KEPT)
        of_tokens = moments(units.moments, parts).scaled(factor)
        atoms = piecewise(units.quantiles, parts)
        quantiles = weight_quantiles(units.quantiles, parts, list(QUANTILES.values()))
        return {
            "weight_mean": of_tokens.mean,
            "weight_std": _std(of_tokens),
            "weight_min": float(atoms.min()) / factor,
            "weight_max": float(atoms.max()) / factor,
            **{f"weight_{q}": x / factor for q, x in zip(QUANTILES, quantiles, strict=True)},
            "ess": _ess(of_tokens),
            "ess_seq": self._ess_seq(units, parts),
        }

    def _ess_seq(self, units: _Units, parts: tuple[Piece, ...]) -> Figure:
        if units.per_sequence is None:
            return Absent(f"no one weight a sequence at {self.level.value} level")
        return _ess(moments(units.per_sequence, parts))

    def _raw(self) -> Figures:
        figures = self.weights_of(self.units, RAW_PIECES, 1.0)
        figures["ess"] = _log_ess(*self._raw_logs())
        if self.units.per_sequence is not None:
            x = self.units.per_sequence.values
            figures["ess_seq"] = _log_ess(x, 2.0 * x, len(x))
        return figures

    def _raw_logs(self) -> tuple[Array, Array, int]:
        """log Σρ and log Σρ² of each row or segment, and the number of tokens: never overflows."""
        if self.level is Level.TOKEN:
            return self.table["log_sum_ratio"], self.table["log_sum_ratio_sq"], self.scope.tokens
        x, counts = self.log_ratio, np.log(self.table["valid_tokens"])
        return x + counts, 2.0 * x + counts, self.scope.tokens

    def _bounding(self) -> Figures:
        tokens, n = self.units.moments, self.scope.tokens
        inside = weight_interval(self.weight)
        below = tokens.between(-math.inf, math.nextafter(inside.lower, -math.inf)) if inside.lower > -math.inf else None
        within = tokens.between(-math.inf, inside.upper)
        return {
            "capped_fraction": (n - within.size) / n,
            "below_lower_fraction": (below.size if below else 0) / n,
            "zeroed_fraction": moments(tokens, self.parts).zeros / n,
            "mass_lost": _mass_lost(tokens, self.parts),
        }


@dataclass(frozen=True)
class _KeptTokens:
    """What the rules and the veto leave of a weight's tokens."""

    scope: Scope
    correction: Correction
    every: _EveryToken

    def weights(self) -> Figures:
        return self.every.weights_of(self.units, self.every.parts, self.every.factor)

    @cached_property
    def units(self) -> _Units:
        if not self.correction.all_rules:
            return self.every.units
        if self.every.level is not Level.TOKEN:
            counts = self.row_kept if self.every.segments is None else self.every.table["kept"]
            return self.every.units_with(counts)
        inside = rejection_interval(self.correction)
        rules = unordered_rules(self.correction)
        keep = self.scope.plan.filters.index(rules) if rules else None
        cells, values = self.scope.token_cells(keep), self.scope.token_values(keep)
        return _Units(cells.between(*inside), values.between(*inside), None)

    @cached_property
    def row_kept(self) -> Array:
        """[rows] tokens of each row that are kept."""
        return kept_of_rows(self.scope, self.correction)

    def rejection(self) -> Figures:
        scope, kept = self.scope, self.row_kept
        total = float(kept.sum())
        touched = kept < scope.rows["valid_tokens"]
        return {
            "masked_fraction": 1.0 - total / scope.tokens,
            "seq_masked_fraction": float(np.count_nonzero(kept == 0)) / scope.sequences,
            "seq_touched_fraction": float(np.count_nonzero(touched)) / scope.sequences,
            "kept_reward_mean": _kept_reward(scope, kept),
            "kept_positive_fraction": _kept_positive(scope, kept),
            **self._gradient_scale(total),
        }

    def _gradient_scale(self, kept_tokens: float) -> Figures:
        if not kept_tokens:
            return {"gradient_scale_kept": NONE_KEPT, "gradient_scale_original": 0.0, "gradient_scale": 0.0}
        mean = moments(self.units.moments, self.every.parts).mean / self.every.factor
        both = {"gradient_scale_kept": mean, "gradient_scale_original": mean * kept_tokens / self.scope.tokens}
        own = "kept" if self.correction.denominator is Denominator.KEPT else "original"
        return {**both, "gradient_scale": both[f"gradient_scale_{own}"]}


def kept_of_rows(scope: Scope, correction: Correction) -> Array:
    """[rows] how many tokens of each row the rules and the veto leave."""
    partial = partial_rules(correction)
    counter = f"kept_{scope.plan.counters.index(partial)}" if partial else "valid_tokens"
    kept = scope.rows[counter].copy()
    for rule in correction.all_rules:
        if rule not in partial:
            kept[~scope.row_keeps(rule)] = 0.0
    return kept


def _ess(of: Moments) -> Figure:
    if of.zeros == of.size:
        return NO_WEIGHT
    if not math.isfinite(of.variance):
        return OVERFLOW
    return UNDERFLOW if math.isnan(of.ess) else of.ess


def _std(of: Moments) -> Figure:
    if of.size < 2:
        return Absent("n < 2")
    return of.std if math.isfinite(of.variance) else OVERFLOW


def _log_ess(log_sums: Array, log_square_sums: Array, size: int) -> Figure:
    return math.exp(min(2.0 * log_sum(log_sums) - log_sum(log_square_sums) - math.log(size), 0.0))


def _mass_lost(population: Population, parts: tuple[Piece, ...]) -> Figure:
    """Σ max(ρ − w, 0) / Σρ."""
    total = float(population.ratio.sum())
    if not math.isfinite(total):
        return OVERFLOW
    return mass_lost(population, parts) / total if total > 0 else Absent("no mass: every ratio is 0")


def _kept_reward(scope: Scope, kept: Array) -> Figure:
    if "reward" not in scope.rows:
        return Absent("needs rewards")
    values = scope.rows["reward"][kept > 0]
    recorded = values[~np.isnan(values)]
    if np.isinf(recorded).any():
        return Absent("a reward is infinite")
    return float(recorded.mean()) if len(recorded) else NONE_KEPT


def _kept_positive(scope: Scope, kept: Array) -> Figure:
    if "advantage" not in scope.rows:
        return Absent("needs advantages")
    values = scope.rows["advantage"][kept > 0]
    values = values[~np.isnan(values)]
    return float(np.count_nonzero(values > 0)) / len(values) if len(values) else NONE_KEPT
