"""Dumps that once crashed, misled or lost something."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.audit.gates import PAIRS, check_names, evaluate, parse_gate
from rollout_audit.audit.pairs import PairName


def dump_of(folder: Path, name: str = "a.parquet", **columns: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / name)
    return folder


def audited(folder: Path, **options: object) -> ra.Report:
    return ra.analyze(ra.open_dump(folder), **options)


def test_products_below_the_least_float64(tmp_path: Path) -> None:
    """Long responses that lean one way: e^−400 is too small to be squared, ess comes from log space."""
    old, rollout = [[-1.54, -0.74] * 5000] * 2, [[-1.5, -0.7] * 5000] * 2
    report = audited(dump_of(tmp_path, old_log_probs=old, rollout_log_probs=rollout))
    stages = next(c for c in report.corrections if c.name == "decoupled_seq_is").stages
    assert stages.raw["ess"] == pytest.approx(1.0)
    assert report.overall["kl_k1"] == pytest.approx(0.04)


@pytest.mark.parametrize("rollout", [-1001.0, -720.0])
def test_a_ratio_past_float64_is_null_and_costs_nothing_else(tmp_path: Path, rollout: float) -> None:
    folder = dump_of(tmp_path, old_log_probs=[[-0.5, -1.0]], rollout_log_probs=[[-0.4, rollout]])
    report = audited(folder, presets=["decoupled_token_is"])
    assert report.worst_sequences[0].k3_mean is None
    assert report.overall["kl_k3"] is None
    assert report.overall_reasons["kl_k3"].startswith("overflow")
    assert report.status == "critical"
    report.to_json()


def test_training_columns_that_no_two_files_share(tmp_path: Path) -> None:
    dump_of(tmp_path, "a.parquet", old_log_probs=[[-1.0]], rollout_log_probs=[[-1.1]])
    dump_of(tmp_path, "b.parquet", log_probs=[[-1.0]], rollout_log_probs=[[-1.1]])
    message = (
        "^old_log_probs is not in b.parquet and log_probs is not in a.parquet: no training column is in every file"
    )
    with pytest.raises(ra.DumpError, match=message):
        audited(tmp_path)
    with pytest.raises(ra.DumpError, match=message):
        ra.trainer_metrics(ra.open_dump(tmp_path), "verl", {})
    with pytest.raises(ra.DumpError, match=message):
        list(ra.apply_correction(ra.open_dump(tmp_path), "decoupled_token_is"))


def test_an_infinite_reward_has_no_mean(tmp_path: Path) -> None:
    columns = {"old_log_probs": [[-1.0], [-1.2]], "rollout_log_probs": [[-1.1], [-1.0]]}
    report = audited(dump_of(tmp_path, reward=[float("inf"), 1.0], **columns))
    assert report.steps[0].reward_mean is None
    assert report.corrections[0].stages.kept["kept_reward_mean"] is None


@pytest.mark.parametrize("scale", [1e-7, 1e-6, 3e-6, 1.0])
def test_correlation_of_confident_models(tmp_path: Path, scale: float) -> None:
    rng = np.random.default_rng(0)
    rollout = -rng.exponential(scale, 4000)
    old = np.minimum(rollout + rng.normal(0, scale / 10, 4000), 0.0)
    report = audited(dump_of(tmp_path, old_log_probs=[old], rollout_log_probs=[rollout]), presets=[])
    exact = np.corrcoef(np.expm1(old), np.expm1(rollout))[0, 1]
    assert report.overall["prob_pearson"] == pytest.approx(exact, rel=1e-9)


def test_a_step_without_valid_tokens_is_unmeasured(tmp_path: Path) -> None:
    dump_of(tmp_path, "step_0.parquet", old_log_probs=[[-1.0]], rollout_log_probs=[[-1.0]], response_mask=[[0]])
    dump_of(tmp_path, "step_1.parquet", old_log_probs=[[-1.0]], rollout_log_probs=[[-1.1]], response_mask=[[1]])
    first, second = audited(tmp_path).steps
    assert (first.status, first.sequences, first.scored_sequences) == ("unmeasured", 1, 0)
    assert set(first.reasons.values()) == {"no valid token"}
    assert second.scored_sequences == 1


def test_columns_that_are_bit_identical_are_named(tmp_path: Path) -> None:
    """Real case 37."""
    row = np.linspace(-2, -0.1, 200)
    report = audited(dump_of(tmp_path, old_log_probs=[row], rollout_log_probs=[row]))
    assert report.findings[0].kind == "identical_columns"
    assert report.overall["kl_k1"] == 0.0
    assert str(report.overall["kl_k1"]) == "0.0"


@pytest.fixture(scope="module")
def one_wild_token(tmp_path_factory: pytest.TempPathFactory) -> ra.Report:
    folder = tmp_path_factory.mktemp("wild")
    old = [[-1.0] * 1000, [-1.0] * 10]
    rollout = [[-1.01] * 999 + [-10.0], [-1.0] * 9 + [-1.01]]
    return audited(dump_of(folder, old_log_probs=old, rollout_log_probs=rollout, step=[-1, 4]))


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("ess < 0.3", True),
        ("kept.ess < 0.3", False),
        ("raw.ess@any-step < 0.3", True),
        ("decoupled_token_is:raw.ess@-1 < 0.3", True),
        ("decoupled_token_is:ess@4 < 0.3", False),
        ("kl_k3@median > 0", True),
        ("critical", True),
    ],
)
def test_a_bounded_ess_does_not_pass_a_gate_that_the_raw_one_fails(
    one_wild_token: ra.Report, text: str, failed: bool
) -> None:
    assert evaluate(parse_gate(text), one_wild_token).failed is failed


@pytest.mark.parametrize(
    ("scope", "op", "verdict"),
    [
        ("median", "> 0.9", "unmeasured"),
        ("median", "< 0.9", "unmeasured"),
        ("any-step", "> 0.9", "unmeasured"),
        ("any-step", "< 0.9", "failed"),
        ("0", "< 0.9", "failed"),
        ("1", "< 0.9", "unmeasured"),
    ],
)
def test_a_gate_over_steps_of_which_one_has_no_value_cannot_tell(
    scope: str, op: str, verdict: str, tmp_path: Path
) -> None:
    """A median of the steps that are left is not that of all."""
    pairs = {"old_log_probs": [[-1.0]], "rollout_log_probs": [[-1.1]]}
    for step, more in enumerate(({"reward": [0.5]}, {})):
        dump_of(tmp_path / str(step), **pairs, **more, step=[step])
    report = audited(tmp_path)
    result = evaluate(parse_gate(f"kept_reward_mean@{scope} {op}"), report)
    assert result.verdict == verdict
    if scope == "median":
        assert result.text.endswith("nothing to compare, null in 1 of 2 steps")


def test_a_step_without_rewards_needs_them_whatever_is_kept(tmp_path: Path) -> None:
    """Nothing is kept of what the geometric rules reject; rewards of the other step do not help this one."""
    pairs = {"old_log_probs": [[-1.0]], "rollout_log_probs": [[-1.1]]}
    for step, more in enumerate(({"reward": [0.5], "advantages": [[1.0]]}, {})):
        dump_of(tmp_path / str(step), **pairs, **more, step=[step])
    needed = {"kept.kept_reward_mean": "needs rewards", "kept.kept_positive_fraction": "needs advantages"}
    with_them, without = audited(tmp_path, presets="all", sweep=False).steps
    for name, correction in without.corrections.items():
        assert {key: correction.reasons[key] for key in needed} == needed, name
    rejected = with_them.corrections["decoupled_geo_rs"].reasons
    assert {rejected[key] for key in needed} == {"no token is kept"}


def test_a_gate_on_a_pair_or_on_what_a_trainer_logs(tmp_path: Path) -> None:
    """Called as in a golden file: `total:kl_k1@pooled`, `verl:rollout_corr/kl@0`."""
    assert get_args(PairName) == PAIRS
    columns = {"rollout_log_probs": [[-1.0]] * 2, "old_log_probs": [[-1.5]] * 2, "log_probs": [[-3.0]] * 2}
    report = audited(dump_of(tmp_path, **columns, step=[0, 1]), trainer="verl", logged_steps=True)
    whole = {
        "total:kl_k1 == 2": "failed",
        "policy_update:kl_k1@pooled > 1.4": "failed",
        "engine:kl_k1@1 > 0.6": "passed",
        "verl:rollout_corr/kl > 0.499": "failed",
        "verl:rollout_corr/kl@any-step > 0.5": "passed",
    }
    gates = [parse_gate(text) for text in whole]
    check_names(gates, ["verl-config"])
    assert {gate.text: evaluate(gate, report).verdict for gate in gates} == whole
    for text, message in {
        "total:kl_k1@1 > 0": "the report does not hold total @1",
        "verl:rollout_corr/kll > 0": "verl has no 'rollout_corr/kll' here; did you mean 'rollout_corr/kl'?",
    }.items():
        with pytest.raises(ra.UsageError, match=re.escape(message)):
            evaluate(parse_gate(text), report)
    for text, message in {
        "total:ess > 0": "a pair has no metric 'ess'",
        "slime:mis_kl > 0": "what slime logs needs --trainer slime",
    }.items():
        with pytest.raises(ra.UsageError, match=re.escape(message)):
            check_names([parse_gate(text)], ["verl-config"])
    summed = parse_gate("roll:actor/train_infer_token_ratio_mask_mean@sum@3 < 0.5")
    assert (summed.metric, summed.scope) == ("actor/train_infer_token_ratio_mask_mean@sum", "3")


def test_a_gate_that_no_report_could_answer_is_refused_at_once() -> None:
    with pytest.raises(ra.UsageError, match="no metric 'kl_k33'; did you mean 'kl_k3'"):
        check_names([parse_gate("kl_k33 > 1")], [])
    with pytest.raises(ra.UsageError, match="no preset 'decoupled_token_iss' in the report; did you mean"):
        check_names([parse_gate("decoupled_token_iss:ess < 1")], ["decoupled_token_is"])
    with pytest.raises(ra.UsageError, match="nothing compares with nan"):
        parse_gate("kl_k3 > nan")


def test_the_timestamp_is_checked_before_the_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "abc")
    with pytest.raises(ra.UsageError, match="SOURCE_DATE_EPOCH='abc': expected seconds since 1970"):
        audited(dump_of(tmp_path, old_log_probs=[[-1.0]], rollout_log_probs=[[-1.1]]))


def test_a_report_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    """`--out` above the dump once took the dump with it."""
    dump_of(tmp_path / "out" / "dumps", old_log_probs=[[-1.0]], rollout_log_probs=[[-1.1]])
    report = audited(tmp_path / "out" / "dumps")
    ra.write_report(report, tmp_path / "elsewhere", plots=False)
    (tmp_path / "elsewhere" / "report.json").rename(tmp_path / "out" / "report.json")
    with pytest.raises(ra.ReportError, match="beside a report it holds dumps, which would be lost"):
        ra.write_report(report, tmp_path / "out", plots=False)
    assert (tmp_path / "out" / "dumps" / "a.parquet").exists()
