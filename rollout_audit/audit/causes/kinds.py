"""What is wrong with single rows: which of them are shifted, exchanged, broken, too wide, or hold another token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rollout_audit.audit.causes.sampled import (
    CERTAIN,
    LAGS,
    MISFIT,
    Array,
    Flags,
    Ints,
    Partners,
    SampledRows,
    correlation,
    fisher_z,
    log_odds,
)

__all__ = ["LEAST_TOKENS", "SINGLE_ROWS", "SURE", "UNLIKELY", "Lagged", "RowKinds"]

FITS = 0.8
SURE = 5.0
"""Standard errors of a correlation: about one chance in three million a row and lag"""
SURE_OF_PARTNER = 6.0
"""More, because hundreds of rows are tried"""
GAIN = 0.4
STRANGERS = 0.1
"""Mean |√π − √μ|: some 0.3 between strangers, below this between engines"""
BROKEN_SHARE = 0.3
"""Share of big log-ratios in a broken row"""
CROWDED_SHARE, CROWDED = 0.1, 10.0
"""As above, where it is so many times the share in the other rows"""
LEAST_TOKENS = 8
"""Shorter rows are not judged by themselves"""
DENSE, DENSE_OF = 3, 5
"""Big log-ratios among neighbours from which on a stretch is dense"""
OUTSIDE_CLEAN = 0.1
FILLED = 0.6
"""Share of log-ratios in a stretch that are half as large at least: two clusters of a heavy tail have a gap"""
LONG = 8
"""Big log-ratios of a stretch that is no chance, even in a single row"""
CONTRAST = 8.0
"""Factor of mean |d| inside a stretch over that outside: strangers have 20 and more, wide even noise 3 to 4"""
STANDS_OUT = 5.0
"""Factor of a broken row's mean |d| over that of the step's median row: rows that are merely unlikely have 3"""
UNLIKELY = -2.0
"""The sampled token was not the likeliest one: π below e^−2"""
AGREES = 0.5
"""Distance of a likely token's log-odds; 95% of those of a 4-bit engine lie below 0.3, a temperature moves all"""
LIKELY = -0.5
SINGLE_ROWS = 0.5
"""What a greater share of the rows has is no matter of single requests that went wrong"""
TOP1_FLOOR = -2.5
"""What the likeliest of all tokens hardly ever falls below"""
HARDLY = 0.1
"""Nats between the greatest and the least log-prob of a row whose side hardly moves"""


class Lagged(NamedTuple):
    """How the columns of rows fit each other at the lag at which they do best, [rows] each."""

    lag: Ints
    """index into LAGS"""
    fit: Array
    own: Array
    """at lag 0"""
    pairs: Array
    first: Ints
    """place in the row from which on they were compared"""

    @classmethod
    def of(cls, moments: Array, first: Ints) -> Lagged:
        """Of [lags, rows, 6] moments."""
        fits, columns = correlation(moments), np.arange(moments.shape[1])
        lag = np.asarray(fits.argmax(axis=0))
        return cls(lag, fits[lag, columns], fits[LAGS.index(0)], moments[lag, columns, 0], first)

    def some(self, rows: Flags) -> Lagged:
        """Of those rows."""
        return Lagged(self.lag[rows], self.fit[rows], self.own[rows], self.pairs[rows], self.first[rows])

    def is_shift(self, sure: float) -> Flags:
        """[rows] by that many standard errors."""
        better = (self.fit >= FITS) & (self.fit - self.own >= GAIN) & (self.own < MISFIT)
        return np.asarray(better & (self.lag != LAGS.index(0)) & (fisher_z(self.fit, self.pairs) >= sure))


@dataclass(frozen=True)
class RowKinds:
    """Every row gets at most one kind; the order of the properties is the order in which they are asked."""

    rows: SampledRows

    @property
    def own_fit(self) -> Array:
        """[rows] correlation of a row's two columns as they stand."""
        return self.rows.own_fit

    @cached_property
    def misfit(self) -> Flags:
        """Rows whose columns differ from some place on as those of strangers do."""
        rests = self.rows.rests
        return np.asarray((rests.fit < MISFIT) & (rests.gap > STRANGERS) & (rests.tokens >= LEAST_TOKENS))

    @cached_property
    def lagged(self) -> Lagged:
        """How each row fits itself at its best lag: the whole of it, or its rest where that alone is shifted."""
        whole = Lagged.of(self.rows.lag_moments, np.zeros(self.rows.rows, dtype=np.int64))
        by_rest = self.misfit & ~whole.is_shift(SURE)
        if not by_rest.any():
            return whole
        rest = Lagged.of(self.rows.rest_lag_moments, self.rows.rests.first)
        by_rest &= rest.is_shift(SURE)
        return Lagged(*(np.where(by_rest, of_rest, of_all) for of_rest, of_all in zip(rest, whole, strict=True)))

    @cached_property
    def shifted(self) -> Flags:
        return self.lagged.is_shift(SURE)

    @cached_property
    def partners(self) -> Partners:
        return self.rows.best_partners(self.misfit & ~self._taken(self.shifted, self.constant))

    @cached_property
    def exchanged(self) -> Flags:
        """Rows whose training log-probs fit the rollout's of another row, from some place on."""
        index, fit, own, tokens = self.partners
        better = (fit >= FITS) & (fit - own >= GAIN)
        return np.asarray((index >= 0) & better & (fisher_z(fit, tokens) >= SURE_OF_PARTNER))

    @cached_property
    def constant(self) -> Flags:
        """Rows in which one side repeats one value (other than certainty), or hardly moves, and the other does not."""
        rows = self.rows
        at_odds = (rows.sums(rows.big) >= 3) & (rows.share(rows.big) >= 0.05)
        sides = [(values[rows.starts], rows.spread(values)) for values in (rows.rollout, rows.training)]
        found = np.zeros(rows.rows, dtype=bool)
        for (first, spread), (_, other) in (sides, sides[::-1]):
            found |= (spread == 0) & (first < CERTAIN) & (other > 0)
            found |= (spread <= HARDLY) & (other > HARDLY) & at_odds
        return np.asarray(found & (rows.lengths >= LEAST_TOKENS) & (rows.sums(rows.log_ratio != 0) > 1))

    @cached_property
    def dense(self) -> Flags:
        """[tokens] within five neighbours of one row of which three are big."""
        rows, half = self.rows, DENSE_OF // 2
        near = rows.big.astype(np.int8)
        for lag in range(1, half + 1):
            early, late = slice(0, max(rows.tokens - lag, 0)), slice(lag, None)
            of_one_row = rows.row[early] == rows.row[late]
            near[early] += rows.big[late] & of_one_row
            near[late] += rows.big[early] & of_one_row
        return np.asarray(near >= DENSE)

    @cached_property
    def stretch(self) -> tuple[Ints, Ints]:
        """[rows] first big log-ratio and last one of what is dense somewhere, as indices of tokens; −1: none.

        Big ones belong together that have fewer than five tokens of their row between them.
        """
        rows, at = self.rows, np.flatnonzero(self.rows.big)
        group = np.cumsum((np.diff(at, prepend=-1) > DENSE_OF) | (np.diff(rows.row[at], prepend=-1) != 0))
        at = at[np.isin(group, group[self.dense[at]])]
        first, last = np.full(rows.rows, -1), np.full(rows.rows, -1)
        last[rows.row[at]] = at
        first[rows.row[at[::-1]]] = at[::-1]
        return first, last

    @cached_property
    def wide(self) -> Flags:
        """Rows with one stretch of big log-ratios, clean outside of it."""
        rows, inside = self.rows, self.inside
        outside = rows.lengths - rows.sums(inside)
        stray = rows.sums(rows.big & ~inside)
        clean = (outside >= np.maximum(4, 0.1 * rows.lengths)) & (stray <= OUTSIDE_CLEAN * outside)
        off = np.abs(rows.log_ratio) > rows.big_from / 2.0
        filled = rows.sums(inside & off) >= FILLED * np.maximum(rows.sums(inside), 1)
        apart = self._mean_gap(inside) >= CONTRAST * self._mean_gap(~inside)
        return np.asarray(clean & filled & apart & ~self._taken(self.shifted, self.exchanged, self.constant, self.top1))

    @cached_property
    def long(self) -> Flags:
        """Rows whose one stretch is too long to be chance, or too much of the row."""
        many = self.rows.sums(self.inside & self.rows.big) >= LONG
        return np.asarray(self.wide & (many | (self._off_share >= BROKEN_SHARE)))

    @cached_property
    def _off_share(self) -> Array:
        """[rows] share of big log-ratios; 0 for rows too short to say."""
        return np.asarray(self.rows.share(self.rows.big) * (self.rows.lengths >= LEAST_TOKENS))

    @cached_property
    def inside(self) -> Flags:
        """[tokens] of `stretch`."""
        first, last = self.stretch
        place, row = np.arange(self.rows.tokens), self.rows.row
        return np.asarray((first[row] >= 0) & (place >= first[row]) & (place <= last[row]))

    def _mean_gap(self, tokens: Flags) -> Array:
        """[rows] mean |d| over those tokens."""
        return self.rows.sums(np.abs(self.rows.log_ratio) * tokens) / np.maximum(self.rows.sums(tokens), 1)

    @cached_property
    def top1(self) -> Flags:
        """Rows of either side of `top1_of`."""
        return self._taken(*self.top1_of.values())

    @cached_property
    def top1_of(self) -> Mapping[str, Flags]:
        """By side, rows in which it finds likely what the other one finds unlikely, and which agree elsewhere."""
        rows, taken = self.rows, self._taken(self.shifted, self.exchanged, self.constant)
        sides = {"rollout": (rows.rollout, rows.training), "training": (rows.training, rows.rollout)}
        return {side: self._hides_unlikely(told, drawn) & ~taken for side, (told, drawn) in sides.items()}

    def _hides_unlikely(self, told: Array, drawn: Array) -> Flags:
        """[rows] `told` is the likeliest token's log-prob, `drawn` that of the token that was drawn."""
        rows, gap = self.rows, told - drawn
        unlikely = drawn < UNLIKELY
        hidden = unlikely & (gap >= 1.0) & (told > TOP1_FLOOR)
        lower = gap < -max(0.5, 10.0 * min(rows.typical, 0.1))
        likely = drawn > LIKELY
        odds = [log_odds(np.minimum(side, CERTAIN)) for side in (told, drawn)]  # beyond, rounding decides
        off = np.abs(odds[0] - odds[1]) > AGREES
        agree = rows.sums(likely & off) <= 0.1 * np.maximum(rows.sums(likely), 1)
        most = (rows.sums(unlikely) >= 3) & (rows.sums(hidden) >= 0.8 * rows.sums(unlikely))
        below = unlikely & (told < TOP1_FLOOR - 0.5)
        hides = most & agree & (rows.sums(lower | below) == 0)
        if hides.sum() > SINGLE_ROWS * rows.rows:
            return np.asarray(hides)
        return np.asarray(hides & self._as_rarely(hidden, told))

    def _as_rarely(self, hidden: Flags, told: Array) -> Flags:
        """[rows] where another token was drawn no oftener than the likeliest one's probability says, twice and one."""
        likely = told > LIKELY
        expected = self.rows.sums(-np.expm1(np.minimum(told, 0.0)) * likely)
        return np.asarray(self.rows.sums(hidden & likely) <= 2.0 * expected + 1.0)

    @cached_property
    def broken(self) -> Flags:
        """Constant rows, and rows in which big log-ratios are all over."""
        gap = self._mean_gap(np.ones(self.rows.tokens, dtype=bool))
        scattered = (self._off_share >= BROKEN_SHARE) | self._crowded
        scattered &= gap >= STANDS_OUT * self._typical_of_step(gap)
        return np.asarray(
            self.constant | (scattered & ~self._taken(self.shifted, self.exchanged, self.wide, self.top1))
        )

    @cached_property
    def _crowded(self) -> Flags:
        """Some rows that hold many huge log-ratios, where hardly any are in the others: chance would spread them.

        Twice what is big: rows of much older weights have many that are merely big.
        """
        rows = self.rows
        huge = np.abs(rows.log_ratio) > 2.0 * rows.big_from
        many = (rows.sums(huge) >= LONG) & (rows.share(huge) >= CROWDED_SHARE)
        others = ~(many | self.wide)[rows.row]
        elsewhere = (huge & others).sum() / max(others.sum(), 1)
        return np.asarray(many & (rows.share(huge) >= CROWDED * elsewhere) & (many.sum() <= SINGLE_ROWS * rows.rows))

    def _typical_of_step(self, gap: Array) -> Array:
        """[rows] median over the rows of the same step: a whole step may be further off than another."""
        typical = np.zeros(self.rows.rows)
        for step in np.unique(self.rows.step):
            own = self.rows.step == step
            typical[own] = np.median(gap[own])
        return typical

    @cached_property
    def flagged(self) -> Flags:
        """Rows with a kind of their own: what is said of all rows is said of the others."""
        return self._taken(self.shifted, self.exchanged, self.wide, self.top1, self.broken)

    def _taken(self, *kinds: Flags) -> Flags:
        return np.asarray(np.logical_or.reduce(kinds))
