"""safetensors: padded and packed say the same as Parquet."""

from __future__ import annotations

import json
import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from rollout_audit.dumps import inspect_dump, open_dump
from rollout_audit.dumps.rows import rows_of_chunk
from rollout_audit.errors import NothingToAuditError, UnreadableFileError

LENGTHS = [3, 0, 7, 1]
WIDTH = 8


def _rows(seed: int) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    return [np.float32(-rng.exponential(1, n)).tolist() for n in LENGTHS]


ROLLOUT, OLD = _rows(1), _rows(2)
MASK = [[1, 0, 1], [], [1, 1, 1, 0, 0, 1, 1], [1]]
ADVANTAGES, REWARD = [0.5, -1.0, 2.0, 0.0], [1.0, 0.0, 1.0, 0.0]


def _padded(rows: Any, fill: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out = torch.full((len(rows), WIDTH), fill, dtype=dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row, dtype=dtype)
    return out


def _packed(rows: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor([v for row in rows for v in row], dtype=dtype)


def _extra() -> dict[str, torch.Tensor]:
    return {"advantages": torch.tensor(ADVANTAGES), "reward": torch.tensor(REWARD, dtype=torch.float64)}


def _save(path: Path, tensors: dict[str, torch.Tensor], **metadata: str) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=metadata or None)
    return path


def _padded_file(path: Path, dtype: torch.dtype = torch.float32) -> Path:
    tensors = {
        "rollout_log_probs": _padded(ROLLOUT, float("nan"), dtype),
        "old_log_probs": _padded(OLD, 0.0, dtype),
        "response_mask": _padded(MASK, 0, torch.int64),
        "lengths": torch.tensor(LENGTHS),
    }
    return _save(path, tensors | _extra(), step="5")


def _packed_file(path: Path, dtype: torch.dtype = torch.float32, lengths: str = "cu_seqlens") -> Path:
    cuts = torch.tensor(np.concatenate(([0], np.cumsum(LENGTHS))), dtype=torch.int32)
    tensors = {
        "rollout_log_probs": _packed(ROLLOUT, dtype),
        "old_log_probs": _packed(OLD, dtype),
        "response_mask": _packed(MASK, torch.bool),
        lengths: cuts if lengths == "cu_seqlens" else torch.tensor(LENGTHS),
    }
    return _save(path, tensors | _extra(), step="5")


def _told(path: Path | str, **options: Any) -> list[Any]:
    return [
        (
            row.row,
            row.step,
            row.rollout_log_probs.tolist(),
            None if row.old_log_probs is None else row.old_log_probs.tolist(),
            row.response_mask.tolist(),
            None if row.advantages is None else row.advantages.tolist(),
            row.reward,
        )
        for row in open_dump(path, **options).rows()
    ]


def _parquet_file(write: Any, element: Any = None) -> Path:
    lists = pa.list_(element or pa.float32())
    path: Path = write(
        "x_5.parquet",
        rollout_log_probs=pa.array(ROLLOUT, lists),
        old_log_probs=pa.array(OLD, lists),
        response_mask=MASK,
        advantages=ADVANTAGES,
        reward=REWARD,
    )
    return path


def test_padded_packed_and_parquet_agree_row_for_row(write: Any, tmp_path: Path) -> None:
    expected = _told(_parquet_file(write))
    assert _told(_padded_file(tmp_path / "padded.safetensors")) == expected
    assert _told(_packed_file(tmp_path / "packed.safetensors")) == expected
    assert _told(_packed_file(tmp_path / "lengths.safetensors", lengths="lengths")) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_every_precision_is_read_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    expected = _packed(ROLLOUT, dtype).double().tolist()
    for path in (
        _padded_file(tmp_path / "a.safetensors", dtype),
        _packed_file(tmp_path / "b.safetensors", dtype),
    ):
        got = [v for row in open_dump(path).rows() for v in row.rollout_log_probs.tolist()]
        assert got == expected


def test_bfloat16_is_said(tmp_path: Path) -> None:
    inspection = inspect_dump(open_dump(_packed_file(tmp_path / "b.safetensors", torch.bfloat16)))
    assert [f.kind for f in inspection.findings] == ["half_precision", "half_precision"]
    assert inspection.ranges[0].bf16_fraction == 1.0
    assert inspection.files[0].fields[0].type == "BF16[11]"


def test_padded_without_lengths_ends_with_the_mask(tmp_path: Path) -> None:
    tensors = {
        "rollout_log_probs": _padded(ROLLOUT, float("nan")),
        "old_log_probs": _padded(OLD, -1e10),
        "response_mask": _padded(MASK, 0, torch.int64),
    }
    dump = open_dump(_save(tmp_path / "x.safetensors", tensors))
    rows = list(dump.rows())
    assert [len(row.rollout_log_probs) for row in rows] == LENGTHS
    valid = [row.rollout_log_probs[row.response_mask].tolist() for row in rows]
    assert valid == [[v for v, m in zip(r, mask, strict=True) if m] for r, mask in zip(ROLLOUT, MASK, strict=True)]
    assert inspect_dump(dump).findings == ()


@pytest.mark.parametrize("side", ["old_log_probs", "rollout_log_probs"])
def test_one_side_alone_keeps_its_width(tmp_path: Path, side: str) -> None:
    """So that it fits the other side, which may come without a mask."""
    tensors = {"rollout_log_probs": _padded(ROLLOUT, 0.0), "old_log_probs": _padded(OLD, 0.0)}
    uid = torch.arange(4)
    other = next(name for name in tensors if name != side)
    _save(tmp_path / "one.safetensors", {side: tensors[side], "response_mask": _padded(MASK, 0), "uid": uid})
    _save(tmp_path / "two.safetensors", {other: tensors[other], "uid": uid})
    files = ["one", "two"] if side == "rollout_log_probs" else ["two", "one"]
    first, second = (tmp_path / f"{name}.safetensors" for name in files)
    rows = list(open_dump(first, join=second).rows())
    assert [len(row.rollout_log_probs) for row in rows] == [WIDTH] * 4


@pytest.mark.parametrize("order", ["<", ">"])
def test_byte_order_of_arrays_does_not_matter(tmp_path: Path, order: str) -> None:
    kinds = {"rollout_log_probs": "f4", "old_log_probs": "f8", "response_mask": "i2", "uid": "i8", "token_ids": "u4"}
    values = {
        "rollout_log_probs": [[-0.1, -0.2], [-0.3, -0.4]],
        "old_log_probs": [[-0.5, -0.6], [-0.7, -0.8]],
        "response_mask": [[1, 1], [0, 1]],
        "uid": [258, 70000],
        "token_ids": [[1, 256], [65536, 7]],
    }
    np.savez(tmp_path / "step_1.npz", **{name: np.array(values[name], order + kind) for name, kind in kinds.items()})
    one, two = open_dump(tmp_path).rows()
    assert (one.uid, two.uid) == ("258", "70000")
    assert two.token_ids.tolist() == [65536, 7]
    assert two.response_mask.tolist() == [False, True]
    assert one.rollout_log_probs.tolist() == np.float32([-0.1, -0.2]).tolist()
    assert two.old_log_probs.tolist() == [-0.7, -0.8]


@pytest.mark.parametrize("rows", [False, True])
def test_files_of_torch_before_1_6_are_read(tmp_path: Path, *, rows: bool) -> None:
    batch = {"rollout_log_probs": torch.tensor([[-0.5, -0.25]]), "old_log_probs": torch.tensor([[-0.75, -0.125]])}
    content = [{name: tensor[0] for name, tensor in batch.items()}] if rows else batch
    path = tmp_path / "step_1.pt"
    torch.save(content, path, _use_new_zipfile_serialization=False)
    assert path.read_bytes()[:2] == b"\x80\x02"
    dump = open_dump(tmp_path)
    (row,) = dump.rows()
    assert row.old_log_probs.tolist() == [-0.75, -0.125]
    digest = dump.infos[0].digest
    torch.save(batch | {"reward": torch.ones(1)}, path, _use_new_zipfile_serialization=False)
    assert open_dump(tmp_path).infos[0].digest != digest


def test_objects_in_files_of_torch_before_1_6_are_not_opened(tmp_path: Path) -> None:
    torch.save({"path": tmp_path}, tmp_path / "step_1.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(UnreadableFileError, match="holds more than tensors") as raised:
        open_dump(tmp_path)
    assert "\n" not in str(raised.value)


def test_left_padding(tmp_path: Path) -> None:
    lp = torch.tensor([[0.0, -0.5, -0.25], [-1.0, -2.0, -3.0]])
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    tensors = {"rollout_log_probs": lp, "old_log_probs": lp.clone(), "response_mask": mask}
    first, _ = open_dump(_save(tmp_path / "x.safetensors", tensors)).rows()
    assert first.rollout_log_probs[first.response_mask].tolist() == [-0.5, -0.25]


@pytest.mark.parametrize("make", [_padded_file, _packed_file])
def test_rows_are_sliced_to_the_chunk(tmp_path: Path, make: Any) -> None:
    path = make(tmp_path / "x.safetensors")
    chunks = list(open_dump(path).chunks(chunk_tokens=8))
    assert max(chunk.tokens for chunk in chunks) <= 8
    assert len(chunks) > 1
    assert np.concatenate([c.row_numbers for c in chunks]).tolist() == [0, 1, 2, 3]
    (whole,) = open_dump(path).chunks()
    assert np.concatenate([c.rollout_log_probs for c in chunks]).tolist() == whole.rollout_log_probs.tolist()
    assert np.concatenate([c.reward for c in chunks if c.reward is not None]).tolist() == REWARD


def test_step_as_tensor(tmp_path: Path) -> None:
    lp = torch.tensor([[-0.5], [-0.25]])
    for step, expected in ((torch.tensor(9), [9, 9]), (torch.tensor([3, 4]), [3, 4])):
        tensors = {"rollout_log_probs": lp, "old_log_probs": lp.clone(), "step": step}
        assert [row.step for row in open_dump(_save(tmp_path / "x.safetensors", tensors)).rows()] == expected


def test_single_token_rows_packed(tmp_path: Path) -> None:
    lp = torch.tensor([-0.5, -0.25])
    tensors = {
        "rollout_log_probs": lp,
        "old_log_probs": lp.clone(),
        "advantages": torch.tensor([1.0, -1.0]),
        "reward": torch.tensor([2.0, 3.0]),
        "cu_seqlens": torch.tensor([0, 1, 2]),
    }
    rows = list(open_dump(_save(tmp_path / "x.safetensors", tensors)).rows())
    assert [(row.reward, row.rollout_log_probs.tolist()) for row in rows] == [(2.0, [-0.5]), (3.0, [-0.25])]
    assert [None if row.advantages is None else row.advantages.tolist() for row in rows] == [[1.0], [-1.0]]


def test_one_packed_row_of_cu_seqlens_and_forced_layouts(tmp_path: Path) -> None:
    lp = torch.tensor([[-0.5, -0.25, -0.125]])
    tensors = {"rollout_log_probs": lp, "old_log_probs": lp.clone(), "cu_seqlens": torch.tensor([0, 1, 3])}
    path = _save(tmp_path / "x.safetensors", tensors)
    assert [len(row.rollout_log_probs) for row in open_dump(path).rows()] == [1, 2]
    flat = {"rollout_log_probs": lp[0], "old_log_probs": lp[0].clone()}
    path = _save(tmp_path / "flat.safetensors", flat)
    assert [len(row.rollout_log_probs) for row in open_dump(path, layout="padded").rows()] == [3]


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "packed without lengths": (
        {"rollout_log_probs": torch.zeros(5), "old_log_probs": torch.zeros(5)},
        "x.safetensors: rollout_log_probs is packed [5], but neither cu_seqlens nor lengths says where rows "
        "end; add one of them, store [B, T], or take it as one row with --layout padded",
    ),
    "lengths that do not add up": (
        {
            "rollout_log_probs": torch.zeros(5),
            "old_log_probs": torch.zeros(5),
            "lengths": torch.tensor([2, 2]),
        },
        "x.safetensors: rows end at 4 but rollout_log_probs holds 5 values",
    ),
    "lengths past the width": (
        {
            "rollout_log_probs": torch.zeros(2, 3),
            "old_log_probs": torch.zeros(2, 3),
            "lengths": torch.tensor([2, 4]),
        },
        "x.safetensors: lengths ([2], up to 4) do not fit rollout_log_probs [2, 3]",
    ),
    "float8": (
        {
            "rollout_log_probs": torch.zeros(2, 3).to(torch.float8_e4m3fn),
            "old_log_probs": torch.zeros(2, 3),
        },
        "x.safetensors: column 'rollout_log_probs' (rollout_log_probs) holds F8_E4M3[2, 3], which is not "
        "read; store integers, float64, float32, float16 or bfloat16",
    ),
    "another shape": (
        {"rollout_log_probs": torch.zeros(2, 3), "old_log_probs": torch.zeros(2, 4)},
        "x.safetensors: column 'old_log_probs' (old_log_probs) holds F32[2, 4], expected a list of numbers "
        "a row (of the shape of the rollout's log-probs)",
    ),
    "offsets that descend": (
        {
            "rollout_log_probs": torch.zeros(6),
            "old_log_probs": torch.zeros(6),
            "cu_seqlens": torch.tensor([0, 4, 2, 6]),
        },
        "x.safetensors: cu_seqlens descends at index 2, from 4 to 2: offsets only rise",
    ),
    "offsets that descend, without a sign": (
        {
            "rollout_log_probs": torch.zeros(2, 6),
            "old_log_probs": torch.zeros(2, 6),
            "cu_seqlens": torch.tensor([0, 4, 3], dtype=torch.uint8),
        },
        "x.safetensors: cu_seqlens descends at index 2, from 4 to 3: offsets only rise",
    ),
    "offsets that begin late": (
        {"rollout_log_probs": torch.zeros(4), "old_log_probs": torch.zeros(4), "cu_seqlens": torch.tensor([2, 4, 6])},
        "x.safetensors: cu_seqlens begins with 2, expected 0",
    ),
    "negative length": (
        {"rollout_log_probs": torch.zeros(4), "old_log_probs": torch.zeros(4), "lengths": torch.tensor([5, -1])},
        "x.safetensors: lengths is -1 at index 1: no row has fewer than 0 tokens",
    ),
    "lengths that are no integers": (
        {"rollout_log_probs": torch.zeros(4), "old_log_probs": torch.zeros(4), "lengths": torch.tensor([1.5, 2.5])},
        "x.safetensors: lengths holds F32, expected integers",
    ),
    "no tensors": ({}, "x.safetensors: no tensor of log-probs (no tensor at all)"),
}


@pytest.mark.parametrize(("tensors", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_errors_are_one_line(tmp_path: Path, tensors: Any, message: str) -> None:
    with pytest.raises(UnreadableFileError) as raised:
        open_dump(_save(tmp_path / "x.safetensors", tensors))
    assert str(raised.value) == message


def test_mixed_formats_in_one_dump(write: Any, tmp_path: Path) -> None:
    _parquet_file(write)
    _packed_file(tmp_path / "x_6.safetensors")
    dump = open_dump(tmp_path)
    assert [f.format for f in dump.files] == ["parquet", "safetensors"]
    assert sum(chunk.tokens for chunk in dump.chunks()) == 22


def test_stored_bits_of_bfloat16(tmp_path: Path) -> None:
    """Case 62: 0xBF80 is -1, 0xC000 is -2."""
    bits = np.array([0xBF80, 0xC000], np.uint16).tobytes()
    header = json.dumps(
        {
            name: {"dtype": "BF16", "shape": [1, 2], "data_offsets": [4 * i, 4 * i + 4]}
            for i, name in enumerate(("rollout_log_probs", "old_log_probs"))
        }
    ).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bits * 2)
    (row,) = open_dump(path).rows()
    assert row.rollout_log_probs.tolist() == [-1.0, -2.0]
    assert row.rollout_log_probs.dtype == np.float32


@pytest.mark.parametrize("odd", range(4))
def test_data_at_any_byte_of_the_file(tmp_path: Path, odd: int) -> None:
    sound = _padded_file(tmp_path / "x.safetensors", torch.float64)
    expected = _told(sound)
    content = sound.read_bytes()
    length = int.from_bytes(content[:8], "little")
    moved = (length + odd).to_bytes(8, "little") + content[8 : 8 + length] + b" " * odd + content[8 + length :]
    sound.write_bytes(moved)
    assert _told(sound) == expected
    (chunk,) = open_dump(sound).chunks()
    assert chunk.rollout_log_probs.flags.aligned


@pytest.mark.parametrize("make", [_padded_file, _packed_file])
def test_remote_file_is_fetched_and_the_copy_deleted(tmp_path: Path, monkeypatch: Any, make: Any) -> None:
    local = make(tmp_path / "x.safetensors")
    fetched = tmp_path / "fetched"
    fetched.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(fetched))
    fsspec.filesystem("memory").pipe_file("/tensors/x.safetensors", local.read_bytes())
    assert _told("memory://tensors/x.safetensors") == _told(local)
    rows = open_dump("memory://tensors/x.safetensors").rows()
    next(rows)
    assert len(list(fetched.iterdir())) == 1
    rows.close()
    assert list(fetched.iterdir()) == []
    (remote,), (here,) = open_dump("memory://tensors/x.safetensors").infos, open_dump(local).infos
    content = local.read_bytes()
    header = content[: 8 + int.from_bytes(content[:8], "little")]
    assert here.digest == remote.digest == sha256(len(content).to_bytes(8, "little") + header).hexdigest()


def test_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    local = _packed_file(tmp_path / "x.safetensors")
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.safetensors"))
    odd.write_bytes(local.read_bytes())
    assert _told(odd) == _told(local)


def test_float8_where_only_a_row_field_is_read(tmp_path: Path) -> None:
    lp = torch.zeros(2, 3)
    tensors = {"rollout_log_probs": lp, "old_log_probs": lp.clone(), "uid": torch.zeros(2).to(torch.float8_e5m2)}
    with pytest.raises(UnreadableFileError, match=r"^x.safetensors: tensor 'uid' is F8_E5M2, which is not read; store"):
        list(open_dump(_save(tmp_path / "x.safetensors", tensors)).rows())


def test_forced_packed_rows_of_a_two_dimensional_tensor(tmp_path: Path) -> None:
    """Rows that begin and end inside the rows of the tensor."""
    lp = -torch.arange(1.0, 13.0).reshape(3, 4)
    tensors = {"rollout_log_probs": lp, "old_log_probs": lp.clone(), "lengths": torch.tensor([3, 0, 7, 2])}
    dump = open_dump(_save(tmp_path / "x.safetensors", tensors), layout="packed")
    got = [r.rollout_log_probs.tolist() for c in dump.chunks(chunk_tokens=1) for r in rows_of_chunk(c, "x")]
    assert got == [[-1.0, -2.0, -3.0], [], [float(-v) for v in range(4, 11)], [-11.0, -12.0]]


@pytest.mark.parametrize(
    "tensors",
    [
        {"rollout_log_probs": torch.zeros(0, 5), "old_log_probs": torch.zeros(0, 5)},
        {"rollout_log_probs": torch.zeros(0), "old_log_probs": torch.zeros(0), "cu_seqlens": torch.tensor([0])},
    ],
)
def test_zero_rows(tmp_path: Path, tensors: Any) -> None:
    """Case 67."""
    with pytest.raises(NothingToAuditError, match=r"^x.safetensors: zero rows, nothing to audit; name a dump"):
        list(open_dump(_save(tmp_path / "x.safetensors", tensors)).chunks())


@pytest.mark.parametrize(
    "tensors",
    [
        {"rollout_log_probs": torch.zeros(2, 0), "old_log_probs": torch.zeros(2, 0)},
        {"rollout_log_probs": torch.zeros(0), "old_log_probs": torch.zeros(0), "lengths": torch.tensor([0, 0])},
    ],
)
def test_rows_of_zero_length_are_counted(tmp_path: Path, tensors: Any) -> None:
    inspection = inspect_dump(open_dump(_save(tmp_path / "x.safetensors", tensors)))
    assert (inspection.rows, inspection.empty_rows, inspection.tokens) == (2, 2, 0)
    assert inspection.findings[0].kind == "nothing_to_audit"


def test_left_padded_and_packed_give_the_same_valid_tokens(tmp_path: Path) -> None:
    """Case 74."""
    rollout, old = _packed(ROLLOUT)[:7], _packed(OLD)[:7]
    packed = {"rollout_log_probs": rollout, "old_log_probs": old, "cu_seqlens": torch.tensor([0, 3, 7])}
    padded: dict[str, torch.Tensor] = {
        name: torch.stack([torch.cat([torch.full((1,), torch.nan), tensor[:3]]), tensor[3:]])
        for name, tensor in packed.items()
        if name != "cu_seqlens"
    }
    padded["response_mask"] = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    told = [
        [(r.rollout_log_probs[r.response_mask].tolist(), _valid(r)) for r in open_dump(path).rows()]
        for path in (_save(tmp_path / "a.safetensors", packed), _save(tmp_path / "b.safetensors", padded))
    ]
    assert told[0] == told[1]
    assert [len(values) for values, _ in told[0]] == [3, 4]


def _valid(row: Any) -> Any:
    return row.old_log_probs[row.response_mask].tolist()


def test_three_dimensions_are_no_layout(tmp_path: Path) -> None:
    tensor = torch.full((1, 2, 3), -1.0)
    save_file({"rollout_log_probs": tensor, "old_log_probs": tensor.clone()}, tmp_path / "a.safetensors")
    with pytest.raises(UnreadableFileError, match=r"has 3 dimensions \[1, 2, 3\]; expected padded \[B, T\] or packed"):
        list(open_dump(tmp_path).chunks())


@pytest.mark.parametrize("name", ["uid", "policy_version", "trainer_version", "reward", "step"])
@pytest.mark.parametrize("shape", [(2,), (4,), (3, 2)])
def test_a_value_a_row_for_other_rows_is_refused(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    lp = torch.full((3, 5), -0.5)
    tensors = {"rollout_log_probs": lp, "old_log_probs": lp.clone(), name: torch.zeros(shape, dtype=torch.int64)}
    path = _save(tmp_path / "x.safetensors", tensors)
    shown = ", ".join(map(str, shape))
    with pytest.raises(UnreadableFileError) as raised:
        open_dump(path)
    assert str(raised.value) == f"x.safetensors: column {name!r} ({name}) holds I64[{shown}], expected one value a row"
