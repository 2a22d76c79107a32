"""Files that a configuration names, and references to its own settings."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rollout_audit.audit.selection import config_text
from rollout_audit.cli.reference import say_config
from rollout_audit.errors import ConfigError, UsageError
from rollout_audit.trainers.configfile import load_config
from rollout_audit.trainers.registry import get_trainer

TIS = "use_importance_sampling_correction: true\n  truncated_importance_sampling_type: tis\n"
NEMO = f"loss_fn:\n  {TIS}  truncated_importance_sampling_ratio: 2.0\n"


def write(folder: Path, files: dict[str, str]) -> Path:
    """The last of them is the run's."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path


CAP = "truncated_importance_sampling_ratio"
NAMED: list[tuple[str, dict[str, str], dict[str, object], list[str]]] = [
    (
        "nemo-rl",
        {"base.yaml": NEMO, "run.yaml": f"defaults: base.yaml\nloss_fn:\n  {CAP}: 5.0\n"},
        {CAP: 5.0, "use_importance_sampling_correction": True, "truncated_importance_sampling_type": "tis"},
        ["base.yaml"],
    ),
    (
        "nemo-rl",
        {
            "root.yaml": NEMO,
            "base.yaml": f"defaults: root.yaml\nloss_fn: {{{CAP}: 3.0}}\n",
            "recipes/run.yaml": "defaults: ../base.yaml\ngrpo: {seq_logprob_error_threshold: 2}\n",
        },
        {
            CAP: 3.0,
            "use_importance_sampling_correction": True,
            "truncated_importance_sampling_type": "tis",
            "seq_logprob_error_threshold": 2,
        },
        ["base.yaml", "root.yaml"],
    ),
    (
        "verl",
        {
            "ppo.yaml": "defaults:\n  - algorithm@algorithm.rollout_correction: correction\n  - _self_\nx: 1\n",
            "algorithm/correction.yaml": "rollout_is: token\nrollout_is_threshold: 2.0\n",
            "run.yaml": "defaults: [ppo, _self_]\nalgorithm: {rollout_correction: {rollout_is_threshold: 3.0}}\n",
        },
        {"rollout_is": "token", "rollout_is_threshold": 3.0},
        ["ppo.yaml", "algorithm/correction.yaml"],
    ),
    (
        "verl",
        {
            "over.yaml": "algorithm: {rollout_correction: {rollout_is_threshold: 4.0}}\n",
            "run.yaml": "defaults: [_self_, over]\nalgorithm: {rollout_correction: {rollout_is: token, "
            "rollout_is_threshold: 3.0}}\n",
        },
        {"rollout_is": "token", "rollout_is_threshold": 4.0},
        ["over.yaml"],
    ),
    (
        "verl",
        {
            "config/own.yaml": "algorithm: {rollout_correction: {rollout_is: token, rollout_is_threshold: 3.0}}\n",
            "run.sh": "python3 -m verl.trainer.main_ppo --config-path=config --config-name='own' \\\n"
            "  algorithm.rollout_correction.rollout_is_threshold=5.0\n",
        },
        {"rollout_is": "token", "rollout_is_threshold": 5.0},
        ["config/own.yaml"],
    ),
    (
        "trl",
        {
            "run.yaml": "vllm_importance_sampling_mode: token_mask\nvllm_importance_sampling_clip_max: 4.0\n",
            "run.sh": "accelerate launch --config_file ds.yaml grpo.py --config run.yaml \\\n"
            "  --vllm_importance_sampling_clip_max 2.0\n",
        },
        {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_max": 2.0},
        ["run.yaml"],
    ),
    (
        "ms-swift",
        {
            "rlhf.json": '{"rollout_importance_sampling_mode": "token_mask"}',
            "run.sh": "swift rlhf --config configs/rlhf.json --rollout_importance_sampling_threshold 3\n",
        },
        {"rollout_importance_sampling_mode": "token_mask", "rollout_importance_sampling_threshold": 3},
        ["rlhf.json"],
    ),
    (
        "areal",
        {
            "gsm8k.yaml": "actor: {use_decoupled_loss: true, m2_threshold: 0.04}\n",
            "run.sh": "python3 examples/rl.py --config examples/gsm8k.yaml actor.m2_threshold=0.1\n",
        },
        {"use_decoupled_loss": True, "m2_threshold": 0.1},
        ["gsm8k.yaml"],
    ),
    (
        "prime-rl",
        {
            "base.toml": "[trainer.loss]\ndppo_mask_low = 0.1\ndppo_mask_high = 0.1\n",
            "more.toml": "[trainer.loss]\ndppo_mask_low = 0.3\n",
            "run.sh": "uv run rl @ base.toml @more.toml --trainer.loss.dppo-mask-high 0.25\n",
        },
        {"dppo_mask_low": 0.3, "dppo_mask_high": 0.25},
        ["base.toml", "more.toml"],
    ),
    (
        "prime-rl",
        {
            "train.toml": "[loss]\ndppo_mask_low = 0.1\n",
            "orch.toml": "[loss]\ndppo_mask_low = 0.7\n",
            "run.sh": "uv run rl --trainer @ configs/train.toml --orchestrator @ orch.toml --max-steps 3\n",
        },
        {"dppo_mask_low": 0.1},
        ["train.toml", "orch.toml"],
    ),
]


@pytest.mark.parametrize(("name", "files", "settings", "read"), NAMED)
def test_a_file_that_is_named_is_read_below_what_names_it(
    name: str, files: dict[str, str], settings: dict[str, object], read: list[str], tmp_path: Path
) -> None:
    given, (note,) = get_trainer(name).settings(write(tmp_path, files))
    assert given == settings
    paths, _, rest = note.partition(": ")
    assert rest == "read as well, below the settings that name it"
    assert [os.path.relpath(Path(path).resolve(), tmp_path) for path in paths.split(", ")] == read


@pytest.mark.parametrize(
    ("name", "files", "by"),
    [
        ("nemo-rl", {"run.yaml": f"defaults: nowhere.yaml\n{NEMO}"}, "defaults names nowhere.yaml"),
        (
            "verl",
            {
                "run.yaml": "defaults: [ppo_trainer, {data: legacy}, _self_]\n"
                "algorithm.rollout_correction: {rollout_is: token}\n"
            },
            "defaults names ppo_trainer",
        ),
        ("trl", {"run.sh": "trl grpo --config nowhere.yaml --vllm_importance_sampling_clip_max 2\n"},
         "--config names nowhere.yaml"),
        ("verl", {"run.sh": "python x.py --config-name=own algorithm.rollout_correction.rollout_is=token\n"},
         "--config-name names own"),
        ("prime-rl", {"run.sh": "uv run rl @ nowhere.toml --trainer.loss.kl-tau 0\n"}, "@ names nowhere.toml"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_here_is_named(name: str, files: dict[str, str], by: str, tmp_path: Path) -> None:
    given, (note,) = get_trainer(name).settings(write(tmp_path, files))
    assert given
    assert note == f"{by}: no such file here, its settings are missing and taken for the defaults"


def test_of_a_command_as_text_the_working_directory_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"run.yaml": "vllm_importance_sampling_clip_max: 4.0\n"})
    monkeypatch.chdir(tmp_path)
    given, notes = get_trainer("trl").settings("trl grpo --config run.yaml --seed 1")
    assert given == {"vllm_importance_sampling_clip_max": 4.0}
    assert notes == ("run.yaml: read as well, below the settings that name it",)


def test_files_that_name_each_other_end(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.yaml": "defaults: b.yaml\nuse_tis: true\n", "b.yaml": "defaults: a.yaml\ntis_clip: 3\n"})
    given, _ = get_trainer("slime").settings(path)
    assert given == {"use_tis": True, "tis_clip": 3}


def test_a_named_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"base\.yaml': line 2"):
        load_config(write(tmp_path, {"base.yaml": "a: [1\n", "run.yaml": "defaults: base.yaml\n"}))


@pytest.mark.parametrize("defaults", ["{lr: 1}", "3", "null", "[3]"])
def test_defaults_of_something_else(defaults: str, tmp_path: Path) -> None:
    path = write(tmp_path, {"run.yaml": f"defaults: {defaults}\nuse_tis: true\n"})
    assert get_trainer("slime").settings(path) == ({"use_tis": True}, ())


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("is: token\nalgorithm: {rollout_correction: {rollout_is: '${is}'}}", {"rollout_is": "token"}),
        (
            "t: {cap: 3.0}\nalgorithm: {rollout_correction: {rollout_is: token, rollout_is_threshold: '${t.cap}'}}",
            {"rollout_is": "token", "rollout_is_threshold": 3.0},
        ),
        (
            "lo: 0.5\nhi: 5.0\nalgorithm: {rollout_correction: {rollout_is: token, "
            "rollout_is_threshold: '${lo}_${hi}'}}",
            {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"},
        ),
        (
            "algorithm: {cap: 3, rollout_correction: {rollout_is: token, rollout_is_threshold: '${..cap}'}}",
            {"rollout_is": "token", "rollout_is_threshold": 3},
        ),
        (
            "algorithm: {rollout_correction: {rollout_is: token, x: 3, "
            "rollout_is_threshold: '${.rollout_rs_threshold}', "
            "rollout_rs_threshold: '${b}'}}\nb: '${c[1]}'\nc: [1, 4]",
            {"rollout_is": "token", "rollout_is_threshold": 4, "rollout_rs_threshold": 4, "x": 3},
        ),
        ("shared: {rollout_is: token}\nalgorithm: {rollout_correction: '${shared}'}", {"rollout_is": "token"}),
    ],
)
def test_a_reference_to_the_same_file_is_filled_in(text: str, settings: dict[str, object], tmp_path: Path) -> None:
    section = load_config(write(tmp_path, {"run.yaml": text})).tree["algorithm"]
    assert isinstance(section, dict)
    assert section["rollout_correction"] == settings


def test_the_default_of_the_environment_is_taken_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it holds today: the run's own may have been another."""
    monkeypatch.setenv("TH", "7.0")
    text = (
        "x: '${oc.env:OTHER,1}'\n"
        "algorithm: {rollout_correction: {rollout_is: token, rollout_is_threshold: '${oc.env:TH,3.0}'}}"
    )
    path = write(tmp_path, {"run.yaml": text})
    assert get_trainer("verl").settings(path) == (
        {"rollout_is": "token", "rollout_is_threshold": 3.0},
        ("rollout_is_threshold = ${oc.env:TH,3.0}: read as its default 3.0; TH of the run is not known here",),
    )
    path.write_text(text.replace("3.0", "0.5_2"))
    assert "token weight 0 outside [0.5, 2]" in config_text("verl", path)


KEYS = {
    "verl": "algorithm: {{rollout_correction: {{rollout_is: token, rollout_is_threshold: '{}'}}}}",
    "trl": "vllm_importance_sampling_clip_max: '{}'",
    "slime": "use_tis: true\ntis_clip: '{}'",
    "nemo-rl": "loss_fn: {{use_importance_sampling_correction: '{}'}}",
    "areal": "actor: {{use_decoupled_loss: true, rejection_sampling: {{level: token, upper: '{}'}}}}",
    "roll": "train_infer_correction: {{filters: [{{enabled: true, ratio_high: '{}'}}]}}",
}


@pytest.mark.parametrize(
    "reference", ["${oc.env:TH}", "${nowhere.th}", "${mul:2,${x}}", "${a}", "${.....x}", "${bool:true}", "2${x.y}"]
)
@pytest.mark.parametrize("name", KEYS)
def test_a_reference_that_stands_for_nothing_here_is_named(name: str, reference: str, tmp_path: Path) -> None:
    path = write(tmp_path, {"run.yaml": f"a: '${{b}}'\nb: '${{a}}'\n{KEYS[name].format(reference)}\n"})
    with pytest.raises(ConfigError) as caught:
        get_trainer(name).settings(path)
    assert f" = {reference!r}: stands for a value that is not given here" in str(caught.value)


def test_references_of_other_settings_are_no_matter(tmp_path: Path) -> None:
    path = write(tmp_path, {"run.yaml": "use_tis: true\nlr: ${oc.env:LR}\nx: &x [*x, '${use_tis}']\n"})
    assert get_trainer("slime").settings(path) == ({"use_tis": True}, ())


@pytest.mark.parametrize(
    "text",
    [
        "[trainer.loss]\ndppo_mask_high = 0.1\n",
        "# base\n[trainer]\nloss = {dppo_mask_high = 0.1}  # tight\n",
        "trainer.loss.dppo_mask_high = 0.1\n",
        "[trainer.loss]  # x\ntype = \"default\"\ndppo_mask_high = 0.1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["", ".conf", ".yaml"])
def test_toml_without_its_suffix(text: str, suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path, {f"run{suffix}": text})
    assert get_trainer("prime-rl").configure(path) == get_trainer("prime-rl").configure({"dppo_mask_high": 0.1})


def test_toml_through_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("[trainer.loss]\ndppo_mask_high = 0.1\n",))
    writer.start()
    assert get_trainer("prime-rl").settings(pipe)[0] == {"dppo_mask_high": 0.1}
    writer.join()


@pytest.mark.parametrize(("place", "told"), [("trainer", 1), ("orchestrator", 0), ("inference", 0)])
def test_a_file_that_cannot_hold_settings_of_ours_is_not_missed(place: str, told: int, tmp_path: Path) -> None:
    text = f"uv run rl --{place} @ nowhere.toml --trainer.loss.kl-tau 0\n"
    assert len(get_trainer("prime-rl").settings(write(tmp_path, {"run.sh": text}))[1]) == told


def test_what_was_read_is_a_note_and_what_is_missing_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"a.yaml": "tis_clip_low: 0.5\n", "run.sh": "python x.py --config a.yaml --use-tis --tis-clip 2\n"}
    path = write(tmp_path, files)
    say_config("slime", str(path))
    assert f"\nnote: {tmp_path / 'a.yaml'}: read as well" in capsys.readouterr().err
    (tmp_path / "a.yaml").unlink()
    say_config("slime", str(path))
    assert "\nwarning: --config names a.yaml: no such file here" in capsys.readouterr().err
