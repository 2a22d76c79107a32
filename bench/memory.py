"""Peak memory of the whole audit on dumps of growing size, each in a process of its own.

python bench/memory.py /tmp/dump10 /tmp/dump40
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

CHILD = "--child"


def main() -> None:
    if sys.argv[1] == CHILD:
        audit(Path(sys.argv[2]))
        return
    peaks = [peak_of(folder) for folder in sys.argv[1:]]
    for folder, (tokens, peak) in zip(sys.argv[1:], peaks, strict=True):
        print(f"{folder}  {tokens:,} tokens  peak {peak:,.0f} MiB  {peak / peaks[0][1]:.3f} of the first")


def peak_of(folder: str) -> tuple[int, float]:
    done = subprocess.run([sys.executable, __file__, CHILD, folder], check=True, capture_output=True, text=True)
    tokens, kibibytes = done.stdout.split()
    return int(tokens), int(kibibytes) / 1024


def audit(folder: Path) -> None:
    import rollout_audit as ra

    report = ra.analyze(ra.open_dump(folder))
    print(report.counts.tokens, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    main()
