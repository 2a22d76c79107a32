"""Every value of expected.parquet: what trainers' own functions gave on the dumps here (README.md)."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import rollout_audit as ra
from rollout_audit.corrections.tokens import Tokens
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers.base import sorted_order
from rollout_audit.trainers.registry import get_trainer

HERE = Path(__file__).parent
VALUES = 48_775
TOOL_NAMES = {"verl-legacy": "verl-2025-10"}
COLUMNS = ("case", "trainer", "config", "metric")


def load(name: str) -> pl.DataFrame:
    return pl.read_parquet(HERE / name).with_columns(pl.col(COLUMNS).cast(pl.String))


EXPECTED = load("expected.parquet")
CASES = sorted(EXPECTED["case"].unique())


@cache
def rows_of(case: str) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    frame = pl.read_parquet(HERE / "dumps" / case / "step_000000.parquet")
    names = ("old_log_probs", "rollout_log_probs", "response_mask")
    return [
        (np.asarray(old, np.float64), np.asarray(rollout, np.float64), np.asarray(mask).astype(bool))
        for old, rollout, mask in frame.select(names).iter_rows()
    ]


def pack(rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Tokens:
    masks = [mask for _, _, mask in rows]
    lengths = torch.tensor([int(mask.sum()) for mask in masks], dtype=torch.int64)
    training, rollout = (torch.from_numpy(np.concatenate([row[i][row[2]] for row in rows])) for i in (0, 1))
    return Tokens(lengths, training, rollout, segment_lengths=lengths[lengths > 0])


@cache
def chunks_of(case: str, parts: int) -> list[Tokens]:
    rows = rows_of(case)
    bounds = np.linspace(0, len(rows), min(parts, len(rows)) + 1).astype(int)
    return [pack(rows[start:end]) for start, end in pairwise(bounds)]


@cache
def dump_of(case: str) -> ra.Dump:
    return ra.open_dump(HERE / "dumps" / case)


def streamed(case: str, trainer_name: str, config: dict[str, object]) -> Metrics:
    """Through the public function, in chunks of some rows."""
    name = TOOL_NAMES.get(trainer_name, trainer_name)
    return ra.trainer_metrics(dump_of(case), name, config, chunk_tokens=2000)


def in_parts(case: str, trainer_name: str, config: dict[str, object], parts: int) -> Metrics:
    trainer = get_trainer(TOOL_NAMES.get(trainer_name, trainer_name))
    parsed = trainer.configure(config)
    chunks = chunks_of(case, parts)
    columns = [trainer.row_columns(chunk, parsed) for chunk in chunks]
    rows = {name: np.concatenate([part[name].numpy() for part in columns]) for name in columns[0]}
    order = sorted_order(np.concatenate([chunk.log_ratio.numpy() for chunk in chunks]))
    return trainer.metrics(rows, parsed, order)


def agrees(metric: str, got: float | None, expected: float) -> bool:
    if got is None:
        return False
    relative = 1e-3 if re.search(r"_p\d\d$", metric) else 1e-6
    # verl's +1e-8 in denominators leaves rounding noise of a standard deviation that is 0 in exact arithmetic
    absolute = 1e-4 if metric.endswith("_std") and abs(expected) < 1e-6 else 1e-8
    return abs(got - expected) <= max(absolute, relative * abs(expected))


def compare(case: str, values: pl.DataFrame) -> tuple[int, list[str]]:
    """How many values were looked at, and a line for each that disagrees."""
    looked_at, found = 0, list[str]()
    for (trainer, config), part in values.filter(case=case).group_by("trainer", "config", maintain_order=True):
        got = streamed(case, str(trainer), json.loads(str(config)))
        expected = dict(part.select("metric", "value").iter_rows())
        if "*" in expected:
            faults = faults_of_zero_weights(got, usual_keys(str(trainer), str(config)))
        else:
            faults = faults_of_values(got, expected)
        looked_at += len(expected)
        found += [f"{case} {trainer} {config}: {fault}" for fault in faults]
    return looked_at, found


def usual_keys(trainer: str, config: str) -> set[str]:
    return set(EXPECTED.filter(trainer=trainer, config=config)["metric"]) - {"*"}


def faults_of_values(got: Metrics, expected: dict[str, float]) -> list[str]:
    keys = [f"keys {sorted(set(got) ^ set(expected))}"] if set(got) != set(expected) else []
    return keys + [
        f"{metric} is {got.get(metric)} {got.reasons.get(metric, '')} instead of {value}"
        for metric, value in expected.items()
        if not agrees(metric, got.get(metric), value)
    ]


def faults_of_zero_weights(got: Metrics, usual: set[str]) -> list[str]:
    """README (a): all keys as usual and the effective sample size 0.0 with a reason."""
    ess = "rollout_corr/rollout_is_eff_sample_size"
    faults = [f"keys {sorted(set(got) ^ usual)}"] if set(got) != usual else []
    if got[ess] != 0.0 or not got.reasons.get(ess):
        faults.append(f"{ess} is {got[ess]} ({got.reasons.get(ess)!r})")
    return faults + [f"{name} is null" for name, value in got.items() if value is None]


@pytest.mark.parametrize("case", CASES)
def test_every_value_agrees(case: str) -> None:
    looked_at, found = compare(case, EXPECTED)
    assert not found, f"{len(found)} of {looked_at} disagree:\n" + "\n".join(found[:20])
    assert looked_at == EXPECTED.filter(case=case).height


def test_the_cases_hold_every_value_once() -> None:
    assert sum(EXPECTED.filter(case=case).height for case in CASES) == VALUES
    assert EXPECTED.select(COLUMNS).is_unique().all()


@pytest.mark.parametrize("case", ["fully_masked_rows", "multi_turn", "one_sequence"])
def test_chunking_changes_nothing(case: str) -> None:
    for trainer, text in EXPECTED.select("trainer", "config").unique().iter_rows():
        config = json.loads(text)
        whole, pieces = (in_parts(case, trainer, config, parts) for parts in (1, 7))
        assert whole == pieces
