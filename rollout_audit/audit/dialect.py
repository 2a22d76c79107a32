"""The figures one trainer would have logged for a dump, streamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray

from rollout_audit.audit.batches import batch_cuts
from rollout_audit.audit.idle import Work, work_columns, work_of
from rollout_audit.audit.instead import Instead, expected, instead_columns, instead_of
from rollout_audit.audit.pairs import Pair, pair_for, pairs_in
from rollout_audit.audit.passes import keeps_values
from rollout_audit.audit.reading import Reading
from rollout_audit.audit.selection import ConfigSource, configure
from rollout_audit.corrections.model import Correction, Rule
from rollout_audit.corrections.packing import Packed
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump, OnFault
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.engines.threads import default_workers
from rollout_audit.engines.upkeep import one_torch_thread
from rollout_audit.statistics.batch_cuts import Cuts, decide
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.statistics.pair import PairState, RowTable, pair_state
from rollout_audit.statistics.plan import PairPlan
from rollout_audit.statistics.population import Population
from rollout_audit.statistics.scope import Evidence
from rollout_audit.trainers.base import Columns, OrderStatistics, Trainer

__all__ = ["TrainerEvidence", "trainer_evidence", "trainer_metrics"]

CPU = torch.device("cpu")
VALID = "row.valid_tokens"


@overload
def trainer_metrics(
    dump: Dump,
    trainer: str,
    config: ConfigSource,
    *,
    per_step: Literal[False] = False,
    on_fault: OnFault = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    log: FaultLog | None = None,
) -> Metrics: ...
@overload
def trainer_metrics(
    dump: Dump,
    trainer: str,
    config: ConfigSource,
    *,
    per_step: Literal[True],
    on_fault: OnFault = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    log: FaultLog | None = None,
) -> dict[int, Metrics]: ...
def trainer_metrics(
    dump: Dump,
    trainer: str,
    config: ConfigSource,
    *,
    per_step: bool = False,
    on_fault: OnFault = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    log: FaultLog | None = None,
) -> Metrics | dict[int, Metrics]:
    """The very keys and definitions that a trainer logs, its quirks included.

    Args:
        dump: what `open_dump` returned.
        trainer: a name of `trainers.registry.TRAINERS`.
        config: the trainer's own keys as a dict, a YAML, JSON or TOML file, flags, or the name of one of its presets.
        per_step: one batch a step, as the trainer computes; else all rows are one batch.
        on_fault, steps, limit, workers, chunk_tokens: as in `analyze`.
        log: gathers what reading the files finds.

    Raises:
        ConfigError: the trainer itself would refuse the configuration.
        DumpError: the dump cannot be read as asked.
    """
    dialect, settings = configure(trainer, config)
    its = _Dialect(dump, dialect, settings, one_batch=not per_step)
    how = {"chunk_tokens": chunk_tokens, "on_fault": on_fault, "steps": steps, "limit": limit}
    batches = its.gather(its.reading(**how), workers or default_workers(), FaultLog() if log is None else log)
    if not per_step:
        return batches.metrics(None)
    return {step: batches.metrics(step) for step in batches.steps}


@dataclass(frozen=True)
class TrainerEvidence:
    """What a trainer's configuration makes of a dump."""

    pooled: Metrics
    """what it would have logged of the dump as one batch"""
    by_step: Mapping[int, Metrics] | None
    """of each step, where that was asked for"""
    work: tuple[Work, ...] | None
    """what each of its rules does by itself"""
    instead: Mapping[str, Instead] = field(default_factory=dict)
    """quirk → what would be done without it, for those that the configuration has"""
    scored: Metrics | None = None
    """what it would have logged without the rows that have no valid token; None where there are none"""


def trainer_evidence(
    dump: Dump, trainer: str, config: ConfigSource, *, by_step: bool = False, workers: int | None = None, **how: Any
) -> TrainerEvidence:
    """In one reading; in two where each step is asked for too and a rule needs the order of a whole batch.

    Args:
        dump, trainer, config, workers: as in `trainer_metrics`.
        by_step: whether each step is asked for too.
        how: the other arguments of that.
    """
    dialect, settings = configure(trainer, config)
    its = _Dialect(dump, dialect, settings, one_batch=True, asks_rules=True)
    whole = its.gather(its.reading(**how), workers or default_workers(), FaultLog())
    steps = None
    if by_step:
        own = _Dialect(dump, dialect, settings, one_batch=False)
        in_order = bool(its.batch_rules)
        apart = own.gather(own.reading(**how), workers or default_workers(), FaultLog()) if in_order else whole
        steps = {step: apart.metrics(step) for step in apart.steps}
    return TrainerEvidence(
        pooled=whole.metrics(None),
        by_step=steps,
        work=work_of(its.correction, whole.columns),
        instead=instead_of(its.expected, whole.columns),
        scored=whole.scored(),
    )


@dataclass(frozen=True)
class _Dialect:
    dump: Dump
    trainer: Trainer[Any]
    config: Any
    one_batch: bool
    """whether the dump is one batch, else each step is"""
    asks_rules: bool = False
    """whether each rule is asked by itself as well"""

    def reading(self, **how: Any) -> Reading:
        return Reading(self.dump, fields=(self.pair.training, "advantages", "reward"), **how)

    def gather(self, reading: Reading, workers: int, log: FaultLog) -> _Batches:
        columns, pair = RowTable(), PairState()
        cuts = batch_cuts(reading, self.pair.training, self.pair.rollout, self.batch_rules, CPU, workers, log)
        with one_torch_thread():
            for part, state in reading.map(partial(self._chunk, cuts), workers, log):
                columns.absorb(part)
                if state is not None:
                    pair.absorb(state)
        return _Batches(self, columns.columns(), pair if self._needs_order else None)

    @cached_property
    def correction(self) -> Correction:
        return self.trainer.correction(self.config)

    @cached_property
    def expected(self) -> Mapping[str, Correction]:
        return expected(self.trainer, self.config)

    @property
    def batch_rules(self) -> tuple[Rule, ...]:
        return self.correction.batch_rules

    @cached_property
    def pair(self) -> Pair:
        return pair_for(self.correction.mode, pairs_in(self.dump))

    @cached_property
    def _needs_order(self) -> bool:
        return bool(self.trainer.quantiles(self.config))

    def _chunk(self, cuts: Cuts, chunk: Chunk) -> tuple[RowTable, PairState | None]:
        packed = Packed(chunk, CPU)
        tokens = decide(self.batch_rules, cuts, packed, packed.tokens(self.pair.training), pooled=self.one_batch)
        if self.trainer.counts_masked:
            tokens = replace(tokens, masked=packed.masked(self.pair.training))
        columns = {name: c.numpy() for name, c in self.trainer.row_columns(tokens, self.config).items()}
        if self.asks_rules:
            columns |= {name: c.numpy() for name, c in work_columns(self.correction, tokens).items()}
            others = instead_columns(self.correction, self.expected, tokens)
            columns |= {name: c.numpy() for name, c in others.items()}
            columns[VALID] = tokens.lengths.numpy().astype(np.float64)
        columns["step"] = chunk.steps.astype(np.float64)
        if not self._needs_order:
            return RowTable([columns]), None
        return RowTable([columns]), pair_state(packed, self.pair.training, self.pair.rollout, self.order_plan)

    @cached_property
    def order_plan(self) -> PairPlan:
        return PairPlan({}, keep_values=keeps_values(self.dump))


@dataclass(frozen=True)
class _Batches:
    dialect: _Dialect
    columns: Columns
    pair: PairState | None

    @property
    def steps(self) -> list[int]:
        return sorted({int(step) for step in self.columns["step"]})

    def metrics(self, step: int | None) -> Metrics:
        return self._metrics(slice(None) if step is None else self.columns["step"] == step, step)

    def scored(self) -> Metrics | None:
        """The pooled metrics without the rows that have no valid token; None where there are none, or no others."""
        scored = self.columns[VALID] > 0
        return None if scored.all() or not scored.any() else self._metrics(scored, None)

    def _metrics(self, chosen: slice | NDArray[np.bool_], step: int | None) -> Metrics:
        rows = {name: column[chosen] for name, column in self.columns.items() if name != "step"}
        return self.dialect.trainer.metrics(rows, self.dialect.config, self._order(step))

    def _order(self, step: int | None) -> OrderStatistics:
        """Exact while the log-ratios are kept; beyond that cell by cell."""
        if self.pair is None:
            return _never_asked
        evidence = Evidence(self.pair, self.dialect.order_plan, {"step": self.columns["step"]})
        return order_of(evidence.scope(step).token_values())


def order_of(population: Population) -> OrderStatistics:
    """ranks → that many smallest log-ratios of the population."""
    last = np.cumsum(population.counts)
    return lambda ranks: population.values[np.searchsorted(last, ranks, side="right")]


def _never_asked(_ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    raise AssertionError("a trainer without quantiles asked for order statistics")
