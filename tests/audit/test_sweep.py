"""The default sweep on a real recording: every sampled point equals the direct definition on the whole batch."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import rollout_audit as ra
from rollout_audit.audit.plan import Audit, Options
from rollout_audit.audit.sweep import default_grid, sweep_scope
from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.tokens import Tokens
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.statistics.sweep import Sweep
from tests import definitions
from tests.builders import CPU

RUN = Path(__file__).parents[2] / "sample_data" / "llamacpp_q4"
STAGE = dict.fromkeys(("capped_fraction", "below_lower_fraction", "zeroed_fraction", "mass_lost"), "bounded")


@cache
def swept() -> tuple[Sweep, Tokens]:
    dump = ra.open_dump(RUN)
    audit = Audit(dump, Options(sweep=default_grid()))
    scope = audit.evidence(audit.run(FaultLog()))[audit.primary].scope()
    (chunk,) = dump.chunks()
    return sweep_scope(scope, default_grid()), Packed(chunk, CPU).tokens("old_log_probs")


def test_there_are_more_than_two_thousand_points() -> None:
    sweep, _ = swept()
    assert len(sweep.corrections) >= 2000
    assert len(set(sweep.corrections)) >= 2000


@pytest.mark.parametrize("offset", range(5))
def test_points_equal_the_direct_definition(offset: int) -> None:
    sweep, tokens = swept()
    for i in range(offset * 7, len(sweep.corrections), 97):
        expected = definitions.stage_metrics(sweep.corrections[i], tokens)
        expected["kept"] |= definitions.left_after(sweep.corrections[i], tokens)
        for name, column in sweep.figures.items():
            want = expected[STAGE.get(name, "kept")].get(name, math.nan)
            rounding = 1e-7 if name == "weight_std" else 1e-9
            near = column[i] == pytest.approx(want, rel=1e-9, abs=rounding, nan_ok=True)
            assert near or (name == "kept_reward_mean"), (name, sweep.corrections[i])


def test_a_report_has_the_sweep_unless_it_is_left_out(tmp_path: Path) -> None:
    report = ra.analyze(ra.open_dump(RUN))
    assert report.sweep is not None
    assert sum(family.points for family in report.sweep.families) == report.sweep.points >= 2000
    for family in report.sweep.families:
        if family.within:
            assert family.figures["ess"] >= report.sweep.min_ess
            assert family.figures["masked_fraction"] <= report.sweep.max_masked
    assert "sweep.parquet" in ra.write_report(report, tmp_path / "with", plots=False).files
    without = ra.analyze(ra.open_dump(RUN), sweep=False)
    assert without.sweep is None
    assert "sweep.parquet" not in ra.write_report(without, tmp_path / "without", plots=False).files


def test_the_strictest_token_cap_is_the_least_that_keeps_the_limits() -> None:
    sweep, _ = swept()
    caps = {
        c.weight.upper: i
        for i, c in enumerate(sweep.corrections)
        if c.weight.bound == "truncate" and c.weight.level == "token"
    }
    lost = np.array([sweep.figures["mass_lost"][caps[cap]] for cap in sorted(caps)])
    assert (np.diff(lost) <= 1e-15).all()
