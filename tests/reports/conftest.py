from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.audit.report import Report
from tests.cli.conftest import table


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder: Path = tmp_path_factory.mktemp("dump")
    for step in range(2):
        pq.write_table(table(12, step=step, drift=0.05), folder / f"step_{step}.parquet")
    return ra.analyze(ra.open_dump(folder))
