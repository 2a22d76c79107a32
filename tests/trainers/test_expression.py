"""From corrections back to settings: what is printed reads as the same correction, and none that could be is missed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_audit.corrections.describe import describe
from rollout_audit.corrections.direct import apply
from rollout_audit.corrections.equivalence import departures, essence
from rollout_audit.corrections.likeness import unlikeness
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Loss,
    Mode,
    Rows,
    Rule,
    Sign,
    Statistic,
    Weight,
)
from rollout_audit.corrections.presets import PRESETS
from rollout_audit.corrections.tokens import Tokens
from rollout_audit.errors import ConfigError
from rollout_audit.reports.pasting import NOTHING_TO_SET, pasted
from rollout_audit.trainers.base import Trainer
from rollout_audit.trainers.expression import Expression, Unexpressible, ratio_of
from rollout_audit.trainers.registry import TRAINERS, get_trainer

CONFORMANCE = Path(__file__).parents[1] / "conformance"
SUFFIXES = {"yaml": ".yaml", "toml": ".toml", "flags": ".sh", "dashed flags": ".sh"}
REAL = (
    pl.concat(
        pl.read_parquet(CONFORMANCE / name).select(pl.col("trainer", "config").cast(pl.String))
        for name in ("expected.parquet", "expected_more.parquet")
    )
    .unique()
    .sort("trainer", "config")
    .rows()
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pasted")


def read_back(trainer: Trainer[Any], found: Expression, folder: Path) -> Correction:
    """Through a file, as a user would paste it."""
    syntax = trainer.syntax_of(found.settings)
    file = folder / f"run{SUFFIXES[syntax]}"
    file.write_text(pasted(trainer.nested(found.settings), syntax))
    return trainer.correction(trainer.configure(file))


@pytest.mark.parametrize("name", [name for name in TRAINERS if name != "verl-2025-11"])
def test_every_real_configuration_is_found_again(name: str, folder: Path) -> None:
    """Those that the trainers' own code was run with: no table here was made from them."""
    trainer, seen = get_trainer(name), 0
    for _, config in (one for one in REAL if {"verl-legacy": "verl-2025-10"}.get(one[0], one[0]) == name):
        try:
            wanted = trainer.correction(trainer.configure(json.loads(config)))
        except ConfigError:
            continue
        found = trainer.express(wanted)
        assert isinstance(found, Expression), f"{config}: {found}"
        assert found.correction == wanted
        assert read_back(trainer, found, folder) == wanted
        seen += 1
    assert seen >= 5


@pytest.mark.parametrize("name", TRAINERS)
def test_its_own_presets_are_expressed_to_the_letter(name: str, folder: Path) -> None:
    trainer = get_trainer(name)
    own = [p for p in PRESETS.values() if p.origin.split()[0] == name]
    for preset in own:
        found = trainer.express(preset.correction)
        assert isinstance(found, Expression), preset.name
        assert read_back(trainer, found, folder) == preset.correction
    assert own or name == "verl-2026-01"


@pytest.mark.parametrize("name", TRAINERS)
def test_a_preset_in_other_keys_reads_as_what_was_said(name: str, folder: Path) -> None:
    trainer = get_trainer(name)
    for preset in PRESETS.values():
        found = trainer.express(preset.correction)
        nearest = found.nearest if isinstance(found, Unexpressible) else found
        assert read_back(trainer, nearest, folder) == nearest.correction
        same = not departures(essence(preset.correction), essence(nearest.correction))
        assert same is isinstance(found, Expression), preset.name


BAND = "{0[0]}_{0[1]}".format
RATIOS = st.one_of(st.sampled_from([0.5, 0.8, 1.0, 1.2, 2.0, 5.0]), st.floats(0.05, 20.0))
LIMITS = st.floats(1e-3, 3.0)


@st.composite
def weights(draw: st.DrawFn) -> Weight:
    level, bound = draw(st.sampled_from(Level)), draw(st.sampled_from(Bound))
    low, high = sorted((draw(RATIOS), draw(RATIOS)))
    lower = None if bound in (Bound.NONE, Bound.TRUNCATE) or draw(st.booleans()) else low
    upper = None if bound is Bound.NONE else high
    clamp, rows = draw(st.sampled_from([20.0, None])), draw(st.sampled_from(Rows))
    if level is Level.NONE:
        return Weight()
    return Weight(level, bound, lower, upper, normalise=draw(st.integers(0, 3)) == 0, clamp=clamp, mean_over=rows)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    statistic, aggregation = draw(st.sampled_from(Statistic)), draw(st.sampled_from(Aggregation))
    low, high = sorted((draw(RATIOS), draw(RATIOS)))
    if statistic is Statistic.K1:
        low, high = math.log(low), math.log(high)
    if statistic in (Statistic.PROB_DIFF, Statistic.BINARY_KL):
        low, high = -min(low, 1.0), min(high, 1.0)
    signed = (Statistic.RATIO, Statistic.K1, Statistic.PROB_DIFF, Statistic.BINARY_KL)
    one_sided = statistic not in signed or draw(st.booleans())
    lower = None if one_sided or aggregation is Aggregation.BATCH_MEAN else low
    clamp = None if statistic is Statistic.MULT_ERROR else draw(st.sampled_from([20.0, None]))
    sign = draw(st.sampled_from([Sign.ANY, Sign.ANY, Sign.ANY, Sign.POSITIVE, Sign.NEGATIVE_MEAN]))
    return Rule(statistic, aggregation, lower, high, clamp, sign)


CORRECTIONS = st.builds(
    Correction,
    weight=weights(),
    rules=st.lists(rules(), max_size=2).map(tuple),
    veto=st.sampled_from([None, None, 1e-4]),
    denominator=st.sampled_from(Denominator),
    mode=st.sampled_from(Mode),
    loss=st.sampled_from(Loss),
)


@settings(deadline=None)
@given(wanted=CORRECTIONS, name=st.sampled_from(list(TRAINERS)))
def test_whatever_is_expressed_reads_as_the_same(folder: Path, wanted: Correction, name: str) -> None:
    trainer = get_trainer(name)
    found = trainer.express(wanted)
    if isinstance(found, Unexpressible):
        assert departures(essence(wanted), essence(found.nearest.correction))
        assert found.reason
        return
    assert read_back(trainer, found, folder) == found.correction
    assert found.correction == wanted or not departures(essence(wanted), essence(found.correction))


def keys_of(trainer: str) -> dict[str, st.SearchStrategy[Any]]:
    """Settings that are set at random; what the trainer refuses is passed over."""
    table: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "verl": {
            "rollout_is": st.sampled_from([None, "token", "sequence"]),
            "rollout_is_threshold": st.one_of(RATIOS, st.tuples(st.floats(0.1, 0.9), RATIOS).map(BAND)),
            "rollout_is_batch_normalize": st.booleans(),
            "rollout_rs": st.sampled_from([None, "token_k1", "seq_sum_k1", "seq_mean_k1", "seq_max_k2", "token_k3"]),
            "rollout_rs_threshold": st.one_of(RATIOS, st.tuples(LIMITS, RATIOS).map(BAND)),
            "bypass_mode": st.booleans(),
            "loss_type": st.sampled_from(["ppo_clip", "reinforce"]),
        },
        "miles": {
            "use_tis": st.booleans(),
            "tis_level": st.sampled_from(["token", "sequence", "geometric"]),
            "tis_mode": st.sampled_from(["truncate", "clip", "mask"]),
            "tis_lower_bound": st.one_of(st.none(), RATIOS),
            "tis_upper_bound": RATIOS,
            "tis_batch_normalize": st.booleans(),
            "use_rs": st.booleans(),
            "rs_level": st.sampled_from(["token", "sequence", "geometric"]),
            "rs_upper_bound": st.one_of(st.none(), RATIOS),
            "rs_veto_threshold": st.sampled_from([None, 1e-4]),
        },
        "skyrl": {
            "tis_ratio_type": st.sampled_from([None, "token", "sequence"]),
            "token_tis_ratio_clip_high": RATIOS,
            "sequence_tis_ratio_clip_high": RATIOS,
            "sequence_mask_metric": st.sampled_from([None, "geometric", "product"]),
            "geo_mask_low": st.floats(0.5, 0.99),
            "outlier_token_is_threshold_low": st.sampled_from([None, 1e-4]),
            "outlier_token_is_threshold_high": st.sampled_from([None, 100.0]),
            "token_mask_is_threshold_low": st.sampled_from([None, 0.5]),
            "token_mask_is_threshold_high": st.sampled_from([None, 2.0]),
        },
        "areal": {
            "level": st.sampled_from(["token", "sequence"]),
            "action": st.sampled_from(["mask", "clamp"]),
            "metric": st.sampled_from(["ratio", "kl_k1", "kl_k2", "kl_k3"]),
            "agg": st.sampled_from(["sum", "mean", "max"]),
            "upper": st.floats(1.01, 5.0),
            "lower": st.one_of(st.none(), st.floats(0.05, 1.0)),
            "m2_threshold": st.sampled_from([None, 0.04]),
        },
        "open-instruct": {
            "use_rho_correction": st.booleans(),
            "rho_clamp_lower_bound": st.sampled_from([0.0, 0.5]),
            "rho_clamp_upper_bound": st.one_of(st.just(0.0), st.floats(1.1, 9.0)),
            "rho_mask_lower_bound": st.sampled_from([0.0, 0.7]),
            "rho_mask_upper_bound": st.one_of(st.just(0.0), st.floats(1.1, 9.0)),
            "rho_mask_sequence_level": st.booleans(),
            "rho_mask_tv_divergence": st.booleans(),
            "use_vllm_logprobs": st.booleans(),
        },
    }  # fmt: skip
    return table[trainer]


@pytest.mark.parametrize("name", ["verl", "miles", "skyrl", "areal", "open-instruct"])
@settings(deadline=None)
@given(data=st.data())
def test_no_configuration_is_beyond_its_own_trainer(name: str, data: st.DataObject) -> None:
    trainer = get_trainer(name)
    raw = data.draw(st.fixed_dictionaries({}, optional=keys_of(name)))
    try:
        wanted = trainer.correction(trainer.configure(raw))
    except ConfigError:
        return
    found = trainer.express(wanted)
    assert isinstance(found, Expression), found
    assert not departures(essence(wanted), essence(found.correction))


@st.composite
def tokens(draw: st.DrawFn) -> Tokens:
    """Log-ratios inside every clamp, so that only what a correction means can tell two of them apart."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    size = sum(lengths)
    d = draw(st.lists(st.floats(-2.0, 2.0), min_size=size, max_size=size))
    advantages = draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=size, max_size=size))
    rollout = torch.full((size,), -3.0, dtype=torch.float64)
    each = torch.tensor(lengths)
    return Tokens(each, rollout + torch.tensor(d, dtype=torch.float64), rollout, each,
                  torch.tensor(advantages, dtype=torch.float64))  # fmt: skip


@settings(deadline=None)
@given(CORRECTIONS, tokens(), st.sampled_from(list(TRAINERS)))
def test_what_counts_as_the_same_weighs_and_divides_the_same(wanted: Correction, batch: Tokens, name: str) -> None:
    found = get_trainer(name).express(wanted)
    if isinstance(found, Unexpressible):
        return
    assert_same_loss(wanted, found.correction, batch)


@settings(deadline=None)
@given(weights(), tokens())
def test_a_masked_weight_is_a_raw_one_with_a_rule(weight: Weight, batch: Tokens) -> None:
    masked = Correction(replace(weight, normalise=False), denominator=Denominator.ORIGINAL)
    for name in TRAINERS:
        found = get_trainer(name).express(masked)
        if isinstance(found, Expression):
            assert_same_loss(masked, found.correction, batch)


def assert_same_loss(one: Correction, other: Correction, batch: Tokens) -> None:
    """Weights of what is kept over the denominator, token by token."""
    first, second = (loss_weights(correction, batch) for correction in (one, other))
    torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-7)


def loss_weights(correction: Correction, batch: Tokens) -> torch.Tensor:
    applied = apply(correction, batch)
    counted = {
        Denominator.KEPT: applied.kept,
        Denominator.REMAINING: applied.remaining,
        Denominator.ORIGINAL: torch.ones_like(applied.kept),
    }
    # rejection may leave nothing, and the loss is then 0 whatever it divides by
    return applied.normalised * applied.kept / counted[correction.denominator].sum().clamp(min=1)


@settings(deadline=None)
@given(st.floats(1e-6, 1e6))
def test_a_ratio_is_found_for_its_logarithm(ratio: float) -> None:
    assert math.log(ratio_of(math.log(ratio))) == math.log(ratio)


def test_short_ratios_come_first() -> None:
    assert [ratio_of(math.log(ratio)) for ratio in (0.5, 2.0, 0.999, 1.001, 1 / 3)] == [0.5, 2.0, 0.999, 1.001, 1 / 3]


class TestWording:
    def test_the_reason_names_both_formulas_and_the_parts(self) -> None:
        found = get_trainer("trl").express(PRESETS["decoupled_k3_rs"].correction)
        assert isinstance(found, Unexpressible)
        assert found.reason == '"no correction" instead of "seq_mean_k3 ≤ 0.01", different in what is rejected'

    def test_a_denominator_alone_is_said_as_such(self) -> None:
        found = get_trainer("verl").express(PRESETS["skyrl_token_mask"].correction)
        assert isinstance(found, Unexpressible)
        assert found.reason == "the loss divides by the tokens that are left instead of all tokens"

    def test_a_clamp_is_fine_print(self) -> None:
        found = get_trainer("trl").express(PRESETS["decoupled_token_is"].correction)
        assert isinstance(found, Expression)
        assert "not clamped instead of clamped to ±20" in found.fine_print[0]

    def test_the_nearest_has_the_level_and_the_cap(self) -> None:
        """OpenRLHF knows no weight without a lower bound."""
        found = get_trainer("openrlhf").express(PRESETS["decoupled_token_is"].correction)
        assert isinstance(found, Unexpressible)
        weight = found.nearest.correction.weight
        assert (weight.level, weight.bound, weight.upper) == (Level.TOKEN, Bound.CLIP, 2.0)

    def test_as_flags_what_is_off_anyway_is_not_said(self) -> None:
        trainer = get_trainer("openrlhf")
        found = trainer.express(Correction())
        assert isinstance(found, Expression)
        assert pasted(trainer.nested(found.settings), trainer.syntax) == NOTHING_TO_SET


class TestNearest:
    """A bound that the trainer wants and the correction lacks is put where hardly any ratio is."""

    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("nemo-rl", {"truncated_importance_sampling_type": "icepop", "truncated_importance_sampling_ratio": 2.0,
                         "truncated_importance_sampling_ratio_min": 1e-9, "use_importance_sampling_correction": True}),
            ("openrlhf", {"is_correction_enable": True, "is_correction_type": "icepop",
                          "is_correction_threshold": [1e-9, 2.0]}),
            ("verl", {"rollout_is": "token", "rollout_is_threshold": "1e-09_2.0", "rollout_rs": None}),
        ],
    )  # fmt: skip
    def test_icepop_without_a_floor(self, name: str, settings: dict[str, object]) -> None:
        found = get_trainer(name).express(PRESETS["slime_icepop"].correction)
        assert isinstance(found, Unexpressible)
        assert found.nearest.settings == settings
        assert found.reason.startswith('"token weight 0 outside [1e-09, 2]" instead of "token weight 0 above 2"')

    def test_a_band_that_zeroes_is_a_filter_of_roll(self) -> None:
        """Its filters divide by the original tokens: that is IcePop, to the last token."""
        found = get_trainer("roll").express(PRESETS["nemo_rl_icepop"].correction)
        assert isinstance(found, Expression)
        d = torch.tensor([math.log(0.4), math.log(0.6), math.log(4.9), math.log(5.1)], dtype=torch.float64)
        lengths = torch.tensor([4])
        batch = Tokens(lengths, d - 3.0, torch.full_like(d, -3.0), lengths)
        assert loss_weights(found.correction, batch).tolist() == pytest.approx([0.0, 0.6 / 4, 4.9 / 4, 0.0])

    def test_a_weight_that_a_trainer_always_caps(self) -> None:
        found = get_trainer("verl").express(PRESETS["areal_token_mask"].correction)
        assert isinstance(found, Unexpressible)
        assert found.nearest.settings["rollout_is_threshold"] == "1e-09_5.0"

    @pytest.mark.parametrize(
        ("preset", "name", "formula"),
        [
            # a floor of a clip changes little where a zeroing band changes all
            ("miles_glm", "verl", "token weight capped at 2"),
            ("openrlhf_tis", "roll", "token weight capped at 5"),
            # the same tokens leave, the others have weights of about 1
            ("skyrl_token_mask", "trl", "token weight 0 outside [0.5, 2]"),
            ("decoupled_geo_rs", "nemo-rl",
             "token weight, 0 past a log-ratio of 88.7; seq_mean_ratio keeps ρ in [0.999001, 1.001]"),
            ("decoupled_geo_rs", "openrlhf", "token weight; seq_mean_ratio keeps ρ in [0.999001, 1.001]"),
            # by the sign of the advantage and not, or at an advantage of 0
            ("prime_rl_ipo", "verl", "token weight capped at 10000; token_prob_diff ≤ 0.1 where A > 0; "
             "token_prob_diff ≥ -0.1 where A ≤ 0; bypass, reinforce"),
            ("skyrl_dppo", "prime-rl", "token weight; token_prob_diff ≤ 0.2 where A > 0; "
             "token_prob_diff ≥ -0.2 where A ≤ 0; bypass, reinforce"),
            # neither mode is its own: what it does to the tokens is
            ("bypass_pg_is", "miles", "sequence weight capped at 2"),
        ],
    )  # fmt: skip
    def test_it_does_the_most_alike_to_the_tokens(self, preset: str, name: str, formula: str) -> None:
        found = get_trainer(name).express(PRESETS[preset].correction)
        assert isinstance(found, Unexpressible)
        assert describe(found.nearest.correction) == formula

    @pytest.mark.parametrize("name", TRAINERS)
    def test_nothing_is_in_the_place_of_itself(self, name: str) -> None:
        for preset in PRESETS.values():
            found = get_trainer(name).express(preset.correction)
            if isinstance(found, Unexpressible):
                one, _, other = found.reason.removeprefix("the loss divides by ").partition(" instead of ")
                assert one.strip('"') != other.partition(", different")[0].strip('"'), found.reason


@settings(deadline=None)
@given(CORRECTIONS, CORRECTIONS)
def test_unlikeness_is_a_distance(one: Correction, other: Correction) -> None:
    assert unlikeness(one, one) == 0.0
    assert 0.0 <= unlikeness(one, other) == unlikeness(other, one) <= 1.0


def test_unlikeness_by_hand() -> None:
    """No token has weight 0 in the one, none another in the other: 1 / (1 + 1) of the whole."""
    nothing = Correction(rules=(Rule(Statistic.K2, Aggregation.TOKEN, upper=0.0),))
    assert unlikeness(Correction(), nothing) == 0.5
    halved = Correction(Weight(Level.TOKEN, Bound.CLIP, 0.5, 0.5))
    assert unlikeness(Correction(), halved) == pytest.approx(1 / 2 - 1 / 3, abs=1e-6)
