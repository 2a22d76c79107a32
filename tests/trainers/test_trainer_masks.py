"""SkyRL, AReaL, ROLL, ms-swift and prime-rl: what they refuse, what they warn of, and the quirks that can be shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Over,
    Rule,
    Statistic,
    Weight,
)
from rollout_audit.corrections.presets import PRESETS, Preset
from rollout_audit.errors import ConfigError, MissingFieldError
from rollout_audit.trainers.registry import get_trainer

LOW = {"rollout_importance_sampling_threshold": 0.9}


def dump_of(
    folder: Path,
    rows: Sequence[Sequence[float]],
    advantages: Sequence[float] | None = None,
    steps: Sequence[int] = (),
    rollout: float = -1.0,
) -> ra.Dump:
    """Rows of log-ratios against a rollout log-prob of −1 (probability 0.368), or another one, everywhere."""
    table = {
        "rollout_log_probs": [[rollout] * len(row) for row in rows],
        "old_log_probs": [[rollout + d for d in row] for row in rows],
        "response_mask": [[1] * len(row) for row in rows],
    }
    if advantages is not None:
        table["advantages"] = list(advantages)
    if steps:
        table["step"] = list(steps)
    pq.write_table(pa.table(table), folder / "dump.parquet")
    return ra.open_dump(folder)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        (
            "skyrl",
            {"tis_ratio_type": "geometric"},
            "tis_ratio_type = 'geometric': must be one of null, token, sequence",
        ),
        ("skyrl", {"sequence_mask_metric": "product", "product_mask_low": 3.0}, "product_mask_low = 3.0: above"),
        ("skyrl", {"token_mask_is_threshold_low": -1}, "token_mask_is_threshold_low = -1: must be positive"),
        ("areal", {"upper": 0.9}, "upper = 0.9: AReaL wants a bound above 1 for a ratio"),
        ("areal", {"action": "clamp", "metric": "kl_k1"}, "action = 'clamp': AReaL clamps ratios only, not kl_k1"),
        ("areal", {"behave_imp_weight_cap": None}, "behave_imp_weight_cap = None: was a raw ratio without a bound"),
        ("areal", {"behave_imp_weight_mode": "mask"}, "behave_imp_weight_mode = 'mask': must be one of disabled"),
        ("areal", {"behave_imp_weight_cap": 0.5}, "upper = 0.5: AReaL wants a bound above 1 for a ratio"),
        ("areal", {"behave_imp_weight_capp": 5.0}, "behave_imp_weight_capp = 5.0: unknown setting; did you mean"),
        ("areal", {"metric": "kl_k2", "upper": -1}, "upper = -1: kl_k2 is never below 0"),
        ("areal", {"metric": "kl_k3", "upper": 0}, "upper = 0: kl_k3 is never below 0"),
        ("areal", {"lower": 6.0}, "lower = 6.0: above upper = 5"),
        ("areal", {"m2_threshold": 0}, "m2_threshold = 0: must be positive"),
        ("roll", {"filters": [{"agg_typ": "token"}]}, "filters[0].agg_typ = 'token': unknown setting; did you mean"),
        ("roll", {"filters": [{"enabled": True, "ratio_low": 2}]}, "filters[0].ratio_low = 2: above"),
        ("roll", {"is_weight": {"weight_type": "row"}}, "is_weight.weight_type = 'row': must be one of"),
        ("roll", {"filters": {"enabled": True}}, "filters = {'enabled': True}: expected a list of filters"),
        ("ms-swift", {"rollout_importance_sampling_mode": "token"}, "rollout_importance_sampling_mode = 'token': must"),
        (
            "ms-swift",
            {"rollout_importance_sampling_threshold": 0},
            "rollout_importance_sampling_threshold = 0: must be",
        ),
        ("prime-rl", {"type": "custom"}, "type = 'custom': a loss of the run's own code, which no setting tells"),
        ("prime-rl", {"dppo_mask_low": -0.1}, "dppo_mask_low = -0.1: must not be negative"),
    ],
)
def test_what_the_trainer_refuses_names_key_and_value(name: str, config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        get_trainer(name).configure(config)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("skyrl", {"token_mask_is_threshold_low": 0.5}, "token mask is off without token_mask_is_threshold_high"),
        (
            "areal",
            {"use_decoupled_loss": True, "level": "sequence", "agg": "sum", "action": "clamp"},
            "clamps the geometric mean",
        ),
        ("areal", {"use_decoupled_loss": True, "metric": "kl_k3", "upper": 0.1}, "without any bound"),
        ("roll", {"filters": [{}]}, "filters[0]: does nothing without enabled: true"),
        (
            "roll",
            {"filters": [{"enabled": True, "diff_enabled": True}], "force_disable_old_logprobs_recompute": True},
            "ratio_enabled is true by default",
        ),
        ("roll", {"filters": [{"enabled": True}]}, "ROLL sets it to true where a step takes several backward steps"),
        ("roll", {"is_weight": {"upper_bound": 2.0}}, "is_weight: does nothing without enabled: true"),
        (
            "ms-swift",
            {"rollout_importance_sampling_mode": "token_mask", "rollout_importance_sampling_threshold": 0.9},
            "below 1",
        ),
        ("prime-rl", {"dppo_mask_high": 1.0}, "no two probabilities differ by so much"),
    ],
)
def test_what_is_probably_not_meant_is_warned_of(name: str, config: dict[str, object], words: str) -> None:
    trainer = get_trainer(name)
    (warning,) = trainer.warnings(trainer.configure(config))
    assert words in warning


@pytest.mark.parametrize("name", ["skyrl", "areal", "roll", "ms-swift", "prime-rl"])
def test_defaults_and_no_action_warn_of_nothing(name: str) -> None:
    assert get_trainer(name).warnings(get_trainer(name).configure({})) == ()


def test_a_run_s_own_file_holds_them_where_the_trainer_nests_them() -> None:
    areal = get_trainer("areal")
    tree = {"actor": {"path": "model", "rejection_sampling": {"level": "sequence"}, "m2_threshold": 0.04}}
    assert areal.configure(tree) == areal.configure({"level": "sequence", "m2_threshold": 0.04})
    prime = get_trainer("prime-rl")
    assert prime.configure({"trainer": {"loss": {"type": "ipo"}}}) == prime.configure({"type": "ipo"})
    skyrl = get_trainer("skyrl")
    nested = {"trainer": {"algorithm": {"off_policy_correction": {"tis_ratio_type": "token"}}}}
    assert skyrl.configure(nested) == skyrl.configure({"tis_ratio_type": "token"})


def test_areal_k1_is_plus_d_and_its_largest_is_the_least_of_minus_d() -> None:
    areal = get_trainer("areal")
    config = {"level": "sequence", "agg": "max", "metric": "kl_k1", "lower": -0.2, "upper": 0.1}
    assert areal.correction(areal.configure(config)).rules == (
        Rule(Statistic.K1, Aggregation.SEQ_MIN, -0.1, 0.2, clamp=None),
    )


def test_areal_clamps_the_mean_while_the_product_is_outside(tmp_path: Path) -> None:
    """Twenty tokens of ρ = 1.1: the product is 6.7, the geometric mean 1.1 and inside [0.5, 2]."""
    config = {"level": "sequence", "action": "clamp", "agg": "sum", "lower": 0.5, "upper": 2.0}
    dump = dump_of(tmp_path, [[math.log(1.1)] * 20])
    assert ra.trainer_metrics(dump, "areal", config)["ppo_actor/update/rs_filtered_fraction"] == 0.0
    ((_, weights, _),) = ra.apply_correction(dump, config, trainer="areal")
    np.testing.assert_allclose(weights, 1.1, rtol=1e-6)


def test_areal_m2po_cuts_each_step_in_apply_and_per_step(tmp_path: Path) -> None:
    """d² = 0.09 of step 0 goes, so does 1.0 of step 1; as one batch 0.09 would stay."""
    dump = dump_of(tmp_path, [[0.3, 0.0], [1.0, 0.0, 0.0]], steps=[0, 1])
    config = {"m2_threshold": 0.04}
    masks = [mask.tolist() for _, _, mask in ra.apply_correction(dump, config, trainer="areal")]
    assert masks == [[False, True], [False, True, True]]
    per_step = ra.trainer_metrics(dump, "areal", config, per_step=True)
    assert {step: m["ppo_actor/update/n_valid_tokens"] for step, m in per_step.items()} == {0: 1.0, 1: 2.0}
    assert ra.trainer_metrics(dump, "areal", config)["ppo_actor/update/n_valid_tokens"] == 4.0


def test_skyrl_sums_over_what_the_token_mask_leaves(tmp_path: Path) -> None:
    """log 3 leaves by the token mask, so the product is 1.2 and not 3.6; the row of the outlier has weight 1."""
    config = {"tis_ratio_type": "sequence", "token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0}
    dump = dump_of(tmp_path, [[math.log(1.2), math.log(3.0)], [math.log(9.0)]], rollout=-3.0)
    weights = [row.tolist() for _, row, _ in ra.apply_correction(dump, config, trainer="skyrl")]
    assert weights[0] == pytest.approx([1.2, 1.2], rel=1e-6)
    assert weights[1] == [1.0]
    skyrl = get_trainer("skyrl")
    assert skyrl.correction(skyrl.configure(config)) == Correction(
        Weight(Level.SEQUENCE, Bound.TRUNCATE, upper=5.0, over=Over.REMAINING),
        (Rule(Statistic.RATIO, Aggregation.TOKEN, 0.5, 2.0),),
        denominator=Denominator.ORIGINAL,
    )


def test_skyrl_minimum_is_zero_where_a_row_is_padded(tmp_path: Path) -> None:
    metrics = ra.trainer_metrics(dump_of(tmp_path, [[0.1, 0.1], [0.1]]), "skyrl", {"tis_ratio_type": "token"})
    assert metrics["policy/loss_metrics/is_ratio_min"] == 0.0
    assert metrics["policy/loss_metrics/is_ratio_mean"] == pytest.approx(math.exp(0.1))


def test_roll_passes_more_than_all_where_rows_are_padded(tmp_path: Path) -> None:
    metrics = ra.trainer_metrics(dump_of(tmp_path, [[0.0, 0.0], [0.0]]), "roll", {"filters": [{"enabled": True}]})
    assert metrics["actor/train_infer_token_ratio_mask_mean@sum"] == pytest.approx(4 / 3)
    assert metrics["actor/train_infer_final_mask_mean"] == pytest.approx(1.0)


def test_prime_rl_without_advantages_gives_null_and_says_why(tmp_path: Path) -> None:
    dump = dump_of(tmp_path, [[0.1], [0.9]])
    metrics = ra.trainer_metrics(dump, "prime-rl", {})
    assert metrics["is_masked/mean"] is None
    assert metrics.reasons["is_masked/mean"] == "needs advantages"
    assert metrics["mismatch_kl/all/mean"] is not None
    with pytest.raises(MissingFieldError, match=r"^advantages: "):
        ra.apply_correction(dump, "prime_rl_default")
    report = ra.analyze(dump, presets=["prime_rl_default"], sweep=False)
    assert report.corrections[0].reasons["kept.masked_fraction"] == "needs advantages"
    assert report.corrections[0].stages.bounded["weight_max"] == pytest.approx(math.exp(0.9))


def test_presets_that_one_pass_does_not_answer_are_evaluated_where_named(tmp_path: Path) -> None:
    """π − μ of d = 0.9 is 0.54: masked where the advantage is positive. M2PO keeps 3 of 4 in each step."""
    rows = [[0.9, 0.0], [0.1, 0.0], [0.9, 0.0], [0.1, 0.0]]
    dump = dump_of(tmp_path, rows, [1.0, 1.0, -1.0, -1.0], steps=[0, 0, 1, 1])
    names = ["prime_rl_default", "areal_m2po", "ms_swift_off_policy_mask"]
    own = Preset("own", replace(PRESETS["prime_rl_default"].correction, denominator=Denominator.KEPT), "here", "a test")
    report = ra.analyze(dump, presets=[*names, own], sweep=False)
    pooled = {c.name: c.stages.kept["masked_fraction"] for c in report.corrections}
    assert pooled == {"prime_rl_default": 0.125, "areal_m2po": 0.25, "ms_swift_off_policy_mask": 0.0, "own": 0.125}
    by_step = [s.corrections["prime_rl_default"].kept["masked_fraction"] for s in report.steps]
    assert by_step == [0.25, 0.0]
    assert [s.corrections["areal_m2po"].kept["masked_fraction"] for s in report.steps] == [0.25, 0.25]
    default = ra.analyze(dump, sweep=False)
    assert "areal_m2po" not in {c.name for c in default.corrections}
    assert any("areal_m2po" in note for note in default.notes)
