from __future__ import annotations

import pytest

from rollout_audit.reports.figures import amount, column_of, fixed, number, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.0, "0"),
        (7966, "7,966"),
        (0.009647948, "0.009648"),
        (1.0155637, "1.016"),
        (-0.12519, "-0.1252"),
        (17.3027, "17.30"),
        (12345.6, "12,346"),
        (2.3456e-7, "2.35e-07"),
        (4.587e33, "4.59e+33"),
        (1, "1"),
    ],
)
def test_one_figure(value: float | int | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "–"), (0.0, "0%"), (1.0, "100%"), (0.253, "25.3%"), (0.0002, "<0.1%"), (0.9999, ">99.9%")],
)
def test_a_share_that_is_not_nothing_does_not_read_as_nothing(share: float | None, text: str) -> None:
    assert percent(share) == text


def test_a_column_has_one_number_of_decimals() -> None:
    assert column_of([0.0014, 0.0091, 0.0261, None]) == ["0.0014", "0.0091", "0.0261", "–"]
    assert column_of([1.0015, 1.0385]) == ["1.002", "1.038"]
    assert column_of([-4.792, -0.025]) == ["-4.792", "-0.025"]


def test_a_column_of_different_scales_keeps_each_figure_readable() -> None:
    assert column_of([4.59e33, 0.01]) == ["4.59e+33", "0.01000"]
    assert column_of([3, 12_000]) == ["3", "12,000"]


def test_fixed_decimals_do_not_hide_what_is_small() -> None:
    assert fixed(0.25, 3) == "0.250"
    assert fixed(561.3953, 4) == "561.40"
    assert fixed(4.587e33, 4) == "4.6e+33"
    assert fixed(0.00001, 3) == "1e-05"
    assert fixed(0.0, 3) == "0.000"


def test_amounts() -> None:
    assert (amount(1, "file"), amount(2000, "row")) == ("1 file", "2,000 rows")
