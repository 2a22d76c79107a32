"""The tool's own metrics of the mismatch, before any correction.

Token metrics are over the valid tokens of all sequences; sequence metrics over sequences with at least one.
k1, k2 and k3 are Schulman's estimators of KL(μ‖π) under samples of μ (joschu.net/blog/kl-approx.html); χ² follows
verl's `rollout_corr_helper`, from log space.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rollout_audit.corrections.cuts import at_least, ratio_interval
from rollout_audit.statistics.metrics import OVERFLOW, Absent, Figure, Metrics
from rollout_audit.statistics.population import Population, log_sum, weighted_quantiles
from rollout_audit.statistics.scope import Scope

__all__ = ["NATIVE_CUTS", "NATIVE_METRICS", "native_metrics"]

Array = NDArray[np.float64]

CATASTROPHIC = 1e-4
BANDS = {"within_1pct": 0.01, "within_5pct": 0.05, "within_10pct": 0.10}
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
NO_TOKEN = Absent("no valid token")
ROUNDING = 1e-13
LOG_MAX = math.log(np.finfo(np.float64).max)


def _band(share: float) -> tuple[float, float]:
    inside = ratio_interval(1.0 - share, 1.0 + share)
    return inside.lower, inside.upper


NATIVE_CUTS: tuple[float, ...] = (
    *(math.nextafter(_band(share)[0], -math.inf) for share in BANDS.values()),
    *(_band(share)[1] for share in BANDS.values()),
    math.nextafter(at_least(CATASTROPHIC), -math.inf),
)
"""Cuts that the grid must hold for these metrics to be exact"""


NATIVE_METRICS: tuple[str, ...] = (
    *("kl_k1", "kl_k2", "kl_k3", "mult_prob_error"),
    *("log_prob_diff_abs_mean", "log_prob_diff_abs_max", *(f"log_prob_diff_abs_{q}" for q in QUANTILES)),
    "log_prob_diff_std",
    *("prob_diff_abs_mean", "prob_diff_abs_max", "prob_pearson"),
    *("chi2_token", "log1p_chi2_token", "chi2_rel_token", "chi2_seq", "log1p_chi2_seq", "chi2_rel_seq"),
    *("tokens_past_clamp", "sequences_past_clamp"),
    *("training_ppl", "rollout_ppl", "ppl_ratio"),
    *("log_ppl_diff", "log_ppl_abs_diff", "log_ppl_diff_max", "log_ppl_diff_min"),
    *BANDS,
    *("catastrophic_fraction", "veto_fraction"),
)


def native_metrics(scope: Scope) -> Metrics:
    """Every native metric of one scope; all null with a reason where there is no valid token."""
    if not scope.tokens:
        return Metrics(dict.fromkeys(NATIVE_METRICS, NO_TOKEN))
    parts = (_divergence, _spread, _probability, _chi2, _perplexity, _shares)
    return Metrics({name: value for part in parts for name, value in part(scope).items()})


def _divergence(scope: Scope) -> dict[str, Figure]:
    rows, n = scope.rows, max(scope.tokens, 1)
    return {
        "kl_k1": (0.0 - _total(rows["sum_d"])) / n,
        "kl_k2": _total(rows["sum_k2"]) / n,
        "kl_k3": _total(rows["sum_k3"]) / n,
        "mult_prob_error": _total(rows["sum_exp_abs_d"]) / n,
    }


def _spread(scope: Scope) -> dict[str, Figure]:
    rows = scope.rows
    greatest = np.maximum(np.abs(rows["min_d"]), np.abs(rows["max_d"]))
    quantiles = weighted_quantiles(*_folded(scope.token_values()), list(QUANTILES.values()))
    return {
        "log_prob_diff_abs_mean": _total(rows["sum_abs_d"]) / max(scope.tokens, 1),
        "log_prob_diff_abs_max": float(greatest.max(initial=0.0)),
        **{f"log_prob_diff_abs_{q}": v for q, v in zip(QUANTILES, quantiles, strict=True)},
        "log_prob_diff_std": _deviation(scope),
    }


def _deviation(scope: Scope) -> Figure:
    """Of d, divided by n; what is left by rounding where all d are the same is 0."""
    if scope.tokens < 2:
        return Absent("n < 2")
    mean, square = _total(scope.rows["sum_d"]) / scope.tokens, 2.0 * _total(scope.rows["sum_k2"]) / scope.tokens
    variance = square - mean * mean
    return math.sqrt(variance) if variance > ROUNDING * square else 0.0


def _folded(population: Population) -> tuple[Array, NDArray[np.int64]]:
    """|d| ascending with its multiplicities."""
    magnitude = np.abs(population.values)
    order = np.argsort(magnitude, kind="stable")
    return magnitude[order], population.counts[order]


def _probability(scope: Scope) -> dict[str, Figure]:
    rows, n = scope.rows, max(scope.tokens, 1)
    greatest = np.maximum(np.abs(rows["max_prob_diff"]), np.abs(rows["min_prob_diff"]))
    return {
        "prob_diff_abs_mean": _total(rows["sum_abs_prob_diff"]) / n,
        "prob_diff_abs_max": float(greatest.max(initial=0.0)),
        "prob_pearson": _pearson(scope),
    }


def _pearson(scope: Scope) -> Figure:
    if scope.tokens < 2:
        return Absent("n < 2")
    rows, n = scope.rows, scope.tokens
    pi, mu = _total(rows["sum_pi_less_1"]) / n, _total(rows["sum_mu_less_1"]) / n
    pi_sq, mu_sq = _total(rows["sum_pi_less_1_sq"]) / n, _total(rows["sum_mu_less_1_sq"]) / n
    variances = pi_sq - pi * pi, mu_sq - mu * mu
    if variances[0] <= ROUNDING * pi_sq or variances[1] <= ROUNDING * mu_sq:
        return Absent("zero variance")
    covariance = _total(rows["sum_pi_mu_less_1"]) / n - pi * mu
    return max(-1.0, min(1.0, covariance / math.sqrt(variances[0] * variances[1])))


def _chi2(scope: Scope) -> dict[str, Figure]:
    rows = scope.rows
    token = _chi2_from_logs(rows["log_sum_ratio"], rows["log_sum_ratio_sq"], scope.tokens, "token")
    product = _chi2_from_logs(rows["sum_d"], 2.0 * rows["sum_d"], scope.sequences, "seq")
    return {
        **token,
        **product,
        "tokens_past_clamp": int(_total(rows["beyond_20"])),
        "sequences_past_clamp": int(np.count_nonzero(np.abs(rows["sum_d"]) > 20.0)),
    }


def _chi2_from_logs(log_ratio: Array, log_square: Array, size: int, unit: str) -> dict[str, Figure]:
    """χ² = mean ρ² − 1 and its part that does not come from a mean other than 1, from logs of the sums."""
    if not size:
        return dict.fromkeys((f"chi2_{unit}", f"log1p_chi2_{unit}", f"chi2_rel_{unit}"), NO_TOKEN)
    log_mean, log_mean_sq = (log_sum(x) - math.log(size) for x in (log_ratio, log_square))
    return {
        f"chi2_{unit}": _expm1(log_mean_sq),
        f"log1p_chi2_{unit}": log_mean_sq,
        f"chi2_rel_{unit}": _expm1(max(log_mean_sq - 2.0 * log_mean, 0.0)),
    }


def _expm1(x: float) -> Figure:
    return OVERFLOW if x >= LOG_MAX else math.expm1(x)


def _perplexity(scope: Scope) -> dict[str, Figure]:
    rows, n = scope.rows, scope.rows["valid_tokens"]
    training, rollout = -rows["sum_log_pi"] / n, -rows["sum_log_mu"] / n
    difference = training - rollout
    with np.errstate(over="ignore"):
        means = {
            "training_ppl": _mean(np.exp(training)),
            "rollout_ppl": _mean(np.exp(rollout)),
            "ppl_ratio": _mean(np.exp(difference)),
        }
    return {
        **means,
        "log_ppl_diff": _mean(difference),
        "log_ppl_abs_diff": _mean(np.abs(difference)),
        "log_ppl_diff_max": float(difference.max(initial=-math.inf)),
        "log_ppl_diff_min": float(difference.min(initial=math.inf)),
    }


def _shares(scope: Scope) -> dict[str, Figure]:
    cells, n = scope.token_cells(), max(scope.tokens, 1)
    floor = at_least(CATASTROPHIC)
    below = cells.between(-math.inf, math.nextafter(floor, -math.inf))
    return {
        **{name: cells.between(*_band(share)).size / n for name, share in BANDS.items()},
        "catastrophic_fraction": below.size / n,
        "veto_fraction": _mean((scope.rows["min_d"] < floor).astype(np.float64)),
    }


def _total(column: Array) -> float:
    return float(column.sum())


def _mean(column: Array) -> float:
    return float(column.mean()) if len(column) else math.nan
