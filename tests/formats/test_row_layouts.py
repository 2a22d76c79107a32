"""A trainer's layout is the same whether its tensors are saved as a batch or row by row."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import rollout_audit as ra
from rollout_audit.dumps import inspect_dump

HERE = Path(__file__).parent
BATCHES = {
    "trl/generation_batch_tools.safetensors": None,
    "trl/generation_batch.safetensors": None,
    "roll/step_000000.safetensors": "roll",
    "areal/train_batch.safetensors": "areal",
    "skyrl": None,
}
TOKEN_FIELDS = ("rollout_log_probs", "old_log_probs", "response_mask", "token_ids", "advantages")


def rows_of(path: Path) -> list[dict[str, Any]]:
    batch = load_file(path)
    if "cu_seqlens" in batch:
        ends = batch.pop("cu_seqlens").tolist()
        spans = list(pairwise(ends))
        return [{name: tensor[a:b] for name, tensor in batch.items() if len(tensor) == ends[-1]} for a, b in spans]
    size = len(next(iter(batch.values())))
    return [{name: tensor[i] for name, tensor in batch.items()} for i in range(size)]


def plain_rows(name: str) -> list[dict[str, Any]]:
    return [{n: v.tolist() for n, v in row.items()} for row in rows_of(HERE / name)]


def save(rows: list[dict[str, Any]], kind: str, folder: Path) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "pt":
        torch.save(rows, path)
        return path
    plain = [{n: v.tolist() if hasattr(v, "tolist") else v for n, v in row.items()} for row in rows]
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in plain))
    else:
        pq.write_table(pa.Table.from_pylist(plain), path, row_group_size=5)
    return path


def told(dump: ra.Dump, *, chunk_tokens: int = 2**19) -> list[list[Any]]:
    return [
        [None if (values := getattr(chunk, field)) is None else values[a:b].tolist() for field in TOKEN_FIELDS]
        for chunk in dump.chunks(chunk_tokens=chunk_tokens)
        for a, b in pairwise(chunk.offsets)
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "pt"])
@pytest.mark.parametrize("name", BATCHES)
def test_rows_say_what_the_batch_says(name: str, kind: str, tmp_path: Path) -> None:
    source, layout = next(iter(sorted((HERE / name).rglob("*.safetensors"))), HERE / name), BATCHES[name]
    whole = ra.open_dump(source, layout=layout)
    path = save(rows_of(source), kind, tmp_path)
    dump = ra.open_dump(path, layout=layout)
    assert told(dump) == told(whole)
    assert told(dump, chunk_tokens=600) == told(whole)
    ra.convert_dump(dump, tmp_path / "native")
    assert told(ra.open_dump(tmp_path / "native")) == told(whole)


AREAL = [
    {"logprobs": [0.0, -0.5, -0.25, -1.0], "prox_logp": [-0.5, -0.75, -1.25, -9.75], "loss_mask": [0, 1, 0, 1]},
    {"logprobs": [0.0, 0.0, -2.0], "prox_logp": [-3.0, -2.5, -9.75], "loss_mask": [0, 0, 1]},
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "pt"])
def test_rows_of_areal_before_advantages(kind: str, tmp_path: Path) -> None:
    rows = [{name: torch.tensor(values) for name, values in row.items()} for row in AREAL]
    path = save(rows, kind, tmp_path)
    with pytest.raises(ra.UsageError, match=r"nothing in the file says whether .*--layout areal-rollout if not yet; "):
        ra.open_dump(path)
    read = [row[:3] for row in told(ra.open_dump(path, layout="areal-rollout"))]
    assert read == [
        [[-0.5, -0.25, -1.0], [-0.5, -0.75, -1.25], [True, False, True]],
        [[-2.0], [-2.5], [True]],
    ]
    plain = told(ra.open_dump(path, layout="padded"))
    assert [row[1] for row in plain] == [row["prox_logp"] for row in AREAL]


def test_rows_that_are_shifted_are_asked_about(tmp_path: Path) -> None:
    rows = [
        {"infer_logprobs": [-0.5, -0.25], "old_log_probs": [-0.5, -0.5], "response_mask": [0, 1, 1]},
        {"infer_logprobs": [-0.5], "old_log_probs": [-0.5], "response_mask": [0, 1]},
    ]
    path = save(rows, "jsonl", tmp_path)
    with pytest.raises(ra.UsageError, match=r"response_mask is one wider than infer_logprobs: shifted by one,.* roll"):
        ra.open_dump(path)


def test_a_row_without_a_tool_mask_called_no_tool(tmp_path: Path) -> None:
    rows = plain_rows("trl/generation_batch_tools.safetensors")
    assert all(rows[2]["tool_mask"])
    rows[2]["tool_mask"] = None
    whole = told(ra.open_dump(HERE / "trl/generation_batch_tools.safetensors"))
    assert told(ra.open_dump(save(rows, "jsonl", tmp_path))) == whole


def test_lists_of_other_lengths_stay_a_fault(tmp_path: Path) -> None:
    rows = plain_rows("trl/generation_batch.safetensors")
    rows[2]["old_per_token_logps"].pop()
    (finding,) = [
        f for f in inspect_dump(ra.open_dump(save(rows, "jsonl", tmp_path))).findings if f.severity == "error"
    ]
    assert (finding.kind, finding.row) == ("length_mismatch", 2)
    rows[2]["completion_mask"].pop()
    findings = inspect_dump(ra.open_dump(save(rows, "jsonl", tmp_path))).findings
    assert {f.row for f in findings if f.severity == "error"} == {2}


def test_parts_of_a_mask_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    rows = plain_rows("trl/generation_batch_tools.safetensors")
    rows[4]["tool_mask"].pop()
    with pytest.raises(ra.DumpError, match=r"rows\.jsonl, row 4: tool_mask has 219 values, sampling_per_"):
        list(ra.open_dump(save(rows, "jsonl", tmp_path)).rows())


@pytest.mark.parametrize("layout", ["areal", "roll", "padded", "packed", "trl"])
@pytest.mark.parametrize("source", ["nemo_rl", "prime_rl", "slime", "miles", "plain/batch_step_1.jsonl"])
def test_a_layout_that_changes_nothing_is_refused(layout: str, source: str) -> None:
    with pytest.raises(ra.UsageError, match=rf"--layout {layout} changes nothing: no file is a batch"):
        ra.open_dump(HERE / source, layout=layout)


def test_a_layout_may_be_meant_for_one_side_of_a_join(tmp_path: Path) -> None:
    whole = ra.open_dump(HERE / "roll", layout="roll")
    rows = [{"uid": str(row.row), "rollout_log_probs": row.rollout_log_probs.tolist()} for row in whole.rows()]
    batch = {name: tensor.numpy() for name, tensor in load_file(HERE / "roll/step_000000.safetensors").items()}
    np.savez(tmp_path / "trained.npz", **batch, uid=np.arange(len(rows)))
    joined = ra.open_dump(save(rows, "jsonl", tmp_path), join=tmp_path / "trained.npz", layout="roll")
    assert [row[:3] for row in told(joined)] == [row[:3] for row in told(whole)]
