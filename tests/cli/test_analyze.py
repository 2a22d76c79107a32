from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq
import pytest

from rollout_audit.audit.report import Report
from rollout_audit.cli.options import CHUNK_TOKENS
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS


def test_the_main_job(run, dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    result = run("analyze", dump, "--out", out, "--no-plots")
    assert result.code == 0
    assert result.err == f"wrote {out} (5 files)\n"
    lines = result.out.splitlines()
    assert lines[0].split()[0] in {"OK", "WARN", "CRITICAL"}
    assert lines[1].startswith("π is old_log_probs, μ is rollout_log_probs (decoupled)")
    for title in ("Steps", "Mismatch, whole dump", "Corrections, whole dump", "Worst tokens, by |d|"):
        assert title in lines
    assert "\x1b" not in result.out


def test_tells_the_story_of_staleness(run, dump: Path, tmp_path: Path) -> None:
    text = run("analyze", dump, "--out", tmp_path / "r", "--no-plots").out
    story = next(line for line in text.splitlines() if line.startswith("Mean |d| by age of the sampler"))
    figures = [float(part.split("→")[1].strip(" .")) for part in story.split(":")[1].split(". ")[0].split(",")]
    assert figures == sorted(figures)


def test_names_stand_whole_and_numbers_line_up(run, dump: Path, tmp_path: Path) -> None:
    lines = run("analyze", dump, "--out", tmp_path / "r", "--no-plots").out.splitlines()
    start = lines.index("Mismatch, whole dump")
    rows = lines[start + 4 : start + 10]
    assert [row.split()[0] for row in rows[:3]] == ["kl_k1", "kl_k2", "kl_k3"]
    assert len({len(row) for row in rows}) == 1
    assert any(line.startswith("bypass_pg_geo_rs_token_tis ") for line in lines)


def test_json_is_the_report_and_follows_the_schema(run, dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    printed = run("analyze", dump, "--out", out, "--no-plots", "--format", "json").out
    assert printed == (out / "report.json").read_text(encoding="utf-8")
    jsonschema.validate(json.loads(printed), json.loads(run("schema").out))


def test_csv_and_json_lines_hold_every_figure(run, dump: Path, tmp_path: Path) -> None:
    arguments = ("analyze", dump, "--out", tmp_path / "r", "--no-plots", "-q", "--format")
    rows = list(csv.DictReader(io.StringIO(run(*arguments, "csv").out)))
    lines = [json.loads(line) for line in run(*arguments, "jsonl").out.splitlines()]
    assert len(rows) == len(lines)
    assert [row["metric"] for row in rows] == [line["metric"] for line in lines]
    first = next(r for r in lines if r["step"] == 1 and r["metric"] == "kl_k3" and r["subject"] == "engine")
    report = Report.model_validate_json((tmp_path / "r" / "report.json").read_text())
    assert first["value"] == report.steps[1].metrics["kl_k3"]


def test_quiet_says_nothing_on_stderr(run, dump: Path, tmp_path: Path) -> None:
    assert run("analyze", dump, "--out", tmp_path / "r", "--no-plots", "-q").err == ""


def test_parquet_tables_hold_the_rows_and_the_steps(run, dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    run("analyze", dump, "--out", out, "--no-plots", "-q")
    sequences = pq.read_table(out / "sequences.parquet")
    steps = pq.read_table(out / "steps.parquet")
    assert sequences.num_rows == 48
    assert {"uid", "file", "row", "step", "valid_tokens", "sum_d", "reward"} <= set(sequences.column_names)
    assert steps.column_names == ["step", "subject", "stage", "metric", "value", "reason"]
    assert set(steps["step"].to_pylist()) == {0, 1, 2}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_input_gives_the_same_bytes(
    workers: int, run, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for out, threads in (("a", 1), ("b", workers)):
        run("analyze", dump, "--out", tmp_path / out, "--no-plots", "-q", "--workers", threads)
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == ["report.json", "sequences.parquet", "states.safetensors", "steps.parquet", "sweep.parquet"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("gates", "code"),
    [
        (["critical"], 0),
        (["kl_k3 > 1e-9"], 1),
        (["kl_k3@2 > 100"], 0),
        (["kl_k3@any-step>1e-9", "critical"], 1),
        (["kl_k1 > -1e9"], 1),
        (["decoupled_token_is:ess_seq > 0.5"], 2),
        (["decoupled_token_is:ess_seq > 0.5", "kl_k3 > 1e-9"], 1),
    ],
)
def test_gates_set_the_exit_code(gates: list[str], code: int, run, dump: Path, tmp_path: Path) -> None:
    options = [word for gate in gates for word in ("--fail-on", gate)]
    result = run("analyze", dump, "--out", tmp_path / "r", "--no-plots", "-q", *options)
    assert result.code == code
    assert sum(line.startswith("gate ") for line in result.out.splitlines()) == len(gates)
    assert (tmp_path / "r" / "report.json").exists()


def test_options_come_from_variables(run, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_AUDIT_OUT", str(tmp_path / "from-env"))
    monkeypatch.setenv("ROLLOUT_AUDIT_FORMAT", "json")
    monkeypatch.setenv("ROLLOUT_AUDIT_NO_PLOTS", "1")
    monkeypatch.setenv("ROLLOUT_AUDIT_FAIL_ON", "kl_k3>1e-9")
    monkeypatch.setenv("ROLLOUT_AUDIT_PRESET", "decoupled_seq_is")
    result = run("analyze", dump, "--steps", "1:2")
    assert result.code == 1
    report = json.loads(result.out)
    assert report["settings"]["reference"] == "decoupled_seq_is"
    assert [step["step"] for step in report["steps"]] == [1]
    assert (tmp_path / "from-env").is_dir()


def test_a_trainers_own_configuration_is_the_reference(run, dump: Path, tmp_path: Path) -> None:
    config = '{"rollout_is": "sequence", "rollout_is_threshold": 3.0}'
    options = ("--no-plots", "--format", "json", "--trainer", "verl", "--config", config)
    report = json.loads(run("analyze", dump, "--out", tmp_path / "r", *options).out)
    assert report["settings"]["reference"] == "verl-config"
    assert report["corrections"][0]["formula"] == "sequence weight capped at 3"
    assert report["trainer"]["reads"].startswith("verl 2026-08 reads: sequence weight capped at 3")
    assert "rollout_corr/rollout_is_mean" in report["trainer"]["metrics"]


def test_limit_and_mode(run, dump: Path, tmp_path: Path) -> None:
    options = ("--no-plots", "--format", "json", "--limit", "5", "--mode", "bypass")
    report = json.loads(run("analyze", dump, "--out", tmp_path / "r", *options).out)
    assert report["counts"]["sequences"] == 5
    assert report["settings"]["training_column"] == "log_probs"


def test_an_older_report_is_replaced(run, dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    run("analyze", dump, "--out", out, "--no-plots", "-q")
    (out / "plots").mkdir()
    (out / "plots" / "old.png").write_bytes(b"")
    assert run("analyze", dump, "--out", out, "--no-plots", "-q").code == 0
    assert sorted(p.name for p in out.iterdir()) == [
        "report.json",
        "sequences.parquet",
        "states.safetensors",
        "steps.parquet",
        "sweep.parquet",
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_chunk_default_is_that_of_the_reader() -> None:
    assert CHUNK_TOKENS == DEFAULT_CHUNK_TOKENS


def test_the_help_names_every_trainer() -> None:
    from rollout_audit.cli.options import TRAINERS_HELP
    from rollout_audit.trainers.registry import TRAINERS

    assert f"One of {', '.join(TRAINERS)}." == TRAINERS_HELP
