"""A top-k drawn from explicit logits: the mass that it keeps differs from token to token."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import rollout_audit as ra

ROWS, LENGTH, VOCABULARY = 40, 150, 300
Array = NDArray[np.float64]


def log_softmax(logits: Array) -> Array:
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))


def drawn(k: int, seed: int = 0, *, raw: bool = False) -> tuple[Array, Array]:
    """[rows, length] log-probs of a sampler that draws from its k likeliest tokens, and of a trainer close by.

    With `raw` the sampler reports what it had before it cut, and the trainer is cut to the same tokens.
    """
    rng = np.random.default_rng(seed)
    spread = rng.uniform(1.0, 7.0, (ROWS, LENGTH, 1))
    logits = rng.normal(0.0, 1.0, (ROWS, LENGTH, VOCABULARY)) * spread
    least = np.sort(logits, axis=-1)[..., -k, None]
    sampler = log_softmax(np.where(logits >= least, logits, -np.inf))
    near = logits + rng.normal(0.0, 0.03, logits.shape)
    trainer = log_softmax(np.where(logits >= least, near, -np.inf) if raw else near)
    chosen = (np.exp(sampler).cumsum(axis=-1) > rng.random((ROWS, LENGTH, 1))).argmax(axis=-1)[..., None]
    reported = log_softmax(logits) if raw else sampler
    return tuple(np.take_along_axis(side, chosen, axis=-1)[..., 0] for side in (reported, trainer))  # type: ignore[return-value]


@pytest.mark.parametrize(("k", "kept"), [(5, 0.71), (20, 0.86), (50, 0.93), (VOCABULARY, None)])
def test_a_top_k_that_one_side_renormalises_is_named(k: int, kept: float | None, tmp_path: Path) -> None:
    sampler, trainer = drawn(k)
    table = {"rollout_log_probs": sampler.tolist(), "old_log_probs": trainer.tolist()}
    pq.write_table(pa.table(table), tmp_path / "dump.parquet")
    causes = {c.cause: c for c in ra.analyze(ra.open_dump(tmp_path), presets=[], sweep=False).causes}
    if kept is None:
        assert not {"truncated_sampling", "stale_weights"} & causes.keys()
        return
    assert next(iter(causes)) == "truncated_sampling"
    assert "stale_weights" not in causes
    # E over the sampler of π/μ is the mass of π that the sampler can draw
    assert float(np.exp(trainer - sampler).mean()) == pytest.approx(kept, abs=0.01)
    (said,) = re.findall(r"mean ratio (?:is )?([\d.]+\d)", causes["truncated_sampling"].evidence)
    assert float(said) == pytest.approx(kept, abs=0.01)


@pytest.mark.parametrize(("k", "ratio"), [(5, 1.91), (20, 1.27), (50, 1.10)])
def test_a_top_k_of_the_trainer_alone_is_named(k: int, ratio: float, tmp_path: Path) -> None:
    reported, trainer = drawn(k, raw=True)
    table = {"rollout_log_probs": reported.tolist(), "old_log_probs": trainer.tolist()}
    pq.write_table(pa.table(table), tmp_path / "dump.parquet")
    first, *others = ra.analyze(ra.open_dump(tmp_path), presets=[], sweep=False).causes
    assert (first.cause, first.severity) == ("truncated_sampling", "warning")
    assert "stale_weights" not in {cause.cause for cause in others}
    # of other contexts of the same kind the mean of 1 over the mass of the k likeliest is 1.917, 1.271 and 1.104
    assert float(np.exp(trainer - reported).mean()) == pytest.approx(ratio, abs=0.01)
    (said,) = re.findall(r"mean ratio (?:is )?([\d.]+\d)", first.evidence)
    assert float(said) == pytest.approx(ratio, abs=0.01)
    assert "the training side is renormalised" in first.evidence
