"""What is said of settings that are legal and probably not meant."""

from __future__ import annotations

import pytest

from rollout_audit.trainers.registry import get_trainer

NEMO = {"use_importance_sampling_correction": True, "truncated_importance_sampling_type": "icepop"}
NEMO_LOW, NEMO_HIGH = "truncated_importance_sampling_ratio_min", "truncated_importance_sampling_ratio"
ICEPOP = "slime.backends.megatron_utils.loss.icepop_function"


@pytest.mark.parametrize(
    ("trainer", "config", "band"),
    [
        ("verl", {"rollout_is": "token", "rollout_is_threshold": "1.2_2.0"}, "[1.2, 2]"),
        ("verl", {"rollout_is": "sequence", "rollout_is_threshold": "0.2_0.8"}, "[0.2, 0.8]"),
        ("nemo-rl", {**NEMO, NEMO_LOW: 1.2, NEMO_HIGH: 2.0}, "[1.2, 2]"),
        ("slime", {"use_tis": True, "custom_tis_function_path": ICEPOP, "tis_clip": 0.8}, "[0, 0.8]"),
        ("verl", {"rollout_is": "token", "rollout_is_threshold": "1.0_2.0"}, None),
        ("nemo-rl", {**NEMO, NEMO_LOW: 0.5, NEMO_HIGH: 1.0}, None),
    ],
)
def test_a_band_that_leaves_out_1(trainer: str, config: dict[str, object], band: str | None) -> None:
    dialect = get_trainer(trainer)
    said = [text for text in dialect.warnings(dialect.configure(config)) if "leaves out 1" in text]
    assert len(said) == (band is not None)
    assert band is None or f"the band {band} leaves out 1" in said[0]


@pytest.mark.parametrize(("method", "texts"), [("loglinear", 1), ("recompute", 0), ("metrics", 0)])
def test_interpolated_proximal_log_probs(method: str, texts: int) -> None:
    dialect = get_trainer("areal")
    config = dialect.configure({"use_decoupled_loss": True, "prox_logp_method": method})
    assert len([text for text in dialect.warnings(config) if "interpolated" in text]) == texts
