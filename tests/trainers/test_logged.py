"""Every name that a trainer logs is explained, with its prefix and without, by the trainer that logs it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from rollout_audit.reports.catalogue import CATALOGUE, explanation
from rollout_audit.trainers.logged import LOGGED, logged_names
from rollout_audit.trainers.registry import TRAINERS, get_trainer
from tests.trainers.test_trainer_dialects import CONFIGS, metrics_of

CONFORMANCE = Path(__file__).parents[1] / "conformance"
OURS = ("tensor/", "*")
RUN = [
    ({"verl-legacy": "verl-2025-10"}.get(trainer, trainer), metric)
    for trainer, metric in pl.concat(
        pl.read_parquet(CONFORMANCE / name).select(pl.col("trainer", "metric").cast(pl.String))
        for name in ("expected.parquet", "expected_more.parquet")
    )
    .unique()
    .sort("trainer", "metric")
    .rows()
    if not metric.startswith(OURS)
]
"""What the trainers' own code logged"""


def trainers_of(name: str) -> set[str]:
    return {trainer for one, _ in logged_names(name) for trainer in one.trainers}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_whatever_its_own_code_logged_is_explained(trainer: str) -> None:
    names = [metric for name, metric in RUN if name == trainer]
    assert names or trainer == "verl-2025-11"
    missing = [name for name in names if trainer not in trainers_of(name)]
    assert missing == []


@pytest.mark.parametrize(("name", "config"), CONFIGS)
def test_whatever_the_dialect_gives_is_explained(name: str, config: dict[str, object]) -> None:
    got = metrics_of(name, config, [[[0.1, -0.2], [0.3]]])
    assert [metric for metric in got if name not in trainers_of(metric)] == []


@pytest.mark.parametrize("trainer", TRAINERS)
def test_counterparts_are_among_them(trainer: str) -> None:
    assert all(trainer in trainers_of(name) for name in get_trainer(trainer).counterparts)


def test_each_trainer_of_the_table_exists() -> None:
    assert {trainer for one in LOGGED for trainer in one.trainers} == set(TRAINERS)


@pytest.mark.parametrize(
    ("given", "full", "trainers"),
    [
        ("rollout_corr/kl", "rollout_corr/kl", {"verl", "verl-2026-01", "verl-2025-11"}),
        ("mis_kl", "mis_kl", {"slime", "miles"}),
        ("train/mis_kl", "mis_kl", {"slime", "miles"}),
        ("tis_clipfrac", "train/tis_clipfrac", {"slime", "miles"}),
        ("loss_metrics/is_ratio_std", "policy/loss_metrics/is_ratio_std", {"skyrl"}),
        ("is_ratio_mean", "policy/loss_metrics/is_ratio_mean", {"skyrl"}),
        ("train/token_mult_prob_error", "token_mult_prob_error", {"nemo-rl"}),
        ("rollout_is_veto_fraction", "rollout_corr/rollout_is_veto_fraction", {"verl-2025-11", "verl-2025-10"}),
        ("rollout_rs_token_k1_seq_max", "rollout_corr/rollout_rs_token_k1_seq_max", {"verl", "verl-2026-01"}),
    ],
)
def test_with_its_prefix_the_end_of_it_or_none(given: str, full: str, trainers: set[str]) -> None:
    assert trainers_of(given) == trainers
    assert full in {spelling for _, spelling in logged_names(given)}


def test_the_bare_name_is_that_of_several() -> None:
    assert {"verl", "verl-2025-10", "slime", "miles", "ms-swift"} <= trainers_of("kl")
    assert "openrlhf" not in trainers_of("kl")


def test_a_native_name_stays_native() -> None:
    assert explanation("chi2_token") is CATALOGUE["chi2_token"]
    assert explanation("kept.ess") is CATALOGUE["ess"]
