"""Settings from dicts, JSON, YAML, TOML and fragments; no loader may read a band as a number."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_audit.errors import UsageError
from rollout_audit.trainers.registry import get_trainer
from rollout_audit.trainers.section import Section
from tests.trainers.reading import read_config

VERL = Section(("algorithm", "rollout_correction"))
WANTED = {"rollout_is": "token", "rollout_is_threshold": "0.5_2.0"}


@pytest.mark.parametrize(
    "tree",
    [
        WANTED,
        {"rollout_correction": WANTED},
        {"algorithm": {"rollout_correction": WANTED, "gamma": 1.0}, "trainer": {}},
        {"algorithm.rollout_correction": WANTED},
        {f"algorithm.rollout_correction.{key}": value for key, value in WANTED.items()},
    ],
)
def test_the_section_is_found(tree: dict[str, object]) -> None:
    assert read_config(tree, VERL) == WANTED


def test_a_key_that_is_no_text_is_reported_as_text() -> None:
    assert read_config({"algorithm": {"rollout_correction": {1: 2}}}, VERL) == {"1": 2}


def test_an_empty_section_is_no_settings() -> None:
    assert read_config({"algorithm": {"rollout_correction": None}}, VERL) == {}


def test_a_shared_section_gives_only_keys_of_the_prefix() -> None:
    tree = {"algorithm": {"gamma": 1.0, "rollout_is_level": "token"}}
    assert read_config(tree, Section(("algorithm",), prefix="rollout_is")) == {"rollout_is_level": "token"}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-4", 1e-4),
        ("1.0e-4", 1e-4),
        ("1.e-4", 1e-4),
        (".5", 0.5),
        ("2", 2),
        ("010", 10),
        ("-3", -3),
        ("0.5_2.0", "0.5_2.0"),
        ("0.5_2", "0.5_2"),
        ("1_2", "1_2"),
        ("0.999_1.001", "0.999_1.001"),
        ("1:30", "1:30"),
        ("null", None),
        ("true", True),
        ("token", "token"),
    ],
)
def test_yaml_scalars(tmp_path: Path, written: str, value: object) -> None:
    path = tmp_path / "mis.yaml"
    path.write_text(f"threshold: {written}\n")
    got = read_config(path)["threshold"]
    assert got == value
    assert type(got) is type(value)
    assert read_config(f"threshold={written}") == {"threshold": value}


@pytest.mark.parametrize(
    ("written", "value"),
    [("1_2", "1_2"), ("0.5_2", "0.5_2"), ("0.5_2.0", "0.5_2.0"), ("2.0", 2.0), ("1e-4", 1e-4)],
)
def test_toml_scalars(tmp_path: Path, written: str, value: object) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"[algorithm.rollout_correction]\nthreshold = {written}  # a band\n")
    assert read_config(str(path), VERL) == {"threshold": value}


def test_json_text_and_file(tmp_path: Path) -> None:
    text = '{"algorithm": {"rollout_correction": {"rollout_is": null, "rollout_is_threshold": 1e-4}}}'
    path = tmp_path / "run.json"
    path.write_text(text)
    assert read_config(text, VERL) == read_config(path, VERL) == {"rollout_is": None, "rollout_is_threshold": 1e-4}


@pytest.mark.parametrize(
    "text",
    [
        "rollout_rs=token_k1,seq_max_k2,rollout_rs_threshold=0.5_2.0,2.5",
        "rollout_rs=token_k1,seq_max_k2 rollout_rs_threshold='0.5_2.0,2.5'",
        "algorithm.rollout_correction.rollout_rs=token_k1,seq_max_k2 "
        "+algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0,2.5",
    ],
)
def test_fragments_keep_comma_lists(text: str) -> None:
    wanted = {"rollout_rs": "token_k1,seq_max_k2", "rollout_rs_threshold": "0.5_2.0,2.5"}
    assert read_config(text, VERL) == wanted


def test_an_empty_file_is_no_settings(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing\n")
    assert read_config(path) == {}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "nowhere.yaml",
            "configuration 'nowhere.yaml': no such file; give a YAML, JSON or TOML file, a JSON object or "
            "key=value,key=value",
        ),
        (
            "{nonsense",
            "configuration '{nonsense': Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        ("token,rollout_is=token", "configuration 'token,rollout_is=token': expected key=value,key=value"),
    ],
)
def test_refused_sources(source: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_config(source)
    assert str(caught.value) == text


def test_refused_files(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text("- token\n")
    with pytest.raises(UsageError, match="holds a list, not settings by name"):
        read_config(path)
    path.write_text("a: [1,\n")
    with pytest.raises(UsageError, match="while parsing a flow"):
        read_config(path)
    with pytest.raises(UsageError, match="a folder; give the file in it that the run used"):
        read_config(tmp_path)


SCRIPT = """#!/bin/bash
export N_GPUS=8
python3 -m verl.trainer.main_ppo \\
  algorithm.adv_estimator=grpo \\
  algorithm.rollout_correction.rollout_is=token +algorithm.rollout_correction.rollout_rs=token_k1 \\
  algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0 trainer.n_gpus_per_node=8
"""


def test_a_launch_script_of_hydra_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    given, _ = get_trainer("verl").settings(tmp_path / "run.sh")
    assert given == {"rollout_is": "token", "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}


def test_flags_are_flags_in_any_file_and_under_comments(tmp_path: Path) -> None:
    (tmp_path / "pasted.yaml").write_text("# slime\n--use-tis --tis-clip 3.0\n")
    given, _ = get_trainer("slime").settings(tmp_path / "pasted.yaml")
    assert given == {"custom_tis_function_path": None, "use_tis": True, "tis_clip": 3.0}


def test_a_section_under_almost_its_name_is_an_error() -> None:
    with pytest.raises(UsageError, match="unknown section 'rollout_corection'; did you mean 'rollout_correction'"):
        get_trainer("verl").settings({"algorithm": {"rollout_corection": {"rollout_is": "token"}}})


@pytest.mark.parametrize("nest", [lambda s: s, lambda s: {"algorithm": {**s, "adv_estimator": "grpo"}}])
def test_verl_of_october_2025_is_understood(nest) -> None:
    old = {
        "rollout_is": True,
        "rollout_is_level": "sequence",
        "rollout_is_mode": "truncate",
        "rollout_is_threshold": 3.0,
    }
    given, notes = get_trainer("verl").settings(nest(old))
    assert given == {"rollout_is": "sequence", "rollout_is_threshold": 3.0}
    assert any("rollout_is_level" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"rollout_is": "token"}'),
        ("a.yaml", "rollout_is: token\n"),
        ("a.toml", 'rollout_is = "token"\n'),
        ("a.sh", "python train.py --rollout-is token\n"),
    ],
)
def test_a_byte_order_mark_is_passed_over(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f"\ufeff{text}", encoding="utf-8")
    assert read_config(tmp_path / name)["rollout_is"] == "token"
