"""The points of a sweep that stated criteria pick. Works on columns, of a pass or of sweep.parquet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit.limits import CORRECTING, DISTANCE, LIMITS, WEIGHT_MEAN, Limits
from rollout_audit.audit.report import BestPoint
from rollout_audit.corrections.model import Correction, Level

__all__ = ["CRITERIA", "NOTHING", "SETTINGS", "Columns", "Criterion", "SweepPoints", "applied_settings", "best_points"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Columns = Mapping[str, Sequence[object] | NDArray[np.float64]]

SETTINGS = ("level", "bound", "lower", "upper", "rule", "rule_lower", "rule_upper")
"""What of a point says how to set it, beside its family and formula"""
FIGURES = (
    *(
        "ess",
        "ess_seq",
        "weight_mean",
        "weight_std",
        "bounded_fraction",
        "mass_lost",
        "masked_fraction",
        "seq_masked_fraction",
    ),
    *("kept_kl_k3", "kept_reward_mean", "kept_length_mean", "gradient_scale_kept"),
)
NOTHING = 1e-12
"""Weights that close to 1 throughout change nothing"""
ROUNDED = 9
"""Decimals from which on figures are equal"""


@dataclass(frozen=True, slots=True)
class Criterion:
    """Of the points within the limits named, among those that have weights or rules, the first by these figures."""

    name: str
    sentence: str
    limits: tuple[str, ...]
    order: tuple[tuple[str, int], ...]
    """(figure, 1: the least first, −1: the largest first)"""
    weighted: bool | None = None
    """True: points with token or sequence weights only; False: points without any weight"""


ALL = tuple(limit.key for limit in LIMITS)
CRITERIA: tuple[Criterion, ...] = (
    Criterion("mildest", "nearest to doing nothing, within all limits", ALL, (("distance", 1),)),
    Criterion("largest_ess", "largest ess of weights, within all limits", ALL,
              (("ess", -1), ("distance", 1)), weighted=True),
    Criterion("largest_ess_seq", "largest ess_seq of sequence weights, within all limits but that on ess",
              ALL[1:], (("ess_seq", -1), ("distance", 1)), weighted=True),
    Criterion("least_mass_lost", "least mass lost of weights, within the limits on ess and masked tokens",
              ALL[:2], (("mass_lost", 1), ("distance", 1)), weighted=True),
    Criterion("least_masked", "least masked without weights, within the limit on k3 of what is kept",
              ALL[-1:], (("masked_fraction", 1), ("distance", 1)), weighted=False),
)  # fmt: skip


def applied_settings(correction: Correction) -> dict[str, str | float | None]:
    """The applied weight and the first rule as plain values, under the names of SETTINGS."""
    weight, rule = correction.applied_weight, correction.rules[0] if correction.rules else None
    return {
        "level": weight.level.value,
        "bound": weight.bound.value,
        "lower": _finite(weight.lower),
        "upper": _finite(weight.upper),
        "rule": None if rule is None else rule.name,
        "rule_lower": None if rule is None else _finite(rule.lower),
        "rule_upper": None if rule is None else _finite(rule.upper),
    }


def _finite(bound: float | None) -> float | None:
    """An infinite bound is none."""
    return bound if bound is not None and math.isfinite(bound) else None


@dataclass(frozen=True)
class SweepPoints:
    """The points of a sweep as columns."""

    columns: Columns

    def __len__(self) -> int:
        return len(self.columns["family"])

    def figure(self, name: str) -> Array:
        """[points] NaN where there is no value."""
        if name == "distance":
            return self.distance
        if name == "bounded_fraction":
            return self.figure("capped_fraction") + self.figure("below_lower_fraction")
        return np.array(self.columns[name], dtype=np.float64)

    @cached_property
    def distance(self) -> Array:
        """[points] how far each is from doing nothing."""
        total: Array = np.sum([np.abs(self.figure(key) - origin) for key, origin in DISTANCE.items()], axis=0)
        return total

    @cached_property
    def acts(self) -> Flags:
        """[points] whether anything is masked or weighted at all."""
        uneven = [np.abs(self.figure("weight_mean") - 1.0), self.figure("weight_std")]
        does: Flags = np.any([self.figure("masked_fraction") > 0.0, *(x > NOTHING for x in uneven)], axis=0)
        return does

    @cached_property
    def every_part_acts(self) -> Flags:
        """[points] whether a rule removes anything where there is one: else the point is its weight by itself."""
        without = np.array([rule is None for rule in self.columns["rule"]], dtype=bool)
        does: Flags = without | (self.figure("masked_fraction") > 0.0)
        return does

    @cached_property
    def balanced(self) -> Flags:
        """[points] whether the weights average near 1."""
        mean = self.figure("weight_mean")
        return (mean >= WEIGHT_MEAN[0]) & (mean <= WEIGHT_MEAN[1])

    @cached_property
    def weighted(self) -> Flags:
        """[points] whether token or sequence weights correct what is kept."""
        return np.isin(np.array(self.columns["level"]), sorted(CORRECTING))

    @cached_property
    def unweighted(self) -> Flags:
        """[points] whether there is no weight at all. A geometric one stands for no ratio: it is neither."""
        without: Flags = np.array(self.columns["level"]) == Level.NONE.value
        return without

    def within(self, limits: Limits, keys: Sequence[str] = ALL) -> Flags:
        """[points] whether the limits of that name hold; a figure without a value keeps none."""
        kept = np.ones(len(self), dtype=bool)
        for limit, bound in limits.pairs():
            if limit.key in keys:
                values = self.figure(limit.key)
                holds = values >= bound if limit.comparison == "≥" else values <= bound
                kept &= (holds | self.weighted) if limit.key == "kept_kl_k3" else holds
        return kept

    def first(self, chosen: Flags, order: Sequence[tuple[str, int]]) -> int | None:
        """Of the chosen points that have the first figure the first by them all; of equals the tighter bound."""
        at = np.flatnonzero(chosen & np.isfinite(self.figure(order[0][0])))
        if not len(at):
            return None
        tightness = np.nan_to_num(self.figure("upper")[at], nan=0.0)
        keys = [np.round(sign * self.figure(name)[at], ROUNDED) for name, sign in order]
        return int(at[np.lexsort([tightness, *reversed(keys)])[0]])

    def settings(self, i: int) -> dict[str, str | float | None]:
        return {name: _plain(self.columns[name][i]) for name in SETTINGS}

    def figures(self, i: int) -> dict[str, float | int | None]:
        values = {name: float(self.figure(name)[i]) for name in FIGURES}
        return {name: value if math.isfinite(value) else None for name, value in values.items()}


def best_points(columns: Columns, limits: Limits) -> list[BestPoint]:
    """One point for each criterion."""
    points = SweepPoints(columns)
    return [_best(points, criterion, limits) for criterion in CRITERIA]


def _best(points: SweepPoints, criterion: Criterion, limits: Limits) -> BestPoint:
    chosen = points.within(limits, criterion.limits)
    kind = {True: points.weighted, False: points.unweighted, None: points.weighted | points.unweighted}
    i = points.first(chosen & kind[criterion.weighted] & points.acts & points.balanced, criterion.order)
    return BestPoint(
        criterion=criterion.name,
        sentence=criterion.sentence,
        family=None if i is None else str(points.columns["family"][i]),
        formula=None if i is None else str(points.columns["formula"][i]),
        settings={} if i is None else points.settings(i),
        distance=None if i is None else float(points.distance[i]),
        figures={} if i is None else points.figures(i),
    )


def _plain(value: object) -> str | float | None:
    if value is None or isinstance(value, str):
        return value
    number = float(value)  # type: ignore[arg-type]
    return number if math.isfinite(number) else None
