"""`rollout-audit metrics`: what one trainer would have logged."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rollout_audit.cli.messages import warn_of
from rollout_audit.cli.options import (
    CHUNK_TOKENS,
    ChunkTokens,
    Dumps,
    InputFormat,
    Join,
    Layout,
    Limit,
    Maps,
    OnFault,
    OnFaultName,
    Output,
    Quiet,
    RequireMarker,
    Steps,
    Workers,
    trainer_option,
)
from rollout_audit.cli.parsing import parse_maps, parse_steps
from rollout_audit.cli.reference import say_config

__all__ = ["METRICS_EPILOG", "metrics"]

METRICS_EPILOG = """\b
Examples:
  rollout-audit metrics run/dumps --trainer verl --config run.yaml
  rollout-audit metrics run/dumps --trainer verl --config '{"rollout_is": "token"}'
  rollout-audit metrics run/dumps --trainer verl --config decoupled_seq_is_rs --per-step --format csv
  rollout-audit metrics run/dumps --trainer slime --config '--use-tis --tis-clip 2.0'
"""

TrainerName = Annotated[str, trainer_option("Whose names and definitions.")]
Config = Annotated[
    str,
    typer.Option(
        metavar="FILE|JSON|PRESET",
        envvar="ROLLOUT_AUDIT_CONFIG",
        help="The trainer's own keys: a YAML, JSON or TOML file, a JSON object, key=value, flags, or a preset.",
        show_default="the trainer's defaults",
    ),
]
PerStep = Annotated[
    bool,
    typer.Option("--per-step", envvar="ROLLOUT_AUDIT_PER_STEP", help="One batch a step, as the trainer computes."),
]


def metrics(
    dumps: Dumps,
    trainer: TrainerName,
    config: Config = "{}",
    per_step: PerStep = False,
    field_map: Maps = None,
    input_format: InputFormat = None,
    layout: Layout = None,
    join: Join = None,
    require_marker: RequireMarker = None,
    steps: Steps = None,
    limit: Limit = None,
    on_fault: OnFault = OnFaultName.STOP,
    chunk_tokens: ChunkTokens = CHUNK_TOKENS,
    output: Output = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Compute the flat metrics of one trainer, its very keys and quirks included."""
    fields, span = parse_maps(field_map), parse_steps(steps)

    from rollout_audit.audit.dialect import trainer_metrics
    from rollout_audit.dumps.dump import open_dump
    from rollout_audit.dumps.fault_log import FaultLog
    from rollout_audit.reports.dialect import pooled_document, steps_document
    from rollout_audit.reports.terminal import emit

    dump = open_dump(
        dumps, field_map=fields, layout=layout, input_format=input_format, join=join, require_marker=require_marker
    )
    log = FaultLog()
    how: dict[str, Any] = {
        "on_fault": on_fault.value,
        "steps": span,
        "limit": limit,
        "workers": workers,
        "chunk_tokens": chunk_tokens,
        "log": log,
    }
    if per_step:
        document = steps_document(trainer, trainer_metrics(dump, trainer, config, per_step=True, **how))
    else:
        document = pooled_document(trainer, trainer_metrics(dump, trainer, config, **how))
    say_config(trainer, config, quiet=quiet)
    warn_of(log.findings(dump.names), quiet=quiet)
    emit(document, output.value if output else None)
