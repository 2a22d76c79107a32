"""The fused loops and the tensor path give the same evidence."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.presets import BY_DEFAULT
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.statistics import fused
from rollout_audit.statistics.native import NATIVE_CUTS
from rollout_audit.statistics.pair import PairState, _by_loops, _by_tensors, pair_state
from rollout_audit.statistics.plan import PairPlan
from rollout_audit.statistics.rows import row_statistic
from tests.builders import CPU, chunk_of, chunks

PLAN = PairPlan({p.name: p.correction for p in BY_DEFAULT}, NATIVE_CUTS, token_caps=(1.5, 5.0))
COUNTS = {"valid_tokens", "beyond_20", "kept_0"}
LARGE_TERMS = {
    "sum_k3": "sum_abs_d",
    "sum_d": "sum_abs_d",
    "sum_prob_diff": "sum_abs_prob_diff",
    "sum_pi_less_1": "sum_mu_less_1",
    "sum_pi_less_1_sq": "sum_mu_less_1_sq",
    "sum_pi_mu_less_1": "sum_mu_less_1_sq",
}

pytestmark = pytest.mark.skipif(not fused.is_available(), reason="Numba is not installed")


def both(chunk: Chunk) -> tuple[PairState, PairState]:
    packed = Packed(chunk, CPU)
    return tuple(how(packed, "old_log_probs", "rollout_log_probs", PLAN) for how in (_by_loops, _by_tensors))


def test_every_preset_fits_the_loops() -> None:
    assert PLAN.fits_loops


def on_a_bound(state: PairState) -> bool:
    """Whether a row's sum lies on a bound up to the order of summation: then either answer is right."""
    rows = {name: torch.from_numpy(column) for name, column in state.rows.columns().items()}
    statistics = [(rule, row_statistic(rule, rows)) for rules in PLAN.filters for rule in rules]
    bounds = ((values, bound) for rule, values in statistics for bound in (rule.lower, rule.upper) if bound is not None)
    return any(bool((values - bound).abs().min() < 1e-9) for values, bound in bounds)


@settings(max_examples=200, deadline=None)
@given(chunks())
def test_same_rows(chunk: Chunk) -> None:
    loops, tensors = (state.rows.columns() for state in both(chunk))
    assert set(loops) >= set(tensors)
    for name, column in tensors.items():
        if name in COUNTS:
            np.testing.assert_array_equal(loops[name], column, err_msg=name)
            continue
        terms = np.abs(column) + np.abs(tensors[LARGE_TERMS.get(name.partition("@")[0], name)])
        with np.errstate(invalid="ignore"):
            near = (loops[name] == column) | (np.abs(loops[name] - column) <= 1e-12 * terms + 1e-15)
        assert near.all(), (name, loops[name], column)


@settings(max_examples=200, deadline=None)
@given(chunks())
def test_same_cells_values_and_worst_tokens(chunk: Chunk) -> None:
    loops, tensors = both(chunk)
    assume(not on_a_bound(tensors))
    assert loops.cells.parts.keys() == tensors.cells.parts.keys()
    for key, cells in tensors.cells.parts.items():
        mine = loops.cells.parts[key]
        np.testing.assert_array_equal(mine.index, cells.index)
        np.testing.assert_array_equal(mine.counts, cells.counts)
        np.testing.assert_allclose(mine.sum_u, cells.sum_u, rtol=1e-12, atol=1e-15 * len(cells.counts))
        np.testing.assert_allclose(mine.sum_u_sq, cells.sum_u_sq, rtol=1e-12, atol=1e-15)
    for one, two in zip(loops.values.sorted(), tensors.values.sorted(), strict=True):
        np.testing.assert_array_equal(np.sort(one), np.sort(two))
    assert loops.worst.tokens == tensors.worst.tokens


@pytest.mark.parametrize("d", [700.0, -700.0, 100.0, -100.0, 1e5, -1e5, 5e-324, 1e-300])
def test_far_out_and_tiny(d: float) -> None:
    loops, tensors = (state.rows.columns() for state in both(chunk_of([[d, 0.25, -d]], rollout=0.0)))
    for name in ("log_sum_ratio", "log_sum_ratio_sq", "sum_d", "sum_k2", "min_d", "max_d", "sum_k3@20"):
        assert loops[name][0] == pytest.approx(tensors[name][0], rel=1e-12), name


def test_ties_for_the_last_worst_place_go_to_the_first_in_the_dump() -> None:
    row = [0.5] * 150 + [1.0] * 20
    loops, tensors = both(chunk_of([row], rollout=0.0))
    assert loops.worst.tokens == tensors.worst.tokens
    assert [t.position for t in loops.worst.tokens[20:23]] == [0, 1, 2]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=30))
def test_float32_columns_give_the_difference_of_the_stored_values(values: list[float]) -> None:
    chunk = chunk_of([values], rollout=-0.3)
    stored = {name: getattr(chunk, name).astype(np.float32) for name in ("old_log_probs", "rollout_log_probs")}
    narrow = Chunk(0, chunk.row_numbers, chunk.offsets, chunk.steps, chunk.response_mask, **stored)
    found = both(narrow)[0].values.sorted()[0]
    wide = stored["old_log_probs"].astype(np.float64) - stored["rollout_log_probs"].astype(np.float64)
    np.testing.assert_array_equal(found, np.sort(wide))
    assert math.isfinite(found.sum())


@pytest.mark.parametrize(
    "error", [ImportError("no numba"), RuntimeError("cannot cache function: no locator available")]
)
def test_where_nothing_can_be_compiled_tensors_do_the_work(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Numba is missing, or a container leaves it no folder to write to."""

    def fails() -> None:
        raise error

    monkeypatch.setattr(fused, "_kernels", fails)
    monkeypatch.setattr(fused, "is_available", fused.is_available.__wrapped__)
    assert not fused.is_available()
    chunk, plan = chunk_of([[0.1, -0.2]]), replace(PLAN, compiled=True)
    state = pair_state(Packed(chunk, CPU), "old_log_probs", "rollout_log_probs", plan)
    assert state.rows.columns()["valid_tokens"].tolist() == [2.0]
