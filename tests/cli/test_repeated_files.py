"""One batch in two files: every command that reads says so in one line, from the pass that it makes anyway."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.dumps import FaultLog, inspect_dump

VERL = Path(__file__).parents[1] / "formats" / "verl"
"""24 rows as .pt and as .safetensors"""
TEXT = "the same 24 rows as batch_step_1.pt: every figure counts them twice; give one of the two files"
LINE = f"warning: copy_step_1.safetensors: {TEXT}\n"
COMMANDS = {
    "metrics": ("--trainer", "verl"),
    "sweep": ("--no-plots", "--out", "swept"),
    "recommend": (),
    "check": ("--golden", "golden.json", "--update"),
    "apply": ("--preset", "decoupled_token_is", "--out", "weights"),
    "convert": ("--out", "converted"),
}


@pytest.fixture
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The batch twice, under two names."""
    folder = tmp_path_factory.mktemp("copied")
    shutil.copy(VERL / "batch_step_1.pt", folder)
    shutil.copy(VERL / "batch_step_1.safetensors", folder / "copy_step_1.safetensors")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_without_a_table_of_findings_warn_once(
    command: str, run, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(command, copied, *COMMANDS[command])
    assert result.err.count("warning: ") == 1
    assert LINE in result.err
    (tmp_path / "again").mkdir()
    monkeypatch.chdir(tmp_path / "again")
    assert "warning: " not in run(command, VERL / "batch_step_1.pt", *COMMANDS[command]).err


def test_analyze_and_inspect_have_it_among_their_findings(run, copied: Path) -> None:
    report = ra.analyze(ra.open_dump(copied), presets=[], sweep=False)
    told = [(f.kind, f.severity, f.file, f.count, f.message) for f in report.findings]
    assert told == [("repeated_file", "warning", "copy_step_1.safetensors", 24, TEXT)]
    (finding,) = json.loads(run("inspect", copied, "--format", "json").out)["findings"]
    assert (finding["kind"], finding["message"]) == ("repeated_file", TEXT)
    assert run("inspect", copied).out.startswith("WARN  1 warning; nothing that would stop an audit.")


@pytest.mark.parametrize("command", COMMANDS)
def test_one_name_in_two_formats_is_read_once(
    command: str, run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = "1 file left out, the same rows as beside it in another format (24 rows of batch_step_1.safetensors)"
    assert run(command, VERL, *COMMANDS[command]).err.count(line) == 1
    assert [file.name for file in ra.open_dump(VERL).files] == ["batch_step_1.safetensors"]


def test_one_name_with_other_values_is_read_twice(tmp_path: Path) -> None:
    pq.write_table(pa.table(rows(5)), tmp_path / "step_1.parquet")
    for seed, values in ((0, 1), (1, 2)):
        columns = {name: np.array(column.to_pylist()) for name, column in rows(5, seed=seed).items()}
        np.savez(tmp_path / "step_1.npz", **columns)
        assert ra.open_dump(tmp_path).total_rows == 5 * values


def rows(count: int, seed: int = 0) -> dict[str, pa.Array]:
    """Sides that differ, lists of 4 tokens."""
    rng = np.random.default_rng(seed)
    rollout = -rng.exponential(1.0, (count, 4))
    training = rollout + rng.normal(0, 0.01, rollout.shape)
    return {"rollout_log_probs": pa.array(rollout.tolist()), "old_log_probs": pa.array(training.tolist())}


def repeated(folder: Path, **how: object) -> list[tuple[str | None, int]]:
    log = FaultLog()
    for _ in ra.open_dump(folder).chunks(log=log, **how):
        pass
    found = log.findings([file.name for file in ra.open_dump(folder).files])
    return [(f.file, f.count) for f in found if f.kind == "repeated_file"]


def test_row_groups_chunks_and_columns_do_not_hide_it(tmp_path: Path) -> None:
    table = pa.table(rows(40))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    pq.write_table(table.append_column("uid", pa.array(map(str, range(40)))), tmp_path / "b.parquet")
    pq.write_table(pa.table(rows(40, seed=1)), tmp_path / "c.parquet")
    for how in ({}, {"chunk_tokens": 8}, {"limit": 80}):
        assert repeated(tmp_path, **how) == [("b.parquet", 40)]
    assert repeated(tmp_path, limit=60) == []  # half of the second file is not read
    for workers in (1, 3):
        report = ra.analyze(ra.open_dump(tmp_path), presets=[], sweep=False, chunk_tokens=8, workers=workers)
        assert [f.file for f in report.findings if f.kind == "repeated_file"] == ["b.parquet"]


def test_padding_does_not_hide_it_and_another_mask_does(tmp_path: Path) -> None:
    table, ones = pa.table(rows(5)), [[1] * 4] * 5
    pq.write_table(table.append_column("response_mask", pa.array(ones)), tmp_path / "a.parquet")
    padded = {name: pa.array([[0.0, *row, 0.0] for row in column.to_pylist()]) for name, column in rows(5).items()}
    padded["response_mask"] = pa.array([[0, 1, 1, 1, 1, 0]] * 5)
    pq.write_table(pa.table(padded), tmp_path / "b.parquet")
    masked = [[0, 1, 1, 1], *ones[1:]]
    pq.write_table(table.append_column("response_mask", pa.array(masked)), tmp_path / "c.parquet")
    assert repeated(tmp_path) == [("b.parquet", 5)]


def test_a_handful_of_tokens_may_be_alike(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pa.table(rows(3)), tmp_path / name)
    assert repeated(tmp_path) == []


def test_the_uid_alone_is_said_once(tmp_path: Path) -> None:
    """By content and by uid it is one finding; by uid alone, of other values, it is still said by inspect."""
    uids = pa.array(["a", "b", "c", "d", "e"])
    for name, seed in (("a.parquet", 0), ("b.parquet", 0), ("c.parquet", 1)):
        pq.write_table(pa.table(rows(5, seed)).append_column("uid", uids), tmp_path / name)
    found = [f for f in inspect_dump(ra.open_dump(tmp_path)).findings if f.kind == "repeated_file"]
    assert [f.file for f in found] == ["b.parquet", "c.parquet"]
    assert ["uid" in f.message for f in found] == [False, True]
