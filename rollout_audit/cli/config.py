"""`rollout-audit config show`: every setting and where it comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from rollout_audit.cli.options import Output
from rollout_audit.cli.settings import known_options, option_key, variable_of
from rollout_audit.golden.settings import Settings, gates_of, settings, tolerances_of

__all__ = ["CONFIG_EPILOG", "config"]

CONFIG_EPILOG = """\b
Examples:
  rollout-audit config show
  rollout-audit config show --format json
  rollout-audit config show -- analyze run/dumps --workers 2
"""

config = typer.Typer(
    name="config", help="Show the settings in force.", no_args_is_help=True, rich_markup_mode=None, epilog=CONFIG_EPILOG
)

Line = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- COMMAND ...]", help="As this command line would have them.", show_default=False),
]
Row = tuple[str, str, str, str]
"""key, value, origin, command"""


@config.callback()
def _root() -> None:
    """Show the settings in force."""


@config.command(epilog=CONFIG_EPILOG)
def show(context: typer.Context, line: Line = None, output: Output = None) -> None:
    """Show each setting with its value and its origin: flag, environment, file or default."""
    from rollout_audit.reports.settings import Setting, settings_document
    from rollout_audit.reports.terminal import emit

    given = settings()
    commands = [line[0]] if line else list(known_options(context).commands)
    rows = [row for name in commands for row in _of_command(context, name, (line or [])[1:], given)]
    users: dict[tuple[str, str, str], list[str]] = {}
    for key, value, origin, command in rows:
        users.setdefault((key, value, origin), []).append(command)
    found = [Setting(*what, ", ".join(who)) for what, who in sorted(users.items())]
    found += [Setting(key, value, given.file, "check") for key, value in _tolerances(given)]
    found += [Setting(f"gate[{i}]", gate.text, given.file, "analyze, check") for i, gate in enumerate(gates_of(given))]
    emit(settings_document(found, given.file), output.value if output else None)


def _of_command(context: typer.Context, name: str, arguments: list[str], given: Settings) -> Iterator[Row]:
    root = context.find_root()
    command = root.command.get_command(root, name)  # type: ignore[attr-defined]
    known = known_options(context).commands.get(name)
    if command is None or known is None:
        root.command.resolve_command(root, [name])  # type: ignore[attr-defined]  # says what it may have meant
        return
    own = command.make_context(name, list(arguments), parent=root, resilient_parsing=True)
    for option in known.values():
        yield option_key(option), *_value(own, option, given), name


def _value(own: Any, option: Any, given: Settings) -> tuple[str, str]:
    source = own.get_parameter_source(option.name)
    origin = "default" if source is None else source.name
    variable = variable_of(option)
    if option.multiple and origin != "COMMANDLINE" and os.environ.get(variable):
        return os.environ[variable], variable
    names: Mapping[str, str] = {
        "COMMANDLINE": "flag",
        "ENVIRONMENT": variable,
        "DEFAULT_MAP": given.file,
        "DEFAULT": "default",
    }
    return _text(own.params.get(option.name)), names.get(origin, origin)


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case list() | tuple():
            return "; ".join(map(str, value))
    return str(getattr(value, "value", value))


def _tolerances(given: Settings) -> Iterator[tuple[str, str]]:
    for metric, table in tolerances_of(given).items():
        for key, value in table.items():
            yield f"check.metrics.{metric}.{key}", str(value)
