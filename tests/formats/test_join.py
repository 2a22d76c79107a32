"""Rollout files beside train files, by uid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

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


def side(folder: Path, name: str, column: str, first: float, uids: Any = ("0", "1")) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table(folder / f"{name}.parquet", uid=list(uids), **{column: [[first - i / 8] for i in range(len(uids))]})


def joined(rollout: Any, train: Any) -> tuple[list[tuple[int, str | None, float, float]], list[str]]:
    dump = ra.open_dump(rollout, join=train)
    rows = [(r.step, r.uid, float(r.rollout_log_probs[0]), float(r.old_log_probs[0])) for r in dump.rows()]
    return rows, [note.message for note in dump.notes if note.kind.startswith("join")]


@pytest.mark.parametrize("alone", [1, 2])
def test_rows_without_a_uid_have_no_partner(alone: int, tmp_path: Path) -> None:
    """Neither one such row a side nor several are taken for one another."""
    uids = ["x", *[None] * alone]
    side(tmp_path, "a", "rollout_log_probs", -1.0, uids)
    side(tmp_path, "b", "old_log_probs", -2.0, uids[::-1])
    rows, (said,) = joined(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert rows == [(0, "x", -1.0, -2.0 - alone / 8)]
    assert f"{alone} of {alone + 1} rows have no partner in the second dump, {alone} of its {alone + 1} rows" in said


def test_only_nameless_rows_are_nothing_to_join(tmp_path: Path) -> None:
    side(tmp_path, "a", "rollout_log_probs", -1.0, ["x"])
    pq.write_table(pa.table({"uid": ["", ""], "old_log_probs": pa.array([[-1.0]] * 2, FLOATS)}), tmp_path / "b.parquet")
    with pytest.raises(ra.DumpError, match=r"^b\.parquet: zero rows with a uid, nothing to join$"):
        joined(tmp_path / "a.parquet", tmp_path / "b.parquet")


def runs(folder: Path, *, apart: int = 0) -> tuple[str, str]:
    """Two runs of two steps each whose uids begin anew with each step."""
    for run in (0, 1):
        for step in (1, 2):
            side(folder / f"run_{run}/rollout", f"step_{step}", "rollout_log_probs", -1.0 * step - 10 * run)
            side(folder / f"run_{run}/train", f"step_{step + apart}", "old_log_probs", -1.5 * step - 10 * run)
    return str(folder / "*/rollout"), str(folder / "*/train")


def test_several_runs_are_refused_and_each_alone_is_right(tmp_path: Path) -> None:
    with pytest.raises(ra.UsageError) as raised:
        joined(*runs(tmp_path))
    assert str(raised.value) == (
        "run_0/rollout/step_1.parquet and run_1/rollout/step_1.parquet: several rows of step 1 have the uid '0', "
        "so they cannot be joined by it; join one run at a time, or name a column that tells them apart with --map "
        "uid=COLUMN"
    )
    rows, said = joined(tmp_path / "run_1/rollout", tmp_path / "run_1/train")
    assert rows == [
        (1, "0", -11.0, -11.5),
        (1, "1", -11.125, -11.625),
        (2, "0", -12.0, -13.0),
        (2, "1", -12.125, -13.125),
    ]
    assert said == []
    with pytest.raises(ra.UsageError, match=r"^run_0/train/step_1\.parquet and run_1/train/step_1\.parquet: sev"):
        joined(tmp_path / "run_1/rollout", str(tmp_path / "*/train"))


def test_steps_that_count_from_another_number_are_said(tmp_path: Path) -> None:
    runs(tmp_path, apart=1)
    rows, said = joined(tmp_path / "run_0/rollout", tmp_path / "run_0/train")
    assert [row[:2] for row in rows] == [(2, "0"), (2, "1")]
    assert said == [
        "joined by uid: 2 of 4 rows have no partner in the second dump, 2 of its 4 rows have none in the first; they "
        "are left out",
        "uids begin anew with each step, and the steps are not the same (1 to 2 here, 2 to 3 there): do both count "
        "from one number?",
    ]
    _, said = joined(tmp_path / "run_0/rollout/step_1.parquet", tmp_path / "run_0/train/step_2.parquet")
    assert said == [
        "joined by uid alone, and the steps are not the same (1 here, 2 there): do both count from one number?"
    ]


def test_a_part_of_the_steps_is_no_reason_to_doubt_them(tmp_path: Path) -> None:
    runs(tmp_path)
    rows, said = joined(tmp_path / "run_0/rollout", tmp_path / "run_0/train/step_2.parquet")
    assert rows == [(2, "0", -2.0, -3.0), (2, "1", -2.125, -3.125)]
    assert said == [
        "joined by uid: 2 of 4 rows have no partner in the second dump, 0 of its 2 rows have none in the first; they "
        "are left out"
    ]


def test_uids_without_a_step_in_common_are_shown_with_it(tmp_path: Path) -> None:
    side(tmp_path / "r", "step_1", "rollout_log_probs", -1.0)
    side(tmp_path / "r", "step_2", "rollout_log_probs", -2.0)
    side(tmp_path / "t", "all", "old_log_probs", -1.0)
    with pytest.raises(ra.DumpError, match=r"\(here '0' of step 1, there '0' of step 0\); .*, or step=COLUMN: uids"):
        joined(tmp_path / "r", tmp_path / "t")


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
    with pytest.raises(ra.UsageError, match=r"d.parquet: several rows of step 0 have the uid 'x', so they"):
        ra.open_dump(rollout, join=double)
    with pytest.raises(ra.DumpError, match="no log-probs of the trainer to join, no column is known as theirs"):
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


def own_rollouts(path: Path) -> Path:
    """Of the rollout alone, as one may write it oneself."""
    values = [[-0.5, -0.25], [-1.0, -2.0]]
    columns = {"uid": ["a", "b"], "rollout_log_probs": values, "lp": values}
    if path.suffix == ".parquet":
        return table(path, **columns)
    if path.suffix == ".npz":
        np.savez(path, **{name: np.array(values) for name, values in columns.items()})
    elif path.suffix == ".pt":
        torch.save({name: v if name == "uid" else torch.tensor(v) for name, v in columns.items()}, path)
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "npz", "parquet", "pt"])
def test_a_rollout_dump_of_ones_own_is_looked_at_and_names_the_join(suffix: str, tmp_path: Path) -> None:
    path = own_rollouts(tmp_path / f"rollout.{suffix}")
    dump = ra.open_dump(path)
    inspection = inspect_dump(dump)
    assert inspection.valid_tokens == 4
    assert "rollout_only" in {finding.kind for finding in inspection.findings}
    with pytest.raises(ra.DumpError) as raised:
        ra.analyze(dump)
    assert str(raised.value).startswith(
        f"rollout.{suffix}: no log-probs of the trainer, no column is known as theirs (of uid, rollout_log_probs, lp; "
        "--map old_log_probs=COLUMN names it); add them with --join DUMP, where"
    )
    mapped = ra.open_dump(path, field_map={"old_log_probs": "lp"})
    assert ra.analyze(mapped, presets=[], sweep=False).overall["log_prob_diff_abs_mean"] == 0
    trained = table(tmp_path / "trained.parquet", uid=["b", "a"], old_log_probs=[[-1.5, -2.5], [-1.0, -0.75]])
    joined = ra.analyze(ra.open_dump(path, join=trained), presets=[], sweep=False)
    assert joined.overall["log_prob_diff_abs_mean"] == 0.5


def test_a_file_without_a_trainer_beside_one_that_has_it_is_refused(tmp_path: Path) -> None:
    own_rollouts(tmp_path / "a.jsonl")
    table(tmp_path / "b.parquet", uid=["a"], rollout_log_probs=[[-0.5]], old_log_probs=[[-0.5]])
    with pytest.raises(ra.DumpError, match=r"^a\.jsonl: no column for old_log_probs \(or log_probs\).* --map old_log"):
        ra.open_dump(tmp_path)
