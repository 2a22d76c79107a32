"""The GitHub Action and the pre-commit hook, as far as they can be run here."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from rollout_audit.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


def bash(script: str, tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A step of the action, with the command of this checkout and pip replaced by what shows its arguments."""
    (folder := tmp_path / "bin").mkdir(exist_ok=True)
    for name, line in (
        ("rollout-audit", f'PYTHONPATH={shlex.quote(str(ROOT))} exec {sys.executable} -m rollout_audit "$@"'),
        ("python", 'printf "%s\\n" "$@"'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin", **variables}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)


def test_the_action_checks_annotates_and_summarises(dump: Path, golden: Path, tmp_path: Path) -> None:
    golden.write_text(golden.read_text().replace('"steps@pooled": 2', '"steps@pooled": 3'))
    install, check = ACTION["runs"]["steps"]
    variables = {
        "DUMP": f"{dump}\n",
        "GOLDEN": "golden.json",
        "JUNIT": "out/check.xml",
        "ARGUMENTS": "--all\n--limit\n9\n",
    }
    result = bash(check["run"], tmp_path, **variables, GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"))
    assert result.returncode == 1
    assert "::error file=golden.json,line=" in result.stderr
    assert "limit is 9" in result.stdout
    assert "| worse | steps@pooled |" in (tmp_path / "summary.md").read_text()
    assert "<failure" in (tmp_path / "out" / "check.xml").read_text()
    own = bash(install["run"], tmp_path, INSTALL="self", PIP_ARGUMENTS="", GITHUB_ACTION_PATH="/the action")
    assert own.stdout.splitlines()[-1] == "/the action"
    assert own.returncode == 0


def test_inputs_reach_the_shell_through_variables_alone() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
        named = [value.removeprefix("${{ inputs.").removesuffix(" }}") for value in step["env"].values()]
        assert set(named) <= set(ACTION["inputs"])


def test_the_hook_runs_a_command_that_exists() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, command = hook["entry"].split()
    assert program == "rollout-audit"
    assert command in {function.__name__ for function, _, _ in COMMANDS}
    assert hook["pass_filenames"] is False
