"""Choosing a correction: real cases and recordings with the right outcome, limits as stated, refusals."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.audit.best import CRITERIA, SweepPoints, best_points
from rollout_audit.audit.limits import LIMITS, Limits, distance
from rollout_audit.audit.report import FindingReport
from rollout_audit.corrections.model import Mode
from rollout_audit.corrections.presets import PRESETS

ROOT = Path(__file__).parents[2]
RUN, QUANTISED = ROOT / "sample_data" / "grpo_run", ROOT / "sample_data" / "llamacpp_q4"
DUMPS = ROOT / "tests" / "conformance" / "dumps"


@cache
def report_of(path: Path) -> ra.Report:
    return ra.analyze(ra.open_dump(path))


def written(folder: Path, log_ratios: list[list[float]], steps: list[int] | None = None) -> ra.Dump:
    """A dump with those log-ratios."""
    rollout = [np.full(len(row), -8.0) for row in log_ratios]
    old = [mu + np.array(row) for mu, row in zip(rollout, log_ratios, strict=True)]
    columns = {"rollout_log_probs": rollout, "old_log_probs": old, "step": steps or [0] * len(rollout)}
    pq.write_table(pa.table(columns), folder / "dump.parquet")
    return ra.open_dump(folder)


def even(spread: float, rows: int = 40, tokens: int = 50) -> list[list[float]]:
    """Log-ratios of both signs of one size, plus a drift that makes the ratios average 1."""
    drift = -math.log(math.cosh(spread))
    return [[drift + (spread if (i + j) % 2 else -spread) for j in range(tokens)] for i in range(rows)]


class TestLimits:
    def test_distance_is_the_sum_of_what_is_changed(self) -> None:
        figures = {"masked_fraction": 0.05, "bounded_fraction": 0.02, "mass_lost": 0.01, "ess": 0.9}
        assert distance(figures) == pytest.approx(0.18)
        assert distance({"masked_fraction": 0.0, "bounded_fraction": 0.0, "mass_lost": 0.0, "ess": 1.0}) == 0.0
        assert distance({**figures, "ess": None}) is None

    def test_bounds_are_kept_at_equality(self) -> None:
        exactly = {"ess": 0.5, "masked_fraction": 0.1, "mass_lost": 0.02, "bounded_fraction": 0.1, "kept_kl_k3": 0.01}
        assert Limits().broken(exactly, "none") == {}
        past = {name: value - 1e-9 if name == "ess" else value + 1e-9 for name, value in exactly.items()}
        assert list(Limits().broken(past, "none")) == [limit.key for limit in LIMITS]
        assert "kept_kl_k3" not in Limits().broken(past, "token")
        assert "kept_kl_k3" in Limits().broken(past, "geometric")

    def test_k3_over_the_dump_is_held_lower_by_as_much_as_the_worst_step_is_above_it(self) -> None:
        assert Limits().for_steps(0.005, [0.02, 0.001]).max_kl == pytest.approx(0.0025)
        assert Limits().for_steps(0.005, [0.009, 0.001]) == Limits()
        assert Limits().for_steps(0.03, [0.03]) == Limits()

    @pytest.mark.parametrize("name", ["min_ess", "max_masked", "max_mass_lost", "max_bounded", "max_kl"])
    @pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
    def test_what_is_no_share_is_refused(self, name: str, value: float) -> None:
        with pytest.raises(ra.UsageError, match=f"--{name.replace('_', '-')} "):
            ra.recommend(report_of(QUANTISED), **{name: value})


class TestBestPoints:
    @pytest.mark.parametrize("criterion", CRITERIA, ids=lambda c: c.name)
    def test_no_point_that_may_be_chosen_is_better(self, criterion) -> None:
        report = report_of(RUN)
        assert report.sweep is not None
        points = SweepPoints(report.pictures.sweep)
        limits = Limits(max_kl=report.sweep.max_kl)
        (best,) = [b for b in best_points(points.columns, limits) if b.criterion == criterion.name]
        assert best in report.sweep.best
        kind = {True: points.weighted, False: points.unweighted, None: points.weighted | points.unweighted}
        able = points.within(limits, criterion.limits) & points.acts & points.balanced & kind[criterion.weighted]
        name, sign = criterion.order[0]
        values = sign * points.figure(name)[able]
        found = best.distance if name == "distance" else best.figures[name]
        assert sign * found == pytest.approx(np.nanmin(values), abs=1e-9)

    def test_what_changes_nothing_is_never_best(self) -> None:
        report = report_of(DUMPS / "identical")
        assert report.sweep is not None
        assert [point.formula for point in report.sweep.best] == [None] * len(CRITERIA)

    def test_weights_that_a_bound_replaced_are_no_weights(self) -> None:
        """Every product ratio of this run is below 0.9: clipped into [0.9, 1.1] all are 0.9, with ess 1."""
        points = SweepPoints(report_of(DUMPS / "stale_policy").pictures.sweep)
        clipped = next(i for i, f in enumerate(points.columns["formula"])
                       if f == "sequence weight clipped into [0.909091, 1.1]")  # fmt: skip
        assert points.figure("ess")[clipped] == pytest.approx(1.0)
        assert points.figure("mass_lost")[clipped] == pytest.approx(0.0)
        assert points.figure("bounded_fraction")[clipped] == 1.0
        assert not points.within(Limits())[clipped]

    def test_clamped_weights_of_long_responses_are_all_alike_and_no_weights(self) -> None:
        found = ra.recommend(report_of(DUMPS / "long_sequences"))
        (capped,) = [c for c in found.failing if c.name == "decoupled_seq_is"]
        assert capped.figures["ess"] == pytest.approx(1.0)
        assert capped.why_not == ["weight_mean 2.06e-09 outside [0.5, 2]"]


class TestVerdicts:
    def test_none_needed_where_a_four_bit_engine_is_sound(self) -> None:
        found = ra.recommend(report_of(QUANTISED))
        assert found.verdict == "none needed"
        assert found.past_limit == []
        assert found.ranked[0].name == "disabled"
        assert found.raw["ess"] == pytest.approx(1 / (1 + report_of(QUANTISED).overall["chi2_rel_token"]))

    def test_a_run_with_stale_steps_needs_token_weights(self) -> None:
        found = ra.recommend(report_of(RUN))
        assert found.verdict == "recommended"
        assert found.past_limit == ["kl_k3"]
        assert found.mildest_preset is not None
        assert found.mildest_preset.settings["level"] == "token"
        assert "decoupled_token_is" in [candidate.name for candidate in found.ranked]
        assert found.mildest_point is not None
        assert found.mildest_point.distance <= found.mildest_preset.distance
        assert found.mildest_point.settings["level"] == "token"
        assert any("worst step" in note for note in found.notes)

    def test_ranks_are_by_distance_and_all_keep_the_limits(self) -> None:
        found = ra.recommend(report_of(RUN))
        distances = [round(c.distance, 9) for c in found.ranked]
        assert distances == sorted(distances)
        assert all(c.meets and not c.why_not for c in found.ranked)
        assert all(c.why_not and not c.meets for c in found.failing)
        names = {name for c in (*found.ranked, *found.failing) if c.source == "preset" for name in (c.name, *c.alike)}
        assert names == {c.name for c in report_of(RUN).corrections if c.mode == "decoupled"}

    def test_presets_that_come_to_the_same_are_one_candidate(self) -> None:
        found = ra.recommend(report_of(RUN))
        (capped,) = [c for c in found.ranked if c.name == "decoupled_token_is"]
        assert {"slime_tis", "miles_tis", "nemo_rl_tis", "skyrl_token_tis"} <= set(capped.alike)
        (nothing,) = [c for c in found.failing if c.name == "disabled"]
        assert {"slime_default", "roll_default"} <= set(nothing.alike)
        by_name = {c.name: c for c in report_of(RUN).corrections}
        for one in (*found.ranked, *found.failing):
            for name in one.alike:
                mine, theirs = (
                    {k: -1.0 if v is None else v for k, v in by_name[n].stages.kept.items()} for n in (one.name, name)
                )
                assert theirs == pytest.approx(mine, rel=1e-8)
        shown = [name for c in (*found.ranked, *found.failing) for name in (c.name, *c.alike) if c.source == "preset"]
        assert len(shown) == len(set(shown))

    def test_a_weight_under_a_rule_that_removes_nothing_is_no_candidate_of_its_own(self) -> None:
        found = ra.recommend(report_of(RUN))
        of_sweep = [c for c in found.ranked if c.source == "sweep"]
        assert any(c.settings["rule"] and c.settings["level"] != "none" for c in of_sweep)
        assert all(c.figures["masked_fraction"] > 0 for c in of_sweep if c.settings["rule"])

    def test_a_limit_is_said_as_it_was_stated_and_a_figure_in_digits_that_break_it(self) -> None:
        found = ra.recommend(report_of(RUN), min_ess=0.9999)
        (capped,) = [c for c in found.failing if c.name == "decoupled_token_is"]
        assert "ess 0.985 < 0.9999" in capped.why_not
        ess = capped.figures["ess"]
        close = round(ess + 2e-6, 6)
        failing = {c.name: c for c in ra.recommend(report_of(RUN), min_ess=close).failing}
        text = next(text for text in failing["decoupled_token_is"].why_not if text.startswith("ess "))
        _, value, sign, bound = text.split()
        assert (sign, bound) == ("<", f"{close:g}")
        assert float(value) < float(bound)

    def test_why_not_names_every_limit_with_its_figure(self) -> None:
        (geometric,) = [c for c in ra.recommend(report_of(RUN)).failing if c.name == "decoupled_geo_rs_seq_tis"]
        assert [text.split()[0] for text in geometric.why_not] == ["masked_fraction", "mass_lost"]
        assert geometric.why_not[0] == "masked_fraction 0.956 > 0.1"

    def test_the_kept_ess_is_judged_and_the_raw_one_stands_beside_it(self) -> None:
        found = ra.recommend(report_of(RUN), max_mass_lost=0.2, max_bounded=0.2)
        (capped,) = [c for c in found.ranked if c.name == "decoupled_seq_is"]
        (own,) = [c for c in report_of(RUN).corrections if c.name == "decoupled_seq_is"]
        assert capped.figures["ess"] == own.stages.kept["ess"]
        assert capped.figures["raw_ess"] == own.stages.raw["ess"] < capped.figures["ess"]

    def test_a_drift_of_all_tokens_takes_weights(self) -> None:
        found = ra.recommend(report_of(DUMPS / "stale_policy"))
        (rule,) = [c for c in found.failing if c.name == "token_rs"]
        assert "no token or sequence weight, so ppl_ratio past the limit stays" in rule.why_not
        assert all(c.settings["level"] in ("token", "sequence") for c in found.ranked)

    def test_a_rule_that_touches_nothing_mends_nothing(self) -> None:
        found = ra.recommend(report_of(DUMPS / "catastrophic_tokens"))
        (nothing,) = [c for c in found.failing if c.name == "disabled"]
        assert nothing.why_not == ["changes nothing, so veto_fraction past the limit stays"]
        assert found.mildest_preset is not None
        assert found.mildest_preset.name == "token_rs"

    def test_nothing_meets_the_limits_names_the_nearest_and_what_to_relax(self) -> None:
        found = ra.recommend(report_of(RUN), min_ess=0.999, max_masked=0.001)
        assert found.verdict == "nothing meets the limits"
        assert found.ranked == []
        assert found.relax
        assert "Nearest: " in found.sentence
        relaxed = dict(option.split() for option in found.relax)
        limits = {"min_ess": 0.999, "max_masked": 0.001}
        limits |= {option.removeprefix("--").replace("-", "_"): float(value) for option, value in relaxed.items()}
        assert ra.recommend(report_of(RUN), **limits).verdict == "recommended"

    def test_looser_limits_on_k3_need_nothing(self) -> None:
        assert ra.recommend(report_of(RUN), max_kl=0.03).verdict == "none needed"

    def test_identical_columns_are_refused(self) -> None:
        """Real case 37: agreement bit for bit is no evidence of health."""
        found = ra.recommend(report_of(DUMPS / "identical"))
        assert found.verdict == "refused"
        assert (found.ranked, found.failing, found.mildest_preset, found.mildest_point) == ([], [], None, None)
        assert "bit-identical" in found.refusals[0]

    def test_an_error_of_the_recording_is_refused_unless_its_rows_were_dropped(self) -> None:
        finding = FindingReport(kind="shifted_by_one", severity="error", message="correlation peaks at lag 1")
        report = report_of(QUANTISED)
        stopped = report.model_copy(update={"findings": [finding]})
        assert ra.recommend(stopped).verdict == "refused"
        dropped = {"findings": [finding], "settings": report.settings.model_copy(update={"on_fault": "drop"})}
        assert ra.recommend(report.model_copy(update=dropped)).verdict == "none needed"

    def test_presets_alone_without_a_sweep(self) -> None:
        found = ra.recommend(ra.analyze(ra.open_dump(RUN), sweep=False))
        assert found.mildest_point is None
        assert {c.source for c in found.ranked} == {"preset"}
        assert any(note.startswith("No sweep") for note in found.notes)

    def test_bypass_ranks_its_own_presets(self) -> None:
        found = ra.recommend(ra.analyze(ra.open_dump(RUN), mode="bypass", sweep=False))
        considered = (*found.ranked, *found.failing)
        assert considered
        assert all(PRESETS[c.name].correction.mode is Mode.BYPASS for c in considered)


class TestCases:
    def test_cancelling_errors_pass_the_geometric_filter_and_not_the_limit(self, tmp_path: Path) -> None:
        """Real case 11: d = ±0.5 has k1 near 0 and k3 0.13: kept by the geometric band, corrected by nothing."""
        dump = written(tmp_path, [[0.5, -0.5] * 10] * 12)
        found = ra.recommend(dump)
        (geometric,) = [c for c in found.failing if c.name == "decoupled_geo_rs"]
        assert geometric.figures["masked_fraction"] == 0.0
        assert geometric.figures["kept_kl_k3"] == pytest.approx(0.127626, abs=1e-6)
        assert any(text.startswith("kept_kl_k3 0.128 > 0.01") for text in geometric.why_not)
        assert found.mildest_preset is not None
        assert found.mildest_preset.settings["level"] == "token"
        (sequence,) = [c for c in found.failing if c.name == "decoupled_seq_is"]
        assert "errors of both signs cancel in the product ratio, so its weights do not see them" in sequence.why_not

    def test_a_dozen_thousandths_a_token_fail_narrow_geometric_bands(self, tmp_path: Path) -> None:
        """Real case 91: d = 0.0011 a token is outside ±0.1%, and needs no correction at all."""
        found = ra.recommend(written(tmp_path, [[0.0011] * 100] * 10))
        assert found.verdict == "none needed"
        (geometric,) = [c for c in found.failing if c.name == "decoupled_geo_rs"]
        assert geometric.why_not == ["no token is kept"]

    def test_product_weights_that_deflate_are_refused_where_token_weights_are_fine(self, tmp_path: Path) -> None:
        """Real case 83: product ratios far below 1 while token ratios average 1."""
        random = np.random.default_rng(0)
        rows = [(random.normal(-0.01, 0.15, 600) - 0.001).tolist() for _ in range(24)]
        found = ra.recommend(written(tmp_path, rows))
        assert found.mildest_preset is not None
        assert found.mildest_preset.settings["level"] == "token"
        (capped,) = [c for c in found.failing if c.name == "decoupled_seq_is"]
        assert capped.why_not

    def test_a_gap_of_one_step_is_not_hidden_by_the_others(self, tmp_path: Path) -> None:
        calm, stale = even(0.02, rows=20), even(0.25, rows=4)
        found = ra.recommend(written(tmp_path, [*calm, *stale], [0] * 20 + [1] * 4))
        assert found.verdict == "recommended"
        limit = next(limit for limit in found.limits if limit.key == "kept_kl_k3")
        assert limit.bound < limit.default
        assert ra.recommend(written(tmp_path, calm)).verdict == "none needed"
