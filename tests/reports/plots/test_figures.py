"""What the figures draw, read off their artists."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rollout_audit.audit.alike import alike
from rollout_audit.audit.report import CorrectionReport, Report, StageReport
from rollout_audit.corrections.model import Mode
from rollout_audit.corrections.presets import PRESETS
from rollout_audit.reports.plots import FIGURES
from rollout_audit.reports.plots.frontier import MOST_LABELS, on_frontier, spread_out
from rollout_audit.reports.plots.heat_map import grids
from rollout_audit.reports.plots.log_ratio import THRESHOLDS, Distribution, rebinned
from rollout_audit.reports.plots.profiles import profiles
from rollout_audit.reports.plots.sequences import Responses
from rollout_audit.reports.plots.style import new_figure
from rollout_audit.reports.plots.wording import TITLE_LENGTH, short
from rollout_audit.reports.plots.zones import zones
from tests.reports.plots.conftest import report_of, rewritten

Audited = Callable[[str], Report]


@dataclass(frozen=True, eq=False)
class Identical:
    """A report as the key of a cache: by identity."""

    report: Report

    def __hash__(self) -> int:
        return id(self.report)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identical) and other.report is self.report


@lru_cache(maxsize=24)
def _drawn(name: str, report: Identical) -> Figure | None:
    return FIGURES[name](report.report)


def drawn(name: str, report: Report) -> Figure:
    """Drawn once for the tests that read the same figure of the same report."""
    figure = _drawn(name, Identical(report))
    assert figure is not None
    return figure


def title(figure: Figure) -> str:
    return figure.texts[0].get_text().replace("\n", " ").replace("\u00a0", " ")


def subtitle(figure: Figure) -> str:
    return figure.texts[1].get_text().replace("\n", " ")


def words(axes: Axes) -> str:
    return " | ".join(text.get_text() for text in axes.texts)


def lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """label → x and y of the labelled lines."""
    labelled = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    return {
        str(x.get_label()): (np.asarray(x.get_xdata()).tolist(), np.asarray(x.get_ydata()).tolist()) for x in labelled
    }


def names(axes: Axes) -> list[str]:
    """Presets down the rows, without the count of those that come to the same."""
    return [label.get_text().partition(" +")[0] for label in axes.get_yticklabels()]


def diamonds(axes: Axes) -> list[tuple[float, float]]:
    return [(m.get_xdata()[0], m.get_ydata()[0]) for m in axes.lines if m.get_marker() == "D"]


def limit_lines(axes: Axes) -> list[float]:
    """Height of the horizontal lines that have no label: the limits."""
    flat = [np.asarray(line.get_ydata()) for line in axes.lines if str(line.get_label()).startswith("_")]
    return [float(y[0]) for y in flat if len(y) == 2 and y[0] == y[1]]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_draws_every_edge_case_and_states_one_finding(name: str, edge_report: Report) -> None:
    figure = _drawn(name, Identical(edge_report))
    agreeing = edge_report.overall["log_prob_diff_abs_max"] == 0.0
    if name in ("pairs", "logged") or (agreeing and name in ("heat_map", "rejection")):
        assert figure is None
        return
    assert figure is not None
    assert 10 < len(title(figure)) <= TITLE_LENGTH
    assert "nan" not in (title(figure) + subtitle(figure)).split()
    assert 1200 <= figure.get_figwidth() * figure.dpi <= 1500
    if edge_report.counts.sequences in (1, 24):
        figure.draw_without_rendering()


class TestSteps:
    def test_lines_hold_the_metrics_of_the_steps(self, ageing: Report) -> None:
        panel = drawn("steps", ageing).axes[0]
        assert lines(panel)["k3"] == ([0, 1, 2, 3, 4, 5], [s.metrics["kl_k3"] for s in ageing.steps])
        assert lines(panel)["|k1|"][1] == [abs(s.metrics["kl_k1"] or 0) for s in ageing.steps]

    def test_raw_and_kept_ess_stand_side_by_side(self, ageing: Report) -> None:
        ess = lines(drawn("steps", ageing).axes[2])
        kept = [s.corrections["decoupled_token_is"].kept["ess"] for s in ageing.steps]
        raw = [s.corrections["decoupled_token_is"].raw["ess"] for s in ageing.steps]
        assert ess["kept"][1] == kept
        assert ess["raw"][1] == raw

    def test_every_limit_of_a_metric_is_drawn_and_named(self, ageing: Report) -> None:
        panels = drawn("steps", ageing).axes
        metrics = ("kl_k3", "ppl_ratio", "ess", "weight_mean", "masked_fraction", "veto_fraction", "chi2_token")
        for panel, metric in zip(panels, metrics, strict=False):
            expected = [z.low if math.isfinite(z.low) else z.high for z in zones(metric)]
            assert limit_lines(panel) == pytest.approx(expected)
            assert all(z.label in words(panel) for z in zones(metric))

    def test_the_title_tells_of_age_and_refresh(self, ageing: Report) -> None:
        k3 = [short(s.metrics["kl_k3"]) for s in ageing.steps]
        figure = drawn("steps", ageing)
        assert title(figure).startswith(f"Mismatch grows with the sampler's age: k3 {k3[0]} → {k3[2]}, ")
        assert title(figure).endswith(f"{k3[3]} after the refresh")
        assert "Dotted lines: the sampler was refreshed" in subtitle(figure)
        assert lines(figure.axes[7])["policy_age"][1] == [0, 2, 4, 0, 2, 4]

    def test_no_word_of_age_where_it_does_not_explain_k3(self, ageing: Report) -> None:
        flat = [s.model_copy(update={"policy_age": 1.0}) for s in ageing.steps]
        assert "age" not in title(drawn("steps", rewritten(ageing, steps=flat)))
        turned = [s.model_copy(update={"policy_age": 4 - (s.policy_age or 0)}) for s in ageing.steps]
        assert "age" not in title(drawn("steps", rewritten(ageing, steps=turned)))

    def test_missing_values_are_gaps_with_a_reason(self, ageing: Report) -> None:
        steps = [
            s.model_copy(update={"metrics": {**s.metrics, "kl_k3": None}}) if s.step == 2 else s for s in ageing.steps
        ]
        panel = drawn("steps", rewritten(ageing, steps=steps)).axes[0]
        assert math.isnan(lines(panel)["k3"][1][2])
        assert "at 1 step" in words(panel)

    def test_nothing_kept_is_said(self, audited: Audited) -> None:
        report = audited("all_rejected")
        reference = report.settings.model_copy(update={"reference": "decoupled_geo_rs"})
        panels = drawn("steps", rewritten(report, settings=reference)).axes
        assert any("no token kept" in words(panel) for panel in panels)

    def test_one_step_is_a_row_of_gauges(self, audited: Audited) -> None:
        report = audited("stale_policy")
        gauges = drawn("steps", report).axes
        assert len(gauges) == 8
        assert lines(gauges[0])["kl_k3"][0] == [report.steps[0].metrics["kl_k3"]]
        assert title(drawn("steps", report)).startswith("2 of 8 figures past a health limit")

    def test_many_steps_get_a_running_median(self, ageing: Report) -> None:
        steps = [ageing.steps[i % 6].model_copy(update={"step": i}) for i in range(1000)]
        figure = drawn("steps", rewritten(ageing, steps=steps))
        assert len(lines(figure.axes[0])["running median of k3"][0]) == 1000
        assert "Bold: running median" in subtitle(figure)

    def test_a_report_without_steps_has_no_picture(self, ageing: Report) -> None:
        assert FIGURES["steps"](rewritten(ageing, steps=[])) is None


class TestLogRatio:
    def test_rebinning_loses_no_token_and_puts_each_in_its_bin(self, ageing: Report) -> None:
        sample = ageing.pictures.sample.log_ratio
        edges = (np.arange(-80, 82) - 0.5) * 0.05
        binned = rebinned(ageing.pictures.histogram, edges)
        exact, _ = np.histogram(sample, bins=edges)
        assert binned.sum() == pytest.approx(ageing.counts.valid_tokens)
        # A narrow cell may lie across the edge of a bin
        assert np.abs(binned - exact).max() <= 0.03 * exact.max()

    def test_shares_beyond_thresholds_are_exact(self, audited: Audited) -> None:
        report = audited("stale_policy")
        found, d = Distribution(report.pictures.histogram), report.pictures.sample.log_ratio
        assert found.below(0.5) == pytest.approx((d < math.log(0.5)).mean())
        assert found.above(2.0) == pytest.approx((d > math.log(2.0)).mean())
        assert found.outside(0.9, 1.1) == pytest.approx(1 - (report.overall["within_10pct"] or 0))

    def test_thresholds_and_log_counts(self, audited: Audited) -> None:
        axes = drawn("log_ratio", audited("catastrophic_tokens")).axes[0]
        upright = [float(np.asarray(x.get_xdata())[0]) for x in axes.lines]
        wanted = [math.log(r) for lower, upper, _ in THRESHOLDS for r in (lower, upper) if r is not None]
        assert sorted(upright) == pytest.approx(sorted(wanted))
        assert axes.get_yscale() == "log"
        assert "(veto)" in words(axes)

    def test_tokens_off_the_axis_are_counted(self, audited: Audited) -> None:
        report = audited("beyond_safety_bound")
        figure = drawn("log_ratio", report)
        low, high = figure.axes[0].get_xlim()
        d = report.pictures.sample.log_ratio
        assert f"{((d < low) | (d > high)).sum()} tokens beyond" in subtitle(figure)

    def test_equal_policies(self, audited: Audited) -> None:
        assert title(drawn("log_ratio", audited("identical"))).startswith("The two policies agree bit for bit")


class TestDensity:
    def test_cells_hold_every_token(self, ageing: Report) -> None:
        figure = drawn("density", ageing)
        probability, log_prob = (axes.collections[0].get_array() for axes in figure.axes[:2])
        assert probability is not None
        assert probability.sum() == ageing.counts.valid_tokens
        assert log_prob is not None
        assert ageing.counts.valid_tokens - log_prob.sum() <= 0.001 * ageing.counts.valid_tokens + 1

    def test_masked_placeholders_do_not_stretch_the_axes(self, audited: Audited) -> None:
        axes = drawn("density", audited("fully_masked_rows")).axes[1]
        assert axes.get_xlim()[0] >= -40

    def test_lopsided_ratios_are_the_finding(self, audited: Audited) -> None:
        higher = (audited("all_rejected").pictures.sample.log_ratio < 0).mean()
        assert higher > 0.65
        assert "less likely than the sampler did" in title(drawn("density", audited("all_rejected")))


class TestPresets:
    def test_the_title_counts_what_a_reader_counts(self, audited: Audited) -> None:
        figure = drawn("presets", audited("all_rejected"))
        assert title(figure) == "42 of 69 presets within the health limits; 21 mask 100% of the tokens"
        rows = {group[0].name: len(group) for group in alike(audited("all_rejected").corrections)}
        full = [t.get_text() == "100%" for t in figure.axes[1].texts]
        assert sum(rows[name] for name, whole in zip(names(figure.axes[0]), full, strict=True) if whole) == 21

    def test_every_preset_has_its_whole_name_and_values(self, ageing: Report) -> None:
        figure = drawn("presets", ageing)
        ess, tokens, sequences = figure.axes
        shown = names(ess)
        foot = figure.texts[2].get_text().replace("\n", " ")
        named = set(shown) | set(re.split(r" = |; ", foot.partition(". ")[2]))
        assert named == {c.name for c in ageing.corrections}
        assert len(shown) == len(alike(ageing.corrections))
        by_name = {c.name: c.stages.kept for c in ageing.corrections}
        masked, zeroed = ([bar.get_width() for bar in bars] for bars in tokens.containers)
        assert masked == [by_name[n]["masked_fraction"] for n in shown]
        bounded = {c.name: c.stages.bounded.get("zeroed_fraction") or 0.0 for c in ageing.corrections}
        assert zeroed == [bounded[n] for n in shown]
        assert any(zeroed)
        assert [bar.get_width() for bar in sequences.containers[0]] == [
            by_name[n]["seq_masked_fraction"] for n in shown
        ]
        marks = lines(ess)
        assert marks["decoupled_token_is ess"][0] == [by_name["decoupled_token_is"]["ess"]]
        assert marks["decoupled_seq_is ess_seq"][0] == [by_name["decoupled_seq_is"]["ess_seq"]]

    def test_modes_apart_and_reference_in_bold(self, ageing: Report) -> None:
        axes = drawn("presets", ageing).axes[0]
        shown = names(axes)
        modes = [PRESETS[name].correction.mode for name in shown]
        first_bypass = modes.index(Mode.BYPASS)
        assert set(modes[:first_bypass]) == {Mode.DECOUPLED}
        assert set(modes[first_bypass:]) == {Mode.BYPASS}
        bold = [t.get_text() for t in axes.get_yticklabels() if t.get_fontweight() == "bold"]
        assert bold == ["decoupled_token_is +10"]

    def test_the_reference_gives_its_row_the_name(self, ageing: Report) -> None:
        settings = ageing.settings.model_copy(update={"reference": "slime_tis"})
        shown = names(drawn("presets", rewritten(ageing, settings=settings)).axes[0])
        assert "slime_tis" in shown
        assert "decoupled_token_is" not in shown

    def test_a_preset_that_keeps_nothing_says_so(self, audited: Audited) -> None:
        assert "no token kept" in words(drawn("presets", audited("all_rejected")).axes[0])


class TestProfiles:
    def test_means_and_counts_per_bin(self, ageing: Report) -> None:
        sample = ageing.pictures.sample
        by_position, by_length, by_probability = profiles(sample)
        first = sample.positions < 7
        assert by_position.labels[0] == "1–\n7"
        assert by_position.counts[0] == first.sum()
        assert by_position.mean_abs[0] == pytest.approx(np.abs(sample.log_ratio[first]).mean())
        likely = sample.rollout_log_probs >= -2.3
        assert by_probability.counts[0] == likely.sum()
        assert by_length.counts.sum() == len(sample.positions)
        k3 = np.expm1(sample.log_ratio) - sample.log_ratio
        assert by_probability.mean_k3[0] == pytest.approx(k3[likely].mean())

    def test_all_columns_share_the_scale_of_their_row(self, ageing: Report) -> None:
        axes = drawn("profiles", ageing).axes
        assert axes[0].get_ylim() == axes[2].get_ylim()
        tallest = max(p.mean_abs.max() for p in profiles(ageing.pictures.sample))
        assert axes[0].get_ylim()[1] >= tallest


class TestSequences:
    def test_ratio_of_each_response(self, ageing: Report) -> None:
        found = Responses.of(ageing.pictures.sequences)
        assert np.exp(found.log_ratio).mean() == pytest.approx(ageing.overall["ppl_ratio"])
        points = drawn("sequences", ageing).axes[0].collections[0].get_offsets()
        assert np.asarray(points)[:, 1] == pytest.approx(np.exp(found.log_ratio))

    def test_limits_are_drawn(self, ageing: Report) -> None:
        for axes in drawn("sequences", ageing).axes:
            assert {0.95, 1.05} <= set(limit_lines(axes))

    def test_names_with_markup_and_foreign_glyphs_are_drawn_as_they_are(self, ageing: Report) -> None:
        pictures = ageing.pictures
        uids = [f"$\\frac{{{i}}}$ <b>日\n{i}" for i in range(len(pictures.sequences["uid"]))]
        report = rewritten(ageing)
        named = type(pictures)(pictures.histogram, pictures.sample, {**pictures.sequences, "uid": uids})
        report._pictures = lambda: named
        figure = drawn("sequences", report)
        figure.draw_without_rendering()
        assert "$\\frac{" in words(figure.axes[0])
        assert "<b>□" in words(figure.axes[0])

    def test_far_responses_are_drawn_at_the_edge_and_counted(self, audited: Audited) -> None:
        report = audited("beyond_safety_bound")
        figure = drawn("sequences", report)
        far = int((np.abs(Responses.of(report.pictures.sequences).log_ratio) > math.log(20)).sum())
        assert far > 0
        assert f"{far} responses beyond 1/20–20 drawn at the edge" in subtitle(figure)

    def test_rows_without_a_valid_token_are_left_out(self) -> None:
        report = report_of("fully_masked_rows")
        assert len(Responses.of(report.pictures.sequences).uid) == report.counts.scored_sequences


class TestPairs:
    def test_three_lines_a_panel(self, ageing: Report) -> None:
        k3, diff = drawn("pairs", ageing).axes
        assert lines(k3)["engine"][1] == [s.metrics["kl_k3"] for s in ageing.steps]
        assert lines(k3)["policy update"][1] == [s.pairs["policy_update"].metrics["kl_k3"] for s in ageing.steps]
        assert lines(diff)["both"][1] == [s.pairs["total"].metrics["log_prob_diff_abs_mean"] for s in ageing.steps]

    def test_the_title_compares_pooled_k3(self, ageing: Report) -> None:
        k3 = {p.name: p.metrics["kl_k3"] or 0 for p in ageing.pairs}
        assert k3["engine"] > k3["policy_update"]
        assert title(drawn("pairs", ageing)).startswith("Engine mismatch is")
        assert f"{k3['engine']:.2g}" in title(drawn("pairs", ageing))

    def test_one_step_is_drawn_as_bars(self, ageing: Report) -> None:
        one = rewritten(ageing, steps=ageing.steps[:1])
        bars = [p.get_width() for p in drawn("pairs", one).axes[0].patches]
        step = ageing.steps[0]
        assert bars == [
            step.metrics["kl_k3"],
            step.pairs["policy_update"].metrics["kl_k3"],
            step.pairs["total"].metrics["kl_k3"],
        ]


class TestSweep:
    def test_lines_are_the_points_of_the_sweep(self, ageing: Report) -> None:
        axes = drawn("sweep", ageing).axes
        sweep = ageing.pictures.sweep
        assert sweep is not None
        token = np.asarray(sweep["family"]) == "token truncate"
        ess = next(line for line in axes[0].lines if len(line.get_xdata()) == token.sum())
        np.testing.assert_array_equal(ess.get_xdata(), np.asarray(sweep["upper"], dtype=float)[token])
        np.testing.assert_array_equal(ess.get_ydata(), np.asarray(sweep["ess"])[token])

    def test_the_title_says_what_the_geometric_band_costs(self, ageing: Report) -> None:
        masked = next(c for c in ageing.corrections if c.name == "decoupled_geo_rs").stages.kept["masked_fraction"]
        assert masked is not None
        expected = "The geometric band ±0.1% masks" if masked > 0.1 else "Token caps from"
        assert title(drawn("sweep", ageing)).startswith(expected)

    @pytest.mark.parametrize(
        ("limits", "expected"),
        [
            ({"max_masked": 1.0, "max_mass_lost": 0.025}, "Token caps from .* up lose at most 2.5% of the weight"),
            (
                {"max_masked": 1.0, "max_mass_lost": -1.0},
                "Every token cap of the grid loses more than -100%",
            ),
            ({"max_masked": 0.25}, r"The geometric band ±0.1% masks [\d.]+% of the tokens; 25% would take "),
        ],
    )
    def test_the_title_keeps_the_limits_of_the_report(
        self, limits: dict[str, float], expected: str, ageing: Report
    ) -> None:
        assert ageing.sweep is not None
        stricter = rewritten(ageing, sweep=ageing.sweep.model_copy(update=limits))
        assert re.match(expected, title(drawn("sweep", stricter)))

    def test_corrections_asked_for_are_diamonds_at_their_own_figures(self, ageing: Report) -> None:
        names = ["decoupled_token_is", "decoupled_seq_is_rs", "bypass_pg_is"]
        assert ageing.sweep is not None
        report = rewritten(ageing, sweep=ageing.sweep.model_copy(update={"named": names}))
        kept = {c.name: c.stages.kept for c in ageing.corrections}
        token, sequence, _, _, product, *_ = (diamonds(axes) for axes in drawn("sweep", report).axes)
        assert token == [(2.0, kept["decoupled_token_is"]["ess"])]
        assert sequence == [(2.0, kept["decoupled_seq_is_rs"]["ess"])]
        assert product == [(pytest.approx(2.0), kept["decoupled_seq_is_rs"]["masked_fraction"])]
        assert subtitle(drawn("sweep", report)).endswith("Diamonds: 1 decoupled_token_is, 2 decoupled_seq_is_rs.")
        assert "Diamond" not in subtitle(drawn("sweep", ageing))
        families = [grid.family for grid in grids(report.pictures.sweep or {})]
        joint = drawn("heat_map", report).axes[families.index("sequence truncate + seq_sum_k1")]
        assert diamonds(joint) == [(pytest.approx(1.0), 1.0)]  # T − 1, and the second of the caps 1.5, 2, 3, 5, 10
        reward, length = (diamonds(axes) for axes in drawn("rejection", report).axes)
        masked = kept["decoupled_seq_is_rs"]["masked_fraction"]
        assert reward == [(masked, kept["decoupled_seq_is_rs"]["kept_reward_mean"])]
        assert [x for x, _ in length] == [masked]
        bold = {t.get_text() for axes in drawn("frontier", report).axes for t in axes.texts if t.get_weight() == "bold"}
        assert {text.split(" +")[0] for text in bold} == {"decoupled_token_is", "decoupled_seq_is_rs"}

    def test_without_a_sweep_there_is_nothing_to_draw(self, ageing: Report) -> None:
        assert FIGURES["sweep"](rewritten(ageing, sweep=None)) is None


def _at(correction: CorrectionReport, lost: float, ess: float) -> StageReport:
    """Its stages, moved to that place of the picture."""
    stages = correction.stages
    bounded, kept = {**stages.bounded, "mass_lost": lost}, {**stages.kept, "ess": ess}
    return stages.model_copy(update={"bounded": bounded, "kept": kept})


class TestFrontier:
    def test_no_point_of_the_frontier_is_beaten(self) -> None:
        lost, ess = np.array([0.3, 0.1, 0.1, 0.2, 0.0]), np.array([0.9, 0.5, 0.6, 0.55, 0.4])
        assert on_frontier(lost, ess).tolist() == [4, 2, 0]

    def test_labels_are_moved_apart_and_stay_in_order(self) -> None:
        assert spread_out([0.5, 0.52, 0.1], 0.1) == pytest.approx([0.5, 0.6, 0.1])
        assert spread_out([1.0, 0.98, 0.97], 0.1) == pytest.approx([1.0, 0.9, 0.8])
        assert spread_out([], 0.1) == []

    def test_presets_stand_at_their_own_figures(self, ageing: Report) -> None:
        token, sequence = drawn("frontier", ageing).axes
        marks = {(m.get_xdata()[0], m.get_ydata()[0]) for axes in (token, sequence) for m in axes.lines
                 if m.get_marker() == "D"}  # fmt: skip
        by_name = {c.name: c.stages for c in ageing.corrections}
        for name, axes in (("decoupled_token_is", token), ("decoupled_seq_is_rs", sequence)):
            stages = by_name[name]
            near = [(x, y) for x, y in marks if y == pytest.approx(stages.kept["ess"], abs=1e-5)]
            assert any(x == pytest.approx(stages.bounded["mass_lost"], abs=1e-5) for x, _ in near)
            assert name in words(axes)
        assert "bypass" not in words(token) + words(sequence)

    def test_a_place_has_one_name_and_what_a_reader_looks_for_is_named(self, audited: Audited) -> None:
        axes = drawn("frontier", audited("beyond_safety_bound")).axes[0]
        labels = [text.get_text() for text in axes.texts if getattr(text, "arrow_patch", None)]
        assert len(labels) == MOST_LABELS
        assert {"decoupled_token_is +7", "decoupled_token_icepop +5", "token_is_rs"} < set(labels)
        diamonds = [m for m in axes.lines if m.get_marker() == "D"]
        assert len({(m.get_xdata()[0], m.get_ydata()[0]) for m in diamonds}) == len(diamonds) > MOST_LABELS

    def test_a_preset_that_none_beats_goes_before_one_that_is_beaten(self, ageing: Report) -> None:
        token = [c for c in ageing.corrections if c.settings["level"] == "token" and c.mode == "decoupled"]
        beaten = [c.model_copy(update={"name": f"other_{i}", "origin": "x 1", "stages": _at(c, 0.5, 0.1 + i / 100)})
                  for i, c in enumerate(token[:12])]  # fmt: skip
        best = token[0].model_copy(update={"name": "best", "origin": "x 1", "stages": _at(token[0], 0.0, 1.0)})
        report = rewritten(ageing, corrections=[token[0], *beaten, best])
        assert "best" in words(drawn("frontier", report).axes[0])

    def test_the_frontier_only_climbs(self, ageing: Report) -> None:
        for axes in drawn("frontier", ageing).axes:
            x, y = lines(axes)["frontier"]
            assert x == sorted(x)
            assert y == sorted(y)


class TestHeatMap:
    def test_cells_are_the_points_of_the_sweep(self, ageing: Report) -> None:
        sweep = ageing.pictures.sweep
        assert sweep is not None
        (first, *_) = grids(sweep)
        place = next(i for i, name in enumerate(sweep["family"]) if name == first.family)
        row = first.caps.tolist().index(float(sweep["upper"][place]))
        column = first.thresholds.tolist().index(float(sweep["rule_upper"][place]))
        assert first.figures["ess"][row, column] == sweep["ess"][place]

    def test_dots_stand_where_limits_hold_and_nowhere_else(self, ageing: Report) -> None:
        sweep, limits = ageing.pictures.sweep, ageing.sweep
        assert sweep is not None
        assert limits is not None
        figure = drawn("heat_map", ageing)
        dots = sum(len(lines(axes)["within"][0]) for axes in figure.axes if "within" in lines(axes))
        assert dots == sum(int(grid.within(limits).sum()) for grid in grids(sweep))

    def test_nothing_joined_is_nothing_drawn(self, audited: Audited) -> None:
        assert FIGURES["heat_map"](audited("identical")) is None


class TestRejection:
    def test_lines_start_at_the_whole_batch(self, ageing: Report) -> None:
        reward, length = sorted(drawn("rejection", ageing).axes, key=lambda axes: axes.get_ylabel())
        for axes, metric in ((reward, "reward"), (length, "valid_tokens")):
            whole = np.mean(np.asarray(ageing.pictures.sequences[metric], dtype=float))
            x, y = lines(axes)["product ratio"]
            assert x[0] == 0.0
            assert y[0] == pytest.approx(whole)
            assert x == sorted(x)

    def test_without_rewards_length_stands_alone(self, ageing: Report) -> None:
        pictures = ageing.pictures
        assert pictures.sweep is not None
        report = rewritten(ageing)
        bare = {**pictures.sweep, "kept_reward_mean": np.full(len(pictures.sweep["family"]), np.nan)}
        report._pictures = lambda: replace(pictures, sweep=bare)
        figure = drawn("rejection", report)
        assert [axes.get_ylabel() for axes in figure.axes] == ["valid tokens a response"]
        assert "No rewards recorded" in subtitle(figure)


class TestLength:
    def test_points_are_responses_and_marks_are_the_lengths(self, ageing: Report) -> None:
        trap = ageing.length_trap
        assert trap is not None
        growth, ess = drawn("length", ageing).axes
        x, y = lines(growth)["rows"]
        assert x == ageing.pictures.sequences["valid_tokens"]
        np.testing.assert_allclose(y, np.maximum(np.abs(ageing.pictures.sequences["sum_d"]), growth.get_ylim()[0]))
        assert f"{trap.clamp_length:,}" in words(growth)
        assert f"{trap.ess_length:,}" in words(ess)
        assert 20.0 in limit_lines(growth)
        assert 0.3 in limit_lines(ess)

    def test_the_curve_crosses_the_limit_at_the_length(self, ageing: Report) -> None:
        trap = ageing.length_trap
        assert trap is not None
        x, y = lines(drawn("length", ageing).axes[1])["expected"]
        assert np.interp(trap.ess_length or 0, x, y) == pytest.approx(0.3, abs=0.01)

    def test_one_response_says_what_cannot_be_told(self, audited: Audited) -> None:
        growth, ess = drawn("length", audited("one_token")).axes
        assert "too few responses" in words(ess)
        assert "far" not in lines(growth)


class TestLogged:
    def test_it_shows_both_values_and_where_they_depart(self, ageing: Report) -> None:
        figure = drawn("logged", ageing)
        assert ageing.log is not None
        assert title(figure) == "The log departs from the dump first at step 3, in rollout_corr/kl"
        assert "2 of 6 values" in subtitle(figure)
        (axes,) = figure.axes
        logged, recomputed = [np.asarray(line.get_ydata()) for line in axes.lines if len(line.get_xdata()) == 6]
        (one,) = [one for one in ageing.log.metrics if one.departing]
        np.testing.assert_array_equal(recomputed, one.recomputed)
        np.testing.assert_array_equal(logged / recomputed, [1, 1, 1, 2, math.nan, 1])
        assert [np.asarray(line.get_xdata())[0] for line in axes.lines if len(line.get_xdata()) == 2] == [3]

    def test_without_a_departure_there_is_none(self, ageing: Report) -> None:
        assert ageing.log is not None
        assert FIGURES["logged"](ageing.with_log(ageing.log.model_copy(update={"departing": 0}))) is None


@pytest.mark.parametrize("letter", ["W", "i", "ρ"])
def test_no_line_of_a_head_or_foot_runs_off_the_figure(letter: str) -> None:
    words = " ".join([letter * 9] * 60)
    figure = new_figure(2.0, words, words, words)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for text in figure.texts:
        box = text.get_window_extent(renderer)
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width
        assert box.width > 0.75 * figure.bbox.width
