from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_audit.corrections.cuts import Interval, at_most
from rollout_audit.corrections.model import Aggregation, Bound, Correction, Level, Rule, Statistic, Weight
from rollout_audit.statistics.batches import Batches
from rollout_audit.statistics.population import Population
from rollout_audit.statistics.populations import EqualWeights, Piece, PiecewiseWeights, Populations, pieces
from rollout_audit.statistics.stages import correction_stages
from tests.builders import chunk_of, pass_plan, scope_of


def test_a_cap_below_every_clamped_ratio_takes_from_large_ratios_alone() -> None:
    """d clamped to ±10 is never as small as log 1e-5, so every weight is the cap, also where ρ itself is smaller."""
    weight = Weight(Level.TOKEN, Bound.TRUNCATE, upper=1e-5, clamp=10.0)
    assert pieces(weight) == (Piece(at_most(1e-5), 1e-5), Piece(math.inf, 1e-5))
    correction = Correction(weight)
    scope = scope_of([chunk_of([[-14.0, 0.0, -11.0]], rollout=0.0)], pass_plan({"it": correction}))
    bounded = correction_stages(scope, "it", correction)["bounded"]
    ratios = [math.exp(-14.0), 1.0, math.exp(-11.0)]
    lost = sum(max(ratio - 1e-5, 0.0) for ratio in ratios)
    assert bounded["mass_lost"] == pytest.approx(lost / sum(ratios), rel=1e-12)
    assert (bounded["weight_min"], bounded["weight_max"]) == (1e-5, 1e-5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=6), min_size=1, max_size=5), st.data())
def test_cells_of_all_batches_are_the_sum_of_their_classes(rows: list[list[float]], data: st.DataObject) -> None:
    bounds = data.draw(st.lists(st.sampled_from([0.01, 0.1, 0.5]), min_size=1, max_size=3, unique=True))
    filters = [Correction(rules=(Rule(Statistic.K2, Aggregation.SEQ_MEAN, upper=bound),)) for bound in bounds]
    plan = pass_plan({f"filter {i}": correction for i, correction in enumerate(filters)})
    scopes = [scope_of([chunk_of([row, rows[0]])], plan) for row in rows]
    together = Batches(tuple(scopes))
    for keep in (None, *range(len(scopes[0].plan.filters))):
        joined = together.token_cells(keep)
        for i, scope in enumerate(scopes):
            own, part = scope.token_cells(keep), joined.atoms.part(slice(*joined.starts[i : i + 2].tolist()))
            for field in fields(Population):
                np.testing.assert_array_equal(getattr(part, field.name), getattr(own, field.name))


@pytest.mark.parametrize("upper", [0.5, 1.0, 2.0])
def test_equal_weights_are_those_of_log_ratios_of_0(upper: float) -> None:
    counts = np.array([3, 1, 4], dtype=np.int64)
    atoms = Population.of_values(np.zeros(3), counts)
    listed = PiecewiseWeights(Populations(np.arange(4), atoms), (Piece(math.inf, None),))
    equal = EqualWeights(counts.astype(np.float64))
    for name in ("size", "mean", "variance", "zeros", "ess", "least", "greatest"):
        np.testing.assert_array_equal(getattr(equal, name), getattr(listed, name))
    np.testing.assert_array_equal(equal.quantiles([0.0, 0.5]), listed.quantiles([0.0, 0.5]))
    np.testing.assert_array_equal(equal.mass(), listed.mass())
    np.testing.assert_array_equal(equal.mass_lost(), listed.mass_lost())
    interval = Interval(-math.inf, math.log(upper))
    np.testing.assert_array_equal(equal.count_within(interval), listed.count_within(interval))
