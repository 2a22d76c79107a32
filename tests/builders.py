"""Small dumps in memory, and Hypothesis strategies for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from rollout_audit.audit.pairs import Pair
from rollout_audit.audit.passes import PassPlan, PassState, chunk_state
from rollout_audit.corrections.cuts import NOT_IN_ROWS, at_most
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Over,
    Rows,
    Rule,
    Sign,
    Statistic,
    Weight,
)
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.statistics.plan import PairPlan
from rollout_audit.statistics.scope import Evidence, Scope

ENGINE = Pair("engine", "old_log_probs", "rollout_log_probs", "")
CPU = torch.device("cpu")


def chunk_of(
    log_ratios: Sequence[Sequence[float]],
    masks: Sequence[Sequence[int]] | None = None,
    steps: Sequence[int] | None = None,
    rollout: float = -1.0,
    first_row: int = 0,
    advantages: Sequence[float] | None = None,
) -> Chunk:
    """Rows with those log-ratios: the rollout log-prob is one constant, so d is exact where the sum is."""
    lengths = [len(row) for row in log_ratios]
    d = np.array([x for row in log_ratios for x in row], dtype=np.float64)
    mu = np.full(len(d), rollout)
    mask = np.ones(len(d), dtype=bool) if masks is None else np.array([m for row in masks for m in row], dtype=bool)
    rows = len(log_ratios)
    return Chunk(
        file=0,
        row_numbers=np.arange(first_row, first_row + rows),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        steps=np.zeros(rows, dtype=np.int64) if steps is None else np.array(steps, dtype=np.int64),
        response_mask=mask,
        rollout_log_probs=mu,
        old_log_probs=mu + d,
        reward=np.arange(first_row, first_row + rows, dtype=np.float64) % 3,
        advantages=None if advantages is None else np.array(advantages, dtype=np.float64),
    )


def part_of(chunk: Chunk, start: int, stop: int) -> Chunk:
    """Rows [start, stop) of a chunk, as a reader with another chunk size would give them."""
    tokens = slice(int(chunk.offsets[start]), int(chunk.offsets[stop]))
    assert chunk.old_log_probs is not None
    assert chunk.reward is not None
    return Chunk(
        file=chunk.file,
        row_numbers=chunk.row_numbers[start:stop],
        offsets=chunk.offsets[start : stop + 1] - chunk.offsets[start],
        steps=chunk.steps[start:stop],
        response_mask=chunk.response_mask[tokens],
        rollout_log_probs=chunk.rollout_log_probs[tokens],
        old_log_probs=chunk.old_log_probs[tokens],
        reward=chunk.reward[start:stop],
        advantages=None if chunk.advantages is None else chunk.advantages[tokens],
    )


def pass_plan(
    corrections: dict[str, Correction], extra_cuts: Sequence[float] = (), token_caps: tuple[float, ...] = ()
) -> PassPlan:
    plan = PairPlan(corrections, tuple(extra_cuts), token_caps=token_caps)
    return PassPlan({ENGINE: plan}, ENGINE, 1, [0], CPU)


def evidence_of(state: PassState, plan: PassPlan) -> Evidence:
    return Evidence(state.pairs["engine"], plan.pairs[ENGINE], state.common.columns())


def scope_of(chunks: Sequence[Chunk], plan: PassPlan, step: int | None = None) -> Scope:
    state = PassState()
    for chunk in chunks:
        state.absorb(chunk_state(chunk, plan))
    return evidence_of(state, plan).scope(step)


LOG_RATIOS = st.one_of(
    st.floats(-0.2, 0.2),
    st.sampled_from([0.0, -0.0, math.log(2.0), at_most(2.0), math.log(0.5), 0.0078125, -0.0625, 1e-12, 3.0, -3.0]),
    st.floats(-25.0, 25.0),
)
ROWS = st.lists(st.lists(LOG_RATIOS, min_size=0, max_size=8), min_size=1, max_size=8)


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    rows = draw(ROWS)
    masks = [draw(st.lists(st.integers(0, 1), min_size=len(r), max_size=len(r))) for r in rows]
    steps = sorted(draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows))))
    return chunk_of(rows, masks, steps, rollout=0.0)


@st.composite
def chunks_with_advantages(draw: st.DrawFn) -> Chunk:
    chunk = draw(chunks())
    values = st.one_of(st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-2, 2))
    drawn = draw(st.lists(values, min_size=chunk.tokens, max_size=chunk.tokens))
    return replace(chunk, advantages=np.array(drawn, dtype=np.float64))


@st.composite
def splits(draw: st.DrawFn, rows: int) -> list[int]:
    """Row numbers at which to cut, both ends included."""
    inner = draw(st.lists(st.integers(0, rows), max_size=4))
    return sorted({0, rows, *inner})


@st.composite
def weights(draw: st.DrawFn, ratios: Sequence[float]) -> Weight:
    level = draw(st.sampled_from(list(Level)))
    if level is Level.NONE:
        return Weight()
    bound = draw(st.sampled_from(list(Bound)))
    lower, upper = sorted(draw(st.tuples(thresholds(ratios), thresholds(ratios))))
    more = {
        "normalise": draw(st.booleans()),
        "clamp": draw(st.sampled_from([20.0, 10.0, None])),
        "mean_over": draw(st.sampled_from(Rows)),
        "overflow": draw(st.sampled_from([None, None, 0.1, 3.0])),
    }
    if bound is Bound.NONE:
        return Weight(level, **more)
    return Weight(level, bound, None if bound is Bound.TRUNCATE else lower, upper, **more)


def thresholds(ratios: Sequence[float]) -> st.SearchStrategy[float]:
    """Anywhere, and exactly on a ratio that occurs."""
    hits = [r for r in ratios if 1e-6 < r < 1e6]
    anywhere = st.floats(0.05, 20.0)
    return st.one_of(anywhere, st.sampled_from(hits)) if hits else anywhere


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """What the streamed tables hold."""
    statistic = draw(st.sampled_from(list(Statistic)))
    by_token = (Aggregation.TOKEN, Aggregation.SEGMENT_MEAN)
    every = [a for a in Aggregation if a is not Aggregation.BATCH_MEAN]
    aggregation = draw(st.sampled_from(by_token if statistic in NOT_IN_ROWS else every))
    return Rule(statistic, aggregation, *draw(bounds(statistic)), draw(clamps(statistic)))


@st.composite
def bounds(draw: st.DrawFn, statistic: Statistic) -> tuple[float | None, float]:
    if statistic in (Statistic.K1, Statistic.PROB_DIFF, Statistic.BINARY_KL):
        return -draw(st.floats(0, 1)), draw(st.floats(0, 1))
    if statistic is Statistic.RATIO:
        return draw(st.floats(0.1, 1)), draw(st.floats(1, 9))
    if statistic is Statistic.MULT_ERROR:
        return None, draw(st.floats(0.5, 9))
    return draw(st.sampled_from([None, 0.01])), draw(st.floats(0.01, 2))


def clamps(statistic: Statistic) -> st.SearchStrategy[float | None]:
    return st.sampled_from([None] if statistic is Statistic.MULT_ERROR else [20.0, None])


@st.composite
def direct_rules(draw: st.DrawFn) -> Rule:
    """What they do not: signs of advantages, remaining tokens, the order of the batch, any statistic of a row."""
    statistic = draw(st.sampled_from(list(Statistic)))
    clamp = draw(clamps(statistic))
    aggregation = draw(st.sampled_from(list(Aggregation)))
    if aggregation is Aggregation.BATCH_MEAN:
        return Rule(statistic, aggregation, None, draw(st.floats(0.001, 1)), clamp, draw(st.sampled_from(list(Sign))))
    extra = draw(st.sampled_from(list(Sign))), draw(st.sampled_from(list(Over)))
    return Rule(statistic, aggregation, *draw(bounds(statistic)), clamp, *extra)


@st.composite
def direct_corrections(draw: st.DrawFn, ratios: Sequence[float]) -> Correction:
    outside = draw(st.one_of(st.none(), direct_rules().filter(lambda rule: rule.aggregation.per_row)))
    weight = replace(
        draw(weights(ratios)),
        token_clamp=draw(st.sampled_from([None, 10.0])),
        over=draw(st.sampled_from(list(Over))),
        outside=outside and replace(outside, sign=Sign.ANY),
    )
    found = draw(st.lists(st.one_of(direct_rules(), rules()), max_size=3))
    return Correction(
        weight, tuple(found), draw(st.sampled_from([None, 1e-4])), draw(st.sampled_from(list(Denominator)))
    )


@st.composite
def corrections(draw: st.DrawFn, ratios: Sequence[float]) -> Correction:
    veto = draw(st.one_of(st.none(), st.just(1e-4), thresholds(ratios)))
    return Correction(draw(weights(ratios)), tuple(draw(st.lists(rules(), max_size=2))), veto)
