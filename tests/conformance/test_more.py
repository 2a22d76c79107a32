"""Every value of expected_more.parquet: eleven further trainers, their metrics and what is left of their weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache

import numpy as np
import polars as pl
import pytest

import rollout_audit as ra
from tests.conformance.test_trainers import CASES, agrees, dump_of, faults_of_values, load, streamed

TRAINERS = ("slime", "trl", "nemo-rl", "openrlhf", "open-instruct", "verl-2026-01")
"""Those that are done; their configurations, metrics and weights are all compared"""
KEPT_BY_MASK = {"slime"}
"""Whose kept_* count the mask alone: its IcePop zeroes weights and leaves the mask"""

MORE = load("expected_more.parquet")


def configurations(case: str, trainer: str) -> Iterator[tuple[dict[str, object], dict[str, float | None]]]:
    for (config,), part in MORE.filter(case=case, trainer=trainer).group_by("config", maintain_order=True):
        yield json.loads(str(config)), dict(part.select("metric", "value").iter_rows())


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("case", CASES)
def test_every_metric_agrees(case: str, trainer: str) -> None:
    found, looked_at = [], 0
    for config, values in configurations(case, trainer):
        looked_at += 1
        expected = {name: value for name, value in values.items() if not name.startswith("tensor/")}
        found += [f"{config}: {fault}" for fault in faults_of(case, trainer, config, expected)]
    assert not found, "\n".join(found[:20])
    assert looked_at


def faults_of(case: str, trainer: str, config: dict[str, object], expected: dict[str, float | None]) -> list[str]:
    if "*" not in expected:
        return faults_of_values(streamed(case, trainer, config), expected)
    with pytest.raises(ra.ConfigError) as caught:
        streamed(case, trainer, config)
    named = any(key.endswith(caught.value.key) and value == caught.value.value for key, value in config.items())
    return [] if named else [f"{caught.value} does not name a setting"]


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("case", CASES)
def test_what_is_left_of_the_weights_agrees(case: str, trainer: str) -> None:
    found, looked_at = [], 0
    for config, values in configurations(case, trainer):
        if "*" in values:
            continue
        got = left_of_weights(case, trainer, config)
        for metric, value in values.items():
            if metric.startswith("tensor/"):
                looked_at += 1
                assert value is not None
                if not agrees(metric, got[metric], value):
                    found.append(f"{config}: {metric} is {got[metric]} instead of {value}")
    assert not found, "\n".join(found[:20])
    assert looked_at


def left_of_weights(case: str, trainer: str, config: dict[str, object]) -> dict[str, float]:
    """Sum, maximum and counts over valid tokens of weight times mask (MORE.md, "Derived metrics")."""
    applied = ra.apply_correction(dump_of(case), config, trainer=trainer)
    rows = [
        (weights[valid], mask[valid]) for (_, weights, mask), valid in zip(applied, valid_tokens(case), strict=True)
    ]
    left = np.concatenate([weights * mask for weights, mask in rows]).astype(np.float64)
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


def test_the_trainers_that_are_done_are_in_the_data() -> None:
    assert set(TRAINERS) <= set(MORE["trainer"].unique())
    assert MORE.select(pl.struct("case", "trainer", "config", "metric").is_unique().all()).item()
