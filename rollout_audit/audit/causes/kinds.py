"""What is wrong with single rows: which of them are shifted, exchanged, broken, too wide, or hold another token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rollout_audit.audit.causes.sampled import LAGS, MISFIT, Array, Flags, Ints, Partners, SampledRows, fisher_z

__all__ = ["FITS", "GAIN", "LEAST_TOKENS", "SURE", "UNLIKELY", "RowKinds"]

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
LEAST_TOKENS = 8
"""Shorter rows are not judged by themselves"""
DENSE, DENSE_OF = 3, 5
"""Big log-ratios among neighbours from which on a stretch is dense"""
OUTSIDE_CLEAN = 0.1
FILLED = 0.6
CONTRAST = 8.0
"""Factor of mean |d| inside a stretch over that outside: strangers have 20 and more, wide even noise 3 to 4"""
STANDS_OUT = 5.0
"""Factor of a broken row's mean |d| over that of the step's median row: rows that are merely unlikely have 3"""
UNLIKELY = -2.0
"""The sampled token was not the likeliest one: π below e^−2"""
CROWD, CROWD_OF_TYPICAL = 0.1, 2.0
"""Share of unlikely tokens beyond which a row is not like the median one, in which it is one in ten or so"""
TOP1_FLOOR = -2.5
"""What the likeliest of all tokens hardly ever falls below"""


@dataclass(frozen=True)
class RowKinds:
    """Every row gets at most one kind; the order of the properties is the order in which they are asked."""

    rows: SampledRows

    @cached_property
    def best_lag(self) -> Ints:
        """[rows] index into LAGS."""
        return np.asarray(self.rows.row_correlations.argmax(axis=0))

    def _at(self, lag_index: Ints) -> tuple[Array, Array]:
        columns = np.arange(self.rows.rows)
        return self.rows.row_correlations[lag_index, columns], self.rows.pairs[lag_index, columns]

    @property
    def own_fit(self) -> Array:
        """[rows] correlation of a row's two columns as they stand."""
        return self.rows.own_fit

    @cached_property
    def shifted(self) -> Flags:
        fit, pairs = self._at(self.best_lag)
        better = (fit >= FITS) & (fit - self.own_fit >= GAIN) & (self.own_fit < MISFIT)
        return np.asarray(better & (self.best_lag != LAGS.index(0)) & (fisher_z(fit, pairs) >= SURE))

    @cached_property
    def partners(self) -> Partners:
        rests = self.rows.rests
        misfits = (rests.fit < MISFIT) & (rests.gap > STRANGERS) & (rests.tokens >= LEAST_TOKENS)
        return self.rows.best_partners(misfits & ~self._taken(self.shifted, self.constant))

    @cached_property
    def exchanged(self) -> Flags:
        """Rows whose training log-probs fit the rollout's of another row, from some place on."""
        index, fit, own, tokens = self.partners
        better = (fit >= FITS) & (fit - own >= GAIN)
        return np.asarray((index >= 0) & better & (fisher_z(fit, tokens) >= SURE_OF_PARTNER))

    @cached_property
    def constant(self) -> Flags:
        """Rows in which one side repeats one value (other than certainty) and the other side does not."""
        rows = self.rows
        still = [self._still(side) for side in (rows.rollout, rows.training)]
        return np.asarray((still[0] ^ still[1]) & (rows.lengths >= LEAST_TOKENS) & (rows.sums(rows.log_ratio != 0) > 1))

    def _still(self, values: Array) -> Flags:
        rows = self.rows
        change = values != values[rows.starts][rows.row]
        return np.asarray((rows.sums(change) == 0) & (values[rows.starts] < -1e-2)) if rows.rows else np.empty(0, bool)

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
        """[rows] first token of the first dense stretch and last of the last one, as indices of tokens; −1: none."""
        rows, at = self.rows, np.flatnonzero(self.dense)
        first, last = np.full(rows.rows, -1), np.full(rows.rows, -1)
        last[rows.row[at]] = at
        first[rows.row[at[::-1]]] = at[::-1]
        return first, last

    @cached_property
    def wide(self) -> Flags:
        """Rows with one stretch of big log-ratios, clean outside of it."""
        rows, inside = self.rows, self._inside
        outside = rows.lengths - rows.sums(inside)
        stray = rows.sums(rows.big & ~inside)
        clean = (outside >= np.maximum(4, 0.1 * rows.lengths)) & (stray <= OUTSIDE_CLEAN * outside)
        filled = rows.sums(inside & self.dense) >= FILLED * np.maximum(rows.sums(inside), 1)
        apart = self._mean_gap(inside) >= CONTRAST * self._mean_gap(~inside)
        return np.asarray(clean & filled & apart & ~self._taken(self.shifted, self.exchanged, self.constant))

    @cached_property
    def _inside(self) -> Flags:
        """[tokens] from the first dense place of a row to the last."""
        first, last = self.stretch
        place, row = np.arange(self.rows.tokens), self.rows.row
        return np.asarray((first[row] >= 0) & (place >= first[row]) & (place <= last[row]))

    def _mean_gap(self, tokens: Flags) -> Array:
        """[rows] mean |d| over those tokens."""
        return self.rows.sums(np.abs(self.rows.log_ratio) * tokens) / np.maximum(self.rows.sums(tokens), 1)

    @cached_property
    def top1(self) -> Flags:
        """Rows whose unlikely tokens were all likely to the rollout side, and which agree elsewhere."""
        enough = self.rows.sums(self.rows.training < UNLIKELY) >= 3
        hiding = self._hides_unlikely() & enough & ~self._crowded()
        return np.asarray(hiding & ~self._taken(self.shifted, self.exchanged, self.constant))

    def _crowded(self) -> Flags:
        """Rows with far more unlikely tokens than the others: the trainer's side is off there, whatever was sampled."""
        share = self.rows.share(self.rows.training < UNLIKELY)
        return np.asarray(share > CROWD + CROWD_OF_TYPICAL * float(np.median(share))) if len(share) else share > 0

    def _hides_unlikely(self) -> Flags:
        rows, d = self.rows, self.rows.log_ratio
        unlikely = rows.training < UNLIKELY
        hidden = unlikely & (d <= -1.0) & (rows.rollout > TOP1_FLOOR)
        other_way = d > max(0.5, 10.0 * min(rows.typical, 0.1))
        likely = rows.training > -0.5
        off = rows.sums(likely & (np.abs(d) > 0.25)) <= 0.1 * np.maximum(rows.sums(likely), 1)
        most = rows.sums(hidden) >= 0.8 * rows.sums(unlikely)
        below = rows.sums(unlikely & (rows.rollout < TOP1_FLOOR - 0.5)) == 0
        return np.asarray(most & below & off & (rows.sums(other_way) == 0) & (rows.sums(hidden) > 0))

    @cached_property
    def broken(self) -> Flags:
        """Constant rows, and rows in which big log-ratios are all over."""
        gap = self._mean_gap(np.ones(self.rows.tokens, dtype=bool))
        scattered = (self.rows.share(self.rows.big) >= BROKEN_SHARE) & (self.rows.lengths >= LEAST_TOKENS)
        scattered &= gap >= STANDS_OUT * self._typical_of_step(gap)
        return np.asarray(
            self.constant | (scattered & ~self._taken(self.shifted, self.exchanged, self.wide, self.top1))
        )

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
