"""`rollout-audit recommend`: the mildest correction that suffices."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_audit.cli.messages import progress, warn_of
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
    OnFault,
    OnFaultName,
    Output,
    Quiet,
    RequireMarker,
    Steps,
    Workers,
)
from rollout_audit.cli.parsing import parse_maps, parse_steps
from rollout_audit.cli.sources import refuse_reading_options, source_of_rows
from rollout_audit.errors import UsageError

if TYPE_CHECKING:
    from rollout_audit.audit.report import Report

__all__ = ["RECOMMEND_EPILOG", "recommend"]

RECOMMEND_EPILOG = """\b
Examples:
  rollout-audit recommend run/dumps
  rollout-audit recommend run/dumps --max-masked 0.05 --min-ess 0.7
  rollout-audit recommend run/dumps --for trl
  rollout-audit recommend --from report --format json

\b
Exit codes: 0 something suffices, nothing at all included; 1 nothing keeps the limits; 2 could not tell
"""

MIN_ESS, MAX_MASKED, MAX_MASS_LOST, MAX_BOUNDED, MAX_KL = 0.5, 0.1, 0.02, 0.1, 0.01
"""As `audit.limits.Limits`, without loading it: a test holds them equal"""
EXIT_CODES = {"none needed": 0, "recommended": 0, "nothing meets the limits": 1, "refused": 2}

Dumps = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DUMP...]", help="Files, folders (searched recursively), globs or URIs.", show_default=False
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="REPORT",
        envvar="ROLLOUT_AUDIT_FROM",
        help="A report folder of analyze: no dump is needed.",
        show_default=False,
    ),
]
MinEss = Annotated[
    float,
    typer.Option(metavar="SHARE", envvar="ROLLOUT_AUDIT_MIN_ESS", help="Least ess of the weights that are applied."),
]
MaxMasked = Annotated[
    float,
    typer.Option(metavar="SHARE", envvar="ROLLOUT_AUDIT_MAX_MASKED", help="Largest share of tokens removed."),
]
MaxMassLost = Annotated[
    float,
    typer.Option(metavar="SHARE", envvar="ROLLOUT_AUDIT_MAX_MASS_LOST", help="Largest share of the weight cut away."),
]
MaxBounded = Annotated[
    float,
    typer.Option(
        metavar="SHARE", envvar="ROLLOUT_AUDIT_MAX_BOUNDED", help="Largest share of weights a bound replaced."
    ),
]
MaxKl = Annotated[
    float,
    typer.Option(metavar="K3", envvar="ROLLOUT_AUDIT_MAX_KL", help="Largest k3 that may be left without weights."),
]
ForTrainer = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="TRAINER",
        envvar="ROLLOUT_AUDIT_FOR",
        help=f"Rank what that trainer can express, and print its configuration to paste. {TRAINERS_HELP}",
        show_default=False,
    ),
]


def recommend(
    context: typer.Context,
    dumps: Dumps = None,
    report: From = None,
    min_ess: MinEss = MIN_ESS,
    max_masked: MaxMasked = MAX_MASKED,
    max_mass_lost: MaxMassLost = MAX_MASS_LOST,
    max_bounded: MaxBounded = MAX_BOUNDED,
    max_kl: MaxKl = MAX_KL,
    trainer: ForTrainer = None,
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
    workers: Workers = None,
    device: Device = DeviceName.AUTO,
    chunk_tokens: ChunkTokens = CHUNK_TOKENS,
    quiet: Quiet = False,
) -> None:
    """Rank presets and thresholds that keep stated limits; name the mildest that suffices, none included."""
    fields, span = parse_maps(field_map), parse_steps(steps)
    report = source_of_rows(context, dumps, report, "report")
    if bool(dumps) == (report is not None):
        raise UsageError("give either DUMP... or --from REPORT")
    if report is not None:
        refuse_reading_options(context)

    from rollout_audit.audit.analyze import analyze
    from rollout_audit.audit.limits import Limits
    from rollout_audit.dumps.dump import open_dump
    from rollout_audit.reports.recommend import recommend as choose
    from rollout_audit.reports.recommend import recommendation_document
    from rollout_audit.reports.terminal import emit
    from rollout_audit.trainers.registry import get_trainer

    if trainer is not None:
        get_trainer(trainer)
    limits = Limits(min_ess, max_masked, max_mass_lost, max_bounded, max_kl)
    source: str | Report = report or ""
    if dumps:
        dump = open_dump(
            dumps,
            field_map=fields,
            layout=layout,
            input_format=input_format,
            join=join,
            require_marker=require_marker,
        )
        with progress(dump.total_rows, quiet=quiet) as advance:
            source = analyze(
                dump,
                mode=mode.value if mode else None,
                on_fault=on_fault.value,
                steps=span,
                limit=limit,
                device=device.value,
                workers=workers,
                chunk_tokens=chunk_tokens,
                on_progress=advance,
            )
        warn_of(source.findings)
    found = choose(source, **asdict(limits), trainer=trainer)
    emit(recommendation_document(found), output.value if output else None)
    raise typer.Exit(EXIT_CODES[found.verdict])
