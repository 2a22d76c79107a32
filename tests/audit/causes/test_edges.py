"""A mask that is a token or two too wide: at the start of the response, and beside the output of a tool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.audit.causes import Cause, causes_of_dump
from tests.faults import SOUND, sound

TOOL = 9


def causes_of_turns(recording: str, roll: int, folder: Path) -> list[Cause]:
    """Two rows of a recording are the turns of one, with a tool's output between them; the mask is rolled."""
    rng, pairs = np.random.default_rng(4), sound(recording).pairs()
    columns: dict[str, list[np.ndarray]] = {"old_log_probs": [], "rollout_log_probs": [], "response_mask": []}
    for (t, r), (t2, r2) in zip(pairs[::2], pairs[1::2], strict=False):
        mask = np.concatenate([np.ones(len(t)), np.zeros(TOOL), np.ones(len(t2))]).astype(np.int8)
        columns["old_log_probs"].append(np.concatenate([t, -rng.gamma(2.0, 2.0, TOOL), t2]).astype(np.float32))
        columns["rollout_log_probs"].append(np.concatenate([r, np.zeros(TOOL), r2]).astype(np.float32))
        columns["response_mask"].append(np.roll(mask, roll))
    folder.mkdir(exist_ok=True)
    pq.write_table(
        pa.table({key: [row.tolist() for row in rows] for key, rows in columns.items()}), folder / "d.parquet"
    )
    return causes_of_dump(ra.open_dump(folder), (), workers=1)


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("roll", [-1, 1])
def test_a_mask_that_is_one_off_beside_tools(name: str, roll: int, tmp_path: Path) -> None:
    first = causes_of_turns(name, roll, tmp_path)[0]
    assert (first.cause, first.severity) == ("mask_too_wide", "warning")
    assert "beside gaps in the mask" in first.evidence
    assert "rollout_log_probs is 0.0 there" in first.evidence


@pytest.mark.parametrize("name", SOUND)
def test_a_mask_that_leaves_tools_out_is_sound(name: str, tmp_path: Path) -> None:
    assert [(c.cause, c.severity) for c in causes_of_turns(name, 0, tmp_path)] == [("precision_noise", "info")]
