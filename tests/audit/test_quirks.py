"""A run's own trainer in the report: its names, the native figures beside them, and the quirks that matter here."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.audit.expressing import RULES
from rollout_audit.audit.quirks import CHECKS, EMPTY_ROWS
from rollout_audit.trainers.registry import TRAINERS, get_trainer

CONFORMANCE = Path(__file__).parents[1] / "conformance"
LOGGED = pl.concat(
    pl.read_parquet(CONFORMANCE / name).select(pl.col("trainer", "metric").cast(pl.String))
    for name in ("expected.parquet", "expected_more.parquet")
).unique()


def written(
    folder: Path,
    log_ratios: list[list[float]],
    *,
    masks: list[list[int]] | None = None,
    current: float | None = None,
) -> ra.Dump:
    """A dump with these log-ratios at log μ = −8; `current` is what the update adds."""
    rollout = [np.full(len(row), -8.0) for row in log_ratios]
    old = [mu + np.array(row) for mu, row in zip(rollout, log_ratios, strict=True)]
    columns = {"rollout_log_probs": rollout, "old_log_probs": old}
    if masks is not None:
        columns |= {"response_mask": pa.array(masks, pa.list_(pa.int8()))}
    if current is not None:
        columns |= {"log_probs": [row + current for row in old]}
    pq.write_table(pa.table(columns), folder / "dump.parquet")
    return ra.open_dump(folder)


def found(dump: ra.Dump, trainer: str, config: dict[str, object]) -> dict[str, tuple[str, str]]:
    """Quirk → severity and message."""
    report = ra.analyze(dump, presets=[], trainer=trainer, config=config, sweep=False)
    quirks = [f for f in report.findings if f.kind.startswith("quirk:")]
    return {f.kind.removeprefix("quirk:"): (f.severity, f.message) for f in quirks}


@pytest.mark.parametrize("name", TRAINERS)
class TestTables:
    def test_counterparts_are_names_that_the_trainer_logged(self, name: str) -> None:
        """In the values that its own code gave; miles and slime log alike."""
        known = {
            "verl-2025-10": ["verl-legacy"],
            "verl-2025-11": ["verl-2026-01", "verl"],
            "slime": ["slime", "miles"],
            "miles": ["slime", "miles"],
        }
        logged = set(LOGGED.filter(pl.col("trainer").is_in(known.get(name, [name])))["metric"])
        own = set(get_trainer(name).counterparts)
        # both kinds of ROLL's filters at each level: not all were run
        not_run = {"train_rollout_kl"}  # of miles: reference/trainers.md 3B
        assert (own - not_run <= logged) if name != "roll" else (own & logged)
        assert own

    def test_every_counterpart_names_a_quirk_of_its_trainer(self, name: str) -> None:
        trainer = get_trainer(name)
        assert {c.quirk for c in trainer.counterparts.values()} <= {quirk.name for quirk in trainer.quirks}

    def test_every_quirk_can_be_raised_or_says_why_not(self, name: str) -> None:
        """By a check, a figure beside a native one, or a correction beside the one that would be expected."""
        trainer = get_trainer(name)
        raised = {check.name for check in CHECKS} | {EMPTY_ROWS}
        for one in trainer.counterparts.values():
            raised |= {one.quirk, one.rejecting}
        for quirk in trainer.quirks:
            assert not quirk.told_by or quirk.told_by in raised, quirk.name
            can = quirk.name in raised or quirk.instead is not None or quirk.told_by != ""
            assert can is (quirk.untold == ""), quirk.name

    def test_every_quirk_has_a_sentence_and_a_source(self, name: str) -> None:
        for quirk in get_trainer(name).quirks:
            assert quirk.sentence.endswith(".")
            assert quirk.source


def test_every_native_figure_exists(tmp_path: Path) -> None:
    report = ra.analyze(written(tmp_path, [[0.1, -0.2]] * 4), presets=["decoupled_token_is"], sweep=False)
    stages = report.corrections[0].stages
    for name in TRAINERS:
        for counterpart in get_trainer(name).counterparts.values():
            where, _, metric = counterpart.native.partition(".")
            if where == "removed":
                assert metric in RULES, counterpart
            else:
                assert metric in (report.overall if where == "overall" else getattr(stages, where)), counterpart


def test_a_quirk_that_a_check_is_for_belongs_to_some_trainer() -> None:
    names = {quirk.name for trainer in TRAINERS for quirk in get_trainer(trainer).quirks}
    assert {check.name for check in CHECKS if not check.every_trainer} <= names


class TestChecks:
    def test_bounds_of_k1_that_are_not_reciprocal(self, tmp_path: Path) -> None:
        """ρ = 3 is inside [0.5, 5] and outside what verl keeps."""
        dump = written(tmp_path, [[0.0, 0.0, 0.0, math.log(3)]])
        config = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_5.0"}
        severity, message = found(dump, "verl", config)["k1_sign"]
        assert severity == "warning"
        assert "keeps ratios from 0.2 to 2: 25.00% of the tokens leave" in message
        assert "PR #6377" in message
        assert "reference/" not in message
        assert "k1_sign" not in found(dump, "verl", {**config, "rollout_rs_threshold": "0.5_2.0"})

    def test_each_lopsided_rule_has_its_own_share_and_the_users_band(self, tmp_path: Path) -> None:
        """ρ = 3 is past 1/0.4; the mean of that row, log(3)/4, is past log(1/0.8), of the other log(1.2) is not."""
        dump = written(tmp_path, [[0.0, 0.0, 0.0, math.log(3)], [math.log(1.2)]])
        config = {"rollout_rs": "token_k1,seq_mean_k1", "rollout_rs_threshold": "0.4_4.0,0.8_5.0"}
        _, message = found(dump, "verl", config)["k1_sign"]
        assert message.startswith("verl, whole dump as one batch: token_k1 '0.4_4'")
        assert "keeps ratios from 0.25 to 2.5: 20.00% of the tokens leave by this rule alone" in message
        assert "keeps ratios from 0.2 to 1.25: 80.00% of the tokens leave by this rule alone" in message
        assert "0.5_5.0" not in message

    def test_a_sample_size_that_bounding_lifts(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[0.0] * 9 + [math.log(50)]])
        _, message = found(dump, "verl", {"rollout_is": "token"})["ess_after_bounding"]
        raw = (9 + 50) ** 2 / (10 * (9 + 2500))
        assert f"rollout_is_eff_sample_size = {(9 + 2) ** 2 / (10 * (9 + 4)):.4g} where raw.ess is {raw:.4g}" in message

    def test_empty_rows_that_dilute_means(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[-0.2, -0.2], [0.0, 0.0]], masks=[[1, 1], [0, 0]])
        _, message = found(dump, "verl", {})["empty_rows"]
        assert "1 of 2 rows have no valid token" in message
        assert "rollout_corr/log_ppl_diff = 0.1 where overall.log_ppl_diff is 0.2" in message

    @pytest.mark.parametrize(("trainer", "metric"), [("verl", "rollout_corr/chi2_seq"), ("miles", "mis_chi2_seq")])
    def test_what_makes_the_divergence_of_responses_another_number(
        self, tmp_path: Path, trainer: str, metric: str
    ) -> None:
        """Σd = −0.4 and an empty row: half of e^-0.8 − 1. Past the clamp, (e^40 − 1)/2 where e^50 − 1 would be."""
        config: dict[str, object] = {} if trainer == "verl" else {"use_tis": True}
        quirks = found(written(tmp_path, [[-0.2, -0.2], [0.0]], masks=[[1, 1], [0]]), trainer, config)
        assert f"{metric} = -0.2753 where overall.chi2_seq is -0.5507" in quirks["empty_rows"][1]
        assert "clamped_chi2" not in quirks
        quirks = found(written(tmp_path, [[3.0] * 8 + [1.0], [0.0]], masks=[[1] * 9, [0]]), trainer, config)
        assert f"{metric} = 1.177e+17 where overall.chi2_seq is 5.185e+21" in quirks["clamped_chi2"][1]
        assert f"{metric} = 1.177e+17, 2.354e+17 without them" in quirks["empty_rows"][1]
        assert f"{metric} = 1.177e+17 where" not in quirks["empty_rows"][1]

    def test_means_of_rows_that_only_empty_ones_dilute(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[-0.2, -0.2], [-0.4, 0.0], [0.0]], masks=[[1, 1], [1, 1], [0]])
        quirks = found(dump, "slime", {"use_tis": True})
        assert (
            "train_rollout_logprob_abs_diff = 0.1333 where overall.log_prob_diff_abs_mean is 0.2"
            in quirks["empty_rows"][1]
        )
        assert "mean_of_means" not in quirks

    @pytest.mark.parametrize(
        ("trainer", "config", "diluted"),
        [
            ("skyrl", {"sequence_mask_metric": "geometric", "geo_mask_high": 1.1, "geo_mask_low": 0.9},
             ["policy/loss_metrics/geo_sequence_mask_masked_ratio = 0.25, 0.5 without them"]),
            ("skyrl", {"outlier_token_is_threshold_high": 1.5},
             ["policy/loss_metrics/outlier_seq_masked_ratio = 0.25, 0.5 without them"]),
            ("skyrl", {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": 2.0},
             ["policy/loss_metrics/tis_seq_clip_high_ratio = 0.25, 0.5 without them"]),
            ("slime", {"use_tis": True, "tis_clip": 1.5},
             ["train_rollout_logprob_abs_diff = 0.225 where overall.log_prob_diff_abs_mean is 0.45",
              "tis_clipfrac = 0.25, 0.5 without them"]),
            ("nemo-rl", {"use_importance_sampling_correction": True,
                         "truncated_importance_sampling_type": "seq-mask-tis",
                         "truncated_importance_sampling_ratio": 1.1, "truncated_importance_sampling_ratio_min": 0.9},
             ["is_oob_ratio = 0.25, 0.5 without them"]),
            ("prime-rl", {"type": "ipo", "ipo_threshold": 1e-4},
             ["is_masked/mean = 0.25 where kept.masked_fraction is 0.5",
              "masked_mismatch_kl/mean = 0.1064, 0.2128 without them",
              "unmasked_mismatch_kl/mean = 0.001209, 0.002419 without them"]),
            ("ms-swift", {"rollout_importance_sampling_mode": "token_truncate"},
             ["log_ppl_diff = -0.175 where overall.log_ppl_diff is -0.35",
              "log_ppl_abs_diff = 0.225 where overall.log_ppl_abs_diff is 0.45"]),
            ("verl-2025-10", {"rollout_is_threshold": 2.0},
             ["mismatch_log_ppl_abs_diff = 0.225 where overall.log_ppl_abs_diff is 0.45"]),
            ("miles", {"use_tis": True, "tis_level": "token"},
             ["mis_log_ppl_abs_diff = 0.225 where overall.log_ppl_abs_diff is 0.45"]),
        ],
    )  # fmt: skip
    def test_whatever_empty_rows_dilute_is_named(
        self, tmp_path: Path, trainer: str, config: dict[str, object], diluted: list[str]
    ) -> None:
        """Log-ratios of 0.8 in one response, −0.1 in another, and as many rows without a valid token: half of all.

        k3 of the two is 0.4255 and 0.004837, each a quarter of all rows.
        """
        rows, masks = [[0.8, 0.8], [-0.1, -0.1], [0.0], [0.0]], [[1, 1], [1, 1], [0], [0]]
        current = 0.0 if trainer == "prime-rl" else None
        _, message = found(written(tmp_path, rows, masks=masks, current=current), trainer, config)["empty_rows"]
        assert "2 of 4 rows have no valid token" in message
        for text in diluted:
            assert text in message

    def test_two_causes_of_one_figure_are_told_apart(self, tmp_path: Path) -> None:
        """|d| of 0.3 in one token and 0 in three: 0.075 by tokens, 0.15 by responses, 0.1 with an empty one."""
        dump = written(tmp_path, [[0.3], [0.0] * 3, [0.0]], masks=[[1], [1] * 3, [0]])
        quirks = found(dump, "slime", {"use_tis": True})
        text = "train_rollout_logprob_abs_diff = 0.1 where overall.log_prob_diff_abs_mean is 0.075"
        assert f"{text} (0.15 without the empty rows)" in quirks["mean_of_means"][1]
        assert "train_rollout_logprob_abs_diff = 0.1, 0.15 without them" in quirks["empty_rows"][1]

    def test_weights_above_the_cap_after_normalisation(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[math.log(4), math.log(0.5)]])
        config = {"rollout_is": "token", "rollout_is_batch_normalize": True}
        assert "normalised_above_cap" not in found(dump, "verl", config)
        dump = written(tmp_path, [[math.log(4), math.log(0.5), math.log(0.5), math.log(0.5)]])
        _, message = found(dump, "verl", config)["normalised_above_cap"]
        assert "divides by 0.875 and lifts the largest weight to 2.286, above 2" in message

    def test_a_band_that_leaves_almost_nothing(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[0.3, -0.1]] * 19 + [[0.0]])
        config = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}
        _, message = found(dump, "verl", config)["band_too_tight"]
        assert f"{38 / 39:.1%} of the tokens" in message
        assert "band_too_tight" not in found(dump, "verl", {**config, "rollout_rs_threshold": "0.5_2.0"})

    def test_a_bound_of_the_weight_that_does_nothing(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[0.1, -0.1]])
        severity, message = found(dump, "trl", {"vllm_importance_sampling_mode": "token_truncate"})["idle_bound"]
        assert severity == "warning"
        span = f"raw weights lie from {math.exp(-0.1):.4g} to {math.exp(0.1):.4g}"
        assert f"the upper bound 3 of the weight changes none: {span}" in message
        both = {"is_correction_enable": True}
        assert (
            "the upper bound 5 and the lower bound 0.5 of the weight change none"
            in (found(dump, "openrlhf", both)["idle_bound"][1])
        )

    def test_one_side_of_a_bound_that_does_nothing(self, tmp_path: Path) -> None:
        """A ratio of 6 is clipped at 5, none is below 0.5."""
        dump = written(tmp_path, [[math.log(6), -0.1]])
        _, message = found(dump, "openrlhf", {"is_correction_enable": True})["idle_bound"]
        assert "the lower bound 0.5 of the weight changes none: raw weights lie from 0.9048 to 6" in message
        assert "upper bound" not in message

    def test_a_rule_that_does_nothing(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[0.1, -0.1]])
        severity, message = found(dump, "roll", {"filters": [{"enabled": True}]})["idle_bound"]
        assert severity == "warning"
        assert '"token_ratio keeps ρ in [0.8, 1.2]" rejects nothing: ρ lies from 0.9048 to 1.105' in message

    def test_the_idle_rule_of_a_chain_is_named(self, tmp_path: Path) -> None:
        """k3 drops the first row; its mean ratio and the least ratio of all, 0.2, are within the other two."""
        dump = written(tmp_path, [[math.log(0.2), -math.log(0.2)], [0.0, 0.0]])
        config = {"rollout_rs": "seq_mean_k3,seq_mean_k1", "rollout_rs_threshold": "0.01,0.9_1.1"}
        _, message = found(dump, "verl", {**config, "rollout_token_veto_threshold": 1e-4})["idle_bound"]
        assert '"seq_mean_k1 keeps ρ in [0.909091, 1.11111]" rejects nothing: the geometric ratio lies from 1 to 1' in (
            message
        )
        assert '"veto below ρ 0.0001" rejects nothing: the least ratio of a response lies from 0.2 to 1' in message
        assert "seq_mean_k3" not in message

    def test_a_rule_that_repeats_another_is_named(self, tmp_path: Path) -> None:
        """The only token past e takes its response along by the second rule anyway."""
        dump = written(tmp_path, [[3.0, 0.0], [0.0, 0.0], [-2.0, -2.0]])
        config = {"rollout_rs": "token_k2,seq_max_k2", "rollout_rs_threshold": "3.0,1.0"}
        _, message = found(dump, "verl", config)["idle_bound"]
        assert '"token_k2 ≤ 3" rejects nothing that the other rules leave (tokens by itself: 1)' in message
        assert "seq_max_k2" not in message

    def test_one_side_of_a_rule_that_does_nothing(self, tmp_path: Path) -> None:
        """Of k1 as ratios: 3 is past the upper bound of 2, nothing below 1/2."""
        dump = written(tmp_path, [[math.log(3), 0.0]])
        _, message = found(dump, "verl", {"rollout_rs": "token_k1", "rollout_rs_threshold": 2.0})["idle_bound"]
        assert 'the lower bound of "token_k1 keeps ρ in [0.5, 2]" rejects nothing: ρ lies from 1 to 3' in message
        assert "the upper bound" not in message

    def test_rules_that_all_do_something_are_not_named(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[math.log(3), 0.0, -math.log(3)]])
        assert "idle_bound" not in found(dump, "verl", {"rollout_rs": "token_k1", "rollout_rs_threshold": 2.0})

    def test_a_rule_on_advantages_that_are_not_there(self, tmp_path: Path) -> None:
        config = {"off_policy_mask_threshold": 0.5, "vllm_importance_sampling_correction": False}
        assert "idle_bound" not in found(written(tmp_path, [[0.1, -0.1]]), "trl", config)

    def test_a_denominator_that_changes_the_gradient(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[0.0, 0.0, 0.0, 3.0]])
        _, message = found(dump, "verl", {"rollout_rs": "token_k1", "rollout_rs_threshold": 2.0})["gradient_scale"]
        assert "the loss divides by the tokens that are left" in message
        assert "a factor 1.33" in message

    def test_passes_that_count_padding(self, tmp_path: Path) -> None:
        """One response of four tokens, one of one: three positions of padding have ratio 1 and pass."""
        dump = written(tmp_path, [[0.0, 0.0, 0.0, 0.0], [0.0]])
        _, message = found(dump, "roll", {"filters": [{"enabled": True}]})["padding_passes"]
        assert "train_infer_token_ratio_mask_mean@sum = 1.6 where 1 − removed.token_ratio is 1" in message

    def test_the_pass_rate_of_each_of_two_filters(self, tmp_path: Path) -> None:
        """Six tokens in rows of four and two, two positions of padding. By tokens: ρ = 1.5 goes, 5 of 6 pass and the
        padding with them: 7/6. By rows: the mean of the first, log(1.5)/4, is past log 1.1, so 2 of 6 pass, and the
        row that does stands on all four of its positions: 4/6."""
        dump = written(tmp_path, [[math.log(1.5), 0.0, 0.0, 0.0], [0.0, 0.0]])
        filters = [{"enabled": True}, {"enabled": True, "agg_type": "geometric", "ratio_low": 0.9, "ratio_high": 1.1}]
        _, message = found(dump, "roll", {"filters": filters})["padding_passes"]
        assert "train_infer_token_ratio_mask_mean@sum = 1.167 where 1 − removed.token_ratio is 0.8333" in message
        assert (
            "train_infer_geometric_ratio_mask_mean@sum = 0.6667 where 1 − removed.seq_mean_ratio is 0.3333" in message
        )

    def test_what_rejection_takes_from_a_mean(self, tmp_path: Path) -> None:
        """Of |d| 1, 0.1 and 0.1 in one row mis.py keeps the last two: 0.2/3 and not 1.2/3."""
        dump = written(tmp_path, [[1.0, 0.1, -0.1]])
        function = "examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
        quirks = found(dump, "slime", {"use_tis": True, "custom_tis_function_path": function, "use_rs": True})
        text = "train_rollout_logprob_abs_diff = 0.06667 where overall.log_prob_diff_abs_mean is 0.4"
        assert text in quirks["diff_of_kept_tokens"][1]
        assert "mean_of_means" not in quirks

    @pytest.mark.parametrize(
        ("trainer", "config", "quirk"),
        [
            ("skyrl", {"sequence_mask_metric": "product"}, "padding_in_ratios"),
            ("skyrl", {"tis_ratio_type": "sequence"}, "padding_in_ratios"),
            ("verl-2025-10", {"rollout_is": False, "rollout_is_threshold": 5.0}, "raw_weights"),
            ("verl-2025-10", {"rollout_is": False, "rollout_is_threshold": 5.0}, "ess_of_clamped"),
            ("verl-2025-10", {"rollout_is_mode": "mask", "rollout_is_threshold": 1.5}, "reciprocal_lower_bound"),
            ("verl", {"rollout_is": "sequence", "bypass_mode": True}, "mixed_populations"),
            ("verl", {"rollout_is": "sequence", "bypass_mode": True}, "ess_after_bounding"),
            ("areal", {"use_decoupled_loss": True, "m2_threshold": 0.04}, "filtered_means_changed"),
        ],
    )  # fmt: skip
    def test_a_figure_of_what_is_not_applied_stands_beside_none(
        self, tmp_path: Path, trainer: str, config: dict[str, object], quirk: str
    ) -> None:
        """Weights that are logged alone: the native ones are 1, which no quirk of their reduction explains."""
        assert quirk not in found(written(tmp_path, [[1.0, 0.2, -0.8], [0.9, 0.9]], current=0.0), trainer, config)

    def test_the_least_ratio_of_skyrl_is_of_tokens(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[0.5, -0.5], [0.0]])
        _, message = found(dump, "skyrl", {"tis_ratio_type": "token"})["padding_in_ratios"]
        assert f"is_ratio_min = 0 where raw.weight_min is {math.exp(-0.5):.4g}" in message

    def test_tokens_with_a_weight_above_0(self, tmp_path: Path) -> None:
        """AReaL masks ρ = e; the mean is of the two that are left."""
        dump = written(tmp_path, [[1.0, 0.2, -0.2]])
        config = {"use_decoupled_loss": True, "rejection_sampling": {"metric": "ratio", "upper": 2.0}}
        _, message = found(dump, "areal", config)["vanishing_keys"]
        kept, every = [math.exp(0.2), math.exp(-0.2)], [math.exp(1.0), math.exp(0.2), math.exp(-0.2)]
        assert (
            f"behave_imp_weight/avg = {sum(kept) / 2:.4g} where bounded.weight_mean is {sum(every) / 3:.4g}" in message
        )

    def test_a_mean_that_carries_the_size_of_the_batch(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[0.1], [0.1], [0.1]])
        config = {
            "use_importance_sampling_correction": True,
            "sequence_level_importance_ratios": True,
            "token_level_loss": False,
        }
        _, message = found(dump, "nemo-rl", config)["not_a_mean"]
        assert f"sampling_importance_ratio = {3 * math.exp(0.1):.4g} where" in message

    def test_a_ratio_that_is_logged_and_not_applied(self, tmp_path: Path) -> None:
        severity, message = found(written(tmp_path, [[0.1]]), "nemo-rl", {})["ratio_without_correction"]
        assert severity == "info"
        assert f"= {math.exp(0.1):.4g} is not applied" in message

    def test_options_that_share_a_threshold(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[0.1, -0.1]])
        config = {"rollout_rs": "token_k1,token_k2", "rollout_rs_threshold": 2.0}
        assert "token_k1 and token_k2 share 2" in found(dump, "verl", config)["shared_threshold"][1]
        assert "shared_threshold" not in found(dump, "verl", {**config, "rollout_rs_threshold": "2.0,0.5"})

    def test_errors_of_both_signs(self, tmp_path: Path) -> None:
        _, message = found(written(tmp_path, [[0.2, -0.2]]), "openrlhf", {})["signed_kl"]
        assert "its size 0.2" in message
        assert "signed_kl" not in found(written(tmp_path, [[0.2, 0.2]]), "openrlhf", {})

    def test_the_lag_of_asynchronous_training(self, tmp_path: Path) -> None:
        _, message = found(written(tmp_path, [[0.1] * 8], current=0.2), "prime-rl", {"type": "ipo"})["current_policy"]
        later, before = (math.expm1(d) - d for d in (0.3, 0.1))
        assert f"k3 to the engine is {later:.4g} from the current policy and {before:.4g}" in message

    def test_means_of_means(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[0.3], [0.0] * 9])
        assert (
            "mis_kl = -0.15 where overall.kl_k1 is -0.03" in found(dump, "miles", {"use_tis": True})["mean_of_means"][1]
        )


class TestReport:
    def test_the_run_comes_first_and_is_the_reference(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[0.1, -0.2]] * 4)
        report = ra.analyze(dump, trainer="trl", config={"vllm_importance_sampling_clip_max": 2.0}, sweep=False)
        assert report.corrections[0].name == "trl-config" == report.settings.reference
        assert report.corrections[0].settings["upper"] == 2.0
        assert report.corrections[1].name == "decoupled_token_is"

    def test_it_holds_what_the_trainer_logs(self, tmp_path: Path) -> None:
        dump = written(tmp_path, [[0.1, -0.2]] * 4)
        config = {"rollout_is": "token"}
        report = ra.analyze(dump, presets=[], trainer="verl", config=config, sweep=False)
        assert report.trainer is not None
        assert report.trainer.metrics == dict(ra.trainer_metrics(dump, "verl", config))
        kl = next(one for one in report.trainer.beside if one.metric == "rollout_corr/kl")
        assert (kl.native, kl.departs) == ("overall.kl_k1", False)
        assert kl.native_value == pytest.approx(0.05)
        assert ra.Report.model_validate_json(report.to_json()).trainer == report.trainer

    def test_without_a_trainer_there_is_none(self, tmp_path: Path) -> None:
        report = ra.analyze(written(tmp_path, [[0.1, -0.2]] * 4), presets=["decoupled_token_is"], sweep=False)
        assert report.trainer is None
        assert not [f for f in report.findings if f.kind.startswith("quirk:")]

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"config": {"rollout_is": "token"}}, "needs the trainer's name"),
            ({"trainer": "verl", "reference": "decoupled_token_is"}, "give one of them"),
            ({"trainer": "verll"}, "no trainer 'verll'"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, arguments: dict, text: str, tmp_path: Path) -> None:
        with pytest.raises(ra.UsageError, match=text):
            ra.analyze(written(tmp_path, [[0.1]]), **arguments)
