from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from tests.cli.conftest import RESETS, run, table

__all__ = ["run"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder, and no settings from outside."""
    for name in [*RESETS, *(n for n in os.environ if n.startswith(("ROLLOUT_AUDIT_", "GITHUB_")))]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps in a folder whose name has brackets."""
    folder = tmp_path_factory.mktemp("golden") / "run [bold]7"
    folder.mkdir()
    for step in range(2):
        pq.write_table(table(10, step=step, drift=0.05), folder / f"step_{step}.parquet")
    return folder


@pytest.fixture(scope="session")
def approved(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of the golden file of that dump."""
    file = tmp_path_factory.mktemp("approved") / "golden.json"
    ra.check(ra.open_dump(dump), file, update=True, tolerances={}, gates=[])
    return file.read_text(encoding="utf-8")


@pytest.fixture
def golden(approved: str, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    (file := tmp_path / "golden.json").write_text(approved, encoding="utf-8")
    return file
