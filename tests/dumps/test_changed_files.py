"""A dump is what it was when it was opened: a file that changed since is named, lines that were appended wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file

import rollout_audit as ra

ROW_GROUP = 10


def rows(value: float, count: int) -> dict[str, list[list[float]]]:
    return {"rollout_log_probs": [[value] * 3] * count, "old_log_probs": [[-0.5] * 3] * count}


def parquet(path: Path, value: float, count: int) -> None:
    pq.write_table(pa.table(rows(value, count)), path, row_group_size=ROW_GROUP)


def jsonl(path: Path, value: float, count: int) -> None:
    row = {name: lists[0] for name, lists in rows(value, 1).items()}
    path.write_text((json.dumps(row) + "\n") * count)


def safetensors(path: Path, value: float, count: int) -> None:
    save_file({name: np.array(lists, np.float32) for name, lists in rows(value, count).items()}, path)


def npz(path: Path, value: float, count: int) -> None:
    with path.open("wb") as stream:
        np.savez(stream, **{name: np.array(lists) for name, lists in rows(value, count).items()})


def tensors(path: Path, value: float, count: int) -> None:
    torch.save({name: torch.tensor(lists) for name, lists in rows(value, count).items()}, path)


WRITERS: dict[str, Any] = {
    "a.parquet": parquet,
    "a.jsonl": jsonl,
    "a.safetensors": safetensors,
    "a.npz": npz,
    "a.pt": tensors,
}


@pytest.mark.parametrize("count", [5, 30, 60])
@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_was_written_anew_is_refused(name: str, count: int, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name, -0.25, 30)
    dump = ra.open_dump(tmp_path)
    if count == 30 and name == "a.safetensors":
        pytest.skip("other values alone do not show in the header")
    WRITERS[name](tmp_path / name, -0.125, count)
    with pytest.raises(ra.DumpError) as raised:
        list(dump.chunks())
    assert str(raised.value) == (
        f"{name}: changed since the dump was opened; open it again when nothing writes to it any more"
    )


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_went_away_is_named(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name, -0.25, 30)
    dump = ra.open_dump(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ra.DumpError) as raised:
        list(dump.chunks())
    assert str(raised.value) == f"{tmp_path / name}: no longer there: moved or deleted since the dump was opened"


@pytest.mark.parametrize("appended", ['{"rollout_log_probs": [-9.0], "old_log_probs": [-9.0]}\n', '{"rollout_lo'])
def test_lines_that_were_appended_since_wait_for_the_next_time(appended: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    jsonl(path, -0.25, 30)
    dump = ra.open_dump(path)
    with path.open("a") as stream:
        stream.write(appended)
    assert [row.rollout_log_probs.tolist() for row in dump.rows()] == [[-0.25] * 3] * 30


def test_either_side_of_a_join_is_watched(tmp_path: Path) -> None:
    uid = [str(i) for i in range(4)]
    for name, side in (("rollout", "rollout_log_probs"), ("train", "old_log_probs")):
        pq.write_table(pa.table({"uid": uid, side: [[-0.5]] * 4}), tmp_path / f"{name}.parquet")
    dump = ra.open_dump(tmp_path / "rollout.parquet", join=tmp_path / "train.parquet")
    assert len(list(dump.rows())) == 4
    pq.write_table(pa.table({"uid": uid[::-1], "old_log_probs": [[-0.75]] * 4}), tmp_path / "train.parquet")
    with pytest.raises(ra.DumpError, match=r"^train\.parquet: changed since the dump was opened"):
        list(dump.rows())
