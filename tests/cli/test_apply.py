"""`rollout-audit apply`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest


def test_it_writes_and_sums_up(dump: Path, tmp_path: Path, run: Any) -> None:
    result = run("apply", dump, "--preset", "decoupled_k3_rs", "--out", tmp_path / "w", "--format", "json")
    assert result.code == 0
    found = json.loads(result.out)
    masks = [
        m for name in found["files"] for row in pq.read_table(tmp_path / "w" / name)["mask"].to_pylist() for m in row
    ]
    assert len(found["files"]) == 3
    assert (found["tokens"], found["kept_tokens"]) == (len(masks), sum(masks))
    assert f"wrote {tmp_path / 'w'} (3 files)" in result.err


def test_zeroed_tokens_are_counted_beside_masked_ones(dump: Path, tmp_path: Path, run: Any) -> None:
    config = "rollout_is=token,rollout_is_threshold=0.9_1.1"
    result = run("apply", dump, "--trainer", "verl", "--config", config, "--out", tmp_path / "w", "--format", "json")
    found = json.loads(result.out)
    columns = ("weights", "mask")
    tables = [pq.read_table(tmp_path / "w" / name) for name in found["files"]]
    weights, masks = ([x for t in tables for row in t[c].to_pylist() for x in row] for c in columns)
    zeroed = sum(w == 0 for w, kept in zip(weights, masks, strict=True) if kept)
    assert found["masked_fraction"] == 0
    assert found["zeroed_fraction"] == zeroed / found["valid_tokens"] > 0


def test_a_trainers_configuration_is_echoed(dump: Path, tmp_path: Path, run: Any) -> None:
    result = run("apply", dump, "--trainer", "verl", "--config", "rollout_is=token", "--out", tmp_path / "w")
    assert result.code == 0
    assert "token weight capped at 2" in result.out
    assert "verl 2026-08 reads: token weight capped at 2" in result.err


@pytest.mark.parametrize("command", [["apply", "--preset", "token_rs"], ["convert"]])
def test_nothing_is_written_where_the_dump_is_searched(command: list[str], dump: Path, run: Any) -> None:
    name, *options = command
    result = run(name, dump, *options, "--out", dump / "inside")
    assert (result.code, result.out) == (2, "")
    assert f"{dump / 'inside'}: lies in {dump}, and would be read as a part of it" in result.err
    assert not (dump / "inside").exists()


@pytest.mark.parametrize("more", [["--workers", "3"], ["--device", "cpu"], ["--chunk-tokens", "40", "--workers", "2"]])
def test_workers_and_device_change_no_weight(more: list[str], dump: Path, tmp_path: Path, run: Any) -> None:
    config = "rollout_is=sequence,rollout_is_batch_normalize=true,rollout_rs=token_k1,rollout_rs_threshold=1.1"
    for name, options in (("one", ["--workers", "1"]), ("other", more)):
        arguments = ("--trainer", "verl", "--config", config, *options, "--out", tmp_path / name)
        assert run("apply", dump, *arguments).code == 0
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(names) == 3
    for name in names:
        tables = [pq.read_table(tmp_path / folder / name) for folder in ("one", "other")]
        assert tables[0].equals(tables[1])


def test_a_device_that_is_not_there_is_one_line(dump: Path, tmp_path: Path, run: Any) -> None:
    result = run("apply", dump, "--preset", "token_rs", "--device", "mps", "--out", tmp_path / "w")
    assert (result.code, result.out) == (2, "")
    assert "--device mps: Apple's GPU has no float64" in result.err


@pytest.mark.parametrize("config", ["", " "])
def test_an_empty_configuration_is_not_the_defaults(config: str, dump: Path, tmp_path: Path, run: Any) -> None:
    result = run("apply", dump, "--trainer", "verl", "--config", config, "--out", tmp_path / "w")
    assert (result.code, result.out) == (2, "")
    assert "nothing in it; give a YAML, JSON or TOML file" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which correction? give --preset NAME, or --trainer NAME with --config"),
        (["--preset", "seq_rs", "--trainer", "verl"], "--preset and --trainer both name the correction"),
        (["--config", "{}"], "--config needs --trainer"),
        (["--preset", "decoupled_tokn_is"], "did you mean"),
    ],
)
def test_what_is_no_correction_is_one_line(
    arguments: list[str], message: str, dump: Path, tmp_path: Path, run: Any
) -> None:
    result = run("apply", dump, *arguments, "--out", tmp_path / "w")
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not (tmp_path / "w").exists()
