from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import rollout_audit as ra

GRID = ("--level", "token,sequence", "--upper", "1.5,2:3:log:3", "--rule", "seq_mean_k1=0.99_1.01,1.05", "--no-joint")
QUICK = ("--no-plots", "-q")


@pytest.fixture(scope="module")
def report(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rollout_audit.__main__ import main

    out = tmp_path_factory.mktemp("reports") / "report"
    assert main(["analyze", str(dump), "--out", str(out), *QUICK, "--format", "json"]) == 0
    return out


def test_sweep_shows_the_strictest_of_each_family_and_writes_a_report(run, dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    result = run("sweep", dump, "--out", out, *GRID, "--no-plots")
    assert result.code == 0
    assert result.err == f"wrote {out} (5 files)\n"
    lines = result.out.splitlines()
    assert lines[0].strip().startswith("48 sequences, ")
    assert "Sweep, 42 configurations, whole dump" in lines
    assert any(line.startswith("token truncate ") and "4 of 4" in line for line in lines)
    assert "All points stand in sweep.parquet." in result.out
    table = pl.read_parquet(out / "sweep.parquet").filter(pl.col("name").is_null())
    assert table.height == 42
    assert sorted(table["upper"].drop_nulls().unique().to_list()) == pytest.approx([1.5, 2, 6**0.5, 3])


def test_every_point_in_every_format_for_programs(run, dump: Path, tmp_path: Path) -> None:
    arguments = ("sweep", dump, "--out", tmp_path / "s", *GRID, *QUICK, "--format")
    tree = json.loads(run(*arguments, "json").out)
    lines = [json.loads(line) for line in run(*arguments, "jsonl").out.splitlines()]
    rows = list(csv.DictReader(io.StringIO(run(*arguments, "csv").out)))
    assert len(tree) == len(rows)
    assert tree == lines
    assert [row["formula"] for row in rows] == [point["formula"] for point in tree]
    assert {point["step"] for point in tree if point["name"]} == {None, 0, 1, 2}
    assert "| family |" in run(*arguments, "markdown").out


def test_from_a_report_the_answer_is_the_same(run, dump: Path, report: Path, tmp_path: Path) -> None:
    direct = json.loads(run("sweep", dump, "--out", tmp_path / "a", *GRID, *QUICK, "--format", "json").out)
    result = run("sweep", "--from", report, "--out", tmp_path / "b", *GRID, *QUICK, "--format", "json")
    assert (result.code, result.err) == (0, "")
    for mine, theirs in zip(json.loads(result.out), direct, strict=True):
        assert mine.keys() == theirs.keys()
        assert mine["formula"] == theirs["formula"]
        assert mine["ess"] == theirs["ess"] or mine["ess"] == pytest.approx(theirs["ess"], rel=1e-9)
    again = run("sweep", "--from", report / "report.json", "--out", tmp_path / "c", *GRID, *QUICK, "--format", "json")
    assert again.out == result.out


def test_pictures_that_need_no_dump_are_drawn(run, report: Path, tmp_path: Path) -> None:
    result = run("sweep", "--from", report, "--out", tmp_path / "b", "--level", "none")
    assert result.code == 0
    assert "was not drawn" not in result.err
    drawn = {path.name for path in (tmp_path / "b" / "plots").iterdir()}
    assert {"sweep.png", "steps.png", "log_ratio.png"} <= drawn
    assert not {"density.png", "profiles.png"} & drawn


def test_every_point_per_step(run, dump: Path, tmp_path: Path) -> None:
    run("sweep", dump, "--out", tmp_path / "s", *GRID, "--per-step-grid", *QUICK)
    table = pl.read_parquet(tmp_path / "s" / "sweep.parquet").filter(pl.col("name").is_null())
    assert table.group_by("step").len().sort("step")["len"].to_list() == [42, 42, 42, 42]


def test_options_may_come_from_variables(run, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = run("sweep", dump, "--out", tmp_path / "a", *GRID, *QUICK, "--format", "csv").out
    for name, value in {
        "LEVEL": "token,sequence",
        "UPPER": "1.5,2:3:log:3",
        "RULE": "seq_mean_k1=0.99_1.01,1.05",
        "JOINT": "0",
        "OUT": str(tmp_path / "b"),
    }.items():
        monkeypatch.setenv(f"ROLLOUT_AUDIT_{name}", value)
    assert run("sweep", dump, *QUICK, "--format", "csv").out == direct
    assert (tmp_path / "b" / "sweep.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "sweep reads either a DUMP or the states of --from REPORT"),
        (("DUMP", "--from", "REPORT"), "give one of them"),
        (("--from", "REPORT", "--steps", "0:2"), "--steps reads a dump; with --from the report has settled it"),
        (("--from", "REPORT", "--out", "REPORT"), "is the report that --from reads"),
        (("--from", "nowhere"), "no such report"),
        (("DUMP", "--upper", "1:10:log"), "--upper '1:10:log': '1:10:log' is no range"),
        (("DUMP", "--upper", "0:10:log:4"), "0 is no positive number"),
        (("DUMP", "--rule", "seq_mean_k1"), "--rule 'seq_mean_k1': expected NAME=GRID"),
        (("DUMP", "--rule", "seq_mean_k4=1"), "did you mean 'seq_mean_k"),
        (("DUMP", "--rule", "token_k1=2", "--rule", "token_k1=3"), "token_k1 already has '2'"),
        (("DUMP", "--level", "word"), "--level 'word': no such level"),
        (("DUMP", "--level", "none", "--rule", "none", "--veto", "none"), "no threshold is left to try"),
        (("DUMP", "--upper", "1.1:9:log:100000"), "more than 200,000"),
    ],
)
def test_what_cannot_be_swept_is_one_line_and_exit_2(
    arguments: tuple[str, ...], message: str, run, dump: Path, report: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    names = {"DUMP": dump, "REPORT": report}
    result = run("sweep", *(names.get(a, a) for a in arguments))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert message in result.err
    assert not list(tmp_path.iterdir())


def test_merge_joins_what_machines_have_read(run, dump: Path, report: Path, tmp_path: Path) -> None:
    parts = [tmp_path / "a", tmp_path / "b"]
    for part, steps in zip(parts, ("0:1", "1:"), strict=True):
        run("analyze", dump, "--out", part, "--steps", steps, *QUICK)
    result = run("merge", *parts, "--out", tmp_path / "m", "--no-plots")
    assert result.code == 0
    assert result.err == f"wrote {tmp_path / 'm'} (5 files)\n"
    assert "Merged from 2 reports." in result.out
    mine, theirs = (json.loads((place / "report.json").read_text()) for place in (tmp_path / "m", report))
    assert mine["overall"] == pytest.approx(theirs["overall"], rel=1e-12)
    assert [worst["uid"] for worst in mine["worst_tokens"]] == [worst["uid"] for worst in theirs["worst_tokens"]]
    swept = run("sweep", "--from", tmp_path / "m", "--out", tmp_path / "s", *GRID, *QUICK)
    assert swept.code == 0
    run("merge", *parts, "--out", tmp_path / "n", "--per-step-grid", *QUICK)
    tables = [pl.read_parquet(tmp_path / name / "sweep.parquet") for name in "mn"]
    points = [table.filter(pl.col("name").is_null())["step"].n_unique() for table in tables]
    assert points == [1, 1 + len({row["step"] for row in mine["steps"]})]


def test_merge_refuses_in_one_line(run, dump: Path, report: Path, tmp_path: Path) -> None:
    twice = run("merge", report, report, "--out", tmp_path / "m")
    assert (twice.code, twice.out) == (2, "")
    assert "would count them twice" in twice.err
    into = run("merge", report, tmp_path, "--out", report)
    assert "is one of the reports to merge" in into.err
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "report.json").write_bytes((report / "report.json").read_bytes())
    old = run("merge", report, tmp_path / "old", "--out", tmp_path / "m")
    assert (old.code, old.err.count("\n")) == (2, 1)
    assert "holds no states; analyze the dump again" in old.err
    assert not (tmp_path / "m").exists()


def test_a_terminal_gets_a_bar_while_the_dump_is_read(dump: Path, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "rollout_audit", "sweep", str(dump), "--out", str(tmp_path / "s"), "--no-plots"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=follower, env={**os.environ, "TERM": "xterm"}) as it:
        os.close(follower)
        out, _ = it.communicate(timeout=120)
    sent = os.read(leader, 65536).decode(errors="replace")  # which may end inside a character
    os.close(leader)
    assert it.returncode == 0
    assert b"Sweep, " in out
    assert "Reading" in sent


VERL = ("--trainer", "verl", "--config", "rollout_is=token,rollout_is_threshold=1.15")


def test_presets_and_the_runs_own_configuration_stand_beside_the_grid(run, dump: Path, tmp_path: Path) -> None:
    """Their figures are those of the weights and masks that the corrections really are, pooled and per step."""
    beside = (*VERL, "--preset", "seq_rs", "--preset", "bypass_pg_is")
    result = run("sweep", dump, "--out", tmp_path / "s", *GRID, *beside, "--no-plots")
    assert (result.code, result.err.splitlines()[0]) == (
        0,
        "verl 2026-08 reads: token weight capped at 1.15 (lets through ρ of the token ≤ 1.15 in full)",
    )
    lines = result.out.splitlines()
    rows = lines[lines.index("Asked for by name") + 4 :][:3]
    assert [row.split()[0] for row in rows] == ["verl-config", "seq_rs", "bypass_pg_is"]
    assert "Those of bypass mode compare log_probs with rollout_log_probs." in result.out
    points = pl.read_parquet(tmp_path / "s" / "sweep.parquet")
    opened = ra.open_dump(str(dump))
    own = {"verl-config": ({"rollout_is": "token", "rollout_is_threshold": 1.15}, "verl"), "seq_rs": ("seq_rs", None)}
    for name, (config, trainer) in own.items():
        applied = {uid: (w, m) for uid, w, m in ra.apply_correction(opened, config, trainer=trainer)}
        for step in (None, 0, 1, 2):
            rows_of = [row for row in opened.rows() if step is None or row.step == step]
            kept = np.concatenate([applied[r.uid][1][r.response_mask] for r in rows_of])
            weights = np.concatenate([applied[r.uid][0][r.response_mask] for r in rows_of])[kept].astype(np.float64)
            (point,) = points.filter((pl.col("name") == name) & pl.col("step").eq_missing(step)).to_dicts()
            assert point["ess"] == pytest.approx(weights.sum() ** 2 / (len(weights) * (weights**2).sum()), rel=1e-6)
            assert point["masked_fraction"] == pytest.approx(1 - kept.mean(), abs=1e-12)
    (seq_rs,) = points.filter((pl.col("name") == "seq_rs") & pl.col("step").is_null()).to_dicts()
    left = [int(r.response_mask.sum()) for r in opened.rows() if applied[r.uid][1][r.response_mask].all()]
    assert seq_rs["kept_length_mean"] == pytest.approx(np.mean(left), rel=1e-12)
    tree = json.loads((tmp_path / "s" / "report.json").read_text())
    assert tree["sweep"]["named"] == ["verl-config", "seq_rs", "bypass_pg_is"]
    assert tree["settings"]["reference"] == "verl-config"
    assert tree["trainer"]["metrics"]["rollout_corr/rollout_is_max"] == pytest.approx(1.15)


def test_the_first_preset_is_the_reference_where_there_is_no_trainer(run, dump: Path, tmp_path: Path) -> None:
    run("sweep", dump, "--out", tmp_path / "s", *GRID, *QUICK, "--preset", "seq_rs", "--preset", "trl_default")
    tree = json.loads((tmp_path / "s" / "report.json").read_text())
    assert (tree["settings"]["reference"], tree["sweep"]["named"]) == ("seq_rs", ["seq_rs", "trl_default"])


def test_presets_from_a_variable(run, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_AUDIT_PRESET", "seq_rs; trl_default")
    run("sweep", dump, "--out", tmp_path / "s", *GRID, *QUICK)
    assert json.loads((tmp_path / "s" / "report.json").read_text())["sweep"]["named"] == ["seq_rs", "trl_default"]


def test_a_report_tells_other_configurations_where_its_pass_says_all_of_them(
    run, dump: Path, report: Path, tmp_path: Path
) -> None:
    """Any sequence cap is read off the rows; a token cap is told where it is a cut, as 2 is."""
    for config in ("rollout_is=sequence,rollout_is_threshold=3.3", "rollout_is=token,rollout_is_threshold=2.0"):
        asked = (*GRID, *QUICK, "--trainer", "verl", "--config", config, "--format", "json")
        direct = json.loads(run("sweep", dump, "--out", tmp_path / "a", *asked).out)
        again = json.loads(run("sweep", "--from", report, "--out", tmp_path / "b", *asked).out)
        mine, theirs = ([p for p in points if p["name"] == "verl-config"] for points in (again, direct))
        assert len(mine) == len(theirs) == 4
        for one, two in zip(mine, theirs, strict=True):
            assert one.keys() == two.keys()
            assert all(one[k] == two[k] or one[k] == pytest.approx(two[k], rel=1e-9) for k in one), config
    token = run("sweep", "--from", report, "--out", tmp_path / "c", *GRID, *QUICK, *VERL)
    assert (token.code, token.out, token.err.count("\n")) == (2, "", 1)
    assert "its pass kept nothing that tells verl-config exactly (token weight capped at 1.15)" in token.err
    other = ("--trainer", "verl", "--config", "rollout_is=sequence,rollout_is_threshold=4")
    twice = run("sweep", "--from", tmp_path / "b", "--out", tmp_path / "d", *GRID, *other, "--no-plots")
    assert twice.code == 0
    named = json.loads((tmp_path / "d" / "report.json").read_text())["sweep"]["named"]
    assert named == ["verl-config", "verl-config~2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--config", "{}"), "--config needs --trainer"),
        (("--preset", "seq_rx"), "no preset 'seq_rx'; did you mean 'seq_rs'?"),
        (("--trainer", "verk"), "did you mean 'verl'"),
        (("--trainer", "verl", "--config", "rollout_is=word"), "rollout_is"),
    ],
)
def test_what_cannot_stand_beside_the_grid_is_one_line(
    arguments: tuple[str, ...], message: str, run, dump: Path, report: Path, tmp_path: Path
) -> None:
    for source in ((dump,), ("--from", report)):
        result = run("sweep", *source, *arguments, "--out", tmp_path / "s")
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
        assert message in result.err
    assert not (tmp_path / "s").exists()


def test_a_report_of_a_newer_version_is_not_merged(run, report: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    newer.mkdir()
    for file in report.iterdir():
        (newer / file.name).write_bytes(file.read_bytes())
    tree = json.loads((newer / "report.json").read_text())
    tree["schema"]["version"] += 1
    (newer / "report.json").write_text(json.dumps(tree))
    result = run("merge", report, newer, "--out", tmp_path / "m")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "report version 2, this tool reads up to 1; upgrade rollout-audit" in result.err
    assert not (tmp_path / "m").exists()


def test_bands_are_tried_jointly_and_stand_beside_the_lines(run, dump: Path, tmp_path: Path) -> None:
    rules = ("--rule", "seq_mean_k1=0.98_1.03,1.02,1.05", "--upper", "1.5,2", "--veto", "none")
    points = json.loads(run("sweep", dump, "--out", tmp_path / "s", *rules, *QUICK, "--format", "json").out)
    joint = [p for p in points if p["family"] == "token truncate + seq_mean_k1"]
    assert [p["upper"] for p in joint if p["rule_lower"] != -p["rule_upper"]] == [1.5, 2.0]
    assert len(joint) == 2 * 3
