"""How the log weight of a whole response grows with its length, fitted to the rows.

The log weight of n tokens is S = Σd. Its mean is −κn with κ = mean −d (k1). Its spread has a part of tokens that err
independently and one of errors that a response shares: Var S = a·n + b·n², fitted to the squared residuals by least
squares with weights 1/n² (their own spread grows like n), neither part below 0.

ess_seq of responses of n tokens is E[e^S]² / E[e^2S]. Were tokens independent it would be the token ess to the power of
n exactly, whatever the distribution of d; the fitted Var S over n·Var d says by how much they are not:
−log ess_seq = log(1 + chi2_rel_token) · (a·n + b·n²) / Var d. For normal d this is Var S, the lognormal formula; unlike
it, rare tokens with ρ near 0 count for what they do to the weights and not for the square of their log.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_audit.corrections.model import SAFETY_CLAMP
from rollout_audit.statistics.population import log_sum

__all__ = ["DEVIATIONS", "LEAST_ESS_SEQ", "LEAST_SEQUENCES", "LengthBand", "LengthFit", "length_bands", "length_fit"]

Array = NDArray[np.float64]

LEAST_ESS_SEQ = 0.3
"""Below it health calls an effective sample size critical"""
LEAST_SEQUENCES = 8
"""Responses from which on their spread is fitted"""
DEVIATIONS = 2.0
"""Standard deviations beyond the mean at which the clamp counts as reached: one response in 40 is that far"""
MOST_BANDS = 5


@dataclass(frozen=True)
class LengthFit:
    """Mean and spread of the log weight by length; `independent` and `shared` are NaN where too few rows show them."""

    drift: float
    """mean d of a token: the mean log weight of n tokens is drift · n"""
    independent: float
    """a, per token"""
    shared: float
    """b, per token squared"""
    unevenness: float
    """−log ess_seq per unit of Var S; 1 for normal d, NaN where all d are equal"""

    def mean(self, n: float | Array) -> float | Array:
        return self.drift * n

    def variance(self, n: float | Array) -> float | Array:
        return self.independent * n + self.shared * n * n

    def ess_seq(self, n: Array) -> Array:
        """Expected ess_seq of responses of n tokens each, many of them."""
        scale = 1.0 if math.isnan(self.unevenness) else self.unevenness
        expected: Array = np.exp(-scale * np.asarray(self.variance(n)))
        return expected

    def typical_length_at(self, bound: float = SAFETY_CLAMP) -> float:
        """The length at which the mean log weight is `bound` away from 0; inf where it never is."""
        return bound / abs(self.drift) if self.drift else math.inf

    def length_at(self, bound: float = SAFETY_CLAMP) -> float:
        """The length at which |mean| + 2 standard deviations of the log weight are `bound`; NaN where not fitted."""
        k, a, b = abs(self.drift), DEVIATIONS**2 * self.independent, DEVIATIONS**2 * self.shared
        half = bound * k + a / 2.0
        root = math.sqrt(max(half * half - bound**2 * (k * k - b), 0.0))
        return bound**2 / (half + root) if half + root else math.inf if not math.isnan(half) else math.nan

    def length_at_ess(self, ess_seq: float) -> float:
        """The length at which the expected ess_seq has fallen to that; inf where it never does."""
        scale = 1.0 if math.isnan(self.unevenness) else self.unevenness
        a, b, wanted = scale * self.independent, scale * self.shared, -math.log(ess_seq)
        root = a + math.sqrt(a * a + 4.0 * b * wanted)
        return 2.0 * wanted / root if root else math.inf if not math.isnan(root) else math.nan


@dataclass(frozen=True)
class LengthBand:
    """Responses of similar length: their own ess_seq beside the one that the fit expects."""

    shortest: int
    longest: int
    sequences: int
    mean_length: float
    ess_seq: float
    expected: float


def length_fit(rows: Mapping[str, Array]) -> LengthFit:
    """Fit columns [rows] of `row_columns`; rows without a valid token must not be among them."""
    n, total = rows["valid_tokens"], rows["sum_d"]
    tokens = float(n.sum())
    drift = float(total.sum()) / tokens
    variance = max(2.0 * float(rows["sum_k2"].sum()) / tokens - drift**2, 0.0)
    least, greatest = float(rows["min_d"].min()), float(rows["max_d"].max())
    if least == greatest == 0.0 or (least == greatest and len(n) >= LEAST_SEQUENCES):
        return LengthFit(drift, 0.0, 0.0, math.nan)
    if len(n) < LEAST_SEQUENCES or variance == 0.0:
        return LengthFit(drift, math.nan, math.nan, math.nan)
    independent, shared = _growth(n, (total - drift * n) ** 2)
    return LengthFit(drift, independent, shared, _log1p_chi2_rel(rows, tokens) / variance)


def length_bands(rows: Mapping[str, Array], fit: LengthFit) -> Iterator[LengthBand]:
    """Up to five bands of about as many responses each, at least eight in a band; none where nothing was fitted."""
    n, total = rows["valid_tokens"], rows["sum_d"]
    if math.isnan(fit.independent):
        return
    order = np.argsort(n, kind="stable")
    for part in np.array_split(order, min(MOST_BANDS, len(n) // LEAST_SEQUENCES) or 1):
        lengths = n[part]
        w = np.exp(total[part] - total[part].max())
        yield LengthBand(
            shortest=int(lengths.min()),
            longest=int(lengths.max()),
            sequences=len(part),
            mean_length=float(lengths.mean()),
            ess_seq=float(w.sum() ** 2 / (len(w) * (w * w).sum())),
            expected=float(fit.ess_seq(lengths.mean())),
        )


def _growth(n: Array, squares: Array) -> tuple[float, float]:
    """a, b ≥ 0 with squares ≈ a·n + b·n², weighted by 1/n²: the regression of squares/n on n."""
    slope_by_token, spread_of_n = squares / n, float(((n - n.mean()) ** 2).sum())
    level = float(slope_by_token.mean())
    if not spread_of_n:
        return level, 0.0
    b = float(((n - n.mean()) * slope_by_token).sum()) / spread_of_n
    a = level - b * float(n.mean())
    if b < 0.0:
        return level, 0.0
    return (a, b) if a >= 0.0 else (0.0, float(squares.sum() / (n * n).sum()))


def _log1p_chi2_rel(rows: Mapping[str, Array], tokens: float) -> float:
    """log of mean(ρ²) / mean(ρ)² over all tokens, in log space."""
    return math.log(tokens) + log_sum(rows["log_sum_ratio_sq"]) - 2.0 * log_sum(rows["log_sum_ratio"])
