"""Correlations against NumPy's own, row by row."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_audit.audit.causes.kinds import RowKinds
from rollout_audit.audit.causes.sampled import LAGS, SampledRows
from rollout_audit.audit.passes import PassPlan, _sample
from tests.builders import CPU, ENGINE, chunk_of


def rows_of(training: list[np.ndarray], rollout: list[np.ndarray]) -> SampledRows:
    lengths = [len(t) for t in training]
    columns = {
        "training": np.concatenate(training),
        "rollout": np.concatenate(rollout),
        "position": np.concatenate([np.arange(n) for n in lengths]).astype(float),
        "file": np.zeros(sum(lengths)),
        "row": np.repeat(np.arange(len(lengths)) * 3.0, lengths),
        "step": np.zeros(sum(lengths)),
    }
    return SampledRows.of_columns(columns)


@pytest.fixture
def noisy() -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    rollout = [-rng.exponential(1.0, n) - 0.01 for n in (40, 1, 25, 60)]
    return [r + rng.normal(0, 0.005, len(r)) for r in rollout], rollout


@pytest.mark.parametrize("lag", LAGS)
def test_lag_correlations(noisy: tuple[list[np.ndarray], list[np.ndarray]], lag: int) -> None:
    found = rows_of(*noisy)
    assert found.number.tolist() == [0, 3, 6, 9]
    for i, (t, r) in enumerate(zip(*noisy, strict=True)):
        x, y = np.exp(t / 2), np.exp(r / 2)
        pairs = [(x[j], y[j + lag]) for j in range(len(t)) if 0 <= j + lag < len(t)]
        assert found.lag_moments[LAGS.index(lag), i, 0] == len(pairs)
        exact = np.corrcoef(np.array(pairs).T)[0, 1] if len(pairs) > 1 else 0.0
        assert found.row_correlations[LAGS.index(lag), i] == pytest.approx(exact, abs=1e-9)


def test_a_gap_in_the_mask_is_no_neighbour(noisy: tuple[list[np.ndarray], list[np.ndarray]]) -> None:
    columns = {name: np.array([0.0, 1.0, 5.0, 6.0]) for name in ("position",)}
    same = {name: np.array([-1.0, -2.0, -0.5, -0.1]) for name in ("training", "rollout")}
    found = SampledRows.of_columns(columns | same | dict.fromkeys(("file", "row", "step"), np.zeros(4)))
    assert found.lag_moments[LAGS.index(1), 0, 0] == 2


def test_partners_are_found(noisy: tuple[list[np.ndarray], list[np.ndarray]]) -> None:
    training, rollout = noisy
    exchanged = [rollout[3][:40], rollout[1], rollout[2], np.append(rollout[0], np.full(20, -0.7))]
    kinds = RowKinds(rows_of(training, exchanged))
    assert kinds.exchanged.tolist() == [True, False, False, True]
    assert kinds.partners.partner[[0, 3]].tolist() == [3, 0]


def test_rows_that_begin_alike_are_told_by_their_rest(noisy: tuple[list[np.ndarray], list[np.ndarray]]) -> None:
    training, rollout = noisy
    first, second = (
        [np.concatenate([side[3][:40], side[0][rest]]) for side in (training, rollout)]
        for rest in (slice(0, 20), slice(20, 40))
    )
    right = RowKinds(rows_of([first[0], second[0]], [first[1], second[1]]))
    wrong = RowKinds(rows_of([first[0], second[0]], [second[1], first[1]]))
    assert (right.exchanged.tolist(), wrong.exchanged.tolist()) == ([False] * 2, [True] * 2)
    assert wrong.partners.partner.tolist() == [1, 0]
    assert set(wrong.rows.rests.first.tolist()) <= {30, 37, 45}  # eighths of 60 around the 40 that they share


def test_rows_of_one_text_are_not_exchanged(noisy: tuple[list[np.ndarray], list[np.ndarray]]) -> None:
    """The first was spoilt on the rollout side, so that it fits the others better than itself."""
    training, rollout = noisy
    rng = np.random.default_rng(5)
    again = [np.minimum(rollout[0] + rng.normal(0, 0.01, len(rollout[0])), -1e-6) for _ in range(3)]
    spoilt = np.where(rng.random(len(again[0])) < 0.4, -6.0, again[0])
    kinds = RowKinds(rows_of([training[0]] * 3, [spoilt, *again[1:]]))
    assert kinds.own_fit[0] < 0.5
    assert kinds.exchanged.tolist() == [False] * 3


def test_no_row_has_no_partner() -> None:
    columns = dict.fromkeys(("training", "rollout", "position", "file", "row", "step"), np.empty(0))
    assert RowKinds(SampledRows.of_columns(columns)).exchanged.tolist() == []


def test_one_kind_a_row(noisy: tuple[list[np.ndarray], list[np.ndarray]]) -> None:
    training, rollout = noisy
    kinds = RowKinds(rows_of([training[0][1:], *training[1:]], [rollout[0][:-1], *rollout[1:]]))
    assert kinds.shifted.tolist() == [True, False, False, False]
    assert kinds.flagged.tolist() == kinds.shifted.tolist()


def test_blocks_of_rows_are_sampled_together() -> None:
    chunk = chunk_of([[0.1]] * 64)
    taken = _sample(chunk, PassPlan({}, ENGINE, 3, [0], CPU))["row"].astype(int).tolist()
    assert taken == [*range(8), *range(24, 32), *range(48, 56)]
