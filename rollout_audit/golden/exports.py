"""Outputs for machines, several in one run: `KIND` or `KIND=FILE`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout_audit.errors import ReportError, UsageError, suggest
from rollout_audit.golden.check import CheckResult
from rollout_audit.golden.document import check_document
from rollout_audit.golden.github import step_summary, workflow_commands
from rollout_audit.golden.gitlab import code_quality
from rollout_audit.golden.junit import junit_xml
from rollout_audit.reports.terminal import markdown, plain

__all__ = ["EXPORTS", "Export", "parse_exports", "write_exports"]

EXPORTS: Mapping[str, Callable[[CheckResult], str]] = {
    "junit": junit_xml,
    "github": workflow_commands,
    "step-summary": step_summary,
    "gitlab": code_quality,
    "json": lambda result: check_document(result, every=True).json(),
    "plain": lambda result: plain(check_document(result)),
    "markdown": lambda result: markdown(check_document(result)),
}
WITHOUT_FILE = ("github", "step-summary")
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, slots=True)
class Export:
    kind: str
    file: str | None


def parse_exports(texts: Sequence[str]) -> list[Export]:
    """Read `KIND=FILE` options.

    Raises:
        UsageError: an unknown kind, one that needs a file and has none, or no $GITHUB_STEP_SUMMARY to write to.
    """
    return [_parse(text) for text in texts]


def write_exports(exports: Sequence[Export], result: CheckResult) -> list[str]:
    """Write each; the files written, as named. Annotations without a file go to stderr, which a runner reads too.

    Raises:
        ReportError: a file cannot be written.
    """
    texts = [(export, EXPORTS[export.kind](result)) for export in exports]
    for export, text in texts:
        _write(export, text)
    return [export.file for export in exports if export.file is not None]


def _parse(text: str) -> Export:
    kind, equals, file = text.partition("=")
    if kind not in EXPORTS:
        raise UsageError(f"--export {text!r}: no kind {kind!r}{suggest(kind, EXPORTS)}; one of {', '.join(EXPORTS)}")
    if file:
        return Export(kind, file)
    if equals or kind not in WITHOUT_FILE:
        raise UsageError(f"--export {text!r}: needs a file, --export {kind}=FILE")
    if kind == "step-summary" and not os.environ.get(SUMMARY_VARIABLE):
        raise UsageError(f"--export step-summary: ${SUMMARY_VARIABLE} is not set; give --export step-summary=FILE")
    return Export(kind, None)


def _write(export: Export, text: str) -> None:
    """A step summary is added to what other commands of the step have written."""
    if export.file is None and export.kind == "github":
        sys.stderr.write(text.encode(sys.stderr.encoding or "ascii", "backslashreplace").decode(sys.stderr.encoding))
        return
    path = Path(export.file or os.environ[SUMMARY_VARIABLE])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if export.file else "a", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
            out.write(text)
    except OSError as error:
        raise ReportError(f"{path}: cannot write --export {export.kind} ({error.strerror or error})") from error
