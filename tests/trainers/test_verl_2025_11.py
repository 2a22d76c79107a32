"""verl between the two refactors of November and December 2025: bounds on the ratio itself, and a low-side veto."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollout_audit.audit.selection import config_warnings
from rollout_audit.corrections.direct import kept_tokens
from rollout_audit.corrections.model import Aggregation, Bound, Correction, Level, Loss, Mode, Rule, Statistic, Weight
from rollout_audit.errors import ConfigError
from rollout_audit.trainers.registry import get_trainer
from tests.trainers.test_trainer_numbers import metrics_of, tokens_of

NAME = "verl-2025-11"
ROWS = [[math.log(2.0), math.log(0.6)], [math.log(1e-5), 0.0], [], [math.log(1e5)]]
"""One healthy row, one with a token that the trainer finds impossible, an empty one, one that it finds far likelier"""
MODERN = {
    "algorithm": {
        "rollout_correction": {
            "rollout_is": "sequence",
            "rollout_is_threshold": 2.0,
            "rollout_rs": "geometric",
            "rollout_rs_threshold": 1.01,
            "rollout_rs_threshold_lower": 0.98,
            "rollout_token_veto_threshold": 1e-4,
        }
    }
}


def read(name: str, config: dict[str, object]) -> Correction:
    trainer = get_trainer(name)
    return trainer.correction(trainer.configure(config))


def kept(correction: Correction) -> list[bool]:
    return kept_tokens(correction, tokens_of(ROWS)).tolist()


def test_the_section_of_its_time() -> None:
    assert read(NAME, MODERN) == Correction(
        Weight(Level.SEQUENCE, Bound.TRUNCATE, upper=2.0),
        (Rule(Statistic.RATIO, Aggregation.SEQ_MEAN, 0.98, 1.01, clamp=None),),
        veto=1e-4,
    )
    assert config_warnings(NAME, MODERN) == ()


@pytest.mark.parametrize("name", [NAME, "verl", "verl-2026-01"])
class TestVeto:
    def test_it_looks_at_the_low_side_only(self, name: str) -> None:
        """The row with a ratio of 1e5 stays: seq_max_k2, which replaced the veto, would drop it."""
        config = {"rollout_token_veto_threshold": 1e-4}
        assert kept(read(name, config)) == [True, True, False, False, True]

    def test_beside_a_band_of_ratios(self, name: str) -> None:
        """token, [0.4, 4] in ratios: 2 and 0.6 stay, 1e-5 and 1e5 go, and 1 goes with 1e-5."""
        band = {"rollout_rs": "token", "rollout_rs_threshold": 4.0, "rollout_rs_threshold_lower": 0.4}
        assert kept(read(name, band)) == [True, True, False, True, False]
        assert kept(read(name, {**band, "rollout_token_veto_threshold": 1e-4})) == [True, True, False, False, False]

    def test_a_threshold_that_is_no_ratio_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match="rollout_token_veto_threshold = 0: must be positive"):
            read(name, {"rollout_token_veto_threshold": 0})


def test_the_section_is_not_passed_over_by_the_dialect_before_it() -> None:
    with pytest.raises(ConfigError, match="of verl since November 2025; --trainer verl-2025-11 reads it"):
        read("verl-2025-10", MODERN)


@pytest.mark.parametrize(
    ("name", "config", "text"),
    [
        ("verl-2025-10", {"rollout_is": "token"}, "--trainer verl-2025-11 reads it"),
        ("verl-2025-10", {"rollout_token_veto_threshold": 1e-4}, "--trainer verl-2025-11 reads it"),
        (NAME, {"rollout_is": True}, "of verl in October 2025; --trainer verl-2025-10 reads it"),
        (NAME, {"rollout_is_mode": "mask"}, "of verl in October 2025; --trainer verl-2025-10 reads it"),
        (NAME, {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": 2.0}, "--trainer verl reads it"),
        (NAME, {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}, "--trainer verl reads them"),
        (NAME, {"rollout_rs": "token"}, "rollout_rs needs a threshold"),
    ],
)
def test_what_another_version_means_names_its_dialect(name: str, config: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(name, config)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


BYPASS: dict[str, object] = {
    "bypass_mode": True,
    "rollout_rs": "token",
    "rollout_rs_threshold": 2.0,
    "rollout_token_veto_threshold": 0.1,
}


class TestBypass:
    def test_with_the_clip_of_ppo_nothing_was_rejected(self) -> None:
        assert read(NAME, BYPASS) == Correction(mode=Mode.BYPASS)
        assert config_warnings(NAME, BYPASS) == (
            "rollout_rs and rollout_token_veto_threshold: bypass_mode rejects nothing without use_policy_gradient",
        )

    def test_until_loss_type_came(self) -> None:
        later = read(NAME, {**BYPASS, "loss_type": "ppo_clip"})
        assert (later.veto, len(later.rules), later.loss) == (0.1, 1, Loss.PPO_CLIP)

    @pytest.mark.parametrize("key", ["use_policy_gradient", "use_pure_rollout_correction"])
    def test_a_policy_gradient_rejects(self, key: str) -> None:
        later = read(NAME, {**BYPASS, key: True})
        assert (later.veto, len(later.rules), later.loss) == (0.1, 1, Loss.REINFORCE)


class TestMetrics:
    """ρ is 2, 0.6 | 1e-5, 1 | none | 1e5: five tokens in four rows."""

    RATIOS = np.array([2.0, 0.6, 1e-5, 1.0, 1e5])

    def test_weights_are_logged_raw_and_their_spread_clamped(self) -> None:
        got = metrics_of(NAME, {"rollout_is": "token", "rollout_is_threshold": 2.0}, tokens_of(ROWS))
        clamped = np.array([2.0, 0.6, 0.5, 1.0, 2.0])
        expected = {
            "rollout_is_mean": self.RATIOS.mean(),
            "rollout_is_max": 1e5,
            "rollout_is_min": 1e-5,
            "rollout_is_std": clamped.std(),
            "rollout_is_eff_sample_size": clamped.mean() ** 2 / (clamped**2).mean(),
            "rollout_is_ratio_fraction_high": 1 / 5,
            "rollout_is_ratio_fraction_low": 1 / 5,
            "rollout_is_seq_mean": (1.3 + 0.500005 + 0 + 1e5) / 4,
            "rollout_is_seq_min": 0.0,
            "rollout_is_veto_fraction": 0.0,
            "rollout_is_catastrophic_token_fraction": 0.0,
        }
        assert {key: got[f"rollout_corr/{key}"] for key in expected} == pytest.approx(expected, rel=1e-6)

    def test_the_veto_counts_all_rows(self) -> None:
        got = metrics_of(NAME, {"rollout_token_veto_threshold": 1e-4}, tokens_of(ROWS))
        assert got["rollout_corr/rollout_is_veto_fraction"] == pytest.approx(1 / 4)
        assert got["rollout_corr/rollout_is_catastrophic_token_fraction"] == pytest.approx(1 / 5)

    @pytest.mark.parametrize(
        ("level", "rows", "tokens", "mean"),
        [
            ("token", 3 / 4, 4 / 5, 20000.72 + 2e-6),
            ("sequence", 2 / 4, 3 / 5, (2 * 1.2 + 2e-5 + 1e5) / 5),
            ("geometric", 2 / 4, 3 / 5, (2 * math.sqrt(1.2) + 2 * math.sqrt(1e-5) + 1e5) / 5),
        ],
    )
    def test_rejected_ratios(self, level: str, rows: float, tokens: float, mean: float) -> None:
        """[2/3, 1.5]: of the first row both tokens are outside and their product is not."""
        config = {"rollout_rs": level, "rollout_rs_threshold": 1.5, "rollout_token_veto_threshold": 0.1}
        got = metrics_of(NAME, config, tokens_of(ROWS))
        names = ("rollout_rs_seq_masked_fraction", "rollout_rs_masked_fraction", "rollout_rs_mean")
        assert [got[f"rollout_corr/{name}"] for name in names] == pytest.approx([rows, tokens, mean], rel=1e-6)
        assert "rollout_corr/rollout_is_mean" not in got

    def test_bypass_that_rejects_nothing_logs_the_two_policies_alone(self) -> None:
        got = metrics_of(NAME, BYPASS, tokens_of(ROWS))
        assert len(got) == 13
        assert not any("rollout_is" in name or "rollout_rs" in name for name in got)
