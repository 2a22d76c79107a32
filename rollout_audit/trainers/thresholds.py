"""verl's threshold syntax: a number, a numeric string, a band "lo_hi", and comma lists of them.

A band is split on "_" before any number is parsed: float("0.5_2") is 0.52 in Python.
Source: reference/trainers.md 1A (rollout_corr_helper.py, 2026-08).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollout_audit.corrections.model import Aggregation, Rule, Statistic
from rollout_audit.errors import ConfigError, suggest
from rollout_audit.trainers.settings import positive

__all__ = ["REJECTION_OPTIONS", "Band", "band_without_one", "parse_band", "parse_rejection"]


@dataclass(frozen=True, slots=True)
class Band:
    """Bounds on a ratio as they were written; `lower` is None where a single number stood."""

    lower: float | None
    upper: float

    @property
    def lower_or_reciprocal(self) -> float:
        """The lower bound, 1 / upper where none was given."""
        return 1 / self.upper if self.lower is None else self.lower

    def __str__(self) -> str:
        return f"{self.upper:.12g}" if self.lower is None else f"[{self.lower:.12g}, {self.upper:.12g}]"


REJECTION_OPTIONS: dict[str, tuple[Statistic, Aggregation]] = {
    f"{aggregation.value}_{statistic.value}": (statistic, aggregation)
    for aggregation in (Aggregation.TOKEN, Aggregation.SEQ_SUM, Aggregation.SEQ_MEAN, Aggregation.SEQ_MAX)
    for statistic in (Statistic.K1, Statistic.K2, Statistic.K3)
    if (aggregation, statistic) != (Aggregation.SEQ_MAX, Statistic.K1)
}
"""verl's eleven names of `rollout_rs`"""


def parse_band(key: str, value: object) -> Band:
    """2.0, "2.0" or "0.5_2.0" (ConfigError: not positive, inverted, more than two bounds)."""
    if not (isinstance(value, str) and "_" in value):
        return Band(None, positive(key, value))
    parts = value.split("_")
    if len(parts) != 2:
        raise ConfigError(key, value, "expected one number or a band 'lower_upper'")
    lower, upper = (_bound(key, value, part) for part in parts)
    if lower > upper:
        raise ConfigError(key, value, f"lower bound {lower:.12g} above the upper bound {upper:.12g}")
    return Band(lower, upper)


def _bound(key: str, value: str, part: str) -> float:
    try:
        return positive(key, part.strip())
    except ConfigError:
        reason = f"bound {part.strip()!r} of the band is not a positive number"
        raise ConfigError(key, value, reason) from None


def parse_rejection(options: object, thresholds: object) -> tuple[Rule, ...]:
    """`rollout_rs` and `rollout_rs_threshold` as rules, joined by AND.

    Duplicate options are dropped first; then one threshold is shared by all, or there is one for each.
    Options null or empty: no rule. Bounds of k1 become logs; of k2 and k3 they stay as they are.
    """
    if options is None or options == "":
        return ()
    names = _names(options)
    texts = _threshold_list(thresholds)
    if len(texts) not in (1, len(names)):
        counts = f"{len(texts)} thresholds for {len(names)} options ({', '.join(names)})"
        raise ConfigError("rollout_rs_threshold", thresholds, f"{counts}; give one, or one for each")
    shared = texts * len(names) if len(texts) == 1 else texts
    return tuple(_rule(name, text) for name, text in zip(names, shared, strict=True))


def _names(options: object) -> list[str]:
    if not isinstance(options, str):
        raise ConfigError("rollout_rs", options, "expected option names separated by commas")
    names = list(dict.fromkeys(name.strip() for name in options.split(",")))
    for name in names:
        if name not in REJECTION_OPTIONS:
            near = suggest(name, REJECTION_OPTIONS) or f"; choose from {', '.join(REJECTION_OPTIONS)}"
            raise ConfigError("rollout_rs", options, f"no option {name!r}{near}")
    return names


def _threshold_list(thresholds: object) -> list[object]:
    if thresholds is None:
        raise ConfigError("rollout_rs_threshold", None, "rollout_rs needs a threshold")
    if isinstance(thresholds, str):
        return [text.strip() for text in thresholds.split(",")]
    return [thresholds]


def _rule(name: str, threshold: object) -> Rule:
    statistic, aggregation = REJECTION_OPTIONS[name]
    key = "rollout_rs_threshold"
    if statistic is Statistic.K1:
        lower, upper = _two_sided(key, name, parse_band(key, threshold))
        return Rule(statistic, aggregation, lower=math.log(lower), upper=math.log(upper))
    if isinstance(threshold, str) and "_" in threshold:
        raise ConfigError(key, threshold, f"{name} has an upper bound only; a band is for k1 options")
    return Rule(statistic, aggregation, upper=positive(key, threshold))


def _two_sided(key: str, name: str, band: Band) -> tuple[float, float]:
    if band.lower is None and band.upper < 1:
        lower, upper = 1 / band.upper, band.upper
        reason = f"{name} with a lone bound below 1 is the empty band [{lower:.12g}, {upper:.12g}]"
        raise ConfigError(key, band.upper, f"{reason}; write 'lower_upper'")
    return band.lower_or_reciprocal, band.upper


def band_without_one(key: str, lower: float | None, upper: float | None) -> list[str]:
    """A warning where a band of ratios leaves out 1, where the policies agree: else none."""
    if (lower or 0.0) <= 1 and (upper is None or upper >= 1):
        return []
    band = f"[{lower or 0.0:.12g}, {'∞' if upper is None else f'{upper:.12g}'}]"
    return [f"{key}: the band {band} leaves out 1 and zeroes the tokens where the policies agree"]
