"""The default sweep on a real recording: every sampled point equals the direct definition on the whole batch."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

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
Array = NDArray[np.float64]
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


def statistic_of_rows(rule: str, tokens: Tokens) -> Array:
    """[rows] |statistic|, row after row in plain NumPy."""
    _, over, statistic = rule.split("_")
    d = np.clip((tokens.training_log_probs - tokens.rollout_log_probs).numpy(), -20.0, 20.0)
    values = {"k1": -d, "k2": d**2 / 2, "k3": np.expm1(d) - d}[statistic]
    rows = zip(np.cumsum(tokens.lengths.numpy()), tokens.lengths.tolist(), strict=True)
    reduced = {"sum": np.sum, "mean": np.mean, "max": np.max}[over]
    return np.array([abs(reduced(values[stop - n : stop])) for stop, n in rows if n])


def test_no_row_lies_on_a_fitted_threshold() -> None:
    """So that the order in which a row is summed decides nothing; the last threshold of a family keeps every row."""
    sweep, tokens = swept()
    by_family: dict[str, list[int]] = {}
    for i, correction in enumerate(sweep.corrections):
        rules = correction.rules
        if len(rules) == 1 and rules[0].name.startswith("seq_") and rules[0].name != "seq_max_k1":
            by_family.setdefault(rules[0].name, []).append(i)
    assert len(by_family) == 8
    for name, points in by_family.items():
        rules = [sweep.corrections[i].rules[0] for i in points]
        own = statistic_of_rows(name, tokens)
        bounds = np.array(sorted({rule.upper for rule in rules if rule.upper is not None}))
        nearest = np.abs(own[:, None] / bounds[None, :] - 1.0).min()
        assert nearest > 1e-9, name
        assert own.max() < bounds[-1] < 1.0001 * own.max()


def test_equal_weights_do_not_spread(tmp_path: Path) -> None:
    """No rounding of sums is shown as a spread; and what the rows are too alike to be asked is said."""
    table = {"rollout_log_probs": [[-1.0] * 20] * 10, "old_log_probs": [[-1.5] * 20] * 10}
    pq.write_table(pa.table(table), tmp_path / "step_0.parquet")
    report = ra.analyze(ra.open_dump(tmp_path))
    spread = np.asarray(report.pictures.sweep["weight_std"], dtype=np.float64)
    assert np.nanmax(spread) == 0.0
    assert report.sweep is not None
    assert report.sweep.points < default_grid().points
    assert any(f"has {report.sweep.points:,} of at most 2,728 configurations" in note for note in report.notes)


def test_shares_are_of_counts() -> None:
    sweep, tokens = swept()
    rows, size = int((tokens.lengths > 0).sum()), int(tokens.lengths.sum())
    shares = sweep.figures["seq_masked_fraction"], sweep.figures["masked_fraction"]
    for share, n in zip(shares, (rows, size), strict=True):
        assert np.array_equal(share, np.round(share * n) / n)
