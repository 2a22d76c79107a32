"""Outputs for machines, several in one run: `KIND` or `KIND=FILE`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout_audit.errors import UsageError, suggest
from rollout_audit.golden.document import check_document
from rollout_audit.golden.github import step_summary, workflow_commands
from rollout_audit.golden.gitlab import code_quality
from rollout_audit.golden.junit import junit_xml
from rollout_audit.golden.result import CheckResult
from rollout_audit.reports.terminal import markdown, plain
from rollout_audit.reports.utf8 import utf8

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
PRINTED = ("json", "plain", "markdown")
WITHOUT_FILE = ("github", "step-summary")
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, slots=True)
class Export:
    kind: str
    file: str | None
    text: str = ""
    """the option as given"""

    @property
    def written(self) -> str | None:
        """The file that is written; None for annotations on stderr."""
        return os.environ[SUMMARY_VARIABLE] if self.file is None and self.kind == "step-summary" else self.file


def parse_exports(texts: Sequence[str], golden: str | None = None) -> list[Export]:
    """Read `KIND=FILE` options.

    Raises:
        UsageError: an unknown kind, one that needs a file and has none, no $GITHUB_STEP_SUMMARY to write to, or two
            that write the same file, the golden file included.
    """
    exports = [_parse(text) for text in texts]
    taken = {} if golden is None else {_place(golden): f"the golden file {golden}"}
    for text, export in zip(texts, exports, strict=True):
        if (file := export.written) is None or (Path(file).exists() and not Path(file).is_file()):
            continue  # a device takes whatever comes; a folder is told when it cannot be written
        if (other := taken.setdefault(_place(file), f"--export {text!r}")) != f"--export {text!r}":
            raise UsageError(f"--export {text!r}: {other} is the same file; give each a file of its own")
    return exports


def write_exports(exports: Sequence[Export], result: CheckResult) -> tuple[list[str], list[str]]:
    """Write each: the files written, as named, and what could not be written, a sentence each.

    Annotations without a file go to stderr, which a runner reads too.
    """
    written: list[str] = []
    failures: list[str] = []
    for export in exports:
        try:
            _write(export, EXPORTS[export.kind](result))
        except Exception as error:  # whatever fails costs no other output
            reason = error.strerror if isinstance(error, OSError) else None
            failures.append(f"{export.written}: cannot write --export {export.kind} ({reason or error})")
        else:
            if export.file is not None:
                written.append(export.file)
    return written, failures


def _place(file: str) -> str:
    return os.path.realpath(file)


def _parse(text: str) -> Export:
    kind, equals, file = text.partition("=")
    if kind not in EXPORTS:
        raise UsageError(f"--export {text!r}: no kind {kind!r}{suggest(kind, EXPORTS)}; one of {', '.join(EXPORTS)}")
    if file == "-":
        raise UsageError(f"--export {text!r}: stdout carries the result{_on_stdout(kind)}")
    if file:
        return Export(kind, file, text)
    if equals or kind not in WITHOUT_FILE:
        raise UsageError(f"--export {text!r}: needs a file, --export {kind}=FILE")
    if kind == "step-summary" and not os.environ.get(SUMMARY_VARIABLE):
        raise UsageError(f"--export step-summary: ${SUMMARY_VARIABLE} is not set; give --export step-summary=FILE")
    return Export(kind, None, text)


def _on_stdout(kind: str) -> str:
    """What is printed anyway in that form, and what has to go elsewhere."""
    if kind in PRINTED:
        return f", and --format {kind} prints it in that form"
    return ", and annotations without a file go to stderr" if kind == "github" else f"; give --export {kind}=FILE"


def _write(export: Export, text: str) -> None:
    """A step summary is added to what other commands of the step have written."""
    if export.file is None and export.kind == "github":
        sys.stderr.write(text.encode(sys.stderr.encoding or "ascii", "backslashreplace").decode(sys.stderr.encoding))
        return
    path = Path(export.written or "")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb" if export.file else "ab") as out:
        out.write(utf8(text))
