"""NeMo-RL: what float32 loses, two masks with one denominator, and the estimator that was chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra

ENABLED = {"use_importance_sampling_correction": True}
TYPE, RATIO = "truncated_importance_sampling_type", "truncated_importance_sampling_ratio"
BY_SEQUENCE = {"sequence_level_importance_ratios": True, "token_level_loss": False}


def dump_of(folder: Path, log_ratios: list[list[float]], rollout: float = -100.0) -> ra.Dump:
    """A dump with these log-ratios."""
    mu = [np.full(len(row), rollout) for row in log_ratios]
    pi = [one + np.array(row) for one, row in zip(mu, log_ratios, strict=True)]
    pq.write_table(pa.table({"rollout_log_probs": mu, "old_log_probs": pi}), folder / "dump.parquet")
    return ra.open_dump(folder)


def nemo_weights(log_ratio: np.ndarray, low: float | None, high: float | None) -> np.ndarray:
    """exp, nan_to_num and clip in float32, as its loss does."""
    with np.errstate(over="ignore"):
        raw = np.exp(log_ratio.astype(np.float32))
    raw = np.nan_to_num(raw, nan=0.0, posinf=0.0, neginf=0.0)
    return raw if high is None else np.clip(raw, low or 0.0, high)


@pytest.mark.parametrize(
    ("keys", "low", "high"),
    [
        ({}, None, None),
        ({TYPE: "tis", RATIO: 2.0}, None, 2.0),
        ({TYPE: "tis", RATIO: 2.0, f"{RATIO}_min": 0.5}, 0.5, 2.0),
    ],
)
@pytest.mark.parametrize("by_sequence", [False, True])
def test_a_ratio_past_float32_counts_as_0(
    tmp_path: Path, keys: dict[str, object], low: float | None, high: float | None, by_sequence: bool
) -> None:
    """88.7 is the last log-ratio of a float32: 89 and 100 become 0, 88 does not."""
    rows = [[89.0, -0.2], [88.0, 0.0], [100.0], [0.1, 0.2], [-3.0], [45.0, 45.0]]
    config = {**ENABLED, **keys, **(BY_SEQUENCE if by_sequence else {})}
    dump = dump_of(tmp_path, rows)
    expected = [
        np.repeat(nemo_weights(np.array([np.sum(row)]), low, high), len(row))
        if by_sequence
        else nemo_weights(np.array(row), low, high)
        for row in rows
    ]
    applied = [weights for _, weights, _ in ra.apply_correction(dump, config, trainer="nemo-rl")]
    for own, wanted in zip(applied, expected, strict=True):
        assert own == pytest.approx(wanted, rel=1e-5)
    report = ra.analyze(dump, presets=[], trainer="nemo-rl", config=config, sweep=False)
    stages, every = report.corrections[0].stages, np.concatenate(expected).astype(np.float64)
    assert stages.bounded["weight_mean"] == pytest.approx(every.mean(), rel=1e-5)
    assert stages.bounded["weight_min"] == pytest.approx(every.min(), rel=1e-5)
    assert stages.bounded["zeroed_fraction"] == pytest.approx((every == 0).mean())
    logged = ra.trainer_metrics(dump, "nemo-rl", config)["sampling_importance_ratio"]
    by_row = sum(float(row[0]) for row in expected)
    assert logged == pytest.approx(by_row if by_sequence else every.mean(), rel=1e-5)


def test_the_error_mask_shrinks_the_denominator_of_seq_mask_tis(tmp_path: Path) -> None:
    """Three responses: the error mask (mean exp |d| ≤ 1.4) drops the first, the geometric band zeroes the second."""
    rows = [[1.0, -1.0], [0.2, 0.2, 0.2], [0.3, -0.3, 0.01, 0.0]]
    config = {
        "loss_fn": {**ENABLED, TYPE: "seq-mask-tis", RATIO: 1.05, f"{RATIO}_min": 0.95},
        "grpo": {"seq_logprob_error_threshold": 1.4},
    }
    dump = dump_of(tmp_path, rows, rollout=-8.0)
    kept = [row for row in rows if np.mean(np.exp(np.abs(row))) <= 1.4]
    inside = [row for row in kept if 0.95 <= np.exp(np.mean(row)) <= 1.05]
    assert (len(kept), len(inside)) == (2, 1)
    scale = sum(np.exp(inside[0])) / sum(map(len, kept))
    report = ra.analyze(dump, presets=[], trainer="nemo-rl", config=config, sweep=False)
    stage = report.corrections[0].stages.kept
    assert stage["gradient_scale"] == pytest.approx(scale)
    assert stage["masked_fraction"] == pytest.approx(5 / 9)
    assert ra.trainer_metrics(dump, "nemo-rl", config)["sampling_importance_ratio"] == pytest.approx(scale, rel=1e-6)


@pytest.mark.parametrize(("kind", "other"), [("k1", -1.0), ("k2", 1.0)])
def test_a_divergence_stands_beside_its_own_estimator(tmp_path: Path, kind: str, other: float) -> None:
    """Both are of KL(generation‖previous): k1 is −d, k2 d²/2; the second of them has the policies exchanged."""
    d = np.array([0.5, 0.4, -0.1])
    dump = dump_of(tmp_path, [[*map(float, d)]], rollout=-8.0)
    report = ra.analyze(dump, presets=[], trainer="nemo-rl", config={"reference_policy_kl_type": kind}, sweep=False)
    assert report.trainer is not None
    found = {one.metric: one for one in report.trainer.beside}
    own = {"k1": -d, "k2": d**2 / 2}[kind].mean()
    gen, policy = found["gen_kl_error"], found["policy_kl_error"]
    assert (gen.native, gen.departs) == (f"overall.kl_{kind}", False)
    assert gen.native_value == pytest.approx(own)
    assert policy.value == pytest.approx(other * own)
    assert (policy.native, policy.departs) == (f"overall.kl_{kind}", other < 0)
