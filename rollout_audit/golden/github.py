"""For GitHub Actions: annotations as workflow commands, and the step summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rollout_audit.golden.document import check_document
from rollout_audit.golden.result import CheckResult
from rollout_audit.golden.sentences import Remark, remarks
from rollout_audit.reports.terminal import markdown

__all__ = ["step_summary", "workflow_commands"]

MOST_OF_A_KIND = 10
"""GitHub shows so many of each kind a step and drops the rest"""
IN_TEXT = {"%": "%25", "\r": "%0D", "\n": "%0A"}
IN_PROPERTY = {**IN_TEXT, ":": "%3A", ",": "%2C"}


def workflow_commands(result: CheckResult) -> str:
    """`::error file=…,line=…,title=…::text`, at most ten of a kind, worst first; the rest is counted at the end."""
    return "".join(f"{line}\n" for line in _annotations(result))


def step_summary(result: CheckResult) -> str:
    """Markdown for $GITHUB_STEP_SUMMARY: the outcome, and a table of the figures that moved."""
    return f"## rollout-audit check\n\n{markdown(check_document(result))}"


def _annotations(result: CheckResult) -> Iterator[str]:
    told: Counter[str] = Counter()
    for remark in remarks(result):
        told[remark.kind] += 1
        if told[remark.kind] <= MOST_OF_A_KIND - (remark.kind == "notice"):
            yield _command(remark, result)
    left = sum(max(0, count - MOST_OF_A_KIND + (kind == "notice")) for kind, count in told.items())
    if left:
        yield f"::notice title=rollout-audit check::and {left} more, in the step summary"


def _command(remark: Remark, result: CheckResult) -> str:
    line = (result.golden_lines or {}).get(remark.figure or "", 1)
    place = {} if result.golden is None else {"file": result.golden, "line": str(line)}
    properties = {**place, "title": remark.title}
    told = ",".join(f"{name}={_escaped(value, IN_PROPERTY)}" for name, value in properties.items())
    return f"::{remark.kind} {told}::{_escaped(remark.text, IN_TEXT)}"


def _escaped(text: str, letters: dict[str, str]) -> str:
    return "".join(letters.get(letter, letter) for letter in text)
