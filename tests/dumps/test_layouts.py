"""Layouts of tensors against the plain definition of where a response lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import rollout_audit as ra
from rollout_audit.cli.options import LAYOUTS_HELP
from rollout_audit.dumps.formats.miles import merged_rows
from rollout_audit.dumps.layouts import LAYOUTS, response_places

ROWS = st.lists(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=7), min_size=1, max_size=6)


@given(ROWS)
def test_response_places(rows: list[list[tuple[bool, bool]]]) -> None:
    begins = np.array([begin for row in rows for begin, _ in row], np.bool_)
    ends = np.array([end for row in rows for _, end in row], np.bool_)
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    expected, rolled = [], []
    for row in rows:
        first = next((i for i, (begin, _) in enumerate(row) if begin), 0)
        last = next((i for i in reversed(range(len(row))) if row[i][1]), -1)
        expected += [first <= i <= last for i in range(len(row))]
        rolled += [first <= i <= len(row) - 2 for i in range(len(row))]
    assert response_places(begins, ends, offsets).tolist() == expected
    assert response_places(begins, None, offsets).tolist() == rolled


def test_help_names_every_layout() -> None:
    assert f"One of {', '.join(LAYOUTS)}." == LAYOUTS_HELP


def test_trl_mask_is_the_product_and_padding_goes(tmp_path: Path) -> None:
    lp = torch.tensor([[-0.5, -0.25, -1.5, -9.0], [-2.0, -9.0, -9.0, -9.0]])
    save_file(
        {
            "sampling_per_token_logps": lp,
            "old_per_token_logps": lp.clone(),
            "completion_mask": torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]),
            "tool_mask": torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]),
        },
        tmp_path / "a.safetensors",
    )
    one, two = ra.open_dump(tmp_path).rows()
    assert (one.response_mask.tolist(), two.response_mask.tolist()) == ([True, False, True], [True])
    whole = next(ra.open_dump(tmp_path, layout="padded").rows())
    assert whole.response_mask.tolist() == [True, True, True]


def test_left_padded_trl_like_rows_are_found_where_they_are(tmp_path: Path) -> None:
    mask = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    lp = torch.where(mask == 1, -torch.arange(8.0).reshape(2, 4) / 8, torch.tensor(-9.0))
    tensors = {"sampling_per_token_logps": lp, "old_per_token_logps": lp.clone(), "completion_mask": mask}
    save_file(tensors, tmp_path / "a.safetensors")
    assert [row.rollout_log_probs.tolist() for row in ra.open_dump(tmp_path).rows()] == [
        [-0.25, -0.375],
        [-0.625, -0.75, -0.875],
    ]


@pytest.mark.parametrize("chunk_tokens", [1, 7, 10_000])
def test_roll_is_shifted_by_one(tmp_path: Path, chunk_tokens: int) -> None:
    """Prompt of two tokens, response 7, 8, 9 with a tool in the middle; then one of one token."""
    torch.save(
        {
            "input_ids": torch.tensor([[1, 2, 7, 8, 9, 0], [1, 2, 3, 5, 0, 0]]),
            "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]]),
            "response_mask": torch.tensor([[0, 0, 1, 0, 1, 0], [0, 0, 0, 1, 0, 0]]).bool(),
            "infer_logprobs": torch.tensor([[0.0, -0.7, 0.0, -0.9, 0.0], [0.0, 0.0, -0.5, 0.0, 0.0]]),
            "old_log_probs": torch.tensor([[-4.0, -0.75, -5.0, -1.0, 0.0], [-4.0, -4.0, -0.25, 0.0, 0.0]]),
        },
        tmp_path / "step_3.pt",
    )
    dump = ra.open_dump(tmp_path, layout="roll")
    chunks = list(dump.chunks(chunk_tokens=chunk_tokens))
    assert np.concatenate([chunk.token_ids for chunk in chunks]).tolist() == [7, 8, 9, 5]
    assert np.concatenate([chunk.response_mask for chunk in chunks]).tolist() == [True, False, True, True]
    assert np.concatenate([chunk.old_log_probs for chunk in chunks]).tolist() == [-0.75, -5.0, -1.0, -0.25]


def reference_slice(values: Any, total: int, length: int, rank: int, size: int) -> Any:
    """What a context-parallel rank keeps, from the definition: chunks rank and 2·size − 1 − rank of the sequence."""
    chunk = -(-total // (2 * size))
    kept = []
    for number in (rank, 2 * size - 1 - rank):
        for place in range(number * chunk, (number + 1) * chunk):
            token = place - (total - length - 1)
            if 0 <= token < length:
                kept.append(token)
    return values[torch.tensor(kept, dtype=torch.long)]


def rank_file(samples: dict[int, tuple[int, int]], rank: int, size: int, **more: Any) -> dict[str, Any]:
    """samples: index → (total length, response length)"""
    columns: dict[str, list[Any]] = {
        "sample_indices": list(samples),
        "tokens": [torch.arange(total) for total, _ in samples.values()],
        "total_lengths": [total for total, _ in samples.values()],
        "response_lengths": [length for _, length in samples.values()],
        "loss_masks": [torch.ones(length) for _, length in samples.values()],
    }
    for name, sign in (("rollout_log_probs", -1.0), ("log_probs", -2.0)):
        columns[name] = [
            reference_slice(sign * torch.arange(1.0, length + 1), total, length, rank, size)
            for total, length in samples.values()
        ]
    content = {"rollout_id": 1, "rollout_data": columns, "cp_rank": rank, "cp_size": size, "qkv_format": "thd"}
    return {**content, **more}


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=3),
    st.integers(2, 4),
)
def test_context_parallel_slices_come_back_in_order(shapes: list[tuple[int, int]], size: int) -> None:
    samples = {index: (prompt + length, length) for index, (prompt, length) in enumerate(shapes)}
    files = [(f"1_{rank}.pt", rank_file(samples, rank, size)) for rank in reversed(range(size))]
    for row, (_, length) in zip(merged_rows(files), samples.values(), strict=True):
        np.testing.assert_array_equal(row["rollout_log_probs"], -np.arange(1.0, length + 1))
        np.testing.assert_array_equal(row["log_probs"], -2.0 * np.arange(1.0, length + 1))


def test_copies_of_a_sample_on_other_ranks_count_once() -> None:
    """Tensor ranks hold the same samples; the first stages of a pipeline hold them without results."""
    samples = {4: (6, 3), 2: (5, 2)}
    whole, copy, early = (rank_file(samples, 0, 1) for _ in range(3))
    del early["rollout_data"]["log_probs"]
    rows = merged_rows([("1_0.pt", early), ("1_1.pt", whole), ("1_2.pt", copy)])
    assert [row["sample_index"] for row in rows] == [2, 4]
    assert all("log_probs" in row for row in rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda one: one["rollout_data"]["log_probs"].__setitem__(0, torch.zeros(1)),
            "has 1 values, cp_rank 1 of 2 owns",
        ),
        (lambda one: one.update(qkv_format="bshd"), "qkv_format other than thd"),
    ],
)
def test_slices_that_cannot_be_put_together_are_refused(change: Any, message: str) -> None:
    files = [(f"1_{rank}.pt", rank_file({0: (12, 8)}, rank, 2)) for rank in range(2)]
    change(files[1][1])
    if "qkv" in message:
        change(files[0][1])
    with pytest.raises(ra.DumpError, match=message):
        merged_rows(files)
