from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

FLOATS = pa.list_(pa.float32())
MASK = pa.list_(pa.uint8())


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """write("a.parquet", rollout_log_probs=…, …) → its path; lists become list<float>, masks list<uint8>."""

    def _write(name: str = "dump.parquet", row_group_size: int | None = None, **columns: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({k: _array(k, v) for k, v in columns.items()}), path, row_group_size=row_group_size)
        return path

    return _write


def _array(name: str, values: Any) -> Any:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if "mask" in name:
        return pa.array(values, MASK)
    return pa.array(values, FLOATS) if "log_probs" in name or "logp" in name else pa.array(values)
