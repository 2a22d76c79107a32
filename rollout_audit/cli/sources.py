"""Options that exclude each other: the one that was said more directly counts, of flag, environment and file.

Only two that were said in the same place contradict each other. A settings file may hold what one command needs and
another has no use for.
"""

from __future__ import annotations

import typer

from rollout_audit.errors import UsageError

__all__ = ["one_reference", "refuse_reading_options", "said_by_flag", "source_of_rows"]

DIRECTNESS = ("COMMANDLINE", "ENVIRONMENT", "DEFAULT_MAP")
NOT_SAID = len(DIRECTNESS)
READING = {
    "field_map": "--map",
    "input_format": "--input-format",
    "layout": "--layout",
    "join": "--join",
    "mode": "--mode",
    "steps": "--steps",
    "limit": "--limit",
    "on_fault": "--on-fault",
}
"""parameter → option that reads a dump, and that a report has settled"""


def said_by_flag(context: typer.Context, parameter: str) -> bool:
    return _rank(context, parameter) == 0


def one_reference(
    context: typer.Context, preset: str | None, trainer: str | None, config: str | None
) -> tuple[str | None, str | None, str | None]:
    """Preset, trainer and config, where a preset and a trainer's configuration both name the correction."""
    own, rival = _rank(context, "preset"), min(_rank(context, "trainer"), _rank(context, "config"))
    if own == rival or NOT_SAID in (own, rival):
        return preset, trainer, config
    return (preset, None, None) if own < rival else (None, trainer, config)


def source_of_rows(context: typer.Context, dumps: list[str] | None, report: str | None, parameter: str) -> str | None:
    """The report that --from names, unless a dump on the command line comes before it."""
    return None if dumps and not said_by_flag(context, parameter) else report


def refuse_reading_options(context: typer.Context) -> None:
    """With --from: what a settings file says about reading dumps is not about this run, a flag is.

    Raises:
        UsageError: a flag that reads a dump.
    """
    for parameter, option in READING.items():
        if said_by_flag(context, parameter):
            raise UsageError(f"{option} reads a dump; with --from the report has settled it")


def _rank(context: typer.Context, parameter: str) -> int:
    source = context.get_parameter_source(parameter)
    return DIRECTNESS.index(source.name) if source is not None and source.name in DIRECTNESS else NOT_SAID
