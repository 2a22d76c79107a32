"""The loops of `fused`, for Numba only: imported when they are first needed.

The order of the sums is that of the tokens in their row, so a row's figures do not depend on the chunk it came in.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, types

from rollout_audit.statistics.grid import FIRST_RANK, MAGNITUDE, RANKS_PER_SIDE, SHIFT, ZERO_BIN


def read_only(element, dimensions=1):
    """Arrow hands out arrays that must not be written to; writable ones fit as well."""
    return types.Array(element, dimensions, "C", readonly=True)


def writable(element, dimensions=1):
    return types.Array(element, dimensions, "C")


F8, I8, I4 = types.float64, types.int64, types.int32
ROWS = [
    types.void(
        read_only(stored), read_only(stored), read_only(types.boolean), read_only(I8),
        read_only(F8), read_only(F8), read_only(F8), read_only(F8), read_only(I8), read_only(F8), read_only(F8, 2),
        writable(F8, 2), writable(F8, 3), writable(F8, 2), writable(F8), writable(I4), writable(F8),
        writable(I8), writable(F8),
    )
    for stored in (types.float32, types.float64)
]  # fmt: skip
BINS = types.void(
    read_only(I4), read_only(F8), read_only(I8), read_only(I8), read_only(I8), I8,
    writable(I8), writable(I8), writable(F8), writable(F8), writable(I8),
)  # fmt: skip

TINY = 2.0**-20
SMALL = 2.0**-8
LARGE = 64.0
SAFE_EXPONENT = 300.0


@njit(nogil=True, cache=True, error_model="numpy")
def least_of(values, places):
    """The slot to give up next: the least value, of equal ones the last in the chunk."""
    least = 0
    for j in range(1, len(values)):
        if values[j] < values[least] or (values[j] == values[least] and places[j] > places[least]):
            least = j
    return least


@njit(nogil=True, cache=True, error_model="numpy")
def log_sums(d, low, high, sum_ratio, sum_ratio_sq):
    """log Σρ and log Σρ², around the largest d where the plain sums would leave float64."""
    if len(d) == 0:
        return -math.inf, -math.inf
    if low > -SAFE_EXPONENT and high < SAFE_EXPONENT:
        return math.log(sum_ratio), math.log(sum_ratio_sq)
    first = second = 0.0
    for x in d:
        shifted = math.exp(x - high)
        first += shifted
        second += shifted * shifted
    return math.log(first) + high, math.log(second) + 2.0 * high


@njit(nogil=True, cache=True, error_model="numpy")
def clamp_row(d, clamp, out):
    out[:] = 0.0
    for x in d:
        y = min(max(x, -clamp), clamp)
        out[0] += y
        out[1] += abs(y)
        out[2] += y * y * 0.5
        out[3] += math.expm1(y) - y


@njit(ROWS, nogil=True, cache=True, error_model="numpy")
def rows(
    training, rollout, mask, offsets, middle, exp_middle, expm1_middle, cuts, cuts_below, clamps, intervals,
    sums, clamped, counted, log_ratio, cell, u, worst_at, worst_abs,
):  # fmt: skip
    bits = np.empty(1, dtype=np.float64)
    as_int = bits.view(np.int64)
    at = 0
    least_worst, worst_slot = 0.0, 0
    for row in range(len(offsets) - 1):
        start = at
        sum_d = sum_abs = sum_exp_abs = sum_k2 = sum_k3 = sum_ratio = sum_ratio_sq = 0.0
        sum_log_pi = sum_log_mu = sum_pi = sum_mu = sum_pi_sq = sum_mu_sq = sum_pi_mu = 0.0
        sum_diff = sum_abs_diff = beyond = 0.0
        low, high, below, above = math.inf, -math.inf, -math.inf, math.inf
        diff_low, diff_high = math.inf, -math.inf
        for i in range(offsets[row], offsets[row + 1]):
            if not mask[i]:
                continue
            log_pi = np.float64(training[i])
            log_mu = np.float64(rollout[i])
            d = log_pi - log_mu
            size = abs(d)
            bits[0] = d
            pattern = as_int[0]
            magnitude = pattern & MAGNITUDE
            rank = (magnitude >> SHIFT) - FIRST_RANK + 1
            rank = min(max(rank, 0), RANKS_PER_SIDE + 1) + 1
            fine = ZERO_BIN
            if magnitude != 0:
                fine += -rank if pattern < 0 else rank
            place = fine + cuts_below[fine]
            for j in range(cuts_below[fine], cuts_below[fine + 1]):
                if d > cuts[j]:
                    place += 1
            x = d - middle[place]
            if abs(x) < SMALL:
                v = x * (1.0 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x / 5040))))))
            else:
                v = math.expm1(x)
            if size < LARGE:
                ratio = exp_middle[place] * (1.0 + v)
                excess = expm1_middle[place] + exp_middle[place] * v
            else:
                ratio = math.exp(d)
                excess = math.expm1(d)
            if size < TINY:
                k3 = d * d * (0.5 + d * (1 / 6))
                excess = d + k3
            else:
                k3 = excess - d
            mu = math.exp(log_mu)
            pi = mu * ratio if size < LARGE else math.exp(log_pi)
            difference = mu * excess if size < LARGE else pi - mu

            log_ratio[at] = d
            cell[at] = place
            u[at] = v
            at += 1

            sum_d += d
            sum_abs += size
            sum_exp_abs += ratio if d >= 0.0 else (1.0 / ratio if size < LARGE else math.exp(size))
            sum_k2 += d * d * 0.5
            sum_k3 += k3
            sum_ratio += ratio
            sum_ratio_sq += ratio * ratio
            sum_log_pi += log_pi
            sum_log_mu += log_mu
            sum_pi += pi
            sum_mu += mu
            sum_pi_sq += pi * pi
            sum_mu_sq += mu * mu
            sum_pi_mu += pi * mu
            sum_diff += difference
            sum_abs_diff += abs(difference)
            if size > 20.0:
                beyond += 1.0
            low, high = min(low, d), max(high, d)
            if d <= 0.0:
                below = max(below, d)
            if d >= 0.0:
                above = min(above, d)
            diff_low, diff_high = min(diff_low, difference), max(diff_high, difference)
            for j in range(len(intervals)):
                if intervals[j, 0] <= d <= intervals[j, 1]:
                    counted[row, j] += 1.0
            if size > least_worst:
                worst_at[worst_slot] = i
                worst_abs[worst_slot] = size
                worst_slot = least_of(worst_abs, worst_at)
                least_worst = worst_abs[worst_slot]

        out = sums[row]
        out[0], out[1], out[2], out[3], out[4], out[5] = at - start, sum_d, sum_abs, sum_exp_abs, sum_k2, sum_k3
        out[6], out[7], out[8], out[9], out[10] = beyond, low, high, below, above
        out[11], out[12] = log_sums(log_ratio[start:at], low, high, sum_ratio, sum_ratio_sq)
        out[13], out[14], out[15], out[16] = sum_log_pi, sum_log_mu, sum_pi, sum_mu
        out[17], out[18], out[19] = sum_pi_sq, sum_mu_sq, sum_pi_mu
        out[20], out[21], out[22], out[23] = sum_diff, sum_abs_diff, diff_high, diff_low
        for j in range(len(clamps)):
            if max(-low, high) <= clamps[j]:
                clamped[row, j, 0], clamped[row, j, 1] = sum_d, sum_abs
                clamped[row, j, 2], clamped[row, j, 3] = sum_k2, sum_k3
            else:
                clamp_row(log_ratio[start:at], clamps[j], clamped[row, j])


@njit(BINS, nogil=True, cache=True, error_model="numpy")
def bins(cell, u, row_order, row_ends, group_ends, cells, index, counts, sum_u, sum_u_sq, ends):
    count = np.zeros(cells, dtype=np.int64)
    first, second = np.zeros(cells), np.zeros(cells)
    touched = np.empty(cells, dtype=np.int64)
    at = 0
    next_row = 0
    for group in range(len(group_ends)):
        used = 0
        for k in range(next_row, group_ends[group]):
            row = row_order[k]
            start = row_ends[row - 1] if row > 0 else 0
            for i in range(start, row_ends[row]):
                place = cell[i]
                if count[place] == 0:
                    touched[used] = place
                    used += 1
                count[place] += 1
                first[place] += u[i]
                second[place] += u[i] * u[i]
        next_row = group_ends[group]
        for place in np.sort(touched[:used]):
            index[at], counts[at], sum_u[at], sum_u_sq[at] = place, count[place], first[place], second[place]
            count[place], first[place], second[place] = 0, 0.0, 0.0
            at += 1
        ends[group] = at
