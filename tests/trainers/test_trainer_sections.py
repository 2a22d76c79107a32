"""Where each trainer keeps its settings, what stands beside them, and keys of older versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_audit.audit.selection import config_text, config_warnings
from rollout_audit.corrections.model import Correction, Denominator
from rollout_audit.corrections.presets import PRESETS
from rollout_audit.errors import ConfigError
from rollout_audit.trainers.registry import TRAINERS, get_trainer
from tests.trainers.reading import read_config

BY_FLAGS: dict[str, object] = {"custom_tis_function_path": None}
RUNS: list[tuple[str, str, dict[str, object]]] = [
    (
        "verl",
        "data: {train: a.parquet}\nactor_rollout_ref: {actor: {clip_ratio: 0.2, loss_agg_mode: token-mean}}\n"
        "algorithm: {gamma: 1.0, rollout_correction: {rollout_is: token}}\n",
        {"rollout_is": "token"},
    ),
    (
        "verl-2025-10",
        "algorithm: {gamma: 1.0, rollout_is: true, rollout_is_threshold: 2.0}\ntrainer: {nnodes: 1}\n",
        {"rollout_is": True, "rollout_is_threshold": 2.0},
    ),
    ("slime", "use_tis: true\neps_clip: 0.2\nlr: 1e-6\n", {"use_tis": True}),
    (
        "trl",
        "learning_rate: 1.0e-6\nbeta: 0.0\nimportance_sampling_level: token\nvllm_importance_sampling_clip_max: 2.0\n",
        {"vllm_importance_sampling_clip_max": 2.0},
    ),
    (
        "nemo-rl",
        "policy: {model_name: m}\ngrpo: {num_prompts_per_step: 32, seq_logprob_error_threshold: 2}\n"
        "loss_fn: {ratio_clip_min: 0.2, truncated_importance_sampling_type: tis, "
        "truncated_importance_sampling_ratio: 2.0}\n",
        {
            "truncated_importance_sampling_type": "tis",
            "truncated_importance_sampling_ratio": 2.0,
            "seq_logprob_error_threshold": 2,
        },
    ),
    (
        "openrlhf",
        "algo: {advantage: {estimator: rloo, is_correction_enable: true, is_correction_threshold: [0.5, 2.0]}}\n",
        {"is_correction_enable": True, "is_correction_threshold": [0.5, 2.0]},
    ),
    ("open-instruct", "beta: 0.0\nrho_mask_upper_bound: 1.25\nuse_rho_correction: true\n",
     {"rho_mask_upper_bound": 1.25, "use_rho_correction": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "settings"), RUNS)
def test_a_whole_runs_file_holds_other_keys(name: str, text: str, settings: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    trainer = get_trainer(name)
    assert trainer.settings(path) == (settings, ())
    assert trainer.configure(path) == trainer.configure(settings)


@pytest.mark.parametrize(
    ("name", "flags", "settings"),
    [
        ("slime", "--use-tis --tis-clip 2.0 --eps-clip 0.2", {**BY_FLAGS, "use_tis": True, "tis_clip": 2.0}),
        ("slime", "--tis-clip=2.0 --use-tis", {**BY_FLAGS, "use_tis": True, "tis_clip": 2.0}),
        ("miles", "--use-tis --tis-clip 2.0 --eps-clip 0.2", {**BY_FLAGS, "use_tis": True, "tis_clip": 2.0}),
        (
            "openrlhf",
            "--algo.advantage.is_correction_enable --algo.advantage.is_correction_threshold 0.5 5.0 --actor.lr 1e-6",
            {"is_correction_enable": True, "is_correction_threshold": [0.5, 5.0]},
        ),
        ("open-instruct", "--rho_clamp_upper_bound 0 --beta 0.01", {"rho_clamp_upper_bound": 0}),
    ],
)
def test_command_line_flags(name: str, flags: str, settings: dict[str, object]) -> None:
    assert get_trainer(name).settings(flags) == (settings, ())


def test_flags_of_a_shell_script(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("ARGS=(\n   --use-tis  # on\n   --tis-clip 1.5\n)\npython train.py --lr 1e-6 \\\n  ${ARGS[@]}\n")
    assert get_trainer("slime").settings(path)[0] == {**BY_FLAGS, "use_tis": True, "tis_clip": 1.5}


def test_no_band_is_read_as_a_number_from_flags() -> None:
    assert read_config("--rollout-is-threshold 0.5_2 --other 1_2") == {"rollout_is_threshold": "0.5_2", "other": "1_2"}


@pytest.mark.parametrize(
    ("name", "config", "text"),
    [
        (
            "trl",
            {"vllm_importance_sampling_mod": "token_mask"},
            "vllm_importance_sampling_mod = 'token_mask': unknown setting; "
            "did you mean 'vllm_importance_sampling_mode'?",
        ),
        (
            "nemo-rl",
            {"loss_fn": {"truncated_importance_sampling_ration": 2.0}},
            "truncated_importance_sampling_ration = 2.0: unknown setting; "
            "did you mean 'truncated_importance_sampling_ratio'?",
        ),
        (
            "openrlhf",
            {"algo": {"advantage": {"is_correction_thresh": [0.5, 5]}}},
            "is_correction_thresh = [0.5, 5]: unknown setting; did you mean 'is_correction_threshold'?",
        ),
        ("slime", {"use_tiss": True}, "use_tiss = True: unknown setting; did you mean 'use_tis'?"),
        (
            "slime",
            {"use_tis": True, "use_rollout_logprobs": True},
            "use_rollout_logprobs = True: slime refuses it together with use_tis",
        ),
        (
            "slime",
            {"get_mismatch_metrics": True},
            "get_mismatch_metrics = True: slime wants custom_tis_function_path with it",
        ),
        (
            "slime",
            {"use_tis": True, "custom_tis_function_path": "my.own"},
            "custom_tis_function_path = 'my.own': what 'own' does is not known here; known are vanilla_tis_function, "
            "icepop_function, compute_mis_weights_with_cp",
        ),
        (
            "trl",
            {"vllm_importance_sampling_mode": "sequence_truncate", "vllm_importance_sampling_clip_max": None},
            "vllm_importance_sampling_clip_max = None: vllm_importance_sampling_mode 'sequence_truncate' needs "
            "vllm_importance_sampling_clip_min or vllm_importance_sampling_clip_max: both are null",
        ),
        (
            "nemo-rl",
            {"truncated_importance_sampling_ratio": 2.0},
            "truncated_importance_sampling_type = None: truncated_importance_sampling_ratio = 2.0 needs one of "
            "tis, icepop, seq-mask-tis",
        ),
        (
            "nemo-rl",
            {"truncated_importance_sampling_type": "icepop", "truncated_importance_sampling_ratio": 5.0},
            "truncated_importance_sampling_ratio_min = None: icepop needs it",
        ),
        (
            "openrlhf",
            {"is_correction_threshold": 2.0},
            "is_correction_threshold = 2.0: expected two numbers, lower and upper",
        ),
        (
            "open-instruct",
            {"rho_mask_upper_bound": 0.8},
            "rho_mask_upper_bound = 0.8: must lie above 1, or be 0 for none",
        ),
        (
            "open-instruct",
            {"use_vllm_logprobs": True},
            "use_vllm_logprobs = True: open-instruct refuses it together with use_rho_correction",
        ),
    ],
)
def test_refused_settings(name: str, config: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        get_trainer(name).configure(config)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("name", "config", "settings", "note"),
    [
        (
            "verl",
            {"actor_rollout_ref": {"actor": {"tis_imp_ratio_cap": 2.0}}},
            {"rollout_is": "token", "rollout_is_threshold": 2.0},
            "tis_imp_ratio_cap = 2.0: now rollout_is 'token' with rollout_is_threshold",
        ),
        (
            "verl-2025-10",
            {"actor_rollout_ref": {"actor": {"tis_imp_ratio_cap": 2.0}}},
            {"rollout_is": True, "rollout_is_threshold": 2.0},
            "tis_imp_ratio_cap = 2.0: now rollout_is true with rollout_is_threshold",
        ),
        (
            "verl",
            {"rollout_rs": "geometric", "rollout_rs_threshold": 1.25},
            {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.8_1.25"},
            "rollout_rs = 'geometric': now one of token_k1, seq_sum_k1, seq_mean_k1, whose band is compared with "
            "−log ρ; translated; --trainer verl-2025-11 has the names that version logs",
        ),
        (
            "verl",
            {"rollout_token_veto_threshold": 1e-4},
            {"rollout_token_veto_threshold": 1e-4},
            "rollout_token_veto_threshold = 0.0001: removed in December 2025; read as what it was, a veto of rows with "
            "a ratio below it; seq_max_k2 in its place is two-sided; --trainer verl-2025-11 has the names that version "
            "logs",
        ),
        (
            "verl-2025-11",
            {"bypass_old_logprob_for_rollout": True},
            {"bypass_mode": True},
            "bypass_old_logprob_for_rollout = True: now bypass_mode",
        ),
        (
            "trl",
            {"vllm_importance_sampling_cap": 2.0},
            {"vllm_importance_sampling_clip_max": 2.0},
            "vllm_importance_sampling_cap = 2.0: now vllm_importance_sampling_clip_max",
        ),
        (
            "openrlhf",
            {"use_icepop": True},
            {"is_correction_type": "icepop"},
            "use_icepop = True: now is_correction_type icepop",
        ),
        (
            "open-instruct",
            {"truncated_importance_sampling_ratio_cap": 3.0},
            {"rho_clamp_upper_bound": 3.0},
            "truncated_importance_sampling_ratio_cap = 3.0: now rho_clamp_upper_bound",
        ),
    ],
)
def test_older_keys_are_understood_and_said(
    name: str, config: dict[str, object], settings: dict[str, object], note: str
) -> None:
    assert get_trainer(name).settings(config) == (settings, (note,))
    assert note in config_warnings(name, config)


def test_an_older_band_keeps_the_ratios_it_kept() -> None:
    """verl of November 2025 kept lower ≤ ρ ≤ upper."""
    config = {"rollout_rs": "token", "rollout_rs_threshold": 4.0, "rollout_rs_threshold_lower": 0.5}
    text = "verl 2026-08 reads: token_k1 keeps ρ in [0.5, 4] (lets through ρ of the token in [0.5, 4])"
    assert config_text("verl", config) == text
    veto = {**config, "rollout_token_veto_threshold": 1e-3}
    trainer = get_trainer("verl")
    assert trainer.correction(trainer.configure(veto)).veto == 1e-3


def test_the_newer_name_counts_where_both_are_given() -> None:
    config = {"vllm_importance_sampling_cap": 2.0, "vllm_importance_sampling_clip_max": 5.0}
    assert get_trainer("trl").settings(config)[0] == {"vllm_importance_sampling_clip_max": 5.0}


@pytest.mark.parametrize("name", TRAINERS)
def test_a_source_without_a_setting_of_ours_is_said(name: str) -> None:
    trainer = get_trainer(name)
    place = ".".join(trainer.section.path)
    under = f", where its settings would stand under {place}" if place else ""
    note = f"no setting of {name} is given: its defaults; there are data, a, b and 1 more{under}"
    assert trainer.settings({"data": {"n": 1}, "a": 1, "b": 2, "c": 3}) == ({}, (note,))
    assert trainer.settings({}) == ({}, ())


@pytest.mark.parametrize(
    ("name", "tree", "note"),
    [
        (
            "roll",
            {"train_infer_is_weight": {"enabled": True}, "train_infer_correction": {"filters": []}},
            "train_infer_is_weight: not looked at; the settings of roll stand under train_infer_correction",
        ),
        (
            "roll",
            {"is_weight_config": {"enabled": True}, "train_infer_correction": {"filters": []}},
            "is_weight_config: not looked at; the settings of roll stand under train_infer_correction",
        ),
        (
            "openrlhf",
            {"is_correction": {"enable": True}, "algo": {"advantage": {"is_correction_enable": True}}},
            "is_correction: not looked at; the settings of openrlhf stand under algo.advantage",
        ),
        (
            "verl",
            {
                "algorithm": {
                    "rollout_correction": {"rollout_is": "token"},
                    "rollout_rs_cfg": {"option": "token_k1"},
                }
            },
            "algorithm.rollout_rs_cfg: not looked at; the settings of verl stand under algorithm.rollout_correction",
        ),
    ],
)
def test_a_section_that_is_called_like_ours_is_said(name: str, tree: dict[str, object], note: str) -> None:
    assert get_trainer(name).settings(tree)[1] == (note,)


@pytest.mark.parametrize(
    "tree",
    [
        {"rollout_is": "token", "rollout_rss": "token_k1", "data": {"n": 1}},
        {"rollout_is": "token", "rollout_rss": "token_k1"},
    ],
)
def test_a_misspelt_key_is_told_beside_a_section_too(tree: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="rollout_rss = 'token_k1': unknown setting; did you mean 'rollout_rs'"):
        get_trainer("verl").settings(tree)


@pytest.mark.parametrize("name", ["slime", "miles"])
def test_a_file_of_mis_py_that_only_repeats_defaults_is_named_by_its_keys(name: str) -> None:
    warnings = config_warnings(name, {"tis_level": "token", "tis_mode": "truncate"})
    assert not any(line.startswith(":") for line in warnings)


def test_a_file_of_mis_py_without_use_tis_does_nothing_in_slime() -> None:
    assert config_warnings("slime", {"tis_level": "token", "tis_mode": "truncate"}) == (
        "tis_level, tis_mode: of mis.py, which runs where custom_tis_function_path names it; read as if it did, "
        "but without use_tis: true it does nothing",
    )


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_a_presets_correction_is_what_its_trainer_makes_of_its_keys(preset) -> None:
    trainer = get_trainer(preset.origin.split()[0])
    config = trainer.configure(preset.config)
    assert trainer.correction(config) == preset.correction
    assert preset.origin.split()[1].rstrip(",") == trainer.version


def test_what_was_read_is_said_with_its_ratios() -> None:
    assert config_text("openrlhf", "--is_correction_threshold 0.5 2.0") == (
        "openrlhf 2026-08 reads: token weight clipped into [0.5, 2] (lets through ρ of the token in [0.5, 2] in full)"
    )
    assert config_text("nemo-rl", "{}") == "nemo-rl 2026-08 reads: no correction"


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("nemo-rl", {"loss_fn": {"reference_policy_kl_penalty": 0.01, "use_importance_sampling_correction": True}}),
        ("slime", {"use_tis": True, "custom_loss_function_path": "my.loss"}),
    ],
)
def test_a_neighbour_that_is_spelled_alike_is_no_misspelling(name: str, config: dict[str, object]) -> None:
    (given,) = get_trainer(name).settings(config)[0].values()
    assert given is True


@pytest.mark.parametrize(
    ("name", "config", "text"),
    [
        ("slime", {"use_tis": True}, "token weight capped at 2"),
        ("trl", {}, "sequence weight 0 above 3"),
        ("trl", {"vllm_importance_sampling_clip_min": 0.5}, "sequence weight 0 outside [0.5, 3]"),
        (
            "trl",
            {
                "vllm_importance_sampling_mode": "token_truncate",
                "vllm_importance_sampling_clip_min": 0.5,
                "vllm_importance_sampling_clip_max": None,
            },
            "token weight raised to at least 0.5",
        ),
    ],
)
def test_a_bound_on_one_side_is_said_as_one(name: str, config: dict[str, object], text: str) -> None:
    assert config_text(name, config).split("reads: ")[1].split(" (")[0] == text


def test_a_cap_below_1_of_october_is_a_warning_alone() -> None:
    """Whose reciprocal is above it: no band is made of the two in truncate mode."""
    source = {"rollout_is": True, "rollout_is_threshold": 1e-4}
    assert config_warnings("verl-2025-10", source) == (
        "rollout_is_threshold = 0.0001: a cap below 1 shrinks weights where the policies agree",
    )
    with pytest.raises(ConfigError, match=r"rollout_is_threshold = 0\.0001: a lone bound below 1 is the empty band"):
        get_trainer("verl-2025-10").configure({**source, "rollout_is_mode": "mask"})


@pytest.mark.parametrize("key", ["rollout_token_veto_threshold", "rollout_rs_threshold_lower", "use_policy_gradient"])
def test_an_old_key_that_is_null_was_off_and_is_not_spoken_of(key: str) -> None:
    assert get_trainer("verl").settings({"rollout_is": "token", key: None}) == ({"rollout_is": "token"}, ())


def test_a_pasted_command_longer_than_any_file_name() -> None:
    """As a shell's history has it: the system refuses to look for a file of that name."""
    wanted = "algorithm.rollout_correction.rollout_is=token"
    source = " ".join([*(f"data.some_setting_{i}={i}" for i in range(40)), wanted])
    assert len(source) > 512
    assert get_trainer("verl").settings(source) == ({"rollout_is": "token"}, ())
    inline = "rollout_is: token\nnote: " + "x" * 512
    with pytest.raises(ConfigError, match="unknown setting"):
        get_trainer("verl").settings(inline)


class TestOpenRlhf:
    """Its options weigh with policy_loss_type ppo alone."""

    def test_gspo_weighs_nothing(self) -> None:
        flags = "--algo.advantage.is_correction_enable --algo.advantage.is_correction_type icepop"
        trainer = get_trainer("openrlhf")
        weighed = trainer.configure(f"{flags} --actor.policy_loss_type ppo")
        assert trainer.correction(weighed) == trainer.correction(trainer.configure(flags)) != Correction()
        gspo = trainer.configure(f"{flags} --actor.policy_loss_type gspo")
        assert trainer.correction(gspo) == Correction(denominator=Denominator.ORIGINAL)
        (warning,) = trainer.warnings(gspo)
        assert "its own ratio is taken to the engine" in warning

    def test_without_the_switch_it_is_said_that_it_is_taken_as_on(self) -> None:
        trainer = get_trainer("openrlhf")
        assert trainer.warnings(trainer.configure({"is_correction_type": "icepop"})) == (
            "is_correction_enable: not given and false by default, where nothing is weighed; read as if it were true",
        )
        assert trainer.warnings(trainer.configure({"is_correction_enable": True})) == ()
        assert trainer.warnings(trainer.configure({"policy_loss_type": "gspo"})) == ()


MISPLACED: list[tuple[str, dict[str, object], dict[str, object], str]] = [
    (
        "nemo-rl",
        {"loss_fn": {"seq_logprob_error_threshold": 2, "use_importance_sampling_correction": True}},
        {"use_importance_sampling_correction": True},
        "loss_fn.seq_logprob_error_threshold is not where it looks, which is under grpo",
    ),
    (
        "nemo-rl",
        {
            "grpo": {"use_importance_sampling_correction": True, "seq_logprob_error_threshold": 2},
            "loss_fn": {"token_level_loss": True},
        },
        {"seq_logprob_error_threshold": 2, "token_level_loss": True},
        "grpo.use_importance_sampling_correction is not where it looks, which is under loss_fn",
    ),
    (
        "skyrl",
        {"trainer": {"algorithm": {"tis_ratio_type": "token", "off_policy_correction": {"geo_mask_low": 0.9}}}},
        {"geo_mask_low": 0.9},
        "trainer.algorithm.tis_ratio_type is not where it looks, which is under "
        "trainer.algorithm.off_policy_correction",
    ),
    (
        "verl",
        {"algorithm": {"rollout_rs": "token_k1", "rollout_correction": {"rollout_is": "token"}}},
        {"rollout_is": "token"},
        "algorithm.rollout_rs is not where it looks, which is under algorithm.rollout_correction",
    ),
    (
        "verl",
        {"seed": 1, "rollout_rs_threshold": 2.0, "algorithm": {"rollout_correction": {"rollout_is": "token"}}},
        {"rollout_is": "token"},
        "rollout_rs_threshold is not where it looks, which is under algorithm.rollout_correction",
    ),
    (
        "areal",
        {"actor": {"use_decoupled_loss": True}, "ref": {"m2_threshold": 0.04}},
        {"use_decoupled_loss": True},
        "ref.m2_threshold is not where it looks, which is under actor",
    ),
    (
        "roll",
        {"enable_old_logprobs_recompute": True, "train_infer_correction": {"filters": []}, "actor": {"is_weight": {}}},
        {"enable_old_logprobs_recompute": True, "filters": []},
        "actor.is_weight is not where it looks, which is under train_infer_correction",
    ),
    (
        "slime",
        {"use_tis": True, "rollout": {"tis_clip_low": 0.5}},
        {"use_tis": True},
        "rollout.tis_clip_low is not where it looks",
    ),
]


@pytest.mark.parametrize(("name", "tree", "settings", "note"), MISPLACED)
def test_a_setting_in_the_wrong_section_is_named_and_not_taken(
    name: str, tree: dict[str, object], settings: dict[str, object], note: str
) -> None:
    assert get_trainer(name).settings(tree) == (settings, (note,))


@pytest.mark.parametrize(
    ("name", "tree"),
    [
        ("areal", {"actor": {"m2_threshold": 0.04}, "ref": {"m2_threshold": 1.0}}),
        ("verl", {"algorithm": {"rollout_correction": {"rollout_is": "token"}}, "critic": {"clip_ratio_low": 0.3}}),
        ("prime-rl", {"trainer": {"loss": {"kl_tau": 0.0}}, "orchestrator": {"type": "x"}}),
    ],
)
def test_a_setting_of_another_part_is_not_spoken_of(name: str, tree: dict[str, object]) -> None:
    assert get_trainer(name).settings(tree)[1] == ()
