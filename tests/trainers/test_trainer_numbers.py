"""Round numbers by hand for slime, TRL, NeMo-RL, OpenRLHF and open-instruct: where each quirk shows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rollout_audit.corrections.direct import apply
from rollout_audit.corrections.model import Denominator
from rollout_audit.corrections.presets import PRESETS
from rollout_audit.corrections.tokens import Tokens
from rollout_audit.reports.dialect import padding_note
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers.base import sorted_order
from rollout_audit.trainers.expression import Expression, Unexpressible
from rollout_audit.trainers.registry import get_trainer

LOG2, LOG4 = math.log(2.0), math.log(4.0)
Rows = list[list[float]]
LENGTHS = torch.tensor([3, 1]), torch.tensor([3, 9])
"""All tokens are valid; eight masked ones after the second response"""


def tokens_of(
    rows: Rows, advantages: Rows | None = None, rewards: list[float] | None = None, masked: int = 0
) -> Tokens:
    """Log-ratios against rollout log-probs of −1; every response has `masked` further tokens under mask 0."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    rollout = torch.full((int(lengths.sum()),), -1.0, dtype=torch.float64)
    return Tokens(
        lengths,
        rollout + torch.tensor([d for row in rows for d in row], dtype=torch.float64),
        rollout,
        segment_lengths=lengths[lengths > 0],
        advantages=None
        if advantages is None
        else torch.tensor([a for row in advantages for a in row], dtype=torch.float64),
        response_lengths=lengths + masked,
        rewards=None if rewards is None else torch.tensor(rewards, dtype=torch.float64),
    )


def metrics_of(name: str, config: dict[str, object], tokens: Tokens) -> Metrics:
    trainer = get_trainer(name)
    parsed = trainer.configure(config)
    rows = {key: column.numpy() for key, column in trainer.row_columns(tokens, parsed).items()}
    return trainer.metrics(rows, parsed, sorted_order(tokens.log_ratio.numpy()))


def weights_of(name: str, config: dict[str, object], rows: Rows) -> list[float]:
    trainer = get_trainer(name)
    applied = apply(trainer.correction(trainer.configure(config)), tokens_of(rows))
    return (applied.normalised * applied.kept).tolist()


def assert_close(got: Metrics, expected: dict[str, float]) -> None:
    assert {name: got[name] for name in expected} == pytest.approx(expected, rel=1e-7)


def test_slime_means_over_all_rows_of_the_raw_ratio() -> None:
    got = metrics_of("slime", {"use_tis": True}, tokens_of([[LOG4, 0.0], [-LOG2], []]))
    assert_close(got, {"tis": (2.5 + 0.5) / 3, "tis_abs": (1.5 + 0.5) / 3, "tis_clipfrac": 0.5 / 3})
    assert weights_of("slime", {"use_tis": True}, [[LOG4, 0.0]]) == [2.0, 1.0]


def test_slime_opsm_counts_masked_tokens_and_needs_advantages() -> None:
    config = {"use_opsm": True, "use_rollout_logprobs": True, "opsm_delta": 0.1}
    rows: Rows = [[-0.2, -0.2], [0.3], [-0.5]]
    advantages: Rows = [[-1.0, -1.0], [-1.0], [1.0]]
    got = metrics_of("slime", config, tokens_of(rows, advantages, masked=4))
    assert got["opsm_clipfrac"] == pytest.approx((6 / 2) / 3)
    absent = metrics_of("slime", config, tokens_of(rows))
    assert (absent["opsm_clipfrac"], absent.reasons["opsm_clipfrac"]) == (None, "needs advantages")


def test_slime_opsm_between_two_trainer_policies_is_not_assumed() -> None:
    got = metrics_of("slime", {"use_opsm": True}, tokens_of([[-0.2]], [[-1.0]]))
    assert got["opsm_clipfrac"] is None
    assert got.reasons["opsm_clipfrac"].startswith("needs advantages, and log_probs beside old_log_probs")


def test_slime_rejection_lowers_the_absolute_difference() -> None:
    config = {"use_tis": True, "custom_tis_function_path": "mis.compute_mis_weights_with_cp", "tis_mode": "mask"}
    got = metrics_of("slime", config, tokens_of([[LOG4, 0.25]]))
    assert got["train_rollout_logprob_abs_diff"] == pytest.approx(0.25 / 2)


def test_mis_normalises_sequences_by_all_rows() -> None:
    config = {"tis_level": "sequence", "tis_batch_normalize": True}
    assert weights_of("miles", config, [[LOG2], [0.0], []]) == pytest.approx([2.0, 1.0])
    assert weights_of("verl", {"rollout_is": "sequence", "rollout_is_batch_normalize": True}, [[LOG2], [0.0], []]) == (
        pytest.approx([4 / 3, 2 / 3])
    )


def test_trl_zeroes_products_and_counts_empty_rows_as_one() -> None:
    got = metrics_of("trl", {}, tokens_of([[LOG2, LOG2], [0.0], []]))
    assert_close(
        got,
        {
            "sampling/importance_sampling_ratio/mean": 2 / 3,
            "sampling/importance_sampling_ratio/min": 0.0,
            "sampling/importance_sampling_ratio/max": 1.0,
            "sampling/sampling_logp_difference/mean": 2 * LOG2 / 3,
            "sampling/sampling_logp_difference/max": LOG2,
        },
    )
    assert weights_of("trl", {}, [[LOG2, LOG2], [LOG2]]) == [0.0, 0.0, 2.0]


def test_trl_logs_nothing_with_the_correction_off() -> None:
    assert not metrics_of("trl", {"vllm_importance_sampling_correction": False}, tokens_of([[0.5]]))


def test_nemo_sequence_weights_are_summed_not_averaged() -> None:
    config = {"sequence_level_importance_ratios": True, "token_level_loss": False}
    got = metrics_of("nemo-rl", config, tokens_of([[0.0], [LOG2]]))
    assert got["sampling_importance_ratio"] == pytest.approx(3.0)
    assert got.reasons["sampling_importance_ratio"] == "mean weight times 2 rows: the batch taken as one micro-batch"


def test_nemo_divergences_of_one_unlikely_token() -> None:
    """reference/cases.md 29: log-probs −5 and −15."""
    tokens = tokens_of([[-10.0]])
    shifted = Tokens(
        tokens.lengths, tokens.training_log_probs - 4.0, tokens.rollout_log_probs - 4.0, tokens.segment_lengths
    )
    got = metrics_of("nemo-rl", {}, shifted)
    assert_close(got, {"gen_kl_error": 9.0000453, "policy_kl_error": 22015.465795, "js_divergence_error": 4.3068982})


def test_nemo_masks_sequences_by_their_error_and_needs_rewards() -> None:
    config = {"seq_logprob_error_threshold": 1.5}
    rows: Rows = [[LOG2, -LOG2], [0.0], []]
    got = metrics_of("nemo-rl", config, tokens_of(rows, rewards=[1.0, 0.0, 0.0]))
    assert_close(
        got,
        {
            "max_seq_mult_prob_error": 2.0,
            "mean_seq_mult_prob_error": 1.5,
            "max_seq_mult_prob_error_after_mask": 1.0,
            "num_masked_seqs_by_logprob_error": 1,
            "masked_correct_pct": 1.0,
            "num_valid_samples": 2,
        },
    )
    absent = metrics_of("nemo-rl", config, tokens_of(rows))
    assert (absent["masked_correct_pct"], absent.reasons["masked_correct_pct"]) == (None, "needs reward")
    assert weights_of("nemo-rl", config, [[LOG2, -LOG2], [0.0]]) == [0.0, 0.0, 1.0]


def test_nemo_weights_past_float32_are_zero() -> None:
    got = metrics_of("nemo-rl", {}, tokens_of([[100.0, 0.0]]))
    assert got["sampling_importance_ratio"] == pytest.approx(0.5)


def test_openrlhf_clips_on_both_sides_and_masks_by_the_mean() -> None:
    rows: Rows = [[-LOG4, 2 * LOG4], [0.0]]
    assert weights_of("openrlhf", {"is_correction_enable": True}, rows) == pytest.approx([0.5, 5.0, 1.0])
    geometric = {"is_correction_type": "seq-mask-tis", "is_correction_threshold": [0.5, 1.5]}
    assert weights_of("openrlhf", geometric, rows) == pytest.approx([0.0, 0.0, 1.0])
    assert metrics_of("openrlhf", {}, tokens_of(rows))["vllm_kl"] == pytest.approx(-LOG4 / 3)


def test_openrlhf_does_nothing_unless_enabled() -> None:
    assert weights_of("openrlhf", {}, [[LOG4]]) == [1.0]
    assert weights_of("openrlhf", {"is_correction_enable": False, "is_correction_type": "icepop"}, [[LOG4]]) == [1.0]


def test_open_instruct_clamps_to_ten_and_counts_dropped_tokens_as_clipped() -> None:
    unbounded = metrics_of("open-instruct", {"rho_clamp_upper_bound": 0.0}, tokens_of([[15.0]]))
    assert unbounded["val/rho_weight"] == pytest.approx(math.exp(10.0))
    got = metrics_of("open-instruct", {"rho_mask_upper_bound": 3.0}, tokens_of([[LOG4, 0.0]]))
    assert_close(got, {"val/rho_weight": 0.5, "val/rho_clipfrac": 0.5, "val/rho_drop_high_frac": 0.5})


def test_open_instruct_tv_mask_drops_what_pushes_the_policies_apart() -> None:
    config = {"rho_mask_tv_divergence": True, "rho_mask_upper_bound": 1.4, "rho_clamp_upper_bound": 0.0}
    rows: Rows = [[LOG4, LOG4, 0.0]]
    got = metrics_of("open-instruct", config, tokens_of(rows, [[1.0, -1.0, 1.0]]))
    assert_close(got, {"val/rho_drop_frac": 1 / 3, "val/rho_weight": 5 / 3})
    absent = metrics_of("open-instruct", config, tokens_of(rows))
    assert absent.reasons == {
        f"val/rho_{name}": "needs advantages" for name in ("weight", "drop_frac", "drop_low_frac", "drop_high_frac")
    }


def test_open_instruct_difference_is_pooled() -> None:
    got = metrics_of("open-instruct", {}, tokens_of([[1.0, -2.0], [3.0], []]))
    assert_close(
        got,
        {
            "debug/vllm_vs_local_logprob_diff_mean": 2.0,
            "debug/vllm_vs_local_logprob_diff_std": float(np.std([1.0, 2.0, 3.0], ddof=1)),
            "debug/vllm_local_reverse_kl": -2.0 * math.exp(-1.0) / 3,
        },
    )


def test_slime_opsm_drops_negative_tokens_of_responses_that_drifted() -> None:
    trainer = get_trainer("slime")
    correction = trainer.correction(trainer.configure("--use-opsm --use-rollout-logprobs --opsm-delta 0.1"))
    tokens = tokens_of([[-0.2, -0.2], [-0.05], [0.3]], [[-1.0, 1.0], [-1.0], [-1.0]])
    assert apply(correction, tokens).kept.tolist() == [False, True, True, True]


def test_open_instruct_clamps_tokens_before_their_mean() -> None:
    config = {"rho_mask_sequence_level": True, "rho_clamp_upper_bound": 0.0}
    assert weights_of("open-instruct", config, [[20.0, -10.0]]) == pytest.approx([1.0, 1.0])


def test_trl_masks_drifted_sequences_of_negative_advantage() -> None:
    """Means of log μ − log π 0.2, 0.2 and 0.1: the first is past delta and its advantage is negative."""
    trainer = get_trainer("trl")
    settings = {"vllm_importance_sampling_correction": False, "off_policy_mask_threshold": 0.15}
    correction = trainer.correction(trainer.configure(settings))
    batch = tokens_of([[-0.1, -0.3], [-0.2], [-0.1]], [[-1.0, -1.0], [1.0], [-1.0]])
    applied = apply(correction, batch)
    assert applied.kept.tolist() == [False, False, True, True]
    assert correction.denominator is Denominator.ORIGINAL
    assert trainer.express(correction) == Expression(settings, correction)
    ms_swift = trainer.express(PRESETS["ms_swift_off_policy_mask"].correction)
    assert isinstance(ms_swift, Unexpressible)
    assert ms_swift.nearest.settings == settings | {"off_policy_mask_threshold": 0.5}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("skyrl", {"tis_ratio_type": "token"}),
        ("roll", {"is_weight": {"enabled": True}, "filters": [{"enabled": True}]}),
        *((name, {}) for name in ("verl", "slime", "trl", "open-instruct", "nemo-rl", "openrlhf", "ms-swift")),
    ],
)
def test_what_depends_on_padding_is_said_to(name: str, config: dict[str, object]) -> None:
    rows = [[0.3, -0.2, 0.1], [LOG2]]
    short, long = (metrics_of(name, config, replace(tokens_of(rows), response_lengths=own)) for own in LENGTHS)
    changed = {key for key in short if short[key] != long[key]}
    note = padding_note(name, short)
    assert {key for key in short if key in note} >= changed
    assert bool(changed) is bool(note) is (name in ("skyrl", "roll"))
