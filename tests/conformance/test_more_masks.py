"""expected_more.parquet for the trainers whose masks depend on advantages, on each other or on the batch (MORE.md)."""

from __future__ import annotations

import json
import math

import numpy as np
import polars as pl
import pytest

import rollout_audit as ra
from tests.conformance.test_trainers import HERE, dump_of, faults_of_values, load, rows_of

TRAINERS = ("skyrl", "areal", "roll", "ms-swift", "prime-rl")
VALUES = 14_754
EXPECTED = load("expected_more.parquet").filter(pl.col("trainer").is_in(TRAINERS))
DERIVED = pl.col("metric").str.starts_with("tensor/")
CONFIGS = {name: sorted(EXPECTED.filter(trainer=name)["config"].unique()) for name in TRAINERS}
CASES = sorted(EXPECTED["case"].unique())


def values_of(case: str, trainer: str, config: str, chosen: pl.Expr) -> dict[str, float]:
    """What the trainer gave; nothing where it logs nothing."""
    values = EXPECTED.filter(chosen, case=case, trainer=trainer, config=config)
    return dict(values.select("metric", "value").iter_rows())


def faults_of(got: ra.Metrics, expected: dict[str, float]) -> list[str]:
    """A line for each that disagrees; NaN (a standard deviation of one value) is null here, with its reason."""
    undefined = {name for name, value in expected.items() if math.isnan(value)}
    nulls = [f"{name} is {got[name]} instead of null" for name in undefined if not got.reasons.get(name)]
    shown = ra.Metrics({name: value for name, value in got.items() if name not in undefined and value is not None})
    return nulls + faults_of_values(shown, {n: v for n, v in expected.items() if n not in undefined})


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("case", CASES)
def test_every_value_agrees(case: str, trainer: str) -> None:
    found = []
    for config in CONFIGS[trainer]:
        got = ra.trainer_metrics(dump_of(case), trainer, json.loads(config), chunk_tokens=2000)
        found += [f"{config}: {fault}" for fault in faults_of(got, values_of(case, trainer, config, ~DERIVED))]
    assert not found, f"{len(found)} disagree:\n" + "\n".join(found[:20])


def derived(case: str, trainer: str, config: dict[str, object]) -> dict[str, float]:
    """MORE.md, "Derived metrics": over valid tokens, e = weight × mask."""
    weights, left = list[np.ndarray](), list[int]()
    rows = zip(ra.apply_correction(dump_of(case), config, trainer=trainer), rows_of(case), strict=True)
    for (_, weight, mask), (_, _, valid) in rows:
        weights.append(np.where(mask, weight, 0.0)[valid])
        left.append(int(np.count_nonzero(weights[-1])))
    applied = np.concatenate(weights).astype(np.float64)
    return {
        "tensor/weight_sum": float(applied.sum()),
        "tensor/weight_max": float(applied.max(initial=0.0)),
        "tensor/kept_tokens": float(sum(left)),
        "tensor/kept_sequences": float(np.count_nonzero(left)),
    }


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("case", CASES)
def test_weights_and_masks_agree(case: str, trainer: str) -> None:
    found = []
    for config in CONFIGS[trainer]:
        expected = values_of(case, trainer, config, DERIVED)
        got = {n: v for n, v in derived(case, trainer, json.loads(config)).items() if n in expected}
        found += [f"{config}: {fault}" for fault in faults_of(ra.Metrics(got), expected)]
    assert not found, f"{len(found)} disagree:\n" + "\n".join(found[:20])


def test_the_cases_hold_every_value_once() -> None:
    assert EXPECTED.height == VALUES
    assert {path.name for path in (HERE / "dumps").iterdir()} >= set(CASES)
