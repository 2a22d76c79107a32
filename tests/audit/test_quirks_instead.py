"""What a quirk changes, beside what one would expect: both weighed by hand; and the checks that need no such pair."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra

Rows = list[np.ndarray]
Config = dict[str, object]
Weigh = Callable[[np.ndarray], np.ndarray]

ROWS: Rows = [np.array(row) for row in ([0.9, -1.2, 0.1], [0.3, 0.2], [-0.4, -0.5, 0.02, 0.0], [1.5], [-2.0, 0.6])]


def found(folder: Path, trainer: str, config: Config, rows: Rows = ROWS, **columns: list) -> dict[str, str]:
    """Quirk → message, of a dump with these log-ratios at log μ = −8, or −100; `log_probs` are `old_log_probs`."""
    base = -8.0 if max(row.max() for row in rows) < 8 else -100.0
    rollout = [np.full(len(row), base) for row in rows]
    table = {"rollout_log_probs": rollout, "old_log_probs": [mu + row for mu, row in zip(rollout, rows, strict=True)]}
    if trainer in ("prime-rl", "skyrl", "verl"):
        table["log_probs"] = table["old_log_probs"]
    pq.write_table(pa.table({**table, **columns}), folder / "dump.parquet")
    report = ra.analyze(ra.open_dump(folder), presets=[], trainer=trainer, config=config, sweep=False)
    return {f.kind.removeprefix("quirk:"): f.message for f in report.findings if f.kind.startswith("quirk:")}


def raw(d: np.ndarray) -> np.ndarray:
    return np.exp(d)


def capped(upper: float) -> Weigh:
    return lambda d: np.minimum(np.exp(d), upper)


def product(d: np.ndarray) -> np.ndarray:
    return np.full(len(d), np.exp(d.sum()))


def mean(d: np.ndarray) -> np.ndarray:
    return np.full(len(d), np.exp(d.mean()))


def ones(d: np.ndarray) -> np.ndarray:
    return np.ones(len(d))


def where(weigh: Weigh, low: float, high: float, of: Weigh = raw) -> Weigh:
    """The weights where another ratio lies inside, 0 elsewhere."""
    return lambda d: weigh(d) * ((of(d) >= low) & (of(d) <= high))


def clipped(weigh: Weigh, low: float, high: float) -> Weigh:
    return lambda d: np.clip(weigh(d), low, high)


def without_vetoed(weigh: Weigh) -> Weigh:
    return lambda d: weigh(d) * float((d >= math.log(1e-4)).all())


NEMO = {"use_importance_sampling_correction": True}
NEMO_TYPE, NEMO_RATIO = "truncated_importance_sampling_type", "truncated_importance_sampling_ratio"
ON = {"is_correction_enable": True}
ICEPOP = "slime.backends.megatron_utils.loss.icepop_function"
FAR = [*ROWS, np.array([90.0, 0.0]), np.array([12.0, -11.0])]
AREAL = {"level": "sequence", "metric": "ratio", "lower": 0.5, "upper": 2.0}


def areal(**keys: object) -> Config:
    return {"use_decoupled_loss": True, "rejection_sampling": {**AREAL, **keys}}


def k3(d: np.ndarray) -> np.ndarray:
    return np.expm1(d) - d


@pytest.mark.parametrize(
    ("trainer", "config", "quirk", "rows", "own", "other"),
    [
        ("nemo-rl", {**NEMO, NEMO_TYPE: "tis", NEMO_RATIO: 2.0}, "overflow_is_zero", FAR,
         lambda d: np.where(d > 88.7, 0.0, capped(2.0)(d)), capped(2.0)),
        ("nemo-rl", {**NEMO, NEMO_TYPE: "seq-mask-tis", NEMO_RATIO: 1.4, f"{NEMO_RATIO}_min": 0.7},
         "raw_weights_of_kept_sequences", ROWS, where(raw, 0.7, 1.4, mean),
         where(clipped(raw, 0.7, 1.4), 0.7, 1.4, mean)),
        ("openrlhf", ON, "two_sided_tis", ROWS, clipped(raw, 0.5, 5.0), capped(5.0)),
        ("openrlhf", {**ON, "is_correction_type": "seq-mask-tis", "is_correction_threshold": [0.7, 1.4]},
         "raw_weights_of_kept_sequences", ROWS, where(raw, 0.7, 1.4, mean),
         where(clipped(raw, 0.7, 1.4), 0.7, 1.4, mean)),
        ("open-instruct", {"rho_clamp_upper_bound": 0.0}, "clamp_of_ten", FAR,
         lambda d: np.exp(np.clip(d, -10, 10)), raw),
        ("open-instruct", {"rho_mask_sequence_level": True}, "geometric_sequence_level", ROWS,
         clipped(mean, 0.0, 2.0), capped(2.0)),
        ("trl", {}, "product_ratio", ROWS, where(product, 0.0, 3.0, product), where(mean, 0.0, 3.0, mean)),
        ("ms-swift", {"rollout_importance_sampling_mode": "sequence_truncate"}, "geometric_sequence", ROWS,
         clipped(mean, 0.0, 2.0), clipped(product, 0.0, 2.0)),
        ("ms-swift",
         {"rollout_importance_sampling_mode": "sequence_mask", "rollout_importance_sampling_threshold": 1.4},
         "geometric_sequence", ROWS, where(raw, 0.0, 1.4, mean), where(raw, 0.0, 1.4, product)),
        ("ms-swift", {"rollout_importance_sampling_mode": "sequence_mask"}, "sequence_mask_keeps_tokens", ROWS,
         where(raw, 0.0, 2.0, mean), where(mean, 0.0, 2.0, mean)),
        ("ms-swift", {"rollout_importance_sampling_mode": "token_mask"}, "upper_bound_only", ROWS,
         where(raw, 0.0, 2.0), where(raw, 0.5, 2.0)),
        ("slime", {"use_tis": True, "custom_tis_function_path": ICEPOP}, "icepop_without_floor", ROWS,
         where(raw, 0.0, 2.0), where(raw, 0.5, 2.0)),
        ("miles", {"use_tis": True, "tis_level": "token", "tis_batch_normalize": False}, "veto_needs_rs",
         [*ROWS, np.array([-10.0, 0.1])], capped(2.0), without_vetoed(capped(2.0))),
        ("skyrl", {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0}, "binary_icepop", ROWS,
         where(ones, 0.5, 2.0), where(raw, 0.5, 2.0)),
        ("skyrl", {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0,
                   "tis_ratio_type": "sequence"}, "masks_before_ratios", ROWS,
         lambda d: where(ones, 0.5, 2.0)(d) * np.minimum(np.exp((d * where(ones, 0.5, 2.0)(d)).sum()), 5.0),
         where(clipped(product, 0.0, 5.0), 0.5, 2.0)),
        ("areal", areal(metric="kl_k3", upper=0.12, lower=None, level="token"), "k3_of_the_inverse", ROWS,
         where(raw, 0.0, 0.12, lambda d: k3(-d)), where(raw, 0.0, 0.12, k3)),
        ("areal", areal(agg="sum"), "geometric_weight", ROWS, where(mean, 0.5, 2.0, product),
         where(product, 0.5, 2.0, product)),
        ("areal", areal(agg="sum", action="clamp"), "clamp_of_another_ratio", ROWS, clipped(mean, 0.5, 2.0),
         clipped(product, 0.5, 2.0)),
        ("roll", {"filters": [{"enabled": True, "diff_enabled": True, "diff_low": -1.0, "diff_high": 1.0}]},
         "ratio_filter_on", ROWS, where(ones, 0.8, 1.2), ones),
        ("areal", {}, "no_weight_by_default", ROWS, ones, raw),
        ("verl-2025-11", {"bypass_mode": True, "rollout_rs": "token", "rollout_rs_threshold": 2.0},
         "bypass_rejects_nothing", ROWS, ones, where(ones, 0.5, 2.0)),
    ],
)  # fmt: skip
def test_weights_beside_those_that_would_be_expected(
    tmp_path: Path, trainer: str, config: Config, quirk: str, rows: Rows, own: Weigh, other: Weigh
) -> None:
    columns = {"log_probs": [row - 8.0 for row in rows]} if config.get("bypass_mode") else {}
    message = found(tmp_path, trainer, config, rows, **columns)[quirk]
    mine, theirs = (np.concatenate([weigh(row) for row in rows]) for weigh in (own, other))
    differing = np.count_nonzero(np.abs(mine - theirs) > 1e-6 * np.maximum(mine, theirs))
    assert differing > 0
    assert f"{differing:,} of {len(mine):,} tokens have another weight in the loss than" in message
    sums = f"the weights add up to {mine.sum() / len(mine):.4g} of the tokens, with that to "
    assert f"{sums}{theirs.sum() / len(mine):.4g}" in message


@pytest.mark.parametrize(
    ("trainer", "config", "quirk", "own", "other"),
    [
        ("prime-rl", {"dppo_mask_low": 1e-4, "dppo_mask_high": 1e-4}, "zero_advantage", 2, 3),
        ("skyrl", {"policy_loss_type": "dppo", "delta_low": 1e-4, "delta_high": 1e-4}, "dppo_zero_advantage", 3, 2),
        ("verl", {"loss_mode": "dppo_tv", "bypass_mode": True, "clip_ratio_low": 1e-4, "clip_ratio_high": 1e-4},
         "dppo_zero_advantage", 2, 3),
    ],
)  # fmt: skip
def test_an_advantage_of_0(tmp_path: Path, trainer: str, config: Config, quirk: str, own: int, other: int) -> None:
    """π − μ = e^-8 (1/2 − 1) = −1.7e-4 under advantages of 0, 1, 0.5: only the first can be on the low side."""
    rows = [np.full(3, math.log(0.5))]
    message = found(tmp_path, trainer, config, rows, advantages=[[0.0, 1.0, 0.5]])[quirk]
    assert "1 of 3 tokens have another weight" in message
    assert f"add up to {own * 0.5 / 3:.4g} of the tokens, with that to {other * 0.5 / 3:.4g}" in message


def test_the_clamped_kl_of_miles(tmp_path: Path) -> None:
    """k3 of log 50 is 45, which train_rollout_kl takes for 10."""
    d = np.array([math.log(50.0), 0.0])
    message = found(tmp_path, "miles", {"use_tis": True, "tis_clip": 2.0}, [d])["clamped_kl"]
    assert f"train_rollout_kl = 5 where overall.kl_k3 is {k3(d).mean():.4g}" in message


def test_a_tie_at_the_exclusive_bounds_of_rollout_is(tmp_path: Path) -> None:
    """d = 0.5 is a float of both columns; its ratio is the upper end itself."""
    end = math.exp(0.5)
    assert 1 + (end - 1) == end
    config = {"policy_loss_type": "rollout_is", "eps_clip_low": 0.5, "eps_clip_high": end - 1}
    message = found(tmp_path, "skyrl", config, [np.array([0.5, 0.0])])["exclusive_bounds"]
    assert "1 of 2 tokens have another weight" in message
    assert f"add up to {1 / 2:.4g} of the tokens, with that to {(1 + end) / 2:.4g}" in message


MIXTURE = np.log((np.exp(-3.0) + np.exp(-8.0)) / 2)
JS_OF_5 = 0.5 * (k3(-3.0 - MIXTURE) + k3(-8.0 - MIXTURE))
"""NeMo-RL's estimate from one token of log π = −3 and log μ = −8"""


@pytest.mark.parametrize(
    ("trainer", "config", "quirk", "rows", "text"),
    [
        ("verl", {"rollout_is": "token", "rollout_is_threshold": "0.9_1.1"}, "empty_weights",
         [np.array([1.0, -1.0])], "every weight is 0"),
        ("miles", {"use_tis": True, "tis_level": "token", "tis_mode": "mask", "tis_batch_normalize": True},
         "normaliser_before_rejection", [np.array([0.0, math.log(4.0)])],
         "divided by 2.5 all weights average 1, those of the tokens that are left 0.4. Mode mask removes tokens"),
        ("trl", {"vllm_importance_sampling_mode": "token_truncate"}, "unclamped_ratio", [np.array([21.0, 0.0])],
         f"1 tokens lie beyond a log-ratio of ±20: raw weights from 1 to {math.exp(21.0):.4g}"),
        ("roll", {"is_weight": {"enabled": True}}, "unclamped_ratio", [np.array([21.0, 0.0])],
         "Log-ratios are not clamped before exp."),
        ("trl", {"vllm_importance_sampling_mode": "token_mask"}, "masking_is_zeroing",
         [np.array([math.log(4.0), 0.0, math.log(0.5), 0.0])],
         "25.00% of the tokens have weight 0: the weights add up to 0.625 of all, 0.8333 of the others"),
        ("nemo-rl", {}, "pseudo_js", [np.array([5.0])],
         f"js_divergence_error = {JS_OF_5:.4g} is above log 2 = 0.6931"),
        ("nemo-rl", {"seq_logprob_error_threshold": 1.1}, "epsilon", [np.array([1.0])],
         "every row is masked: token_mult_prob_error is logged as 0"),
        ("open-instruct", {"use_rho_correction": False}, "zeros_when_off", ROWS, "val/rho_weight = 0 is logged"),
        ("roll", {"filters": [{"enabled": True, "agg_type": "geometric", "ratio_enabled": False, "diff_enabled": True,
                               "diff_low": -1e-4, "diff_high": 1e-4}]}, "geometric_difference",
         [np.array([math.log(2.0)] * 3), np.array([0.0])], "seq_mean_prob_diff removes 75.00% of the tokens by itself"),
        ("prime-rl", {"type": "ipo"}, "mask_by_probability", [np.array([2.0, 0.0])],
         f"the ratios of the tokens that stay lie from 1 to {math.exp(2.0):.4g}"),
        ("prime-rl", {"type": "ipo", "ipo_threshold": 1e-3}, "masked_tokens_keep_kl", [np.array([2.0, 0.0])],
         "50.00% of the tokens are masked and keep that term"),
        ("openrlhf", {**ON, "is_correction_type": "seq-mask-tis"}, "idle_bound", ROWS,
         "hardly ever reject"),
        ("verl", {"rollout_rs": "token_k1", "rollout_rs_threshold": 2.0}, "gradient_scale", ROWS,
         "a factor"),
        ("slime", {"use_tis": True, "tis_level": "token", "use_rs": True, "tis_batch_normalize": False},
         "gradient_scale", ROWS, "Rejected tokens leave the numerator of the loss only"),
    ],
)  # fmt: skip
def test_a_check_of_one_trainers_quirk(
    tmp_path: Path, trainer: str, config: Config, quirk: str, rows: Rows, text: str
) -> None:
    assert text in found(tmp_path, trainer, config, rows)[quirk]
