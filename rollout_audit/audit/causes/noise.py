"""What is left once the plumbing is right: heavy tails, even noise, errors that cancel."""

from __future__ import annotations

import numpy as np

from rollout_audit.audit import health
from rollout_audit.audit.causes.exhibit import Exhibit, in_words, known
from rollout_audit.audit.causes.model import Hit
from rollout_audit.errors import amount

__all__ = ["TAIL_SHARE", "cancellation", "heavy_tail", "precision_noise"]

TAIL_SHARE = 0.5
"""Normal noise gives the worst hundredth of the tokens 0.09 of Σk3, recorded engines 0.18 to 0.23"""
LEAST_TOKENS = 200
CLEAN_SHARE = 0.5
"""Less, and rows with a fault of their own carry the mismatch, not a tail"""
CANCELS_FROM, CANCELS_BELOW = next(rule.limit for rule in health.limits("kl_k3") if rule.comparison == "cancels")


def heavy_tail(exhibit: Exhibit) -> Hit | None:
    """Few tokens carry the mismatch: routing that flips, or single tokens gone wrong."""
    tokens, share = int(exhibit.clean.sum()), exhibit.tail_share
    if tokens < LEAST_TOKENS or share < TAIL_SHARE or _clean_share(exhibit) < CLEAN_SHARE:
        return None
    largest = float(np.abs(exhibit.clean_log_ratio).max())
    text = (
        f"1% of the tokens carry {share:.0%} of k3 (even noise: 9% to 25%); median |d| is "
        f"{exhibit.sample.typical:.2g}, the largest {largest:.3g}"
    )
    figures = {"tail_share": share, "median_abs_d": exhibit.sample.typical, "max_abs_d": largest}
    return Hit(text, min(share * _clean_share(exhibit), 0.95), figures, harmless=not exhibit.past_limits)


def _clean_share(exhibit: Exhibit) -> float:
    """Of Σd², what is not in rows with a fault of their own."""
    squared = exhibit.sample.log_ratio**2
    return float(squared[exhibit.clean].sum()) / max(float(squared.sum()), 1e-300)


def precision_noise(exhibit: Exhibit) -> Hit | None:
    """Even noise within the limits: what two sound engines do."""
    d, share = exhibit.clean_log_ratio, exhibit.tail_share
    if not len(d) or not np.any(d) or exhibit.past_limits or exhibit.kinds.flagged.any() or share >= TAIL_SHARE:
        return None
    k3 = exhibit.pooled.get("kl_k3") or 0.0
    errors = sum(finding.count for finding in exhibit.findings if finding.severity == "error")
    left = f"beside {amount(errors, 'fault')} of the data, in the rows that are left: " if errors else ""
    text = (
        f"{left}even noise: mean |d| {np.abs(d).mean():.2g}, standard deviation {d.std():.2g}, k3 {k3:.2g}; 1% of the "
        f"tokens carry {share:.0%} of k3, {np.mean(d < 0):.0%} of the log-ratios are negative"
    )
    figures = {"mean_abs_d": float(np.abs(d).mean()), "spread": float(d.std()), "kl_k3": k3, "tail_share": share}
    return Hit(text, 0.9 if len(d) >= LEAST_TOKENS and not errors else 0.5, figures, by_elimination=True)


def cancellation(exhibit: Exhibit) -> Hit | None:
    """k1 near 0 beside a large k3."""
    k1, k3 = exhibit.pooled.get("kl_k1"), exhibit.pooled.get("kl_k3")
    if k1 is None or k3 is None or k3 <= CANCELS_FROM or abs(k1) >= CANCELS_BELOW * k3:
        return None
    text = f"k1 is {k1:+.2g} beside a k3 of {in_words(k3)}: errors of both signs cancel in k1 and in geometric ratios"
    return Hit(text, 0.5, known({"kl_k1": k1, "kl_k3": k3}))
