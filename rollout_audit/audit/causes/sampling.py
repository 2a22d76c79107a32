"""Both sides speak of the same tokens but of another distribution: a temperature or a truncation on one side."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rollout_audit.audit.causes.exhibit import Exhibit
from rollout_audit.audit.causes.model import Hit
from rollout_audit.audit.causes.sampled import Array, Flags, log_odds
from rollout_audit.corrections.model import SAFETY_CLAMP

__all__ = ["temperature", "truncated_sampling"]

LEAST = 40
"""Tokens of a band or a fit"""
SURE = 4.0
"""Standard errors of a share from a half"""
FEW = 10
CONFIDENT = -0.7, -0.02
ONE_SIDED_CONFIDENT = 0.85
ONE_SIDED = 0.7
"""Even noise gives 0.5, a small bias 0.63 at most in what was recorded"""
OTHER_SIDE = 0.45
"""95th percentile of |d| of one sign over the other's. A truncation leaves noise, 0.39 at most; drift has 0.6"""
MASS_MISSING, SURE_OF_MASS = 0.97, 6.0
"""Sound recordings have a mean ratio of 0.992 to 1.003, at most 2.6 standard errors from 1"""
NEARLY_ALL = 0.95
"""What renormalising alone gives: the mass that a top-k keeps may differ from token to token, its sign does not"""
ALIKE, NEARLY_ALIKE = 0.5, 0.8
"""A factor on the ratio moves sure and unsure tokens alike; a temperature leaves the sure ones where they are"""
CORRELATED = 0.7
"""Less, and it is a line through one blob: tokens that all have one probability show no slope"""
EXPLAINED = 0.5
EXACT, LEAST_TURN = 0.9, 0.05
"""Share of the variance of the distance, and distance of the slope from 1, where a line says it all"""
OPPOSED, SURE_OF_SIGN = 0.6, 3.0
"""Share of unlikely tokens that lean against likely ones, standard errors from a half: a truncation has 0.1 to 0.5"""
UNLIKELY = -3.0
LEAST_SHIFT = 0.02
CERTAIN = -1e-6
"""A token that was all of the nucleus lost what the others had, whatever that was: it says nothing about its size"""


@dataclass(frozen=True)
class _Bands:
    """Tokens by the mean of the two log-probs, so that noise of either side does not pull them apart."""

    training: Array
    rollout: Array

    @cached_property
    def middle(self) -> Array:
        return (self.training + self.rollout) / 2.0

    @cached_property
    def d(self) -> Array:
        return self.training - self.rollout

    def between(self, low: float, high: float) -> Flags:
        return np.asarray((self.middle > low) & (self.middle <= high))

    def median(self, low: float, high: float, least: int = FEW) -> float | None:
        """Median d of a band; None where it has too few tokens."""
        found = self.d[self.between(low, high)]
        return float(np.median(found)) if len(found) >= least else None

    @cached_property
    def sure_against_unsure(self) -> float | None:
        """|median d| at probabilities around 0.95 over that around 0.6."""
        sure, unsure = self.median(-0.1, -0.02), self.median(-0.7, -0.3)
        return abs(sure) / max(abs(unsure), 1e-6) if sure is not None and unsure is not None else None

    @cached_property
    def log_odds(self) -> tuple[Array, Array]:
        """Of the rollout side and of the trainer, for tokens above 0.6 of which neither is certain."""
        chosen = (self.middle > np.log(0.6)) & (self.training < -1e-3) & (self.rollout < -1e-3)
        return log_odds(self.rollout[chosen]), log_odds(self.training[chosen])

    @cached_property
    def unlikely(self) -> float | None:
        """Median d of tokens below e^−3."""
        return self.median(-np.inf, UNLIKELY, 20)


def _bands(exhibit: Exhibit) -> _Bands:
    clean = exhibit.clean
    return _Bands(exhibit.sample.training[clean], exhibit.sample.rollout[clean])


def temperature(exhibit: Exhibit) -> Hit | None:
    """log-odds against log-odds of likely tokens is a straight line of slope 1/T, whatever the other tokens are."""
    bands = _bands(exhibit)
    found = _exact_line(bands) or _leaning_line(bands)
    if found is None:
        return _opposed(bands)
    slope, explained = found.slope, found.explained
    medians = {"of 0.5 to 0.98": bands.median(*CONFIDENT), "below e^−3": bands.unlikely}
    told = " and ".join(f"{m:+.3f} for tokens {which}" for which, m in medians.items() if m is not None)
    text = (
        f"the trainer's {found.of} are {slope:.2f} times the rollout side's, which explains {explained:.0%} of their "
        f"distance{f'; median d is {told}' if told else ''}: {_temperature_text(slope)}"
    )
    return Hit(text, min(explained, 0.95), {"temperature": _temperature(slope), "slope": slope, "explained": explained})


def _exact_line(bands: _Bands) -> _Line | None:
    """One that leaves hardly anything: of log-probs where all contexts have like distributions, or of log-odds."""
    log_probs = _line(bands.rollout, bands.training, "log-probs")
    if log_probs is not None and log_probs.is_exact:
        return log_probs
    line = _log_odds_line(bands)
    return line if line is not None and line.is_exact and _turns(bands, NEARLY_ALIKE) else None


def _leaning_line(bands: _Bands) -> _Line | None:
    """Of log-odds, where likely tokens lean one way as it says."""
    d, line = bands.d[bands.between(*CONFIDENT)], _log_odds_line(bands)
    if line is None or line.explained < EXPLAINED or len(d) < LEAST:
        return None
    leans = _is_one_sided(d, ONE_SIDED_CONFIDENT) and (line.slope - 1.0) * np.median(d) > 0
    return line if leans and _turns(bands, ALIKE) else None


def _opposed(bands: _Bands) -> Hit | None:
    """Nearly all likely tokens lean one way and unlikely ones the other, however bent the line: most were unsure."""
    likely, unlikely = bands.d[bands.between(*CONFIDENT)], bands.d[bands.between(-np.inf, UNLIKELY)]
    x, y = bands.log_odds
    if min(len(likely), len(x)) < LEAST or len(unlikely) < FEW or not _is_one_sided(likely, NEARLY_ALL):
        return None
    sign = float(np.sign(np.median(likely)))
    against, slope = float(np.mean(unlikely * sign < 0)), float(np.std(y) / max(float(np.std(x)), 1e-9))
    opposed = against >= OPPOSED and (2.0 * against - 1.0) * np.sqrt(len(unlikely)) >= SURE_OF_SIGN
    if not opposed or np.median(unlikely) * sign > -LEAST_SHIFT or (slope - 1.0) * sign < LEAST_TURN:
        return None
    text = (
        f"{np.mean(likely * sign > 0):.0%} of the tokens of 0.5 to 0.98 lean one way ({np.median(likely):+.3f}) and "
        f"{against:.0%} of those below e^−3 the other ({np.median(unlikely):+.3f}); the trainer's log-odds of tokens "
        f"above 0.6 spread {slope:.2f} times as far: {_temperature_text(slope)}"
    )
    return Hit(text, 0.8, {"temperature": _temperature(slope), "slope": slope, "against": against})


def _turns(bands: _Bands, alike: float) -> bool:
    """Sure tokens are moved less than unsure ones, and unlikely ones the other way, where there are enough."""
    ratio, unlikely, likely = bands.sure_against_unsure, bands.unlikely, bands.median(*CONFIDENT)
    if unlikely is not None and likely is not None and unlikely * likely > 0:
        return False
    return ratio is None or ratio < alike


def _temperature(slope: float) -> float:
    """The temperature of the side that has one; it is taken to be the sharper one, as samplers go."""
    return 1.0 / slope if slope > 1.0 else slope


def _temperature_text(slope: float) -> str:
    estimate = f"{_temperature(slope):.2f}"
    if slope > 1.0:
        return f"raw rollout log-probs, while the trainer divides by T ≈ {estimate}"
    other = f"or raw ones, while it divides by T ≈ {1.0 / slope:.2f}"
    return f"rollout log-probs at T ≈ {estimate}, while the trainer does not divide ({other})"


class _Line(NamedTuple):
    """Of the trainer's values against the rollout's."""

    slope: float
    explained: float
    """share of their squared distance"""
    turned: float
    """share of the variance of their distance, which a factor on the ratio does not explain"""
    of: str

    @property
    def is_exact(self) -> bool:
        return self.turned >= EXACT and abs(self.slope - 1.0) >= LEAST_TURN


def _log_odds_line(bands: _Bands) -> _Line | None:
    """Of likely tokens, for which it is straight whatever the other tokens are."""
    return _line(*bands.log_odds, "log-odds of tokens above 0.6")


def _line(x: Array, y: Array, of: str) -> _Line | None:
    """By orthogonal regression (equal errors on both sides)."""
    if len(x) < LEAST:
        return None
    (vx, c), (_, vy) = np.cov(x, y)
    if min(vx, vy) < 1e-9 or c < CORRELATED * np.sqrt(vx * vy):
        return None
    slope = float((vy - vx + np.sqrt((vy - vx) ** 2 + 4 * c * c)) / (2 * c))
    rest = float(np.mean((y - y.mean() - slope * (x - x.mean())) ** 2))
    distance, spread = float(np.mean((y - x) ** 2)), float(np.var(y - x))
    return _Line(slope, 1.0 - rest / max(distance, 1e-30), 1.0 - rest / max(spread, 1e-30), of)


def truncated_sampling(exhibit: Exhibit) -> Hit | None:
    """d is one-sided and bounded: the log of the mass that one side kept. Or the mean ratio is not 1."""
    bands = _bands(exhibit)
    if _opposed(bands) is not None:
        return None
    d = bands.d[(np.abs(bands.d) > 1e-4) & (bands.middle < -0.1)]
    if len(d) < LEAST or abs(np.median(d)) < LEAST_SHIFT / 2:
        return None
    one_side = float(max(np.mean(d < 0), np.mean(d > 0)))
    mean = _MeanRatio.of(bands.d)
    found = _renormalised(bands, d, one_side, mean)
    if found is not None or min(mean.value, 1.0 / mean.value) >= MASS_MISSING or abs(mean.z) < SURE_OF_MASS:
        return found
    low, high = np.quantile(d, [0.05, 0.95])
    within, beyond = (-low, high) if mean.value < 1.0 else (high, -low)
    if beyond > OTHER_SIDE * within or exhibit.kinds.flagged.any() or temperature(exhibit) is not None:
        return None
    text = (
        f"the mean ratio is {mean.value:.3f}, {abs(mean.z):.0f} standard errors {_what_it_should_be(mean.value)}, and "
        f"90% of the log-ratios of unsure tokens lie from {low:.2g} to {high:.2g}: {_renormalised_side(mean.value)}, "
        "more or less of it from token to token"
    )
    mass = min(mean.value, 1.0 / mean.value)
    return Hit(text, 0.7, {"kept_mass": mass, "one_sided": one_side, "mean_ratio": mean.value, "z": mean.z})


def _what_it_should_be(mean_ratio: float) -> str:
    if mean_ratio < 1.0:
        return "below the 1 of a sampler that can draw every token"
    return "above the 1 of log-probs that are those of the sampler"


def _renormalised_side(mean_ratio: float) -> str:
    if mean_ratio < 1.0:
        return f"the rollout side is renormalised over about {mean_ratio:.2f} of the trainer's mass"
    return f"the training side is renormalised over about {1.0 / mean_ratio:.2f} of the rollout's mass"


def _renormalised(bands: _Bands, d: Array, one_side: float, mean: _MeanRatio) -> Hit | None:
    """One sign nearly throughout, and one size or hardly an exception."""
    medians = _medians(bands)
    if not _is_one_sided(d, ONE_SIDED) or abs(np.median(d)) < LEAST_SHIFT or len({np.sign(m) for m in medians}) != 1:
        return None
    if not (_is_one_sided(d, NEARLY_ALL) or _of_one_size(medians)):
        return None
    mass, side = float(np.exp(-abs(np.median(d)))), "rollout" if np.median(d) < 0 else "training"
    text = (
        f"{one_side:.0%} of the log-ratios of unsure tokens have one sign, with a median of {np.median(d):+.3f} "
        f"that is bounded ({min(medians):+.3f} to {max(medians):+.3f} from sure to unlikely tokens); "
        f"mean ratio {mean.value:.3f}: the {side} side is renormalised over about {mass:.2f} of the mass"
    )
    return Hit(text, _confidence(one_side), {"kept_mass": mass, "one_sided": one_side, "mean_ratio": mean.value})


class _MeanRatio(NamedTuple):
    """Mean of π/μ over tokens that μ drew, which is the mass of π where μ can draw: 1 without a truncation."""

    value: float
    z: float
    """standard errors above 1"""

    @classmethod
    def of(cls, d: Array) -> _MeanRatio:
        ratio = np.exp(np.clip(d, -SAFETY_CLAMP, SAFETY_CLAMP))
        error = max(float(ratio.std()) / np.sqrt(len(ratio)), 1e-12)
        return cls(float(ratio.mean()), (float(ratio.mean()) - 1.0) / error)


def _medians(bands: _Bands) -> list[float]:
    """Median d from sure to unlikely tokens, where there are enough; of what neither side is certain of."""
    uncertain = np.maximum(bands.training, bands.rollout) < CERTAIN
    limited = _Bands(bands.training[uncertain], bands.rollout[uncertain])
    limits = ((-0.1, -0.02), (-0.7, -0.1), (-2.0, -0.7), (-np.inf, -2.0))
    return [m for limit in limits if (m := limited.median(*limit)) is not None]


def _of_one_size(medians: list[float]) -> bool:
    """Where tokens are unsure; a top-k takes less from sure contexts."""
    unsure = np.abs(medians[-2:])
    return bool(unsure.min() >= unsure.max() * ALIKE)


def _is_one_sided(d: Array, share: float) -> bool:
    """So large a share, and four standard errors from a half."""
    found = max(float(np.mean(d > 0)), float(np.mean(d < 0)))
    return found >= share and (2.0 * found - 1.0) * np.sqrt(len(d)) >= SURE


def _confidence(one_side: float) -> float:
    return float(np.clip(0.5 + 1.5 * (one_side - ONE_SIDED), 0.5, 0.95))
