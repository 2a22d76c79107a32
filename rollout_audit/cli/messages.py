"""What goes to stderr: the progress bar, and lines about what was done. stdout carries the result only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress", "say", "say_config"]


def say(text: str, *, quiet: bool = False) -> None:
    """One line on stderr."""
    if not quiet:
        print(text, file=sys.stderr)


def say_config(trainer: str | None, config: str | None, *, quiet: bool = False) -> None:
    """What a trainer's configuration was read as, and what of it is probably not meant; nothing without a trainer."""
    if trainer is None:
        return
    from rollout_audit.audit.selection import config_text, config_warnings

    say(config_text(trainer, config or "{}"), quiet=quiet)
    for warning in config_warnings(trainer, config or "{}"):
        say(f"warning: {warning}", quiet=quiet)


@contextmanager
def progress(total_rows: int, *, quiet: bool = False) -> Iterator[Callable[[int], None] | None]:
    """A bar over rows where someone is watching, gone when done; else nothing."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("Reading"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total_rows)
        yield lambda rows: bar.advance(task, rows)
