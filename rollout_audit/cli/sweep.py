"""`rollout-audit sweep`: what other thresholds would do, from a dump or from the states of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_audit.cli.messages import progress, warn_of
from rollout_audit.cli.options import (
    CHUNK_TOKENS,
    ChunkTokens,
    Config,
    Device,
    DeviceName,
    InputFormat,
    Join,
    Layout,
    Limit,
    Maps,
    Mode,
    NoPlots,
    OnFault,
    OnFaultName,
    Output,
    PerStepGrid,
    Quiet,
    ReportOut,
    RequireMarker,
    Steps,
    Workers,
    trainer_option,
)
from rollout_audit.cli.parsing import parse_maps, parse_rules, parse_steps, several
from rollout_audit.cli.reference import check_one, say_config
from rollout_audit.cli.sources import refuse_reading_options, source_of_rows
from rollout_audit.cli.writing import write_and_show
from rollout_audit.errors import UsageError

if TYPE_CHECKING:
    from rollout_audit.audit.sweep import Grid

__all__ = ["SWEEP_EPILOG", "sweep"]

OUT = "./rollout-audit-sweep"

SWEEP_EPILOG = """\b
A grid is numbers parted by commas, or FIRST:LAST:log|lin:COUNT, or none.
A rule is one of verl's eleven with thresholds in verl's notation: a number, or
for k1 a band lower_upper of the ratio.

\b
Examples:
  rollout-audit sweep run/dumps --out sweep
  rollout-audit sweep run/dumps --level token --bound truncate --upper 1.1:10:log:64
  rollout-audit sweep run/dumps --level none --rule seq_mean_k1=0.99_1.01,0.999_1.001
  rollout-audit sweep run/dumps --trainer verl --config run.yaml --preset seq_rs
  rollout-audit sweep --from report --upper 1.7,2.3 --rule none --format csv
"""

DumpsOrNone = Annotated[
    list[str] | None,
    typer.Argument(metavar="DUMP...", help="Files, folders (searched recursively), globs or URIs.", show_default=False),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="REPORT",
        envvar="ROLLOUT_AUDIT_FROM",
        help="Read the states of that report instead of a dump; reading options are its own.",
        show_default=False,
    ),
]
Levels = Annotated[
    str | None,
    typer.Option(
        "--level",
        metavar="LEVEL,...",
        envvar="ROLLOUT_AUDIT_LEVEL",
        help="Levels of weights: token, sequence, geometric, or none.",
        show_default="all",
    ),
]
Bounds = Annotated[
    str | None,
    typer.Option(
        "--bound",
        metavar="MODE,...",
        envvar="ROLLOUT_AUDIT_BOUND",
        help="What bounds do: truncate, clip, mask.",
        show_default="all",
    ),
]
Upper = Annotated[
    str | None,
    typer.Option(
        metavar="GRID",
        envvar="ROLLOUT_AUDIT_UPPER",
        help="Upper bounds of the ratio, e.g. 1.1:10:log:64.",
        show_default="64 from 1.1 to 10; geometric 48 near 1",
    ),
]
Lower = Annotated[
    str | None,
    typer.Option(
        metavar="GRID",
        envvar="ROLLOUT_AUDIT_LOWER",
        help="Lower bounds of clip and mask, each with each upper bound above it.",
        show_default="reciprocal, and free on a coarser grid",
    ),
]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        metavar="NAME=GRID",
        help="Rejection rule and its thresholds, or none. Repeatable; in ROLLOUT_AUDIT_RULE parted by ;",
        show_default="all eleven, fitted to the data",
    ),
]
Veto = Annotated[
    str | None,
    typer.Option(
        metavar="GRID",
        envvar="ROLLOUT_AUDIT_VETO",
        help="Veto thresholds of the ratio, or none.",
        show_default="16 from 0.1 to 1e-6",
    ),
]
Joint = Annotated[
    bool,
    typer.Option(
        "--joint/--no-joint",
        envvar="ROLLOUT_AUDIT_JOINT",
        help="Token and sequence weights together with sequence rules.",
    ),
]
Beside = Annotated[
    list[str] | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="A preset beside the grid: in the table, marked in the pictures. The first is what the health rules "
        "look at, unless there is a trainer. Repeatable; in ROLLOUT_AUDIT_PRESET parted by ;",
        show_default=False,
    ),
]
TrainerName = Annotated[
    str | None, trainer_option("Put that trainer's configuration beside the grid, before all presets.")
]


def sweep(
    context: typer.Context,
    dumps: DumpsOrNone = None,
    source: From = None,
    out: ReportOut = OUT,
    level: Levels = None,
    bound: Bounds = None,
    upper: Upper = None,
    lower: Lower = None,
    rule: Rules = None,
    veto: Veto = None,
    joint: Joint = True,
    preset: Beside = None,
    trainer: TrainerName = None,
    config: Config = None,
    per_step_grid: PerStepGrid = False,
    field_map: Maps = None,
    input_format: InputFormat = None,
    layout: Layout = None,
    join: Join = None,
    require_marker: RequireMarker = None,
    mode: Mode = None,
    steps: Steps = None,
    limit: Limit = None,
    on_fault: OnFault = OnFaultName.STOP,
    output: Output = None,
    no_plots: NoPlots = False,
    workers: Workers = None,
    device: Device = DeviceName.AUTO,
    chunk_tokens: ChunkTokens = CHUNK_TOKENS,
    quiet: Quiet = False,
) -> None:
    """Try thresholds by the thousand: levels, bounds, rejection rules and vetoes."""
    fields, span = parse_maps(field_map), parse_steps(steps)
    source = source_of_rows(context, dumps, source, "source")
    _check_source(dumps, source, out)
    if source is not None:
        refuse_reading_options(context)
    check_one(None, trainer, config)
    grid = _grid(level, bound, upper, lower, several(rule, "ROLLOUT_AUDIT_RULE"), veto, joint=joint)
    presets = several(preset, "ROLLOUT_AUDIT_PRESET")
    if grid is not None and not grid.points and not presets and trainer is None:
        raise UsageError("no threshold is left to try; give --level, --rule or --veto something, or name a --preset")

    from rollout_audit.audit.selection import named_presets
    from rollout_audit.dumps.dump import open_dump
    from rollout_audit.reports.folder import check_output
    from rollout_audit.reports.saved import sweep as try_grid
    from rollout_audit.reports.sweep_table import sweep_document

    check_output(out)
    named_presets(presets, trainer, config)
    if source is not None:
        report = try_grid(source, grid, per_step_grid=per_step_grid, presets=presets, trainer=trainer, config=config)
    else:
        dump = open_dump(
            dumps or [],
            field_map=fields,
            layout=layout,
            input_format=input_format,
            join=join,
            require_marker=require_marker,
        )
        with progress(dump.total_rows, quiet=quiet) as advance:
            report = try_grid(
                dump,
                grid,
                per_step_grid=per_step_grid,
                presets=presets,
                trainer=trainer,
                config=config,
                mode=mode.value if mode else None,
                on_fault=on_fault.value,
                steps=span,
                limit=limit,
                device=device.value,
                workers=workers,
                chunk_tokens=chunk_tokens,
                on_progress=advance,
            )
    say_config(trainer, config, quiet=quiet)
    warn_of(report.findings, quiet=quiet)
    write_and_show(report, sweep_document(report), out, output, plots=not no_plots, quiet=quiet)


def _check_source(dumps: Sequence[str] | None, source: str | None, out: str) -> None:
    from pathlib import Path

    if bool(dumps) == bool(source):
        raise UsageError("sweep reads either a DUMP or the states of --from REPORT; give one of them")
    if source and Path(source).resolve() in (Path(out).resolve(), Path(out).resolve() / "report.json"):
        raise UsageError(f"--out {out}: is the report that --from reads, and would be replaced; give another --out")


def _grid(
    level: str | None,
    bound: str | None,
    upper: str | None,
    lower: str | None,
    rules: Sequence[str],
    veto: str | None,
    *,
    joint: bool,
) -> Grid | None:
    """None for the default grid."""
    if joint and not rules and all(axis is None for axis in (level, bound, upper, lower, veto)):
        return None
    from rollout_audit.audit.grids import sweep_grid

    return sweep_grid(
        levels=_names(level),
        bounds=_names(bound),
        upper=upper,
        lower=lower,
        rules=parse_rules(rules),
        veto=veto,
        joint=joint,
    )


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [] if text.strip() == "none" else [name.strip() for name in text.split(",")]
