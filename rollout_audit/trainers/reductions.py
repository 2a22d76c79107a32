"""From per-row columns to one number, as trainers reduce (NumPy float64).

Trainers' masked means divide by count + 1e-8. Rows without a valid token are in some means and not in others:
B means all rows, B+ the rows with a valid token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rollout_audit.statistics.metrics import Absent, Figure, Metrics, Noted
from rollout_audit.trainers.base import Columns, OrderStatistics

__all__ = [
    "EPSILON",
    "NEEDS_ADVANTAGES",
    "NEEDS_REWARD",
    "fraction",
    "largest",
    "mean",
    "percentiles",
    "row_order",
    "row_values",
    "sample_mean",
    "smallest",
    "summarise",
    "token_mean",
    "token_std",
    "unbiased_std",
]

EPSILON = 1e-8
"""What verl and its descendants add to the denominator of a masked mean."""

NEEDS_ADVANTAGES = Absent("needs advantages")
NEEDS_REWARD = Absent("needs reward")

Rows = NDArray[np.float64]


def mean(values: Rows) -> float:
    """Mean over the rows given; NaN for none."""
    return float(values.sum() / np.float64(values.size))


def fraction(hits: NDArray[np.bool_]) -> float:
    """Share of the rows given where the predicate holds; NaN for none."""
    return mean(hits.astype(np.float64))


def largest(values: Rows) -> float:
    """Maximum over the rows given; NaN for none."""
    return float(values.max(initial=-np.inf)) if values.size else float("nan")


def smallest(values: Rows) -> float:
    """Minimum over the rows given; NaN for none."""
    return float(values.min(initial=np.inf)) if values.size else float("nan")


def unbiased_std(values: Rows) -> float:
    """Standard deviation with n − 1; 0 for a single row."""
    return float(values.std(ddof=1)) if values.size > 1 else 0.0


def token_mean(sums: Rows, tokens: Rows) -> float:
    """Σ over all valid tokens of the batch / (their count + 1e-8)."""
    return float(sums.sum() / (tokens.sum() + EPSILON))


def row_values(sums: Rows, tokens: Rows) -> Rows:
    """[rows] Σ over the row / (its count + 1e-8); 0 for a row without a valid token."""
    return sums / (tokens + EPSILON)


def sample_mean(sums: Rows, rows: Columns) -> float:
    """Mean over all B rows of the mean over each row's valid tokens, 0 for a row without any."""
    return mean(sums / np.maximum(rows["tokens"], 1))


def percentiles(levels: Sequence[float], tokens: int, order: OrderStatistics, weight: Callable[[Rows], Rows]) -> Rows:
    """Quantiles of weight(log-ratio) over the tokens, interpolated linearly between neighbouring weights."""
    place = np.asarray(levels) * (tokens - 1)
    below = np.floor(place).astype(np.int64)
    low, high = (weight(order(ranks)) for ranks in (below, np.minimum(below + 1, tokens - 1)))
    return np.asarray(low + (high - low) * (place - below), dtype=np.float64)


def row_order(per_row: Rows, tokens: Rows) -> OrderStatistics:
    """Order statistics over tokens of a value that is the same on all tokens of a row."""
    ascending = np.argsort(per_row, kind="stable")
    ends = np.cumsum(tokens[ascending])
    return lambda ranks: per_row[ascending[np.searchsorted(ends, ranks, side="right")]]


def token_std(sums: Rows, within: Rows, tokens: Rows, zeros: float = 0.0) -> Figure:
    """Standard deviation with n − 1 of a value over the valid tokens, and over `zeros` positions of value 0.

    `sums` and `within` are [rows] Σx and Σ(x − mean of the row)².
    """
    valid = tokens > 0
    n, total = float(tokens.sum()) + zeros, sums.sum()
    if n < 2:
        return Absent("n < 2")
    center = total / n
    between = tokens[valid] * (sums[valid] / tokens[valid] - center) ** 2
    return float(np.sqrt((within.sum() + between.sum() + zeros * center**2) / (n - 1)))


NO_TOKEN = Absent("no valid token")


def summarise(rows: Columns, compute: Callable[[], Mapping[str, Figure]], prefix: str) -> Metrics:
    """The computed values under the trainer's prefix; all null where the batch has no valid token."""
    with np.errstate(all="ignore"):
        values = compute()
    if not rows["tokens"].sum():
        return Metrics({f"{prefix}{name}": NO_TOKEN for name in values})
    return Metrics({f"{prefix}{name}": _noted(name, value) for name, value in values.items()})


def _noted(name: str, value: Figure) -> Figure:
    """The one exception to "null, never 0": an effective sample size where no weight is left."""
    nothing_left = name.endswith("eff_sample_size") and value == 0
    return Noted(0.0, "every weight is 0") if nothing_left else value
