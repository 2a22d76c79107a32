"""`rollout-audit analyze`: the main job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_audit.cli.messages import progress, say
from rollout_audit.cli.options import (
    CHUNK_TOKENS,
    TRAINERS_HELP,
    ChunkTokens,
    Device,
    DeviceName,
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
    Steps,
    Workers,
)
from rollout_audit.cli.parsing import parse_maps, parse_steps, several
from rollout_audit.errors import UsageError

if TYPE_CHECKING:
    from rollout_audit.audit.gates import Gate, GateResult
    from rollout_audit.audit.report import Report

__all__ = ["ANALYZE_EPILOG", "analyze"]


OUT = "./rollout-audit-report"

ANALYZE_EPILOG = """\b
Examples:
  rollout-audit analyze run/dumps --out report
  rollout-audit analyze run/dumps --map old_log_probs=prev_logprobs --steps 100:200
  rollout-audit analyze run/dumps --fail-on critical --fail-on 'kl_k3@any-step > 0.05'
  rollout-audit analyze run/dumps --trainer verl --config run/config.yaml
  rollout-audit analyze run/dumps --preset decoupled_seq_is_rs --format markdown
"""

Out = Annotated[
    str,
    typer.Option(metavar="DIR", envvar="ROLLOUT_AUDIT_OUT", help="Folder for the report; an older report is replaced."),
]
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
TrainerName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        envvar="ROLLOUT_AUDIT_TRAINER",
        help=(
            "That trainer's correction first and looked at by the health rules, what it would have logged, and its "
            f"quirks that matter here. {TRAINERS_HELP}"
        ),
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
NoSweep = Annotated[
    bool, typer.Option("--no-sweep", envvar="ROLLOUT_AUDIT_NO_SWEEP", help="Try no thresholds beside the presets.")
]
FailOn = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on",
        metavar="GATE",
        help=(
            "Exit 1 at critical, warn, [PRESET:]METRIC[@STEP|pooled|any-step|median] OP VALUE. "
            "Repeatable; in ROLLOUT_AUDIT_FAIL_ON parted by ;"
        ),
        show_default=False,
    ),
]


def analyze(
    dumps: Dumps,
    out: Out = OUT,
    field_map: Maps = None,
    input_format: InputFormat = None,
    layout: Layout = None,
    join: Join = None,
    mode: Mode = None,
    preset: Reference = None,
    trainer: TrainerName = None,
    config: Config = None,
    steps: Steps = None,
    limit: Limit = None,
    on_fault: OnFault = OnFaultName.STOP,
    fail_on: FailOn = None,
    output: Output = None,
    no_plots: NoPlots = False,
    no_sweep: NoSweep = False,
    workers: Workers = None,
    device: Device = DeviceName.AUTO,
    chunk_tokens: ChunkTokens = CHUNK_TOKENS,
    quiet: Quiet = False,
) -> None:
    """Audit a dump: mismatch, health and every correction, in tables and a report folder."""
    fields, span = parse_maps(field_map), parse_steps(steps)
    gates = _gates(several(fail_on, "ROLLOUT_AUDIT_FAIL_ON"))
    _check_reference(preset, trainer, config)
    _echo(trainer, config, quiet=quiet)

    from rollout_audit.audit.analyze import analyze as audit
    from rollout_audit.dumps.dump import open_dump
    from rollout_audit.reports.folder import check_output, write_report
    from rollout_audit.reports.summary import report_document
    from rollout_audit.reports.terminal import emit

    check_output(out)
    _check_names(gates, trainer)
    dump = open_dump(dumps, field_map=fields, layout=layout, input_format=input_format, join=join)
    with progress(dump.total_rows, quiet=quiet) as advance:
        report = audit(
            dump,
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
    results = _evaluate(gates, report)
    written = write_report(report, out, plots=not no_plots)
    for picture, reason in written.failures.items():
        say(f"warning: {picture} was not drawn: {reason}")
    emit(report_document(report, [_gate_line(result) for result in results]), output.value if output else None)
    say(f"wrote {written.folder} ({len(written.files)} files)", quiet=quiet)
    raise typer.Exit(_exit_code(results))


def _echo(trainer: str | None, config: str | None, *, quiet: bool) -> None:
    if trainer is None:
        return
    from rollout_audit.audit.selection import config_text, config_warnings

    say(config_text(trainer, config or "{}"), quiet=quiet)
    for warning in config_warnings(trainer, config or "{}"):
        say(f"warning: {warning}", quiet=quiet)


def _gates(texts: Sequence[str]) -> list[Gate]:
    if not texts:
        return []
    from rollout_audit.audit.gates import parse_gate

    return [parse_gate(text) for text in texts]


def _check_reference(preset: str | None, trainer: str | None, config: str | None) -> None:
    if preset is not None and (trainer is not None or config is not None):
        raise UsageError("--preset and --config both name the reference correction; give one of them")
    if trainer is None and config is not None:
        raise UsageError("--config needs --trainer: whose keys are these?")


def _check_names(gates: Sequence[Gate], trainer: str | None) -> None:
    if not gates:
        return
    from rollout_audit.audit.gates import check_names
    from rollout_audit.corrections.presets import BY_DEFAULT

    own = [] if trainer is None else [f"{trainer}-config"]
    check_names(gates, [*own, *(preset.name for preset in BY_DEFAULT)])


def _evaluate(gates: Sequence[Gate], report: Report) -> list[GateResult]:
    if not gates:
        return []
    from rollout_audit.audit.gates import evaluate

    return [evaluate(gate, report) for gate in gates]


def _gate_line(result: GateResult) -> str:
    word = "failed" if result.failed else "unmeasured" if result.unmeasured else "passed"
    return f"gate {word}: {result.text}"


def _exit_code(results: Sequence[GateResult]) -> int:
    """A gate that holds outranks one that could not tell."""
    if any(result.failed for result in results):
        return 1
    return 2 if any(result.unmeasured for result in results) else 0
