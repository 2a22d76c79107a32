"""Each point of a sweep equals the same correction evaluated by itself."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_audit.corrections.direct import level_log_ratio
from rollout_audit.corrections.model import Aggregation, Bound, Correction, Level, Rule, Statistic, Weight
from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.tokens import Tokens
from rollout_audit.statistics.scope import Scope
from rollout_audit.statistics.stages import correction_stages
from rollout_audit.statistics.sweep import COLUMNS, Sweep, nested_rule, sweep_joint, sweep_rules, sweep_weights
from rollout_audit.statistics.sweep_bands import sweep_joint_bands
from tests import definitions
from tests.builders import CPU, chunk_of, chunks, part_of, pass_plan, scope_of, splits, thresholds

BOUNDED = {"capped_fraction", "below_lower_fraction", "zeroed_fraction", "mass_lost"}
LEFT = {"kept_length_mean", "kept_kl_k3"}
LEVELS = st.sampled_from([Level.TOKEN, Level.SEQUENCE, Level.GEOMETRIC])
SEQUENCE_RULES = [
    (Statistic.K1, Aggregation.SEQ_SUM),
    (Statistic.K1, Aggregation.SEQ_MEAN),
    *(
        (s, a)
        for s in (Statistic.K2, Statistic.K3)
        for a in (Aggregation.SEQ_SUM, Aggregation.SEQ_MEAN, Aggregation.SEQ_MAX)
    ),
]
TOKEN_RULES = [(statistic, Aggregation.TOKEN) for statistic in (Statistic.K1, Statistic.K2, Statistic.K3)]


def planned(
    data: st.DataObject, corrections: list[Correction], token_caps: tuple[float, ...] = ()
) -> tuple[Scope, Tokens]:
    """One random dump, cut into chunks anywhere."""
    chunk = data.draw(chunks().filter(lambda c: bool(c.response_mask.any())))
    cut = data.draw(splits(chunk.rows))
    parts = [part_of(chunk, first, stop) for first, stop in itertools.pairwise(cut)]
    plan = pass_plan({f"c{i}": c for i, c in enumerate(corrections)}, token_caps=token_caps)
    return scope_of(parts, plan), Packed(chunk, CPU).tokens("old_log_probs")


def assert_equal(sweep: Sweep, scope: Scope, tokens: Tokens) -> None:
    for i, correction in enumerate(sweep.corrections):
        stages, left = correction_stages(scope, f"c{i}", correction), definitions.left_after(correction, tokens)
        for name in COLUMNS:
            want = left.get(name) if name in LEFT else stages["bounded" if name in BOUNDED else "kept"][name]
            got = sweep.figures[name][i]
            if want is None:
                assert math.isnan(got), (name, got, correction)
            else:
                rounding = 1e-7 * max(1.0, sweep.figures["weight_max"][i]) if name == "weight_std" else 1e-9
                if name == "ess" and correction.rules:  # sums are kept of w − 1: of tiny weights they hold less
                    rounding += 1e-15 / sweep.figures["weight_mean"][i] ** 2
                assert got == pytest.approx(want, rel=1e-8, abs=rounding), (name, correction)


@settings(max_examples=150, deadline=None)
@given(st.data(), LEVELS, st.sampled_from([Bound.TRUNCATE, Bound.CLIP, Bound.MASK]))
def test_weights(data: st.DataObject, level: Level, bound: Bound) -> None:
    bounds = data.draw(st.lists(st.tuples(thresholds([2.0, 0.5]), thresholds([2.0, 0.5])), min_size=1, max_size=5))
    weights = [
        Weight(level, bound, None if bound is Bound.TRUNCATE else min(pair), max(pair)) for pair in sorted(bounds)
    ]
    scope, tokens = planned(data, [Correction(weight) for weight in weights])
    assert_equal(sweep_weights(scope, weights), scope, tokens)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([*SEQUENCE_RULES, *TOKEN_RULES]))
def test_rules(data: st.DataObject, family: tuple[Statistic, Aggregation]) -> None:
    values = data.draw(st.lists(st.floats(1.0001, 20.0), min_size=1, max_size=5))
    rules = [nested_rule(*family, value if family[0] is Statistic.K1 else value - 1.0) for value in sorted(values)]
    scope, tokens = planned(data, [Correction(rules=(rule,)) for rule in rules])
    assert_equal(sweep_rules(scope, rules), scope, tokens)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_vetoes(data: st.DataObject) -> None:
    values = sorted(data.draw(st.lists(st.floats(1e-6, 0.9), min_size=1, max_size=4)), reverse=True)
    rules = [Rule(Statistic.K1, Aggregation.SEQ_MAX, upper=-math.log(value), clamp=None) for value in values]
    scope, tokens = planned(data, [Correction(rules=(rule,)) for rule in rules])
    assert_equal(sweep_rules(scope, rules), scope, tokens)


@settings(max_examples=120, deadline=None)
@given(st.data(), st.sampled_from([Level.SEQUENCE, Level.GEOMETRIC]), st.sampled_from(SEQUENCE_RULES))
def test_sequence_weights_under_sequence_rules(
    data: st.DataObject, level: Level, family: tuple[Statistic, Aggregation]
) -> None:
    weight = Weight(level, Bound.TRUNCATE, upper=data.draw(thresholds([2.0])))
    values = data.draw(st.lists(st.floats(1.0001, 20.0), min_size=1, max_size=4))
    rules = [nested_rule(*family, value if family[0] is Statistic.K1 else value - 1.0) for value in sorted(values)]
    scope, tokens = planned(data, [Correction(weight, (rule,)) for rule in rules])
    assert_equal(sweep_joint(scope, weight, rules), scope, tokens)


@settings(max_examples=120, deadline=None)
@given(st.data(), st.sampled_from(SEQUENCE_RULES))
def test_token_weights_under_sequence_rules(data: st.DataObject, family: tuple[Statistic, Aggregation]) -> None:
    weight = Weight(Level.TOKEN, Bound.TRUNCATE, upper=data.draw(st.sampled_from([1.5, 2.0, 5.0])))
    values = data.draw(st.lists(st.floats(1.0001, 20.0), min_size=1, max_size=4))
    rules = [nested_rule(*family, value if family[0] is Statistic.K1 else value - 1.0) for value in sorted(values)]
    scope, tokens = planned(data, [Correction(weight, (rule,)) for rule in rules], (1.5, 2.0, 5.0))
    assert_equal(sweep_joint(scope, weight, rules), scope, tokens)


@settings(max_examples=120, deadline=None)
@given(
    st.data(),
    st.sampled_from([Level.TOKEN, Level.SEQUENCE, Level.GEOMETRIC]),
    st.sampled_from([Aggregation.SEQ_SUM, Aggregation.SEQ_MEAN]),
)
def test_weights_under_bands(data: st.DataObject, level: Level, aggregation: Aggregation) -> None:
    """Bands need not hold ρ = 1, nor each other; ends hit the rows' own statistic."""
    weight = Weight(level, Bound.TRUNCATE, upper=data.draw(st.sampled_from([1.5, 2.0, 5.0])))
    chunk = data.draw(chunks().filter(lambda c: bool(c.response_mask.any())))
    statistic = Rule(Statistic.K1, aggregation, None, 1.0)
    whole = scope_of([chunk], pass_plan({"it": Correction(rules=(statistic,))}))
    near = st.one_of(st.floats(-3.0, 3.0), st.sampled_from(whole.row_statistic(statistic).tolist()))
    ends = data.draw(st.lists(st.tuples(near, near), min_size=1, max_size=4))
    rules = [Rule(Statistic.K1, aggregation, min(pair), max(pair)) for pair in ends]
    corrections = {f"c{i}": Correction(weight, (rule,)) for i, rule in enumerate(rules)}
    parts = [part_of(chunk, *span) for span in itertools.pairwise(data.draw(splits(chunk.rows)))]
    scope = scope_of(parts, pass_plan(corrections, token_caps=(1.5, 2.0, 5.0)))
    assert_equal(sweep_joint_bands(scope, weight, rules), scope, Packed(chunk, CPU).tokens("old_log_probs"))


@settings(max_examples=150, deadline=None)
@given(st.data(), LEVELS, st.sampled_from([Bound.TRUNCATE, Bound.CLIP, Bound.MASK]))
def test_points_equal_the_direct_definition_whatever_the_chunks_and_their_order(
    data: st.DataObject, level: Level, bound: Bound
) -> None:
    """Bounds lie anywhere and exactly on ratios that occur; evidence is merged in any order."""
    chunk = data.draw(chunks().filter(lambda c: bool(c.response_mask.any())))
    tokens = Packed(chunk, CPU).tokens("old_log_probs")
    near = thresholds(level_log_ratio(level, tokens).exp().tolist())
    pairs = data.draw(st.lists(st.tuples(near, near), min_size=1, max_size=4))
    weights = [Weight(level, bound, None if bound is Bound.TRUNCATE else min(p), max(p)) for p in sorted(pairs)]
    plan = pass_plan({f"c{i}": Correction(weight) for i, weight in enumerate(weights)})
    parts = [part_of(chunk, *span) for span in itertools.pairwise(data.draw(splits(chunk.rows)))]
    sweep = sweep_weights(scope_of(data.draw(st.permutations(parts)), plan), weights)
    for i, correction in enumerate(sweep.corrections):
        stages = definitions.stage_metrics(correction, tokens)
        for name in ("ess", "weight_mean", "weight_max", *BOUNDED):
            want = stages["bounded" if name in BOUNDED else "kept"][name]
            rounding = 1e-15 if name in ("capped_fraction", "zeroed_fraction") else 1e-11
            assert sweep.figures[name][i] == pytest.approx(want, rel=1e-9, abs=rounding), (name, correction)


@pytest.mark.parametrize("level", [Level.TOKEN, Level.SEQUENCE])
@pytest.mark.parametrize(
    ("bound", "lower", "upper"),
    [
        (Bound.TRUNCATE, None, 1e-5),
        (Bound.TRUNCATE, None, 1e6),
        (Bound.TRUNCATE, None, 2.0),
        (Bound.CLIP, 1e-6, 1e-5),
        (Bound.CLIP, 1e5, 1e6),
        (Bound.CLIP, 0.5, 1e6),
        (Bound.MASK, 1e-6, 1e-5),
        (Bound.MASK, 1e5, 1e6),
    ],
)
def test_bounds_beyond_the_clamp_lose_what_the_ratios_have_above_the_weights(
    level: Level, bound: Bound, lower: float | None, upper: float
) -> None:
    """d clamped to ±10: a cap of 1e-5 is the weight of every token, 1e6 caps none, and the clamp itself cuts off."""
    weight = Weight(level, bound, lower, upper, clamp=10.0)
    values = [-14.0, 0.0, -11.5, 12.0, 11.0]
    correction = Correction(weight)
    scope = scope_of([chunk_of([[d] for d in values], rollout=0.0)], pass_plan({"c0": correction}))
    sweep = sweep_weights(scope, [weight])
    clamped = [math.exp(max(min(d, 10.0), -10.0)) for d in values]
    if bound is Bound.MASK:
        weights = [w if lower <= w <= upper else 0.0 for w in clamped]
    else:
        weights = [min(max(w, lower or 0.0), upper) for w in clamped]
    lost = sum(max(math.exp(d) - w, 0.0) for d, w in zip(values, weights, strict=True))
    assert sweep.figures["mass_lost"][0] == pytest.approx(lost / sum(map(math.exp, values)), rel=1e-9, abs=1e-15)
    assert sweep.figures["mass_lost"][0] == pytest.approx(
        correction_stages(scope, "c0", correction)["bounded"]["mass_lost"], rel=1e-9, abs=1e-15
    )
    assert sweep.figures["weight_mean"][0] == pytest.approx(sum(weights) / len(weights), rel=1e-9, abs=1e-15)
