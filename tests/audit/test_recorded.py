"""Real recordings give the figures that were measured when they were made (sample_data/README.md)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import rollout_audit as ra

SAMPLES = Path(__file__).parents[2] / "sample_data"


@cache
def report_of(name: str) -> ra.Report:
    return ra.analyze(ra.open_dump(SAMPLES / name))


GRPO_STEPS = {
    0: (48, 1473, 0.0347, 0.0011, 0.0014, 1.0015, 0.997, 0.933),
    1: (48, 1590, 0.0755, 0.0169, 0.0091, 1.0152, 0.985, 0.679),
    2: (48, 1263, 0.1252, 0.0267, 0.0261, 1.0385, 0.965, 0.654),
    3: (48, 977, 0.0402, 0.0053, 0.0022, 1.0072, 0.996, 0.906),
    4: (48, 1363, 0.0617, 0.0082, 0.0058, 1.0165, 0.990, 0.771),
    5: (48, 1300, 0.0953, 0.0105, 0.0133, 1.0145, 0.977, 0.712),
}


@pytest.mark.parametrize("step", GRPO_STEPS)
def test_grpo_run_by_step(step: int) -> None:
    found = report_of("grpo_run").steps[step]
    sequences, tokens, abs_d, k1, k3, ppl, ess, ess_seq = GRPO_STEPS[step]
    assert (found.step, found.sequences, found.valid_tokens) == (step, sequences, tokens)
    assert found.metrics["log_prob_diff_abs_mean"] == pytest.approx(abs_d, abs=5.1e-5)
    assert found.metrics["kl_k1"] == pytest.approx(k1, abs=5.1e-5)
    assert found.metrics["kl_k3"] == pytest.approx(k3, abs=5.1e-5)
    assert found.metrics["ppl_ratio"] == pytest.approx(ppl, abs=5.1e-5)
    assert found.corrections["decoupled_token_is"].kept["ess"] == pytest.approx(ess, abs=5.1e-4)
    assert found.corrections["decoupled_seq_is"].kept["ess_seq"] == pytest.approx(ess_seq, abs=5.1e-4)


def test_grpo_run_tells_its_story() -> None:
    steps = report_of("grpo_run").steps
    assert [s.policy_age for s in steps] == [0.0, 2.0, 4.0, 0.0, 2.0, 4.0]
    k3 = [s.metrics["kl_k3"] for s in steps]
    assert k3[0] < k3[1] < k3[2] > k3[3] < k3[4] < k3[5]
    assert [round(s.reward_mean, 3) for s in steps] == [0.125, 0.021, 0.021, 0.25, 0.25, 0.25]


FLAT = {
    "llamacpp_q4": (12111, 0.0587, 0.0031, 0.0036, 1.0028, 0.993, 0.724),
    "temperature_both": (6050, 0.0507, 0.0039, 0.0039, 1.0048, 0.992, 0.700),
    "temperature_raw": (6050, 0.2891, -0.1252, 0.0777, 0.8838, 0.921, 0.991),
    "top_p_one_side": (6182, 0.1025, 0.0948, 0.0071, 1.0967, 0.994, 0.123),
}


@pytest.mark.parametrize("name", FLAT)
def test_single_step_recordings(name: str) -> None:
    report = report_of(name)
    tokens, abs_d, k1, k3, ppl, ess, ess_seq = FLAT[name]
    kept = {c.name: c.stages.kept for c in report.corrections}
    assert report.counts.valid_tokens == tokens
    assert report.overall["log_prob_diff_abs_mean"] == pytest.approx(abs_d, abs=5.1e-5)
    assert report.overall["kl_k1"] == pytest.approx(k1, abs=5.1e-5)
    assert report.overall["kl_k3"] == pytest.approx(k3, abs=5.1e-5)
    assert report.overall["ppl_ratio"] == pytest.approx(ppl, abs=5.1e-5)
    assert kept["decoupled_token_is"]["ess"] == pytest.approx(ess, abs=5.1e-4)
    assert kept["decoupled_seq_is"]["ess_seq"] == pytest.approx(ess_seq, abs=5.1e-4)


def test_a_bounded_ess_alone_hides_a_fault() -> None:
    """temperature_raw: capped sequence weights look perfect, the raw ones have collapsed, and health says so."""
    report = ra.analyze(ra.open_dump(SAMPLES / "temperature_raw"), presets=["decoupled_seq_is"])
    stages = report.corrections[0].stages
    assert stages.kept["ess_seq"] == pytest.approx(0.991, abs=5e-4)
    assert stages.raw["ess_seq"] == pytest.approx(0.058, abs=5e-4)
    verdict = next(v for v in report.health if v.metric == "ess")
    assert (verdict.status, verdict.value) == ("critical", stages.raw["ess"])


@pytest.mark.parametrize("name", ["grpo_run", *FLAT])
def test_the_tight_geometric_band_rejects_most_tokens(name: str) -> None:
    kept = next(c.stages.kept for c in report_of(name).corrections if c.name == "decoupled_geo_rs")
    assert 0.8 <= kept["masked_fraction"] <= 1.0


def test_engine_mismatch_and_policy_update_stand_apart() -> None:
    """d_total = d_engine + d_update token by token, so the k1 means add up."""
    pairs = {p.name: p.metrics for p in report_of("grpo_run").pairs}
    assert set(pairs) == {"engine", "policy_update", "total"}
    assert pairs["total"]["kl_k1"] == pytest.approx(
        pairs["engine"]["kl_k1"] + pairs["policy_update"]["kl_k1"], rel=1e-9
    )


def test_bypass_presets_look_at_the_current_policy() -> None:
    training = {c.name: c.training_column for c in report_of("grpo_run").corrections}
    assert training["decoupled_seq_is"] == "old_log_probs"
    assert training["bypass_pg_is"] == "log_probs"


def test_mode_bypass_reports_the_current_policy() -> None:
    report = ra.analyze(ra.open_dump(SAMPLES / "grpo_run"), mode="bypass", presets=[])
    assert report.settings.training_column == "log_probs"
    total = next(p for p in report.pairs if p.name == "total")
    assert report.overall == total.metrics
