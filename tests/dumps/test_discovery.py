"""Paths → ordered files; steps; and one line for everything that is not a dump."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import fsspec.implementations.local
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file

from rollout_audit.dumps import open_dump
from rollout_audit.dumps.discovery import PICKLE_ADVICE, discover
from rollout_audit.dumps.formats.table import FORMATS
from rollout_audit.dumps.naming import natural_key, step_from_path
from rollout_audit.errors import DumpNotFoundError, UnreadableFileError

SUFFIXES = ".parquet, .pq, .safetensors, .jsonl, .ndjson, .pt, .pth or .npz"
LP = [[-0.5, -0.2]]
COLUMNS = {"rollout_log_probs": LP, "old_log_probs": LP, "response_mask": [[1, 1]]}


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("run/step_000003.parquet", 3),
        ("run/train_data_step12.safetensors", 12),
        ("global_step_12/x.parquet", 12),
        ("run/global_step_7_training_input.parquet", 7),
        ("run/rollout_7.parquet", 7),
        ("run/rollout_7_step_3.parquet", 3),
        ("run/step=4/part-0.parquet", 4),
        ("token_exports/step_3/rank_0.parquet", 3),
        ("step_5/actor/x.parquet", 5),
        ("run/train_rank_3.parquet", 0),
        ("run/train_5_rank_3.parquet", 5),
        ("exp_002/data_5_rank_1.parquet", 5),
        ("run/0_1.parquet", 1),
        ("run/42.parquet", 42),
        ("run/dump.parquet", 0),
        ("run/timestep9/x.parquet", 0),
        ("run/Step-10.parquet", 10),
        ("run/step_1_of_step_2.parquet", 2),
        ("run/99999999999999999999999.parquet", 0),
    ],
)
def test_step_from_path(path: str, step: int) -> None:
    assert step_from_path(path) == step


def test_natural_order_is_total() -> None:
    paths = ["a/step_9.parquet", "a/step_10.parquet", "a/step_010.parquet", "a/b/x.parquet", "a2/x", "a10/x"]
    expected = [
        "a/b/x.parquet",
        "a/step_9.parquet",
        "a/step_010.parquet",
        "a/step_10.parquet",
        "a2/x",
        "a10/x",
    ]
    for seed in range(5):
        shuffled = random.Random(seed).sample(paths, len(paths))
        assert sorted(shuffled, key=natural_key) == expected


def test_folder_is_searched_recursively_in_natural_order(write: Any, tmp_path: Path) -> None:
    for name in (
        "step_10.parquet",
        "step_9.parquet",
        "deep/er/step_2.parquet",
        ".hidden.parquet",
        ".git/x.parquet",
    ):
        write(name, **COLUMNS)
    (tmp_path / "LABEL").write_text("sound")
    assert [f.name for f in discover(tmp_path)] == [
        "deep/er/step_2.parquet",
        "step_9.parquet",
        "step_10.parquet",
    ]


def test_names_do_not_depend_on_how_paths_were_typed(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (9, 10, 11):
        write(f"run/step_{step}.parquet", **COLUMNS)
    monkeypatch.chdir(tmp_path)
    files = [f"run/step_{step}.parquet" for step in (9, 10, 11)]
    ways: list[Any] = [
        "run",
        tmp_path / "run",
        "run/*.parquet",
        "./run/../run",
        files,
        files[::-1],
        [files[2], "run", tmp_path / files[0]],
        f"file://{tmp_path}/run",
    ]
    found = [discover(way) for way in ways]
    assert all(one == found[0] for one in found)
    assert [f.name for f in found[0]] == ["step_9.parquet", "step_10.parquet", "step_11.parquet"]


def test_single_file_is_called_by_its_name(write: Any) -> None:
    (file,) = discover(write("a/b/c.parquet", **COLUMNS))
    assert (file.name, file.format, file.size) == ("c.parquet", "parquet", os.path.getsize(file.path))


def test_memory_uri(write: Any, tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    for name in ("step_1.parquet", "step_2.parquet"):
        fs.pipe_file(f"/dumps/{name}", write(name, **COLUMNS).read_bytes())
    dump = open_dump("memory://dumps")
    assert [f.name for f in dump.files] == ["step_1.parquet", "step_2.parquet"]
    assert [row.step for row in dump.rows()] == [1, 2]
    assert [i.digest for i in dump.infos] == [i.digest for i in open_dump(tmp_path).infos]
    assert len(open_dump("memory://dumps/*_2.parquet").files) == 1


def test_formats_are_known_by_content(write: Any, tmp_path: Path) -> None:
    parquet = write("odd.bin", **COLUMNS)
    tensors = tmp_path / "also_odd.bin"
    lp = np.array([[-0.5, -0.2]], np.float32)
    save_file({"rollout_log_probs": lp, "old_log_probs": lp}, tensors)
    assert [f.format for f in discover([parquet, tensors])] == ["safetensors", "parquet"]


def npz_bytes(columns: dict[str, Any]) -> bytes:
    np.savez(buffer := io.BytesIO(), **columns)
    return buffer.getvalue()


SAVED = {
    "safetensors": lambda path, columns: save_file(columns, path),
    "torch": lambda path, columns: torch.save({n: torch.from_numpy(c) for n, c in columns.items()}, path),
    "npz": lambda path, columns: path.write_bytes(npz_bytes(columns)),
    "parquet": lambda path, columns: pq.write_table(pa.table({n: c.tolist() for n, c in columns.items()}), path),
    "jsonl": lambda path, columns: path.write_text(json.dumps({n: c[0].tolist() for n, c in columns.items()})),
}
SUFFIX = {"safetensors": ".safetensors", "torch": ".pt", "npz": ".npz", "parquet": ".parquet", "jsonl": ".jsonl"}


@pytest.mark.parametrize("named", SUFFIX)
@pytest.mark.parametrize("kind", SUFFIX)
def test_content_wins_over_the_name_and_is_said(kind: str, named: str, tmp_path: Path) -> None:
    columns = {"rollout_log_probs": np.array([[-0.5, -0.25]]), "old_log_probs": np.array([[-0.75, -0.125]])}
    SAVED[kind](tmp_path / f"step_4{SUFFIX[named]}", columns)
    dump = open_dump(tmp_path)
    (row,) = dump.rows()
    assert (row.step, row.old_log_probs.tolist(), dump.files[0].format) == (4, [-0.75, -0.125], kind)
    said = [(f.severity, f.file) for f in dump.left_out if f.kind == "misnamed_file"]
    assert said == ([] if kind == named else [("info", f"step_4{SUFFIX[named]}")])


@pytest.mark.parametrize("content", [b'{"Code": "AccessDenied"}', None])
def test_a_file_of_another_kind_without_log_probs_is_refused_among_others(
    write: Any, tmp_path: Path, content: bytes | None
) -> None:
    write("step_1.parquet", **COLUMNS)
    bad = tmp_path / "step_2.parquet"
    bad.write_bytes(content) if content else torch.save({"weights": torch.zeros(2)}, bad)
    with pytest.raises(UnreadableFileError) as raised:
        open_dump(tmp_path)
    assert str(raised.value) == f"{bad}: not a Parquet file, and no dump of another kind either"


def test_reports_of_this_tool_are_no_dumps(write: Any, tmp_path: Path) -> None:
    write("step_1.parquet", **COLUMNS)
    write("out/sequences.parquet", **COLUMNS)
    (tmp_path / "out/report.json").write_text("{}")
    assert [f.name for f in discover(tmp_path)] == ["step_1.parquet"]
    with pytest.raises(DumpNotFoundError, match="a report of this tool, not a dump"):
        discover(tmp_path / "out")


def _tensor_file(path: Path) -> bytes:
    lp = np.array([[-0.5, -0.2]], np.float32)
    save_file({"rollout_log_probs": lp, "old_log_probs": lp}, path)
    return path.read_bytes()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
EMPTY = "the file is empty (0 bytes): cut off, or still being written? leave it out or write it again"
BAD_FILES: list[tuple[str, str, Any, str]] = [
    *(
        (f"empty {suffix}", f"x{suffix}", b"", EMPTY)
        for suffix in (".parquet", ".safetensors", ".npz", ".pt", ".json", ".txt")
    ),
    (
        "empty archive",
        "x.npz",
        b"PK\x05\x06" + bytes(18),
        "an archive without a single array or tensor in it; write it again",
    ),
    ("lfs", "x.parquet", LFS, "a Git-LFS pointer, not the data: run `git lfs pull`"),
    ("lfs tensors", "x.safetensors", LFS, "a Git-LFS pointer, not the data: run `git lfs pull`"),
    (
        "html",
        "x.parquet",
        b"\n<!DOCTYPE html><html>",
        "an HTML or XML page, not the data: was the download refused?",
    ),
    (
        "cut parquet",
        "x.parquet",
        lambda parquet, tensors: parquet[:-50],
        "Parquet without its footer, truncated or still being written",
    ),
    ("only magic", "x.parquet", b"PAR1", "Parquet without its footer, truncated or still being written"),
    ("foreign", "x.parquet", b"hello world", "not a Parquet file (begins with b'hello wo')"),
    (
        "foreign, no suffix",
        "x.bin",
        b"hello, you",
        f"of no format that is read (begins with b'hello, y'); known are {', '.join(FORMATS)}, "
        "and --input-format forces one",
    ),
    *(
        (f"{kind} as {suffix}", f"x{suffix}", head + bytes(20), told)
        for suffix in (".parquet", ".safetensors", ".jsonl", ".pt", ".bin")
        for kind, head, told in (
            ("gzip", b"\x1f\x8b\x08\x00", "packed by gzip; unpack it first: gunzip FILE"),
            ("zstd", b"\x28\xb5\x2f\xfd", "packed by zstd; unpack it first: unzstd FILE"),
            (
                "UTF-16",
                '{"uid": 1}'.encode("utf-16"),
                "UTF-16 text; JSON Lines are UTF-8: iconv -f utf-16 -t utf-8 FILE > FILE.jsonl",
            ),
            ("pickle", b"\x80\x04\x95", f"a pickle; {PICKLE_ADVICE}"),
            (
                "npy",
                b"\x93NUMPY\x01\x00",
                "one array without a name; numpy.savez('step_7.npz', rollout_log_probs=…, …) names them",
            ),
            ("arrow", b"ARROW1\x00\x00", "an Arrow file; pyarrow.parquet.write_table writes the same table as Parquet"),
        )
    ),
    (
        "JSON array",
        "x.json",
        b'[{"rollout_log_probs": [-1.0]}]',
        "a JSON array; one object a line is read (JSON Lines): jq -c '.[]' FILE > FILE.jsonl",
    ),
    (
        "cut tensors",
        "x.safetensors",
        lambda parquet, tensors: tensors[:-4],
        "truncated safetensors (164 of 168 bytes), or still being written",
    ),
    (
        "cut header",
        "x.safetensors",
        lambda parquet, tensors: tensors[:40],
        "truncated safetensors (40 bytes), or still being written",
    ),
    (
        "four bytes",
        "x.safetensors",
        b"\x01\x02\x03\x04",
        "truncated safetensors (4 bytes), or still being written",
    ),
    (
        "huge header",
        "x.safetensors",
        (2**60).to_bytes(8, "little") + b"{" + b" " * 64,
        "not a safetensors file (its header would be 1152921504606846976 bytes long)",
    ),
    (
        "broken header",
        "x.safetensors",
        (8).to_bytes(8, "little") + b"{broken}",
        "damaged safetensors, its header is not JSON",
    ),
    (
        "no description",
        "x.safetensors",
        (9).to_bytes(8, "little") + b'{"a": {}}',
        "damaged safetensors, tensor 'a' is not described",
    ),
    (
        "bytes after the last tensor",
        "x.safetensors",
        lambda parquet, tensors: tensors + b"xx",
        "damaged safetensors (its header does not fit its bytes), or of a type that the library does not know",
    ),
    (
        "unknown type",
        "x.safetensors",
        lambda parquet, tensors: tensors.replace(b"F32", b"Q32"),
        "damaged safetensors (its header does not fit its bytes), or of a type that the library does not know",
    ),
    (
        "list for a header",
        "x.safetensors",
        (8).to_bytes(8, "little") + b"{}[1, 2]",
        "damaged safetensors, its header is not JSON",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), [b[1:] for b in BAD_FILES], ids=[b[0] for b in BAD_FILES])
def test_bad_file_gives_one_line(write: Any, tmp_path: Path, name: str, content: Any, message: str) -> None:
    if callable(content):
        content = content(write("sound.parquet", **COLUMNS).read_bytes(), _tensor_file(tmp_path / "s.safetensors"))
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UnreadableFileError) as raised:
        open_dump(path)
    assert str(raised.value) == f"{path}: {message}"


def test_damaged_footer_and_pages(write: Any, tmp_path: Path) -> None:
    sound = write("sound.parquet", **COLUMNS).read_bytes()
    for name, content in (
        ("footer.parquet", sound[:-60] + b"\xff" * 52 + sound[-8:]),
        ("length.parquet", sound[:-8] + b"\xff\xff\xff\x7fPAR1"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UnreadableFileError, match="damaged Parquet, the footer cannot be read") as raised:
            open_dump(path)
        assert "\n" not in str(raised.value)
    path = tmp_path / "pages.parquet"
    path.write_bytes(sound[:4] + b"\xff" * 40 + sound[44:])
    with pytest.raises(UnreadableFileError, match="damaged Parquet, the row group 0 cannot be read") as raised:
        list(open_dump(path).chunks())
    assert "\n" not in str(raised.value)


def test_nothing_there(write: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    for name in ("a.txt", "b.txt", "c.pkl", "README"):
        (tmp_path / "foreign" / name).write_text("{}")
    cases = {
        "nowhere.parquet": "no such file or folder",
        "*.parquet": "no file matches this pattern",
        "empty": f"the folder holds no file; expected {SUFFIXES}",
        "foreign": f"no {SUFFIXES} file in the folder (found 1 × .pkl, 2 × .txt, 1 × no suffix); {PICKLE_ADVICE}",
    }
    for name, message in cases.items():
        with pytest.raises(DumpNotFoundError) as raised:
            discover(tmp_path / name)
        assert str(raised.value) == f"{tmp_path / name}: {message}"
    with pytest.raises(DumpNotFoundError, match="no dump given"):
        discover([])
    with pytest.raises(DumpNotFoundError, match="cannot open this kind of URI"):
        discover("nonsense://x/y.parquet")


def test_glob_of_everything_skips_the_label(write: Any, tmp_path: Path) -> None:
    write("step_1.parquet", **COLUMNS)
    (tmp_path / "LABEL").write_text("sound")
    assert [f.name for f in discover(str(tmp_path / "*"))] == ["step_1.parquet"]


def test_brackets_in_a_real_name_are_no_pattern(write: Any, tmp_path: Path) -> None:
    assert [f.name for f in discover(write("run [x] *.parquet", **COLUMNS))] == ["run [x] *.parquet"]


def test_file_that_may_not_be_read(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(**COLUMNS)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(fsspec.implementations.local.LocalFileSystem, "open", refuse)
    with pytest.raises(UnreadableFileError) as raised:
        discover(path)
    assert str(raised.value) == f"{path}: cannot be read (Permission denied)"


def test_discovery_imports_no_torch() -> None:
    code = (
        "import sys, json, rollout_audit.dumps.discovery, rollout_audit.dumps.tensors;"
        "print(json.dumps([m in sys.modules for m in ('torch', 'matplotlib', 'pyarrow', 'polars')]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == [False] * 4
