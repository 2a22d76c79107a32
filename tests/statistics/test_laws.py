"""The streamed figures equal the direct definition, whatever the chunking and the order of merging."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_audit.audit.passes import PassState, chunk_state
from rollout_audit.corrections.packing import Packed
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.statistics.native import NATIVE_CUTS, native_metrics
from rollout_audit.statistics.stages import correction_stages
from tests import definitions
from tests.builders import CPU, chunk_of, chunks, corrections, evidence_of, part_of, pass_plan, scope_of, splits

EXACT = {
    "masked_fraction",
    "seq_masked_fraction",
    "seq_touched_fraction",
    "capped_fraction",
    "below_lower_fraction",
}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_streamed_correction_equals_direct_definition(data: st.DataObject) -> None:
    chunk = data.draw(chunks())
    tokens = Packed(chunk, CPU).tokens("old_log_probs")
    ratios = tokens.log_ratio.exp().tolist()
    correction = data.draw(corrections(ratios))
    plan = pass_plan({"it": correction})
    cut = data.draw(splits(chunk.rows))
    scope = scope_of([part_of(chunk, a, b) for a, b in itertools.pairwise(cut)], plan)
    stages = correction_stages(scope, "it", correction)
    if not tokens.log_ratio.numel():
        assert stages["kept"]["ess"] is None
        return
    expected = definitions.stage_metrics(correction, tokens)
    for stage, metrics in expected.items():
        for metric, value in metrics.items():
            rounding = {"weight_std": 1e-7 * max(1.0, metrics.get("weight_max", 1.0))}.get(
                metric, 1e-15 if metric in EXACT else 1e-11
            )
            got = stages[stage][metric]
            assert got is not None, f"{stage}.{metric}"
            assert got == pytest.approx(float(value), rel=1e-9, abs=rounding), f"{stage}.{metric}"


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_chunking_and_grouping_gives_the_same_figures(data: st.DataObject) -> None:
    chunk = data.draw(chunks())
    correction = data.draw(corrections([2.0]))
    plan = pass_plan({"it": correction}, NATIVE_CUTS)
    whole = scope_of([chunk], plan)
    cut = data.draw(splits(chunk.rows))
    parts = [chunk_state(part_of(chunk, a, b), plan) for a, b in itertools.pairwise(cut)]
    middle = data.draw(st.integers(0, len(parts)))
    grouped = fold([fold(parts[:middle]), fold(parts[middle:]), PassState()])
    scope = evidence_of(grouped, plan).scope() if parts else whole
    assert_same(native_metrics(scope), native_metrics(whole))
    for stage, metrics in correction_stages(whole, "it", correction).items():
        assert_same(correction_stages(scope, "it", correction)[stage], metrics)


def fold(states: list[PassState]) -> PassState:
    total = PassState()
    for state in states:
        total.absorb(state)
    return total


def assert_same(got, want) -> None:
    assert set(got) == set(want)
    for name, value in want.items():
        assert got[name] == (value if value is None else pytest.approx(value, rel=1e-12, abs=1e-13)), name


@settings(max_examples=50, deadline=None)
@given(chunks())
def test_absorb_leaves_its_argument_alone_and_has_an_identity(chunk: Chunk) -> None:
    plan = pass_plan({})
    state, again = chunk_state(chunk, plan), chunk_state(chunk, plan)
    total = PassState()
    total.absorb(state)
    total.absorb(state)
    assert_equal_states(state, again)
    alone = PassState()
    alone.absorb(state)
    alone.absorb(PassState())
    assert_equal_states(alone, again)


def assert_equal_states(one: PassState, two: PassState) -> None:
    a, b = one.pairs["engine"], two.pairs["engine"]
    for name, column in a.rows.columns().items():
        np.testing.assert_array_equal(column, b.rows.columns()[name])
    assert a.cells.parts.keys() == b.cells.parts.keys()
    for key, cells in a.cells.parts.items():
        np.testing.assert_array_equal(cells.counts, b.cells.parts[key].counts)
        np.testing.assert_array_equal(cells.sum_u, b.cells.parts[key].sum_u)
    assert a.worst.tokens == b.worst.tokens
    assert a.values.size == b.values.size


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_step_is_a_batch_of_its_own(data: st.DataObject) -> None:
    chunk = data.draw(chunks())
    correction = data.draw(corrections([2.0]))
    plan = pass_plan({"it": correction})
    for step in np.unique(chunk.steps):
        at = np.flatnonzero(chunk.steps == step)
        alone = scope_of([part_of(chunk, int(at[0]), int(at[-1]) + 1)], plan)
        of_step = scope_of([chunk], plan, step=int(step))
        for stage, metrics in correction_stages(alone, "it", correction).items():
            assert_same(correction_stages(of_step, "it", correction)[stage], metrics)


def test_what_lies_under_a_zero_mask_changes_nothing() -> None:
    clean = chunk_of([[0.1, -0.2], [0.3]])
    dirty = chunk_of([[0.1, 1e10, -0.2, math.nan], [0.3, -math.inf]], [[1, 0, 1, 0], [1, 0]])
    one, two = (native_metrics(scope_of([c], pass_plan({}, NATIVE_CUTS))) for c in (clean, dirty))
    assert dict(one) == dict(two)
