"""The whole pass on a CUDA device against the CPU: same figures, time of each, how far reading and arithmetic overlap.

Makes its dumps where they are missing (10 and 100 million tokens), fits in five minutes on one device:
python bench/gpu.py --folder /tmp --tokens 10_000_000 100_000_000
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch

import rollout_audit as ra
from rollout_audit.audit.plan import Audit, Options
from rollout_audit.audit.sweep import default_grid
from rollout_audit.dumps.fault_log import FaultLog

RELATIVE = 1e-9
HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--tokens", type=lambda text: int(text.replace("_", "")), nargs="+", default=[10**7, 10**8])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was measured")
        return 2
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    return max(compare(made(options.folder, tokens)) for tokens in options.tokens)


def made(folder: Path, tokens: int) -> Path:
    dump = folder / f"dump{tokens // 10**6}"
    if not dump.exists():
        subprocess.run([sys.executable, HERE / "make_dump.py", dump, "--tokens", str(tokens)], check=True)
    return dump


def compare(folder: Path) -> int:
    reading = timed(lambda: list_chunks(folder))[0]
    passes = {device: timed(lambda device=device: run(folder, device))[0] for device in ("cpu", "cuda")}
    (cpu_time, cpu), (cuda_time, cuda) = (timed(lambda d=d: ra.analyze(ra.open_dump(folder), device=d)) for d in passes)
    tokens, differing = cpu.counts.valid_tokens, differences(cpu, cuda)
    peak = torch.cuda.max_memory_allocated() / 2**20
    print(f"\n{folder}: {tokens:,} valid tokens")
    print(f"reading and checks alone, one thread   {reading:.2f} s")
    print(f"pass on the CPU {passes['cpu']:.2f} s, on CUDA {passes['cuda']:.2f} s")
    print(f"reading / CUDA pass {reading / passes['cuda']:.2f}: more than 1 where reading row groups side by side pays")
    print(f"analyze on the CPU {cpu_time:.2f} s, on CUDA {cuda_time:.2f} s; device memory at most {peak:,.0f} MiB")
    print(f"{len(differing)} figures differ")
    for line in differing[:20]:
        print("  ", line)
    return 1 if differing else 0


def timed(function):
    start = time.perf_counter()
    result = function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def list_chunks(folder: Path) -> int:
    return sum(1 for _ in ra.open_dump(folder).chunks())


def run(folder: Path, device: str) -> None:
    Audit(ra.open_dump(folder), Options(sweep=default_grid(), device=device)).run(FaultLog())


def differences(one, two) -> list[str]:
    """Integers must be equal, floats to 1e-9."""
    found: list[str] = []
    _walk("", one.model_dump(exclude={"created", "tool"}), two.model_dump(exclude={"created", "tool"}), found)
    return found


def _walk(where: str, one, two, found: list[str]) -> None:
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        for key in one:
            _walk(f"{where}.{key}", one[key], two[key], found)
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            _walk(f"{where}[{i}]", a, b, found)
    elif isinstance(one, float) and isinstance(two, float):
        if abs(one - two) > RELATIVE * max(1.0, abs(one)):
            found.append(f"{where}: {one!r} against {two!r}")
    elif one != two:
        found.append(f"{where}: {one!r} against {two!r}")


if __name__ == "__main__":
    sys.exit(main())
