"""Tables of the report as Parquet: the same values give the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["write_columns", "write_steps"]

STEP_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64()),
        pa.field("subject", pa.string()),
        pa.field("stage", pa.string()),
        pa.field("metric", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("reason", pa.string()),
    ]
)


def write_columns(columns: Mapping[str, Sequence[object] | np.ndarray[Any, Any]], path: Path) -> None:
    """One row an entry; NaN is null."""
    arrays = {name: pa.array(values, from_pandas=isinstance(values, np.ndarray)) for name, values in columns.items()}
    _write(pa.table(arrays), path)


def write_steps(rows: Iterable[Mapping[str, object]], path: Path) -> None:
    """Long form: one row a step, subject, stage and metric."""
    _write(pa.Table.from_pylist(list(rows), schema=STEP_SCHEMA), path)


def _write(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd", store_schema=False)
