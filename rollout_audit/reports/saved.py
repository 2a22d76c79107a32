"""What is made from report folders alone: other thresholds, and several reports joined to one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import ArrowException
from safetensors import SafetensorError, safe_open

from rollout_audit.audit.again import report_again
from rollout_audit.audit.analyze import analyze
from rollout_audit.audit.merge import merged_report
from rollout_audit.audit.pictures import States
from rollout_audit.audit.plan import Device
from rollout_audit.audit.report import Report
from rollout_audit.audit.selection import ConfigSource, named_presets
from rollout_audit.audit.states import Saved, unpack
from rollout_audit.audit.sweep import Grid, default_grid
from rollout_audit.corrections.presets import BY_DEFAULT, Preset
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump
from rollout_audit.errors import ReportError
from rollout_audit.reports.folder import SEQUENCES, STATES, STATES_KEY, read_report, report_folder

__all__ = ["merge", "read_saved", "sweep"]

Place = str | os.PathLike[str]


def sweep(
    source: Dump | Place,
    grid: Grid | None = None,
    *,
    per_step_grid: bool = False,
    presets: Sequence[str | Preset] = (),
    trainer: str | None = None,
    config: ConfigSource | None = None,
    mode: Literal["decoupled", "bypass"] | None = None,
    on_fault: Literal["stop", "drop"] = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    device: Device = "auto",
    workers: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Try a grid of thresholds: on a dump in one pass, or on a report folder without its dump.

    Args:
        source: an open dump, or the folder of a report; of a report the options below are its own.
        grid: what `sweep_grid` returned; the default grid where it is None.
        per_step_grid: whether every step is tried by itself too.
        presets: corrections that stand beside the grid, pooled and per step, in the table and on the pictures; the
            first is what health rules look at, unless there is a trainer. Of a report such as its pass tells exactly.
        trainer: whose configuration stands beside the grid too, before them: as in `analyze` where a dump is read.
        config: that trainer's own keys.
        mode: as in `analyze`, like all that follow.

    Raises:
        DumpError: the dump cannot be audited as asked.
        ReportError: the folder holds no report with states, or with none that tell of one of the `presets`.
        UsageError: no such preset or trainer.
        ConfigError: the trainer itself would refuse the configuration.
    """
    if not isinstance(source, Dump):
        named = named_presets(presets, trainer, config)
        return report_again(read_saved(source), grid or default_grid(), per_step_grid=per_step_grid, named=named)
    asked = named_presets(presets)
    return analyze(
        source,
        presets="all" if not asked else (*BY_DEFAULT, *(p for p in asked if p not in BY_DEFAULT)),
        reference=asked[0].name if asked and trainer is None else None,
        trainer=trainer,
        config=config,
        named=asked,
        sweep=grid or True,
        per_step_grid=per_step_grid,
        mode=mode,
        on_fault=on_fault,
        steps=steps,
        limit=limit,
        device=device,
        workers=workers,
        chunk_tokens=chunk_tokens,
        on_progress=on_progress,
    )


def merge(reports: Sequence[Place], *, per_step_grid: bool = False) -> Report:
    """One report on everything that several have read: the same as of one pass over all their files.

    `per_step_grid` tries every point of their sweep on every step by itself too.

    Raises:
        ReportError: a folder holds no report with states.
        UsageError: fewer than two reports, reports of other corrections or columns, rows that two of them hold, or
            `per_step_grid` where they were made without a sweep.
    """
    return merged_report([read_saved(place) for place in reports], per_step_grid=per_step_grid)


def read_saved(place: Place) -> Saved:
    """A report folder with the states of its pass.

    Raises:
        ReportError: no report, none with states, or damaged ones.
    """
    report, folder = read_report(place), report_folder(place)
    for name in (SEQUENCES, STATES):
        if not (folder / name).is_file():
            raise ReportError(f"{folder}: no {name} beside the report, so it holds no states; analyze the dump again")
    return unpack(str(folder), report, _rows(folder / SEQUENCES), _states(folder / STATES))


def _rows(file: Path) -> Mapping[str, NDArray[Any]]:
    """NaN for null."""
    try:
        table = pq.read_table(file)
    except (OSError, ArrowException) as error:
        raise ReportError(f"{file}: cannot be read ({' '.join(str(error).split())}); analyze the dump again") from error
    return {name: table[name].to_numpy() for name in table.column_names}


def _states(file: Path) -> States:
    try:
        with safe_open(file, framework="numpy") as opened:
            header = (opened.metadata() or {}).get(STATES_KEY, "")
            tensors = {name: np.asarray(opened.get_tensor(name)) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ReportError(f"{file}: cannot be read ({' '.join(str(error).split())}); analyze the dump again") from error
    return States(header, tensors)
