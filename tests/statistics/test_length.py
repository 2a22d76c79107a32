"""The growth of log weights with length: values by hand, and recordings against their own observed ess_seq."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import rollout_audit as ra
from rollout_audit.audit.plan import Audit, Options
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.statistics.length import LengthFit, length_bands, length_fit
from tests.builders import chunk_of, pass_plan, scope_of

ROOT = Path(__file__).parents[2]
RECORDINGS = (
    *("sample_data/grpo_run", "sample_data/llamacpp_q4", "sample_data/temperature_both"),
    *(
        f"tests/conformance/dumps/{n}"
        for n in ("precision_gap", "bfloat16_values", "multi_turn", "catastrophic_tokens")
    ),
)


def fit_of(rows: list[list[float]]) -> LengthFit:
    return length_fit(scope_of([chunk_of(rows)], pass_plan({})).rows)


def test_a_constant_drift_reaches_the_clamp_at_twenty_over_kl() -> None:
    fit = fit_of([[-0.001] * n for n in (10, 20, 30, 40, 50, 60, 70, 80)])
    assert fit.drift == pytest.approx(-0.001)
    assert (fit.independent, fit.shared) == (0.0, 0.0)
    assert fit.typical_length_at(20.0) == pytest.approx(20_000)
    assert fit.length_at(20.0) == pytest.approx(20_000)
    assert fit.length_at_ess(0.3) == math.inf


def test_equal_policies_never_do() -> None:
    fit = fit_of([[0.0, 0.0], [0.0]])
    assert {fit.typical_length_at(), fit.length_at(), fit.length_at_ess(0.3)} == {math.inf}


def test_a_few_responses_tell_the_drift_and_no_spread() -> None:
    """Real case 4: two responses of 10,000 tokens, one at +0.01 a token and one at 0."""
    fit = fit_of([[0.01] * 10_000, [0.0] * 10_000])
    assert fit.typical_length_at() == pytest.approx(4000)
    assert math.isnan(fit.length_at())
    assert math.isnan(fit.length_at_ess(0.3))
    assert list(length_bands({"valid_tokens": np.ones(2), "sum_d": np.ones(2)}, fit)) == []


def test_both_lengths_solve_their_equations() -> None:
    fit = LengthFit(drift=-0.01, independent=0.02, shared=1e-5, unevenness=0.9)
    n = fit.length_at(20.0)
    assert 0.01 * n + 2 * math.sqrt(0.02 * n + 1e-5 * n * n) == pytest.approx(20.0)
    n = fit.length_at_ess(0.3)
    assert 0.9 * (0.02 * n + 1e-5 * n * n) == pytest.approx(math.log(1 / 0.3))
    assert fit.ess_seq(np.array([n]))[0] == pytest.approx(0.3)


def test_tokens_that_err_alone_and_errors_that_responses_share_are_told_apart() -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(20, 400, 4000)
    alone = length_fit(_rows(lengths, random.normal(0, 0.1 * np.sqrt(lengths))))
    assert alone.independent == pytest.approx(0.01, rel=0.1)
    assert alone.shared * 400 < 0.001
    both = length_fit(_rows(lengths, random.normal(0, np.sqrt(0.01 * lengths + 1e-4 * lengths**2))))
    assert both.shared == pytest.approx(1e-4, rel=0.15)
    shared = length_fit(_rows(lengths, random.normal(0, 0.05 * lengths)))
    assert shared.shared == pytest.approx(0.0025, rel=0.1)
    assert shared.independent >= 0.0


def _rows(lengths: np.ndarray, total: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of rows with those sums; what else is needed is of no matter here."""
    logs = np.log(lengths)
    return {
        "valid_tokens": lengths.astype(float),
        "sum_d": total,
        "sum_k2": 0.005 * lengths,
        "min_d": np.full(len(lengths), -1.0),
        "max_d": np.full(len(lengths), 1.0),
        "log_sum_ratio": logs,
        "log_sum_ratio_sq": logs + 0.01,
    }


def rows_of(name: str) -> Mapping[str, np.ndarray]:
    audit = Audit(ra.open_dump(ROOT / name), Options())
    return audit.evidence(audit.run(FaultLog()))[audit.primary].scope().rows


def ess_seq_of_so_many(expected: float, sequences: int) -> np.ndarray:
    """What 4,000 batches of so many lognormal weights show, where very many would show `expected`."""
    log_weights = np.random.default_rng(0).normal(0.0, math.sqrt(-math.log(expected)), (4000, sequences))
    w = np.exp(log_weights)
    return w.sum(axis=1) ** 2 / (sequences * (w * w).sum(axis=1))


@pytest.mark.parametrize("name", RECORDINGS)
def test_bands_of_real_responses_show_the_expected_ess_seq(name: str) -> None:
    """Of so few responses: a handful of weights always looks evener than very many would."""
    rows = rows_of(name)
    bands = list(length_bands(rows, length_fit(rows)))
    assert sum(band.sequences for band in bands) == len(rows["valid_tokens"])
    for band in bands:
        low, high = np.quantile(ess_seq_of_so_many(band.expected, band.sequences), [0.005, 0.995])
        assert low <= band.ess_seq <= high, band


@pytest.mark.parametrize("name", ["precision_gap", "bfloat16_values"])
def test_where_weights_are_even_the_figure_itself_is_met(name: str) -> None:
    rows = rows_of(f"tests/conformance/dumps/{name}")
    for band in length_bands(rows, length_fit(rows)):
        assert band.ess_seq == pytest.approx(band.expected, abs=0.03)


def test_impossible_tokens_do_not_count_as_variance() -> None:
    """With ρ near 0 a token leaves the weights alone; the lognormal formula would see ess_seq collapse at 8 tokens."""
    fit = length_fit(rows_of("tests/conformance/dumps/catastrophic_tokens"))
    assert math.log(1 / 0.3) / fit.independent < 8
    assert fit.length_at_ess(0.3) > 500
