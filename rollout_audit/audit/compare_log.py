"""The audit of the trainer itself: what it logged beside what the dump says it should have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollout_audit.audit.dialect import trainer_metrics
from rollout_audit.audit.logged import RELATIVE, Tolerance, compare
from rollout_audit.audit.report import LogReport
from rollout_audit.audit.selection import ConfigSource
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump, OnFault
from rollout_audit.dumps.logs import read_log
from rollout_audit.errors import UsageError
from rollout_audit.trainers.registry import get_trainer

__all__ = ["compare_log"]


def compare_log(
    dump: Dump,
    trainer: str,
    config: ConfigSource,
    log: str | Path | Sequence[str | Path],
    *,
    tolerance: float = RELATIVE,
    offset: int = 0,
    on_fault: OnFault = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
) -> LogReport:
    """Lay a run's log beside the metrics recomputed from its dump, step by step, and name the first that departs.

    Args:
        dump: what `open_dump` returned.
        trainer: a name of `trainers.registry.TRAINERS`.
        config: the run's own configuration, as in `trainer_metrics`.
        log: JSONL, JSON, CSV or Parquet, several files or a folder of them: see `dumps.logs`.
        tolerance: relative; values closer than 1e-6 agree whatever it is.
        offset: step in the log minus step in the dump of the same batch.
        on_fault, steps, limit, workers, chunk_tokens: as in `analyze`.

    Raises:
        ConfigError: the trainer itself would refuse the configuration.
        DumpError: the dump or the log cannot be read.
        UsageError: no such trainer, or a tolerance that is none.
    """
    if not 0 < tolerance < 1:
        raise UsageError(f"--log-tolerance {tolerance:g}: give a share between 0 and 1, such as 1e-3")
    logged, dialect = read_log(log), get_trainer(trainer)
    by_step = trainer_metrics(
        dump,
        trainer,
        config,
        per_step=True,
        on_fault=on_fault,
        steps=steps,
        limit=limit,
        workers=workers,
        chunk_tokens=chunk_tokens,
    )
    return compare(
        by_step,
        logged,
        trainer=f"{dialect.name} {dialect.version}",
        quirks=dialect.quirks,
        tolerance=Tolerance(tolerance),
        offset=offset,
    )
