"""`rollout-audit check`: a regression gate on a golden dump."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rollout_audit.cli.gates import FailOn, asked_gates
from rollout_audit.cli.inputs import refuse_inputs
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
    Maps,
    ModeName,
    OnFaultName,
    Output,
    Quiet,
    RequireMarker,
    Workers,
    limit_option,
    mode_option,
    on_fault_option,
    steps_option,
    trainer_option,
)
from rollout_audit.cli.parsing import parse_maps, parse_presets, parse_steps, several
from rollout_audit.cli.reference import check_one, say_config
from rollout_audit.errors import ReportError, UsageError

if TYPE_CHECKING:
    from rollout_audit.golden.result import CheckResult

__all__ = ["CHECK_EPILOG", "check"]

CHECK_EPILOG = """\b
Examples:
  rollout-audit check tests/dump --golden tests/golden.json --update
  rollout-audit check tests/dump --golden tests/golden.json
  rollout-audit check tests/dump --golden tests/golden.json --export junit=check.xml --export github
  rollout-audit check tests/dump --golden tests/verl.json --trainer verl --config run/config.yaml --update
  rollout-audit check tests/dump --expect-bitwise

\b
Exit codes:
  0    every figure is the same or better
  1    a figure got worse, a gate failed, or a token differs where none may
  2    a figure could not be compared, or could not tell: no golden file, unreadable input
"""

GoldenFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", envvar="ROLLOUT_AUDIT_GOLDEN", help="The figures to hold the dump against.", show_default=False
    ),
]
Update = Annotated[bool, typer.Option("--update", help="Write the golden file from this dump.")]
Every = Annotated[
    bool, typer.Option("--all", envvar="ROLLOUT_AUDIT_ALL", help="Show the figures that have not changed, too.")
]
ExpectBitwise = Annotated[
    bool,
    typer.Option("--expect-bitwise", envvar="ROLLOUT_AUDIT_EXPECT_BITWISE", help="Fail at the first token with d ≠ 0."),
]
Presets = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        envvar="ROLLOUT_AUDIT_PRESETS",
        help="Corrections to run, or all; the first is the reference, which is held against the file step by step.",
        show_default="those of the golden file, else decoupled_token_is",
    ),
]
TrainerName = Annotated[
    str | None,
    trainer_option(
        "That trainer's correction is the reference, and what it would have logged is held to the file too.",
        "that of the golden file, with its settings",
    ),
]
OF_GOLDEN = "that of the golden file, else {}"
Mode = Annotated[ModeName | None, mode_option(OF_GOLDEN.format("decoupled where old_log_probs is recorded"))]
Steps = Annotated[str | None, steps_option("those of the golden file, else all")]
Limit = Annotated[int | None, limit_option(OF_GOLDEN.format("all"))]
OnFault = Annotated[OnFaultName | None, on_fault_option(OF_GOLDEN.format("stop"))]
Exports = Annotated[
    list[str] | None,
    typer.Option(
        "--export",
        metavar="KIND[=FILE]",
        help=(
            "Also write junit, gitlab, json, plain or markdown to a file, github annotations (stderr without a file) "
            "or a step-summary ($GITHUB_STEP_SUMMARY). Repeatable; in ROLLOUT_AUDIT_EXPORT parted by ;"
        ),
        show_default=False,
    ),
]


def check(
    dumps: Dumps,
    golden: GoldenFile = None,
    update: Update = False,
    every: Every = False,
    expect_bitwise: ExpectBitwise = False,
    presets: Presets = None,
    trainer: TrainerName = None,
    config: Config = None,
    fail_on: FailOn = None,
    export: Exports = None,
    field_map: Maps = None,
    input_format: InputFormat = None,
    layout: Layout = None,
    join: Join = None,
    require_marker: RequireMarker = None,
    mode: Mode = None,
    steps: Steps = None,
    limit: Limit = None,
    on_fault: OnFault = None,
    output: Output = None,
    workers: Workers = None,
    device: Device = DeviceName.AUTO,
    chunk_tokens: ChunkTokens = CHUNK_TOKENS,
    quiet: Quiet = False,
) -> None:
    """Hold a dump against a golden file: numbers as numbers, each with its tolerance and its direction."""
    from rollout_audit.golden.exports import parse_exports, write_exports

    if golden == "":
        raise UsageError("--golden '': no file is named; give the path of a golden file, or leave it out")
    exports = parse_exports(several(export, "ROLLOUT_AUDIT_EXPORT"), golden)
    targets = [(f"--export {each.text!r}", each.written) for each in exports if each.written is not None]
    own = [(f"--golden {golden!r} --update", golden)] if golden and update else []
    refuse_inputs([*targets, *own], dumps, config, input_format)

    def held() -> CheckResult:
        fields, span = parse_maps(field_map), parse_steps(steps)
        gates = asked_gates(fail_on)
        check_one(None, trainer, config)

        from rollout_audit.dumps.dump import open_dump
        from rollout_audit.golden.check import check as hold

        dump = open_dump(
            dumps, field_map=fields, layout=layout, input_format=input_format, join=join, require_marker=require_marker
        )
        with progress(dump.total_rows, quiet=quiet) as advance:
            return hold(
                dump,
                golden,
                update=update,
                expect_bitwise=expect_bitwise,
                presets=parse_presets(presets) or None,
                trainer=trainer,
                config=config,
                gates=gates,
                mode=mode.value if mode else None,
                on_fault=on_fault.value if on_fault else None,
                steps=span,
                limit=limit,
                device=device.value,
                workers=workers,
                chunk_tokens=chunk_tokens,
                dumps=dumps,
                on_progress=advance,
            )

    try:
        result = held()
    except Exception as error:
        from rollout_audit.golden.result import stopped

        for failure in write_exports(exports, stopped(golden, error))[1]:
            say(f"error: {failure}")
        raise

    from rollout_audit.golden.document import check_document, held_as_null
    from rollout_audit.reports.terminal import emit

    written, failures = write_exports(exports, result)
    say_config(trainer, config, quiet=quiet)
    emit(check_document(result, every=every), output.value if output else None)
    warn_of(result.findings, quiet=quiet)
    for text in held_as_null(result):
        say(text, quiet=quiet)
    for file in [*([golden] if result.updated and golden else []), *written]:
        say(f"wrote {file}", quiet=quiet)
    if failures:
        raise ReportError("; ".join(failures))
    raise typer.Exit(result.exit_code)
