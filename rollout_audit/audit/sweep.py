"""Which thresholds a sweep covers by default, and the sweep itself over a finished pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit.best import best_points
from rollout_audit.audit.limits import Limits
from rollout_audit.audit.report import SweepFamily, SweepReport
from rollout_audit.corrections.cuts import token_interval, weight_interval
from rollout_audit.corrections.describe import describe
from rollout_audit.corrections.model import Aggregation, Bound, Correction, Level, Rule, Statistic, Weight
from rollout_audit.statistics.scope import Scope
from rollout_audit.statistics.sweep import COLUMNS, Sweep, nested_rule, sweep_joint, sweep_rules, sweep_weights

__all__ = ["SETTINGS", "Grid", "default_grid", "sweep_columns", "sweep_report", "sweep_scope"]

Family = tuple[Statistic, Aggregation]

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
SETTINGS = ("family", "level", "bound", "lower", "upper", "rule", "rule_lower", "rule_upper", "formula")
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
    joint_caps: tuple[float, ...]
    joint_fitted: int

    @cached_property
    def cuts(self) -> tuple[float, ...]:
        """Where tokens must be told apart so that every token threshold is answered exactly."""
        bounds = [weight_interval(w) for part in self.weights for w in part if w.level is Level.TOKEN]
        bounds += [token_interval(rule) for part in self.token_rules for rule in part]
        lower = {math.nextafter(interval.lower, -math.inf) for interval in bounds}
        return tuple(sorted(lower | {interval.upper for interval in bounds}))


def default_grid() -> Grid:
    """Some 2,400 configurations: every level and bound mode, all eleven of verl's rules, vetoes, joint sweeps."""
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
        joint_caps=(1.5, 2.0, 3.0, 5.0, 10.0),
        joint_fitted=24,
    )


def sweep_scope(scope: Scope, grid: Grid) -> Sweep:
    """Every point of the grid on one batch; no point where there is no valid token."""
    if not scope.tokens:
        return Sweep.of([])
    return Sweep.joined(list(_parts(scope, grid)))


def sweep_columns(sweep: Sweep) -> Mapping[str, Sequence[object] | NDArray[np.float64]]:
    """The points as columns: settings, then figures."""
    settings = [_settings(correction) for correction in sweep.corrections]
    return {name: [point[name] for point in settings] for name in SETTINGS} | {n: sweep.figures[n] for n in COLUMNS}


def sweep_report(sweep: Sweep, limits: Limits) -> SweepReport:
    """How many points there are, those that stated criteria pick, and the strictest of each family within limits."""
    families: dict[str, list[int]] = {}
    for i, correction in enumerate(sweep.corrections):
        families.setdefault(_family(correction), []).append(i)
    found = [_best(sweep, name, np.array(points), limits) for name, points in families.items()]
    return SweepReport(
        points=len(sweep.corrections),
        min_ess=limits.min_ess,
        max_masked=limits.max_masked,
        max_mass_lost=limits.max_mass_lost,
        max_bounded=limits.max_bounded,
        max_kl=limits.max_kl,
        best=best_points(sweep_columns(sweep), limits) if sweep.corrections else [],
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
    for weights in grid.weights:
        yield sweep_weights(scope, weights)
    for rules in grid.token_rules:
        yield sweep_rules(scope, rules)
    for family in SEQUENCE_FAMILIES:
        if fitted := _fitted(scope, family, grid.fitted):
            yield sweep_rules(scope, fitted)
    vetoes = [Rule(Statistic.K1, Aggregation.SEQ_MAX, upper=-math.log(v), clamp=None) for v in grid.vetoes]
    yield sweep_rules(scope, vetoes)
    for cap in grid.joint_caps:
        for family in JOINT_FAMILIES:
            if fitted := _fitted(scope, family, grid.joint_fitted):
                yield sweep_joint(scope, Weight(Level.SEQUENCE, Bound.TRUNCATE, upper=cap), fitted)


def _fitted(scope: Scope, family: Family, points: int) -> list[Rule]:
    """Thresholds at even quantiles of the rows' own statistic: each step rejects about as many rows as the last."""
    rule = nested_rule(*family, 2.0 if family[0] is Statistic.K1 else 1.0)
    statistic = np.abs(scope.row_statistic(rule))
    values = np.unique(np.quantile(statistic, np.linspace(0.02, 1.0, points), method="higher"))
    values = values[(values > 0.0) & (values < 700.0)].tolist()
    if family[0] is Statistic.K1:
        return [Rule(*family, lower=-value, upper=value) for value in values]
    return [Rule(*family, upper=value) for value in values]


def _settings(correction: Correction) -> dict[str, object]:
    weight, rule = correction.weight, correction.rules[0] if correction.rules else None
    return {
        "family": _family(correction),
        "level": weight.level.value,
        "bound": weight.bound.value,
        "lower": weight.lower,
        "upper": weight.upper,
        "rule": None if rule is None else rule.name,
        "rule_lower": None if rule is None else rule.lower,
        "rule_upper": None if rule is None else rule.upper,
        "formula": describe(correction),
    }


def _family(correction: Correction) -> str:
    """What the points of one line of a sweep share."""
    weight = (
        ""
        if correction.weight.level is Level.NONE
        else f"{correction.weight.level.value} {correction.weight.bound.value}"
    )
    rule = correction.rules[0].name if correction.rules else ""
    if rule == "seq_max_k1":
        rule = "veto"
    return " + ".join(filter(None, (weight, rule)))
