"""`rollout-audit sweep`: what other thresholds would do, from a dump or from the states of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_audit.cli.messages import progress, say, say_config
from rollout_audit.cli.options import (
    CHUNK_TOKENS,
    TRAINERS_HELP,
    ChunkTokens,
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
    Quiet,
    Steps,
    Workers,
)
from rollout_audit.cli.parsing import parse_maps, parse_rules, parse_steps, several
from rollout_audit.errors import UsageError

if TYPE_CHECKING:
    from rollout_audit.audit.report import Report
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
PerStepGrid = Annotated[
    bool,
    typer.Option("--per-step-grid", envvar="ROLLOUT_AUDIT_PER_STEP_GRID", help="Every point on every step too."),
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
    str | None,
    typer.Option(
        metavar="NAME",
        envvar="ROLLOUT_AUDIT_TRAINER",
        help=f"Put that trainer's configuration beside the grid, before all presets. {TRAINERS_HELP}",
        show_default=False,
    ),
]
Config = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|JSON",
        envvar="ROLLOUT_AUDIT_CONFIG",
        help="The trainer's own keys: a YAML, JSON or TOML file, a JSON object, key=value, or flags.",
        show_default="the trainer's defaults",
    ),
]
Out = Annotated[
    str,
    typer.Option(metavar="DIR", envvar="ROLLOUT_AUDIT_OUT", help="Folder for the report; an older report is replaced."),
]


def sweep(
    dumps: DumpsOrNone = None,
    source: From = None,
    out: Out = OUT,
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
    reading = {
        "--map": fields,
        "--input-format": input_format,
        "--layout": layout,
        "--join": join,
        "--mode": mode,
        "--steps": span,
        "--limit": limit,
    }
    _check_source(dumps, source, out, [name for name, value in reading.items() if value])
    if trainer is None and config is not None:
        raise UsageError("--config needs --trainer: whose keys are these?")
    grid = _grid(level, bound, upper, lower, several(rule, "ROLLOUT_AUDIT_RULE"), veto, joint=joint)
    presets = several(preset, "ROLLOUT_AUDIT_PRESET")
    if grid is not None and not grid.points and not presets and trainer is None:
        raise UsageError("no threshold is left to try; give --level, --rule or --veto something, or name a --preset")

    from rollout_audit.audit.selection import named_presets
    from rollout_audit.dumps.dump import open_dump
    from rollout_audit.reports.folder import check_output
    from rollout_audit.reports.saved import sweep as try_grid

    check_output(out)
    named_presets(presets, trainer, config)
    if source is not None:
        report = try_grid(source, grid, per_step_grid=per_step_grid, presets=presets, trainer=trainer, config=config)
    else:
        dump = open_dump(dumps or [], field_map=fields, layout=layout, input_format=input_format, join=join)
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
    _finish(report, out, output.value if output else None, plots=not no_plots, quiet=quiet)


def _check_source(dumps: Sequence[str] | None, source: str | None, out: str, reading: Sequence[str]) -> None:
    from pathlib import Path

    if bool(dumps) == bool(source):
        raise UsageError("sweep reads either a DUMP or the states of --from REPORT; give one of them")
    if source and reading:
        raise UsageError(f"{reading[0]} reads a dump; with --from the report has settled it")
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


def _finish(report: Report, out: str, style: str | None, *, plots: bool, quiet: bool) -> None:
    from rollout_audit.reports.folder import write_report
    from rollout_audit.reports.sweep_table import sweep_document
    from rollout_audit.reports.terminal import emit

    written = write_report(report, out, plots=plots)
    for picture, reason in written.failures.items():
        say(f"warning: {picture} was not drawn: {reason}")
    emit(sweep_document(report), style)  # type: ignore[arg-type]
    say(f"wrote {written.folder} ({len(written.files)} files)", quiet=quiet)
