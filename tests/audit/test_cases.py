"""Numerical faults that real people met in other tools, with the right outcome."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollout_audit.corrections.model import Correction, Level, Weight
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.statistics.native import NATIVE_CUTS, native_metrics
from rollout_audit.statistics.stages import correction_stages
from tests.builders import chunk_of, pass_plan, scope_of

UNBOUNDED = {"token": Correction(Weight(Level.TOKEN, clamp=None)), "sequence": Correction(Weight(Level.SEQUENCE))}


def metrics_of(rows: list[list[float]], masks: list[list[int]] | None = None, rollout: float = -1.0) -> Metrics:
    return native_metrics(scope_of([chunk_of(rows, masks, rollout=rollout)], pass_plan({}, NATIVE_CUTS)))


def stages_of(name: str, rows: list[list[float]]) -> dict[str, Metrics]:
    scope = scope_of([chunk_of(rows, rollout=0.0)], pass_plan(UNBOUNDED))
    return dict(correction_stages(scope, name, UNBOUNDED[name]))


@pytest.mark.parametrize("empty_rows", [0, 3, 50])
def test_empty_rows_dilute_nothing(empty_rows: int) -> None:
    """Case 1 and 2: one row of d = −1 twice beside rows without a valid token."""
    found = metrics_of([[-1.0, -1.0]] + [[9.0, 9.0]] * empty_rows, [[1, 1]] + [[0, 0]] * empty_rows)
    assert found["training_ppl"] == pytest.approx(7.389056, rel=1e-6)
    assert found["log_ppl_diff"] == found["log_ppl_abs_diff"] == 1.0
    assert found["ppl_ratio"] == pytest.approx(2.718282, rel=1e-6)
    assert found["chi2_seq"] == pytest.approx(math.exp(-4) - 1)


def test_ess_past_the_clamp_comes_from_log_space() -> None:
    """Case 4: products e^100 and 1: half of two sequences, one of them past the clamp."""
    rows = [[0.01] * 10_000, [0.0] * 10_000]
    assert stages_of("sequence", rows)["raw"]["ess_seq"] == pytest.approx(0.5, rel=1e-12)
    found = metrics_of(rows)
    assert found["sequences_past_clamp"] == 1
    assert found["log1p_chi2_seq"] == pytest.approx(200 - math.log(2))


def test_pooled_ess_is_no_mean_of_means() -> None:
    """Case 5: weights 1 ×4 and 2 ×4 pool to 0.9, though each group by itself has 1."""
    plan = pass_plan(UNBOUNDED)
    chunk = chunk_of([[0.0] * 4, [math.log(2.0)] * 4], steps=[0, 1], rollout=0.0)
    ess = {
        step: correction_stages(scope_of([chunk], plan, step), "token", UNBOUNDED["token"])["raw"]["ess"]
        for step in (None, 0, 1)
    }
    assert ess == {None: pytest.approx(0.9), 0: pytest.approx(1.0), 1: pytest.approx(1.0)}


def test_token_means_and_sequence_means_are_not_the_same() -> None:
    """Case 7: 10 tokens of |d| 0.1 and 1,000 of 0.001."""
    found = metrics_of([[0.1] * 10, [0.001] * 1000])
    assert found["log_prob_diff_abs_mean"] == pytest.approx(0.001980, abs=5e-7)
    assert found["log_ppl_abs_diff"] == pytest.approx(0.050500, abs=5e-7)


def test_errors_that_cancel() -> None:
    """Case 11: ±0.5: k1 is 0, k3 and χ² are not."""
    found = metrics_of([[0.5, -0.5, 0.5, -0.5]])
    assert found["kl_k1"] == 0.0
    assert found["kl_k3"] == pytest.approx(0.127626, rel=1e-5)
    assert 2 * found["kl_k2"] == pytest.approx(0.25)
    assert found["chi2_token"] == pytest.approx(0.543081, rel=1e-6)


@pytest.mark.parametrize(("d", "k3"), [(1e-4, 5.00017e-9), (1e-5, 5.00002e-11)])
def test_k3_of_tiny_gaps(d: float, k3: float) -> None:
    """Case 17: expm1 in float64."""
    assert metrics_of([[d]], rollout=0.0)["kl_k3"] == pytest.approx(k3, rel=1e-5)


def test_correlation_of_one_token_and_of_constants_is_null() -> None:
    """Case 23."""
    assert metrics_of([[0.1]]).reasons["prob_pearson"] == "n < 2"
    same = metrics_of([[0.0, 0.0]], rollout=0.0)
    assert (same["prob_pearson"], same.reasons["prob_pearson"]) == (None, "zero variance")


def test_chi2_of_weights_below_one_is_negative_and_its_relative_form_is_zero() -> None:
    """Case 26: ρ = 0.5 twice."""
    found = metrics_of([[math.log(0.5)] * 2], rollout=0.0)
    assert found["chi2_token"] == pytest.approx(-0.75)
    assert found["chi2_rel_token"] == pytest.approx(0.0, abs=1e-15)


def test_log_ppl_diff_is_training_minus_rollout() -> None:
    """Case 28: log π = −2, log μ = −1."""
    assert metrics_of([[-1.0]])["log_ppl_diff"] == 1.0


def test_direction_of_k3() -> None:
    """Case 29: KL(μ‖π) of one token of −5 against −15."""
    assert metrics_of([[-10.0]], rollout=-5.0)["kl_k3"] == pytest.approx(9.000045, rel=1e-7)


def test_multiplicative_error_cannot_cancel() -> None:
    """Case 31."""
    found = metrics_of([[0.05, -0.05]])
    assert found["mult_prob_error"] == pytest.approx(1.051271, rel=1e-6)
    assert stages_of("token", [[0.05, -0.05]])["raw"]["weight_mean"] == pytest.approx(1.001250, rel=1e-6)


def test_the_low_tail_is_seen_as_well_as_the_high_one() -> None:
    """Case 123."""
    raw = stages_of("token", [[-4.0, 1.0]])["raw"]
    assert raw["weight_min"] == pytest.approx(math.exp(-4))
    assert raw["weight_max"] == pytest.approx(math.e)


@pytest.mark.parametrize("d", [800.0, 400.0])
def test_past_float64_is_null_with_a_reason_and_the_log_stays(d: float) -> None:
    found = metrics_of([[d, 0.0]], rollout=0.0)
    assert found["chi2_token"] is None
    assert found.reasons["chi2_token"].startswith("overflow")
    assert found["log1p_chi2_token"] == pytest.approx(2 * d - math.log(2))
    raw = stages_of("token", [[d, 0.0]])["raw"]
    assert raw["ess"] == pytest.approx(0.5)
    assert raw["weight_std"] is None
    assert raw.reasons["weight_std"].startswith("overflow")


def test_quantiles_are_linear_between_order_statistics() -> None:
    """Case 22: numpy's default method."""
    d = np.log([1.0, 2.0, 3.0, 4.0])
    assert stages_of("token", [d.tolist()])["raw"]["weight_p25"] == pytest.approx(1.75)


def test_no_valid_token_is_null_everywhere() -> None:
    """Case 56."""
    found = metrics_of([[0.1]], [[0]])
    assert set(found.values()) == {None}
    assert set(found.reasons.values()) == {"no valid token"}
