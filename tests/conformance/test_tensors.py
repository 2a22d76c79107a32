"""Weights and masks that verl itself gave, token by token (README.md, last paragraph)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file

import rollout_audit as ra
from rollout_audit.corrections.direct import apply
from rollout_audit.corrections.tokens import Tokens
from rollout_audit.trainers.registry import get_trainer

HERE = Path(__file__).parent
CASES = sorted(path.stem for path in (HERE / "tensors").glob("*.json"))


def read(case: str) -> tuple[Tokens, np.ndarray]:
    """The valid tokens of a case, and the response mask of all tokens of all rows."""
    frame = pl.read_parquet(HERE / "dumps" / case / "step_000000.parquet")
    mask = frame["response_mask"].explode().cast(pl.Boolean).to_numpy()
    training, rollout = (
        torch.from_numpy(frame[name].explode().cast(pl.Float64).to_numpy()[mask])
        for name in ("old_log_probs", "rollout_log_probs")
    )
    lengths = torch.tensor([sum(map(int, row)) for row in frame["response_mask"]], dtype=torch.int64)
    return Tokens(lengths, training, rollout, segment_lengths=lengths[lengths > 0]), mask


@pytest.mark.parametrize("case", CASES)
def test_weights_and_masks_agree(case: str) -> None:
    tokens, mask = read(case)
    trainer = get_trainer("verl")
    stored = load_file(HERE / "tensors" / f"{case}.safetensors")
    for entry in json.loads((HERE / "tensors" / f"{case}.json").read_text()):
        applied = apply(trainer.correction(trainer.configure(entry["config"])), tokens)
        weights, kept = np.zeros(mask.shape), np.zeros(mask.shape, bool)
        weights[mask], kept[mask] = applied.normalised.numpy(), applied.kept.numpy()
        np.testing.assert_allclose(weights, stored[entry["weights"]], rtol=1e-6, atol=1e-8)
        np.testing.assert_array_equal(kept, stored[entry["mask"]].astype(bool))


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_agrees(case: str, tmp_path: Path) -> None:
    dump = ra.open_dump(HERE / "dumps" / case)
    stored = load_file(HERE / "tensors" / f"{case}.safetensors")
    for i, entry in enumerate(json.loads((HERE / "tensors" / f"{case}.json").read_text())):
        written = ra.write_correction(dump, entry["config"], tmp_path / str(i), trainer="verl")
        table = pq.read_table(tmp_path / str(i) / written.files[0])
        weights, kept = (
            table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False) for name in ("weights", "mask")
        )
        np.testing.assert_allclose(weights, stored[entry["weights"]], rtol=1e-6, atol=1e-8)
        np.testing.assert_array_equal(kept, stored[entry["mask"]].astype(bool))
