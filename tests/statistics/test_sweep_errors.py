"""Where a threshold is no cut of the grid, the true figure lies within the stated error."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_audit.audit.passes import PassPlan
from rollout_audit.corrections.model import Aggregation, Bound, Correction, Level, Rule, Statistic, Weight
from rollout_audit.corrections.packing import Packed
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.statistics.grid import QUANTILE_ERROR
from rollout_audit.statistics.plan import PairPlan
from rollout_audit.statistics.scope import Scope
from rollout_audit.statistics.stages import correction_stages
from rollout_audit.statistics.sweep import COLUMNS, Sweep, nested_rule, sweep_rules, sweep_weights
from rollout_audit.statistics.sweep_bands import sweep_bands
from rollout_audit.statistics.sweep_errors import Answered, with_errors
from tests import definitions
from tests.builders import CPU, ENGINE, LOG_RATIOS, chunk_of, chunks, pass_plan, scope_of, thresholds

BOUNDED = {"capped_fraction", "below_lower_fraction", "zeroed_fraction", "mass_lost"}
LEFT = {"kept_length_mean", "kept_kl_k3"}
TOKEN_STATISTICS = st.sampled_from([Statistic.K1, Statistic.K2, Statistic.K3])


def without_values(chunk: Chunk, cuts: tuple[float, ...] = ()) -> Scope:
    plan = PassPlan({ENGINE: PairPlan({}, cuts, (20.0,), keep_values=False)}, ENGINE, 1, [0], CPU)
    return scope_of([chunk], plan)


def truth_of(chunk: Chunk, corrections: tuple[Correction, ...]) -> list[dict[str, float | None]]:
    scope = scope_of([chunk], pass_plan({f"c{i}": c for i, c in enumerate(corrections)}))
    found = []
    for i, correction in enumerate(corrections):
        stages = correction_stages(scope, f"c{i}", correction)
        figures = {n: stages["bounded" if n in BOUNDED else "kept"][n] for n in COLUMNS if n not in LEFT}
        found.append(figures | definitions.left_after(correction, Packed(chunk, CPU).tokens("old_log_probs")))
    return found


def assert_within(answered: Answered, chunk: Chunk) -> None:
    for i, truth in enumerate(truth_of(chunk, answered.corrections)):
        for name, value in truth.items():
            got, error = answered.figures[name][i], answered.errors[name][i]
            if value is None or math.isnan(got):
                assert value is None or not answered.exact[i], (name, answered.corrections[i])
                continue
            assert abs(got - value) <= error + rounding_of(name, value, answered.figures["weight_max"][i]), (
                name,
                *(got, error, value, answered.corrections[i]),
            )


def rounding_of(name: str, value: float, greatest: float) -> float:
    """The greatest weight and k3 of what a token rule keeps are read off cells, as quantiles are."""
    if name == "weight_max" and value > 0:
        return 1.1 * QUANTILE_ERROR * abs(math.log(value)) * value + 1e-9
    if name == "kept_kl_k3":
        return 0.01 * value + 1e-9
    return (1e-7 if name == "weight_std" else 1e-9) * max(1.0, abs(greatest))


def drawn_chunk(data: st.DataObject) -> Chunk:
    return data.draw(chunks().filter(lambda c: bool(c.response_mask.any())))


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from([Bound.TRUNCATE, Bound.CLIP, Bound.MASK]))
def test_token_weights(data: st.DataObject, bound: Bound) -> None:
    """Narrow cells around a log-ratio that occurs, with bounds inside them."""
    chunk = drawn_chunk(data)
    d = chunk.old_log_probs - chunk.rollout_log_probs
    ratios = np.exp(np.clip(d, -6, 6)).tolist()
    pairs = data.draw(st.lists(st.tuples(thresholds(ratios), thresholds(ratios)), min_size=1, max_size=5))
    weights = [Weight(Level.TOKEN, bound, None if bound is Bound.TRUNCATE else min(p), max(p)) for p in sorted(pairs)]
    scope = without_values(chunk)
    assert_within(with_errors(scope, sweep_weights(scope, weights)), chunk)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(st.floats(-1e-3, 1e-3), min_size=3, max_size=40), st.floats(-1.2e-3, 1.2e-3))
def test_weights_in_one_wide_cell(data: st.DataObject, inside: list[float], cut: float) -> None:
    """Many different tokens share the cell that the bound divides."""
    center = data.draw(st.sampled_from([1.0, -1.0, 0.3]))
    chunk = chunk_of([[center + x for x in inside]], rollout=0.0)
    bound = data.draw(st.sampled_from([Bound.TRUNCATE, Bound.CLIP, Bound.MASK]))
    upper = math.exp(center + cut)
    weight = Weight(Level.TOKEN, bound, None if bound is Bound.TRUNCATE else upper * 0.9999, upper)
    scope = without_values(chunk)
    assert_within(with_errors(scope, sweep_weights(scope, [weight])), chunk)


@settings(max_examples=200, deadline=None)
@given(st.data(), TOKEN_STATISTICS)
def test_token_rules(data: st.DataObject, statistic: Statistic) -> None:
    chunk = drawn_chunk(data)
    values = data.draw(st.lists(st.one_of(st.floats(1.0001, 20.0), st.just(2.0)), min_size=1, max_size=5))
    rules = [
        nested_rule(statistic, Aggregation.TOKEN, v if statistic is Statistic.K1 else v - 1.0) for v in sorted(values)
    ]
    scope = without_values(chunk)
    assert_within(with_errors(scope, sweep_rules(scope, rules)), chunk)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from([Aggregation.TOKEN, Aggregation.SEQ_SUM, Aggregation.SEQ_MEAN]))
def test_bands_equal_each_by_itself(data: st.DataObject, aggregation: Aggregation) -> None:
    chunk = drawn_chunk(data)
    near = st.one_of(st.floats(0.0, 3.0), st.sampled_from([0.0, 0.0625, math.log(2.0), 3.0]))
    bands = data.draw(st.lists(st.tuples(near, near), min_size=1, max_size=4))
    rules = [Rule(Statistic.K1, aggregation, -low, high) for low, high in bands]
    planned = scope_of([chunk], pass_plan({f"c{i}": Correction(rules=(r,)) for i, r in enumerate(rules)}))
    exact = with_errors(planned, sweep_bands(planned, rules))
    assert exact.exact.all()
    assert_within(exact, chunk)
    scope = without_values(chunk)
    assert_within(with_errors(scope, sweep_bands(scope, rules)), chunk)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_with_the_values_every_threshold_is_exact(data: st.DataObject) -> None:
    chunk = drawn_chunk(data)
    weights = [Weight(Level.TOKEN, Bound.MASK, 1 / u, u) for u in sorted(data.draw(st.sets(st.floats(1.01, 9.0))))]
    if not weights:
        return
    scope = scope_of([chunk], pass_plan({})).by_value()
    sweep = sweep_weights(scope, weights)
    for i, truth in enumerate(truth_of(chunk, sweep.corrections)):
        for name in ("ess", "zeroed_fraction", "mass_lost", "weight_mean"):
            assert sweep.figures[name][i] == pytest.approx(truth[name], rel=1e-9, abs=1e-12), name


@given(st.lists(LOG_RATIOS, min_size=1, max_size=8))
def test_a_cut_is_exact_and_has_no_error(row: list[float]) -> None:
    weight = Weight(Level.TOKEN, Bound.TRUNCATE, upper=2.0)
    scope = without_values(chunk_of([row], rollout=0.0), PairPlan({"it": Correction(weight)}).grid.cuts)
    answered = with_errors(scope, sweep_weights(scope, [weight]))
    assert answered.exact.all()
    assert all(not column.any() for column in answered.errors.values())


def test_a_divided_cell_is_told_with_half_the_distance() -> None:
    """Four of eight tokens lie in the cell; masking any of them changes masses by their share."""
    d = [0.0, 0.0, 0.0, 0.0, 1.0, 1.001, 1.002, 1.003]
    scope = without_values(chunk_of([d], rollout=0.0))
    weight = Weight(Level.TOKEN, Bound.MASK, 0.1, math.exp(1.0015))
    answered = with_errors(scope, sweep_weights(scope, [weight]))
    assert not answered.exact[0]
    assert answered.figures["zeroed_fraction"][0] == pytest.approx(0.25)
    assert answered.errors["zeroed_fraction"][0] == pytest.approx(0.25)
    assert answered.figures["masked_fraction"][0] == answered.errors["masked_fraction"][0] == 0.0


def test_no_points_have_no_errors() -> None:
    scope = without_values(chunk_of([[0.1]]))
    assert not len(with_errors(scope, Sweep.of([])).exact)
