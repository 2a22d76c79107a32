"""`rollout-audit analyze --log`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rollout_audit as ra


@pytest.fixture
def log(dump: Path, tmp_path: Path) -> Path:
    by_step = ra.trainer_metrics(ra.open_dump(dump), "verl", {"rollout_is": "token"}, per_step=True)
    rows = [{"step": s, "data": {**m, "rollout_corr/kl": m["rollout_corr/kl"] + 0.01 * s}} for s, m in by_step.items()]
    (tmp_path / "run.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path / "run.jsonl"


def test_table_report_and_picture(dump: Path, log: Path, tmp_path: Path, run: Any) -> None:
    out = tmp_path / "r"
    trainer = ("--trainer", "verl", "--config", "rollout_is=token")
    result = run("analyze", dump, *trainer, "--log", log, "--out", out, "--no-sweep")
    assert result.code == 0, result.err
    assert "The log departs from the dump first at step 1 in rollout_corr/kl: logged " in result.out
    assert "Log of verl 2026-08 beside the dump" in result.out
    assert (out / "plots" / "logged.png").stat().st_size > 10_000
    found = json.loads((out / "report.json").read_text())["log"]
    assert (found["first_step"], found["departing"], found["status"]) == (1, 2, "departs")


def test_several_files_come_from_the_variable(
    dump: Path, log: Path, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = tmp_path / "run-x-tag-extra.csv"
    more.write_text("Wall time,Step,Value\n1,0,2\n")
    monkeypatch.setenv("ROLLOUT_AUDIT_LOG", f"{log};{more}")
    arguments = ("--no-sweep", "--no-plots", "--format", "json", "--out", tmp_path / "r")
    found = json.loads(run("analyze", dump, "--trainer", "verl", *arguments).out)["log"]
    assert found["files"] == ["run.jsonl", "run-x-tag-extra.csv"]
    assert "extra" in found["unmatched_keys"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--log", "LOG"], "--log needs --trainer"),
        (["--trainer", "verl", "--log", "none.csv", "--quiet"], "--log none.csv: no such file"),
        (["--trainer", "verl", "--log", "LOG", "--log-tolerance", "2", "--quiet"], "--log-tolerance 2: give a share"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    arguments: list[str], message: str, dump: Path, log: Path, tmp_path: Path, run: Any
) -> None:
    given = [str(log) if one == "LOG" else one for one in arguments]
    result = run("analyze", dump, *given, "--no-sweep", "--no-plots", "--out", tmp_path / "r")
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not (tmp_path / "r").exists()
