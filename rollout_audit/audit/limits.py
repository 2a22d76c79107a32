"""What a correction may cost, how far it is from doing nothing, and whether it corrects at all: as data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from rollout_audit.audit import health
from rollout_audit.corrections.model import Level
from rollout_audit.errors import UsageError

__all__ = ["CORRECTING", "DISTANCE", "LIMITS", "WEIGHT_MEAN", "Limit", "Limits", "distance"]

Number = float | int | None


@dataclass(frozen=True, slots=True)
class Limit:
    """One figure of a correction and how far it may go."""

    key: str
    option: str
    comparison: Literal["≥", "≤"]
    default: float
    reason: str

    def keeps(self, value: float, bound: float) -> bool:
        return value >= bound if self.comparison == "≥" else value <= bound


def _warning_of(metric: str) -> float:
    """Where health starts to warn of a metric."""
    return next(rule.limit[0] for rule in health.limits(metric) if rule.severity == "warn")


LIMITS: tuple[Limit, ...] = (
    Limit("ess", "--min-ess", "≥", _warning_of("ess"),
          "of the weights that are applied to the kept tokens; below it health warns of uneven weights"),
    Limit("masked_fraction", "--max-masked", "≤", _warning_of("masked_fraction"),
          "more is a smaller batch, and a choice among responses; above it health warns"),
    Limit("mass_lost", "--max-mass-lost", "≤", 0.02,
          "what bounding cuts off the weights is the bias that it brings"),
    Limit("bounded_fraction", "--max-bounded", "≤", _warning_of("capped_fraction"),
          "of the weights that a bound replaced, above or below: many of them are no weights; above it health warns"),
    Limit("kept_kl_k3", "--max-kl", "≤", _warning_of("kl_k3"),
          "of the kept tokens, where no token or sequence weight corrects them; above it health warns"),
)  # fmt: skip

CORRECTING = frozenset({Level.TOKEN.value, Level.SEQUENCE.value})
"""Levels whose weight stands for the ratio itself; without one, what is kept must agree by itself"""

WEIGHT_MEAN: tuple[float, ...] = next(rule.limit for rule in health.limits("weight_mean"))
"""Outside it health objects whatever the ess: clamped weights of long responses are all alike and all near 0"""

DISTANCE: Mapping[str, float] = MappingProxyType(
    {"masked_fraction": 0.0, "bounded_fraction": 0.0, "mass_lost": 0.0, "ess": 1.0}
)
"""figure → its value where nothing is done; the distance is the sum of what each is away from it"""


@dataclass(frozen=True)
class Limits:
    """The limits that somebody stated.

    Raises:
        UsageError: a limit outside [0, 1], or one on k3 below 0.
    """

    min_ess: float = LIMITS[0].default
    max_masked: float = LIMITS[1].default
    max_mass_lost: float = LIMITS[2].default
    max_bounded: float = LIMITS[3].default
    max_kl: float = LIMITS[4].default

    def __post_init__(self) -> None:
        for limit, value in self.pairs():
            most = math.inf if limit.key == "kept_kl_k3" else 1.0
            if not 0.0 <= value <= most or math.isinf(value):
                allowed = "a number from 0 up" if math.isinf(most) else "a share between 0 and 1"
                raise UsageError(f"{limit.option} {value:g}: expected {allowed}, for example {limit.default:g}")

    def pairs(self) -> tuple[tuple[Limit, float], ...]:
        values = (self.min_ess, self.max_masked, self.max_mass_lost, self.max_bounded, self.max_kl)
        return tuple(zip(LIMITS, values, strict=True))

    def for_steps(self, pooled: Number, steps: Iterable[Number]) -> Limits:
        """With the limit on k3 lowered by as much as the worst step's k3 is above the pooled one.

        Rejection that leaves so much pooled is expected to bring the worst step within the stated limit.
        """
        worst = max((k3 for k3 in steps if k3 is not None), default=None)
        if not pooled or worst is None or worst <= max(pooled, self.max_kl):
            return self
        return replace(self, max_kl=self.max_kl * pooled / worst)

    def broken(self, figures: Mapping[str, Number], level: str) -> dict[str, float | None]:
        """key → value of each limit that is not kept; None where the figure has no value."""
        asked = [(limit, bound) for limit, bound in self.pairs() if not _spared(limit, level)]
        values = [(limit, bound, figures.get(limit.key)) for limit, bound in asked]
        return {limit.key: v for limit, bound, v in values if v is None or not limit.keeps(v, bound)}


def distance(figures: Mapping[str, Number]) -> float | None:
    """Share masked + share of weights replaced by bounds + weight mass lost + (1 − ess); None where one is missing."""
    values = {key: figures.get(key) for key in DISTANCE}
    known = {key: value for key, value in values.items() if value is not None}
    return sum(abs(value - DISTANCE[key]) for key, value in known.items()) if len(known) == len(DISTANCE) else None


def _spared(limit: Limit, level: str) -> bool:
    return limit.key == "kept_kl_k3" and level in CORRECTING
