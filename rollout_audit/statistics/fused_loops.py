"""The loops of `fused`, for Numba only: imported when they are first needed.

The order of the sums is that of the tokens in their row, so a row's figures do not depend on the chunk it came in.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, types

from rollout_audit.corrections.model import SAFETY_CLAMP
from rollout_audit.corrections.tokens import SERIES_BELOW
from rollout_audit.statistics.grid import FIRST_RANK, MAGNITUDE, RANKS_PER_SIDE, SHIFT, ZERO_BIN


def read_only(element, dimensions=1):
    """Arrow hands out arrays that must not be written to; writable ones fit as well."""
    return types.Array(element, dimensions, "C", readonly=True)


def writable(element, dimensions=1):
    return types.Array(element, dimensions, "C")


F8, I8, I4 = types.float64, types.int64, types.int32
ROWS = types.void(
    read_only(F8), read_only(F8), read_only(types.boolean), read_only(I8),
    read_only(F8, 2), read_only(I4), read_only(F8),
    read_only(F8), read_only(F8), read_only(F8, 2),
    writable(F8, 2), writable(F8, 3), writable(F8, 3), writable(F8, 2), writable(F8), writable(I4), writable(F8),
    writable(I8), writable(F8),
)  # fmt: skip
BINS = types.void(
    read_only(I4), read_only(F8), read_only(I8), read_only(I8), read_only(I8), I8,
    writable(I8), writable(I8), writable(F8), writable(F8), writable(I8),
)  # fmt: skip

NONE, ONE, ZERO = np.int32(0), np.int32(1), np.int32(ZERO_BIN)
LAST_UNDERFLOW, OVERFLOW_RANK = np.int32(FIRST_RANK - 1), np.int32(RANKS_PER_SIDE + 1)
SMALL = 2.0**-8
LARGE = 64.0
SAFE_EXPONENT = 300.0
BLOCK = 1024
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
LEAST_EXPONENT = -708.0
LEAST_EXCESS = math.expm1(-SAFETY_CLAMP)

# Block after block, so that each short loop stays in the first cache and becomes vector instructions. Reassociation
# is allowed where a loop only sums: the order is then fixed by the length of the block, not by the chunk.
SCALAR = {"nogil": True, "cache": True, "error_model": "numpy"}
VECTOR = SCALAR | {"fastmath": {"reassoc", "contract", "nsz", "nnan"}}


@njit(**SCALAR)
def least_of(values, places):
    """The slot to give up next: the least value, of equal ones the last in the chunk."""
    least = 0
    for j in range(1, len(values)):
        if values[j] < values[least] or (values[j] == values[least] and places[j] > places[least]):
            least = j
    return least


@njit(**SCALAR)
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


@njit(**SCALAR)
def clamp_row(d, clamp, out):
    out[:] = 0.0
    for x in d:
        y = min(max(x, -clamp), clamp)
        out[0] += y
        out[1] += abs(y)
        out[2] += y * y * 0.5
        out[3] += y * y * (0.5 + y / 6.0) if abs(y) < SERIES_BELOW else math.expm1(y) - y


@njit(**VECTOR)
def exponentials(x, out, less_one, scale, scale_bits):
    """exp and expm1 of log-probs: 2^k from the exponent's bits, exp of the rest by its series."""
    for i in range(len(x)):
        k = math.floor(max(x[i], LEAST_EXPONENT) * LOG2_E + 0.5)
        scale_bits[i] = (np.int64(k) + 1023) << 52
        out[i] = (max(x[i], LEAST_EXPONENT) - k * LN2_HIGH) - k * LN2_LOW
    for i in range(len(x)):
        r = out[i]
        p = 1 / 479001600 + r * (1 / 6227020800)
        p = 1 / 3628800 + r * (1 / 39916800 + r * p)
        p = 1 / 40320 + r * (1 / 362880 + r * p)
        p = 1 / 720 + r * (1 / 5040 + r * p)
        p = 1 / 24 + r * (1 / 120 + r * p)
        tail = r * (1.0 + r * (0.5 + r * (1 / 6 + r * p)))
        out[i] = scale[i] + scale[i] * tail
        less_one[i] = (scale[i] - 1.0) + scale[i] * tail


@njit(**VECTOR)
def fine_bins(bits, fine):
    """As `grid.fine_bin`, in 32 bits."""
    for i in range(len(bits)):
        pattern = bits[i]
        magnitude = pattern & MAGNITUDE
        rank = np.int32(magnitude >> SHIFT) - LAST_UNDERFLOW
        rank = min(max(rank, NONE), OVERFLOW_RANK) + ONE
        rank = NONE if magnitude == 0 else rank
        fine[i] = ZERO + (-rank if pattern < 0 else rank)


@njit(**SCALAR)
def cells_of(d, fine, first_cell, cuts, cell):
    """Cell of each log-ratio: the first of its fine bin, and one more for each cut of the bin below it."""
    for i in range(len(d)):
        own = np.uint32(fine[i])
        place, after = first_cell[own], first_cell[own + np.uint32(1)]
        if after - place > 1:
            first_cut = place - fine[i]
            for j in range(first_cut, first_cut + (after - place - 1)):
                place += np.int32(d[i] > cuts[j])
        cell[i] = place


@njit(**VECTOR)
def look_up(d, cell, middle, x, at_middle, excess_middle):
    """What the table says of each cell's midpoint, and how far from it the log-ratio lies; the largest distance."""
    farthest = 0.0
    for i in range(len(d)):
        own = np.uint32(cell[i])
        x[i] = d[i] - middle[own, 0]
        at_middle[i] = middle[own, 1]
        excess_middle[i] = middle[own, 2]
        farthest = max(farthest, abs(x[i]))
    return farthest


@njit(**VECTOR)
def from_midpoints(x, at_middle, excess_middle, u, ratio, excess):
    """u = expm1(x) for small x, with ρ and ρ − 1."""
    for i in range(len(x)):
        y = x[i]
        v = y * (1.0 + y * (1 / 2 + y * (1 / 6 + y * (1 / 24 + y * (1 / 120 + y * (1 / 720 + y / 5040))))))
        u[i] = v
        ratio[i] = at_middle[i] * (1.0 + v)
        excess[i] = excess_middle[i] + at_middle[i] * v


@njit(**SCALAR)
def far_from_midpoints(d, x, at_middle, excess_middle, u, ratio, excess):
    """The same where a cell is too wide for the short series."""
    for i in range(len(d)):
        if abs(d[i]) >= LARGE:
            u[i] = math.expm1(x[i])
            ratio[i], excess[i] = math.exp(d[i]), math.expm1(d[i])
        elif abs(x[i]) >= SMALL:
            u[i] = math.expm1(x[i])
            ratio[i] = at_middle[i] * (1.0 + u[i])
            excess[i] = excess_middle[i] + at_middle[i] * u[i]


@njit(**VECTOR)
def add_divergences(d, ratio, excess, out):
    sum_d = sum_abs = sum_exp_abs = sum_k2 = sum_k3 = sum_ratio = sum_ratio_sq = beyond = 0.0
    for i in range(len(d)):
        x, r = d[i], ratio[i]
        size = abs(x)
        k2 = x * x * 0.5
        sum_d += x
        sum_abs += size
        sum_exp_abs += r if x >= 0.0 else 1.0 / r
        sum_k2 += k2
        sum_k3 += k2 * (1.0 + x * (1 / 3)) if size < SERIES_BELOW else excess[i] - x
        sum_ratio += r
        sum_ratio_sq += r * r
        beyond += 1.0 if size > 20.0 else 0.0
    out[0] += sum_d
    out[1] += sum_abs
    out[2] += sum_exp_abs
    out[3] += sum_k2
    out[4] += sum_k3
    out[5] += sum_ratio
    out[6] += sum_ratio_sq
    out[7] += beyond


@njit(**VECTOR)
def add_capped(excess, floor, cap, out):
    first = second = 0.0
    for i in range(len(excess)):
        own = min(max(excess[i], floor), cap - 1.0)
        first += own
        second += own * own
    out[0] += first
    out[1] += second


@njit(**VECTOR)
def add_probabilities(log_pi, log_mu, mu, mu_less_1, excess, out):
    sum_log_pi = sum_log_mu = sum_pi = sum_mu = sum_pi_sq = sum_mu_sq = sum_pi_mu = sum_diff = sum_abs_diff = 0.0
    high, low = out[20], out[21]
    for i in range(len(mu)):
        difference = mu[i] * excess[i]
        m = mu_less_1[i]
        p = m + difference
        sum_log_pi += log_pi[i]
        sum_log_mu += log_mu[i]
        sum_pi += p
        sum_mu += m
        sum_pi_sq += p * p
        sum_mu_sq += m * m
        sum_pi_mu += p * m
        sum_diff += difference
        sum_abs_diff += abs(difference)
        high = max(high, difference)
        low = min(low, difference)
    out[8] += sum_log_pi
    out[9] += sum_log_mu
    out[10] += sum_pi
    out[11] += sum_mu
    out[12] += sum_pi_sq
    out[13] += sum_mu_sq
    out[14] += sum_pi_mu
    out[15] += sum_diff
    out[16] += sum_abs_diff
    out[20], out[21] = high, low


@njit(**SCALAR)
def far_probabilities(d, log_pi, mu, excess):
    """Where ρ leaves the tables: π by itself, put back as (π − μ) / μ so that the sums need no other case."""
    for i in range(len(d)):
        if abs(d[i]) >= LARGE:
            excess[i] = (math.exp(log_pi[i]) - mu[i]) / mu[i]


@njit(**VECTOR)
def add_extremes(d, out):
    low, high, below, above = out[17], out[18], out[19], out[22]
    for i in range(len(d)):
        x = d[i]
        low = min(low, x)
        high = max(high, x)
        below = max(below, x if x <= 0.0 else -math.inf)
        above = min(above, x if x >= 0.0 else math.inf)
    out[17], out[18], out[19], out[22] = low, high, below, above


@njit(**VECTOR)
def count_inside(d, lower, upper):
    inside = 0
    for i in range(len(d)):
        inside += 1 if lower <= d[i] <= upper else 0
    return inside


@njit(**VECTOR)
def copy(training, rollout, start, stop, log_pi, log_mu, d, place):
    """The tokens of a span that are all valid."""
    for i in range(stop - start):
        log_pi[i] = training[start + i]
        log_mu[i] = rollout[start + i]
        d[i] = log_pi[i] - log_mu[i]
        place[i] = start + i


@njit(**SCALAR)
def gather(training, rollout, mask, start, stop, log_pi, log_mu, d, place):
    """The valid tokens of a span, packed; how many there are."""
    n = 0
    for i in range(start, stop):
        n += mask[i]
    if n == stop - start:
        copy(training, rollout, start, stop, log_pi, log_mu, d, place)
        return n
    n = 0
    for i in range(start, stop):
        if mask[i]:
            log_pi[n] = training[i]
            log_mu[n] = rollout[i]
            d[n] = log_pi[n] - log_mu[n]
            place[n] = i
            n += 1
    return n


@njit(ROWS, **SCALAR)
def rows(
    training, rollout, mask, offsets, middle, first_cell, cuts, clamps, caps, intervals,
    sums, clamped, capped, counted, log_ratio, cell, u, worst_at, worst_abs,
):  # fmt: skip
    log_pi, log_mu, ratio, excess = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    mu, mu_less_1 = np.empty(BLOCK), np.empty(BLOCK)
    x, at_middle, excess_middle, scale = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    scale_bits, place = scale.view(np.int64), np.empty(BLOCK, dtype=np.int64)
    bits, fine = log_ratio.view(np.int64), np.empty(BLOCK, dtype=np.int32)
    total = np.empty(23)
    at = 0
    worst_slot, least_worst = 0, 0.0
    for row in range(len(offsets) - 1):
        first = at
        total[:] = 0.0
        total[17], total[18], total[19], total[22] = math.inf, -math.inf, -math.inf, math.inf
        total[20], total[21] = -math.inf, math.inf
        for start in range(offsets[row], offsets[row + 1], BLOCK):
            stop = min(start + BLOCK, offsets[row + 1])
            n = gather(training, rollout, mask, start, stop, log_pi, log_mu, log_ratio[at:], place)
            d, v = log_ratio[at : at + n], u[at : at + n]
            xs, mid, mid_excess = x[:n], at_middle[:n], excess_middle[:n]
            r, e, p, m, m_less_1 = ratio[:n], excess[:n], log_pi[:n], mu[:n], mu_less_1[:n]
            fine_bins(bits[at : at + n], fine[:n])
            cells_of(d, fine[:n], first_cell, cuts, cell[at : at + n])
            farthest = look_up(d, cell[at : at + n], middle, xs, mid, mid_excess)
            from_midpoints(xs, mid, mid_excess, v, r, e)
            if farthest >= SMALL:
                far_from_midpoints(d, xs, mid, mid_excess, v, r, e)
            exponentials(log_mu[:n], m, m_less_1, scale, scale_bits)
            add_divergences(d, r, e, total)
            for j in range(len(caps)):
                add_capped(e, LEAST_EXCESS, caps[j], capped[row, j])
            if farthest >= 0.25:
                far_probabilities(d, p, m, e)
            add_probabilities(p, log_mu[:n], m, m_less_1, e, total)
            add_extremes(d, total)
            for j in range(len(intervals)):
                counted[row, j] += count_inside(d, intervals[j, 0], intervals[j, 1])
            if max(-total[17], total[18]) > least_worst:
                for i in range(n):
                    size = abs(d[i])
                    if size > least_worst:
                        worst_at[worst_slot] = place[i]
                        worst_abs[worst_slot] = size
                        worst_slot = least_of(worst_abs, worst_at)
                        least_worst = worst_abs[worst_slot]
            at += n

        low, high = total[17], total[18]
        out = sums[row]
        out[0] = at - first
        out[1:6] = total[0:5]
        out[6] = total[7]
        out[7], out[8], out[9], out[10] = low, high, total[19], total[22]
        out[11], out[12] = log_sums(log_ratio[first:at], low, high, total[5], total[6])
        out[13:22] = total[8:17]
        out[22], out[23] = total[20], total[21]
        for j in range(len(clamps)):
            if max(-low, high) <= clamps[j]:
                clamped[row, j, 0], clamped[row, j, 1] = total[0], total[1]
                clamped[row, j, 2], clamped[row, j, 3] = total[3], total[4]
            else:
                clamp_row(log_ratio[first:at], clamps[j], clamped[row, j])


@njit(BINS, **SCALAR)
def bins(cell, u, row_order, row_ends, group_ends, cells, index, counts, sum_u, sum_u_sq, ends):
    table = np.zeros((cells, 3))
    touched = np.empty(cells, dtype=np.int64)
    at = 0
    next_row = 0
    for group in range(len(group_ends)):
        used = 0
        for k in range(next_row, group_ends[group]):
            row = row_order[k]
            start = row_ends[row - 1] if row > 0 else 0
            for i in range(start, row_ends[row]):
                place, v = np.uint32(cell[i]), u[i]
                if table[place, 0] == 0.0:
                    touched[used] = place
                    used += 1
                table[place, 0] += 1.0
                table[place, 1] += v
                table[place, 2] += v * v
        next_row = group_ends[group]
        for place in np.sort(touched[:used]):
            index[at], counts[at] = place, np.int64(table[place, 0])
            sum_u[at], sum_u_sq[at] = table[place, 1], table[place, 2]
            table[place] = 0.0
            at += 1
        ends[group] = at
