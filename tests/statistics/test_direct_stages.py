"""Corrections that are evaluated token by token: the same figures as the direct definition on the whole batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_audit.corrections.model import (
    Aggregation,
    Correction,
    Denominator,
    Level,
    Over,
    Rule,
    Sign,
    Statistic,
    Weight,
)
from rollout_audit.corrections.packing import Packed
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.statistics.batch_cuts import BatchOrders
from rollout_audit.statistics.direct_stages import DirectPlan, DirectState, direct_states
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.statistics.plan import is_streamed
from rollout_audit.statistics.stages import METRICS_OF_STAGE, correction_stages
from rollout_audit.statistics.tally import Tally
from tests import definitions
from tests.builders import (
    CPU,
    chunk_of,
    chunks_with_advantages,
    corrections,
    direct_corrections,
    part_of,
    pass_plan,
    scope_of,
    splits,
)
from tests.statistics.test_laws import assert_same

PAIR = "old_log_probs", "rollout_log_probs"


def evaluated(parts: Sequence[Chunk], correction: Correction, *, keep_values: bool = True) -> DirectState:
    """Both passes over a dump in those chunks."""
    orders, total = BatchOrders(), DirectState()
    for part in parts:
        packed = Packed(part, CPU)
        orders.absorb(BatchOrders.of(correction.batch_rules, packed, packed.tokens(*PAIR)))
    plan = DirectPlan({"it": correction}, orders.cuts(), keep_values)
    for part in parts:
        total.absorb(direct_states(Packed(part, CPU), *PAIR, plan)["it"])
    return total


def assert_as_defined(stages, correction: Correction, batch: Chunk) -> None:
    tokens = Packed(batch, CPU).tokens(*PAIR)
    if not tokens.log_ratio.numel():
        assert stages["kept"]["ess"] is None
        return
    for stage, metrics in definitions.stage_metrics(correction, tokens).items():
        for metric, value in metrics.items():
            rounding = 1e-7 * max(1.0, metrics.get("weight_max", 1.0)) if metric == "weight_std" else 1e-11
            got = stages[stage][metric]
            assert got is not None, f"{stage}.{metric}"
            assert got == pytest.approx(float(value), rel=1e-9, abs=rounding), f"{stage}.{metric}"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_direct_evaluation_in_chunks_equals_the_definition_on_the_whole_batch(data: st.DataObject) -> None:
    chunk = data.draw(chunks_with_advantages())
    tokens = Packed(chunk, CPU).tokens(*PAIR)
    correction = data.draw(direct_corrections(tokens.log_ratio.exp().tolist()))
    cut = data.draw(splits(chunk.rows))
    state = evaluated([part_of(chunk, a, b) for a, b in itertools.pairwise(cut)], correction)
    assert_as_defined(state.stages(correction), correction, chunk)
    for step in np.unique(chunk.steps).tolist():
        at = np.flatnonzero(chunk.steps == step)
        assert_as_defined(state.stages(correction, step), correction, part_of(chunk, int(at[0]), int(at[-1]) + 1))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_both_ways_of_evaluation_give_the_same_figures_with_the_same_reasons(data: st.DataObject) -> None:
    chunk = data.draw(chunks_with_advantages())
    correction = data.draw(corrections([2.0]))
    assert is_streamed(correction)
    direct = evaluated([chunk], correction).stages(correction)
    streamed = correction_stages(scope_of([chunk], pass_plan({"it": correction})), "it", correction)
    for stage, metrics in streamed.items():
        assert list(direct[stage]) == list(metrics)
        assert dict(direct[stage].reasons) == dict(metrics.reasons), stage
        for name, value in metrics.items():
            std = 1e-7 * max(1.0, metrics["weight_max"] or 1.0) if name == "weight_std" else 1e-11
            assert direct[stage][name] == (value if value is None else pytest.approx(value, rel=1e-9, abs=std)), name


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_absorb_has_an_identity_and_leaves_its_argument_alone(data: st.DataObject) -> None:
    chunk, correction = data.draw(chunks_with_advantages()), data.draw(direct_corrections([2.0]))
    state, again = evaluated([chunk], correction), evaluated([chunk], correction)
    total = DirectState()
    total.absorb(state)
    total.absorb(DirectState())
    for stage, metrics in state.stages(correction).items():
        assert_same(total.stages(correction)[stage], metrics)
    total.absorb(state)
    for stage, metrics in again.stages(correction).items():
        assert_same(state.stages(correction)[stage], metrics)


DPPO = Correction(
    Weight(Level.TOKEN, clamp=None),
    (
        Rule(Statistic.PROB_DIFF, Aggregation.TOKEN, None, 0.2, sign=Sign.POSITIVE),
        Rule(Statistic.PROB_DIFF, Aggregation.TOKEN, -0.2, None, sign=Sign.NOT_POSITIVE),
    ),
)


def test_without_advantages_only_what_hangs_on_them_is_null() -> None:
    stages = evaluated([chunk_of([[0.1, -0.2], [0.3]])], DPPO).stages(DPPO)
    assert stages["bounded"]["weight_max"] == pytest.approx(math.exp(0.3))
    assert set(stages["kept"].values()) == {None}
    assert set(stages["kept"].reasons.values()) == {"needs advantages"}
    over_rest = replace(DPPO, weight=Weight(Level.SEQUENCE, over=Over.REMAINING))
    undecided = evaluated([chunk_of([[0.1]])], over_rest).stages(over_rest)
    assert {r for metrics in undecided.values() for r in metrics.reasons.values()} == {"needs advantages"}


def test_an_empty_batch_has_every_metric_and_no_value() -> None:
    stages = evaluated([chunk_of([[], []], advantages=[])], DPPO).stages(DPPO)
    assert {stage: tuple(metrics) for stage, metrics in stages.items()} == dict(METRICS_OF_STAGE)
    assert {r for metrics in stages.values() for r in metrics.reasons.values()} == {"no valid token"}


def test_the_denominator_that_m2po_leaves() -> None:
    """Of d² = 1, 0.04, 0.01 and 0 the largest goes; of the rest the token with ρ < 0.85 is rejected."""
    m2 = Rule(Statistic.K2, Aggregation.BATCH_MEAN, None, 0.05)
    band = Rule(Statistic.RATIO, Aggregation.TOKEN, 0.85, 5.0, over=Over.REMAINING)
    correction = Correction(rules=(m2, band), denominator=Denominator.REMAINING)
    kept = evaluated([chunk_of([[1.0, -0.2], [0.1, 0.0]])], correction).stages(correction)["kept"]
    assert kept["masked_fraction"] == 0.5
    assert kept["gradient_scale"] == pytest.approx(2 / 3)
    assert kept["gradient_scale_original"] == 0.5
    assert kept["gradient_scale_kept"] == 1.0


def test_m2po_cuts_each_step_by_itself_and_the_dump_as_one_batch() -> None:
    """0.21² is the largest of step 0 and small beside the 1.0 of step 1."""
    correction = Correction(rules=(Rule(Statistic.K2, Aggregation.BATCH_MEAN, None, 0.01),))
    state = evaluated([chunk_of([[0.21, 0.0]], steps=[0]), chunk_of([[1.0, 0.0]], steps=[1], first_row=1)], correction)
    masked = {step: state.stages(correction, step)["kept"]["masked_fraction"] for step in (0, 1, None)}
    assert masked == {0: 0.5, 1: 0.5, None: 0.25}


@settings(deadline=None)
@given(st.lists(st.floats(-30, 30), min_size=1, max_size=50), st.integers(0, 50))
def test_a_tally_of_bins_is_off_by_what_is_stated(logs: list[float], at: int) -> None:
    """0.4% of the logarithm, as everywhere."""
    exact, binned = Tally(), Tally()
    for part in (logs[:at], logs[at:]):
        exact.absorb(Tally.of(np.array(part), keep_values=True))
        binned.absorb(Tally.of(np.array(part), keep_values=False))
    levels = [i / (len(logs) - 1) for i in range(len(logs))] if len(logs) > 1 else [0.5]
    wanted = np.log(exact.quantiles(levels))
    np.testing.assert_allclose(np.log(binned.quantiles(levels)), wanted, rtol=2.0**-8, atol=2.0**-30)
    assert binned.mean == exact.mean


def test_a_tally_past_float64_says_so() -> None:
    tally = Tally()
    for logs in ([800.0, 0.0], [800.0], [1.0]):
        tally.absorb(Tally.of(np.array(logs), keep_values=True))
    assert Metrics({"mean": tally.mean}).reasons["mean"].startswith("overflow")
    assert tally.log_ess == pytest.approx(0.5)
    assert tally.quantiles([0.0, 0.25]) == pytest.approx([1.0, 1.0 + 0.75 * (math.e - 1.0)])
