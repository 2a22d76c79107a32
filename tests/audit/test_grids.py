"""Grids as they are written."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rollout_audit.audit.grids import sweep_grid, thresholds
from rollout_audit.audit.sweep import MOST_POINTS, Grid, default_grid
from rollout_audit.corrections.model import Bound, Level
from rollout_audit.errors import UsageError
from rollout_audit.trainers.thresholds import REJECTION_OPTIONS, parse_rejection


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1.5,2,3,5", [1.5, 2, 3, 5]),
        (" 3, 2 ,2", [2, 3]),
        ("1:100:log:3", [1, 10, 100]),
        ("1:2:lin:5,7", [1, 1.25, 1.5, 1.75, 2, 7]),
        ("none", []),
        ("1e-4", [1e-4]),
    ],
)
def test_numbers_ranges_and_none(text: str, values: list[float]) -> None:
    assert thresholds("upper", text) == pytest.approx(values)


def test_a_log_range_has_its_ends_and_its_count() -> None:
    found = thresholds("upper", "1.1:10:log:64")
    assert (found[0], found[-1], len(found)) == (1.1, 10.0, 64)
    assert np.ptp(np.diff(np.log(found))) < 1e-12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1:10:log", "'1:10:log' is no range"),
        ("1:10:cubic:5", "'1:10:cubic:5' is no range"),
        ("0:10:log:5", "0 is no positive number"),
        ("-1:10:lin:5", "-1 is no positive number"),
        ("10:1:log:5", "does not ascend"),
        ("1:10:log:1", "'1' is no count"),
        ("1:10:log:2.5", "'2.5' is no count"),
        ("1:10:log:1000000000", "is no count"),
        ("two", "'two' is no number"),
        ("1,,2", "'' is no number"),
        ("inf", "inf is no positive number"),
        ("nan", "nan is no positive number"),
    ],
)
def test_what_is_no_grid_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match="--upper") as error:
        thresholds("upper", text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_without_an_axis_it_is_the_default_grid() -> None:
    assert sweep_grid() == default_grid()


def test_a_given_axis_stands_in_the_place_of_its_own() -> None:
    grid = sweep_grid(levels=["token"], bounds=["truncate", "mask"], upper=[2, 3], joint=False)
    found = [(w.level, w.bound, w.lower, w.upper) for part in grid.weights for w in part]
    assert found == [
        (Level.TOKEN, Bound.TRUNCATE, None, 2),
        (Level.TOKEN, Bound.TRUNCATE, None, 3),
        (Level.TOKEN, Bound.MASK, 1 / 2, 2),
        (Level.TOKEN, Bound.MASK, 1 / 3, 3),
    ]
    assert (grid.token_rules, grid.vetoes, grid.given) == (default_grid().token_rules, default_grid().vetoes, None)
    assert grid.joint == ()


def test_free_lower_bounds_meet_every_larger_upper_bound() -> None:
    grid = sweep_grid(levels=["token"], bounds=["clip"], upper="0.9,2", lower="0.5,0.95")
    assert [(w.lower, w.upper) for part in grid.weights for w in part] == [(0.5, 0.9), (0.5, 2), (0.95, 2)]


def test_none_empties_an_axis() -> None:
    grid = sweep_grid(levels=[], rules={}, veto="none")
    assert grid.points == 0
    assert isinstance(grid, Grid)


@pytest.mark.parametrize("name", REJECTION_OPTIONS)
def test_a_number_is_the_threshold_that_verl_reads(name: str) -> None:
    grid = sweep_grid(levels=[], rules={name: "2,1.5"}, veto=[])
    (family,) = (*grid.token_rules, *(grid.given or ()))
    (verls,) = parse_rejection(name, "2")
    assert [rule.name for rule in family] == [name, name]
    assert family[1].upper == verls.upper
    assert family[1].lower == verls.lower == (None if verls.lower is None else -math.log(2))


def test_a_band_is_verls_own() -> None:
    """ "0.5_5.0" compares −log ρ: it keeps ρ from 0.2 to 2."""
    grid = sweep_grid(levels=[], rules={"seq_sum_k1": "0.5_5.0,3"}, veto=[])
    (band,) = grid.bands
    assert (math.exp(-(band.upper or 0)), math.exp(-(band.lower or 0))) == pytest.approx((0.2, 2.0))
    assert [rule.upper for family in grid.given or () for rule in family] == [math.log(3)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"levels": ["tokens"]}, r"--level 'tokens': no such level; did you mean 'token'\?"),
        ({"bounds": ["cut"]}, "--bound 'cut': no such bound"),
        ({"rules": {"seq_mean_k9": "1"}}, r"--rule 'seq_mean_k9': no such rule; did you mean 'seq_mean_k"),
        ({"rules": {"seq_mean_k3": "0.1_0.2"}}, "--rule seq_mean_k3=0.1_0.2: seq_mean_k3 has an upper bound only"),
        ({"rules": {"seq_mean_k1": "1.01_0.99"}}, "--rule seq_mean_k1=1.01_0.99: lower bound 1.01 above"),
        ({"rules": {"seq_mean_k1": "0.9"}}, "a lone bound below 1 is an empty band"),
        ({"rules": {"seq_sum_k1": "a_b"}}, "--rule seq_sum_k1=a_b: bound 'a' of the band"),
        ({"rules": {"token_k1": "1.5_2"}}, "--rule token_k1=1.5_2: a band by token is swept where it holds ρ = 1"),
        ({"rules": {"seq_max_k2": "1:x:log:3"}}, "--rule seq_max_k2 '1:x:log:3': 'x' is no number"),
        ({"upper": "0.5"}, "--upper 0.5: below 1"),
        ({"upper": "1.1:2:log:150000"}, "more than 200,000"),
        ({"veto": "0"}, "--veto '0': 0 is no positive number"),
        ({"rules": {"seq_mean_k3": "-1"}}, "--rule seq_mean_k3 '-1': -1 is no positive number, as every threshold is"),
        ({"upper": "1.5", "lower": "2"}, "--lower 2: not below any upper bound of token weights, which end at 1.5"),
    ],
)
def test_what_cannot_be_swept_is_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        sweep_grid(**given)
    assert "\n" not in str(error.value)


def test_points_are_counted_before_the_pass() -> None:
    assert 2000 <= default_grid().points <= MOST_POINTS
    grid = sweep_grid(
        levels=["sequence"], upper="2,3", rules={"seq_mean_k3": "0.1,0.2,0.3", "token_k1": "2"}, veto="1e-3"
    )
    assert grid.points == 3 * 2 + 3 + 1 + 1 + 2 * 3


def test_token_weights_under_rules_take_few_of_the_given_caps() -> None:
    grid = sweep_grid(upper="1.1:10:log:64")
    token, sequence = ([w.upper for w in grid.joint if w.level is level] for level in (Level.TOKEN, Level.SEQUENCE))
    assert (len(token), len(sequence)) == (8, 64)
    assert {token[0], token[-1]} == {sequence[0], sequence[-1]}
    assert set(token) <= set(sequence)
