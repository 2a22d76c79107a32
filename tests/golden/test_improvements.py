"""What got better must not fail (real case 107), and what a figure is worse by must be a fault of the two engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.golden.tolerances import default_tolerance
from rollout_audit.trainers.logged import LOGGED
from rollout_audit.trainers.registry import TRAINERS
from tests.cli.conftest import FLOATS, Outcome, table

Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dump of a drifting engine, and the same where the trainer gives what the engine recorded."""
    before, after = tmp_path_factory.mktemp("before"), tmp_path_factory.mktemp("after")
    for step in range(2):
        rows = table(12, step=step, drift=0.9, seed=7)
        pq.write_table(rows, before / f"step_{step}.parquet")
        for name in ("old_log_probs", "log_probs"):
            rows = rows.set_column(rows.column_names.index(name), name, rows["rollout_log_probs"])
        pq.write_table(rows, after / f"step_{step}.parquet")
    return before, after


def hold(recorded: tuple[Path, Path], **options: object) -> ra.CheckResult:
    before, after = recorded
    ra.check(ra.open_dump(before), "g.json", update=True, tolerances={}, gates=[], **options)  # type: ignore[arg-type]
    return ra.check(ra.open_dump(after), "g.json", tolerances={}, gates=[], expect_bitwise=True)


def moved(result: ra.CheckResult, verdict: str) -> list[str]:
    return [str(row.key) for row in result.rows if row.verdict == verdict]


def test_bitwise_agreement_is_better(recorded: tuple[Path, Path]) -> None:
    result = hold(recorded, presets="all")
    assert moved(result, "worse") == []
    assert "decoupled_token_is:raw.weight_p25@pooled" in moved(result, "better")
    assert "token_rs:kept.mask@pooled" in moved(result, "better")
    notes = {str(row.key): row.note for row in result.rows if row.verdict == "better"}
    assert notes["seq_rs:kept.kept_reward_mean@pooled"] == "follows kept.mask, which removes fewer"


LOGS = {
    "ms-swift": {"rollout_importance_sampling_mode": "token_truncate", "log_rollout_offpolicy_metrics": True},
    "verl-2025-10": {"rollout_is": True, "rollout_is_threshold": 2.0},
    "areal": {"rejection_sampling": {"level": "token", "action": "mask", "metric": "ratio", "upper": 2.0}},
}
"""Settings with which a trainer logs the mismatch that does not by default"""


@pytest.mark.parametrize("trainer", sorted(TRAINERS))
def test_bitwise_agreement_is_better_in_a_trainers_metrics_too(trainer: str, recorded: tuple[Path, Path]) -> None:
    result = hold(recorded, trainer=trainer, config=LOGS.get(trainer, {}))
    assert moved(result, "worse") == []
    assert any(key.startswith(f"{trainer}:") for key in moved(result, "better"))


def test_every_logged_name_has_a_direction_but_for_these() -> None:
    names = {f"{t}:{e.prefix}{e.name}".replace("*", "all") for e in LOGGED for t in e.trainers}
    without = {name for name in names if default_tolerance(name).direction == "neither"}
    odd = {"nemo-rl:approx_entropy", "nemo-rl:masked_correct_pct", "areal:ppo_actor/update/n_valid_tokens"}
    assert {name for name in without if not name.endswith("_ppl")} == odd


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("miles:train/train_rollout_kl", "higher"),
        ("verl:rollout_corr/log_ppl_diff_min", "away from 0"),
        ("verl:rollout_corr/rollout_is_min", "away from 1"),
        ("verl:rollout_corr/rollout_rs_seq_mean_k1_seq_min", "away from 0"),
        ("verl:rollout_corr/rollout_rs_token_k3_mean", "higher"),
        ("prime-rl:mismatch_kl/all/max", "higher"),
        ("prime-rl:unmasked_mismatch_kl/mean", "higher"),
        ("prime-rl:is_masked_low/mean", "higher"),
        ("open-instruct:debug/vllm_vs_local_logprob_diff_std", "higher"),
        ("skyrl:policy/rollout_train_logprobs_abs_diff_max", "higher"),
        ("trl:sampling/sampling_logp_difference/max", "higher"),
        ("roll:actor/train_infer_diff_token_mean@sum", "away from 0"),
        ("roll:actor/train_infer_final_mask_mean", "lower"),
        ("areal:ppo_actor/update/unclipped_behave_tokens", "lower"),
    ],
)
def test_the_words_of_a_name_say_which_way_is_worse(metric: str, direction: str) -> None:
    assert default_tolerance(metric).direction == direction


def written(folder: Path, shift: float) -> Path:
    rng = np.random.default_rng(3)
    mu = -rng.exponential(1, (30, 20)) - 0.5
    pi = mu + rng.normal(0, 0.02, mu.shape) - shift
    folder.mkdir()
    columns = {"rollout_log_probs": pa.array(mu.tolist(), FLOATS), "old_log_probs": pa.array(pi.tolist(), FLOATS)}
    pq.write_table(pa.table(columns), folder / "step_0.parquet")
    return folder


def test_signed_figures_are_worse_away_from_where_they_stand_without_a_mismatch(tmp_path: Path) -> None:
    """Where π is below μ on every token, mean ρ² − 1 is below 0, which says nothing, and the largest weight below 1."""
    near, far = written(tmp_path / "near", 0.1), written(tmp_path / "far", 0.3)
    below = [f"{name}@pooled" for name in ("chi2_token", "chi2_seq", "log1p_chi2_token", "log1p_chi2_seq")]
    keys = [
        *(f"{name}@pooled" for name in ("log_ppl_diff_min", "log_ppl_diff_max")),
        *(f"decoupled_token_is:raw.weight_{x}@pooled" for x in ("min", "max")),
    ]
    for first, then, verdict in ((near, far, "worse"), (far, near, "better")):
        ra.check(ra.open_dump(first), f"{verdict}.json", update=True, tolerances={}, gates=[])
        result = ra.check(ra.open_dump(then), f"{verdict}.json", tolerances={}, gates=[])
        found = {str(row.key): row.verdict for row in result.rows}
        assert {key: found[key] for key in keys} == dict.fromkeys(keys, verdict)
        assert {key: found[key] for key in below} == dict.fromkeys(below, "same")


def test_a_perplexity_is_held_where_it_has_a_tolerance_alone(run: Run, dump: Path) -> None:
    """It looks at one policy: whether the two agree, ppl_ratio says."""
    figures = lambda file: json.loads(Path(file).read_text())["figures"]  # noqa: E731
    assert run("check", dump, "--golden", "g.json", "--update").code == 0
    assert [key for key in figures("g.json") if "_ppl@" in key] == []
    Path("rollout-audit.toml").write_text("[check.metrics.training_ppl]\nrtol = 1e-3\n")
    assert run("check", dump, "--golden", "h.json", "--update").code == 0
    pairs = ("policy_update:", "total:", "")
    training = {*(f"{pair}training_ppl@pooled" for pair in pairs), "training_ppl@0", "training_ppl@1"}
    assert {key for key in figures("h.json") if "_ppl@" in key} == training
    Path("h.json").write_text(Path("h.json").read_text().replace('"training_ppl@0": ', '"training_ppl@0": 1'))
    Path("rollout-audit.toml").unlink()  # the tolerance stands in the golden file now
    result = run("check", dump, "--golden", "h.json")
    assert (result.code, "worse    training_ppl@0" in result.out) == (1, True)
