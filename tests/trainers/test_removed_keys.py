"""Keys that AReaL, prime-rl and SkyRL removed: still understood, and said in a line with what replaced them."""

from __future__ import annotations

import math

import pytest

from rollout_audit.audit.selection import config_warnings
from rollout_audit.corrections.direct import kept_tokens
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Loss,
    Mode,
    Rule,
    Statistic,
    Weight,
)
from rollout_audit.errors import ConfigError
from rollout_audit.trainers.registry import get_trainer
from tests.trainers.test_trainer_numbers import metrics_of, tokens_of, weights_of

RATIO = Statistic.RATIO
LOG3 = math.log(3.0)


def read(name: str, config: dict[str, object]) -> Correction:
    trainer = get_trainer(name)
    return trainer.correction(trainer.configure(config))


class TestAreal:
    @pytest.mark.parametrize(
        ("mode", "weights"),
        [
            ("token_mask", [0.0, 1.0, 1 / 3]),
            ("token_truncate", [2.0, 1.0, 1 / 3]),
            ("sequence_mask", [1.0, 1.0, 1.0]),
            ("sequence_truncate", [1.0, 1.0, 1.0]),
            ("disabled", [1.0, 1.0, 1.0]),
        ],
    )
    def test_what_each_mode_did(self, mode: str, weights: list[float]) -> None:
        """ρ of 3, 1 and 1/3 under a cap of 2; their geometric mean is 1."""
        config = {"behave_imp_weight_mode": mode, "behave_imp_weight_cap": 2.0}
        assert weights_of("areal", config, [[LOG3, 0.0, -LOG3]]) == pytest.approx(weights)

    def test_sequences_past_the_cap(self) -> None:
        """Geometric mean 3 against 2: masked it is 0, truncated it is 2."""
        for mode, weight in (("sequence_mask", 0.0), ("sequence_truncate", 2.0)):
            config = {"behave_imp_weight_mode": mode, "behave_imp_weight_cap": 2.0}
            assert weights_of("areal", config, [[LOG3, LOG3]]) == pytest.approx([weight, weight])

    def test_a_cap_alone_masked_tokens(self) -> None:
        raw = Weight(Level.TOKEN, clamp=None)
        rule = Rule(RATIO, Aggregation.TOKEN, None, 5.0, clamp=None)
        assert read("areal", {"behave_imp_weight_cap": 5.0}) == Correction(
            raw, (rule,), denominator=Denominator.ORIGINAL
        )
        assert read("areal", {"behave_imp_weight_mode": "token_mask"}).rules == (rule,)

    def test_they_are_said_in_a_line_each(self) -> None:
        config = {
            "actor": {
                "eps_clip": 0.4,
                "use_decoupled_loss": True,
                "behave_imp_weight_cap": 5.0,
                "behave_imp_weight_mode": "token_truncate",
            }
        }
        assert config_warnings("areal", config) == (
            "behave_imp_weight_mode = 'token_truncate': removed; now level and action of rejection_sampling, "
            "translated",
            "behave_imp_weight_cap = 5.0: removed; now upper of rejection_sampling with metric ratio, translated",
        )
        assert read("areal", config).weight == Weight(Level.TOKEN, Bound.TRUNCATE, None, 5.0, clamp=None)

    def test_the_newer_setting_counts_where_both_are_given(self) -> None:
        config = {"behave_imp_weight_cap": 5.0, "rejection_sampling": {"upper": 3.0}}
        assert read("areal", config).rules[0].upper == 3.0

    def test_without_the_decoupled_loss_nothing_is_weighed(self) -> None:
        config = {"use_decoupled_loss": False, "rejection_sampling": {"upper": 3.0}, "m2_threshold": 0.04}
        assert read("areal", config) == Correction()
        assert config_warnings("areal", config) == (
            "use_decoupled_loss = False: rejection_sampling and m2_threshold do nothing without it",
        )
        (line,) = config_warnings("areal", {"m2_threshold": 0.04})
        assert line.startswith("use_decoupled_loss: not given and false by default")
        assert config_warnings("areal", {"use_decoupled_loss": True, "m2_threshold": 0.04}) == ()


def prime(*rules: Rule) -> Correction:
    weight = Weight(Level.TOKEN, clamp=None)
    return Correction(weight, rules, denominator=Denominator.ORIGINAL, mode=Mode.BYPASS, loss=Loss.REINFORCE)


class TestPrimeRl:
    def test_masks_by_ratios_with_the_defaults_of_their_time(self) -> None:
        wanted = prime(
            Rule(RATIO, Aggregation.TOKEN, 0.25, 8.0, clamp=None),
            Rule(RATIO, Aggregation.SEQ_MEAN, 0.1, 10.0, clamp=None),
            Rule(RATIO, Aggregation.SEQ_MAX, None, 100.0, clamp=None),
        )
        assert read("prime-rl", {"trainer": {"loss": {"token_mask_low": 0.25, "kl_tau": 0.0}}}) == wanted

    def test_the_weight_of_a_response_was_capped_twice(self) -> None:
        """The sum of log-ratios at 10, then the ratio at sequence_clip_high."""
        for given, cap in ((5.0, 5.0), (1e6, math.exp(10.0))):
            config = {"ratio_type": "sequence", "sequence_clip_high": given}
            weight = read("prime-rl", config).weight
            assert weight == Weight(Level.SEQUENCE, Bound.TRUNCATE, None, cap, clamp=None)

    def test_any_token_takes_its_response_along(self) -> None:
        """ρ = 1/9 is inside the token mask of [0.1, 8] here, and below the floor of 0.2 for a whole response."""
        config = {"token_mask_low": 0.1, "sequence_mask_low": 0.2}
        trainer = get_trainer("prime-rl")
        tokens = tokens_of([[-2 * LOG3, 0.0], [0.0, 0.0]])
        assert kept_tokens(trainer.correction(trainer.configure(config)), tokens).int().tolist() == [0, 0, 1, 1]

    def test_differences_whatever_the_advantage(self) -> None:
        rule = Rule(Statistic.PROB_DIFF, Aggregation.TOKEN, -0.2, 0.3)
        assert read("prime-rl", {"ipo_mask_high": 0.3}) == prime(rule)
        same = {"ipo_mask_low": 0.1, "ipo_mask_high": 0.1}
        assert read("prime-rl", same) == read("prime-rl", {"type": "ipo", "ipo_threshold": 0.1})

    def test_what_is_logged_of_it(self) -> None:
        """μ = e^-1 = 0.368: ρ = 2 moves it by 0.368, ρ = 1.1 by 0.037."""
        tokens = tokens_of([[math.log(2.0), math.log(1.1)]])
        assert metrics_of("prime-rl", {"ipo_mask_low": 0.2}, tokens)["is_masked/mean"] == pytest.approx(0.5)

    def test_it_is_said_in_one_line(self) -> None:
        (line,) = config_warnings("prime-rl", {"token_mask_low": 0.25, "geo_mask_high": 5.0})
        assert line == (
            "geo_mask_high, token_mask_low: from before March 2026, when masks went by ratios; now dppo_mask_low and "
            "dppo_mask_high, on differences of probability; read as they were, under the names that are logged today"
        )
        (line,) = config_warnings("prime-rl", {"ipo_mask_low": 0.2})
        assert line.startswith("ipo_mask_low: from March 2026, when the sign of the advantage did not count; now dppo_")

    def test_the_first_names_of_the_floor(self) -> None:
        config = {"sequence_mask_ratio_low": 0.01}
        assert Rule(RATIO, Aggregation.SEQ_MIN, 0.01, None, clamp=None) in read("prime-rl", config).rules
        assert config_warnings("prime-rl", config)[0] == "sequence_mask_ratio_low = 0.01: now sequence_mask_low"

    @pytest.mark.parametrize(
        ("config", "text"),
        [
            (
                {"token_mask_low": 0.1, "dppo_mask_low": 0.2},
                "token_mask_low = 0.1: of another version than dppo_mask_low; give the keys of one of them",
            ),
            (
                {"token_mask_low": 0.1, "ipo_mask_low": 0.2},
                "token_mask_low = 0.1: of another version than ipo_mask_low",
            ),
            ({"token_mask_low": 9.0}, "token_mask_low = 9.0: not below token_mask_high = 8"),
            ({"ratio_type": "geo"}, "ratio_type = 'geo': must be one of token, sequence"),
            ({"ipo_mask_low": -0.1}, "ipo_mask_low = -0.1: must not be negative"),
            ({"token_mask_lo": 0.1}, "token_mask_lo = 0.1: unknown setting; did you mean 'token_mask_low'?"),
        ],
    )
    def test_refused(self, config: dict[str, object], text: str) -> None:
        with pytest.raises(ConfigError) as caught:
            get_trainer("prime-rl").configure(config)
        assert str(caught.value).startswith(text)


class TestSkyRl:
    def test_the_first_switch_of_tis(self) -> None:
        config = {"trainer": {"algorithm": {"use_tis": True, "tis_imp_ratio_cap": 3.0, "eps_clip_low": 0.2}}}
        assert read("skyrl", config) == read("skyrl", {"tis_ratio_type": "token", "token_tis_ratio_clip_high": 3.0})
        assert config_warnings("skyrl", config) == (
            "tis_imp_ratio_cap = 3.0: now token_tis_ratio_clip_high",
            "use_tis = True: now tis_ratio_type token",
        )

    def test_off_it_stays_off(self) -> None:
        config = {"use_tis": False, "tis_imp_ratio_cap": -1.0}
        assert read("skyrl", config) == Correction(denominator=Denominator.ORIGINAL)

    @pytest.mark.parametrize("loss", ["cispo", "clip_cov"])
    def test_a_loss_with_a_ratio_of_its_own_is_said(self, loss: str) -> None:
        config = {"trainer": {"algorithm": {"policy_loss_type": loss}}}
        (line,) = config_warnings("skyrl", config)
        assert line.startswith(f"policy_loss_type = {loss!r}: ")

    def test_others_are_not_said_and_unknown_ones_refused(self) -> None:
        algorithm = {"policy_loss_type": "gspo", "off_policy_correction": {"tis_ratio_type": "token"}}
        assert config_warnings("skyrl", {"trainer": {"algorithm": algorithm}}) == ()
        with pytest.raises(ConfigError, match="policy_loss_type = 'ppo': must be one of regular"):
            get_trainer("skyrl").configure({"trainer": {"algorithm": {"policy_loss_type": "ppo"}}})
