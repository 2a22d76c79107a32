"""The chunk-to-evidence step as two fused loops compiled by Numba: what `pair.pair_state` does with tensors.

The first loop reads every token once: log-ratio, cell, the sums of its row, the worst tokens. The second bins the
tokens by (step, class), one dense table at a time. A token costs one call of exp: with m the midpoint of its cell,
exp d = exp m · (1 + u), where u = expm1(d − m) is a short polynomial and exp m stands in a table.

Compiled on first use and cached beside the module (or where NUMBA_CACHE_DIR says), never at import.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_audit.statistics.grid import CellGrid

__all__ = ["BinnedTokens", "RowPass", "Wanted", "bin_tokens", "is_available", "row_pass"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SUMS = (
    "valid_tokens",
    "sum_d",
    "sum_abs_d",
    "sum_exp_abs_d",
    "sum_k2",
    "sum_k3",
    "beyond_20",
    "min_d",
    "max_d",
    "below_zero_d",
    "above_zero_d",
    "log_sum_ratio",
    "log_sum_ratio_sq",
    "sum_log_pi",
    "sum_log_mu",
    "sum_pi_less_1",
    "sum_mu_less_1",
    "sum_pi_less_1_sq",
    "sum_mu_less_1_sq",
    "sum_pi_mu_less_1",
    "sum_prob_diff",
    "sum_abs_prob_diff",
    "max_prob_diff",
    "min_prob_diff",
)
CLAMPED_SUMS = ("sum_d", "sum_abs_d", "sum_k2", "sum_k3")
CAPPED_SUMS = ("sum_excess", "sum_excess_sq")


@dataclass(frozen=True)
class Wanted:
    """What a plan asks of the first loop."""

    grid: CellGrid
    clamps: tuple[float, ...]
    """bounds on |d| under which row sums are wanted too"""
    caps: tuple[float, ...]
    """caps on token weights whose row sums are wanted"""
    intervals: Floats
    """[counters, 2] intervals of d whose tokens are counted by row (`kept_0`, …)"""
    worst: int
    """how many of the largest |d| to keep"""


@dataclass(frozen=True)
class RowPass:
    """What the first loop leaves: columns [rows], and for each valid token its log-ratio, cell and u.

    The token arrays are the thread's own scratch: the next `row_pass` on it writes over them.
    """

    columns: dict[str, Floats]
    log_ratio: Floats
    cell: NDArray[np.int32]
    u: Floats
    worst: Ints
    """places in the chunk of the tokens with the largest |d|, in no order"""


@dataclass(frozen=True)
class BinnedTokens:
    """Occupied cells of each group, ascending, one group after the other."""

    group_ends: Ints
    """[groups] where each group's cells end"""
    index: Ints
    counts: Ints
    sum_u: Floats
    sum_u_sq: Floats


@dataclass
class _Scratch(threading.local):
    """Token arrays that each thread keeps: fresh pages cost as much as the arithmetic done on them."""

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def array(self, name: str, size: int, dtype: type = np.float64) -> NDArray[Any]:
        """An array of at least that size, of which the first `size` are handed out, whatever they hold."""
        held = self.arrays.get(name)
        if held is None or len(held) < size:
            self.arrays[name] = held = np.empty(size + size // 8, dtype=dtype)
        return held[:size]

    def widened(self, name: str, values: NDArray[Any]) -> Floats:
        """The values as contiguous float64."""
        if values.dtype == np.float64 and values.flags.c_contiguous:
            return values
        wide = self.array(name, len(values))
        wide[:] = values
        return wide


_scratch = _Scratch()


@cache
def is_available() -> bool:
    """Whether the loops can be compiled: not without Numba, nor where it finds no folder to keep them in.

    The tensor path does the same without them. Loads or compiles them when first asked.
    """
    try:
        _kernels()
    except (ImportError, RuntimeError, OSError):
        return False
    return True


def row_pass(
    training: NDArray[Any],
    rollout: NDArray[Any],
    mask: NDArray[np.bool_],
    offsets: Ints,
    wanted: Wanted,
) -> RowPass:
    """Read every token of a chunk once.

    Args:
        training: [tokens] log π, `rollout` log μ; narrower types are widened exactly, so that one compiled loop serves.
        mask: [tokens]; what lies under a 0 is never read.
        offsets: [rows + 1].
        wanted: what else to keep beside the sums that are always there.
    """
    tables, clamps, caps, intervals = _tables(wanted.grid), wanted.clamps, wanted.caps, wanted.intervals
    rows, tokens = len(offsets) - 1, int(np.count_nonzero(mask))
    sums = np.empty((rows, len(SUMS)))
    clamped = np.empty((rows, len(clamps), len(CLAMPED_SUMS)))
    counted, capped = np.zeros((rows, len(intervals))), np.zeros((rows, len(caps), len(CAPPED_SUMS)))
    log_ratio, u = _scratch.array("log_ratio", tokens), _scratch.array("u", tokens)
    cell = _scratch.array("cell", tokens, np.int32)
    worst_at, worst_abs = np.full(wanted.worst, -1), np.zeros(wanted.worst)
    pi, mu = _scratch.widened("training", training), _scratch.widened("rollout", rollout)
    _kernels().rows(
        pi, mu, mask, offsets, *tables, np.asarray(clamps), np.asarray(caps), intervals,
        sums, clamped, capped, counted, log_ratio, cell, u, worst_at, worst_abs,
    )  # fmt: skip
    columns = {name: np.ascontiguousarray(sums[:, i]) for i, name in enumerate(SUMS)}
    for j, clamp in enumerate(clamps):
        columns |= {f"{name}@{clamp:g}": clamped[:, j, i].copy() for i, name in enumerate(CLAMPED_SUMS)}
    for j, cap in enumerate(caps):
        columns |= {f"{name}@{cap:g}": capped[:, j, i].copy() for i, name in enumerate(CAPPED_SUMS)}
    columns |= {f"kept_{i}": counted[:, i].copy() for i in range(len(intervals))}
    return RowPass(columns, log_ratio, cell, u, worst_at[worst_at >= 0])


def bin_tokens(found: RowPass, row_order: Ints, row_ends: Ints, group_ends: Ints, cells: int) -> BinnedTokens:
    """Add the tokens up by cell, group by group.

    Args:
        found: what `row_pass` returned.
        row_order: [rows] rows, those of one group together.
        row_ends: [rows] where each row's valid tokens end, in the order of the chunk.
        group_ends: [groups] where each group ends in `row_order`.
        cells: of the grid.
    """
    most = min(len(found.u), len(group_ends) * cells)
    index, counts = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    sum_u, sum_u_sq = np.empty(most), np.empty(most)
    ends = np.empty(len(group_ends), dtype=np.int64)
    _kernels().bins(
        found.cell, found.u, row_order, row_ends, group_ends, cells, index, counts, sum_u, sum_u_sq, ends
    )  # fmt: skip
    size = int(ends[-1]) if len(ends) else 0
    return BinnedTokens(ends, index[:size].copy(), counts[:size].copy(), sum_u[:size].copy(), sum_u_sq[:size].copy())


@cache
def _tables(grid: CellGrid) -> tuple[Floats, NDArray[np.int32], Floats]:
    """[cells, 3] midpoints with exp and expm1 of each; the first cell of each fine bin, and one past the last; cuts."""
    cuts = np.asarray(grid.cuts, dtype=np.float64)
    fine = CellGrid().edges
    below = np.searchsorted(cuts, np.concatenate([[-np.inf], fine[:-1]]), side="right")
    first_cell = np.append(np.arange(len(fine)) + below, grid.cells).astype(np.int32)
    return np.stack([grid.midpoints, grid.ratios, grid.excesses], axis=1), first_cell, cuts


@dataclass(frozen=True)
class _Kernels:
    rows: Callable[..., None]
    bins: Callable[..., None]


@cache
def _kernels() -> _Kernels:
    """Compile, or load what an earlier process compiled."""
    from rollout_audit.statistics import fused_loops

    return _Kernels(fused_loops.rows, fused_loops.bins)
