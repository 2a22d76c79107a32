"""Reading alone against the whole audit, in one process, alternating: prints medians and their ratio.

python bench/speed.py /tmp/dump10 --runs 3
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

import rollout_audit as ra

COLUMNS = ["rollout_log_probs", "old_log_probs", "response_mask"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.parquet"))
    audit(options.folder)
    pairs = [(timed(lambda: read(files)), timed(lambda: audit(options.folder))) for _ in range(options.runs)]
    reading, auditing = (statistics.median(column) for column in zip(*pairs, strict=True))
    tokens = ra.open_dump(options.folder).total_values
    print(f"tokens          {tokens:,}")
    print(f"A reading       {reading:.2f} s  {reading / tokens * 1e9:.1f} ns/token")
    print(
        f"B audit         {auditing:.2f} s  {auditing / tokens * 1e9:.1f} ns/token  {tokens / auditing:,.0f} tokens/s"
    )
    print(f"B / A           {statistics.median(b / a for a, b in pairs):.2f}")


def read(files: list[Path]) -> None:
    """What pyarrow alone takes: row group by row group, the needed columns."""
    for path in files:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            file.read_row_group(group, columns=COLUMNS)


def audit(folder: Path) -> None:
    ra.analyze(ra.open_dump(folder))


def timed(function: Callable[[], None]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
