"""An error over a value that nobody typed says where it stands: in the settings file, or in a variable."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from rollout_audit.cli.settings import known_options, variable_of
from rollout_audit.errors import ConfigError, RolloutAuditError
from rollout_audit.golden.settings import settings

__all__ = ["Commands"]

PROPOSAL = "; did you mean"
PARTS = re.compile(r"[,;]")


class Commands(TyperGroup):
    """The commands, whose errors name the origin of the value that they are about."""

    def invoke(self, ctx: Any) -> Any:
        typed = list(ctx.args)
        try:
            return super().invoke(ctx)
        except RolloutAuditError as error:
            places = list(_places(error, ctx, typed))
            if places:
                error.args = (f"{error} ({', '.join(places)})", *error.args[1:])
            raise


def _places(error: Exception, context: typer.Context, typed: Sequence[str]) -> Iterator[str]:
    """Where the values that the error is about were taken from, those that were typed aside."""
    text, command = str(error), context.invoked_subcommand or ""
    file, of_file = settings().file, (context.default_map or {}).get(command, {})
    flags = {word.partition("=")[0] for word in typed}
    told = text.partition(PROPOSAL)[0]
    for key, option in known_options(context).commands.get(command, {}).items():
        if flags & set(option.opts):
            continue
        variable = variable_of(option)
        value = os.environ.get(variable) or of_file.get(option.name)
        origin = variable if os.environ.get(variable) else file
        named = any(text.startswith(f"{name} ") or f"without {name} " in text for name in option.opts)
        in_words = f"{key} asked for" in text or (isinstance(error, ConfigError) and key == "config")
        if value and origin not in text and (named or in_words or any(_is_told(part, told) for part in _parts(value))):
            yield f"{key} = {value!r} in {origin}"


def _parts(value: object) -> list[str]:
    """A value, and what commas or semicolons part in it: a message may be about one of several."""
    items = value if isinstance(value, list) else [value]
    texts = [item for item in items if isinstance(item, str)]
    return [part for text in texts for part in (text, *map(str.strip, PARTS.split(text))) if part]


def _is_told(value: str, text: str) -> bool:
    """Messages quote a value, and begin with a file."""
    return repr(value) in text or text.startswith(f"{value}:")
