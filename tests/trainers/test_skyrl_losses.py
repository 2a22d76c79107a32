"""SkyRL's losses that have the engine as their anchor: corrections of the current policy, figures by hand."""

from __future__ import annotations

import math

import pytest

from rollout_audit.audit.selection import config_warnings
from rollout_audit.corrections.direct import apply
from rollout_audit.corrections.model import Correction, Denominator, Loss, Mode
from rollout_audit.corrections.tokens import Tokens
from rollout_audit.errors import ConfigError
from rollout_audit.trainers.expression import Expression
from rollout_audit.trainers.registry import get_trainer
from tests.trainers.test_trainer_numbers import metrics_of, tokens_of

SKYRL = get_trainer("skyrl")


def config(loss: str, **algorithm: object) -> dict[str, object]:
    return {"trainer": {"algorithm": {"policy_loss_type": loss, **algorithm}}}


def read(given: dict[str, object]) -> Correction:
    return SKYRL.correction(SKYRL.configure(given))


def weights(given: dict[str, object], tokens: Tokens) -> list[float]:
    """What multiplies advantage and gradient of each token."""
    correction = read(given)
    assert (correction.mode, correction.loss) == (Mode.BYPASS, Loss.REINFORCE)
    assert correction.denominator is Denominator.ORIGINAL
    applied = apply(correction, tokens)
    return (applied.normalised * applied.kept).tolist()


def of_ratios(*ratios: float) -> Tokens:
    return tokens_of([[math.log(ratio) for ratio in ratios]])


def of_probabilities(pairs: list[tuple[float, float]], advantages: list[float]) -> Tokens:
    """Tokens of (trainer, engine) probabilities."""
    tokens = tokens_of([[math.log(pi / mu) for pi, mu in pairs]], [advantages])
    shift = tokens.rollout_log_probs.new_tensor([math.log(mu) for _, mu in pairs])
    training = tokens.rollout_log_probs.new_tensor([math.log(pi) for pi, _ in pairs])
    return Tokens(tokens.lengths, training, shift, tokens.segment_lengths, advantages=tokens.advantages)


class TestRolloutIs:
    def test_ratios_inside_count_and_others_are_zero(self) -> None:
        assert weights(config("rollout_is"), of_ratios(0.79, 0.81, 1.0, 1.19, 1.21)) == (
            pytest.approx([0.0, 0.81, 1.0, 1.19, 0.0])
        )

    def test_the_ends_are_outside(self) -> None:
        """Eps of 1/2: ratios of exactly 1/2 and 3/2."""
        given = config("rollout_is", eps_clip_low=0.5, eps_clip_high=0.5)
        weight = read(given).weight
        assert weight.lower == math.nextafter(0.5, 1.0)
        assert weight.upper == math.nextafter(1.5, 1.0)
        d = [math.log(0.5), math.log(0.501), math.log(1.499)]
        assert weights(given, tokens_of([d])) == pytest.approx([0.0, 0.501, 1.499])

    def test_share_that_it_zeroes(self) -> None:
        got = metrics_of("skyrl", config("rollout_is"), of_ratios(0.5, 1.0, 1.1, 2.0, 1.0))
        assert got["policy/loss_metrics/clip_ratio"] == pytest.approx(2 / 5)

    def test_no_ratio_left(self) -> None:
        with pytest.raises(ConfigError, match="no ratio has a weight"):
            read(config("rollout_is", eps_clip_low=0.0, eps_clip_high=0.0))


class TestCispo:
    def test_anchored_on_the_engine_it_clips(self) -> None:
        given = config("cispo", cispo={"cispo_anchor": "rollout"})
        assert weights(given, of_ratios(0.01, 1.0, 7.0)) == pytest.approx([0.01, 1.0, 5.0])
        both = config("cispo", cispo={"cispo_anchor": "rollout", "cispo_eps_clip_low": 0.5, "cispo_eps_clip_high": 1.0})
        assert weights(both, of_ratios(0.01, 1.0, 7.0)) == pytest.approx([0.5, 1.0, 2.0])
        got = metrics_of("skyrl", both, of_ratios(0.01, 1.0, 7.0))
        assert got["policy/loss_metrics/clip_ratio"] == pytest.approx(2 / 3)

    def test_anchored_on_the_update_it_is_no_correction(self) -> None:
        assert read(config("cispo")) == Correction(denominator=Denominator.ORIGINAL)
        (line,) = config_warnings("skyrl", config("cispo"))
        assert "clips the ratio of the update, which is no correction of the gap to the engine" in line

    def test_with_truncated_weights_the_gap_would_count_twice(self) -> None:
        off_policy = {"tis_ratio_type": "token"}
        with pytest.raises(ConfigError, match="cispo_anchor = 'rollout': SkyRL refuses it with tis_ratio_type"):
            read(config("cispo", cispo={"cispo_anchor": "rollout"}, off_policy_correction=off_policy))


class TestDppo:
    PAIRS = ((0.8, 0.5), (0.8, 0.5), (0.2, 0.5), (0.2, 0.5), (0.8, 0.5))
    SIGNS = (1.0, -1.0, -1.0, 1.0, 0.0)

    def test_probabilities_that_moved_too_far_the_way_of_the_advantage(self) -> None:
        """Up by 0.3 with A > 0 and down by 0.3 with A < 0 go; A = 0 is never masked."""
        tokens = of_probabilities(list(self.PAIRS), list(self.SIGNS))
        assert weights(config("dppo"), tokens) == pytest.approx([0.0, 1.6, 0.0, 0.4, 1.6])
        got = metrics_of("skyrl", config("dppo"), tokens)
        assert got["policy/loss_metrics/clip_ratio"] == pytest.approx(2 / 5)

    def test_each_side_has_its_threshold(self) -> None:
        tokens = of_probabilities(list(self.PAIRS), list(self.SIGNS))
        given = config("dppo", dppo={"delta_low": 0.2, "delta_high": 0.4})
        assert weights(given, tokens) == pytest.approx([1.6, 1.6, 0.0, 0.4, 1.6])

    def test_by_divergence(self) -> None:
        """KL of (0.5, 0.5) from (0.8, 0.2): 0.5 log(0.5/0.8) + 0.5 log(0.5/0.2) = 0.223."""
        tokens = of_probabilities(list(self.PAIRS), list(self.SIGNS))
        for limit, first in ((0.22, 0.0), (0.23, 1.6)):
            given = config("dppo", dppo={"dppo_type": "binary_kl", "delta_low": limit, "delta_high": limit})
            assert weights(given, tokens)[0] == pytest.approx(first)

    def test_without_advantages_the_share_is_null(self) -> None:
        got = metrics_of("skyrl", config("dppo"), of_ratios(1.0, 2.0))
        name = "policy/loss_metrics/clip_ratio"
        assert (got[name], got.reasons[name]) == (None, "needs advantages")


def test_beside_an_off_policy_correction_only_that_is_weighed() -> None:
    given = config("dppo", off_policy_correction={"tis_ratio_type": "token"})
    assert read(given).mode is Mode.DECOUPLED
    (line,) = config_warnings("skyrl", given)
    assert line.endswith("only the latter is weighed")


@pytest.mark.parametrize(
    "given",
    [
        config("rollout_is", eps_clip_low=0.3, eps_clip_high=0.25),
        config("cispo", cispo={"cispo_anchor": "rollout", "cispo_eps_clip_low": 0.7, "cispo_eps_clip_high": 0.1}),
        config("dppo", dppo={"dppo_type": "binary_kl", "delta_low": 0.05, "delta_high": 0.06}),
    ],
)
def test_they_are_found_again(given: dict[str, object]) -> None:
    found = SKYRL.express(read(given))
    assert isinstance(found, Expression)
    assert read(SKYRL.nested(found.settings)) == read(given)
