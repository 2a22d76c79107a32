"""The direct definitions on batches small enough to check by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rollout_audit.corrections.direct import apply, kept_tokens
from rollout_audit.corrections.model import Aggregation, Bound, Correction, Level, Loss, Mode, Rule, Statistic, Weight
from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.presets import PRESETS
from rollout_audit.corrections.tokens import Tokens
from rollout_audit.errors import ConfigError
from tests.builders import CPU, chunk_of

LN2 = math.log(2.0)


def tokens_of(rows: list[list[float]], masks: list[list[int]] | None = None) -> Tokens:
    return Packed(chunk_of(rows, masks, rollout=0.0), CPU).tokens("old_log_probs")


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (Weight(), [1, 1, 1]),
        (Weight(Level.TOKEN), [2, 4, 0.5]),
        (Weight(Level.SEQUENCE), [8, 8, 0.5]),
        (Weight(Level.GEOMETRIC), [8**0.5, 8**0.5, 0.5]),
        (Weight(Level.TOKEN, Bound.TRUNCATE, upper=3.0), [2, 3, 0.5]),
        (Weight(Level.TOKEN, Bound.CLIP, 0.8, 3.0), [2, 3, 0.8]),
        (Weight(Level.TOKEN, Bound.MASK, 0.8, 3.0), [2, 0, 0]),
        (Weight(Level.SEQUENCE, Bound.TRUNCATE, upper=2.0), [2, 2, 0.5]),
        (Weight(Level.TOKEN, normalise=True), [2 / (6.5 / 3), 4 / (6.5 / 3), 0.5 / (6.5 / 3)]),
        (Weight(Level.SEQUENCE, normalise=True), [8 / 4.25, 8 / 4.25, 0.5 / 4.25]),
    ],
)
def test_weights(weight: Weight, expected: list[float]) -> None:
    applied = apply(Correction(weight), tokens_of([[LN2, 2 * LN2], [-LN2], []]))
    assert applied.normalised.tolist() == pytest.approx(expected, rel=1e-12)


def test_segments_are_runs_of_mask_one_and_never_cross_rows() -> None:
    tokens = tokens_of([[0.2, 0.4, 9.0, 1.0], [3.0]], [[1, 1, 0, 1], [1]])
    weights = apply(Correction(Weight(Level.SEGMENT)), tokens).bounded
    assert weights.log().tolist() == pytest.approx([0.3, 0.3, 1.0, 3.0])


def test_the_clamp_acts_after_the_sum_at_sequence_level() -> None:
    rows = [[15.0, 15.0, -12.0], [0.0]]
    assert apply(Correction(Weight(Level.SEQUENCE)), tokens_of(rows)).bounded[0].log().item() == pytest.approx(18.0)
    assert apply(Correction(Weight(Level.SEQUENCE)), tokens_of([[15.0, 15.0]])).bounded[0].log().item() == 20.0


def test_a_k1_band_keeps_the_reciprocal_interval() -> None:
    """Real case 8: ratios 1.5, 0.65, 1.0 under verl's bounds 0.6..1.4 keep 1, 0, 1."""
    rule = Rule(Statistic.K1, Aggregation.TOKEN, math.log(0.6), math.log(1.4))
    tokens = tokens_of([[math.log(1.5), math.log(0.65), 0.0]])
    assert kept_tokens(Correction(rules=(rule,)), tokens).tolist() == [True, False, True]


def test_geometric_rejection_is_blind_to_errors_that_cancel() -> None:
    """Real case 11: ±0.5 has a geometric ratio of 1 and a mean k3 of 0.1276."""
    tokens = tokens_of([[0.5, -0.5, 0.5, -0.5]])
    assert kept_tokens(PRESETS["decoupled_geo_rs"].correction, tokens).all()
    assert not kept_tokens(PRESETS["decoupled_k3_rs"].correction, tokens).any()


def test_the_veto_is_strict_and_one_sided() -> None:
    """Real case 86: 5e-5 kills its row, 2e4 does not; exactly the threshold stays."""
    rows = [[0.0, math.log(5e-5)], [0.0, math.log(2e4)], [math.log(1e-4)]]
    assert kept_tokens(Correction(veto=1e-4), tokens_of(rows)).tolist() == [False, False, True, True, True]


def test_rules_are_joined_by_and() -> None:
    small = Rule(Statistic.ABS_LOG_RATIO, Aggregation.TOKEN, None, 0.5)
    calm = Rule(Statistic.K2, Aggregation.SEQ_MAX, None, 0.5)
    tokens = tokens_of([[0.1, 0.7], [0.1, 1.5]])
    assert kept_tokens(Correction(rules=(small, calm)), tokens).tolist() == [True, False, False, False]


def test_in_bypass_with_ppo_clip_the_ratio_carries_the_weight() -> None:
    weight = Weight(Level.TOKEN, Bound.TRUNCATE, upper=2.0)
    assert Correction(weight, mode=Mode.BYPASS, loss=Loss.PPO_CLIP).applied_weight == Weight()
    assert Correction(weight, mode=Mode.BYPASS, loss=Loss.REINFORCE).applied_weight == weight


def test_normalisation_takes_the_batch_before_rejection() -> None:
    """Real case 25: weights 0.1, 0.1, 0.1, 2.0 have factor 0.575 although the 2.0 is rejected."""
    rule = Rule(Statistic.RATIO, Aggregation.TOKEN, 0.05, 1.5)
    correction = Correction(Weight(Level.TOKEN, normalise=True), (rule,))
    applied = apply(correction, tokens_of([[math.log(0.1)] * 3 + [math.log(2.0)]]))
    assert applied.factor.item() == pytest.approx(0.575)
    assert applied.kept.tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Weight(Level.TOKEN, Bound.CLIP, 2.0, 1.0), "lower = 2.0: above the upper bound 1.0"),
        (lambda: Weight(Level.TOKEN, Bound.TRUNCATE, upper=-1.0), "upper = -1.0: a bound on a ratio must be positive"),
        (lambda: Weight(Level.TOKEN, Bound.TRUNCATE), "upper = None: bound mode truncate needs a bound"),
        (lambda: Rule(Statistic.K3, Aggregation.SEQ_MEAN), "seq_mean_k3 = None: a rejection rule needs a bound"),
        (lambda: Correction(veto=0.0), "veto = 0.0: a veto threshold must be positive"),
    ],
)
def test_impossible_settings_name_key_and_value(build, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build()
    assert str(error.value) == message


def test_an_empty_batch_is_no_error() -> None:
    applied = apply(PRESETS["token_is_rs"].correction, tokens_of([[], []]))
    assert applied.normalised.shape == applied.kept.shape == torch.Size([0])
