"""The command line: one command a module, loaded as data; nothing heavy before a command runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from rollout_audit.cli.analyze import ANALYZE_EPILOG, analyze
from rollout_audit.cli.apply import APPLY_EPILOG, apply
from rollout_audit.cli.check import CHECK_EPILOG, check
from rollout_audit.cli.config import config
from rollout_audit.cli.convert import CONVERT_EPILOG, convert
from rollout_audit.cli.doctor import doctor
from rollout_audit.cli.explain import EXPLAIN_EPILOG, explain
from rollout_audit.cli.inspect import INSPECT_EPILOG, inspect
from rollout_audit.cli.merge import MERGE_EPILOG, merge
from rollout_audit.cli.metrics import METRICS_EPILOG, metrics
from rollout_audit.cli.options import Debug
from rollout_audit.cli.origins import Commands
from rollout_audit.cli.presets import PRESETS_EPILOG, presets
from rollout_audit.cli.recommend import RECOMMEND_EPILOG, recommend
from rollout_audit.cli.schema import schema
from rollout_audit.cli.settings import apply_settings
from rollout_audit.cli.sweep import SWEEP_EPILOG, sweep
from rollout_audit.golden.settings import settings

__all__ = ["app"]

EPILOG = """\b
Exit codes:
  0    done
  1    a gate failed, check found something worse, inspect found errors, or nothing keeps the limits of recommend
  2    could not tell: usage, unreadable or empty input, internal error
  130  interrupted

\b
Start with:
  rollout-audit inspect run/dumps
  rollout-audit analyze run/dumps --out report
"""

app = typer.Typer(
    name="rollout-audit",
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"rollout-audit {version('rollout-audit')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version.")
]


@app.callback()
def root(context: typer.Context, _version: Version = False, _debug: Debug = False) -> None:
    """Measure how far rollout engine and trainer are apart, and what each correction would do about it."""
    apply_settings(context, settings())


COMMANDS: tuple[tuple[Callable[..., None], str, str], ...] = (
    (analyze, "Audit a dump: the main job.", ANALYZE_EPILOG),
    (metrics, "Compute the metrics that one trainer logs.", METRICS_EPILOG),
    (sweep, "Try other thresholds, with the dump or without.", SWEEP_EPILOG),
    (merge, "Join reports of several machines or runs.", MERGE_EPILOG),
    (recommend, "Name the mildest correction that suffices.", RECOMMEND_EPILOG),
    (inspect, "Show what a dump holds and its faults.", INSPECT_EPILOG),
    (convert, "Write a dump of any format as Parquet.", CONVERT_EPILOG),
    (apply, "Write the weights and masks of a correction.", APPLY_EPILOG),
    (presets, "List the corrections, or show one.", PRESETS_EPILOG),
    (explain, "Explain a metric.", EXPLAIN_EPILOG),
    (check, "Hold a dump against a golden file.", CHECK_EPILOG),
    (schema, "Print the JSON Schema of a file.", ""),
    (doctor, "Check what this machine offers.", ""),
)
for function, short_help, epilog in COMMANDS:
    app.command(short_help=short_help, epilog=epilog or None)(function)
app.add_typer(config)
