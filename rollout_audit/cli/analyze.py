"""`rollout-audit analyze`: the main job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rollout_audit.cli.gates import FailOn, asked_gates
from rollout_audit.cli.messages import progress
from rollout_audit.cli.options import (
    CHUNK_TOKENS,
    ChunkTokens,
    Config,
    Device,
    DeviceName,
    Digest,
    DigestName,
    Dumps,
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
    ReportOut,
    RequireMarker,
    Steps,
    Workers,
    trainer_option,
)
from rollout_audit.cli.parsing import parse_maps, parse_presets, parse_steps, several
from rollout_audit.cli.reference import check_one, or_defaults, say_config
from rollout_audit.cli.sources import one_reference
from rollout_audit.cli.writing import write_and_show
from rollout_audit.errors import UsageError

if TYPE_CHECKING:
    from rollout_audit.audit.gates import Gate, GateResult
    from rollout_audit.audit.report import Report

__all__ = ["ANALYZE_EPILOG", "analyze"]


LOG_TOLERANCE = 1e-3
"""As `audit.logged.RELATIVE`, without loading it: a test holds them equal"""
OUT = "./rollout-audit-report"

ANALYZE_EPILOG = """\b
Examples:
  rollout-audit analyze run/dumps --out report
  rollout-audit analyze run/dumps --map old_log_probs=prev_logprobs --steps 100:200
  rollout-audit analyze run/dumps --fail-on critical --fail-on 'kl_k3@any-step > 0.05'
  rollout-audit analyze run/dumps --trainer verl --config run/config.yaml
  rollout-audit analyze run/dumps --preset decoupled_seq_is_rs --format markdown
  rollout-audit analyze run/dumps --trainer verl --config run.yaml --log wandb_history.csv

\b
Exit codes: 0 done; 1 a gate of --fail-on holds; 2 could not tell, also where no metric of --log could be compared
"""

Reference = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        envvar="ROLLOUT_AUDIT_PRESET",
        help="The correction that the health rules look at; the table shows every preset.",
        show_default="decoupled_token_is",
    ),
]
Presets = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        envvar="ROLLOUT_AUDIT_PRESETS",
        help=(
            "Corrections to evaluate, or all; the first is looked at by the health rules unless --preset or --trainer "
            "names one."
        ),
        show_default="all that one pass answers",
    ),
]
TrainerName = Annotated[
    str | None,
    trainer_option(
        "That trainer's correction first and looked at by the health rules, what it would have logged, and its quirks "
        "that matter here."
    ),
]
LogFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="FILE",
        help=(
            "What the trainer logged, to lay beside what the dump says: a W&B or TensorBoard export or its own "
            "JSONL; CSV, JSON or Parquet, or a folder of them. Needs --trainer. Repeatable; in ROLLOUT_AUDIT_LOG "
            "parted by ;"
        ),
        show_default=False,
    ),
]
LogTolerance = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        envvar="ROLLOUT_AUDIT_LOG_TOLERANCE",
        help="How far a logged value may be from the recomputed one, of that; 1e-6 in any case.",
    ),
]
LogOffset = Annotated[
    int,
    typer.Option(
        metavar="N", envvar="ROLLOUT_AUDIT_LOG_OFFSET", help="Step in the log minus step in the dump of a batch."
    ),
]
NoSweep = Annotated[
    bool, typer.Option("--no-sweep", envvar="ROLLOUT_AUDIT_NO_SWEEP", help="Try no thresholds beside the presets.")
]


def analyze(
    context: typer.Context,
    dumps: Dumps,
    out: ReportOut = OUT,
    field_map: Maps = None,
    input_format: InputFormat = None,
    layout: Layout = None,
    join: Join = None,
    require_marker: RequireMarker = None,
    mode: Mode = None,
    preset: Reference = None,
    presets: Presets = None,
    trainer: TrainerName = None,
    config: Config = None,
    steps: Steps = None,
    limit: Limit = None,
    on_fault: OnFault = OnFaultName.STOP,
    fail_on: FailOn = None,
    log: LogFiles = None,
    log_tolerance: LogTolerance = LOG_TOLERANCE,
    log_offset: LogOffset = 0,
    output: Output = None,
    no_plots: NoPlots = False,
    no_sweep: NoSweep = False,
    workers: Workers = None,
    device: Device = DeviceName.AUTO,
    chunk_tokens: ChunkTokens = CHUNK_TOKENS,
    digest: Digest = DigestName.FOOTER,
    quiet: Quiet = False,
) -> None:
    """Audit a dump: mismatch, health and every correction, in tables and a report folder."""
    fields, span = parse_maps(field_map), parse_steps(steps)
    gates = asked_gates(fail_on)
    preset, trainer, config = one_reference(context, preset, trainer, config)
    check_one(preset, trainer, config)
    asked = parse_presets(presets) or "all"
    logs = several(log, "ROLLOUT_AUDIT_LOG")
    if logs and trainer is None:
        raise UsageError("--log needs --trainer, and the run's --config: whose metrics are these?")

    from rollout_audit.audit.analyze import analyze as audit
    from rollout_audit.dumps.digest import with_content_digests
    from rollout_audit.dumps.dump import open_dump
    from rollout_audit.reports.folder import check_output
    from rollout_audit.reports.summary import report_document

    check_output(out)
    _check_names(gates, asked, preset, trainer)
    dump = open_dump(
        dumps, field_map=fields, layout=layout, input_format=input_format, join=join, require_marker=require_marker
    )
    if digest is DigestName.FULL:
        dump = with_content_digests(dump)
    compared = None
    if trainer is not None and logs:
        from rollout_audit.audit.compare_log import compare_log

        compared = compare_log(
            dump,
            trainer,
            or_defaults(config),
            logs,
            tolerance=log_tolerance,
            offset=log_offset,
            on_fault=on_fault.value,
            steps=span,
            limit=limit,
            workers=workers,
            chunk_tokens=chunk_tokens,
        )
    with progress(dump.total_rows, quiet=quiet) as advance:
        report = audit(
            dump,
            presets=asked,
            reference=preset,
            trainer=trainer,
            config=config,
            sweep=not no_sweep,
            mode=mode.value if mode else None,
            on_fault=on_fault.value,
            steps=span,
            limit=limit,
            device=device.value,
            workers=workers,
            chunk_tokens=chunk_tokens,
            on_progress=advance,
        )
    if compared is not None:
        report = report.with_log(compared)
    results = _evaluate(gates, report)
    say_config(trainer, config, quiet=quiet)
    document = report_document(report, [_gate_line(result) for result in results])
    write_and_show(report, document, out, output, plots=not no_plots, quiet=quiet)
    told = _exit_code(results)
    if not told and report.log is not None and report.log.status == "nothing compared":
        raise UsageError(f"--log {' '.join(logs)}: {report.log.sentence}")  # the report is written all the same
    raise typer.Exit(told)


def _check_names(
    gates: Sequence[Gate], presets: Literal["all"] | Sequence[str], preset: str | None, trainer: str | None
) -> None:
    if not gates:
        return
    from rollout_audit.audit.gates import check_names
    from rollout_audit.corrections.presets import BY_DEFAULT

    own = [*([] if preset is None else [preset]), *([] if trainer is None else [f"{trainer}-config"])]
    check_names(gates, [*own, *([each.name for each in BY_DEFAULT] if presets == "all" else presets)])


def _evaluate(gates: Sequence[Gate], report: Report) -> list[GateResult]:
    if not gates:
        return []
    from rollout_audit.audit.gates import judge_gates

    return judge_gates(gates, report)


def _gate_line(result: GateResult) -> str:
    return f"gate {result.verdict}: {result.text}"


def _exit_code(results: Sequence[GateResult]) -> int:
    if not results:
        return 0
    from rollout_audit.audit.gates import exit_code

    return exit_code(results)
