"""--input-format, --layout and --join on every reading command."""

from __future__ import annotations

import inspect as introspection
import json
from pathlib import Path
from typing import Any

import pytest

from rollout_audit.cli.app import COMMANDS

FORMATS = Path(__file__).resolve().parents[1] / "formats"
READING = [function.__name__ for function, *_ in COMMANDS if "dumps" in introspection.signature(function).parameters]


@pytest.mark.parametrize("command", READING)
def test_every_reading_command_has_them(command: str, run: Any) -> None:
    text = run(command, "--help").out
    for option in ("--input-format", "--layout", "--join", "--map"):
        assert option in text


@pytest.mark.parametrize("name", ["nemo_rl", "prime_rl", "slime", "miles_cp2", "trl"])
def test_inspect_shows_the_format_of_each_file(name: str, run: Any) -> None:
    found = json.loads(run("inspect", FORMATS / name, "--format", "json").out)["files"]
    expected = {
        "nemo_rl": "nemo-rl",
        "prime_rl": "prime-rl",
        "slime": "slime",
        "miles_cp2": "miles",
        "trl": "safetensors",
    }
    assert {file["format"] for file in found} == {expected[name]}


def test_layout_and_join_reach_the_figures(run: Any) -> None:
    roll = run("metrics", FORMATS / "roll", "--trainer", "verl", "--layout", "roll", "--format", "json")
    assert (roll.code, roll.err) == (0, "verl 2026-08 reads: no correction\n")
    slime = FORMATS / "slime/grpo_run"
    alone = run("metrics", slime / "train_data", "--trainer", "verl", "--format", "json")
    arguments = ("metrics", slime / "rollout_data", "--join", slime / "train_data", "--trainer", "verl")
    assert run(*arguments, "--format", "json").out == alone.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["roll"], "Then --layout roll; else cut the mask"),
        (["areal"], "--layout areal if so, --layout areal-rollout"),
        (["roll", "--layout", "rool"], "did you mean 'roll'?"),
        (["nemo_rl", "--input-format", "nemo"], "did you mean 'nemo-rl'?"),
        (["open_instruct"], "add them with --join DUMP"),
        (["slime/grpo_run/rollout_data", "--join", str(FORMATS / "trl")], "no uid to join by"),
    ],
)
def test_what_cannot_be_read_is_one_line(arguments: list[str], message: str, run: Any) -> None:
    result = run("metrics", FORMATS / arguments[0], *arguments[1:], "--trainer", "verl")
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_variables_give_them_too(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_AUDIT_LAYOUT", "areal")
    assert run("inspect", FORMATS / "areal").code == 0
    monkeypatch.setenv("ROLLOUT_AUDIT_INPUT_FORMAT", "npz")
    assert "not a .npz archive" in run("inspect", FORMATS / "areal/train_batch.safetensors").err
