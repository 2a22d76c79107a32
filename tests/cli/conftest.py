from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_audit.__main__ import main

FLOATS = pa.list_(pa.float32())
RESETS = ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "SOURCE_DATE_EPOCH", "MPLBACKEND")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _calm_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*RESETS, *(n for n in os.environ if n.startswith("ROLLOUT_AUDIT_"))]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    """run("analyze", path, …) in this process."""

    def _run(*arguments: object) -> Outcome:
        code = main([str(a) for a in arguments])
        captured = capfdbinary.readouterr()
        return Outcome(code, captured.out.decode(), captured.err.decode())

    return _run


def shell(*arguments: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The real command in a process of its own."""
    command = [sys.executable, "-m", "rollout_audit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env={**os.environ, **(env or {})}, timeout=120, **options)


def table(rows: int, *, step: int, drift: float, seed: int = 0) -> pa.Table:
    """A GRPO-like step: three log-probs, a mask with a tool call, rewards, the sampler's age."""
    rng = np.random.default_rng(seed + step)
    lengths = rng.integers(3, 30, rows)
    rollout = [rng.uniform(-6, -0.05, n) for n in lengths]
    old = [np.minimum(mu + rng.normal(0, drift, len(mu)), -1e-3) for mu in rollout]
    now = [np.minimum(pi + rng.normal(0, 0.01, len(pi)), -1e-3) for pi in old]
    masks = [[0 if i == 1 else 1 for i in range(n)] for n in lengths]
    return pa.table(
        {
            "uid": [f"s{step}-{i}" for i in range(rows)],
            "rollout_log_probs": pa.array(rollout, FLOATS),
            "old_log_probs": pa.array(old, FLOATS),
            "log_probs": pa.array(now, FLOATS),
            "response_mask": pa.array(masks, pa.list_(pa.uint8())),
            "reward": rng.integers(0, 2, rows).astype(np.float32),
            "policy_version": pa.array([0] * rows, pa.int32()),
            "trainer_version": pa.array([2 * step] * rows, pa.int32()),
            "step": pa.array([step] * rows, pa.int32()),
        }
    )


@pytest.fixture(scope="session")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps in a folder whose name has brackets; the mismatch grows."""
    folder = tmp_path_factory.mktemp("dumps") / "run [bold]7"
    folder.mkdir()
    for step in range(3):
        pq.write_table(table(16, step=step, drift=0.03 * (step + 1)), folder / f"step_{step:06d}[red].parquet")
    return folder
