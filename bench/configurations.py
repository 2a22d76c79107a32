"""Whether the number of configurations shows in the time of the pass: 200, 2,000 and 20,000 in turn, several rounds.

python bench/configurations.py /tmp/dump10 --runs 3
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

import rollout_audit as ra
from rollout_audit.audit.plan import Audit, Options
from rollout_audit.audit.sweep import Grid, sweep_scope
from rollout_audit.corrections.model import Aggregation, Bound, Level, Statistic, Weight
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.statistics.sweep import nested_rule

SIZES = (200, 2_000, 20_000)
PARTS = 20
"""Of a grid, with as many thresholds each: 3 levels × truncate, clip, mask; 3 token rules; 8 sequence rules"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    audits = {size: Audit(ra.open_dump(options.folder), Options(sweep=grid(size // PARTS))) for size in SIZES}
    for audit in audits.values():
        audit.run(FaultLog())
    rounds = [{size: timed(audit) for size, audit in audits.items()} for _ in range(options.runs)]
    for size, audit in audits.items():
        passes, sweeps = (statistics.median(r[size][i] for r in rounds) for i in (0, 1))
        ratio = statistics.median(r[size][0] / r[SIZES[0]][0] for r in rounds)
        cuts = len(audit.plans[audit.primary].grid.cuts)
        figures = f"pass {passes:.2f} s, {ratio:.2f} of the first; sweep {sweeps:.2f} s"
        print(f"{size:>6,} configurations, {cuts:>5,} cuts: {figures}")


def grid(thresholds: int) -> Grid:
    uppers = np.geomspace(1.05, 12.0, thresholds).tolist()
    bounds = {
        Bound.TRUNCATE: lambda level, upper: Weight(level, Bound.TRUNCATE, upper=upper),
        Bound.CLIP: lambda level, upper: Weight(level, Bound.CLIP, 1 / upper, upper),
        Bound.MASK: lambda level, upper: Weight(level, Bound.MASK, 1 / upper, upper),
    }
    levels = (Level.TOKEN, Level.SEQUENCE, Level.GEOMETRIC)
    return Grid(
        weights=tuple(tuple(make(level, u) for u in uppers) for level in levels for make in bounds.values()),
        token_rules=tuple(
            tuple(nested_rule(statistic, Aggregation.TOKEN, u) for u in uppers)
            for statistic in (Statistic.K1, Statistic.K2, Statistic.K3)
        ),
        vetoes=(1e-4,),
        fitted=thresholds,
        joint=(),
        joint_fitted=0,
    )


def timed(audit: Audit) -> tuple[float, float]:
    start = time.perf_counter()
    state = audit.run(FaultLog())
    middle = time.perf_counter()
    sweep_scope(audit.evidence(state)[audit.primary].scope(), audit.options.sweep)
    return middle - start, time.perf_counter() - middle


if __name__ == "__main__":
    main()
