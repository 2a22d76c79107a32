"""Rules that look at advantages, at what other rules leave, or at the order of the batch, checked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollout_audit.corrections.batch_order import BatchOrder, Cut
from rollout_audit.corrections.describe import describe, effective_intervals
from rollout_audit.corrections.direct import apply, kept_tokens
from rollout_audit.corrections.model import Aggregation, Bound, Correction, Level, Over, Rule, Sign, Statistic, Weight
from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.tokens import Tokens
from rollout_audit.errors import ConfigError, MissingFieldError
from tests.builders import CPU, chunk_of

LN2 = math.log(2.0)


def tokens_of(
    rows: list[list[float]],
    advantages: list[float] | None = None,
    masks: list[list[int]] | None = None,
    rollout: float = 0.0,
) -> Tokens:
    tokens = Packed(chunk_of(rows, masks, rollout=rollout), CPU).tokens("old_log_probs")
    values = None if advantages is None else torch.tensor(advantages, dtype=torch.float64)
    return replace(tokens, advantages=values)


def kept(rule: Rule, tokens: Tokens, *others: Rule) -> list[int]:
    return kept_tokens(Correction(rules=(*others, rule)), tokens).int().tolist()


@pytest.mark.parametrize(
    ("sign", "expected"),
    [
        (Sign.ANY, [0, 0, 0, 0, 0, 0]),
        (Sign.POSITIVE, [0, 1, 1, 0, 1, 0]),
        (Sign.NOT_POSITIVE, [1, 0, 0, 1, 0, 1]),
        (Sign.NEGATIVE, [1, 1, 0, 1, 0, 1]),
        (Sign.NEGATIVE_MEAN, [1, 1, 1, 0, 0, 0]),
        (Sign.OUTWARD, [0, 1, 1, 1, 0, 0]),
    ],
)
def test_the_sign_of_the_advantage_says_where_a_rule_can_remove(sign: Sign, expected: list[int]) -> None:
    """|d| ≤ 0.1 fails everywhere; the mean advantages of the responses are 0.5/3 and −1."""
    tokens = tokens_of([[0.5, 0.5, 0.5], [-0.5, -0.5, 0.5]], [1.5, 0.0, -1.0, 1.0, -5.0, 1.0])
    assert kept(Rule(Statistic.ABS_LOG_RATIO, Aggregation.TOKEN, None, 0.1, sign=sign), tokens) == expected


@pytest.mark.parametrize("sign", [sign for sign in Sign if sign is not Sign.ANY])
def test_an_advantage_that_is_not_known_has_no_sign(sign: Sign) -> None:
    rule = Rule(Statistic.ABS_LOG_RATIO, Aggregation.TOKEN, None, 0.1, sign=sign)
    assert kept(rule, tokens_of([[0.5]], [math.nan])) == [1]


def test_a_sign_without_advantages_is_a_missing_field() -> None:
    rule = Rule(Statistic.PROB_DIFF, Aggregation.TOKEN, None, 0.2, sign=Sign.POSITIVE)
    with pytest.raises(MissingFieldError, match="needs advantages"):
        kept(rule, tokens_of([[0.1]]))


def test_dppo_masks_probability_differences_on_the_side_that_the_advantage_pushes() -> None:
    """μ = 1/2 throughout: π = 0.8 is off by +0.3, π = 0.2 by −0.3, π = 0.6 by +0.1; A of 0 takes the low side."""
    rows = [[math.log(0.8 / 0.5), math.log(0.2 / 0.5), math.log(0.6 / 0.5)] * 3]
    tokens = tokens_of(rows, [1.0] * 3 + [-1.0] * 3 + [0.0] * 3, rollout=math.log(0.5))
    high = Rule(Statistic.PROB_DIFF, Aggregation.TOKEN, None, 0.2, sign=Sign.POSITIVE)
    low = Rule(Statistic.PROB_DIFF, Aggregation.TOKEN, -0.2, None, sign=Sign.NOT_POSITIVE)
    assert kept(high, tokens, low) == [0, 1, 1, 1, 0, 1, 1, 0, 1]


def test_opsm_drops_responses_that_drifted_and_are_pushed_down() -> None:
    """Mean −d of 0.3 is above 0.25 in both rows; only the one with negative advantages goes."""
    tokens = tokens_of([[-0.5, -0.1], [-0.5, -0.1]], [1.0, 1.0, -1.0, -1.0])
    rule = Rule(Statistic.K1, Aggregation.SEQ_MEAN, None, 0.25, sign=Sign.NEGATIVE)
    assert kept(rule, tokens) == [1, 1, 0, 0]


def test_total_variation_of_the_response_drops_only_outward_tokens() -> None:
    """|ρ − 1| is 1 and 0.5, mean 0.75; A > 0 pushes the first token out and the second back."""
    tokens = tokens_of([[LN2, -LN2]], [1.0, 1.0])
    over, under = (
        Rule(Statistic.RATIO_DISTANCE, Aggregation.SEQ_MEAN, None, limit, sign=Sign.OUTWARD) for limit in (0.7, 0.8)
    )
    assert kept(over, tokens) == [0, 1]
    assert kept(under, tokens) == [1, 1]


def test_k3_with_the_policies_exchanged() -> None:
    """1/ρ − 1 + log ρ at ρ = 1/2 is 1 − log 2 = 0.307; at ρ = 2 it is log 2 − 1/2 = 0.193."""
    rule = Rule(Statistic.K3_REVERSE, Aggregation.TOKEN, None, 0.25)
    assert kept(rule, tokens_of([[-LN2, LN2]])) == [0, 1]
    assert kept(replace(rule, aggregation=Aggregation.SEQ_MAX), tokens_of([[-LN2, LN2], [LN2]])) == [0, 0, 1]


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.3, [0, 1, 1, 1]),  # all: (1 + .25 + .25 + 0) / 4 = 0.375; without the largest 0.1667
        (0.15, [0, 1, 1, 0]),  # of the two 0.25 the first stays: (0.25 + 0) / 2 = 0.125
        (0.125, [0, 0, 1, 0]),  # 0.125 is not below 0.125
        (0.4, [1, 1, 1, 1]),
        (1e-9, [0, 0, 1, 0]),
    ],
)
def test_m2po_removes_the_largest_until_the_mean_is_below(threshold: float, expected: list[int]) -> None:
    """M2 is d², twice k2."""
    rule = Rule(Statistic.K2, Aggregation.BATCH_MEAN, None, threshold / 2)
    assert kept(rule, tokens_of([[1.0, -0.5], [0.0, 0.5]])) == expected


def test_m2po_keeps_one_token_where_none_is_small() -> None:
    rule = Rule(Statistic.K2, Aggregation.BATCH_MEAN, None, 0.01)
    assert kept(rule, tokens_of([[1.0, -0.5], [0.5, 0.7]])) == [0, 1, 0, 0]
    assert BatchOrder(0.01).cut() == Cut(math.inf)


@given(st.lists(st.sampled_from([0.0, 0.1, -0.1, 0.3, 0.5, 1.0, -2.0]), min_size=1, max_size=12), st.floats(0.001, 2))
def test_m2po_is_the_longest_prefix_of_the_sorted_batch(d: list[float], bound: float) -> None:
    values = sorted(x * x / 2 for x in d)
    exact = [k for k in range(1, len(d) + 1) if math.fsum(values[:k]) / k < bound]
    rule = Rule(Statistic.K2, Aggregation.BATCH_MEAN, None, bound)
    left = kept(rule, tokens_of([d]))
    assert sum(left) == max(exact, default=1)
    assert max(x * x for x, k in zip(d, left, strict=True) if k) == 2 * values[sum(left) - 1]


def test_a_rule_over_the_remaining_tokens_does_not_see_what_others_removed() -> None:
    """The outlier lifts the mean of its row to 1.1; without it the mean is 0.05."""
    band = Rule(Statistic.RATIO, Aggregation.TOKEN, 0.5, 2.0)
    mean = Rule(Statistic.RATIO, Aggregation.SEQ_MEAN, 0.9, 1.1, over=Over.REMAINING)
    tokens = tokens_of([[0.1, 0.0, 3.2], [0.5]])
    assert kept(mean, tokens, band) == [1, 1, 0, 0]
    assert kept(replace(mean, over=Over.EVERY), tokens, band) == [0, 0, 0, 0]


def test_a_weight_over_the_remaining_tokens() -> None:
    band = Rule(Statistic.RATIO, Aggregation.TOKEN, 0.5, 2.0)
    tokens = tokens_of([[0.1, 0.2, 3.0], [5.0]])
    sequence = Weight(Level.SEQUENCE, over=Over.REMAINING)
    assert apply(Correction(sequence, (band,)), tokens).bounded.log().tolist() == pytest.approx([0.3, 0.3, 0.3, 0.0])
    geometric = Weight(Level.GEOMETRIC, over=Over.REMAINING)
    assert apply(Correction(geometric, (band,)), tokens).bounded.log().tolist() == pytest.approx([0.15] * 3 + [0.0])


def test_segments_keep_their_places_when_tokens_leave() -> None:
    band = Rule(Statistic.RATIO, Aggregation.TOKEN, 0.5, 2.0)
    tokens = tokens_of([[0.1, 3.0, 9.0, 0.3]], masks=[[1, 1, 0, 1]])
    weight = Weight(Level.SEGMENT, over=Over.REMAINING)
    assert apply(Correction(weight, (band,)), tokens).bounded.log().tolist() == pytest.approx([0.1, 0.1, 0.3])


def test_the_clamp_of_tokens_acts_before_the_mean() -> None:
    weight = Weight(Level.GEOMETRIC, token_clamp=20.0)
    assert apply(Correction(weight), tokens_of([[30.0, 0.0]])).bounded.log().tolist() == pytest.approx([10.0, 10.0])


def test_bounds_that_act_only_outside_a_rule() -> None:
    """AReaL clamp with agg max and a lower bound: the mean may be low while the largest ratio is inside."""
    outside = Rule(Statistic.RATIO, Aggregation.SEQ_MAX, 0.9, 5.0, clamp=None)
    weight = Weight(Level.GEOMETRIC, Bound.CLIP, 0.9, 5.0, clamp=None, outside=outside)
    rows = [[0.0, 2 * math.log(0.5)], [math.log(0.5)], [math.log(8.0)]]
    assert apply(Correction(weight), tokens_of(rows)).bounded.tolist() == pytest.approx([0.5, 0.5, 0.9, 5.0])


@pytest.mark.parametrize(
    ("correction", "text"),
    [
        (
            Correction(rules=(Rule(Statistic.PROB_DIFF, Aggregation.TOKEN, None, 0.2, sign=Sign.POSITIVE),)),
            "token_prob_diff ≤ 0.2 where A > 0",
        ),
        (
            Correction(rules=(Rule(Statistic.K2, Aggregation.BATCH_MEAN, None, 0.02),)),
            "largest k2 of the batch removed until the mean is < 0.02",
        ),
        (
            Correction(Weight(Level.SEQUENCE, Bound.TRUNCATE, upper=5.0, over=Over.REMAINING)),
            "sequence weight capped at 5, over the tokens that the other rules leave",
        ),
        (
            Correction(
                Weight(Level.GEOMETRIC, Bound.CLIP, 0.9, 5.0, outside=Rule(Statistic.RATIO, Aggregation.SEQ_MAX, 0.9))
            ),
            "geometric weight clipped into [0.9, 5] only outside seq_max_ratio ≥ 0.9",
        ),
    ],
)
def test_each_says_in_words_what_it_does(correction: Correction, text: str) -> None:
    assert describe(correction) == text


@pytest.mark.parametrize(
    ("statistic", "aggregation", "lower", "upper", "text"),
    [
        (Statistic.RATIO, Aggregation.SEQ_MIN, 1e-4, None, "every ρ of the sequence ≥ 0.0001"),
        (Statistic.RATIO, Aggregation.SEQ_MAX, None, 100.0, "every ρ of the sequence ≤ 100"),
        (Statistic.K1, Aggregation.SEQ_MIN, -LN2, None, "every ρ of the sequence ≤ 2"),
        (Statistic.K1, Aggregation.SEQ_MAX, None, LN2, "every ρ of the sequence ≥ 0.5"),
        (Statistic.RATIO, Aggregation.SEQ_MAX, 0.5, None, "seq_max_ratio ≥ 0.5"),
        (Statistic.RATIO, Aggregation.SEQ_MIN, 0.5, 2.0, "seq_min_ratio in [0.5, 2]"),
    ],
)
def test_only_bounds_that_hold_for_every_token_are_said_of_every_token(
    statistic: Statistic, aggregation: Aggregation, lower: float | None, upper: float | None, text: str
) -> None:
    assert effective_intervals(Correction(rules=(Rule(statistic, aggregation, lower, upper),))) == [text]


def test_effective_interval_of_the_exchanged_k3() -> None:
    rule = Rule(Statistic.K3_REVERSE, Aggregation.TOKEN, None, 1 - LN2)
    assert effective_intervals(Correction(rules=(rule,)))[0].startswith("ρ of the token in [0.5, ")


def test_a_rule_on_the_batch_takes_one_upper_bound() -> None:
    with pytest.raises(ConfigError, match=r"^batch_mean_k2 = \(0.1, 0.2\): takes one upper bound, over every token$"):
        Rule(Statistic.K2, Aggregation.BATCH_MEAN, 0.1, 0.2)
