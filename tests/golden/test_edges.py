"""Counts within rounding of a threshold, by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.corrections.cuts import at_most

NEAR = math.log(2.0)


def report_of(tmp_path: Path, rows: list[list[float]], correction: ra.Correction) -> ra.Report:
    """Rows of those log-ratios; log μ is 0 wherever that keeps d as it is."""
    mu = [[min(0.0, -x) for x in row] for row in rows]
    pi = [[min(0.0, x) for x in row] for row in rows]
    floats = pa.list_(pa.float64())
    columns = {"rollout_log_probs": pa.array(mu, floats), "old_log_probs": pa.array(pi, floats)}
    pq.write_table(pa.table(columns), tmp_path / "step_0.parquet")
    preset = ra.Preset("mine", correction, "here", "to try")
    return ra.analyze(ra.open_dump(tmp_path), presets=[preset], sweep=False, edges=True)


@pytest.mark.parametrize(("shift", "count"), [(0, 1), (1, 1), (-1, 1), (3, 1), (100, 0), (-100, 0)])
def test_a_token_at_the_cap(shift: int, count: int, tmp_path: Path) -> None:
    d = at_most(2.0)
    for _ in range(abs(shift)):
        d = math.nextafter(d, math.copysign(math.inf, shift))
    correction = ra.Correction(ra.Weight(ra.Level.TOKEN, ra.Bound.TRUNCATE, upper=2.0))
    report = report_of(tmp_path, [[-0.5, d, -0.25], [-0.1]], correction)
    assert report.edges[None, "mine"].get("bounded.capped_fraction", 0) == count
    assert report.edges[0, "mine"] == report.edges[None, "mine"]


def test_a_row_at_the_bound_of_a_sum(tmp_path: Path) -> None:
    rule = ra.Rule(ra.Statistic.RATIO, ra.Aggregation.SEQ_SUM, lower=0.5, upper=2.0)
    rows = [[NEAR / 3, NEAR / 3, NEAR / 3], [-0.1, -0.2], [-NEAR, -0.3, 0.3], [0.5 * NEAR, 0.5001 * NEAR]]
    edges = report_of(tmp_path, rows, ra.Correction(rules=(rule,))).edges[None, "mine"]
    assert edges == {"kept.masked_fraction": 6, "kept.seq_masked_fraction": 2, "kept.seq_touched_fraction": 2}


def test_a_sequence_weight_at_its_cap_counts_its_tokens(tmp_path: Path) -> None:
    weight = ra.Weight(ra.Level.SEQUENCE, ra.Bound.TRUNCATE, upper=2.0)
    rows = [[NEAR / 4] * 4, [0.1]]
    assert report_of(tmp_path, rows, ra.Correction(weight)).edges[None, "mine"]["bounded.capped_fraction"] == 4


def test_native_shares(tmp_path: Path) -> None:
    rows = [[math.log(1.01), -0.5], [math.log(1e-4), 0.5], [-20.0, 3.0]]
    edges = report_of(tmp_path, rows, ra.Correction()).edges[None, "engine"]
    assert edges == {"within_1pct": 1, "catastrophic_fraction": 1, "veto_fraction": 1, "tokens_past_clamp": 1}


def test_a_count_that_another_machine_sees_otherwise_passes_and_is_named(tmp_path: Path, run) -> None:
    """Real case 106."""
    report_of(tmp_path, [[at_most(2.0), -0.5, -0.25, 0.9], [-0.1] * 4], ra.Correction())
    arguments = ("check", tmp_path / "step_0.parquet", "--golden", tmp_path / "g.json")
    run(*arguments, "--update")
    text = (tmp_path / "g.json").read_text()
    key = "decoupled_token_is:bounded.capped_fraction@pooled"
    assert f'"{key}": 1\n' in text
    assert f'"{key}": 0.125,' in text
    (tmp_path / "g.json").write_text(text.replace(f'"{key}": 0.125,', f'"{key}": 0.25,'))
    result = run(*arguments)
    assert result.code == 0
    line = next(line for line in result.out.splitlines() if key in line)
    assert line.startswith("same")
    assert line.endswith("edge-sensitive: 1 of 1 within rounding of the threshold")
    (tmp_path / "g.json").write_text(
        text.replace(f'"{key}": 0.125,', f'"{key}": 0.0,').replace(f'"{key}": 1\n', f'"{key}": 0\n')
    )
    assert run(*arguments).code == 0
    (tmp_path / "g.json").write_text(text.replace(f'"{key}": 0.125,', f'"{key}": 0.375,'))
    assert "better" in run(*arguments).out


def test_a_report_made_without_edges_says_how_to_get_them(tmp_path: Path) -> None:
    report_of(tmp_path, [[-0.1]], ra.Correction())
    with pytest.raises(ValueError, match="edges=True"):
        ra.analyze(ra.open_dump(tmp_path), sweep=False).edges  # noqa: B018
