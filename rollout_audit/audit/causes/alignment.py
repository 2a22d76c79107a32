"""Columns that do not speak of the same tokens: a shift, rows in another order."""

from __future__ import annotations

import numpy as np

from rollout_audit.audit.causes.exhibit import Exhibit
from rollout_audit.audit.causes.kinds import FITS, GAIN, LEAST_TOKENS, SURE
from rollout_audit.audit.causes.model import Hit
from rollout_audit.audit.causes.sampled import LAGS, MISFIT, Array, fisher_z

__all__ = ["misordered_rows", "shift_by_one"]

ZERO = LAGS.index(0)
LEAST_ROWS = 2


def shift_by_one(exhibit: Exhibit) -> Hit | None:
    """The correlation of π with μ peaks at another lag, over all pairs or in single rows."""
    rows, kinds = exhibit.sample, exhibit.kinds
    shifted = kinds.shifted
    pooled = rows.pooled_correlations
    lag = int(np.argmax(pooled)) if rows.rows else ZERO
    if not _pooled_shift(pooled, rows.pairs.sum(axis=1)) and shifted.sum() < LEAST_ROWS:
        return None
    if shifted.any():
        lag = int(np.bincount(kinds.best_lag[shifted]).argmax())
        moments = rows.lag_moments[:, shifted]
        at, own = (float(np.median(rows.row_correlations[i, shifted])) for i in (lag, ZERO))
        share, pairs = float(shifted.mean()), float(moments[lag, :, 0].sum())
    else:
        at, own, share, pairs = float(pooled[lag]), float(pooled[ZERO]), 1.0, float(rows.pairs[lag].sum())
    text = (
        f"log π correlates with log μ by {at:.2f} at lag {LAGS[lag]:+d} and by {own:.2f} at lag 0 "
        f"(lags −3 to 3, {share:.0%} of the rows, {pairs:,.0f} pairs)"
    )
    figures = {"lag": LAGS[lag], "correlation": at, "correlation_at_0": own, "rows_share": share}
    return Hit(text, _sure(at - own), figures)


def _pooled_shift(pooled: Array, pairs: Array) -> bool:
    lag = int(np.argmax(pooled)) if len(pooled) else ZERO
    if lag == ZERO or pooled[lag] < FITS or pooled[ZERO] >= MISFIT:
        return False
    return bool(pooled[lag] - pooled[ZERO] >= GAIN and fisher_z(pooled[lag], pairs[lag]) >= SURE)


def misordered_rows(exhibit: Exhibit) -> Hit | None:
    """Rows that fit the rollout log-probs of another row of their step better than their own."""
    kinds, rows = exhibit.kinds, exhibit.sample
    found = np.flatnonzero(kinds.exchanged)
    if not len(found):
        return _unmatched(exhibit)
    partners = kinds.partners
    first = int(found[0])
    at, own = float(np.median(partners.fit[found])), float(np.median(partners.own[found]))
    text = (
        f"{len(found):,} of {rows.rows:,} rows fit the rollout log-probs of another row of their step "
        f"({at:.2f} against {own:.2f} for their own); {exhibit.place(first)} fits row "
        f"{rows.number[partners.partner[first]]}"
    )
    return Hit(text, _sure(at - own), {"rows": len(found), "correlation": at, "correlation_with_own": own})


def _unmatched(exhibit: Exhibit) -> Hit | None:
    """Rows that fit neither themselves nor another one, with the log-probs of an ordinary row on both sides."""
    rows, kinds = exhibit.sample, exhibit.kinds
    long = (rows.lengths >= 2 * LEAST_TOKENS) & ~kinds.flagged
    misfit = long & (np.abs(kinds.own_fit) < MISFIT / 2) & (_root_gap(exhibit) > 0.15)
    if misfit.sum() < max(4, 0.2 * long.sum()):
        return None
    text = (
        f"{int(misfit.sum()):,} of {int(long.sum()):,} rows correlate by less than {MISFIT / 2:g} at every lag from "
        "−3 to 3 although both sides hold ordinary log-probs; no partner is in the rows looked at"
    )
    return Hit(text, 0.4, {"rows": int(misfit.sum()), "correlation_with_own": float(np.median(kinds.own_fit[misfit]))})


def _root_gap(exhibit: Exhibit) -> Array:
    """[rows] mean |√π − √μ|: some 0.3 between strangers, below 0.1 between engines."""
    x, y = exhibit.sample.roots
    return np.asarray(exhibit.sample.sums(np.abs(x - y)) / np.maximum(exhibit.sample.lengths, 1))


def _sure(gain: float) -> float:
    return float(np.clip(0.5 + gain / 2.0, 0.5, 0.99))
