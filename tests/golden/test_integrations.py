"""The GitHub Action and the pre-commit hook, as far as they can be run here."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rollout_audit.dumps.formats.table import SUFFIXES

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
INSTALL, CHECK = (step["run"] for step in ACTION["runs"]["steps"])


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
    variables = {
        "DUMP": f"{dump}\n",
        "GOLDEN": "golden.json",
        "JUNIT": "out/check.xml",
        "ARGUMENTS": "--all\n--limit\n9\n",
    }
    result = bash(CHECK, tmp_path, **variables, GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"))
    assert result.returncode == 1
    assert "::error file=golden.json,line=" in result.stderr
    assert "limit is 9" in result.stdout
    assert "| worse | steps@pooled |" in (tmp_path / "summary.md").read_text()
    assert "<failure" in (tmp_path / "out" / "check.xml").read_text()


def test_the_action_passes_where_nothing_changed(dump: Path, golden: Path, tmp_path: Path) -> None:
    """Several dumps a line, one that begins with a dash; lines end as on Windows; no other input."""
    for file in dump.iterdir():
        shutil.copy(file, f"-{file.name} $HOME `x` 'y\"")
    named = "".join(f"{path.name}\r\n" for path in sorted(tmp_path.glob("-*")))
    Path("golden $HOME.json").write_text(golden.read_text())
    variables = {"DUMP": named, "GOLDEN": "golden $HOME.json", "JUNIT": "", "ARGUMENTS": "--input-format=parquet"}
    result = bash(CHECK, tmp_path, **variables, GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"))
    assert result.stdout.splitlines()[0].startswith("WARN  not the dump that the golden file was made of: ")
    assert "OK  " in result.stdout.splitlines()[1]
    assert result.returncode == 0


def test_the_action_tells_what_stops_it(tmp_path: Path) -> None:
    variables = {"DUMP": "nowhere", "GOLDEN": "none.json", "JUNIT": "check.xml", "ARGUMENTS": ""}
    result = bash(CHECK, tmp_path, **variables, GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"))
    assert result.returncode == 2
    assert "nowhere: no such file or folder" in Path("check.xml").read_text()
    assert "could not tell: nowhere" in (tmp_path / "summary.md").read_text()
    none = bash(CHECK, tmp_path, **(variables | {"DUMP": ""}), GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"))
    assert none.returncode == 2
    assert "missing argument 'DUMP...'" in none.stderr.lower().replace("dump...", "DUMP...")


@pytest.mark.parametrize(
    ("asked", "lines", "expected"),
    [
        ("self", "", ["/the action"]),
        ("rollout-audit==1.2", "--no-deps\n\n--find-links=my wheels\r\n", ["--no-deps", "--find-links=my wheels"]),
    ],
)
def test_the_action_installs(asked: str, lines: str, expected: list[str], tmp_path: Path) -> None:
    result = bash(INSTALL, tmp_path, INSTALL=asked, PIP_ARGUMENTS=lines, GITHUB_ACTION_PATH="/the action")
    assert result.returncode == 0
    given = result.stdout.splitlines()
    assert given[:3] == ["-m", "pip", "install"]
    assert given[5:] == [*expected, *([] if asked == "self" else [asked])]


@pytest.mark.parametrize("word", ["mapfile", "readarray", "declare -A", ",,}", "^^}", "|&", "&>>"])
def test_the_action_keeps_to_the_bash_of_macos(word: str) -> None:
    """Of its version 3.2."""
    assert not [step for step in ACTION["runs"]["steps"] if word in step["run"]]


def test_inputs_reach_the_shell_through_variables_alone() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
        named = [value.removeprefix("${{ inputs.").removesuffix(" }}") for value in step["env"].values()]
        assert set(named) <= set(ACTION["inputs"])


def test_the_hook_holds_a_dump_to_its_golden_file(dump: Path, golden: Path, tmp_path: Path) -> None:
    """As pre-commit runs it: the entry, then `args`; no file names."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["language"], hook["pass_filenames"]) == ("python", False)
    line = f"{hook['entry']} {shlex.join([str(dump), '--golden', 'golden.json'])}"
    assert bash(line, tmp_path).returncode == 0
    golden.write_text(golden.read_text().replace('"steps@pooled": 2', '"steps@pooled": 3'))
    failed = bash(line, tmp_path)
    assert failed.returncode == 1
    assert "steps@pooled" in failed.stdout


@pytest.mark.parametrize("file", ["g.json", "rollout-audit.toml", "run.yaml", *(f"d/0{suffix}" for suffix in SUFFIXES)])
def test_the_hook_runs_where_anything_of_a_check_changes(file: str) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert re.search(hook["files"], file)


def test_the_project_holds_its_own_samples_to_their_golden_files(tmp_path: Path) -> None:
    """The line of the Makefile that `make test` runs, with the command of this checkout."""
    bash("true", tmp_path)  # makes the command
    (tmp_path / "venv").mkdir()
    (tmp_path / "bin").rename(tmp_path / "venv" / "bin")
    for name in (".made", ".installed"):
        (tmp_path / "venv" / name).touch()
    command = ["make", "--always-make", "--dry-run", "test", f"VENV={tmp_path / 'venv'}"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert f"{tmp_path / 'venv'}/bin/rollout-audit check sample_data/$name --golden $file" in planned
    command = ["make", "golden", f"VENV={tmp_path / 'venv'}", "--old-file", f"{tmp_path / 'venv' / '.installed'}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    samples = sorted(path.stem for path in (ROOT / "sample_data" / "golden").iterdir())
    assert [line.split("/")[1].split(" ")[0] for line in lines if line.startswith("rollout-audit")] == samples
    assert sum(line.startswith("OK  ") for line in lines) == len(samples)
