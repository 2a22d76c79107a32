"""Types of columns, row groups, chunks."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_audit.dumps import FaultLog, inspect_dump, open_dump
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.errors import NothingToAuditError

ROOT = Path(__file__).parents[2]
RECORDINGS = [
    folder
    for parent in (ROOT / "sample_data", ROOT / "tests/conformance/dumps", ROOT.parent / "shared/data")
    if parent.is_dir()
    for folder in sorted(parent.iterdir())
    if folder.is_dir() and folder.name != "golden"  # approved figures
]
R = [[-0.5, -0.25], [], [-0.125, -2.0, -3.0]]
ONES = [[1, 1], [], [1, 1, 1]]


def _lists(kind: Any, values: Any = R) -> Any:
    return pa.array(values, kind)


TYPES: dict[str, Any] = {
    "list<float64>": _lists(pa.list_(pa.float64())),
    "large_list<float32>": _lists(pa.large_list(pa.float32())),
    "float16": _lists(pa.list_(pa.float16())),
    "large_list<float16>": _lists(pa.large_list(pa.float16())),
    "dictionary values": pa.ListArray.from_arrays(
        pa.array([0, 2, 2, 5], pa.int32()), pa.array([-0.5, -0.25, -0.125, -2.0, -3.0]).dictionary_encode()
    ),
    "fixed_size_list": _lists(pa.list_(pa.float32(), 2), [[-0.5, -0.25], [-0.5, -0.25], [-0.125, -2.0]]),
    "large_list of dictionary": pa.LargeListArray.from_arrays(
        pa.array([0, 2, 2, 5], pa.int64()), pa.array([-0.5, -0.25, -0.125, -2.0, -3.0]).dictionary_encode()
    ),
    "decimal": _lists(pa.list_(pa.decimal128(6, 3)), [[Decimal(str(v)) for v in row] for row in R]),
}


@pytest.mark.parametrize("column", TYPES.values(), ids=TYPES.keys())
def test_every_list_type_gives_the_same_numbers(write: Any, column: Any) -> None:
    expected = column.to_pylist() if pa.types.is_fixed_size_list(column.type) else R
    dump = open_dump(write(rollout_log_probs=column, old_log_probs=expected))
    rows = list(dump.rows())
    assert [row.rollout_log_probs.tolist() for row in rows] == expected
    assert all(row.rollout_log_probs.dtype in (np.float32, np.float64) for row in rows)


@pytest.mark.parametrize(
    "mask", [pa.bool_(), pa.int8(), pa.uint8(), pa.int64(), pa.float16(), pa.float32(), pa.float64()]
)
def test_every_mask_type(write: Any, mask: Any) -> None:
    values: list[list[Any]] = [[1, 0], [], [0, 1, 1]]
    if mask == pa.bool_():
        values = [[bool(v) for v in row] for row in values]
    elif pa.types.is_floating(mask):
        values = [[float(v) for v in row] for row in values]
    path = write(rollout_log_probs=R, old_log_probs=R, response_mask=pa.array(values, pa.list_(mask)))
    (chunk,) = open_dump(path).chunks()
    assert chunk.response_mask.dtype == np.bool_
    assert chunk.response_mask.tolist() == [True, False, False, True, True]


def test_long_int8_mask_does_not_wrap(write: Any) -> None:
    lp = [[-0.5] * 300]
    mask = pa.array([[1] * 300], pa.list_(pa.int8()))
    assert (
        inspect_dump(open_dump(write(rollout_log_probs=lp, old_log_probs=lp, response_mask=mask))).valid_tokens == 300
    )


def test_fixed_size_list_with_a_null_row(write: Any) -> None:
    fixed = pa.array([[-0.5, -0.25], None, [-1.5, -2.0]], pa.list_(pa.float32(), 2))
    plain = [[-0.5, -0.25], [-0.5, -0.1], [-1.5, -2.0]]
    log = FaultLog()
    dump = open_dump(write(rollout_log_probs=fixed, old_log_probs=plain, response_mask=[[1, 1]] * 3))
    (chunk,) = dump.chunks(on_fault="drop", log=log)
    assert chunk.row_numbers.tolist() == [0, 2]
    assert chunk.rollout_log_probs.tolist() == [-0.5, -0.25, -1.5, -2.0]
    assert [(d.row, d.kind) for d in log.dropped] == [(1, "missing_row")]


def test_list_of_null_in_the_first_file_does_no_harm(write: Any, tmp_path: Path) -> None:
    empty = pa.array([[], []], pa.list_(pa.null()))
    write("step_1.parquet", rollout_log_probs=empty, old_log_probs=empty, response_mask=empty)
    write("step_2.parquet", rollout_log_probs=R, old_log_probs=R, response_mask=ONES)
    chunks = list(open_dump(tmp_path).chunks())
    assert [(chunk.file, chunk.rows, chunk.tokens) for chunk in chunks] == [(0, 2, 0), (1, 3, 5)]


def test_null_column_counts_as_absent(write: Any) -> None:
    path = write(rollout_log_probs=R, old_log_probs=R, response_mask=ONES, log_probs=pa.nulls(3), reward=pa.nulls(3))
    dump = open_dump(path)
    assert (dump.has("log_probs"), dump.has("reward")) == (False, False)
    (chunk,) = dump.chunks()
    assert (chunk.log_probs, chunk.reward) == (None, None)


def test_mixed_precision_is_widened_and_said(write: Any, tmp_path: Path) -> None:
    kinds = (pa.float32(), pa.float64(), pa.float16())
    for step, kind in enumerate(kinds):
        write(
            f"step_{step}.parquet",
            rollout_log_probs=_lists(pa.list_(kind)),
            old_log_probs=R,
            response_mask=ONES,
        )
    dump = open_dump(tmp_path)
    assert [row.rollout_log_probs.tolist() for row in dump.rows()] == R * 3
    assert [(f.kind, f.file, f.message) for f in inspect_dump(dump).findings] == [
        (
            "mixed_types",
            "step_1.parquet",
            "rollout_log_probs is stored as float16 and float32 and float64 in different files: "
            "all are widened exactly",
        ),
        (
            "half_precision",
            "step_2.parquet",
            "rollout_log_probs is stored as float16 (about 3 digits) in 1 of 3 files",
        ),
    ]


def test_columns_in_any_order_and_extra_ones(write: Any, tmp_path: Path) -> None:
    write("step_1.parquet", rollout_log_probs=R, old_log_probs=R, response_mask=ONES)
    write("step_2.parquet", prompt=["a", "b", "c"], response_mask=ONES, old_log_probs=R, rollout_log_probs=R)
    dump = open_dump(tmp_path)
    assert dump.columns_read == ("rollout_log_probs", "old_log_probs", "response_mask")
    assert [row.rollout_log_probs.tolist() for row in dump.rows()] == R * 2
    assert inspect_dump(dump).files[1].unused_columns == ("prompt",)


def test_column_names_with_dots(write: Any) -> None:
    path = write(**{"batch.rollout_log_probs": R, "batch.old": pa.array(R), "batch": pa.array([1, 2, 3])})
    dump = open_dump(path, field_map={"rollout_log_probs": "batch.rollout_log_probs", "old_log_probs": "batch.old"})
    assert [row.rollout_log_probs.tolist() for row in dump.rows()] == R
    assert dump.total_values >= 5


def test_all_fields(write: Any) -> None:
    path = write(
        rollout_log_probs=R,
        old_log_probs=R,
        response_mask=ONES,
        advantages=[1.0, None, -1.0],
        reward=[1.0, None, 0.0],
        token_ids=pa.array([[5, 6], [], [7, 8, 9]], pa.list_(pa.int32())),
        uid=["a", None, "c"],
        group_id=pa.array([1, 1, None]),
        policy_version=pa.array([3, None, 4], pa.int32()),
        trainer_version=["5", "x", "7"],
        step=pa.array([2, None, 3], pa.int16()),
    )
    first, second, third = open_dump(path).rows()
    assert (first.uid, second.uid, third.uid) == ("a", "dump.parquet#1", "c")
    assert (first.step, second.step, third.step) == (2, 0, 3)
    assert (first.reward, second.reward, third.reward) == (1.0, None, 0.0)
    assert (first.group_id, third.group_id) == ("1", None)
    assert (first.policy_version, second.policy_version) == (3, None)
    assert (first.trainer_version, second.trainer_version) == (5, None)
    assert third.token_ids is not None
    assert third.token_ids.tolist() == [7, 8, 9]
    assert third.advantages is not None
    assert third.advantages.tolist() == [-1.0] * 3


def test_lists_where_a_row_has_one_value(write: Any) -> None:
    path = write(
        rollout_log_probs=R,
        old_log_probs=R,
        reward=[[0.0, 1.0], [], [0.25, 0.0, 0.5]],
        uid=[["a"], [None], ["c"]],
        policy_version=pa.array([[4, 3], [], [7]]),
        advantages=R,
    )
    rows = list(open_dump(path).rows())
    assert [row.reward for row in rows] == [1.0, None, 0.75]
    assert [row.uid for row in rows] == ["a", "dump.parquet#1", "c"]
    assert [row.policy_version for row in rows] == [3, None, 7]
    assert rows[2].advantages is not None
    assert rows[2].advantages.tolist() == R[2]


def _big(write: Any, rows: int = 400, length: int = 25) -> Path:
    rng = np.random.default_rng(1)
    lp = [list(-rng.exponential(1, length)) for _ in range(rows)]
    path: Path = write(row_group_size=64, rollout_log_probs=lp, old_log_probs=lp, step=[i // 100 for i in range(rows)])
    return path


def test_chunks_are_bounded_and_never_span_row_groups(write: Any) -> None:
    dump = open_dump(_big(write))
    chunks = list(dump.chunks(chunk_tokens=500))
    assert max(chunk.tokens for chunk in chunks) <= 500
    assert len({int(c.row_numbers[0]) // 64 for c in chunks}) == 7
    assert all(c.row_numbers[0] // 64 == c.row_numbers[-1] // 64 for c in chunks)
    assert np.concatenate([c.row_numbers for c in chunks]).tolist() == list(range(400))
    assert (dump.total_rows, dump.total_values) == (400, 10_000)


def test_one_row_group_is_not_held_in_memory(tmp_path: Path) -> None:
    rows, length = 2_000, 1_000
    values = np.random.default_rng(0).normal(-3, 0.5, rows * length).astype(np.float32)
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * length)
    lists = pa.ListArray.from_arrays(offsets, pa.array(values))
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"rollout_log_probs": lists, "old_log_probs": lists}), path, row_group_size=rows)
    del values, lists
    before, peak = pa.total_allocated_bytes(), 0
    for chunk in open_dump(path).chunks(chunk_tokens=2**15):
        assert chunk.tokens <= 2**15
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 8e6 < path.stat().st_size / 1.5


def test_parts_give_the_chunks_of_the_whole(write: Any) -> None:
    dump = pickle.loads(pickle.dumps(open_dump(_big(write))))
    whole = list(dump.chunks(chunk_tokens=500))
    pieces = [chunk for part in dump.parts() for chunk in dump.chunks(chunk_tokens=500, parts=[part])]
    assert _values(whole) == _values(pieces)
    assert [len(c.row_numbers) for c in whole] == [len(c.row_numbers) for c in pieces]


def _values(chunks: Iterable[Chunk]) -> list[float]:
    return [value for chunk in chunks for value in chunk.rollout_log_probs.tolist()]


def test_steps_and_limit(write: Any) -> None:
    dump = open_dump(_big(write))
    chosen = list(dump.chunks(steps=(1, 3), chunk_tokens=500))
    assert np.concatenate([c.row_numbers for c in chosen]).tolist() == list(range(100, 300))
    assert sum(c.rows for c in dump.chunks(limit=70)) == 70
    few = list(dump.chunks(steps=(2, None), limit=5))
    assert np.concatenate([c.row_numbers for c in few]).tolist() == [200, 201, 202, 203, 204]
    with pytest.raises(NothingToAuditError, match="no row is in the steps asked for"):
        list(dump.chunks(steps=(9, None)))


def test_faults_outside_the_selection_do_not_count(write: Any) -> None:
    bad = [[-0.5, float("nan")], *R[1:]]
    dump = open_dump(write(rollout_log_probs=bad, old_log_probs=R, response_mask=ONES, step=[1, 2, 2]))
    log = FaultLog()
    (chunk,) = dump.chunks(steps=(2, 3), log=log)
    assert chunk.row_numbers.tolist() == [1, 2]
    assert log.findings(["dump.parquet"]) == ()


def test_steps_come_from_column_metadata_or_name(write: Any, tmp_path: Path) -> None:
    columns = {"rollout_log_probs": R, "old_log_probs": R, "response_mask": ONES}
    write("step_4.parquet", **columns)
    path = write("step_5.parquet", **columns)
    pq.write_table(pq.read_table(path).replace_schema_metadata({"step": "17"}), path)
    assert sorted({row.step for row in open_dump(tmp_path).rows()}) == [4, 17]
    assert [c.file for c in open_dump(tmp_path).chunks(steps=(17, None))] == [1]


def test_only_wanted_fields_are_read(write: Any) -> None:
    path = write(rollout_log_probs=R, old_log_probs=R, response_mask=ONES, uid=["a", "b", "c"], reward=[1.0, 2.0, 3.0])
    (chunk,) = open_dump(path).chunks(fields=["reward"])
    assert chunk.uids is None
    assert chunk.reward is not None
    assert chunk.reward.tolist() == [1.0, 2.0, 3.0]


def test_values_are_not_copied(write: Any) -> None:
    (chunk,) = open_dump(write(rollout_log_probs=R, old_log_probs=R, response_mask=ONES)).chunks()
    assert not chunk.rollout_log_probs.flags.owndata
    assert not chunk.response_mask.flags.owndata


def test_digest_follows_content(write: Any) -> None:
    one = open_dump(write("a.parquet", rollout_log_probs=R, old_log_probs=R))
    two = open_dump(write("b.parquet", rollout_log_probs=R, old_log_probs=R))
    other = open_dump(write("c.parquet", rollout_log_probs=R, old_log_probs=[[-1.0, -1.0], [], R[2]]))
    assert one.digest(one.files[0]) == two.digest(two.files[0]) != other.digest(other.files[0])
    assert len(one.digest(one.files[0])) == 64


@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda folder: folder.name)
def test_sound_recordings_raise_no_finding(folder: Path) -> None:
    assert inspect_dump(open_dump(folder)).findings == ()


def test_inspection_counts_and_ranges(write: Any) -> None:
    path = write(
        "step_3.parquet",
        row_group_size=2,
        rollout_log_probs=R,
        old_log_probs=R,
        response_mask=[[1, 0], [], [1, 1, 0]],
    )
    inspection = inspect_dump(open_dump(path))
    (file,) = inspection.files
    assert (file.name, file.format, file.rows, file.empty_rows, file.row_groups) == (
        "step_3.parquet",
        "parquet",
        3,
        1,
        2,
    )
    assert (file.tokens, file.valid_tokens, file.first_step, file.last_step) == (5, 3, 3, 3)
    assert (inspection.tokens, inspection.valid_tokens, inspection.has_errors) == (5, 3, False)
    rollout = inspection.ranges[0]
    assert (rollout.field, rollout.tokens, rollout.minimum, rollout.maximum) == (
        "rollout_log_probs",
        3,
        -2.0,
        -0.125,
    )
    assert rollout.mean == pytest.approx(-2.625 / 3)
    assert (rollout.zeros, rollout.bf16_fraction) == (0, 1.0)
