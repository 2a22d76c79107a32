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


@pytest.mark.parametrize(
    ("name", "offset", "text"),
    [
        ("foo_bar.csv", 0, "the file's name has to end with that of a metric: foo_bar"),
        ("tb_rollout_corr_kl.csv", 7, "no metric has a value at the same step in log and dump. With --log-offset"),
    ],
)
def test_a_log_of_which_nothing_is_compared_is_no_ok(
    name: str, offset: int, text: str, dump: Path, tmp_path: Path, run: Any
) -> None:
    """The report is there all the same; a gate that holds is told first."""
    by_step = ra.trainer_metrics(ra.open_dump(dump), "verl", {"rollout_is": "token"}, per_step=True)
    rows = [f"1.0,{step + offset},{metrics['rollout_corr/kl']}" for step, metrics in by_step.items()]
    (tmp_path / name).write_text("\n".join(["Wall time,Step,Value", *rows]))
    out = tmp_path / "r"
    given = ("analyze", dump, "--trainer", "verl", "--config", "rollout_is=token", "--log", tmp_path / name)
    result = run(*given, "--no-sweep", "--no-plots", "--out", out)
    assert result.code == 2
    assert text in result.err.splitlines()[-1]
    assert text in result.out
    assert (out / "report.json").exists()
    assert run(*given, "--no-sweep", "--no-plots", "--out", out, "--fail-on", "kl_k3 > 0").code == 1


def test_the_export_of_one_tag_is_told_by_the_end_of_its_name(dump: Path, tmp_path: Path, run: Any) -> None:
    by_step = ra.trainer_metrics(ra.open_dump(dump), "verl", {"rollout_is": "token"}, per_step=True)
    rows = [f"1.0,{step},{metrics['rollout_corr/kl']}" for step, metrics in by_step.items()]
    (tmp_path / "tb_rollout_corr_kl.csv").write_text("\n".join(["Wall time,Step,Value", *rows]))
    arguments = ("--log", tmp_path / "tb_rollout_corr_kl.csv", "--no-sweep", "--no-plots", "--format", "json")
    result = run(
        "analyze", dump, "--trainer", "verl", "--config", "rollout_is=token", "--out", tmp_path / "r", *arguments
    )
    found = json.loads(result.out)["log"]
    assert (result.code, found["status"], found["metrics"][0]["metric"]) == (0, "agrees", "rollout_corr/kl")
