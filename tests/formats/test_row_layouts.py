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
    "skyrl": "skyrl",
}
PROMPTS = ("roll", "areal")
"""formats whose rows begin with the prompt, which is cut off"""
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


def counted(rows: list[list[Any]]) -> list[list[Any]]:
    """The values under the mask."""
    return [[None if v is None else [x for x, m in zip(v, row[2], strict=True) if m] for v in row] for row in rows]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "pt"])
@pytest.mark.parametrize("name", BATCHES)
def test_rows_say_what_the_batch_says(name: str, kind: str, tmp_path: Path) -> None:
    source, layout = next(iter(sorted((HERE / name).rglob("*.safetensors"))), HERE / name), BATCHES[name]
    whole = ra.open_dump(source, layout=layout)
    path = save(rows_of(source), kind, tmp_path)
    dump = ra.open_dump(path, layout=layout)
    assert counted(told(dump)) == counted(told(whole))
    stored = told(whole) if name.startswith(PROMPTS) else told(dump)
    assert told(dump) == stored
    assert told(dump, chunk_tokens=600) == stored
    ra.convert_dump(dump, tmp_path / "native")
    assert told(ra.open_dump(tmp_path / "native")) == stored


HALVES = [-0.5, -1.0, -1.5, -2.0]
MASKED = {"head": [0, 0, 1, 1], "tail": [1, 1, 0, 0], "nothing": [0, 0, 0, 0]}
NAMED = {
    "trl": ("sampling_per_token_logps", "old_per_token_logps", "completion_mask", "tool_mask"),
    "skyrl": ("rollout_logprobs", "action_log_probs", "loss_mask", "response_mask"),
}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "pt"])
@pytest.mark.parametrize("layout", NAMED)
def test_rows_keep_their_length_under_the_mask(layout: str, kind: str, tmp_path: Path) -> None:
    rollout, old, mask, other = NAMED[layout]
    rows = [
        {rollout: HALVES, old: [x - 0.25 for x in HALVES], mask: values, other: [1] * 4} for values in MASKED.values()
    ]
    path = save([{n: torch.tensor(v) for n, v in row.items()} for row in rows], kind, tmp_path)
    dump = ra.open_dump(path, layout=layout)
    assert [row[0] for row in told(dump)] == [HALVES] * 3
    assert [row[2] for row in told(dump)] == [[bool(x) for x in values] for values in MASKED.values()]
    applied = list(ra.apply_correction(dump, "decoupled_token_is"))
    assert [len(weights) for _, weights, _ in applied] == [4, 4, 4]
    assert [kept.tolist() for _, _, kept in applied] == [[bool(x) for x in values] for values in MASKED.values()]


@pytest.mark.parametrize("layout", NAMED)
def test_the_mask_of_this_tools_name_counts_unless_the_layout_is_asked_for(layout: str, tmp_path: Path) -> None:
    rollout, old, mask, _ = NAMED[layout]
    row = {rollout: HALVES, old: HALVES, mask: [1, 1, 1, 1], "response_mask": [1, 0, 1, 1]}
    path = save([row], "jsonl", tmp_path)
    dump = ra.open_dump(path)
    assert told(dump)[0][2] == [True, False, True, True]
    (finding,) = [f for f in inspect_dump(dump).findings if f.kind == "two_masks"]
    told_how = f"both 'response_mask' and '{mask}' are there: 'response_mask' is used (else --layout {layout})"
    assert finding.message == told_how
    assert told(ra.open_dump(path, layout=layout))[0][2] == [True] * 4


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "pt"])
@pytest.mark.parametrize(
    ("other", "rollout", "field_map"),
    [
        ("logprobs", "rollout_log_probs", {}),
        ("values", "lp_v", {"rollout_log_probs": "lp_v"}),
        ("entropy", "infer_logprobs", {}),
        ("rollout_log_probs", "lp_v", {"rollout_log_probs": "lp_v"}),
    ],
)
def test_only_the_log_probs_that_are_read_say_whether_rows_are_shifted(
    other: str, rollout: str, field_map: dict[str, str], kind: str, tmp_path: Path
) -> None:
    shorter = {other: HALVES[:-1], rollout: HALVES, "old_log_probs": HALVES, "loss_mask": [1, 0, 1, 1]}
    dump = ra.open_dump(save([shorter], kind, tmp_path), field_map=field_map)
    assert told(dump)[0][:3] == [HALVES, HALVES, [True, False, True, True]]
    longer = {other: [*HALVES, -9.0], rollout: HALVES, "old_log_probs": HALVES, "loss_mask": [0, 1, 0, 1, 1]}
    with pytest.raises(ra.UsageError, match=f"loss_mask is one wider than {rollout}: "):
        ra.open_dump(save([longer], kind, tmp_path), field_map=field_map)


@pytest.mark.parametrize("spare", ["loss_mask", "action_mask"])
@pytest.mark.parametrize("form", ["rows", "batch"])
def test_a_spare_mask_raises_no_doubt_beside_one_that_fits(form: str, spare: str, tmp_path: Path) -> None:
    row = {"rollout_log_probs": HALVES, "old_log_probs": HALVES, "response_mask": [1, 0, 1, 1], spare: [0, 1, 0, 1, 1]}
    path = tmp_path / "a.npz"
    if form == "rows":
        path = save([row, row], "parquet", tmp_path)
    else:
        np.savez(path, **{n: np.array([v, v]) for n, v in row.items()})
    assert [one[2] for one in told(ra.open_dump(path))] == [[True, False, True, True]] * 2


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
    assert counted(told(ra.open_dump(save(rows, "jsonl", tmp_path)))) == counted(whole)


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
