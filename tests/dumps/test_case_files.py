"""Files that real people had, group 2 of the cases: what is read and what is refused, with the values."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

import rollout_audit as ra
from rollout_audit.__main__ import main
from rollout_audit.dumps import inspect_dump


def test_float16_lists_are_widened_and_said(tmp_path: Path) -> None:
    """Case 61: 0.1 is 0.09998 there; 3,000 of them sum to 299.93 and not to the 256 of a sum in float16."""
    halves = pa.array([np.full(3000, -0.1, np.float16)], pa.list_(pa.float16()))
    pq.write_table(pa.table({"rollout_log_probs": halves, "old_log_probs": [[-0.5] * 3000]}), tmp_path / "a.parquet")
    dump = ra.open_dump(tmp_path)
    (row,) = dump.rows()
    assert set(row.rollout_log_probs.tolist()) == {-0.0999755859375}
    assert row.rollout_log_probs.astype(np.float64).sum() == pytest.approx(-299.93, abs=0.005)
    report = ra.analyze(dump, presets=[], sweep=False)
    assert report.overall["kl_k1"] == pytest.approx(0.5 - 0.0999755859375, rel=1e-12)
    (note,) = [note for note in dump.notes if note.kind == "half_precision"]
    assert note.message == "rollout_log_probs is stored as float16 (about 3 digits) in 1 of 1 files"


def tensors(folder: Path) -> bytes:
    lp = np.array([[-0.5, -0.25]], np.float32)
    save_file({"rollout_log_probs": lp, "old_log_probs": lp}, folder / "sound.safetensors")
    return (folder / "sound.safetensors").read_bytes()


FOREIGN: dict[str, tuple[Any, str]] = {
    "truncated": (lambda sound: sound[:-3], "truncated safetensors (165 of 168 bytes), or still being written"),
    "bytes after the end": (lambda sound: sound + b"\n\n", "damaged safetensors (its header does not fit its bytes)"),
    "four bytes": (lambda sound: sound[:4], "truncated safetensors (4 bytes), or still being written"),
    "HTML": (lambda _: b"<!DOCTYPE html><title>403</title>", "an HTML or XML page, not the data"),
    "pointer": (
        lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 168\n",
        "a Git-LFS pointer, not the data: run `git lfs pull`",
    ),
    "huge length": (lambda sound: b"\xff" * 7 + b"\x7f" + sound[8:], "not a safetensors file (its header would be"),
    "broken JSON": (lambda sound: sound.replace(b'{"', b'{,', 1), "damaged safetensors, its header is not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FOREIGN)
def test_truncated_and_foreign_safetensors(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Case 64: one line that names the file and guesses what happened; exit 2, nothing on stdout."""
    change, guess = FOREIGN[kind]
    path = tmp_path / "step_1.safetensors"
    path.write_bytes(change(tensors(tmp_path)))
    assert main(["analyze", str(path), "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: {path}: {guess}")


ROWS = [[-0.5, -0.25], None, [-0.125, -2.0]]
VALUES = pa.array([-0.5, -0.25, -0.125, -2.0])
NO_ROW = pa.array([False, True, False])
ENCODINGS = {
    "list": pa.array(ROWS, pa.list_(pa.float64())),
    "large_list": pa.array(ROWS, pa.large_list(pa.float64())),
    "fixed_size_list": pa.array(ROWS, pa.list_(pa.float64(), 2)),
    "dictionary": pa.ListArray.from_arrays(pa.array([0, 2, 2, 4], pa.int32()), VALUES.dictionary_encode(), mask=NO_ROW),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_encodings_of_lists_are_alike_and_a_null_row_stays_null(encoding: str, tmp_path: Path) -> None:
    """Case 70."""
    other = [[-0.75, -0.5], [-1.0, -1.0], [-0.25, -1.0]]
    table = pa.table({"rollout_log_probs": ENCODINGS[encoding], "old_log_probs": other})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=encoding == "dictionary")
    dump = ra.open_dump(tmp_path)
    (finding,) = [f for f in inspect_dump(dump).findings if f.severity == "error"]
    assert (finding.kind, finding.row, finding.count) == ("missing_row", 1, 1)
    report = ra.analyze(dump, presets=[], sweep=False, on_fault="drop")
    assert report.counts.valid_tokens == 4
    assert report.overall["log_prob_diff_abs_mean"] == (0.25 + 0.25 + 0.125 + 1.0) / 4


def test_row_groups_are_never_put_together(tmp_path: Path) -> None:
    """Case 71: more values than one list array can point to are read a row group at a time, in bounded memory."""
    groups, rows, length = 48, 32, 1024
    floats = pa.list_(pa.float32())
    schema = pa.schema([("rollout_log_probs", floats), ("old_log_probs", floats)])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema, compression="none") as writer:
        for group in range(groups):
            rollout = np.full((rows, length), -1.0 - group / 64, np.float32)
            columns = [pa.array(list(side), floats) for side in (rollout, rollout + np.float32(0.5))]
            writer.write_table(pa.table(columns, schema=schema))
    dump = ra.open_dump(tmp_path)
    assert len(dump.parts()) == groups
    pool, arrow, tokens, total = pa.default_memory_pool(), [], 0, 0.0
    before = pool.bytes_allocated()
    tracemalloc.start()
    try:
        for chunk in dump.chunks(chunk_tokens=rows * length):
            arrow.append(pool.bytes_allocated() - before)
            tokens += chunk.tokens
            total += float(chunk.old_log_probs.sum(dtype=np.float64) - chunk.rollout_log_probs.sum(dtype=np.float64))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tokens, total) == (groups * rows * length, groups * rows * length * 0.5)
    assert peak + max(arrow) < groups * rows * length * 2 * 4 / 4  # a quarter of both columns


def test_token_exports_of_prime_rl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Case 76: prompt cut off, null where a value was not finite, and a step without STABLE refused unless forced."""
    line = {
        "schema_version": 1,
        "micro_step": 0,
        "token_ids": [7, 8, 9, 10, 11],
        "loss_mask": [False, True, False, True, True],
        "inference_logprobs": [0.0, -0.5, 0.0, -1.0, -2.0],
        "trainer_logprobs": [-10.8, -0.25, None, -1.25, -2.5],
        "entropy": [1.5] * 5,
        "advantages": [0.5] * 5,
        "prob_delta": [None] * 5,
    }
    folder = tmp_path / "step_3"
    folder.mkdir()
    (folder / "rank_0.jsonl").write_text(json.dumps(line) + "\n")
    assert main(["inspect", str(folder)]) == 2
    assert "no STABLE beside it" in capsys.readouterr().err
    forced = ra.open_dump(folder, input_format="prime-rl")
    (folder / "STABLE").touch()
    for dump in (forced, ra.open_dump(folder)):
        (row,) = dump.rows()
        assert (row.step, row.token_ids.tolist()) == (3, [8, 9, 10, 11])
        assert row.response_mask.tolist() == [True, False, True, True]
        report = ra.analyze(dump, presets=[], sweep=False)
        assert report.counts.valid_tokens == 3
        assert report.overall["log_prob_diff_abs_mean"] == pytest.approx((0.25 + 0.25 + 0.5) / 3)
        assert report.overall["kl_k1"] == pytest.approx((-0.25 + 0.25 + 0.5) / 3)
