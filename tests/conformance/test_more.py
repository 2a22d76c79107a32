"""Every value of expected_more.parquet: eleven further trainers, their metrics and what is left of their weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import polars as pl
import pytest

import rollout_audit as ra
from tests.conformance.test_trainers import CASES, agrees, dump_of, faults_of_values, load, streamed

VALUES = 34_884
KEPT_BY_MASK = {"slime"}
"""Whose kept_* count the mask alone: its IcePop zeroes weights and leaves the mask"""
REFUSED = "*"
"""Stands where the trainer itself raised"""

MORE = load("expected_more.parquet")
TRAINERS = sorted(MORE["trainer"].unique())


def configurations(case: str, trainer: str) -> Iterator[tuple[dict[str, object], dict[str, float]]]:
    for (config,), part in MORE.filter(case=case, trainer=trainer).group_by("config", maintain_order=True):
        yield json.loads(str(config)), dict(part.select("metric", "value").iter_rows())


def is_derived(metric: str) -> bool:
    return metric.startswith("tensor/")


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("case", CASES)
def test_every_value_agrees(case: str, trainer: str) -> None:
    found, looked_at = list[str](), 0
    for config, values in configurations(case, trainer):
        looked_at += len(values)
        found += [f"{config}: {fault}" for fault in faults_of(case, trainer, config, values)]
    assert not found, f"{len(found)} of {looked_at} disagree:\n" + "\n".join(found[:20])
    assert looked_at == MORE.filter(case=case, trainer=trainer).height


def faults_of(case: str, trainer: str, config: dict[str, object], values: dict[str, float]) -> list[str]:
    if REFUSED in values:
        return [] if refuses(case, trainer, config) else ["the trainer refuses it"]
    logged = {name: value for name, value in values.items() if not is_derived(name)}
    left = {name: value for name, value in values.items() if is_derived(name)}
    faults = faults_of_logged(streamed(case, trainer, config), logged)
    return faults + (faults_of_left(left_of_weights(case, trainer, config), left) if left else [])


def refuses(case: str, trainer: str, config: dict[str, object]) -> bool:
    """With an error that names a setting of the configuration."""
    with pytest.raises(ra.ConfigError) as caught:
        streamed(case, trainer, config)
    return any(key.endswith(caught.value.key) and value == caught.value.value for key, value in config.items())


def faults_of_logged(got: ra.Metrics, expected: dict[str, float]) -> list[str]:
    """A line for each that disagrees; NaN (a standard deviation of one value) is null here, with its reason."""
    undefined = {name for name, value in expected.items() if math.isnan(value)}
    nulls = [f"{name} is {got[name]} instead of null" for name in undefined if not got.reasons.get(name)]
    shown = ra.Metrics({name: value for name, value in got.items() if name not in undefined and value is not None})
    return nulls + faults_of_values(shown, {n: v for n, v in expected.items() if n not in undefined})


def faults_of_left(got: dict[str, float], expected: dict[str, float]) -> list[str]:
    return [f"{name} is {got[name]} instead of {v}" for name, v in expected.items() if not agrees(name, got[name], v)]


def left_of_weights(case: str, trainer: str, config: dict[str, object]) -> dict[str, float]:
    """Sum, maximum and counts over valid tokens of weight times mask (MORE.md, "Derived metrics")."""
    applied = ra.apply_correction(dump_of(case), config, trainer=trainer)
    rows = [
        (weights[valid], mask[valid]) for (_, weights, mask), valid in zip(applied, valid_tokens(case), strict=True)
    ]
    left = np.concatenate([np.where(mask, weights, 0.0) for weights, mask in rows]).astype(np.float64)
    kept = [mask if trainer in KEPT_BY_MASK else mask & (weights != 0) for weights, mask in rows]
    return {
        "tensor/weight_sum": float(left.sum()),
        "tensor/weight_max": float(left.max(initial=0.0)),
        "tensor/kept_tokens": float(sum(map(np.count_nonzero, kept))),
        "tensor/kept_sequences": float(sum(map(np.any, kept))),
    }


@cache
def valid_tokens(case: str) -> list[np.ndarray]:
    return [row.response_mask for row in dump_of(case).rows()]


def test_the_cases_hold_every_value_once() -> None:
    assert sum(MORE.filter(case=case, trainer=trainer).height for case in CASES for trainer in TRAINERS) == VALUES
    assert MORE.select(pl.struct("case", "trainer", "config", "metric").is_unique().all()).item()
