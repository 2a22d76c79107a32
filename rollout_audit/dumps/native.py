"""The native form of a dump: one row a response, Parquet with zstd, floats with their bytes split.

Bytes of one significance lie side by side, which zstd packs better than floats as they come. Each file is written under
a hidden name and renamed, so that a reader finds it whole or not at all.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "LACKS_TRAINING",
    "STORED_AS",
    "ints",
    "lacks_training",
    "list_column",
    "native_field",
    "native_file",
    "reals",
    "texts",
]

STORED_AS = b"rollout_audit.stored_as"
"""key of a column's metadata: the half precision that its float32 values were widened from"""
LACKS_TRAINING = b"rollout_audit.lacks_training"
"""key of a file's metadata: why it holds no log-probs of the trainer"""


def native_field(name: str, kind: Any, stored_as: str | None = None) -> Any:
    """A column of that Arrow type; `stored_as` keeps in mind what its values were before they were widened."""
    return pa.field(name, kind, metadata={STORED_AS: stored_as} if stored_as else None)


def lacks_training(why: str) -> dict[bytes, str]:
    """Metadata of a file that holds no log-probs of the trainer; empty where it does."""
    return {LACKS_TRAINING: why} if why else {}


@contextmanager
def native_file(path: Path, fields: Sequence[Any], metadata: Mapping[bytes, str] | None = None) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetWriter` whose file appears at the end, and only if all went well."""
    schema = pa.schema(fields, metadata=metadata or None)
    fresh = path.with_name(f".{path.name}-{uuid4().hex[:12]}.tmp")
    floats = [_leaf(field) for field in fields if pa.types.is_floating(_element(field.type))]
    others = [_leaf(field) for field in fields if _leaf(field) not in floats]
    try:
        with pq.ParquetWriter(
            fresh, schema, compression="zstd", use_dictionary=others, use_byte_stream_split=floats
        ) as writer:
            yield writer
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _element(kind: Any) -> Any:
    return kind.value_type if pa.types.is_list(kind) else kind


def _leaf(field: Any) -> str:
    """The column's path in the Parquet schema."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else str(field.name)


def list_column(values: NDArray[Any], offsets: NDArray[np.int64], kind: Any) -> Any:
    """Packed values as a column of lists of that element type."""
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values).cast(kind))


def reals(values: NDArray[Any]) -> Any:
    """[rows] as a column, null for NaN."""
    return pa.array(values.astype(np.float64), from_pandas=True)


def ints(values: NDArray[Any], blank: int | None = None) -> Any:
    """[rows] as a column, null where the value is the blank."""
    return pa.array(values.astype(np.int64), mask=None if blank is None else values == blank)


def texts(values: Sequence[str | None]) -> Any:
    return pa.array([value or None for value in values], pa.string())
