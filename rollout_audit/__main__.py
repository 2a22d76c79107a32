"""The entry point: runs a command and turns whatever happens into an exit code and at most one line."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from traceback import print_exc

import typer

from rollout_audit.errors import RolloutAuditError

__all__ = ["main", "process"]

DEBUG = "--debug"
COULD_NOT_TELL = 2
INTERRUPTED = 130
# typer has moved from click to a copy of its own: the base class is reached from what it exports
CommandError = typer.BadParameter.__mro__[2]
OFF = {"", "0", "false", "no", "off"}
OBJECTS_BEFORE_A_COLLECTION = 50_000
"""Importing torch makes a million objects that stay: at the usual 700, looking for cycles among them costs 0.3 s"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 done, 1 a gate failed, 2 could not tell, 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _finish(_run(arguments))
    except BaseException as error:
        return _explain(error, debug=_debug_asked(arguments))
    # Some versions of typer turn an interrupt into this code by themselves
    return _say("interrupted", INTERRUPTED) if code == INTERRUPTED else code


def process() -> int:
    """The command line as a process of its own, which ends with it."""
    gc.set_threshold(OBJECTS_BEFORE_A_COLLECTION)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started the process: nobody reads it, the verdict stands
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    leaving = _Leaving()
    atexit.register(leaving.now)
    leaving.code = main()
    return leaving.code


@dataclass
class _Leaving:
    """The last exit handler: taking torch apart piece by piece, which the system does at once, costs a second."""

    code: int | None = None

    def now(self) -> None:
        if self.code is None:  # on its way out with an exception
            return
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(self.code)


def _run(arguments: list[str]) -> int:
    from rollout_audit.cli.app import app

    code = app([a for a in arguments if a != DEBUG], prog_name="rollout-audit", standalone_mode=False)
    return code if isinstance(code, int) else 0


def _finish(code: int) -> int:
    """A reader that has closed the pipe changes no verdict, and no traceback follows at exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _explain(error: BaseException, *, debug: bool) -> int:
    if debug and not isinstance(error, SystemExit | typer.Exit):
        print_exc()
    match error:
        case typer.Exit():
            return _finish(error.exit_code)
        case KeyboardInterrupt() | typer.Abort():
            return _say("interrupted", INTERRUPTED)
        case RolloutAuditError():
            return _say(f"error: {_one_line(error)}", error.exit_code)
        case BrokenPipeError():
            return _finish(COULD_NOT_TELL)
        case OSError(errno=errno.ENOSPC):
            return _say(f"error: {_one_line(error)}; make room, or write elsewhere", COULD_NOT_TELL)
        case _ if isinstance(error, CommandError):
            return _say(_usage_text(error), COULD_NOT_TELL)
        case Exception():
            return _say(_bug_text(error), COULD_NOT_TELL)
    raise error


def _usage_text(error: BaseException) -> str:
    """What typer has to say, and the help that answers it."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if message.startswith("Usage:"):  # no arguments at all
        return message.rstrip()
    text = _one_line(message)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "rollout-audit"
    text = text.replace("Value error, ", "").rstrip(".")
    return f"error: {text[:1].lower()}{text[1:]}{'' if text.endswith('?') else ';'} see {command} --help"


def _bug_text(error: Exception) -> str:
    return (
        f"internal error: {type(error).__name__}: {_one_line(error)}; "
        "this is a bug, please report it with the command that you ran; --debug shows the traceback"
    )


def _one_line(error: object) -> str:
    return " ".join(str(error).split())


def _say(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


def _debug_asked(arguments: Sequence[str]) -> bool:
    """Read by hand: an error may come before the options are."""
    return DEBUG in arguments or os.environ.get("ROLLOUT_AUDIT_DEBUG", "").lower() not in OFF


if __name__ == "__main__":
    sys.exit(process())
