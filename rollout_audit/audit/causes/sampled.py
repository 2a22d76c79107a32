"""The rows that causes are read from: valid tokens end to end, and how a row fits another one or itself shifted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["BIG", "CERTAIN", "LAGS", "MISFIT", "Partners", "SampledRows", "correlation", "fisher_z", "log_odds"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

LAGS = (-3, -2, -1, 0, 1, 2, 3)
BIG = 1.5
"""A log-ratio of a factor of 4.5; 0.25% of the tokens of the stalest recording reach 1"""
CERTAIN = -0.01
"""Log-prob of a token of which a side is certain"""
EDGE = 2
"""Tokens beside an edge of the mask: more of them that are off are a stretch"""
MISFIT = 0.5
"""A sound row correlates by 0.9 and more; below this the two columns hardly speak of the same tokens"""
ONE_TEXT = 0.2
"""A row that fits its own columns nearly as well as another one's does is of the same text"""
SPLITS = 8
"""Places of a row from which on it may be another's: rows of one prompt often begin alike"""
WINDOW = 64
"""Tokens of a row that are held against other rows"""
COMPARED = 64
"""Rows of one step that are held against others"""
CANDIDATES = 512
"""Rows of one step that they are held against"""


def fisher_z(correlation: Array, pairs: Array) -> Array:
    """Standard errors of a correlation above 0: atanh(c)·√(n − 3), 0 below four pairs."""
    bounded = np.clip(correlation, -0.999999, 0.999999)
    return np.asarray(np.arctanh(bounded) * np.sqrt(np.maximum(pairs - 3.0, 0.0)))


def log_odds(log_prob: Array) -> Array:
    """Of log-probs below 0."""
    return np.asarray(log_prob - np.log(-np.expm1(log_prob)))


class Rests(NamedTuple):
    """The rest of each row in which its two columns differ most, [rows]."""

    first: Ints
    """place in the row, among its valid tokens"""
    fit: Array
    """correlation of the two columns"""
    gap: Array
    """mean |√π − √μ|: some 0.3 between strangers, below 0.1 between engines"""
    tokens: Array


class Match(NamedTuple):
    """The row that one row fits best."""

    partner: int
    """−1: none"""
    fit: float
    own: float
    """how well the row fits its own rollout log-probs over the same tokens"""
    tokens: float

    def sure(self) -> float:
        """Standard errors above 0."""
        return float(fisher_z(np.array(self.fit), np.array(self.tokens)))


class Partners(NamedTuple):
    """As `Match`, [rows]; −1 also for rows that were not looked at."""

    partner: Ints
    fit: Array
    own: Array
    tokens: Array


@dataclass(frozen=True)
class SampledRows:
    """Valid tokens of some rows of the dump, whole rows, in their order. Rows without a valid token are not there."""

    training: Array
    """[tokens] log π"""
    rollout: Array
    """[tokens] log μ"""
    position: Ints
    """[tokens] place in the response, masked tokens counted"""
    row: Ints
    """[tokens] index of the row among the sampled ones, ascending"""
    step: Ints
    """[rows]"""
    file: Ints
    """[rows] index of the file"""
    number: Ints
    """[rows] place in the file"""

    @classmethod
    def of_columns(cls, columns: Mapping[str, Array]) -> SampledRows:
        """From the columns [tokens] that the pass keeps."""
        file, number = columns["file"].astype(np.int64), columns["row"].astype(np.int64)
        starts = np.ones(len(file), dtype=bool)
        starts[1:] = (np.diff(file) != 0) | (np.diff(number) != 0)
        return cls(
            training=columns["training"],
            rollout=columns["rollout"],
            position=columns["position"].astype(np.int64),
            row=np.cumsum(starts) - 1,
            step=columns["step"].astype(np.int64)[starts],
            file=file[starts],
            number=number[starts],
        )

    @property
    def tokens(self) -> int:
        return len(self.training)

    @property
    def rows(self) -> int:
        return len(self.step)

    @cached_property
    def log_ratio(self) -> Array:
        return self.training - self.rollout

    @cached_property
    def lengths(self) -> Ints:
        return np.diff(self.starts, append=self.tokens)

    @cached_property
    def starts(self) -> Ints:
        """[rows] first token of each row."""
        return np.flatnonzero(np.diff(self.row, prepend=-1))

    @cached_property
    def last(self) -> Ints:
        """[rows] last token of each row."""
        return self.starts + self.lengths - 1

    @cached_property
    def typical(self) -> float:
        """Median |d|."""
        return float(np.median(np.abs(self.log_ratio))) if self.tokens else 0.0

    @cached_property
    def big(self) -> Flags:
        """[tokens] |d| above BIG and above ten medians: what even noise does not do."""
        return np.asarray(np.abs(self.log_ratio) > self.big_from)

    @cached_property
    def big_from(self) -> float:
        return max(BIG, 10.0 * self.typical)

    @cached_property
    def appended(self) -> Flags:
        """[rows] whose last token is certain to the rollout side and below e^−1 to the trainer."""
        return self.certain[self.last]

    @cached_property
    def edges(self) -> Flags:
        """[tokens] beside an edge of the mask, EDGE of them after each opening and before each gap, row ends left out.

        What stands before the first valid token of a row is the prompt, and in a gap are tools.
        """
        found = np.zeros(self.tokens, dtype=bool)
        gaps = 1 + np.flatnonzero((np.diff(self.row) == 0) & (np.diff(self.position) != 1))
        for depth in range(EDGE):
            for at, back in ((self.starts, depth), (gaps, depth), (gaps, -1 - depth)):
                token = np.clip(at + back, 0, self.tokens - 1)
                found[token[self.row[token] == self.row[at]]] = True
        found[self.last] = False
        return found

    @cached_property
    def certain(self) -> Flags:
        """[tokens] that are certain to the rollout side, or nearly, and below e^−1 to the trainer."""
        return np.asarray((self.rollout > CERTAIN) & (self.training < -1.0))

    @cached_property
    def compared(self) -> Flags:
        """[tokens] that correlations look at: one appended token would spoil that of a short row."""
        tokens = np.ones(self.tokens, dtype=bool)
        tokens[self.last[self.appended]] = False
        return tokens

    def sums(self, values: NDArray[Any]) -> Array:
        """[rows] sum over the tokens of each row."""
        return self._by_row(values.astype(np.float64, copy=False))

    def _by_row(self, values: Array) -> Array:
        """[…, tokens] → […, rows]: rows lie end to end, and none is empty."""
        if not self.rows:
            return np.zeros((*values.shape[:-1], 0))
        return np.asarray(np.add.reduceat(values, self.starts, axis=-1))

    def spread(self, values: Array) -> Array:
        """[rows] greatest value less the least."""
        if not self.rows:
            return np.zeros(0)
        return np.asarray(np.maximum.reduceat(values, self.starts) - np.minimum.reduceat(values, self.starts))

    def share(self, flags: Flags) -> Array:
        """[rows] share of the row's tokens that are flagged."""
        return self.sums(flags) / np.maximum(self.lengths, 1)

    @cached_property
    def roots(self) -> tuple[Array, Array]:
        """√π and √μ: bounded, so that no single unlikely token decides a correlation."""
        return np.exp(self.training / 2.0), np.exp(np.minimum(self.rollout, 0.0) / 2.0)

    @cached_property
    def lag_moments(self) -> Array:
        """[lags, rows, 6] n and Σ of x, y, x², y², xy over pairs (π at i, μ at i + lag) of one row."""
        return self._lag_moments(self.compared)

    @cached_property
    def rest_lag_moments(self) -> Array:
        """As `lag_moments`, of the rest of each row in which its columns differ most."""
        place = np.arange(self.tokens) - self.starts[self.row]
        return self._lag_moments(self.compared & (place >= self.rests.first[self.row]))

    def _lag_moments(self, compared: Flags) -> Array:
        scratch = np.zeros((6, self.tokens))
        return np.stack([self._moments(lag, compared, scratch) for lag in LAGS])

    def _moments(self, lag: int, compared: Flags, scratch: Array) -> Array:
        """[rows, 6] for one lag; `scratch` is [6, tokens], written over."""
        size = max(self.tokens - abs(lag), 0)
        of_x, of_y = (slice(start, start + size) for start in (max(-lag, 0), max(lag, 0)))
        pairs = (self.row[of_x] == self.row[of_y]) & (self.position[of_y] - self.position[of_x] == lag)
        pairs &= compared[of_x] & compared[of_y]
        scratch[:, : of_x.start], scratch[:, of_x.stop :] = 0.0, 0.0
        n, x, y, xx, yy, xy = scratch[:, of_x]
        n[:] = pairs
        products = (self.roots[0][of_x], n, x), (self.roots[1][of_y], n, y), (x, x, xx), (y, y, yy), (x, y, xy)
        for one, other, product in products:
            np.multiply(one, other, out=product)
        return self._by_row(scratch).T

    @cached_property
    def row_correlations(self) -> Array:
        """[lags, rows]; 0 where a row has no variance."""
        return correlation(self.lag_moments)

    @cached_property
    def rests(self) -> Rests:
        """Where each row stops to agree: of its rests from k/8 of its length on the one that stands out most."""
        firsts = self.starts[:, None] + self.lengths[:, None] * np.arange(SPLITS) // SPLITS
        gap = np.abs(self.roots[0] - self.roots[1])
        x, y = self.roots
        sums = [np.concatenate(([0.0], np.cumsum(v * self.compared))) for v in (1.0, x, y, x * x, y * y, x * y, gap)]
        moments = np.stack([total[(self.last + 1)[:, None]] - total[firsts] for total in sums], axis=-1)
        tokens, own = np.maximum(moments[..., 0], 1.0), correlation(moments[..., :6])
        apart = np.where(own < MISFIT, moments[..., 6] / np.sqrt(tokens), -1.0)
        at = (np.arange(self.rows), apart.argmax(axis=1))
        return Rests(firsts[at] - self.starts, own[at], moments[..., 6][at] / tokens[at], moments[..., 0][at])

    def best_partners(self, wanted: Flags) -> Partners:
        """Which other row of the step has the rollout log-probs that fit best, over the whole row or from its rest on.

        A row that agrees with its own there is no partner: it is only of the same text.
        """
        found = [Match(-1, 0.0, 0.0, 0.0)] * self.rows
        for step in np.unique(self.step[wanted]):
            own = np.flatnonzero(self.step == step)[:CANDIDATES]
            for row in own[wanted[own]][:COMPARED].tolist() if len(own) > 1 else ():
                firsts = {int(self.rests.first[row]), *([0] if self.own_fit[row] < MISFIT else [])}
                found[row] = max((self._match(row, own, first) for first in firsts), key=Match.sure)
        partner, fit, own_fit, overlap = np.array(found, dtype=np.float64).reshape(-1, len(Match._fields)).T
        return Partners(partner.astype(np.int64), fit, own_fit, overlap)

    @property
    def own_fit(self) -> Array:
        """[rows] correlation of a row's two columns as they stand."""
        return np.asarray(self.row_correlations[LAGS.index(0)])

    def _match(self, row: int, candidates: Ints, first: int) -> Match:
        x, y, inside = self._window(candidates, first)
        here = int(np.flatnonzero(candidates == row)[0])
        both = inside * inside[here]
        fit = correlation(_moments_of(x[here] * both, y * both, both))
        z = fisher_z(fit, both.sum(axis=1))
        agrees = correlation(_moments_of(x * both, y * both, both)) >= fit - ONE_TEXT
        z[agrees | (candidates == row)] = -np.inf
        best = int(z.argmax())
        if not np.isfinite(z[best]):
            return Match(-1, 0.0, 0.0, 0.0)
        return Match(int(candidates[best]), float(fit[best]), float(fit[here]), float(both[best].sum()))

    def _window(self, rows: Ints, first: int) -> tuple[Array, Array, Array]:
        """[rows, WINDOW] √π and √μ of these rows from that place on, 0 beyond their end; and 1 where there is one."""
        place = first + np.arange(WINDOW)
        at = np.minimum(self.starts[rows, None] + place, self.tokens - 1)
        inside = ((place < self.lengths[rows, None]) & self.compared[at]).astype(np.float64)
        return self.roots[0][at] * inside, self.roots[1][at] * inside, inside


def _moments_of(x: Array, y: Array, inside: Array) -> Array:
    """[rows, 6] as `correlation` takes them, of [rows, places] that are 0 outside."""
    return np.stack([part.sum(axis=1) for part in (inside, x, y, x * x, y * y, x * y)], axis=-1)


def correlation(moments: Array) -> Array:
    """Pearson's, of the last axis n, Σx, Σy, Σx², Σy², Σxy; 0 where a side has no variance."""
    n, sx, sy, sxx, syy, sxy = np.moveaxis(moments, -1, 0)
    n = np.maximum(n, 1.0)
    vx, vy = sxx / n - (sx / n) ** 2, syy / n - (sy / n) ** 2
    sound = (vx > 1e-10) & (vy > 1e-10)
    scale = np.sqrt(np.where(sound, vx * vy, 1.0))
    return np.asarray(np.where(sound, (sxy / n - sx * sy / n**2) / scale, 0.0))
