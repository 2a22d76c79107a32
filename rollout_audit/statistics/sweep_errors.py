"""How far a point of a sweep may be off where its threshold is no cut of the grid.

Of the tokens of a cell that a threshold divides only the number and the sums are known. Each of their weights lies
between ends that the cell's own ends give, so every figure lies between two ends too: the point holds the middle and
half the distance. Rules by sequence are read off the rows and are exact always.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollout_audit.corrections.cuts import EVERYTHING, Interval, token_interval, weight_interval
from rollout_audit.corrections.model import Aggregation, Bound, Correction, Level, Weight
from rollout_audit.statistics.population import Population
from rollout_audit.statistics.populations import PiecewiseWeights, Populations, pieces
from rollout_audit.statistics.scope import Scope
from rollout_audit.statistics.sweep import COLUMNS, Sweep

__all__ = ["Answered", "exactly", "with_errors"]

Array = NDArray[np.float64]
Ends: TypeAlias = tuple[float, float]
ROUNDING = 1e-12


@dataclass(frozen=True)
class Answered(Sweep):
    """A sweep that says of each point whether it is exact, and of each figure how far it may be off if not."""

    exact: NDArray[np.bool_]
    """[points]"""
    errors: dict[str, Array]
    """name of COLUMNS → [points]: the true figure lies within value ± error; 0 where exact"""


def exactly(sweep: Sweep) -> Answered:
    """A sweep whose every threshold was a cut."""
    size = len(sweep.corrections)
    errors = {name: np.zeros(size) for name in COLUMNS}
    return Answered(sweep.corrections, sweep.figures, np.ones(size, dtype=bool), errors)


def with_errors(scope: Scope, sweep: Sweep) -> Answered:
    """The sweep, with the middle of the possible figures wherever a threshold divides a cell that holds tokens."""
    found = exactly(sweep)
    figures, errors, exact = {n: c.copy() for n, c in sweep.figures.items()}, found.errors, found.exact
    for i, correction in enumerate(sweep.corrections):
        interval = _token_interval(correction)
        if interval == EVERYTHING or not (divided := _divided(scope, interval)):
            continue
        exact[i] = False
        point = {name: float(column[i]) for name, column in sweep.figures.items()}
        for name, (low, high) in _ends(scope, correction, divided, point).items():
            figures[name][i], errors[name][i] = _middle(low, high)
    return Answered(sweep.corrections, figures, exact, errors)


@dataclass(frozen=True)
class _Cell:
    """A cell that a bound divides: its tokens, their mass, and the log-ratios between which they lie."""

    at: int
    size: int
    mass: float
    lower: float
    upper: float
    by_lower: bool
    """whether the lower bound divides it; `by_upper` whether the upper bound does, which may be too"""
    by_upper: bool


def _token_interval(correction: Correction) -> Interval:
    """What decides on single tokens; everything where a correction looks at rows (their sums are exact)."""
    if any(rule.aggregation is not Aggregation.TOKEN for rule in correction.rules):
        return EVERYTHING
    if correction.rules:
        return token_interval(correction.rules[0])
    return weight_interval(correction.weight) if correction.weight.level is Level.TOKEN else EVERYTHING


def _divided(scope: Scope, interval: Interval) -> list[_Cell]:
    lower, upper = math.nextafter(interval.lower, -math.inf), interval.upper
    below, above = _cell_divided_at(scope, lower), _cell_divided_at(scope, upper)
    if below is not None and above is not None and below.at == above.at:
        return [replace(above, by_lower=True, by_upper=True)]
    of_lower = [] if below is None else [replace(below, by_lower=True)]
    return of_lower + ([] if above is None else [replace(above, by_upper=True)])


def _cell_divided_at(scope: Scope, cut: float) -> _Cell | None:
    """The occupied cell that has the cut inside it, if there is one."""
    cells, grid = scope.token_cells(), scope.grid.edges
    place = int(np.searchsorted(grid, cut))
    if grid[place] == cut:
        return None
    least, greatest = scope.remember("extremes", lambda: (scope.rows["min_d"].min(), scope.rows["max_d"].max()))
    if not least <= cut < greatest:
        return None
    at = int(np.searchsorted(cells.edges, cut, side="right"))
    if int(np.searchsorted(grid, cells.edges[at])) != place:
        return None
    below = max(float(grid[place - 1]) if place else -math.inf, float(least))
    above = min(float(grid[place]), float(greatest))
    return _Cell(at, int(cells.counts[at]), float(cells.ratio[at]), below, above, by_lower=False, by_upper=False)


def _ends(scope: Scope, correction: Correction, divided: list[_Cell], point: Mapping[str, float]) -> dict[str, Ends]:
    cells = scope.token_cells()
    rest = _without(cells, [cell.at for cell in divided])
    if correction.rules:
        return _rule_ends(scope, rest.between(*token_interval(correction.rules[0])).size, divided, point)
    return _weight_ends(cells, rest, correction.weight, divided)


def _rule_ends(scope: Scope, inside: int, divided: list[_Cell], point: Mapping[str, float]) -> dict[str, Ends]:
    """Which rows are left and touched is known from their extremes; only the number of kept tokens is not."""
    rows = round((1.0 - point["seq_masked_fraction"]) * scope.sequences)
    low = max(inside, rows)
    high = max(inside + sum(cell.size for cell in divided), low) if rows else 0
    n = scope.tokens
    one = (1.0, 1.0) if rows else (math.nan, math.nan)
    return {
        "masked_fraction": ((n - high) / n, (n - low) / n),
        "gradient_scale_original": (low / n, high / n),
        **dict.fromkeys(("ess", "weight_mean", "weight_max", "gradient_scale_kept"), one),
        "weight_std": (0.0, 0.0) if high > 1 else (math.nan, math.nan),
        "kept_kl_k3": (math.nan, math.nan),  # of the divided cell only weights are summed, not k3
    }


def _weight_ends(cells: Population, rest: Population, weight: Weight, divided: list[_Cell]) -> dict[str, Ends]:
    n, total = cells.size, float(cells.ratio.sum())
    known = PiecewiseWeights(Populations.of([rest]), pieces(weight))
    size, off, variance = (float(x[0]) for x in (known.size, known.mean - 1.0, known.variance))
    between = [(cell.size, *_weights_in(cell, weight)) for cell in divided]
    excess = _plus(size * off, [(s * (low - 1.0), s * (high - 1.0)) for s, low, high in between])
    square = _plus(size * (variance + off**2), [_squares(s, lo - 1.0, hi - 1.0) for s, lo, hi in between])
    second = _plus(size * (variance + (1.0 + off) ** 2), [_squares(*item) for item in between])
    most = max(float(known.greatest[0]), 0.0)
    greatest = (max(most, *(low for _, low, _ in between)), max(most, *(high for _, _, high in between)))
    mean = 1.0 + excess[0] / n, 1.0 + excess[1] / n
    capped = n - rest.between(-math.inf, weight_interval(weight).upper).size - sum(cell.size for cell in divided)
    below = rest.between(-math.inf, math.nextafter(weight_interval(weight).lower, -math.inf)).size
    lost = _plus(float(known.mass_lost()[0]), [_lost(cell, weight) for cell in divided])
    zeros = float(known.zeros[0])
    zeroes = sum(cell.size for cell in divided) if weight.bound is Bound.MASK else 0
    return {
        "ess": _ess(mean, second, n),
        **dict.fromkeys(("weight_mean", "gradient_scale_kept", "gradient_scale_original"), mean),
        "weight_std": _std(excess, square, n),
        "weight_max": greatest,
        "capped_fraction": (capped / n, (capped + sum(c.size for c in divided if c.by_upper)) / n),
        "below_lower_fraction": (below / n, (below + sum(c.size for c in divided if c.by_lower)) / n),
        "zeroed_fraction": (zeros / n, (zeros + zeroes) / n),
        "mass_lost": (lost[0] / total, min(lost[1] / total, 1.0)),
    }


def _weights_in(cell: _Cell, weight: Weight) -> Ends:
    """The least and the greatest weight that a token of the cell may have."""
    clamp = math.inf if weight.clamp is None else weight.clamp
    low, high = (_exp(min(max(d, -clamp), clamp)) for d in (cell.lower, cell.upper))
    floor = weight.lower if weight.lower is not None and weight.bound is not Bound.TRUNCATE else 0.0
    ceiling = math.inf if weight.upper is None else weight.upper
    if weight.bound is Bound.MASK:
        return 0.0, min(high, ceiling)
    return min(max(low, floor), ceiling), min(max(high, floor), ceiling)


def _lost(cell: _Cell, weight: Weight) -> Ends:
    """Σ max(ρ − w, 0) over the cell: below a lower bound a clip only adds."""
    if weight.bound is Bound.MASK:
        return 0.0, cell.mass
    if not cell.by_upper or weight.upper is None:
        return 0.0, 0.0
    most = cell.size * max(_exp(cell.upper) - weight.upper, 0.0)
    return max(cell.mass - cell.size * weight.upper, 0.0), min(most, cell.mass)


def _squares(size: int, low: float, high: float) -> Ends:
    """Of `size` numbers between two ends, the sum of squares."""
    least = 0.0 if low <= 0.0 <= high else min(low * low, high * high)
    return size * least, size * max(low * low, high * high)


def _plus(known: float, unknown: list[Ends]) -> Ends:
    return known + sum(low for low, _ in unknown), known + sum(high for _, high in unknown)


def _ess(mean: Ends, second: Ends, n: int) -> Ends:
    low = max(mean[0], 0.0) ** 2 * n / second[1] if second[1] > 0 else 0.0
    high = max(mean[1], 0.0) ** 2 * n / second[0] if second[0] > 0 else 1.0
    return min(low, 1.0), min(high, 1.0)


def _std(excess: Ends, square: Ends, n: int) -> Ends:
    if n < 2:
        return math.nan, math.nan
    _, most = (x / n**2 for x in _squares(1, *excess))
    least = _squares(1, *excess)[0] / n**2
    return math.sqrt(max(square[0] / n - most, 0.0)), math.sqrt(max(square[1] / n - least, 0.0))


def _without(population: Population, places: list[int]) -> Population:
    keep = np.ones(len(population.edges), dtype=bool)
    keep[places] = False
    return population.part(keep)


def _middle(low: float, high: float) -> Ends:
    """Middle and half the distance, which covers rounding; no figure where an end is infinite."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return math.nan, math.nan
    middle = (low + high) / 2.0
    return middle, (high - low) / 2.0 + (ROUNDING * max(abs(low), abs(high)) if high > low else 0.0)


def _exp(d: float) -> float:
    return math.exp(d) if d < 709.0 else math.inf
