"""Whatever is read is written as native Parquet and reads back as the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

import rollout_audit as ra
from rollout_audit.__main__ import main
from rollout_audit.dumps import inspect_dump

HERE = Path(__file__).parent
CONFORMANCE = HERE.parent / "conformance" / "dumps"
LAYOUTS = {"roll": "roll", "areal": "areal"}
FOLDERS = [p.name for p in sorted(HERE.iterdir()) if p.is_dir() and p.name not in ("truth", "__pycache__")]
FIELDS = (
    "step",
    "rollout_log_probs",
    "old_log_probs",
    "log_probs",
    "response_mask",
    "advantages",
    "reward",
    "token_ids",
    "group_id",
    "policy_version",
    "newest_version",
)


def same(one: Any, two: Any) -> bool:
    if one is None or two is None:
        return one is two
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, two, equal_nan=one.dtype.kind == "f"))
    return bool(one == two)


def assert_same_rows(first: ra.Dump, second: ra.Dump) -> None:
    compared = 0
    for one, two in zip(first.rows(), second.rows(), strict=True):
        for field in FIELDS:
            assert same(getattr(one, field), getattr(two, field)), (one.uid, field)
        assert one.uid == two.uid
        compared += 1
    assert compared == second.total_rows > 0


@pytest.mark.parametrize("name", FOLDERS)
def test_every_format_reads_back(name: str, tmp_path: Path) -> None:
    dump = ra.open_dump(HERE / name, layout=LAYOUTS.get(name))
    written = ra.convert_dump(dump, tmp_path / "out")
    back = ra.open_dump(tmp_path / "out")
    assert_same_rows(dump, back)
    assert {file.format for file in back.files} == {"parquet"}
    assert (written.rows, len(written.files)) == (dump.total_rows, len(dump.files))
    assert [bool(info.lacks_training) for info in back.infos] == [bool(info.lacks_training) for info in dump.infos]


@pytest.mark.parametrize("name", sorted(p.name for p in CONFORMANCE.iterdir()))
def test_conformance_dumps_read_back(name: str, tmp_path: Path) -> None:
    dump = ra.open_dump(CONFORMANCE / name)
    ra.convert_dump(dump, tmp_path / "out", chunk_tokens=1000)
    back = ra.open_dump(tmp_path / "out")
    assert_same_rows(dump, back)
    assert {n.kind for n in back.notes} == {n.kind for n in dump.notes} - {"no_mask"}


def test_versions_of_tokens_keep_their_ends(tmp_path: Path) -> None:
    """Two rows have as many versions as tokens, the others one a turn."""
    lists = [[-0.5] * n for n in (3, 2, 2, 1, 4)]
    (tmp_path / "in").mkdir()
    versions = [[4, 5, 5], [7, 8, 9], [3, 6], [-1], None]
    table = {"rollout_log_probs": lists, "old_log_probs": lists, "policy_version": versions}
    table["response_mask"] = [[1, 1, 0], [1, 0], [0, 1], [1], [1] * 4]
    pq.write_table(pa.table(table), tmp_path / "in" / "dump.parquet")
    dump = ra.open_dump(tmp_path / "in")
    assert [(r.policy_version, r.newest_version) for r in dump.rows()] == [(4, 5), (7, 9), (6, 6), *[(None, None)] * 2]
    ra.convert_dump(dump, tmp_path / "out")
    assert_same_rows(dump, ra.open_dump(tmp_path / "out"))


def test_floats_have_their_bytes_split_and_all_is_zstd(tmp_path: Path) -> None:
    ra.convert_dump(ra.open_dump(HERE / "slime"), tmp_path / "out")
    path = next((tmp_path / "out").rglob("0.parquet"))
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    split = {c.path_in_schema for c in columns if "BYTE_STREAM_SPLIT" in c.encodings}
    assert split == {
        "rollout_log_probs.list.element",
        "old_log_probs.list.element",
        "advantages.list.element",
        "reward",
    }


def test_chunks_become_row_groups(tmp_path: Path) -> None:
    dump = ra.open_dump(HERE / "nemo_rl/logs/exp_002")
    ra.convert_dump(dump, tmp_path / "out", chunk_tokens=200)
    assert len(ra.open_dump(tmp_path / "out").parts()) > 2


def test_bfloat16_is_remembered(tmp_path: Path) -> None:
    lp = torch.linspace(-3, -0.1, 12).reshape(3, 4).bfloat16()
    save_file({"rollout_log_probs": lp, "old_log_probs": lp.float()}, tmp_path / "step_3.safetensors")
    dump = ra.open_dump(tmp_path / "step_3.safetensors")
    ra.convert_dump(dump, tmp_path / "out")
    back = ra.open_dump(tmp_path / "out")
    assert_same_rows(dump, back)
    (note,) = [note for note in back.notes if note.kind == "half_precision"]
    assert note.message == "rollout_log_probs is stored as bfloat16 (about 2 digits) in 1 of 1 files"
    assert inspect_dump(back).files[0].fields[0].type == "list<element: float> of bfloat16"


def test_rows_keep_the_names_they_had(tmp_path: Path) -> None:
    """Of the file and the row that they came from, whatever was left out before them; where one has a uid, that."""
    lists = [[-0.5], [float("nan")], [-0.25], [-0.125]]
    table = {"rollout_log_probs": lists, "old_log_probs": [[-0.5]] * 4, "uid": [None, "b", None, "d"]}
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(table), tmp_path / "in" / "step_1.pq")
    pq.write_table(pa.table(table).drop_columns("uid"), tmp_path / "in" / "step_2.pq")
    ra.convert_dump(ra.open_dump(tmp_path / "in"), tmp_path / "out", on_fault="drop")
    names = [row.uid for row in ra.open_dump(tmp_path / "out").rows()]
    assert names == ["step_1.pq#0", "step_1.pq#2", "d", "step_2.pq#0", "step_2.pq#2", "step_2.pq#3"]


def test_names_of_rows_are_nothing_to_join_by(tmp_path: Path) -> None:
    for side in ("rollout_log_probs", "old_log_probs"):
        (tmp_path / side).mkdir()
        columns = {"rollout_log_probs": [[-0.5]], "old_log_probs": [[-0.5]]}
        pq.write_table(pa.table(columns), tmp_path / side / "step_1.parquet")
        ra.convert_dump(ra.open_dump(tmp_path / side), tmp_path / side / "out")
    with pytest.raises(ra.UsageError, match=r"its uids, such as 'step_1.parquet#0', only name rows that had none"):
        ra.open_dump(tmp_path / "rollout_log_probs/out", join=tmp_path / "old_log_probs/out")


def test_faults_are_not_converted_away(tmp_path: Path) -> None:
    lp = torch.tensor([[-0.5, float("nan")], [-0.5, -0.25]])
    save_file({"rollout_log_probs": lp, "old_log_probs": torch.full((2, 2), -0.5)}, tmp_path / "a.safetensors")
    dump = ra.open_dump(tmp_path / "a.safetensors")
    with pytest.raises(ra.DumpError, match="rollout_log_probs is NaN under mask 1"):
        ra.convert_dump(dump, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.safetensors"]
    written = ra.convert_dump(dump, tmp_path / "out", on_fault="drop")
    assert (written.rows, written.dropped) == (1, 1)


def test_folder_that_holds_something_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["convert", str(HERE / "verl/batch_step_1.pt"), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path}: not empty (it holds notes.txt); give a new folder to --out, or clear it\n"
    )
    assert main(["convert", str(HERE / "verl/batch_step_1.pt"), "--out", str(tmp_path / "notes.txt")]) == 2
    assert "is not a folder; give another --out" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["convert", str(HERE / "verl/batch_step_1.pt"), "--out", str(tmp_path / "empty")]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"wrote {tmp_path / 'empty'} (1 file, 24 rows)\n")
    assert ra.open_dump(tmp_path / "empty").total_rows == 24


def test_steps_limit_and_join_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slime = HERE / "slime/grpo_run"
    arguments = ["convert", slime / "rollout_data", "--join", slime / "train_data", "--steps", "1:3", "--limit", "20"]
    assert main([*map(str, arguments), "--out", str(tmp_path / "out")]) == 0
    rows = list(ra.open_dump(tmp_path / "out").rows())
    assert [row.step for row in rows] == [1] * 16 + [2] * 4
    assert all(row.old_log_probs is not None for row in rows)
    assert "(2 files, 20 rows)" in capsys.readouterr().err


def test_a_mount_point_is_filled_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing may be made beside it, nor renamed over it."""
    monkeypatch.setattr("rollout_audit.dumps.target._can_rename", lambda target: False)
    (out := tmp_path / "mount").mkdir()
    written = ra.convert_dump(ra.open_dump(HERE / "slime"), out)
    assert sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()) == sorted(written.files)
    assert [p.name for p in tmp_path.iterdir()] == ["mount"]


@pytest.mark.parametrize(
    "names",
    [
        ["s1.jsonl", "s{1}.jsonl"],
        ["s.jsonl", "s.ndjson", "s.jsonl.jsonl", "s.jsonl_2.jsonl"],
        ["s.jsonl", "S.jsonl", "s.ndjson"],
        ["a/s.jsonl", "a/s.ndjson", "s.jsonl"],
    ],
)
def test_every_file_has_a_place_of_its_own(names: list[str], tmp_path: Path) -> None:
    (tmp_path / "in/a").mkdir(parents=True)
    for place, name in enumerate(names):
        row = {"uid": str(place), "rollout_log_probs": [-0.5 - place], "old_log_probs": [-1.0]}
        (tmp_path / "in" / name).write_text(json.dumps(row) + "\n")
    dump = ra.open_dump(tmp_path / "in")
    converted = ra.convert_dump(dump, tmp_path / "out")
    written = [str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.parquet")]
    assert sorted(written) == sorted(converted.files)
    assert len({name.casefold() for name in written}) == len(names)
    uids = sorted(row.uid for row in ra.open_dump(tmp_path / "out").rows())
    assert uids == [str(place) for place in range(len(names))]
