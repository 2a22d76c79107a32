"""`rollout-audit apply`: the weights and masks themselves."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_audit.cli.messages import progress, say, warn_of
from rollout_audit.cli.options import (
    CHUNK_TOKENS,
    ChunkTokens,
    Config,
    Device,
    DeviceName,
    Dumps,
    InputFormat,
    Join,
    Layout,
    Limit,
    Maps,
    NewOut,
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
from rollout_audit.cli.reference import one_correction, say_config
from rollout_audit.cli.sources import one_reference

__all__ = ["APPLY_EPILOG", "apply"]

APPLY_EPILOG = """\b
Examples:
  rollout-audit apply run/dumps --preset decoupled_seq_is_rs --out run/weights
  rollout-audit apply run/dumps --trainer verl --config run.yaml --out run/weights
  rollout-audit apply batch.safetensors --layout trl --trainer trl --out run/weights
"""

PresetName = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", envvar="ROLLOUT_AUDIT_PRESET", help="A preset.", show_default=False),
]
TrainerName = Annotated[str | None, trainer_option("A trainer's own configuration.")]


def apply(
    context: typer.Context,
    dumps: Dumps,
    out: NewOut,
    preset: PresetName = None,
    trainer: TrainerName = None,
    config: Config = None,
    field_map: Maps = None,
    input_format: InputFormat = None,
    layout: Layout = None,
    join: Join = None,
    require_marker: RequireMarker = None,
    steps: Steps = None,
    limit: Limit = None,
    on_fault: OnFault = OnFaultName.STOP,
    workers: Workers = None,
    device: Device = DeviceName.AUTO,
    chunk_tokens: ChunkTokens = CHUNK_TOKENS,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Write the weights and masks of a correction, a file a file, row for row."""
    fields, span = parse_maps(field_map), parse_steps(steps)
    preset, trainer, config = one_reference(context, preset, trainer, config)
    correction = one_correction(preset, trainer, config)

    from rollout_audit.audit.apply_files import write_correction
    from rollout_audit.dumps.dump import open_dump
    from rollout_audit.dumps.fault_log import FaultLog
    from rollout_audit.dumps.target import check_target
    from rollout_audit.reports.applied import applied_document
    from rollout_audit.reports.figures import amount
    from rollout_audit.reports.terminal import emit

    check_target(out, dumps)
    if trainer is not None:
        say_config(trainer, correction, quiet=quiet)
    dump = open_dump(
        dumps, field_map=fields, layout=layout, input_format=input_format, join=join, require_marker=require_marker
    )
    log = FaultLog()
    with progress(dump.total_rows, quiet=quiet) as advance:
        written = write_correction(
            dump,
            correction,
            out,
            trainer=trainer,
            on_fault=on_fault.value,
            steps=span,
            limit=limit,
            workers=workers,
            device=device.value,
            chunk_tokens=chunk_tokens,
            on_progress=advance,
            log=log,
        )
    warn_of(log.findings(dump.names), quiet=quiet)
    emit(applied_document(written), output.value if output else None)
    say(f"wrote {written.folder} ({amount(len(written.files), 'file')})", quiet=quiet)
