"""Audited dumps for the pictures: recorded edge cases, and a run whose sampler ages and is refreshed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_audit.audit.analyze import analyze
from rollout_audit.audit.dialect import trainer_metrics
from rollout_audit.audit.logged import compare
from rollout_audit.audit.report import Report
from rollout_audit.dumps.dump import open_dump
from rollout_audit.dumps.logs import Log

DUMPS = Path(__file__).parents[2] / "conformance" / "dumps"
EDGE_CASES = ("one_token", "single_tokens", "identical", "all_rejected", "beyond_safety_bound")


@cache
def report_of(case: str) -> Report:
    return analyze(open_dump(str(DUMPS / case)), workers=1)


def rewritten(report: Report, **fields: object) -> Report:
    """A copy with other fields and the same arrays."""
    copy = report.model_copy(update=fields)
    copy._pictures = report._pictures
    return copy


@pytest.fixture(params=EDGE_CASES)
def edge_report(request: pytest.FixtureRequest) -> Report:
    return report_of(request.param)


@pytest.fixture(scope="session")
def audited() -> Callable[[str], Report]:
    return report_of


@pytest.fixture(scope="session")
def ageing(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Six steps: the log-ratios spread wider with the sampler's age, 0 2 4 0 2 4, and three log-probs are there.

    The log that goes with it says twice the KL at step 3, and no number at step 4.
    """
    folder = tmp_path_factory.mktemp("ageing")
    for step in range(6):
        pq.write_table(_step(step), folder / f"step_{step}.parquet")
    dump = open_dump(str(folder))
    by_step = trainer_metrics(dump, "verl", {}, per_step=True)
    kl = {step: float(metrics["rollout_corr/kl"] or 0) for step, metrics in by_step.items()}
    log = Log(("run.jsonl",), ("step",), {"rollout_corr/kl": kl | {3: 2 * kl[3], 4: math.nan}})
    return analyze(dump, workers=1).with_log(compare(by_step, log, trainer="verl"))


def _step(step: int) -> pa.Table:
    random = np.random.default_rng(step)
    age = 2 * (step % 3)
    lengths = random.integers(5, 60, size=16)
    rollout = [-random.exponential(1.0, n) - 0.5 for n in lengths]
    old = [np.minimum(mu + random.normal(0, 0.02 + 0.03 * age, len(mu)), 0.0) for mu in rollout]
    return pa.table(
        {
            "uid": [f"s{step}-{i:02}" for i in range(16)],
            "step": np.full(16, step),
            "rollout_log_probs": rollout,
            "old_log_probs": old,
            "log_probs": [np.minimum(pi + random.normal(0, 0.01, len(pi)), 0.0) for pi in old],
            "policy_version": np.full(16, 2 * step - age),
            "trainer_version": np.full(16, 2 * step),
            "reward": random.integers(0, 2, size=16).astype(np.float64),
        }
    )
