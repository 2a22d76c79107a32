"""What `write_correction` leaves behind is what `apply_correction` says, in the layout of the source."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import rollout_audit as ra
from rollout_audit.dumps.applied import APPLIED

ROOT = Path(__file__).resolve().parents[2]
GRPO = ROOT / "sample_data" / "grpo_run"
FORMATS = ROOT / "tests" / "formats"
NORMALISED = {"rollout_is": "sequence", "rollout_is_batch_normalize": True, "rollout_rs": "seq_mean_k3",
              "rollout_rs_threshold": 0.01}  # fmt: skip


def rows_of(dump: ra.Dump, correction: Any, **how: Any) -> list[tuple[str, list[float], list[bool]]]:
    return [(uid, w.tolist(), m.tolist()) for uid, w, m in ra.apply_correction(dump, correction, **how)]


def parquet_rows(folder: Path, files: tuple[str, ...]) -> list[tuple[Any, Any, Any]]:
    tables = [pq.read_table(folder / name) for name in files]
    return [(r["uid"], r["weights"], r["mask"]) for table in tables for r in table.to_pylist()]


@pytest.mark.parametrize("chunk_tokens", [100, 2**19])
@pytest.mark.parametrize(("correction", "trainer"), [("decoupled_seq_is_rs", None), (NORMALISED, "verl")])
def test_parquet_is_what_is_applied(correction: Any, trainer: str | None, chunk_tokens: int, tmp_path: Path) -> None:
    dump = ra.open_dump(GRPO)
    written = ra.write_correction(dump, correction, tmp_path / "w", trainer=trainer, chunk_tokens=chunk_tokens)
    expected = rows_of(dump, correction, trainer=trainer)
    assert parquet_rows(tmp_path / "w", written.files) == expected
    assert written.files == tuple(f.name for f in dump.files)
    kept = np.concatenate([np.array(w)[np.array(m)] for _, w, m in expected])
    assert (written.rows, written.left_out, written.kept_tokens) == (len(expected), 0, len(kept))
    assert written.kept_weight_mean == pytest.approx(kept.mean(), rel=1e-12)
    steps = [s for name in written.files for s in pq.read_table(tmp_path / "w" / name)["step"].to_pylist()]
    assert steps == [row.step for row in dump.rows()]


def test_metadata_says_what_was_applied_to_what(tmp_path: Path) -> None:
    dump = ra.open_dump(GRPO)
    written = ra.write_correction(dump, NORMALISED, tmp_path / "w", trainer="verl", steps=(2, None))
    assert written.files == tuple(f"step_00000{i}.parquet" for i in range(2, 6))
    about = json.loads(pq.read_schema(tmp_path / "w" / written.files[0]).metadata[APPLIED.encode()])
    assert about["config"] == NORMALISED
    assert (about["trainer"], about["preset"], about["steps"]) == ("verl", None, [2, None])
    assert about["correction"]["weight"]["level"] == "sequence"
    assert about["input"] == {"name": "step_000002.parquet", "digest": dump.digest(dump.files[2])}
    named = ra.write_correction(dump, "decoupled_token_is", tmp_path / "p", limit=3)
    again = json.loads(pq.read_schema(tmp_path / "p" / named.files[0]).metadata[APPLIED.encode()])
    assert (again["preset"], again["trainer"], again["config"], again["limit"]) == ("decoupled_token_is", None, None, 3)
    assert again["dump_digest"] == about["dump_digest"]


def test_rows_that_are_left_out_keep_their_place(tmp_path: Path) -> None:
    log_probs = np.full((4, 3), -1.0, np.float32)
    log_probs[1, 2] = np.nan
    padded = {"rollout_log_probs": np.full((4, 3), -0.9, np.float32), "old_log_probs": log_probs}
    save_file(padded, tmp_path / "step_1.safetensors")
    source = ra.open_dump(tmp_path / "step_1.safetensors")
    ra.convert_dump(source, tmp_path / "whole", on_fault="drop")
    written = ra.write_correction(source, "decoupled_token_is", tmp_path / "w", on_fault="drop", chunk_tokens=4)
    assert (written.rows, written.left_out) == (3, 1)
    tensors = load_file(tmp_path / "w" / "step_1.safetensors")
    weight = np.float32(np.exp(np.float64(np.float32(-1.0)) - np.float64(np.float32(-0.9))))
    np.testing.assert_array_equal(tensors["weights"], np.outer([weight, 0, weight, weight], np.ones(3, np.float32)))
    np.testing.assert_array_equal(tensors["mask"], np.outer([1, 0, 1, 1], [1, 1, 1]).astype(bool))
    limited = ra.write_correction(ra.open_dump(tmp_path / "whole"), "decoupled_token_is", tmp_path / "l", limit=2)
    assert [r[1] is None for r in parquet_rows(tmp_path / "l", limited.files)] == [False, False, True]


@pytest.mark.parametrize("chunk_tokens", [50, 2**19])
@pytest.mark.parametrize(
    ("name", "layout", "lead"),
    [
        ("trl", None, "sampling_per_token_logps"),
        ("skyrl", None, "rollout_logprobs"),
        ("roll", "roll", "infer_logprobs"),
        ("areal", "areal", "logprobs"),
        ("verl/batch_step_1.safetensors", None, "rollout_log_probs"),
    ],
)
def test_tensors_lie_where_the_log_probs_lie(
    name: str, layout: str | None, lead: str, chunk_tokens: int, tmp_path: Path
) -> None:
    dump = ra.open_dump(FORMATS / name, layout=layout)
    written = ra.write_correction(dump, "token_rs", tmp_path / "w", chunk_tokens=chunk_tokens)
    expected = iter(zip(dump.rows(), ra.apply_correction(dump, "token_rs"), strict=True))
    for file, source in zip(written.files, dump.files, strict=True):
        made, stored = load_file(tmp_path / "w" / file), load_file(source.path)
        assert made["weights"].shape == made["mask"].shape == stored[lead].shape
        assert ("cu_seqlens" in made) == ("cu_seqlens" in stored)
        if "cu_seqlens" in made:
            np.testing.assert_array_equal(made["cu_seqlens"], stored["cu_seqlens"])
        ends = stored.get("cu_seqlens", np.arange(len(stored[lead]) + 1) * stored[lead].shape[-1])
        for start, end in pairwise(ends):
            row, (_, weights, mask) = next(expected)
            stored_row, made_mask = (t.reshape(-1)[start:end] for t in (stored[lead], made["mask"]))
            made_weights = made["weights"].reshape(-1)[start:end]
            starts = range(end - start - len(mask) + 1)
            at = next(i for i in starts if (stored_row[i : i + len(mask)] == row.rollout_log_probs).all())
            np.testing.assert_array_equal(made_mask[at : at + len(mask)], mask)
            np.testing.assert_array_equal(made_weights[at : at + len(mask)], weights)
            assert made_mask.sum() == mask.sum()
    assert next(expected, None) is None


def test_packed_tensors_and_their_metadata(tmp_path: Path) -> None:
    packed = {
        "rollout_log_probs": np.array([-0.1, -2.3, -0.7, -1.2, -0.05], np.float32),
        "old_log_probs": np.array([-0.1, -2.4, -0.7, -0.2, -0.05], np.float32),
        "lengths": np.array([3, 0, 2]),
    }
    save_file(packed, tmp_path / "step_4.safetensors")
    dump = ra.open_dump(tmp_path / "step_4.safetensors")
    written = ra.write_correction(dump, "decoupled_token_is", tmp_path / "w", chunk_tokens=1)
    with safe_open(tmp_path / "w" / written.files[0], framework="numpy") as made:
        assert json.loads(made.metadata()[APPLIED])["preset"] == "decoupled_token_is"
        assert made.get_tensor("lengths").tolist() == [3, 0, 2]
        weights = np.concatenate([w for _, w, _ in ra.apply_correction(dump, "decoupled_token_is")])
        np.testing.assert_array_equal(made.get_tensor("weights"), weights)
        assert weights.max() == 2.0


@pytest.mark.parametrize("name", ["nemo_rl", "slime/grpo_run/train_data", "miles", "prime_rl"])
def test_every_other_format_becomes_parquet(name: str, tmp_path: Path) -> None:
    dump = ra.open_dump(FORMATS / name)
    written = ra.write_correction(dump, "token_rs", tmp_path / "w")
    assert {Path(file).suffix for file in written.files} == {".parquet"}
    assert parquet_rows(tmp_path / "w", written.files) == rows_of(dump, "token_rs")


def test_a_folder_that_holds_something_and_a_fault_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").touch()
    with pytest.raises(ra.UsageError, match="not empty"):
        ra.write_correction(ra.open_dump(GRPO), "decoupled_token_is", tmp_path / "full")
    bad = {"rollout_log_probs": np.full((2, 2), -0.9), "old_log_probs": np.array([[-1.0, -1.0], [np.nan, -1.0]])}
    save_file(bad, tmp_path / "step_1.safetensors")
    with pytest.raises(ra.DumpError, match="row 1"):
        ra.write_correction(
            ra.open_dump(tmp_path / "step_1.safetensors"), "decoupled_token_is", tmp_path / "w", chunk_tokens=2
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "step_1.safetensors"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lengths", np.array([2, 1], np.int64)),
        ("response_lengths", np.array([2, 1], np.int32)),
        ("cu_seqlens", np.array([0, 2, 3], np.int32)),
        ("cu_seqlens", np.array([0, 2, 3], np.int64)),
    ],
)
def test_packed_rows_end_as_they_do_in_the_source(name: str, values: np.ndarray, tmp_path: Path) -> None:
    mu = np.array([-1.0, -2.0, -0.5], np.float32)
    save_file(
        {"rollout_log_probs": mu, "old_log_probs": mu + np.float32(0.25), name: values}, tmp_path / "d.safetensors"
    )
    written = ra.write_correction(ra.open_dump(tmp_path / "d.safetensors"), "decoupled_token_is", tmp_path / "w")
    made = load_file(tmp_path / "w" / written.files[0])
    assert made.keys() == {"weights", "mask", name}
    assert made[name].dtype == values.dtype
    assert made[name].tolist() == values.tolist()
    np.testing.assert_allclose(made["weights"], np.exp(np.float32(0.25)), rtol=1e-6)


def test_whole_uids_stay_whole(tmp_path: Path) -> None:
    mu = [[-1.0, -2.0], [-0.5], [-3.0]]
    table = {"uid": pa.array([7, 2**60, None], pa.int64()), "rollout_log_probs": mu, "old_log_probs": mu}
    pq.write_table(pa.table(table), tmp_path / "d.parquet")
    written = ra.write_correction(ra.open_dump(tmp_path / "d.parquet"), "decoupled_token_is", tmp_path / "w")
    made = pq.read_table(tmp_path / "w" / written.files[0])
    assert made.schema.field("uid").type == pa.int64()
    assert made["uid"].to_pylist() == [7, 2**60, None]
    assert made["weights"].to_pylist() == [[1.0, 1.0], [1.0], [1.0]]
