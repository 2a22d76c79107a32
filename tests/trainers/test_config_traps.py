"""What people write into configuration files and did not mean: one line for each, for every trainer."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rollout_audit.audit.selection import config_text
from rollout_audit.errors import ConfigError, UsageError
from rollout_audit.trainers.base import Trainer
from rollout_audit.trainers.configfile import load_config
from rollout_audit.trainers.registry import TRAINERS, get_trainer

NUMBERS: dict[str, tuple[str, str]] = {
    "verl": ("rollout_is_threshold", "algorithm: {{rollout_correction: {{rollout_is: token, {}}}}}"),
    "verl-2026-01": ("rollout_is_threshold", "algorithm: {{rollout_correction: {{rollout_is: token, {}}}}}"),
    "verl-2025-11": ("rollout_is_threshold", "algorithm: {{rollout_correction: {{rollout_is: token, {}}}}}"),
    "verl-2025-10": ("rollout_is_threshold", "algorithm: {{rollout_is: true, {}}}"),
    "miles": ("tis_clip", "use_tis: true\n{}"),
    "slime": ("tis_clip", "use_tis: true\n{}"),
    "trl": ("vllm_importance_sampling_clip_max", "{}"),
    "nemo-rl": (
        "truncated_importance_sampling_ratio",
        "loss_fn: {{use_importance_sampling_correction: true, truncated_importance_sampling_type: tis, {}}}",
    ),
    "openrlhf": ("vllm_is_truncated_threshold", "enable_vllm_is_correction: true\n{}"),
    "open-instruct": ("rho_clamp_upper_bound", "{}"),
    "skyrl": (
        "token_tis_ratio_clip_high",
        "trainer: {{algorithm: {{off_policy_correction: {{tis_ratio_type: token, {}}}}}}}",
    ),
    "areal": ("m2_threshold", "actor: {{use_decoupled_loss: true, {}}}"),
    "roll": ("upper_bound", "train_infer_correction: {{is_weight: {{enabled: true, {}}}}}"),
    "ms-swift": ("rollout_importance_sampling_threshold", "rollout_importance_sampling_mode: token_truncate\n{}"),
    "prime-rl": ("dppo_mask_high", "trainer: {{loss: {{{}}}}}"),
}
"""trainer → a bound, and the file that it stands in"""
BAND = {"verl": "token weight 0 outside [0.5, 2]"}
"""The trainers that take a band for it, and how it is echoed"""


def test_every_trainer_is_in_the_table() -> None:
    assert NUMBERS.keys() == TRAINERS.keys()


def written(folder: Path, name: str, value: str) -> Path:
    key, file = NUMBERS[name]
    if name == "openrlhf":  # a pair of bounds
        value = f"[0.5, {value}]"
    path = folder / "run.yaml"
    path.write_text(file.format(f"{key}: {value}") + "\n")
    return path


@pytest.mark.parametrize("value", ["25e-1", "2.5E0", "+2.5", '"2.5"', "'25e-1'", "!!float 2.5"])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_one_however_it_is_spelled(name: str, value: str, tmp_path: Path) -> None:
    plain = config_text(name, written(tmp_path, name, "2.5"))
    assert config_text(name, written(tmp_path, name, value)) == plain
    assert "2.5" in plain or name == "areal"  # which is told in k2, half of d²


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no", "False: expected a number; a bare flag, yes and on are true, no and off are false"),
        ("On", "True: expected a number"),
        ("two", "'two': expected a number"),
        ("1:30", "'1:30': expected a number"),
        ("0x10", "'0x10': expected a number"),
        ("inf", "'inf': must be finite"),
        (".inf", "inf: must be finite"),
        (".nan", "nan: must be finite"),
        ("nan", "'nan': must be finite"),
        ("1e400", "inf: must be finite"),
        ("[2.0]", "[2.0]: expected"),
        ("1_000", "'1_000': "),
    ],
)
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_is_refused_with_its_key(name: str, value: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config_text(name, written(tmp_path, name, value))
    message = str(caught.value)
    assert "\n" not in message
    if name != "openrlhf":
        assert f"{NUMBERS[name][0]} = {text}" in message


@pytest.mark.parametrize("value", ["0.5_2", "0.5_2.0", '"0.5_2"'])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_band_is_never_a_number(name: str, value: str, tmp_path: Path) -> None:
    path = written(tmp_path, name, value)
    if name in BAND:
        assert BAND[name] in config_text(name, path)
    else:
        with pytest.raises(ConfigError, match=r"0\.5_2"):
            config_text(name, path)


def test_zero_is_a_word_of_open_instruct_and_no_is_not() -> None:
    trainer = get_trainer("open-instruct")
    assert trainer.configure({"rho_clamp_upper_bound": 0}) == trainer.configure({"rho_clamp_upper_bound": 0.0})
    with pytest.raises(ConfigError, match="rho_clamp_upper_bound = False: expected a number"):
        trainer.configure({"rho_clamp_upper_bound": False})


def slips(key: str) -> set[str]:
    middle = len(key) // 2
    left, right = key[:middle], key[middle:]
    return {left + right[1:], left + right[0] + right, left + "q" + right[1:], key.replace("_", "-"), key.upper()} - {
        key
    }


def settings_of(trainer: Trainer[object]) -> list[str]:
    keys = {*trainer.defaults, *(old.key for old in trainer.renamed)}
    return sorted(key for key in keys if len(key) > 6)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_misspelt_setting_is_told_where_other_settings_stand_beside(name: str) -> None:
    trainer = get_trainer(name)
    for key in settings_of(trainer):
        for slip in slips(key):
            tree: dict[str, object] = {slip: 3.5, "lr": 1e-6}
            for part in reversed(trainer.elsewhere.get(key, trainer.section.path)):
                tree = {part: tree}
            if not (trainer.section.shared or trainer.section.prefix):
                _drop_lr(tree)
            with pytest.raises(ConfigError, match=f"unknown setting; did you mean '{key}'") as caught:
                trainer.settings({**tree, "data": {"files": 1}})
            assert caught.value.key == slip


def _drop_lr(tree: dict[str, object]) -> None:
    for value in tree.values():
        if isinstance(value, dict):
            _drop_lr(value)
    tree.pop("lr", None)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a:\n  b: 1\n  c: 2\n  b: 3\n", "'a.yaml': key 'b' stands there twice, lines 2 and 4; keep one"),
        ("a.yaml", "a: 1\nx: {b: 1, b: 1}\n", "'a.yaml': key 'b' stands there twice, line 2; keep one"),
        ("a.yaml", "a.b: 1\na: {b: 2}\n", "'a.yaml': key 'a.b' stands there twice, as 1 and 2; keep one"),
        (
            "a.json",
            '{"a": {"b": "{", "b\\"": 1},\n "c": [{"b": 1},\n {"b": 2, "b": 2}]}',
            "key 'b' stands there twice, line 3",
        ),
        ("a.json", '{"a": 1,\n\n"a": 2}', "'a.json': key 'a' stands there twice, lines 1 and 3; keep one"),
        ("a.toml", "[x]\nb = 1\n[y]\nb = 1\nc = 1\nb = 2\n", "'a.toml': key 'b' stands there twice, lines 4 and 6"),
        ("a.yaml", "- a\n", "holds a list, not settings by name"),
        ("a.yaml", "hello\n", "holds text, not settings by name"),
        ("a.json", "[1]", "holds a list, not settings by name"),
        (
            "a.yaml",
            "a: 1\n---\na: 2\n",
            "line 2, column 1: expected a single document in the stream, but found another",
        ),
        (
            "a.yaml",
            "a:\n\tb: 1\n",
            "line 2, column 1: while scanning for the next token, found character '\\t' that cannot",
        ),
        ("a.yaml", "a: 1\0", "cannot be read (not text: a zero byte at character 4); give a YAML, JSON or TOML file"),
        ("a.yaml", "a: \udcff", "cannot be read (not text: no UTF-8 at byte 3)"),
        ("a.yaml", "[" * 5000, "maximum recursion depth exceeded"),
    ],
)
def test_a_file_that_is_not_settings(
    name: str, text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as caught:
        load_config(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_merge_key_is_no_repetition(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("base: &base {a: 1, b: 2}\nmine:\n  <<: *base\n  b: 3\n")
    assert load_config(path).tree["mine"] == {"a": 1, "b": 3}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize(
    ("suffix", "text"),
    [("yaml", "rollout_is: token\r\n"), ("json", '{"rollout_is": "token"}'), ("toml", 'rollout_is = "token"\r\n')],
)
def test_text_is_read_as_windows_saves_it(suffix: str, text: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(text.encode(encoding))
    assert load_config(path).tree == {"rollout_is": "token"}


@pytest.mark.parametrize("suffix", ["yaml", "json", "toml", "sh"])
@pytest.mark.parametrize("text", ["", "\n", "# nothing\n"])
def test_an_empty_file_says_nothing(suffix: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_text("" if suffix == "json" else text)
    assert get_trainer("verl").settings(path) == ({}, ("no setting of verl is given: its defaults",))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("", "configuration '': nothing in it; give a YAML, JSON or TOML file, a JSON object or key=value,key=value"),
        (" ", "configuration ' ': nothing in it"),
        (".", "configuration '.': a folder; give the file in it that the run used"),
        ("lr=1e-6/run.yaml", "configuration 'lr=1e-6/run.yaml': no such file"),
        ('{"a": 1, "a": 2}', "key 'a' stands there twice, line 1"),
        (
            "a=@x",
            "configuration 'a=@x': a = '@x': line 1, column 1: while scanning for the next token, found character '@'",
        ),
    ],
)
def test_a_source_that_is_none(source: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_config(source)
    assert text in str(caught.value)


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("rollout_is: token\n",))
    writer.start()
    assert load_config(pipe).tree == load_config(pipe).tree == {"rollout_is": "token"}
    writer.join()


@pytest.mark.parametrize(
    ("name", "source", "settings", "note"),
    [
        (
            "verl",
            "algorithm.rollout_correction.rollout_is=token +algorithm.rollout_correction.rollout_is=sequence",
            {"rollout_is": "sequence"},
            "algorithm.rollout_correction.rollout_is = 'token' and then 'sequence': given twice, the later counts",
        ),
        (
            "openrlhf",
            "--is_correction_threshold 0.5 2.0 --is_correction_threshold 0.5 5.0",
            {"is_correction_threshold": [0.5, 5.0]},
            "is_correction_threshold = [0.5, 2.0] and then [0.5, 5.0]: given twice, the later counts",
        ),
    ],
)
def test_of_two_on_a_command_line_the_later_counts_and_it_is_said(
    name: str, source: str, settings: dict[str, object], note: str
) -> None:
    assert get_trainer(name).settings(source) == (settings, (note,))


@pytest.mark.parametrize(
    "source",
    ["rollout_is=token,rollout_is=token", "algorithm.rollout_correction.rollout_is=token,trainer.lr=1,trainer.lr=2"],
)
def test_a_repetition_that_changes_nothing_of_ours_is_no_news(source: str) -> None:
    assert get_trainer("verl").settings(source) == ({"rollout_is": "token"}, ())


def test_one_setting_at_two_places_is_an_error() -> None:
    with pytest.raises(
        UsageError, match="'rollout_is' stands there twice, as 'token' by itself and 'sequence' in its sec"
    ):
        get_trainer("verl").settings("rollout_is=token,algorithm.rollout_correction.rollout_is=sequence")


def test_dotted_and_nested_keys_are_one_tree() -> None:
    given = {"algorithm.rollout_correction.rollout_is": "token", "algorithm": {"gamma": 1.0}}
    assert get_trainer("verl").settings(given)[0] == {"rollout_is": "token"}


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (
            {"algorithm": {"rollout_corection": {"rollout_is": "token"}, "rollout_correction": {"rollout_rs": None}}},
            "unknown section 'rollout_corection' beside 'rollout_correction'; put its settings there",
        ),
        (
            {"algorithm": {"rollout_corr": {"rollout_is": "token"}}},
            "'rollout_corr'; did you mean 'rollout_correction'?",
        ),
        ({"Algorithm": {"rollout_correction": {}}}, "unknown section 'Algorithm'; did you mean 'algorithm'?"),
        ({"algorithm": {"rollout-correction": {}}}, "'rollout-correction'; did you mean 'rollout_correction'?"),
    ],
)
def test_a_misspelt_section_is_told_with_or_without_the_right_one(tree: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        get_trainer("verl").settings(tree)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "tree"),
    [
        ("prime-rl", {"trainer": {"loss": {"kl_tau": 0.0}, "losses": {"weight": 1}}}),
        ("areal", {"actor": {"m2_threshold": 0.04}, "actors": {"path": "x"}, "ref": {"m2_threshold": 1.0}}),
        ("verl", {"algorithm": {"rollout_correction": {"rollout_is": "token"}, "rollout_config": {"n": 8}}}),
    ],
)
def test_a_section_of_other_things_is_no_misspelling(name: str, tree: dict[str, object]) -> None:
    assert len(get_trainer(name).settings(tree)[0]) == 1


def test_settings_at_another_place_are_pointed_at() -> None:
    tree = {"trainer": {"rollout_correction": {"rollout_is": "token"}}}
    assert get_trainer("verl").settings(tree)[1] == (
        "no setting of verl is given: its defaults; trainer.rollout_correction.rollout_is is not where it looks, which "
        "is under algorithm.rollout_correction",
    )


@pytest.mark.parametrize(
    "source",
    [
        "train_infer_correction.filters.0.enabled=true train_infer_correction.filters.0.ratio_high=1.1",
        "filters[0].enabled=true,filters[0].ratio_high=1.1",
        "+train_infer_correction.filters=[{enabled:true,ratio_high:1.1}]",
        "'train_infer_correction.filters=[{enabled: true, ratio_high: 1.1}]' 'lr=1e-6'",
        "filters=[{enabled:true,ratio_high:1.5}],filters.0.ratio_high=1.1",
        "python start.py --config_path x train_infer_correction.filters[0].enabled=true "
        "train_infer_correction.filters[0].ratio_high=1.1",
    ],
)
def test_hydra_sets_the_entries_of_a_list(source: str) -> None:
    filters = [{"enabled": True, "ratio_high": 1.1}]
    assert get_trainer("roll").configure(source) == get_trainer("roll").configure({"filters": filters})


def test_an_entry_of_a_list_without_the_one_before() -> None:
    with pytest.raises(
        UsageError, match=r"filters\.1 without filters\.0; give the entries of the list in order, from 0"
    ):
        get_trainer("roll").configure("filters.1.enabled=true")


GIVEN = {"rollout_is": "token", "rollout_rs": "token_k1,seq_max_k2", "rollout_rs_threshold": "0.5_2.0,2.5"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "overrides.yaml",
            "- algorithm.adv_estimator=grpo\n- +algorithm.rollout_correction.rollout_is=token\n"
            '- "algorithm.rollout_correction.rollout_rs=token_k1,seq_max_k2"\n'
            "- algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0,2.5\n",
        ),
        (
            "overrides.txt",
            "# of the run\nrollout_is=token\nrollout_rs=token_k1,seq_max_k2\n\nrollout_rs_threshold=0.5_2.0,2.5\n",
        ),
        (
            "config.yaml",
            "wandb_version: 1\n_wandb: {desc: null, value: {cli_version: 1}}\ntrainer: {value: {nnodes: 1}}\n"
            "algorithm:\n  desc: null\n  value:\n    gamma: 1.0\n    rollout_correction:\n      rollout_is: token\n"
            "      rollout_rs: token_k1,seq_max_k2\n      rollout_rs_threshold: 0.5_2.0,2.5\n",
        ),
    ],
)
def test_what_hydra_and_wandb_leave_of_a_run(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert get_trainer("verl").settings(tmp_path / name) == (GIVEN, ())


@pytest.mark.parametrize(
    ("name", "source", "settings"),
    [
        ("open-instruct", "--no_use_rho_correction", {"use_rho_correction": False}),
        ("trl", "--no-vllm-importance-sampling-correction --lr 1", {"vllm_importance_sampling_correction": False}),
        ("verl", "rollout_is = token, rollout_is_threshold = 3", {"rollout_is": "token", "rollout_is_threshold": 3}),
        ("verl", "rollout_is: token", {"rollout_is": "token"}),
        ("verl", "algorithm: {rollout_correction: {rollout_is: token}}", {"rollout_is": "token"}),
    ],
)
def test_what_is_typed_by_hand(name: str, source: str, settings: dict[str, object]) -> None:
    assert get_trainer(name).settings(source) == (settings, ())


@pytest.mark.parametrize(
    ("name", "tree", "text"),
    [
        (
            "verl",
            {"algorithm": {"rollout_correction": "${oc.env:X}"}},
            "algorithm.rollout_correction holds '${oc.env:X}'",
        ),
        (
            "verl",
            {"rollout_correction": ["rollout_is"]},
            "rollout_correction holds ['rollout_is'], not settings by name",
        ),
        ("prime-rl", {"trainer": {"loss": "custom"}}, "trainer.loss holds 'custom', not settings by name"),
        ("roll", {"train_infer_correction": True}, "train_infer_correction holds True, not settings by name"),
    ],
)
def test_a_section_that_holds_no_settings_is_an_error(name: str, tree: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        get_trainer(name).settings(tree)
    assert text in str(caught.value)


def test_keywords_of_a_script_in_python(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "from trl import GRPOConfig\nargs = GRPOConfig(\n    output_dir='x', seed=SEED,\n"
        "    vllm_importance_sampling_mode='token_mask',\n    vllm_importance_sampling_clip_max=2.5,\n)\n"
    )
    assert get_trainer("trl").settings(path) == (
        {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_max": 2.5},
        (),
    )
    path.write_text("GRPOConfig(vllm_importance_sampling_mode=\n")
    assert get_trainer("trl").settings(path)[0] == {}


DOCUMENTS = {
    "verl": "algorithm: {rollout_correction: {rollout_is: token}}",
    "trl": "vllm_importance_sampling_mode: token_mask",
    "slime": "use_tis: true",
    "nemo-rl": "loss_fn: {use_importance_sampling_correction: true}",
    "areal": "actor: {use_decoupled_loss: true, m2_threshold: 0.04}",
}


@pytest.mark.parametrize("head", ["---\n", "# of the run\n---\n", "--- # base\n", "\n---   \n", "%YAML 1.2\n---\n"])
@pytest.mark.parametrize("suffix", ["yaml", "cfg"])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_line_that_begins_a_document_is_no_flag(name: str, suffix: str, head: str, tmp_path: Path) -> None:
    path, plain = tmp_path / f"a.{suffix}", tmp_path / "plain.yaml"
    path.write_text(f"{head}{DOCUMENTS[name]}\n")
    plain.write_text(DOCUMENTS[name])
    assert get_trainer(name).settings(path) == get_trainer(name).settings(plain)
    assert get_trainer(name).settings(plain)[0] != {}
    path.write_text(f"{head}{DOCUMENTS[name]}\n---\nuse_tis: false\n")
    with pytest.raises(UsageError, match="expected a single document"):
        load_config(path)


def test_a_list_of_overrides_may_begin_a_document(tmp_path: Path) -> None:
    path = tmp_path / "overrides.yaml"
    path.write_text("---\n- algorithm.rollout_correction.rollout_is=token\n")
    assert get_trainer("verl").settings(path) == ({"rollout_is": "token"}, ())


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("x = {a = 0.5_2, b = 1_2}", {"x": {"a": "0.5_2", "b": "1_2"}}),
        ("x.y = {a=1_2}", {"x": {"y": {"a": "1_2"}}}),
        ("x = [0.5_2, 1_2,3 ]", {"x": ["0.5_2", "1_2", 3]}),
        ("x = [{a = true, b = 1_2}, {b=-1_2}]", {"x": [{"a": True, "b": "1_2"}, {"b": "-1_2"}]}),
        ("x = [\n  [1_2],\n  [0.5_2]]\ny = 1_2.0_3 # z = 1_2", {"x": [["1_2"], ["0.5_2"]], "y": "1_2.0_3"}),
        ("x = 1e-1_1e1", {"x": "1e-1_1e1"}),
        (
            '1_2 = 3\na = \'1_2\'\nb = "c = 1_2"  # "\n[1_3]\nc = 1_2',
            {"1_2": 3, "a": "1_2", "b": "c = 1_2", "1_3": {"c": "1_2"}},
        ),
        ("x = \"\"\"\ny = 1_2\n[1_2]\n\"\"\"\nz = '''a 1_2'''", {"x": "y = 1_2\n[1_2]\n", "z": "a 1_2"}),
    ],
)
def test_no_underscore_of_toml_is_passed_over(text: str, tree: object, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    assert load_config(path).tree == tree


IN_TABLES = {
    "verl": (
        "[algorithm]\nrollout_correction = {{rollout_is = 'token', rollout_is_threshold = {}}}\n",
        "rollout_is_threshold",
    ),
    "roll": ("[train_infer_correction]\nfilters = [{{enabled = true, ratio_high = {}}}]\n", "ratio_high"),
    "openrlhf": (
        "[algo.advantage]\nis_correction_enable = true\nis_correction_threshold = [0.5, {}]\n",
        "is_correction_threshold",
    ),
    "areal": ("[actor]\nuse_decoupled_loss = true\nrejection_sampling = {{level = 'token', upper = {}}}\n", "upper"),
    "prime-rl": ("[trainer]\nloss = {{dppo_mask_high = {}}}\n", "dppo_mask_high"),
}  # fmt: skip


@pytest.mark.parametrize("value", ["1_2", "0.5_2", "1_000"])
@pytest.mark.parametrize("name", IN_TABLES)
def test_a_band_inside_a_table_of_toml_is_no_number(name: str, value: str, tmp_path: Path) -> None:
    text, key = IN_TABLES[name]
    path = tmp_path / "a.toml"
    path.write_text(text.format(value))
    if name == "verl" and value != "1_000":
        lower, upper = value.split("_")
        assert f"token weight 0 outside [{lower}, {upper}]" in config_text(name, path)
    else:
        with pytest.raises(ConfigError, match=rf"{key}.*'{value}'"):
            config_text(name, path)
    path.write_text(text.format("2.5"))
    assert get_trainer(name).configure(path) is not None
