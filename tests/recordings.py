"""Sound recordings of sample_data as ragged rows, to be spoilt by tests/faults.py, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

__all__ = ["SOUND", "Array", "Inject", "Recording", "Rng", "long_rows", "some_rows", "sound", "write"]

Array = NDArray[np.float64]
Rng = np.random.Generator
SAMPLES = Path(__file__).parents[1] / "sample_data"
SOUND = ("llamacpp_q4", "temperature_both", "grpo_fresh")
"""Recordings in which nothing is wrong; `grpo_fresh` are the two steps of grpo_run whose sampler was just refreshed"""


@dataclass(frozen=True)
class Recording:
    """Ragged rows, the response alone: one array a row."""

    training: tuple[Array, ...]
    rollout: tuple[Array, ...]
    step: tuple[int, ...]
    policy_version: tuple[int, ...] | None = None
    trainer_version: tuple[int, ...] | None = None

    @property
    def rows(self) -> int:
        return len(self.step)

    def map(
        self, change: Callable[[Array, Array], tuple[Array, Array]], rows: Sequence[int] | None = None
    ) -> Recording:
        """`change(training, rollout)` of these rows, of all by default."""
        chosen = set(range(self.rows) if rows is None else rows)
        both = [change(t, r) if i in chosen else (t, r) for i, (t, r) in enumerate(self.pairs())]
        return replace(self, training=tuple(t for t, _ in both), rollout=tuple(r for _, r in both))

    def pairs(self) -> list[tuple[Array, Array]]:
        return list(zip(self.training, self.rollout, strict=True))

    def part(self, rng: Rng) -> Recording:
        """Some of the rows in any order, cut to some length, in one to four steps."""
        rows = rng.permutation(self.rows)[: int(rng.choice([1, 2, 3, 5, 10, 20, 40]))].tolist()
        length, steps = int(rng.choice([5, 20, 60, 10_000])), int(rng.integers(1, 5))
        return Recording(
            training=tuple(self.training[i][:length] for i in rows),
            rollout=tuple(self.rollout[i][:length] for i in rows),
            step=tuple(k * steps // len(rows) for k in range(len(rows))),
        )


@cache
def sound(name: str) -> Recording:
    """One of SOUND."""
    folder = SAMPLES / ("grpo_run" if name == "grpo_fresh" else name)
    files = sorted(folder.glob("*.parquet"))
    files = [files[0], files[3]] if name == "grpo_fresh" else files
    table = pa.concat_tables([pq.read_table(f, columns=["old_log_probs", "rollout_log_probs"]) for f in files])
    columns = [[np.array(row) for row in table[name].to_pylist()] for name in table.column_names]
    return Recording(tuple(columns[0]), tuple(columns[1]), (0,) * len(columns[0]))


def write(recording: Recording, folder: Path) -> Path:
    """As Parquet, float32."""
    folder.mkdir(parents=True, exist_ok=True)
    offsets = np.concatenate([[0], np.cumsum([len(t) for t in recording.training])]).astype(np.int32)
    columns: dict[str, object] = {
        name: pa.ListArray.from_arrays(offsets, np.concatenate(rows).astype(np.float32))
        for name, rows in (("old_log_probs", recording.training), ("rollout_log_probs", recording.rollout))
    }
    columns["step"] = np.array(recording.step, dtype=np.int64)
    if recording.policy_version is not None and recording.trainer_version is not None:
        columns["policy_version"] = np.array(recording.policy_version)
        columns["trainer_version"] = np.array(recording.trainer_version)
    pq.write_table(pa.table(columns), folder / "dump.parquet")
    return folder


def some_rows(recording: Recording, share: float, rng: Rng) -> list[int]:
    """That share of the rows, two at least."""
    return sorted(rng.permutation(recording.rows)[: max(2, round(share * recording.rows))].tolist())


def long_rows(recording: Recording, share: float, rng: Rng, tokens: int = 20) -> list[int]:
    """That share of the rows, one at least, of those that have so many tokens."""
    long = [i for i in range(recording.rows) if len(recording.training[i]) >= tokens]
    return sorted(rng.permutation(long)[: max(1, round(share * recording.rows))].tolist())


Inject = Callable[[Recording, float, Rng], Recording]
"""Puts a fault of that strength into a recording"""
