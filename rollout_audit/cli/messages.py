"""What goes to stderr: the progress bar, and lines about what was done. stdout carries the result only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress", "say"]


def say(text: str, *, quiet: bool = False) -> None:
    """One line on stderr."""
    if not quiet:
        print(text, file=sys.stderr)


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
