"""Options from the settings file and ROLLOUT_AUDIT_* variables: flag, then environment, then file, then default."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import typer

from rollout_audit.errors import UsageError, suggest
from rollout_audit.golden.settings import Settings, gates_of, settings, tolerances_of

__all__ = ["Known", "apply_settings", "in_force", "known_options", "option_key", "variable_of"]

PREFIX = "ROLLOUT_AUDIT_"
IN_HELP = re.compile(rf"\b{PREFIX}\w+")
"""Repeatable options, whose variables the commands part themselves, name them in their help"""
OTHER_VARIABLES = ("ROLLOUT_AUDIT_DEBUG", "ROLLOUT_AUDIT_REQUIRE_GPU")
"""Of the program as a whole, and of its tests"""
NOT_SETTINGS = ("help", "version", "debug", "update")
"""Options that are asked for by hand or not at all"""
TABLES = ("gate",)
TABLES_OF_CHECK = ("metrics",)

Parameter = Any
"""typer carries a copy of click of its own: its classes have no name that is always there"""


@dataclass(frozen=True)
class Known:
    """command → key → parameter."""

    commands: Mapping[str, Mapping[str, Parameter]]

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for options in self.commands.values() for key in options))

    @property
    def variables(self) -> list[str]:
        named = [variable_of(parameter) for options in self.commands.values() for parameter in options.values()]
        return list(dict.fromkeys([*filter(None, named), *OTHER_VARIABLES]))


def apply_settings(context: typer.Context, given: Settings) -> None:
    """Make the file's values the defaults of every command.

    Raises:
        UsageError: an unknown key or variable, or a value that the option refuses.
    """
    known = known_options(context)
    _check_variables(known)
    if given.tree:
        tolerances_of(given)
        gates_of(given)
        _check_keys(given, known)
        context.default_map = {name: _defaults(context, given, name, known.commands[name]) for name in known.commands}


def in_force(command: str) -> dict[str, Any]:
    """Parameter → value of a command of which nothing is typed: from the environment, the file, or its default.

    Raises:
        UsageError: as `apply_settings`.
    """
    from rollout_audit.cli.app import app

    root = typer.main.get_command(app)
    above = root.make_context("rollout-audit", [command], resilient_parsing=True)
    apply_settings(above, settings())  # type: ignore[arg-type]  # typer's own context, under another name
    own = root.get_command(above, command)  # type: ignore[attr-defined]
    return dict(own.make_context(command, [], parent=above, resilient_parsing=True).params)


def known_options(context: typer.Context) -> Known:
    """The options of all commands that a settings file may name."""
    commands = context.find_root().command.commands  # type: ignore[attr-defined]
    found = {name: {option_key(p): p for p in c.params if p.opts[0].startswith("-")} for name, c in commands.items()}
    return Known({n: {k: p for k, p in options.items() if k not in NOT_SETTINGS} for n, options in found.items()})


def option_key(parameter: Parameter) -> str:
    """`--chunk-tokens` is chunk_tokens in a file."""
    long = next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])
    return str(long).lstrip("-").replace("-", "_")


def variable_of(parameter: Parameter) -> str:
    """Its environment variable; empty where it has none."""
    if parameter.envvar:
        return str(parameter.envvar)
    found = IN_HELP.search(parameter.help or "")
    return found.group() if found else ""


def _check_variables(known: Known) -> None:
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known.variables:
            raise UsageError(f"unknown variable {name}{suggest(name, known.variables)}; unset it")


def _check_keys(given: Settings, known: Known) -> None:
    _check_spelt_once(given, "", given.tree)
    for key, value in given.tree.items():
        if key in known.commands and isinstance(value, dict) and key not in known.keys:
            allowed = [*known.commands[key], *(TABLES_OF_CHECK if key == "check" else ())]
            _check_spelt_once(given, f"{key}.", value)
            for own in value:
                if _plain(own) not in allowed:
                    raise given.unknown(f"{key}.", own, allowed)
        elif _plain(key) not in known.keys and key not in TABLES:
            raise given.unknown("", key, [*known.keys, *known.commands, *TABLES])


def _check_spelt_once(given: Settings, where: str, table: Mapping[str, Any]) -> None:
    """TOML itself refuses a key twice, and knows nothing of - for _."""
    for key in table:
        if _plain(key) != key and _plain(key) in table:
            raise UsageError(f"{given.file}: {where}{key} and {where}{_plain(key)} are one option; keep one")


def _defaults(
    context: typer.Context, given: Settings, command: str, options: Mapping[str, Parameter]
) -> dict[str, Any]:
    """Parameter → value: the command's own table before the keys above it."""
    own = given.tree.get(command, {})
    own = own if isinstance(own, dict) else {}
    found = {}
    for where, table in (("", given.tree), (f"{command}.", own)):
        for key, value in _values(table, options):
            if not os.environ.get(variable_of(options[key])):
                found[options[key].name] = _converted(context, f"{where}{key}", value, options[key], given)
    return found


def _values(table: Mapping[str, Any], options: Mapping[str, Parameter]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if _plain(key) in options:
            yield _plain(key), value


def _converted(context: typer.Context, where: str, value: object, option: Parameter, given: Settings) -> Any:
    """What the option would have been given on the command line.

    Raises:
        UsageError: the option would have refused it.
    """
    items = _items(value, option)
    if any(not isinstance(i, str | int | float) or isinstance(i, bool) != option.is_flag for i in items):
        raise given.refuse(where, value, f"expected what {option.opts[0]} takes")
    texts = [item if isinstance(item, bool) else str(item) for item in items]
    own = texts if option.multiple else texts[0]
    try:
        option.process_value(context, own)
    except Exception as error:  # typer's own, which has no name that is always there
        reason = " ".join(str(getattr(error, "message", error)).split()).removeprefix("Value error, ").rstrip(".")
        raise given.refuse(where, value, f"{reason[:1].lower()}{reason[1:]}") from None
    return own


def _items(value: object, option: Parameter) -> list[object]:
    """A table of fields is a list of FIELD=COLUMN; a list of names may stand where the option parts them by commas."""
    if isinstance(value, dict) and option_key(option) == "map":
        return [f"{field}={column}" for field, column in value.items()]
    if not isinstance(value, list):
        return [value]
    together = not option.multiple and all(isinstance(item, str) for item in value)
    return [",".join(value)] if together else value


def _plain(key: str) -> str:
    return key.replace("-", "_")
