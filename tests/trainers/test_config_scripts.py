"""Settings in scripts: what is filled in, what is refused by its name, and never a default without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_audit.errors import ConfigError
from rollout_audit.trainers.registry import get_trainer

MAX, MODE = "vllm_importance_sampling_clip_max", "vllm_importance_sampling_mode"

REFUSED = "stands for a value that is not given here; put the value in its place"


def of_script(name: str, text: str, folder: Path, suffix: str = "py") -> tuple[dict[str, object], tuple[str, ...]]:
    path = folder / f"train.{suffix}"
    path.write_text(text)
    settings, notes = get_trainer(name).settings(path)
    return dict(settings), notes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f"CAP = 2.0\nargs = GRPOConfig({MAX}=CAP)\n", 2.0),
        (f"CAP: float = 2\nargs = GRPOConfig({MAX}=CAP)\n", 2),
        (f"A = 2.5\nB = A\nif __name__ == '__main__':\n    C = B\n    args = GRPOConfig({MAX}=C)\n", 2.5),
        (f"def main():\n    cap = 2.5\n    args = GRPOConfig({MAX}=cap)\n", 2.5),
        (f"GRPOConfig(**{{'{MAX}': 2.5, 'lr': lr()}})\n", 2.5),
        (f"MORE = dict({MAX}=2.5)\nGRPOConfig(**MORE)\n", 2.5),
        (f"GRPOConfig(**{{**{{'{MAX}': 2.5}}}})\n", 2.5),
        (f"args = parse()\nargs.{MAX} = 5.0\n", 5.0),
        (f"args = parse()\nargs['{MAX}'] = 5.0\n", 5.0),
        (f"setattr(args, '{MAX}', 5.0)\n", 5.0),
        (f"'''Run with\n\naccelerate launch train.py --learning_rate 1e-6\n'''\nGRPOConfig({MAX}=2.5)\n", 2.5),
        (f"GRPOConfig({MAX}=+2.5)\n", 2.5),
        (f"GRPOConfig({MAX}=1_2)\n", "1_2"),
        (f"CAP = 0.5_2\nGRPOConfig({MAX}=CAP)\n", "0.5_2"),
    ],
)
def test_what_a_script_in_python_says_of_a_setting(text: str, value: object, tmp_path: Path) -> None:
    settings, notes = of_script("trl", text, tmp_path)
    assert settings == {MAX: value}
    assert type(settings[MAX]) is type(value)
    assert notes == ()


def test_what_is_set_afterwards_counts_and_is_said(tmp_path: Path) -> None:
    settings, notes = of_script("trl", f"args = GRPOConfig({MAX}=2.0)\nargs.{MAX} = 5.0\n", tmp_path)
    assert settings == {MAX: 5.0}
    assert notes == (f"{MAX} = 2.0 and then 5.0: given twice, the later counts",)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"GRPOConfig({MAX}=args.cap)\n", "args.cap"),
        (f"GRPOConfig({MAX}=CAP)\n", "CAP"),
        (f"CAP = 2.0\nCAP = 3.0\nGRPOConfig({MAX}=CAP)\n", "CAP"),
        (f"if loose:\n    CAP = 3.0\nGRPOConfig({MAX}=CAP)\n", "CAP"),
        (f"CAP = 2.0\ndef main(CAP):\n    GRPOConfig({MAX}=CAP)\n", "CAP"),
        (f"CAP = 2.0\nfor CAP in caps:\n    GRPOConfig({MAX}=CAP)\n", "CAP"),
        (f"GRPOConfig({MAX}=float(\n    'x'))\n", "float( 'x')"),
        (f"args = GRPOConfig({MAX}=2.0)\nargs.{MAX} = cap()\n", "cap()"),
        (f"args = GRPOConfig({MAX}=2.0)\nargs.{MAX} *= 2\n", f"args.{MAX} *= 2"),
        (f"GRPOConfig(**{{'{MAX}': cap}})\n", "cap"),
    ],
)
def test_an_expression_is_refused_by_name(text: str, shown: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        of_script("trl", text, tmp_path)
    assert (
        str(caught.value) == f"{MAX} = {shown!r}: stands for a value that is not given here; put the value in its place"
    )


@pytest.mark.parametrize("unpacked", ["**vars(args)", "**{**more}", "**{name: 2.0}", "**more"])
def test_settings_without_their_names_are_said(unpacked: str, tmp_path: Path) -> None:
    text = f"tokenize(**options)\nargs = GRPOConfig({MODE}='token_mask', {unpacked})\n"
    settings, notes = of_script("trl", text, tmp_path)
    assert settings == {MODE: "token_mask"}
    (note,) = notes
    assert note.startswith("**")
    assert note.endswith(" in line 2: its settings are not given here; not looked at")


@pytest.mark.parametrize(
    ("name", "text", "settings"),
    [
        (
            "verl",
            "config.algorithm.rollout_correction.rollout_is = 'token'\n"
            "config['algorithm']['rollout_correction']['rollout_is_threshold'] = 3.0\nself.rollout_rs = 'token_k1'\n",
            {"rollout_is": "token", "rollout_is_threshold": 3.0},
        ),
        ("areal", "config.actor.m2_threshold = 0.04\nTrainer(actor=Actor(config))\n", {"m2_threshold": 0.04}),
        ("ms-swift", "CAP = 3\nRLHFArguments(rollout_importance_sampling_threshold=CAP)\n",
         {"rollout_importance_sampling_threshold": 3}),
    ],
)  # fmt: skip
def test_nested_settings_of_a_script(name: str, text: str, settings: dict[str, object], tmp_path: Path) -> None:
    assert of_script(name, text, tmp_path)[0] == settings


@pytest.mark.parametrize(
    ("text", "cap"),
    [
        ("ARGS=(--use-tis --tis-clip 4)\npython train.py ${ARGS[@]}\n", 4),
        ("ARGS=(--use-tis)\nARGS+=(--tis-clip 4)\n", 4),
        ("ARGS=(\n  --use-tis\n  --tis-clip 4)\n", 4),
        ("T=4.5; IS=token\npython train.py --use-tis --tis-clip $T\n", 4.5),
        ("IS=token; T=4.5\npython train.py --use-tis --tis-clip $T\n", 4.5),
        ("export A=1 && T=4.5  # a cap\npython train.py --use-tis --tis-clip ${T}\n", 4.5),
        ("python train.py --use-tis --tis-clip 4 2>&1 | tee run.log\n", 4),
        ("python train.py --use-tis --tis-clip 4 > run.log\n", 4),
        ("python train.py --use-tis --tis-clip 4; echo done\n", 4),
        ("python train.py --tis-clip 4 && python x.py --use-tis\n", 4),
        ("python train.py --use-tis $MORE --tis-clip 4 $REST\n", 4),
        ("python train.py --use-tis ${MORE[@]} --tis-clip 4 \"$@\"\n", 4),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["slime", "miles"])
def test_flags_as_a_shell_reads_them(name: str, text: str, cap: float, tmp_path: Path) -> None:
    settings, notes = of_script(name, text, tmp_path, "sh")
    assert (settings["use_tis"], settings["tis_clip"], notes) == (True, cap, ())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("slime", "python x.py --use-tis --tis-clip ${CLIP}\n", "tis_clip = '${CLIP}': "),
        ("slime", "python x.py --use-tis --tis-clip=$CLIP\n", "tis_clip = '$CLIP': "),
        ("slime", "python x.py --use-tis --tis-clip $(cat cap)\n", "tis_clip = '$(cat': "),
        ("openrlhf", "python x.py --is_correction_threshold 0.5 $HIGH\n", "is_correction_threshold = '$HIGH': "),
        ("slime", "python x.py --use-tis=$TIS\n", "use_tis = '$TIS': "),
        ("trl", f"python x.py --{MAX} $CAP --lr 1\n", f"{MAX} = '$CAP': "),
        (
            "verl",
            "python x.py algorithm.rollout_correction.rollout_is_threshold=${LOW}_2.0\n",
            "rollout_is_threshold = '${LOW}_2.0': ",
        ),
        ("skyrl", "python x.py trainer.algorithm.off_policy_correction.tis_ratio_type=$A\n", "tis_ratio_type = '$A': "),
    ],
)
def test_a_variable_without_a_value_is_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        of_script(name, text, tmp_path, "sh")
    assert str(caught.value) == f"{message}{REFUSED}"


def test_a_pasted_command_of_flags_alone() -> None:
    assert get_trainer("slime").settings("python train.py --use-tis --tis-clip 3")[0]["tis_clip"] == 3


TYPED = (
    ("areal", "PPOActorConfig(rejection_sampling=RejectionSamplingConfig(level='token', upper=4.0))"),
    ("areal", "cfg.actor.rejection_sampling = RejectionSamplingConfig(level='token', upper=4.0)"),
    ("areal", "rs = RejectionSamplingConfig(level='token', upper=4.0)\nPPOActorConfig(rejection_sampling=rs)"),
    ("areal", "PPOConfig(actor=PPOActorConfig(rejection_sampling=dict(level='token', upper=4.0)))"),
)


@pytest.mark.parametrize(("name", "text"), TYPED)
def test_the_call_of_a_class_is_a_mapping_of_its_keywords(name: str, text: str, tmp_path: Path) -> None:
    settings, notes = of_script(name, text, tmp_path)
    assert settings["rejection_sampling"] == {"level": "token", "upper": 4.0}
    assert notes == ()


def test_classes_in_classes_and_in_lists(tmp_path: Path) -> None:
    text = (
        "ROLLConfig(train_infer_correction=TrainInferCorrectionConfig(is_weight=IsWeightConfig(enabled=True,"
        " upper_bound=3.0), filters=[FilterConfig(enabled=True), FilterConfig(enabled=False)]))\n"
    )
    settings, notes = of_script("roll", text, tmp_path)
    assert settings["is_weight"] == {"enabled": True, "upper_bound": 3.0}
    assert settings["filters"] == [{"enabled": True}, {"enabled": False}]
    assert notes == ()
    text = (
        "SkyRLConfig(trainer=TrainerConfig(algorithm=AlgorithmConfig(off_policy_correction="
        "OffPolicyCorrectionConfig(tis_ratio_type='token', token_tis_ratio_clip_high=3.0))))\n"
    )
    settings, notes = of_script("skyrl", text, tmp_path)
    assert (settings["tis_ratio_type"], settings["token_tis_ratio_clip_high"], notes) == ("token", 3.0, ())


@pytest.mark.parametrize("call", ["GRPOTrainer(args={})", "trainer.args = {}", "GRPOTrainer(model=m, training={})"])
def test_settings_that_a_trainer_is_given_are_its_own(call: str, tmp_path: Path) -> None:
    assert of_script("trl", call.format(f"GRPOConfig({MAX}=2.0)"), tmp_path) == ({MAX: 2.0}, ())


@pytest.mark.parametrize(
    "text",
    [
        f"args = GRPOConfig({MAX}=2.0)\nif args.lr > 1:\n    args.{MAX} = 9.0\n",
        f"if loose:\n    GRPOConfig({MAX}=2.0)\nelse:\n    GRPOConfig({MAX}=9.0)\n",
    ],
)
def test_a_setting_that_a_branch_sets_otherwise_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{MAX} = '2.0 or 9.0, by a branch': {REFUSED}$"):
        of_script("trl", text, tmp_path)


def test_branches_that_agree_and_the_main_block(tmp_path: Path) -> None:
    text = f"if loose:\n    GRPOConfig({MAX}=2.0)\nelse:\n    GRPOConfig({MAX}=2.0)\n"
    assert of_script("trl", text, tmp_path) == ({MAX: 2.0}, ())
    text = f"args = GRPOConfig({MAX}=2.0)\nif __name__ == '__main__':\n    args.{MAX} = 9.0\n"
    assert of_script("trl", text, tmp_path)[0] == {MAX: 9.0}
    text = f"try:\n    args = GRPOConfig({MAX}=2.0)\n    args.{MAX} = 9.0\nfinally:\n    stop()\n"
    assert of_script("trl", text, tmp_path)[0] == {MAX: 9.0}


@pytest.mark.parametrize(
    ("name", "place", "call"),
    [
        ("verl", "algorithm.rollout_correction", "RolloutCorrectionConfig.decoupled_token_is(threshold=2.0)"),
        ("prime-rl", "trainer.loss", "make_loss('ipo')"),
        ("skyrl", "trainer.algorithm", "make_algorithm()"),
        ("roll", "train_infer_correction", "correction_of(name)"),
    ],
)
def test_a_section_that_is_an_expression_is_refused(name: str, place: str, call: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        of_script(name, f"cfg.{place} = {call}\n", tmp_path)
    assert str(caught.value) == f"{place} = {call!r}: {REFUSED}"


@pytest.mark.parametrize("before", ["python train.py", "A=1 b=2 python train.py"])
@pytest.mark.parametrize("order", [1, -1])
def test_words_of_hydra_without_dots(before: str, order: int, tmp_path: Path) -> None:
    words = ["enable_old_logprobs_recompute=true", "train_infer_correction.is_weight.enabled=true"][::order]
    settings, notes = of_script("roll", f"{before} \\\n    {' '.join(words)}\n", tmp_path, "sh")
    assert settings == {"enable_old_logprobs_recompute": True, "is_weight": {"enabled": True}}
    assert notes == ()


def test_variables_of_a_shell_are_no_words_of_hydra(tmp_path: Path) -> None:
    text = (
        "adv_estimator=gigpo\nexport enable_old_logprobs_recompute=true\n"
        "enable_old_logprobs_recompute=true python x.py train_infer_correction.is_weight.enabled=true\n"
    )
    assert of_script("roll", text, tmp_path, "sh")[0] == {"is_weight": {"enabled": True}}
