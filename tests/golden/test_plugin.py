"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = "rollout_audit.pytest_plugin"
TESTS = """
import sys
from pathlib import Path

import pytest

HEAVY = sorted({"torch", "matplotlib", "pyarrow", "numba"} & set(sys.modules))


def test_nothing_heavy_was_loaded_at_start():
    assert HEAVY == []


def test_engines_agree(rollout_audit_check):
    result = rollout_audit_check(Path(DUMP), "golden.json")
    assert result.count("worse") == 0


def test_engines_agree_on_each_file(rollout_audit_check):
    files = sorted(Path(DUMP).iterdir())
    assert len(files) == 2
    result = rollout_audit_check([str(files[0]), *files[1:]], "golden.json")
    assert not result.notes
    assert rollout_audit_check(tuple(files), "golden.json").exit_code == 0


def test_strict(rollout_audit_check):
    rollout_audit_check(DUMP, "golden.json", expect_bitwise=True, limit=3, tolerances={"kl_k3": {"atol": 1.0}})


def test_misspelt(rollout_audit_check):
    rollout_audit_check(DUMP, "golden.json", expect_bitwse=True)


def test_not_there(rollout_audit_check):
    rollout_audit_check("nowhere", "golden.json")
"""


def pytest_run(
    *options: str, site: Path = ROOT, plugin: tuple[str, ...] = ("-p", PLUGIN)
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "-p", "no:cacheprovider"]
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{site}:{ROOT}", "PATH": "/usr/bin:/bin"}
    return subprocess.run([*command, *options], capture_output=True, text=True, env=env, timeout=120)


@pytest.fixture
def project(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_engines.py").write_text(f"DUMP = {str(dump)!r}\n{TESTS}")


@pytest.mark.usefixtures("project")
def test_missing_then_written_then_held_against() -> None:
    asked = ("-k", "heavy or test_engines_agree or there")
    missing = pytest_run(*asked)
    assert "no such golden file; write it with: rollout-audit check" in missing.stdout
    assert "or run pytest with --rollout-audit-update" in missing.stdout
    assert "1 passed" in missing.stdout
    assert "3 passed" in pytest_run("-k", "heavy or agree", "--rollout-audit-update").stdout
    text = Path("golden.json").read_text()
    Path("golden.json").write_text(text.replace('"steps@pooled": 2', '"steps@pooled": 3'))
    held = pytest_run("-k", "agree or there or strict or misspelt").stdout
    assert "steps@pooled worse: 2, expected 3" in held
    assert "first d ≠ 0: step_0.parquet row 0 position 0" in held
    assert "nowhere: no such file or folder" in held
    assert "rollout_audit_check: no option 'expect_bitwse'; did you mean 'expect_bitwise'?" in held
    assert "5 failed" in held
    assert "TypeError" not in held
    assert "golden/check.py" not in held


def test_options_come_from_the_projects_settings(dump: Path, tmp_path: Path) -> None:
    """As for the command: where the columns are, which corrections are run, and what a flag says comes first."""
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    for file in dump.iterdir():
        table = pq.read_table(file)
        pq.write_table(
            table.rename_columns([{"old_log_probs": "mine"}.get(name, name) for name in table.column_names]),
            renamed / file.name,
        )
    own = 'presets = ["token_rs", "seq_rs"]\nsteps = "1:"\n[map]\nold_log_probs = "mine"\n'
    Path("rollout-audit.toml").write_text(f'{own}[[gate]]\nmetric = "kl_k3"\nop = ">"\nvalue = 0\n')
    Path("pytest.ini").write_text("[pytest]\n")
    calls = {"settings": "", "flag": ", presets='decoupled_seq_is', gates=[]"}
    tests = (
        f"def test_{n}(rollout_audit_check):\n    rollout_audit_check('renamed', '{n}.json'{c})\n"
        for n, c in calls.items()
    )
    Path("test_mine.py").write_text("\n".join(tests))
    result = pytest_run("--rollout-audit-update")
    assert "1 failed, 1 passed" in result.stdout
    assert "kl_k3@pooled > 0: holds" in result.stdout
    made = {name: json.loads(Path(f"{name}.json").read_text())["settings"] for name in calls}
    assert [made[name]["presets"] for name in calls] == [["token_rs", "seq_rs"], ["decoupled_seq_is"]]
    assert {settings["steps"] for settings in made.values()} == {"1:"}


def test_the_entry_point_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}


@pytest.mark.parametrize("twice", ["-p", "conftest", "both"])
@pytest.mark.usefixtures("project")
def test_a_plugin_that_is_named_twice_is_loaded_once(twice: str, tmp_path: Path) -> None:
    """By the entry point of an installation, and by -p or `pytest_plugins`: pytest tells them apart by name."""
    (info := tmp_path / "site" / "rollout_audit-9.dist-info").mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rollout-audit\nVersion: 9\n")
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    (info / "entry_points.txt").write_text("[pytest11]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))
    if twice != "-p":
        (tmp_path / "conftest.py").write_text(f"pytest_plugins = [{PLUGIN!r}]\n")
    named = [word for point in points for word in ("-p", point)]  # as pytest does by itself
    named += [] if twice == "conftest" else ["-p", PLUGIN]
    result = pytest_run(*named, "-k", "heavy", "--rollout-audit-update", site=tmp_path / "site", plugin=())
    assert "1 passed" in result.stdout, result.stderr
