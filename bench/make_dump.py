"""Write a synthetic dump of any size: zstd Parquet, float32, responses of uneven length.

python bench/make_dump.py /tmp/dump10 --tokens 10_000_000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MEAN_LENGTH = 1250
ROWS_PER_GROUP = 400
STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=lambda text: int(text.replace("_", "")), default=10_000_000)
    parser.add_argument("--files", type=int, default=4)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    rows = options.tokens // MEAN_LENGTH
    for index, part in enumerate(np.array_split(np.arange(rows), options.files)):
        write_file(options.folder / f"part_{index:03d}.parquet", part, rows, rng)


def write_file(path: Path, rows: np.ndarray, total: int, rng: np.random.Generator) -> None:
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for start in range(0, len(rows), ROWS_PER_GROUP):
            writer.write_table(group(rows[start : start + ROWS_PER_GROUP], total, rng))


SCHEMA = pa.schema(
    {
        "step": pa.int64(),
        "uid": pa.string(),
        "rollout_log_probs": pa.list_(pa.float32()),
        "old_log_probs": pa.list_(pa.float32()),
        "response_mask": pa.list_(pa.uint8()),
        "reward": pa.float32(),
    }
)


def group(rows: np.ndarray, total: int, rng: np.random.Generator) -> pa.Table:
    """Lengths from 250 to 2,250; rollout log-probs exponential; Student-t noise that grows within a run of steps."""
    lengths = rng.integers(250, 2 * MEAN_LENGTH - 250, len(rows), endpoint=True)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    n = int(offsets[-1])
    step = rows * STEPS // total
    rollout = -rng.exponential(0.6, n)
    noise = rng.standard_t(4, n) * np.repeat(0.02 + 0.01 * (step % 4), lengths)
    training = np.minimum(rollout + noise, 0.0)
    mask = rng.random(n) > 0.03
    columns = [
        pa.array(step),
        pa.array([f"r{row}" for row in rows]),
        *(
            ragged(values, offsets)
            for values in (rollout.astype(np.float32), training.astype(np.float32), mask.astype(np.uint8))
        ),
        pa.array(rng.integers(0, 2, len(rows)).astype(np.float32)),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def ragged(values: np.ndarray, offsets: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


if __name__ == "__main__":
    main()
