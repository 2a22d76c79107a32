"""The options that several commands share. Every one may come from a ROLLOUT_AUDIT_* variable."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from rollout_audit.dumps.formats.table import FORMATS

__all__ = [
    "CHUNK_TOKENS",
    "LAYOUTS_HELP",
    "TRAINERS_HELP",
    "ChunkTokens",
    "Config",
    "Debug",
    "Device",
    "DeviceName",
    "Digest",
    "DigestName",
    "Dumps",
    "InputFormat",
    "Join",
    "Layout",
    "Limit",
    "Maps",
    "Mode",
    "ModeName",
    "NewOut",
    "NoPlots",
    "OnFault",
    "OnFaultName",
    "Output",
    "OutputFormat",
    "PerStepGrid",
    "Quiet",
    "ReportOut",
    "RequireMarker",
    "Steps",
    "Workers",
    "limit_option",
    "mode_option",
    "on_fault_option",
    "steps_option",
    "trainer_option",
]


TRAINERS_HELP = (
    "One of verl, verl-2026-01, verl-2025-11, verl-2025-10, miles, slime, trl, nemo-rl, openrlhf, open-instruct, "
    "skyrl, areal, roll, ms-swift, prime-rl."
)
"""As the table of trainers, without loading it: a test holds them equal"""


def trainer_option(what_for: str, default: str | bool = False) -> Any:
    """--trainer: what a command takes the trainer for, and what stands in for one that is not given."""
    return typer.Option(
        metavar="NAME",
        envvar="ROLLOUT_AUDIT_TRAINER",
        help=f"{what_for} {TRAINERS_HELP}",
        show_default=default,
    )


LAYOUTS_HELP = "One of padded, packed, trl, skyrl, roll, areal, areal-rollout."
"""As the table of layouts, without loading NumPy: a test holds them equal"""

CHUNK_TOKENS = 2**19
"""As `dumps.dump.DEFAULT_CHUNK_TOKENS`, without loading it: a test holds them equal"""


class OutputFormat(StrEnum):
    TABLE = "table"
    PLAIN = "plain"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    MARKDOWN = "markdown"


class ModeName(StrEnum):
    DECOUPLED = "decoupled"
    BYPASS = "bypass"


class OnFaultName(StrEnum):
    STOP = "stop"
    DROP = "drop"


class DigestName(StrEnum):
    FOOTER = "footer"
    FULL = "full"


class DeviceName(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


Dumps = Annotated[
    list[str],
    typer.Argument(metavar="DUMP...", help="Files, folders (searched recursively), globs or URIs.", show_default=False),
]
Maps = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="FIELD=COLUMN",
        help="Read a field from a column of that name. Repeatable; in ROLLOUT_AUDIT_MAP parted by ;",
        show_default=False,
    ),
]
Layout = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        envvar="ROLLOUT_AUDIT_LAYOUT",
        help=f"How tensors are laid out, where content cannot tell. {LAYOUTS_HELP}",
        show_default="from content",
    ),
]
InputFormat = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        envvar="ROLLOUT_AUDIT_INPUT_FORMAT",
        help=f"Read every file as this format: {', '.join(FORMATS)}.",
        show_default="from content",
    ),
]
Join = Annotated[
    str | None,
    typer.Option(
        metavar="DUMP",
        envvar="ROLLOUT_AUDIT_JOIN",
        help="A second dump that adds the trainer's log-probs to a rollout-only one, row by row by uid.",
        show_default=False,
    ),
]
RequireMarker = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        envvar="ROLLOUT_AUDIT_REQUIRE_MARKER",
        help=(
            "Leave out, and say, what has no file of that name beside it (STABLE, _SUCCESS): it is still being written."
        ),
        show_default=False,
    ),
]


def mode_option(default: str) -> Any:
    return typer.Option(
        envvar="ROLLOUT_AUDIT_MODE",
        help="Which training policy: old_log_probs (decoupled) or log_probs (bypass).",
        show_default=default,
    )


def steps_option(default: str) -> Any:
    return typer.Option(
        metavar="A:B",
        envvar="ROLLOUT_AUDIT_STEPS",
        help="First step and the one after the last; either may be left out.",
        show_default=default,
    )


def limit_option(default: str) -> Any:
    return typer.Option(
        metavar="N", min=1, envvar="ROLLOUT_AUDIT_LIMIT", help="Only the first N rows.", show_default=default
    )


def on_fault_option(default: str | bool = True) -> Any:
    return typer.Option(
        envvar="ROLLOUT_AUDIT_ON_FAULT",
        help="At a faulty value: stop with exit 2, or drop the sequence and list it.",
        show_default=default,
    )


Mode = Annotated[ModeName | None, mode_option("decoupled where old_log_probs is recorded")]
Steps = Annotated[str | None, steps_option("all")]
Limit = Annotated[int | None, limit_option("all")]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        envvar="ROLLOUT_AUDIT_WORKERS",
        help="Threads that compute; figures do not depend on it.",
        show_default="one a core, at most 8",
    ),
]
Device = Annotated[
    DeviceName,
    typer.Option(envvar="ROLLOUT_AUDIT_DEVICE", help="Where the arithmetic runs; auto takes CUDA."),
]
Digest = Annotated[
    DigestName,
    typer.Option(
        envvar="ROLLOUT_AUDIT_DIGEST",
        help="What the digest of an input covers: its size and footer, or all of its contents.",
    ),
]
ChunkTokens = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        max=2**31 - 1,
        envvar="ROLLOUT_AUDIT_CHUNK_TOKENS",
        help="Tokens that one unit of work holds; bounds the memory.",
    ),
]
OnFault = Annotated[OnFaultName, on_fault_option()]
Output = Annotated[
    OutputFormat | None,
    typer.Option(
        "--format",
        envvar="ROLLOUT_AUDIT_FORMAT",
        help="How the result is printed.",
        show_default="table on a terminal, plain in a pipe",
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
ReportOut = Annotated[
    str,
    typer.Option(
        "--out",
        metavar="DIR",
        envvar="ROLLOUT_AUDIT_OUT",
        help="Folder for the report; an older report is replaced.",
    ),
]
NewOut = Annotated[
    str,
    typer.Option(
        "--out", metavar="DIR", envvar="ROLLOUT_AUDIT_OUT", help="A folder that is new or empty.", show_default=False
    ),
]
PerStepGrid = Annotated[
    bool,
    typer.Option("--per-step-grid", envvar="ROLLOUT_AUDIT_PER_STEP_GRID", help="Every point on every step too."),
]
NoPlots = Annotated[bool, typer.Option("--no-plots", envvar="ROLLOUT_AUDIT_NO_PLOTS", help="Draw no pictures.")]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", envvar="ROLLOUT_AUDIT_QUIET", help="No progress and no notes on stderr."),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        envvar="ROLLOUT_AUDIT_DEBUG",
        help="Show the traceback of an error; may stand after the command too.",
    ),
]
