"""Which side is off, and over what: rows, stretches, single tokens, a distribution of few values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.detections import Trial, trial
from tests.faults import FAULTS, Recording, few_tokens, sound

Array = NDArray[np.float64]
ROWS, LENGTH = 50, 60


def engines(seed: int = 0) -> Recording:
    """Fifty rows on which two engines agree to a hundredth of a nat; a fifth of the tokens is unlikely."""
    rng = np.random.default_rng(seed)
    rollout = [
        -np.where(rng.random(LENGTH) < 0.2, rng.uniform(2, 4, LENGTH), 0.2 * rng.random(LENGTH)) for _ in range(ROWS)
    ]
    training = [np.minimum(r + rng.normal(0, 0.01, LENGTH), -1e-6) for r in rollout]
    return Recording(tuple(training), tuple(rollout), (0,) * ROWS)


def first(recording: Recording, folder: Path) -> tuple[str, str, dict[str, float]]:
    cause = trial(recording, folder).causes[0]
    return cause.cause, cause.evidence, dict(cause.figures)


@pytest.mark.parametrize("side", ["training", "rollout"])
@pytest.mark.parametrize(("place", "word"), [(0, "at the start"), (15, "in the middle"), (30, "at the end")])
@pytest.mark.parametrize("rows", [1, 5, 20])
def test_a_stretch_that_is_off_on_one_side_is_told_with_its_place(
    side: str, place: int, word: str, rows: int, tmp_path: Path
) -> None:
    def garble(values: Array) -> Array:
        return np.where((np.arange(LENGTH) >= place) & (np.arange(LENGTH) < place + 30), -8.0 - 0.1 * values, values)

    spoilt = engines().map(
        lambda t, r: (garble(t), r) if side == "training" else (t, garble(r)), range(7, 7 + 2 * rows, 2)
    )
    name, text, figures = first(spoilt, tmp_path)
    assert (name, figures["rows"]) == ("broken_rows", rows)
    column = "old_log_probs" if side == "training" else "rollout_log_probs"
    assert text.startswith(
        f"{rows} of 50 rows have one stretch of |d| above 1.5 ({word} of the response, some 30 tokens) and agree "
        f"outside of it; d has one sign there, {column} is off (were"
    )
    assert text.endswith("; first: dump.parquet row 7")


def test_a_stretch_on_one_side_in_most_rows_is_no_matter_of_single_requests(tmp_path: Path) -> None:
    spoilt = engines().map(lambda t, r: (t, np.append(np.full(20, -8.0) - 0.1 * r[:20], r[20:])), range(40))
    assert first(spoilt, tmp_path)[0] == "mask_too_wide"


@pytest.mark.parametrize(("fill", "why"), [(None, "d has both signs there"), (-3e-4, "rollout_log_probs is near 0")])
@pytest.mark.parametrize("rows", [1, 2, 20])
def test_tokens_that_nobody_sampled_are_a_mask_too_wide_in_few_rows_as_well(
    fill: float | None, why: str, rows: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)

    def insert(t: Array, r: Array) -> tuple[Array, Array]:
        other = -rng.gamma(2.0, 2.0, 30) if fill is None else np.full(30, fill)
        return np.insert(t, 30, -1.6 - rng.gamma(2.0, 2.0, 30)), np.insert(r, 30, other)

    name, text, figures = first(engines().map(insert, range(rows)), tmp_path)
    assert (name, figures["rows"]) == ("mask_too_wide", rows)
    assert why in text


@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
def test_rows_that_hardly_move_on_one_side_are_broken(share: float, tmp_path: Path) -> None:
    rows = round(share * ROWS)
    rng = np.random.default_rng(1)
    near = engines().map(lambda t, r: (t, -rng.uniform(5e-4, 2e-3, LENGTH)), range(rows))
    name, text, figures = first(near, tmp_path)
    assert (name, figures["rows"]) == ("broken_rows", rows)
    assert f"{rows} of them constant on one side" in text


@pytest.mark.parametrize(("side", "told", "drawn"), [(0, "old", "rollout"), (1, "rollout", "old")])
def test_the_side_that_holds_the_likeliest_token_is_told(side: int, told: str, drawn: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)

    def likeliest(values: Array) -> Array:
        return np.where(values < -1.0, np.log(rng.uniform(0.3, 0.9, LENGTH)), values)

    top1 = engines().map(lambda t, r: (likeliest(t), r) if side == 0 else (t, likeliest(r)), range(0, ROWS, 2))
    name, text, figures = first(top1, tmp_path)
    assert (name, figures["rows"]) == ("top1_recorded", ROWS // 2)
    assert f"rows {told}_log_probs never falls below -1.2" in text
    assert text.endswith(f"tokens that {drawn}_log_probs finds unlikely were likely to {told}_log_probs")
    floor, reach = (figures["rollout_floor"], figures["training_floor"])[:: 1 if side else -1]
    assert -1.21 < floor < -1.0
    assert reach == pytest.approx(-4.0, abs=0.1)


@pytest.mark.parametrize(("value", "said"), [(0.0, "0.0"), (-0.0003, "-0.0003")])
@pytest.mark.parametrize("rows", [5, 50])
def test_an_end_token_of_which_the_rollout_side_is_certain(value: float, said: str, rows: int, tmp_path: Path) -> None:
    ended = engines().map(lambda t, r: (np.append(t, -5.0), np.append(r, value)), range(rows))
    found = trial(ended, tmp_path)
    assert found.alarms == ["synthetic_eos"]
    assert found.causes[0].evidence == (
        f"the last scored token has rollout log-prob {said} in {rows} of 50 rows ({rows / ROWS:.0%}), where the "
        "trainer gives -5"
    )


def test_one_end_token_that_is_nearly_certain_is_chance(tmp_path: Path) -> None:
    ended = engines().map(lambda t, r: (np.append(t, -5.0), np.append(r, -0.0003)), [3])
    assert "synthetic_eos" not in trial(ended, tmp_path).alarms


@pytest.mark.parametrize("temperature", [0.5, 0.6, 0.8, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_three_tokens_show_the_temperature(temperature: float, seed: int, tmp_path: Path) -> None:
    """Logits 2, 1 and 0: raw log-probs are −0.4076, −1.4076 and −2.4076; equal neighbours are no padding."""
    blank = Recording((np.zeros(200),) * 64, (np.zeros(200),) * 64, (0,) * 64)
    drawn = few_tokens(blank, temperature, np.random.default_rng(seed))
    assert np.unique(np.concatenate(drawn.rollout).round(4)).tolist() == [-2.4076, -1.4076, -0.4076]
    found = trial(drawn, tmp_path)
    assert found.alarms == ["temperature"]
    assert 1 / found.causes[0].figures["slope"] == pytest.approx(temperature, abs=0.01)


def test_a_shift_of_all_ratios_is_no_temperature(tmp_path: Path) -> None:
    """Log-odds of likely tokens lie on a line as well then, but unlikely tokens move the same way."""
    shifted = engines().map(lambda t, r: (t - 0.5, r))
    assert "temperature" not in trial(shifted, tmp_path).alarms


def test_padding_is_told_from_chance(tmp_path: Path) -> None:
    padded = engines().map(lambda t, r: (np.append(t, np.full(9, -0.25)), np.append(r, np.full(9, -0.5))))
    assert "mask_too_wide" in trial(padded, tmp_path).alarms


@pytest.mark.parametrize("tail", [2, 9])
def test_tokens_of_which_both_sides_are_certain_are_no_padding(tail: int, tmp_path: Path) -> None:
    """As a top-p that both sides renormalise over leaves them; where no other token is so sure they are padding."""

    def end(t: Array, r: Array) -> tuple[Array, Array]:
        return np.append(t, np.zeros(tail)), np.append(r, np.zeros(tail))

    padded = trial(engines().map(end, range(5)), tmp_path)
    assert padded.alarms == ["mask_too_wide"]
    sure = engines().map(lambda t, r: (np.where(r > -0.02, 0.0, t), np.where(r > -0.02, 0.0, r)))
    assert not trial(sure.map(end, range(5)), tmp_path).alarms


def named(fault: str, base: str, strength: float, folder: Path) -> Trial:
    inject = next(f for f in FAULTS if f.name == fault).inject
    return trial(inject(sound(base), strength, np.random.default_rng(5)), folder)


@pytest.mark.parametrize("base", ["temperature_both", "llamacpp_q4"])
@pytest.mark.parametrize("strength", [0.05, 0.1])
def test_scattered_clusters_of_a_heavy_tail_are_no_stretch(base: str, strength: float, tmp_path: Path) -> None:
    alarms = named("routing in groups of one text", base, strength, tmp_path).alarms
    assert alarms[0] == "heavy_tail"
    assert not {"broken_rows", "mask_too_wide"} & set(alarms)


def test_noise_is_not_said_of_rows_that_are_left_out(tmp_path: Path) -> None:
    """A log-prob above 0 is an error that speaks for no cause."""
    spoilt = engines().map(lambda t, r: (t, np.append(0.7, r[1:])), [4, 9])
    name, text, _ = first(spoilt, tmp_path)
    assert name == "precision_noise"
    assert text.startswith("beside 2 faults of the data, in the rows that are left: even noise: mean |d| ")
