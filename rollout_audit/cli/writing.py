"""The end of every command that writes a report folder: the folder, the result on stdout, what was done on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_audit.cli.messages import say

if TYPE_CHECKING:
    from rollout_audit.audit.report import Report
    from rollout_audit.cli.options import OutputFormat
    from rollout_audit.reports.tables import Document

__all__ = ["write_and_show"]


def write_and_show(
    report: Report, document: Document, out: str, output: OutputFormat | None, *, plots: bool, quiet: bool
) -> None:
    """Write the folder before anything is printed: a reader that closes the pipe loses no report."""
    from rollout_audit.reports.folder import write_report
    from rollout_audit.reports.terminal import emit

    written = write_report(report, out, plots=plots)
    for picture, reason in written.failures.items():
        say(f"warning: {picture} was not drawn: {reason}")
    emit(document, output.value if output else None)
    say(f"wrote {written.folder} ({len(written.files)} files)", quiet=quiet)
