"""verl's threshold syntax, and the exact text of every refusal."""

from __future__ import annotations

import math

import pytest

from rollout_audit.errors import ConfigError
from rollout_audit.trainers.thresholds import REJECTION_OPTIONS, Band, parse_band, parse_rejection

KEY = "rollout_is_threshold"


@pytest.mark.parametrize(
    ("written", "band", "shown"),
    [
        (2.0, Band(None, 2.0), "2"),
        (2, Band(None, 2.0), "2"),
        ("2.0", Band(None, 2.0), "2"),
        ("1e-4", Band(None, 1e-4), "0.0001"),
        ("0.5_2.0", Band(0.5, 2.0), "[0.5, 2]"),
        ("0.5_2", Band(0.5, 2.0), "[0.5, 2]"),
        ("1_2", Band(1.0, 2.0), "[1, 2]"),
        (" 0.999 _ 1.001 ", Band(0.999, 1.001), "[0.999, 1.001]"),
        ("1e-1_1e1", Band(0.1, 10.0), "[0.1, 10]"),
    ],
)
def test_bands(written: object, band: Band, shown: str) -> None:
    assert parse_band(KEY, written) == band
    assert str(band) == shown


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (0, "rollout_is_threshold = 0: must be positive"),
        (-1.5, "rollout_is_threshold = -1.5: must be positive"),
        (None, "rollout_is_threshold = None: expected a number"),
        (
            True,
            "rollout_is_threshold = True: expected a number; a bare flag, yes and on are true, no and off are false",
        ),
        ("two", "rollout_is_threshold = 'two': expected a number"),
        (math.nan, "rollout_is_threshold = nan: must be finite"),
        ("inf", "rollout_is_threshold = 'inf': must be finite"),
        ("2.0_0.5", "rollout_is_threshold = '2.0_0.5': lower bound 2 above the upper bound 0.5"),
        ("0_2", "rollout_is_threshold = '0_2': bound '0' of the band is not a positive number"),
        ("_2", "rollout_is_threshold = '_2': bound '' of the band is not a positive number"),
        ("1_2_3", "rollout_is_threshold = '1_2_3': expected one number or a band 'lower_upper'"),
        ([2.0], "rollout_is_threshold = [2.0]: expected a number"),
    ],
)
def test_refused_bands(written: object, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_band(KEY, written)
    assert str(caught.value) == text
    assert caught.value.key == KEY


def test_there_are_eleven_options() -> None:
    assert len(REJECTION_OPTIONS) == 11
    assert "seq_max_k1" not in REJECTION_OPTIONS


@pytest.mark.parametrize(
    ("options", "thresholds", "bounds"),
    [
        (None, None, []),
        ("", 2.0, []),
        ("token_k1", "0.5_5.0", [("token_k1", math.log(0.5), math.log(5.0))]),
        ("token_k1", 2.0, [("token_k1", math.log(0.5), math.log(2.0))]),
        ("seq_mean_k3", "0.01", [("seq_mean_k3", None, 0.01)]),
        ("seq_max_k2,seq_max_k2", 2.5, [("seq_max_k2", None, 2.5)]),
        (
            "token_k1, seq_max_k2",
            "0.5_2.0, 2.5",
            [("token_k1", -math.log(2), math.log(2)), ("seq_max_k2", None, 2.5)],
        ),
        ("token_k1,token_k3", 2.0, [("token_k1", -math.log(2), math.log(2)), ("token_k3", None, 2.0)]),
    ],
)
def test_rejection(options: object, thresholds: object, bounds: list[tuple[str, float | None, float]]) -> None:
    rules = parse_rejection(options, thresholds)
    assert [(rule.name, rule.lower, rule.upper) for rule in rules] == [
        (name, lower and pytest.approx(lower), pytest.approx(upper)) for name, lower, upper in bounds
    ]


@pytest.mark.parametrize(
    ("options", "thresholds", "text"),
    [
        ("token_k4", 2.0, "rollout_rs = 'token_k4': no option 'token_k4'; did you mean 'token_k3'?"),
        ("seq_max_k1", 2.0, "rollout_rs = 'seq_max_k1': no option 'seq_max_k1'; did you mean 'seq_max_k3'?"),
        (["token_k1"], 2.0, "rollout_rs = ['token_k1']: expected option names separated by commas"),
        ("token_k1", None, "rollout_rs_threshold = None: rollout_rs needs a threshold"),
        (
            "seq_mean_k2",
            "0.5_2.0",
            "rollout_rs_threshold = '0.5_2.0': seq_mean_k2 has an upper bound only; a band is for k1 options",
        ),
        (
            "token_k1",
            0.5,
            "rollout_rs_threshold = 0.5: token_k1 with a lone bound below 1 is the empty band [2, 0.5]; "
            "write 'lower_upper'",
        ),
        (
            "token_k1,token_k1",
            "2.0,2.0",
            "rollout_rs_threshold = '2.0,2.0': 2 thresholds for 1 options (token_k1); give one, or one for each",
        ),
        (
            "token_k1,token_k2,token_k3",
            "2.0,1.0",
            "rollout_rs_threshold = '2.0,1.0': 2 thresholds for 3 options (token_k1, token_k2, token_k3); "
            "give one, or one for each",
        ),
        ("token_k2", -1, "rollout_rs_threshold = -1: must be positive"),
        (
            "seq_sum_k1",
            "2.0_0.5",
            "rollout_rs_threshold = '2.0_0.5': lower bound 2 above the upper bound 0.5",
        ),
    ],
)
def test_refused_rejection(options: object, thresholds: object, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rejection(options, thresholds)
    assert str(caught.value) == text
