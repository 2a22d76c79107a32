"""Whole numbers, one a row: steps, versions, token ids. What is none is said, never rounded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from rollout_audit.dumps import FaultLog, inspect_dump, open_dump
from rollout_audit.dumps.naming import step_in_metadata
from rollout_audit.errors import DumpFaultError

LP = [[-0.5, -0.2]]
FAR = 2**63


def _columns(rows: int, **more: Any) -> dict[str, Any]:
    return {"rollout_log_probs": LP * rows, "old_log_probs": LP * rows, "response_mask": [[1, 1]] * rows} | more


def _told(dump: Any) -> list[tuple[Any, ...]]:
    return [(f.kind, f.severity, f.file, f.row, f.count, f.message) for f in inspect_dump(dump).findings]


@pytest.mark.parametrize(
    ("steps", "row", "count", "shown"),
    [
        (pa.array([2.0, 1.5, 2.5]), 1, 2, "1.5"),
        (pa.array([1e30, math.nan, 1.0]), 0, 2, "1e+30"),
        (pa.array([1.0, 1.0, math.nan]), 2, 1, "nan"),
        (pa.array([-math.inf, 1.0, 1.0]), 0, 1, "-inf"),
        (pa.array([1, FAR, 2], pa.uint64()), 1, 1, "9223372036854775808"),
        (pa.array([float(FAR), 1.0, 2.0]), 0, 1, "9.223372036854776e+18"),
        (pa.array([[1.0], [2.0], [3.5, 4.0]]), 2, 1, "3.5"),
    ],
)
def test_step_that_is_no_whole_number_is_an_error(write: Any, steps: Any, row: int, count: int, shown: str) -> None:
    dump = open_dump(write("step_3.parquet", **_columns(3, step=steps)))
    message = f"step is {shown}, not a whole number that int64 holds"
    assert _told(dump) == [("step_value", "error", "step_3.parquet", row, count, message)]
    with pytest.raises(DumpFaultError, match=f"^step_3.parquet, row {row}: step is "):
        list(dump.chunks())
    log = FaultLog()
    kept = [chunk.rows for chunk in dump.chunks(on_fault="drop", log=log)]
    assert sum(kept) == 3 - count
    assert next((d.row, d.kind) for d in log.dropped) == (row, "step_value")


def test_rows_of_an_unknown_step_are_in_every_selection_and_in_no_range(write: Any) -> None:
    dump = open_dump(write("step_90.parquet", **_columns(3, step=[1.5, 2.0, 7.0])))
    with pytest.raises(DumpFaultError, match=r"row 0: step is 1\.5"):
        list(dump.chunks(steps=(7, 8)))
    (chunk,) = dump.chunks(steps=(7, 8), on_fault="drop")
    assert chunk.steps.tolist() == [7]
    (file,) = inspect_dump(dump).files
    assert (file.first_step, file.last_step) == (2, 7)


def test_whole_floats_and_the_ends_of_int64_are_steps(write: Any) -> None:
    for steps in (pa.array([3.0, -4.0]), pa.array([2**63 - 1, -(2**63)]), pa.array([1, 5], pa.uint64())):
        dump = open_dump(write(**_columns(2, step=steps)))
        assert _told(dump) == []
        assert [row.step for row in dump.rows()] == [int(v) for v in steps.to_pylist()]


def test_rows_without_a_step_are_said(write: Any) -> None:
    dump = open_dump(write("step_3.parquet", **_columns(4, step=[1, None, 2, None])))
    message = "2 rows without a step take the file's step 3"
    assert _told(dump) == [("step_missing", "info", "step_3.parquet", 1, 2, message)]
    assert [row.step for row in dump.rows()] == [1, 3, 2, 3]
    one = open_dump(write("step_3.parquet", **_columns(2, step=pa.array([[1], [None]]))))
    assert _told(one)[0][-1] == "1 row without a step takes the file's step 3"


@pytest.mark.parametrize(
    ("versions", "expected", "row", "count", "shown"),
    [
        (pa.array([3.5, 4.0, math.nan]), [None, 4, None], 0, 2, "3.5"),
        (pa.array([5, FAR, 6], pa.uint64()), [5, None, 6], 1, 1, str(FAR)),
        (pa.array(["5", "default", "99999999999999999999"]), [5, None, None], 1, 2, "'default'"),
        (pa.array([1, 2, -7]), [1, 2, None], 2, 1, "-7"),
        (pa.array([[4.0, 3.5], [4.0], []]), [None, 4, None], 0, 1, "3.5"),
    ],
)
@pytest.mark.parametrize("field", ["policy_version", "trainer_version"])
def test_version_that_is_no_number_is_a_warning(
    write: Any, field: str, versions: Any, expected: Any, row: int, count: int, shown: str
) -> None:
    dump = open_dump(write(**_columns(3, **{field: versions})))
    message = f"{field} is {shown}, not a version number: such rows have no version"
    assert _told(dump) == [("version_value", "warning", "dump.parquet", row, count, message)]
    assert [getattr(row, field) for row in dump.rows()] == expected


@pytest.mark.parametrize(
    ("versions", "oldest", "newest"),
    [
        ([[3, 5], [5, -1], [-1, -1]], [3, 5, None], [5, 5, None]),
        ([["9", "10"], ["11"], []], [9, 11, None], [10, 11, None]),
        ([[3.0, 3.0, 9.0], None, [4.0, 4.0]], [3, None, 4], [9, None, 4]),
        ([[2, None], [None, 4], [None]], [2, 4, None], [2, 4, None]),
    ],
)
def test_lists_of_versions_have_an_oldest_and_a_newest(
    write: Any, versions: Any, oldest: list[int | None], newest: list[int | None]
) -> None:
    dump = open_dump(write(**_columns(3, policy_version=pa.array(versions))))
    assert _told(dump) == []
    assert [row.policy_version for row in dump.rows()] == oldest
    assert [row.newest_version for row in dump.rows()] == newest


def test_versions_of_masked_tokens_do_not_count(write: Any) -> None:
    columns = _columns(2, policy_version=[[3, 5], [3, 5]]) | {"response_mask": [[0, 1], [1, 0]]}
    rows = list(open_dump(write(**columns)).rows())
    assert [(row.policy_version, row.newest_version) for row in rows] == [(5, 5), (3, 3)]


def test_absent_versions_are_nothing_to_say(write: Any) -> None:
    dump = open_dump(
        write(**_columns(3, policy_version=[None, -1, 4], trainer_version=pa.array([[4, None], [], None])))
    )
    assert _told(dump) == []
    rows = list(dump.rows())
    assert [row.policy_version for row in rows] == [None, None, 4]
    assert [row.newest_version for row in rows] == [None] * 3
    assert [row.trainer_version for row in rows] == [4, None, None]  # a null element is no version 0


def test_names_and_rewards_are_taken_as_they_are(write: Any) -> None:
    path = write(
        **_columns(3),
        uid=pa.array([2**64 - 1, 7, 8], pa.uint64()),
        group_id=[1.5, math.nan, 2.0],
        reward=pa.array([[100, 100], [1, None], []], pa.list_(pa.int8())),
    )
    rows = list(open_dump(path).rows())
    assert [row.uid for row in rows] == [str(2**64 - 1), "7", "8"]
    assert [row.group_id for row in rows] == ["1.5", None, "2.0"]
    assert [row.reward for row in rows] == [200.0, None, None]


def test_token_ids_that_are_none(write: Any) -> None:
    ids = pa.array([[1.0, 2.5], [None, 7.0], [math.nan, 3.0], None])
    dump = open_dump(write(**(_columns(4) | {"response_mask": [[1, 1], [1, 1], [0, 1], [1, 1]]}), token_ids=ids))
    assert [(f.kind, f.severity, f.row, f.position, f.count) for f in inspect_dump(dump).findings] == [
        ("token_id_value", "warning", 0, 1, 2),
        ("ids_missing", "info", 3, None, 1),
    ]
    (chunk,) = dump.chunks()
    assert chunk.token_ids is not None
    assert chunk.token_ids.tolist() == [1, -1, -1, 7, -1, 3, -1, -1]


@pytest.mark.parametrize(
    ("text", "step"),
    [("17", 17), (" -3 ", -3), ("--5", None), ("1.5", None), ("9" * 19, None), (str(2**63 - 1), 2**63 - 1), ("", None)],
)
def test_step_in_metadata_of_both_formats(write: Any, tmp_path: Path, text: str, step: int | None) -> None:
    assert step_in_metadata({"step": text}) == step_in_metadata({b"step": text.encode()}) == step
    path = write("step_8.parquet", **_columns(1))
    pq.write_table(pq.read_table(path).replace_schema_metadata({"step": text}), path)
    lp = torch.tensor(LP)
    save_file({"rollout_log_probs": lp, "old_log_probs": lp.clone()}, tmp_path / "step_8.safetensors", {"step": text})
    for file in (path, tmp_path / "step_8.safetensors"):
        assert [row.step for row in open_dump(file).rows()] == [8 if step is None else step]


def test_step_tensor_of_floats(tmp_path: Path) -> None:
    lp = torch.tensor(LP * 2)
    tensors = {"rollout_log_probs": lp, "old_log_probs": lp.clone(), "step": torch.tensor([1.5, np.nan])}
    save_file(tensors, tmp_path / "x.safetensors")
    kinds = {f.kind: f.count for f in inspect_dump(open_dump(tmp_path)).findings if f.severity == "error"}
    assert kinds["step_value"] == 2
