"""What goes to stderr: the progress bar, and lines about what was done. stdout carries the result only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollout_audit.audit.report import FindingReport
    from rollout_audit.dumps.chunk import Finding

__all__ = ["progress", "say", "warn_of"]

WARNINGS_SHOWN = 8


def say(text: str, *, quiet: bool = False) -> None:
    """One line on stderr."""
    if not quiet:
        print(text, file=sys.stderr)


def warn_of(findings: Iterable[Finding | FindingReport], *, quiet: bool = False) -> None:
    """The warnings among what was found, a line each, for commands that show no table of them."""
    warnings = [finding for finding in findings if finding.severity == "warning"]
    for finding in warnings[:WARNINGS_SHOWN]:
        place = f"{finding.file}: " if finding.file else ""
        say(f"warning: {place}{finding.message}", quiet=quiet)
    if len(warnings) > WARNINGS_SHOWN:
        more = len(warnings) - WARNINGS_SHOWN
        say(f"warning: and {more} more; `rollout-audit inspect` shows all", quiet=quiet)


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
