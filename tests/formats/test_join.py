"""Rollout files beside train files, by uid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.dumps import inspect_dump

HERE = Path(__file__).parent
FLOATS = pa.list_(pa.float32())


def table(path: Path, **columns: Any) -> Path:
    arrays = {name: pa.array(v, FLOATS) if "log_probs" in name else pa.array(v) for name, v in columns.items()}
    pq.write_table(pa.table(arrays), path)
    return path


@pytest.mark.parametrize(
    ("rollout", "train", "tokens"),
    [
        ("slime/grpo_run/rollout_data", "slime/grpo_run/train_data", 1230),
        ("miles/grpo_run/dashboard_columns", "miles/grpo_run/train_data", 1230),
        ("miles_cp2/llamacpp_q4/rollout_data", "miles_cp2/llamacpp_q4/train_data", 1575),
        ("slime/llamacpp_q4/rollout_data/0.pt", "slime/llamacpp_q4", 1467),
    ],
)
def test_joined_rollout_equals_the_train_dump(rollout: str, train: str, tokens: int) -> None:
    dump = ra.open_dump(HERE / rollout, join=HERE / train)
    assert dump.fields[dump.files[0].name]["old_log_probs"].origin == "join"
    whole = {(row.step, row.uid): row for row in ra.open_dump(HERE / train).rows()}
    valid = 0
    for row in dump.rows():
        true = whole.pop((row.step, row.uid))
        for field in ("rollout_log_probs", "old_log_probs", "response_mask"):
            np.testing.assert_array_equal(getattr(row, field), getattr(true, field))
        valid += int(row.response_mask.sum())
    assert not whole
    assert valid == tokens
    joined = ra.analyze(dump, presets=[], sweep=False).overall
    alone = ra.analyze(ra.open_dump(HERE / train), presets=[], sweep=False).overall
    assert joined["kl_k3"] == pytest.approx(alone["kl_k3"], rel=1e-12)


def test_unmatched_rows_are_left_out_and_counted_on_both_sides(tmp_path: Path) -> None:
    lp = [[-0.5], [-0.6, -0.7], [-0.8]]
    rollout = table(tmp_path / "a.parquet", uid=["x", "y", "z"], rollout_log_probs=lp)
    train = table(tmp_path / "b.parquet", uid=["w", "z", "x", "v"], old_log_probs=[[-1.0], [-2.0], [-3.0], [-4.0]])
    dump = ra.open_dump(rollout, join=train)
    rows = list(dump.rows())
    assert [(row.uid, row.row, row.old_log_probs.tolist()) for row in rows] == [("x", 0, [-3.0]), ("z", 2, [-2.0])]
    (finding,) = [f for f in dump.notes if f.kind == "join_unmatched"]
    assert finding.severity == "warning"
    assert "1 of 3 rows have no partner in the second dump, 2 of its 4 rows have none in the first" in finding.message
    assert finding.count == 3


def test_uids_that_begin_anew_each_step_are_told_apart_by_it(tmp_path: Path) -> None:
    for step in (1, 2):
        table(tmp_path / f"roll_step_{step}.parquet", uid=["0", "1"], rollout_log_probs=[[-0.1 * step], [-0.2 * step]])
        table(tmp_path / f"train_step_{step}.parquet", uid=["1", "0"], old_log_probs=[[-2.0 * step], [-1.0 * step]])
    dump = ra.open_dump(str(tmp_path / "roll_*"), join=str(tmp_path / "train_*"))
    assert [(row.step, row.old_log_probs.tolist()) for row in dump.rows()] == [
        (1, [-1.0]),
        (1, [-2.0]),
        (2, [-2.0]),
        (2, [-4.0]),
    ]


def test_rows_of_different_length_are_a_fault(tmp_path: Path) -> None:
    rollout = table(tmp_path / "a.parquet", uid=["x"], rollout_log_probs=[[-0.5, -0.6]])
    train = table(tmp_path / "b.parquet", uid=["x"], old_log_probs=[[-0.5]])
    with pytest.raises(ra.DumpError, match=r"differ in length \(rollout_log_probs 2, old_log_probs 1\)"):
        ra.analyze(ra.open_dump(rollout, join=train))


def test_what_cannot_be_joined_is_said(tmp_path: Path) -> None:
    rollout = table(tmp_path / "a.parquet", uid=["x"], rollout_log_probs=[[-0.5]])
    nameless = table(tmp_path / "b.parquet", old_log_probs=[[-0.5]])
    with pytest.raises(ra.UsageError, match=r"b.parquet: no uid to join by; name its column with --map uid=COLUMN"):
        ra.open_dump(rollout, join=nameless)
    others = table(tmp_path / "c.parquet", uid=["y"], old_log_probs=[[-0.5]])
    with pytest.raises(ra.DumpError, match=r"no uid of it is in c.parquet \(here 'x', there 'y'\)"):
        ra.open_dump(rollout, join=others)
    double = table(tmp_path / "d.parquet", uid=["x", "x"], old_log_probs=[[-0.5], [-0.6]])
    with pytest.raises(ra.UsageError, match=r"d.parquet: several rows have the uid \(0, 'x'\)"):
        ra.open_dump(rollout, join=double)
    with pytest.raises(ra.DumpError, match="no column for old_log_probs"):
        ra.open_dump(rollout, join=rollout)
    with pytest.raises(ra.DumpError, match="no log-probs of the trainer to join, a rollout file of slime or miles"):
        ra.open_dump(rollout, join=HERE / "slime/grpo_run/rollout_data/0.pt")


def test_maps_speak_of_either_dump(tmp_path: Path) -> None:
    rollout = table(tmp_path / "a.parquet", name=["x"], rollout_log_probs=[[-0.5]])
    train = table(tmp_path / "b.parquet", name=["x"], pi_log_probs=[[-0.75]])
    dump = ra.open_dump(rollout, join=train, field_map={"uid": "name", "old_log_probs": "pi_log_probs"})
    assert next(dump.rows()).old_log_probs.tolist() == [-0.75]
    with pytest.raises(ra.DumpError, match="--map reward=nothing: no column is named 'nothing' in either dump"):
        ra.open_dump(
            rollout, join=train, field_map={"uid": "name", "old_log_probs": "pi_log_probs", "reward": "nothing"}
        )


def test_rollouts_of_open_instruct_get_their_mask_and_trainer(tmp_path: Path) -> None:
    truth = pq.read_table(HERE / "truth/open_instruct.parquet").to_pylist()
    table(
        tmp_path / "train.parquet",
        uid=["/".join(row["key"].split("/")[1:]) for row in truth],
        old_log_probs=[[-0.5] * len(row["response_mask"]) for row in truth],
        response_mask=[row["response_mask"] for row in truth],
    )
    dump = ra.open_dump(HERE / "open_instruct", join=tmp_path)
    for row, true in zip(dump.rows(), truth, strict=True):
        assert row.response_mask.astype(int).tolist() == true["response_mask"]
    assert ra.analyze(dump, presets=[], sweep=False).overall["log_prob_diff_abs_mean"] is not None


def test_rows_are_gathered_from_any_row_group_and_nulls_come_along(tmp_path: Path) -> None:
    """Two files of the trainer in row groups of three, shuffled, one with a list where the other has a number."""
    lists = [[-0.1 * (i + 1)] * (i % 4) for i in range(20)]
    trainer = [[None if (i + j) % 3 == 0 else v - 0.5 for j, v in enumerate(row)] for i, row in enumerate(lists)]
    trainer[5] = None
    advantages = [0.5 * i if i % 7 else None for i in range(20)]
    uids = [f"row {i}" for i in range(20)]
    rollout = table(tmp_path / "rollout.parquet", uid=uids, rollout_log_probs=lists)
    (tmp_path / "trainer").mkdir()
    order = np.random.default_rng(0).permutation(20).tolist()
    for part, rows in enumerate((order[:9], order[9:])):
        reward = [[1.0 * i] for i in rows] if part else [1.0 * i for i in rows]
        columns = {"uid": [uids[i] for i in rows], "old_log_probs": pa.array([trainer[i] for i in rows], FLOATS)}
        columns |= {"advantages": pa.array([advantages[i] for i in rows]), "reward": pa.array(reward)}
        pq.write_table(pa.table(columns), tmp_path / "trainer" / f"{part}.parquet", row_group_size=3)
    dump = ra.open_dump(rollout, join=tmp_path / "trainer")
    faulty = {i for i, row in enumerate(trainer) if row is None or None in row}
    read = {row.row: row for row in dump.rows(on_fault="drop")}
    assert set(read) == set(range(20)) - faulty
    for i, row in read.items():
        np.testing.assert_array_equal(row.old_log_probs, np.array(trainer[i], np.float32))
        assert row.reward == i
        expected = [np.nan if advantages[i] is None else advantages[i]] * len(lists[i])
        np.testing.assert_array_equal(row.advantages, expected)
    found = {f.kind: f.count for f in inspect_dump(dump).findings if f.severity == "error"}
    assert found == {"null": sum(row.count(None) for row in trainer if row), "missing_row": 1}
