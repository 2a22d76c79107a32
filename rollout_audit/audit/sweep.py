"""Which thresholds a sweep covers by default, and the sweep itself over a finished pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit.best import SETTINGS as SETTINGS_OF_POINT
from rollout_audit.audit.best import best_points
from rollout_audit.audit.limits import Limits
from rollout_audit.audit.report import SweepFamily, SweepReport
from rollout_audit.corrections.cuts import token_interval
from rollout_audit.corrections.describe import describe
from rollout_audit.corrections.model import Aggregation, Bound, Correction, Level, Rule, Statistic, Weight
from rollout_audit.errors import UsageError
from rollout_audit.statistics.populations import pieces
from rollout_audit.statistics.scope import Scope
from rollout_audit.statistics.sweep import COLUMNS, Sweep, nested_rule, sweep_joint, sweep_rules, sweep_weights
from rollout_audit.statistics.sweep_bands import sweep_bands, sweep_joint_bands
from rollout_audit.statistics.sweep_errors import Answered, exactly, with_errors

__all__ = [
    "SETTINGS",
    "Grid",
    "check_points",
    "default_grid",
    "settings_of",
    "sweep_columns",
    "sweep_report",
    "sweep_scope",
]

Family = tuple[Statistic, Aggregation]

MOST_POINTS, MOST_ROWS = 200_000, 5_000_000
"""Configurations of a grid; rows of its long form, step by step"""

SEQUENCE_FAMILIES: tuple[Family, ...] = (
    (Statistic.K1, Aggregation.SEQ_SUM),
    (Statistic.K1, Aggregation.SEQ_MEAN),
    *(
        (s, a)
        for s in (Statistic.K2, Statistic.K3)
        for a in (Aggregation.SEQ_SUM, Aggregation.SEQ_MEAN, Aggregation.SEQ_MAX)
    ),
)
JOINT_FAMILIES: tuple[Family, ...] = (
    (Statistic.K1, Aggregation.SEQ_SUM),
    (Statistic.K1, Aggregation.SEQ_MEAN),
    (Statistic.K3, Aggregation.SEQ_MEAN),
    (Statistic.K2, Aggregation.SEQ_MAX),
)
PAST_LAST = 2.0**-20
"""How far, relatively, the threshold that keeps every row lies past the last of them"""
SETTINGS = ("family", *SETTINGS_OF_POINT, "formula")
"""What names a point of a sweep, beside its figures"""


@dataclass(frozen=True)
class Grid:
    """Thresholds that are known before the pass, and how many each sequence rule gets from the data after it."""

    weights: tuple[tuple[Weight, ...], ...]
    """each of one level"""
    token_rules: tuple[tuple[Rule, ...], ...]
    """each a nested family, thresholds ascending"""
    vetoes: tuple[float, ...]
    fitted: int
    """thresholds of each sequence rule"""
    joint: tuple[Weight, ...]
    """weights tried under each family of sequence rules; token weights truncated only, at most 8"""
    joint_fitted: int
    given: tuple[tuple[Rule, ...], ...] | None = None
    """sequence rules, each a nested family with thresholds ascending, instead of those that are fitted to the data"""
    bands: tuple[Rule, ...] = ()
    """rules with two bounds of k1, each by itself"""

    @property
    def points(self) -> int:
        """Configurations, at most."""
        families, joint = len(SEQUENCE_FAMILIES) * self.fitted, len(JOINT_FAMILIES) * self.joint_fitted
        if self.given is not None:
            families = joint = sum(map(len, self.given))
        known = (*self.weights, *self.token_rules, self.vetoes, self.bands)
        return sum(map(len, known)) + families + len(self.joint) * (joint + len(self.sequence_bands))

    @property
    def sequence_bands(self) -> tuple[Rule, ...]:
        """Those that take rows whole, which weights are tried under too."""
        return tuple(rule for rule in self.bands if rule.aggregation.per_row)

    @property
    def token_caps(self) -> tuple[float, ...]:
        """Caps of token weights whose sums must be kept row by row."""
        return tuple(w.upper for w in self.joint if w.level is Level.TOKEN and w.upper is not None)

    @cached_property
    def cuts(self) -> tuple[float, ...]:
        """Where tokens must be told apart so that every token threshold is answered exactly."""
        weights = (w for part in (*self.weights, self.joint) for w in part)
        of_tokens = [w for w in weights if w.level is Level.TOKEN]
        ends = {piece.upper for w in of_tokens for piece in pieces(w)}
        bounds = [token_interval(rule) for part in self.token_rules for rule in part]
        bounds += [token_interval(rule) for rule in self.bands if rule.aggregation is Aggregation.TOKEN]
        ends |= {math.nextafter(interval.lower, -math.inf) for interval in bounds}
        return tuple(sorted(ends | {interval.upper for interval in bounds}))


def default_grid() -> Grid:
    """Some 2,700 configurations: every level and bound mode, all eleven of verl's rules, vetoes, joint sweeps."""
    ratios = np.geomspace(1.1, 10.0, 64)
    near_one = 1.0 + np.geomspace(1e-4, 0.2, 48)
    levels = {Level.TOKEN: ratios, Level.SEQUENCE: ratios, Level.GEOMETRIC: near_one}
    k1, divergence = np.geomspace(1.01, 10.0, 48), np.geomspace(1e-4, 10.0, 48)
    thresholds = {Statistic.K1: k1, Statistic.K2: divergence, Statistic.K3: divergence}
    return Grid(
        weights=tuple(part for level, uppers in levels.items() for part in _bounds_of(level, uppers.tolist())),
        token_rules=tuple(
            tuple(nested_rule(statistic, Aggregation.TOKEN, value) for value in values.tolist())
            for statistic, values in thresholds.items()
        ),
        vetoes=tuple(np.geomspace(1e-1, 1e-6, 16).tolist()),
        fitted=48,
        joint=tuple(
            Weight(level, Bound.TRUNCATE, upper=cap)
            for level, caps in {Level.TOKEN: (1.5, 2.0, 3.0, 5.0), Level.SEQUENCE: (1.5, 2.0, 3.0, 5.0, 10.0)}.items()
            for cap in caps
        ),
        joint_fitted=24,
    )


def check_points(points: int, most: int, option: str) -> None:
    """Raises UsageError where a sweep would be too large."""
    if points > most:
        raise UsageError(
            f"{option}: {points:,} points, more than {most:,}; give fewer thresholds, or leave an axis out with none"
        )


def sweep_scope(scope: Scope, grid: Grid) -> Answered:
    """Every point of the grid on one batch; no point where there is no valid token.

    Thresholds that are no cut of the pass are read off the single tokens where these are kept, else with an error.
    """
    if not scope.tokens:
        return with_errors(scope, Sweep.of([]))
    cuts = np.array(grid.cuts)
    divided = not np.isin(cuts[np.isfinite(cuts)], scope.grid.edges).all()
    batch = scope.by_value() if divided and scope.values is not None else scope
    sweep = Sweep.joined(list(_parts(batch, grid)) or [Sweep.of([])])
    return with_errors(scope, sweep) if divided and batch is scope else exactly(sweep)


class Formulas(Sequence[str]):
    """What each point does, in words: made when it is read, since of thousands few are."""

    def __init__(self, corrections: Sequence[Correction]) -> None:
        self._corrections = corrections

    def __len__(self) -> int:
        return len(self._corrections)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        return [*map(describe, self._corrections[i])] if isinstance(i, slice) else describe(self._corrections[i])


def sweep_columns(sweep: Sweep) -> Mapping[str, Sequence[object] | NDArray[np.float64]]:
    """The points as columns: settings, then figures."""
    settings = [settings_of(correction) for correction in sweep.corrections]
    columns: dict[str, Sequence[object] | NDArray[np.float64]] = {
        name: Formulas(sweep.corrections) if name == "formula" else [point[name] for point in settings]
        for name in SETTINGS
    }
    return columns | {name: sweep.figures[name] for name in COLUMNS}


def sweep_report(
    sweep: Answered,
    columns: Mapping[str, Sequence[object] | NDArray[np.float64]],
    limits: Limits,
    named: Sequence[str] = (),
) -> SweepReport:
    """How many points there are, those that stated criteria pick, and the strictest of each family within limits.

    `columns` are those of `sweep_columns`; `named` the corrections that stand beside the grid.
    """
    families: dict[str, list[int]] = {}
    for i, family in enumerate(columns["family"]):
        families.setdefault(str(family), []).append(i)
    found = [_best(sweep, name, np.array(points), limits) for name, points in families.items()]
    return SweepReport(
        points=len(sweep.corrections),
        inexact=int(np.count_nonzero(~sweep.exact)),
        min_ess=limits.min_ess,
        max_masked=limits.max_masked,
        max_mass_lost=limits.max_mass_lost,
        max_bounded=limits.max_bounded,
        max_kl=limits.max_kl,
        named=list(named),
        best=best_points(columns, limits) if sweep.corrections else [],
        families=found,
    )


def _best(sweep: Sweep, family: str, points: NDArray[np.int64], limits: Limits) -> SweepFamily:
    """The strictest point within the limits: the largest ess, of bare rules the one that masks most."""
    figures = {name: column[points] for name, column in sweep.figures.items()}
    within = (
        (figures["ess"] >= limits.min_ess)
        & (figures["masked_fraction"] <= limits.max_masked)
        & (figures["mass_lost"] <= limits.max_mass_lost)
    )
    if not within.any():
        return SweepFamily(family=family, points=len(points), within=0, formula=None, figures={})
    best = int(np.lexsort((-figures["masked_fraction"], -np.round(figures["ess"], 9), ~within))[0])
    return SweepFamily(
        family=family,
        points=len(points),
        within=int(within.sum()),
        formula=describe(sweep.corrections[int(points[best])]),
        figures={name: float(c[best]) if math.isfinite(c[best]) else None for name, c in figures.items()},
    )


def _bounds_of(level: Level, uppers: Sequence[float]) -> Iterator[tuple[Weight, ...]]:
    """Truncation by each upper bound; clip and mask with its reciprocal, and freely on a coarser grid."""
    yield tuple(Weight(level, Bound.TRUNCATE, upper=upper) for upper in uppers)
    coarse = [uppers[i] for i in np.linspace(0, len(uppers) - 1, 12).astype(int)]
    for bound in (Bound.CLIP, Bound.MASK):
        yield tuple(Weight(level, bound, 1.0 / upper, upper) for upper in uppers)
        yield tuple(Weight(level, bound, 1.0 / below, upper) for below in coarse for upper in coarse if below != upper)


def _parts(scope: Scope, grid: Grid) -> Iterator[Sweep]:
    for weights in filter(None, grid.weights):
        yield sweep_weights(scope, weights)
    sequence_rules = _sequence_rules(scope, grid, SEQUENCE_FAMILIES, grid.fitted)
    for rules in (*grid.token_rules, *sequence_rules):
        yield sweep_rules(scope, rules)
    if grid.bands:
        yield sweep_bands(scope, grid.bands)
    vetoes = [Rule(Statistic.K1, Aggregation.SEQ_MAX, upper=-math.log(v), clamp=None) for v in grid.vetoes]
    if vetoes:
        yield sweep_rules(scope, vetoes)
    joint_rules = list(_sequence_rules(scope, grid, JOINT_FAMILIES, grid.joint_fitted)) if grid.joint else []
    for weight in grid.joint:
        for rules in joint_rules:
            yield sweep_joint(scope, weight, rules)
        if grid.sequence_bands:
            yield sweep_joint_bands(scope, weight, grid.sequence_bands)


def _sequence_rules(scope: Scope, grid: Grid, families: Sequence[Family], points: int) -> Iterator[Sequence[Rule]]:
    """Those that were given, else fitted to the data."""
    fitted = (_fitted(scope, family, points) for family in families) if grid.given is None else grid.given
    yield from filter(None, fitted)


def _fitted(scope: Scope, family: Family, points: int) -> list[Rule]:
    """Thresholds at even quantiles of the rows' own statistic: each step rejects about as many rows as the last.

    Half way to the next row, so that no row lies on one of them and the order of a sum decides nothing.
    """
    rule = nested_rule(*family, 2.0 if family[0] is Statistic.K1 else 1.0)
    own = scope.remember(("distinct", family), lambda: np.unique(np.abs(scope.row_statistic(rule)), return_counts=True))
    values, rows = own
    places = np.ceil(np.linspace(0.02, 1.0, points) * (scope.sequences - 1))
    at = np.unique(np.searchsorted(np.cumsum(rows), places, side="right"))
    above = np.append(values[1:], values[-1:] * (1.0 + PAST_LAST))[at]
    thresholds = values[at] + (above - values[at]) / 2.0
    values = thresholds[(thresholds > 0.0) & (thresholds < 700.0)].tolist()
    if family[0] is Statistic.K1:
        return [Rule(*family, lower=-value, upper=value) for value in values]
    return [Rule(*family, upper=value) for value in values]


def settings_of(correction: Correction) -> dict[str, object]:
    """A point as plain values; of several rules the names alone. Its formula is left to `describe`."""
    weight, names = correction.applied_weight, tuple(rule.name for rule in correction.rules)
    rule = correction.rules[0] if len(names) == 1 else None
    return {
        "family": _family(correction.weight.level, correction.weight.bound, names),
        "level": weight.level.value,
        "bound": weight.bound.value,
        "lower": weight.lower,
        "upper": weight.upper,
        "rule": " and ".join(names) or None,
        "rule_lower": None if rule is None else rule.lower,
        "rule_upper": None if rule is None else rule.upper,
    }


@cache
def _family(level: Level, bound: Bound, rules: tuple[str, ...]) -> str:
    """What the points of one line of a sweep share."""
    weight = "" if level is Level.NONE else f"{level} {bound}"
    rule = rules[0] if rules else ""
    if rule == "seq_max_k1":
        rule = "veto"
    return " + ".join(filter(None, (weight, rule)))
