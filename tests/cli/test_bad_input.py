"""One line on stderr, nothing on stdout, exit 2, the output folder as it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from rollout_audit.__main__ import main
from tests.cli.conftest import FLOATS

Make = Callable[[Path], object]


def columns(**changes: object) -> dict[str, object]:
    good = {
        "rollout_log_probs": pa.array([[-1.0, -2.0]] * 2, FLOATS),
        "old_log_probs": pa.array([[-1.1, -2.1]] * 2, FLOATS),
    }
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def parquet(**changes: object) -> Make:
    def make(folder: Path) -> Path:
        path = folder / "dump.parquet"
        pq.write_table(pa.table(columns(**changes)), path)
        return path

    return make


def truncated_parquet(folder: Path) -> Path:
    path = folder / "cut.parquet"
    pq.write_table(pa.table(columns()), path)
    path.write_bytes(path.read_bytes()[:-20])
    return path


def truncated_safetensors(folder: Path) -> Path:
    path = folder / "cut.safetensors"
    save_file({"rollout_log_probs": np.zeros((2, 3), np.float32) - 1}, path)
    path.write_bytes(path.read_bytes()[:-8])
    return path


def text_file(name: str, text: str) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return make


def foreign_folder(folder: Path) -> Path:
    (folder / "notes.txt").write_text("hello")
    return folder


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 12345\n"
CASES: dict[str, tuple[Make, str]] = {
    "missing": (lambda folder: folder.parent / "nope", r"nope: no such file or folder"),
    "empty folder": (lambda folder: folder, r"no .*file"),
    "foreign files": (foreign_folder, r"\.txt"),
    "truncated parquet": (truncated_parquet, r"cut\.parquet"),
    "truncated safetensors": (truncated_safetensors, r"cut\.safetensors"),
    "git-lfs pointer": (text_file("step_1.parquet", LFS), r"LFS"),
    "zero rows": (
        parquet(rollout_log_probs=pa.array([], FLOATS), old_log_probs=pa.array([], FLOATS)),
        r"zero rows, nothing to audit",
    ),
    "no valid token": (
        parquet(response_mask=pa.array([[0, 0]] * 2, pa.list_(pa.uint8()))),
        r"no valid token in 2 rows, nothing to audit",
    ),
    "missing column": (
        parquet(rollout_log_probs=None, rollout_logprob_x=pa.array([[-1.0]] * 2, FLOATS)),
        r"rollout_log_probs.*rollout_logprob_x",
    ),
    "lengths differ": (parquet(old_log_probs=pa.array([[-1.0], [-1.0, -2.0]], FLOATS)), r"row 0"),
    "NaN under the mask": (
        parquet(old_log_probs=pa.array([[-1.0, -2.0], [-1.0, float("nan")]], FLOATS)),
        r"row 1, position 1: old_log_probs is NaN under mask 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_line_and_exit_2(name: str, run, tmp_path: Path) -> None:
    """Real cases 103 and 104."""
    make, expected = CASES[name]
    (folder := tmp_path / "in [1]").mkdir()
    result = run("analyze", make(folder), "--out", tmp_path / "out")
    assert result.code == 2
    assert result.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", result.err), result.err
    assert re.search(expected, result.err), result.err
    assert not (tmp_path / "out").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["in [1]"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "no such command 'nonsense'; see rollout-audit --help"),
        (["analyse", "x"], "no such command 'analyse'. Did you mean 'analyze'? see rollout-audit --help"),
        (["analyze"], "missing argument 'DUMP...'; see rollout-audit analyze --help"),
        (["analyze", "x", "--map", "a"], "--map 'a': expected FIELD=COLUMN, for example old_log_probs=prev_logprobs"),
        (["analyze", "x", "--steps", "5:2"],
         "--steps '5:2': no step lies between 5 and 2 (B is the one after the last)"),
        (["analyze", "x", "--steps", "a"], "--steps 'a': expected A:B, A:, :B or a single step"),
        (["analyze", "x", "--config", "{}"], "--config needs --trainer: whose keys are these?"),
        (["explain", "kl_k33"], "no metric 'kl_k33'; did you mean 'kl_k3'?; see `rollout-audit explain`"),
        (["presets", "decoupled_seq_iss"],
         "no preset 'decoupled_seq_iss'; did you mean 'decoupled_seq_is'?; see `rollout-audit presets`"),
    ],
)  # fmt: skip
def test_usage_errors_are_one_line(arguments: list[str], message: str, run) -> None:
    result = run(*arguments)
    assert (result.code, result.out, result.err) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize("option", [("--format", "xml"), ("--limit", "0"), ("--device", "tpu"), ("--frmat", "x")])
def test_wrong_options_are_one_line(option: tuple[str, str], run) -> None:
    result = run("analyze", "x", *option)
    assert result.code == 2
    assert re.fullmatch(r"error: [^\n]+; see rollout-audit analyze --help\n", result.err)


def test_a_folder_that_is_not_ours_is_left_alone(run, dump: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    result = run("analyze", dump, "--out", tmp_path, "--no-plots")
    assert result.code == 2
    assert result.out == ""
    assert result.err.endswith("no report of rollout-audit, so it is left alone; give another --out\n")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_old_report_survives_a_failed_audit(run, dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    run("analyze", dump, "--out", out, "--no-plots", "-q")
    before = (out / "report.json").read_bytes()
    assert run("analyze", tmp_path / "nope", "--out", out).code == 2
    assert (out / "report.json").read_bytes() == before


def test_an_unexpected_error_asks_for_a_report(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("a [bold] thing\nhappened")

    monkeypatch.setattr("rollout_audit.audit.report.Report.json_schema", broken)
    result = run("schema")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "internal error: ZeroDivisionError: a [bold] thing happened; this is a bug, please report it with the "
        "command that you ran; --debug shows the traceback\n"
    )
    assert "Traceback" in run("schema", "--debug").err
    monkeypatch.setenv("ROLLOUT_AUDIT_DEBUG", "1")
    assert "Traceback" in run("schema").err


def test_an_interrupt_is_exit_130(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rollout_audit.audit.report.Report.json_schema", interrupted)
    result = run("schema")
    assert (result.code, result.out, result.err) == (130, "", "interrupted\n")


def test_inspect_exits_1_on_errors_and_prints_them(run, tmp_path: Path) -> None:
    path = CASES["NaN under the mask"][0](tmp_path)
    result = run("inspect", path)
    assert result.code == 1
    assert result.out.startswith("ERROR  ")
    assert "row 1 position 1" in result.out


def test_faulty_sequences_can_be_dropped(run, tmp_path: Path) -> None:
    path = CASES["NaN under the mask"][0](tmp_path)
    result = run("analyze", path, "--out", tmp_path / "r", "--no-plots", "--on-fault", "drop")
    assert result.code == 0
    assert "1 faulty sequence dropped" in result.out
    assert "Sequences left out" in result.out


def test_main_takes_its_arguments_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["rollout-audit", "--version"])
    assert main() == 0
