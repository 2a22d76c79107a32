"""Columns that do not speak of the same tokens: a shift, rows in another order."""

from __future__ import annotations

import numpy as np

from rollout_audit.audit.causes.exhibit import Exhibit
from rollout_audit.audit.causes.kinds import LEAST_TOKENS, SURE, Lagged
from rollout_audit.audit.causes.model import Hit
from rollout_audit.audit.causes.sampled import LAGS, MISFIT, Array

__all__ = ["misordered_rows", "shift_by_one"]

LEAST_ROWS, SURE_ALONE = 2, 10.0
"""Rows, or the standard errors of a single one: 30 pairs that correlate by 0.95, 90 by 0.8"""


def shift_by_one(exhibit: Exhibit) -> Hit | None:
    """The correlation of π with μ peaks at another lag: in single rows, whole or from some place on, or over all."""
    kinds, shifted = exhibit.kinds, exhibit.kinds.shifted
    pooled = _pooled_shift(exhibit)
    if pooled is None and shifted.sum() < LEAST_ROWS and not kinds.lagged.is_shift(SURE_ALONE).any():
        return None
    rows = kinds.lagged.some(shifted) if pooled is None or shifted.any() else pooled
    share = float(shifted.mean()) if shifted.any() else 1.0
    lag, at, own = LAGS[int(np.bincount(rows.lag).argmax())], float(np.median(rows.fit)), float(np.median(rows.own))
    inside = rows.first > 0
    partly = inside.mean() > 0.5
    first = int(np.median(rows.first[inside])) if partly else 0
    place = f", from token {first} or so on" if partly else ""
    text = (
        f"log π correlates with log μ by {at:.2f} at lag {lag:+d} and by {own:.2f} at lag 0 (lags −3 to 3, "
        f"{share:.0%} of the rows{place}, {rows.pairs.sum():,.0f} pairs)"
    )
    figures: dict[str, float | int] = {"lag": lag, "correlation": at, "correlation_at_0": own, "rows_share": share}
    return Hit(text, _sure(at - own), {**figures, "from_token": first} if partly else figures)


def _pooled_shift(exhibit: Exhibit) -> Lagged | None:
    """Of all pairs of all rows, or of the rests of those that differ from some place on: rows may be too short."""
    rows, misfit = exhibit.sample, exhibit.kinds.misfit
    whole = Lagged.of(rows.lag_moments.sum(axis=1, keepdims=True), np.zeros(1, dtype=np.int64))
    if whole.is_shift(SURE).any():
        return whole
    if misfit.sum() < LEAST_ROWS:
        return None
    first = np.median(rows.rests.first[misfit], keepdims=True).astype(np.int64)
    rest = Lagged.of(rows.rest_lag_moments[:, misfit].sum(axis=1, keepdims=True), first)
    return rest if rest.is_shift(SURE).any() else None


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
