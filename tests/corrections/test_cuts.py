"""Bounds become intervals of d whose ends are the last float64 that satisfies the inequality as written."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_audit.corrections.cuts import at_least, at_most, k3_roots, token_interval, weight_interval
from rollout_audit.corrections.model import Aggregation, Bound, Level, Rule, Statistic, Weight
from rollout_audit.errors import ConfigError


@given(st.floats(1e-6, 1e6))
def test_ratio_cuts_are_the_last_that_satisfy(bound: float) -> None:
    upper, lower = at_most(bound), at_least(bound)
    assert math.exp(upper) <= bound < math.exp(math.nextafter(upper, math.inf))
    assert math.exp(lower) >= bound > math.exp(math.nextafter(lower, -math.inf))


def test_log_of_three_is_past_three() -> None:
    assert math.exp(math.log(3.0)) > 3.0
    assert at_most(3.0) < math.log(3.0)


@pytest.mark.parametrize("threshold", [1e-12, 1e-8, 1e-6, 1e-3, 0.01, 1.0, 10.0, 1e4])
def test_k3_roots_against_fifty_digits(threshold: float) -> None:
    """−1 − t − W(−e^(−1−t)) on both branches of Lambert's W."""
    with mpmath.workdps(50):
        argument = -mpmath.exp(-1 - mpmath.mpf(threshold))
        low, high = (-1 - mpmath.mpf(threshold) - mpmath.lambertw(argument, branch) for branch in (0, -1))
    roots = k3_roots(threshold)
    assert roots.lower == pytest.approx(float(low.real), rel=1e-9)
    assert roots.upper == pytest.approx(float(high.real), rel=1e-9)


def test_k3_roots_far_out() -> None:
    assert k3_roots(1e300).upper == pytest.approx(300 * math.log(10), rel=1e-12)
    assert k3_roots(0.0) == (0.0, 0.0)
    assert k3_roots(1e-300).upper == pytest.approx(math.sqrt(2e-300), rel=1e-6)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(Statistic.K1, Aggregation.TOKEN, math.log(0.5), math.log(5.0)), (-math.log(5.0), -math.log(0.5))),
        (Rule(Statistic.K2, Aggregation.TOKEN, None, 0.5), (-1.0, 1.0)),
        (Rule(Statistic.ABS_LOG_RATIO, Aggregation.TOKEN, None, 0.25), (-0.25, 0.25)),
        (Rule(Statistic.K2, Aggregation.TOKEN, None, 300.0), (-math.inf, math.inf)),
    ],
)
def test_token_rules_as_intervals(rule: Rule, expected: tuple[float, float]) -> None:
    assert token_interval(rule) == pytest.approx(expected, abs=1e-15)


def test_a_cap_beyond_the_clamp_never_caps() -> None:
    weight = Weight(Level.TOKEN, Bound.TRUNCATE, upper=1e9)
    assert weight_interval(weight).upper == math.inf
    assert weight_interval(Weight(Level.TOKEN, Bound.TRUNCATE, upper=1e9, clamp=None)).upper == at_most(1e9)


def test_a_lower_bound_on_a_divergence_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes one upper bound"):
        token_interval(Rule(Statistic.K3, Aggregation.TOKEN, 0.1, 0.2))


def test_an_end_beyond_the_far_side_of_the_clamp_leaves_nothing() -> None:
    """d clamped to ±10 is never as small as log 1e-5: every weight is above such a cap."""
    capped = weight_interval(Weight(Level.TOKEN, Bound.TRUNCATE, upper=1e-5, clamp=10.0))
    raised = weight_interval(Weight(Level.TOKEN, Bound.MASK, 1e5, 2e5, clamp=10.0))
    assert capped == (-math.inf, -math.inf)
    assert raised == (math.inf, math.inf)
