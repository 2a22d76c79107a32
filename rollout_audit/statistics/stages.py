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

from rollout_audit.corrections.cuts import EVERYTHING, Interval, weight_interval
from rollout_audit.corrections.model import Bound, Correction, Denominator, Level, Weight
from rollout_audit.statistics.metrics import OVERFLOW, Absent, Figure, Metrics, Noted
from rollout_audit.statistics.native import log_sum
from rollout_audit.statistics.plan import rejection_interval, unordered_rules
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

__all__ = ["STAGES", "correction_stages"]

STAGES: Final = ("raw", "bounded", "normalised", "kept")
QUANTILES: Final = {"p01": 0.01, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99}
RAW_PIECES: Final = (Piece(math.inf, None),)
NO_WEIGHT: Final = Noted(0.0, "every weight is 0")
NONE_KEPT: Final = Absent("no token is kept")
NO_TOKEN: Final = Absent("no valid token")

Array = NDArray[np.float64]


def correction_stages(scope: Scope, name: str, correction: Correction) -> Mapping[str, Metrics]:
    """Metrics of one correction at each stage.

    `name` is the correction's name in the plan of the pass, under which its segments stand.
    """
    return _Stages(scope, name, correction).metrics()


@dataclass(frozen=True)
class _Units:
    """The weights of a correction before bounds: for moments, for quantiles, and one a sequence."""

    moments: Population
    quantiles: Population
    per_sequence: Population | None


@dataclass(frozen=True)
class _Stages:
    scope: Scope
    name: str
    correction: Correction

    def metrics(self) -> Mapping[str, Metrics]:
        if not self.scope.tokens:
            return {stage: Metrics({"weight_mean": NO_TOKEN, "ess": NO_TOKEN}) for stage in STAGES}
        bounded = self._weights(self.every, self.parts, 1.0)
        return {
            "raw": Metrics(self._raw()),
            "bounded": Metrics(bounded | self._bounding()),
            "normalised": Metrics(self._weights(self.every, self.parts, self.factor) | self._normalising()),
            "kept": Metrics(self._weights(self.kept, self.parts, self.factor) | self._rejection()),
        }

    @property
    def weight(self) -> Weight:
        return self.correction.applied_weight

    @property
    def level(self) -> Level:
        return self.weight.level

    @cached_property
    def parts(self) -> tuple[Piece, ...]:
        return pieces(self.weight)

    @cached_property
    def every(self) -> _Units:
        """All valid tokens."""
        if self.level is Level.TOKEN:
            return _Units(self.scope.token_cells(), self.scope.token_values(), None)
        log_ratio, counts = self._unit_log_ratio, self._unit_tokens
        return self._of_units(log_ratio, counts)

    @cached_property
    def kept(self) -> _Units:
        """What the rules and the veto leave."""
        if self.level is Level.TOKEN:
            inside = rejection_interval(self.correction)
            cells, values = (
                population.between(*inside)
                for population in (
                    self.scope.token_cells(self._filter),
                    self.scope.token_values(self._filter),
                )
            )
            return _Units(cells, values, None)
        return self._of_units(self._unit_log_ratio, self._unit_kept)

    def _of_units(self, log_ratio: Array, counts: Array) -> _Units:
        by_token = Population.of_values(log_ratio, counts.astype(np.int64))
        if self.level not in (Level.SEQUENCE, Level.GEOMETRIC):
            return _Units(by_token, by_token, None)
        return _Units(by_token, by_token, Population.of_values(log_ratio[counts > 0]))

    @cached_property
    def _filter(self) -> int | None:
        rules = unordered_rules(self.correction)
        return self.scope.plan.filters.index(rules) if rules else None

    @cached_property
    def _unit_log_ratio(self) -> Array:
        rows = self.scope.rows
        match self.level:
            case Level.SEQUENCE:
                return rows["sum_d"]
            case Level.GEOMETRIC:
                return rows["sum_d"] / rows["valid_tokens"]
            case Level.SEGMENT:
                return self.scope.segments[self.name]["log_ratio"]
            case _:
                return np.zeros(self.scope.sequences)

    @property
    def _unit_tokens(self) -> Array:
        return self._table["valid_tokens"]

    @property
    def _unit_kept(self) -> Array:
        return self._table["kept"] if self.level is Level.SEGMENT else self.row_kept

    @property
    def _table(self) -> Mapping[str, Array]:
        return self.scope.segments[self.name] if self.level is Level.SEGMENT else self.scope.rows

    @cached_property
    def row_kept(self) -> Array:
        """[rows] tokens of each row that are kept."""
        return kept_of_rows(self.scope, self.correction)

    @cached_property
    def factor(self) -> float:
        """What batch normalisation divides by, the scope taken as one batch."""
        if not self.weight.normalise:
            return 1.0
        units = self.every.per_sequence or self.every.moments
        mean = moments(units, self.parts).mean
        return mean if mean > 1e-8 else 1.0

    def _raw(self) -> dict[str, Figure]:
        figures = self._weights(self.every, RAW_PIECES, 1.0)
        figures["ess"] = _log_ess(*self._raw_logs())
        if self.every.per_sequence is not None:
            x = self.every.per_sequence.values
            figures["ess_seq"] = _log_ess(x, 2.0 * x, len(x))
        return figures

    def _raw_logs(self) -> tuple[Array, Array, int]:
        """log Σρ and log Σρ² by row (or of each unit), and the number of tokens: never overflows."""
        rows = self.scope.rows
        if self.level is Level.TOKEN:
            return rows["log_sum_ratio"], rows["log_sum_ratio_sq"], self.scope.tokens
        x, counts = self._unit_log_ratio, np.log(self._unit_tokens)
        return x + counts, 2.0 * x + counts, self.scope.tokens

    def _weights(self, units: _Units, parts: tuple[Piece, ...], factor: float) -> dict[str, Figure]:
        if not units.moments.size:
            names = ["weight_mean", "weight_std", "weight_min", "weight_max", "ess", "ess_seq"]
            return dict.fromkeys([*names, *(f"weight_{q}" for q in QUANTILES)], NONE_KEPT)
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

    def _bounding(self) -> dict[str, Figure]:
        tokens = self.every.moments
        inside = Interval(*EVERYTHING) if self.weight.bound is Bound.NONE else weight_interval(self.weight)
        n = self.scope.tokens
        above = tokens.between(math.nextafter(inside.upper, math.inf), math.inf).size if inside.upper < math.inf else 0
        below = (
            tokens.between(-math.inf, math.nextafter(inside.lower, -math.inf)).size if inside.lower > -math.inf else 0
        )
        return {
            "capped_fraction": above / n,
            "below_lower_fraction": below / n,
            "zeroed_fraction": moments(tokens, self.parts).zeros / n,
            "mass_lost": _mass_lost(tokens, self.parts),
        }

    def _normalising(self) -> dict[str, Figure]:
        return {"batch_norm_factor": self.factor} if self.weight.normalise else {}

    def _rejection(self) -> dict[str, Figure]:
        scope, kept = self.scope, self.row_kept
        total = float(kept.sum())
        touched = kept < scope.rows["valid_tokens"]
        return {
            "masked_fraction": 1.0 - total / scope.tokens,
            "seq_masked_fraction": float(np.count_nonzero(kept == 0)) / scope.sequences,
            "seq_touched_fraction": float(np.count_nonzero(touched)) / scope.sequences,
            "kept_reward_mean": _kept_mean(scope, kept, "reward", "needs rewards"),
            "kept_positive_fraction": _kept_positive(scope, kept),
            **self._gradient_scale(total),
        }

    def _gradient_scale(self, kept_tokens: float) -> dict[str, Figure]:
        if not kept_tokens:
            return {"gradient_scale_kept": NONE_KEPT, "gradient_scale_original": 0.0, "gradient_scale": 0.0}
        mean = moments(self.kept.moments, self.parts).mean / self.factor
        both = {
            "gradient_scale_kept": mean,
            "gradient_scale_original": mean * kept_tokens / self.scope.tokens,
        }
        own = "kept" if self.correction.denominator is Denominator.KEPT else "original"
        return {**both, "gradient_scale": both[f"gradient_scale_{own}"]}


def kept_of_rows(scope: Scope, correction: Correction) -> Array:
    """[rows] how many tokens of each row the rules and the veto leave."""
    rules = correction.all_rules
    if rules in scope.plan.counters:
        return scope.rows[f"kept_{scope.plan.counters.index(rules)}"]
    kept = scope.rows["valid_tokens"].copy()
    for rule in rules:
        kept[~scope.row_keeps(rule)] = 0.0
    return kept


def _ess(of: Moments) -> Figure:
    if of.zeros == of.size:
        return NO_WEIGHT
    return of.ess if math.isfinite(of.variance) else OVERFLOW


def _std(of: Moments) -> Figure:
    if of.size < 2:
        return Absent("n < 2")
    return of.std if math.isfinite(of.variance) else OVERFLOW


def _log_ess(log_sums: Array, log_square_sums: Array, size: int) -> Figure:
    return math.exp(min(2.0 * log_sum(log_sums) - log_sum(log_square_sums) - math.log(size), 0.0))


def _mass_lost(population: Population, parts: tuple[Piece, ...]) -> Figure:
    """Σ max(ρ − w, 0) / Σρ."""
    total = float(population.ratio.sum())
    return mass_lost(population, parts) / total if total > 0 else Absent("no mass: every ratio is 0")


def _kept_mean(scope: Scope, kept: Array, column: str, reason: str) -> Figure:
    if column not in scope.rows:
        return Absent(reason)
    values = scope.rows[column][kept > 0]
    recorded = values[~np.isnan(values)]
    return float(recorded.mean()) if len(recorded) else NONE_KEPT


def _kept_positive(scope: Scope, kept: Array) -> Figure:
    if "advantage" not in scope.rows:
        return Absent("needs advantages")
    values = scope.rows["advantage"][kept > 0]
    values = values[~np.isnan(values)]
    return float(np.count_nonzero(values > 0)) / len(values) if len(values) else NONE_KEPT
