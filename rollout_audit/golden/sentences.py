"""One comparison, and everything that went wrong, as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rollout_audit.golden.compare import Comparison
from rollout_audit.golden.document import DIRECTIONS
from rollout_audit.golden.result import CheckResult
from rollout_audit.reports.figures import number

__all__ = ["Remark", "remarks", "sentence"]


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to tell, with the figure it is about where there is one."""

    kind: Literal["error", "warning", "notice"]
    title: str
    text: str
    figure: str | None = None


def sentence(row: Comparison) -> str:
    """`kl_k3@pooled worse: 0.0112, expected 0.00965 (difference 0.00155, tolerance 9.6e-09, up is worse)`."""
    head = f"{row.key} {row.verdict}"
    if row.verdict == "new":
        return f"{head}: {number(row.got)}, not in the golden file"
    if row.difference is None:
        return f"{head}: expected {number(row.expected)}, got {number(row.got)}; {row.note}"
    note = f"; {row.note}" if row.note else ""
    return (
        f"{head}: {number(row.got)}, expected {number(row.expected)} (difference {number(row.difference, 3)}, "
        f"tolerance {number(row.tolerance, 3)}, {DIRECTIONS[row.direction]}){note}"
    )


def remarks(result: CheckResult) -> list[Remark]:
    """Errors, then warnings, then notices, the worst of each first."""
    order = ("error", "warning", "notice")
    return sorted(_remarks(result), key=lambda remark: order.index(remark.kind))


def _remarks(result: CheckResult) -> Iterator[Remark]:
    if result.stopped is not None:
        yield Remark("error", "nothing was checked", result.stopped)
    for gap in result.gaps:
        yield Remark("error", "damaged golden file", gap)
    if result.bitwise is not None:
        yield Remark("error", "not bitwise equal", f"first d ≠ 0: {result.bitwise.text}")
    elif result.agreement is not None and result.agreement.left_out:
        yield Remark("error", "not compared bit for bit", result.agreement.text)
    for gate in result.gates:
        if gate.verdict != "passed":
            kind: Literal["error", "warning"] = "warning" if gate.verdict == "warning" else "error"
            yield Remark(kind, f"gate {gate.verdict}", gate.text)
    for note in result.notes:
        yield Remark("warning", "another dump or other settings", note)
    for row in result.rows:
        if row.changed:
            kinds: Literal["error", "notice"] = "error" if row.failed and not result.updated else "notice"
            yield Remark(kinds, f"{row.key} {row.verdict}", sentence(row), str(row.key))
