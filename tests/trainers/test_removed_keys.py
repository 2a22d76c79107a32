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


def nested(path: str, settings: dict[str, object]) -> dict[str, object]:
    tree = settings
    for part in reversed(path.split(".")):
        tree = {part: tree}
    return tree


class TestVerl:
    @pytest.mark.parametrize("name", ["verl", "verl-2026-01", "verl-2025-11"])
    def test_a_cap_yields_to_the_setting_of_today(self, name: str) -> None:
        today = {"rollout_is": "sequence", "rollout_is_threshold": 3}
        tree = nested("algorithm.rollout_correction", today) | nested(
            "actor_rollout_ref.actor", {"tis_imp_ratio_cap": 2}
        )
        assert get_trainer(name).settings(tree) == (
            today,
            (
                "tis_imp_ratio_cap = 2: now rollout_is 'token' with rollout_is_threshold; rollout_is = 'sequence' is "
                "given beside it and counts",
            ),
        )

    def test_the_cap_in_october(self) -> None:
        tree = {"algorithm": {"rollout_is": False, "rollout_is_threshold": 3.0}, "tis_imp_ratio_cap": 2}
        tree = {"algorithm": tree["algorithm"], "actor_rollout_ref": {"actor": {"tis_imp_ratio_cap": 2}}}
        settings, (note,) = get_trainer("verl-2025-10").settings(tree)
        assert settings == {"rollout_is": False, "rollout_is_threshold": 3.0}
        assert note.endswith("; rollout_is = False is given beside it and counts")

    @pytest.mark.parametrize("name", ["verl", "verl-2026-01", "verl-2025-11"])
    @pytest.mark.parametrize("today", [{"rollout_is": "sequence", "rollout_is_threshold": 3}, {"rollout_is": "token"}])
    def test_the_place_of_october_is_not_read_beside_that_of_today(self, name: str, today: dict[str, object]) -> None:
        tree = {"algorithm": {"rollout_is_threshold": 5, "rollout_correction": today}}
        settings, notes = get_trainer(name).settings(tree)
        assert settings == today
        assert notes == (
            "algorithm.rollout_is_threshold is not where it looks, which is under algorithm.rollout_correction",
        )
        alone = {"algorithm": {"rollout_is_threshold": 5, "rollout_correction": None}}
        assert get_trainer(name).settings(alone) == ({"rollout_is_threshold": 5}, ())

    @pytest.mark.parametrize("mode", ["mask", "clip"])
    @pytest.mark.parametrize("applied", [True, False])
    @pytest.mark.parametrize("level", ["token", "sequence", "geometric", None])
    @pytest.mark.parametrize("lower", [0.25, None])
    def test_mask_mode_keeps_what_it_kept(
        self, mode: str, applied: bool, level: str | None, lower: float | None
    ) -> None:
        """Ratios of 4, 1 and 1/3 (product 4/3), and of 1/3 and 1/6 (mean 0.24), against October's own module."""
        config: dict[str, object] = {"rollout_is_mode": mode, "rollout_is": applied, "rollout_is_threshold": 3.5}
        config |= {"rollout_is_level": level} if level else {}
        config |= {"rollout_is_threshold_lower": lower} if lower else {}
        rows = [[math.log(4.0), 0.0, -LOG3], [-LOG3, -math.log(6.0)]]
        if level == "geometric" and applied:
            with pytest.raises(ConfigError, match="rollout_is_level = 'geometric': no weight of today"):
                get_trainer("verl").settings(config)
            return
        old, new = (get_trainer(name) for name in ("verl-2025-10", "verl"))
        tokens = tokens_of(rows)
        kept = [kept_tokens(one.correction(one.configure(config)), tokens) for one in (old, new)]
        assert kept[0].tolist() == kept[1].tolist()
        assert not kept[1].all()
        weights = [weights_of(name, config, rows) for name in ("verl-2025-10", "verl")]
        stays = kept[1].tolist()
        assert [w for w, stay in zip(weights[1], stays, strict=True) if stay] == pytest.approx(
            [w for w, stay in zip(weights[0], stays, strict=True) if stay]
        )
        notes = get_trainer("verl").settings(config)[1]
        assert notes[0].startswith(f"rollout_is_mode = {mode!r}: now rollout_rs, whose band is compared with −log ρ")
        assert any(note.startswith("rollout_is_threshold_lower = 0.25: now the band") for note in notes) == bool(lower)

    def test_october_without_a_threshold_was_off(self) -> None:
        for config in (
            {"rollout_is": True, "rollout_is_threshold": None},
            {"rollout_is": True, "rollout_is_threshold": None, "rollout_is_mode": "mask"},
        ):
            assert read("verl", dict(config)) == Correction() == read("verl-2025-10", dict(config))

    def test_the_lower_bound_of_truncated_weights_was_of_figures(self) -> None:
        config = {"rollout_is": True, "rollout_is_threshold": 2.0, "rollout_is_threshold_lower": 0.5}
        assert read("verl", config) == read("verl", {"rollout_is": "token", "rollout_is_threshold": 2.0})

    @pytest.mark.parametrize(
        ("config", "text"),
        [
            (
                {"rollout_is_mode": "masks", "rollout_is": True},
                "rollout_is_mode = 'masks': must be one of truncate, mask, clip; of verl in October 2025",
            ),
            (
                {"rollout_is_mode": "mask", "rollout_is_level": "seq", "rollout_is_threshold": 2.0},
                "rollout_is_level = 'seq': must be one of token, sequence, geometric",
            ),
            (
                {"rollout_is_mode": "mask", "rollout_is_threshold": 2.0, "rollout_is_threshold_lower": "0.5_1"},
                "rollout_is_threshold_lower = '0.5_1': expected a number",
            ),
        ],
    )
    def test_refused(self, config: dict[str, object], text: str) -> None:
        with pytest.raises(ConfigError) as caught:
            get_trainer("verl").configure(config)
        assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("name", "config", "settings", "note"),
    [
        (
            "skyrl",
            {"use_tis": True, "tis_ratio_type": "sequence"},
            {"tis_ratio_type": "sequence"},
            "use_tis = True: now tis_ratio_type token; tis_ratio_type = 'sequence' is given beside it and counts",
        ),
        (
            "skyrl",
            {"use_tis": True, "tis_imp_ratio_cap": 2.0, "token_tis_ratio_clip_high": 4},
            {"tis_ratio_type": "token", "token_tis_ratio_clip_high": 4},
            "tis_imp_ratio_cap = 2.0: now token_tis_ratio_clip_high; token_tis_ratio_clip_high = 4 is given beside it "
            "and counts",
        ),
        (
            "openrlhf",
            {"use_icepop": True, "is_correction_type": "tis"},
            {"is_correction_type": "tis"},
            "use_icepop = True: now is_correction_type icepop; is_correction_type = 'tis' is given beside it and "
            "counts",
        ),
        (
            "open-instruct",
            {"tis_mask_lower": 0.5, "rho_mask_lower_bound": 0.8},
            {"rho_mask_lower_bound": 0.8},
            "tis_mask_lower = 0.5: now rho_mask_lower_bound; rho_mask_lower_bound = 0.8 is given beside it and counts",
        ),
        (
            "trl",
            {"vllm_importance_sampling_cap": 2.0, "vllm_importance_sampling_clip_max": 5.0},
            {"vllm_importance_sampling_clip_max": 5.0},
            "vllm_importance_sampling_cap = 2.0: now vllm_importance_sampling_clip_max; "
            "vllm_importance_sampling_clip_max = 5.0 is given beside it and counts",
        ),
        (
            "areal",
            {"behave_imp_weight_cap": 5.0, "rejection_sampling": {"upper": 3.0}},
            {"rejection_sampling": {"upper": 3.0}},
            "behave_imp_weight_cap = 5.0: removed; now upper of rejection_sampling with metric ratio, translated; "
            "rejection_sampling = {'upper': 3.0} is given beside it and counts",
        ),
        ("skyrl", {"use_tis": False}, {}, "use_tis = False: now tis_ratio_type token; off then, and read as off"),
        ("openrlhf", {"use_icepop": False}, {}, "use_icepop = False: now is_correction_type icepop; off then, "
         "and read as off"),
        ("verl", {"use_policy_gradient": False}, {}, "use_policy_gradient = False: now loss_type 'reinforce'; "
         "--trainer verl-2025-11 has the names that version logs; off then, and read as off"),
        ("verl", {"tis_imp_ratio_cap": -1}, {}, "tis_imp_ratio_cap = -1: now rollout_is 'token' with "
         "rollout_is_threshold; off then, and read as off"),
    ],
)  # fmt: skip
def test_an_older_key_beside_todays_and_one_that_was_off(
    name: str, config: dict[str, object], settings: dict[str, object], note: str
) -> None:
    given, notes = get_trainer(name).settings(config)
    assert given == settings
    assert notes[0] == note


def test_a_loss_of_the_runs_own_is_named() -> None:
    loss = {"type": "custom", "import_path": "my.loss", "kwargs": {"a": 1}}
    with pytest.raises(ConfigError, match=r"type = 'custom': a loss of the run's own code \(my\.loss\), which no "):
        get_trainer("prime-rl").configure({"trainer": {"loss": loss}})


@pytest.mark.parametrize(
    ("config", "note"),
    [
        ({"type": "default", "ipo_threshold": 0.3}, "ipo_threshold = 0.3: not looked at with type 'default'"),
        ({"type": "ipo", "dppo_mask_high": 0.3}, "dppo_mask_high = 0.3: not looked at with type 'ipo'"),
    ],
)
def test_a_threshold_of_the_other_loss_is_said(config: dict[str, object], note: str) -> None:
    assert config_warnings("prime-rl", config) == (note,)
    assert read("prime-rl", config) == read("prime-rl", {"type": config["type"]})


@pytest.mark.parametrize("beside", [{}, {"lr": 1e-6, "train_infer_correction": {"filters": []}}])
def test_tis_of_roll_is_of_the_update(beside: dict[str, object]) -> None:
    assert read("roll", {"pg_variant": "tis", **beside}) == read("roll", {})
    assert "pg_variant = 'tis': a clamp of the ratio of the update, not of that to the engine; not looked at" in (
        config_warnings("roll", {"pg_variant": "tis", **beside})
    )
    assert not any("pg_variant =" in line for line in config_warnings("roll", {"pg_variant": "ppo", **beside}))
