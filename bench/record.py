"""What `DumpWriter.write` costs in processor time: 256 responses of up to 4,096 tokens, float32 on the host.

python bench/record.py /tmp/recorded
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

import rollout_audit as ra

ROWS, WIDTH = 256, 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    batch = batch_of(torch.Generator().manual_seed(0))
    copied, written, sizes = [], [], []
    with ra.DumpWriter(options.folder, on_error="raise") as writer:
        for step in range(options.steps):
            copied.append(seconds(lambda: [tensor.clone() for tensor in batch.values()]))
            start = time.process_time()
            path = writer.write(step=step, **batch)
            written.append(time.process_time() - start)
            sizes.append(path.stat().st_size if path else 0)
    tokens = int(batch["response_mask"].sum())
    median, first = statistics.median(written[1:]) * 1e3, written[0] * 1e3
    print(f"{ROWS} x {WIDTH}, {tokens:,} response tokens: {median:.0f} ms of processor time (first {first:.0f}),")
    copies = median / 1e3 / statistics.median(copied)
    print(f"{copies:.1f} times a copy of the tensors, {sizes[-1] / tokens:.2f} bytes a token")


def batch_of(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Lengths from 256 to 4,096, right padded; log-probs whose difference has a standard deviation of 0.02."""
    lengths = torch.randint(256, WIDTH + 1, (ROWS, 1), generator=generator)
    rollout = -torch.empty(ROWS, WIDTH).exponential_(1 / 0.6, generator=generator)
    noise = torch.randn(ROWS, WIDTH, generator=generator) * 0.02
    return {
        "rollout_log_probs": rollout,
        "old_log_probs": torch.clamp(rollout + noise, max=0.0),
        "response_mask": (torch.arange(WIDTH) < lengths).long(),
        "advantages": torch.randn(ROWS, generator=generator),
    }


def seconds(action) -> float:  # type: ignore[no-untyped-def]
    start = time.process_time()
    action()
    return time.process_time() - start


if __name__ == "__main__":
    main()
