"""What a check found, and its exit code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollout_audit.audit.bitwise import Agreement, FirstDifference
from rollout_audit.audit.report import FindingReport
from rollout_audit.errors import RolloutAuditError
from rollout_audit.golden.compare import Comparison

if TYPE_CHECKING:
    from rollout_audit.audit.gates import GateResult

__all__ = ["CheckResult", "stopped"]


@dataclass(frozen=True)
class CheckResult:
    """What a check found."""

    golden: str | None
    """the golden file as named; None where none was asked for"""
    rows: Sequence[Comparison] = ()
    """worst first"""
    notes: Sequence[str] = ()
    """said before anything else: another dump, other settings"""
    gates: Sequence[GateResult] = ()
    gaps: Sequence[str] = ()
    """what the golden file has lost since it was written"""
    agreement: Agreement | None = None
    """bit for bit; None where it was not asked for"""
    reading: str = ""
    """which part of the dump was read, where not all of it"""
    updated: bool = False
    nulls: Mapping[str, str] | None = None
    """after an update: figures without a value → why"""
    golden_lines: Mapping[str, int] | None = None
    """figure → its line in the golden file, for annotations"""
    findings: Sequence[FindingReport] = ()
    """what reading the dump found"""
    stopped: str | None = None
    """why nothing could be checked, for outputs that are written all the same"""

    @property
    def exit_code(self) -> int:
        """0 the same or better, 1 something got worse or a gate failed, 2 something could not be compared."""
        if self.stopped is not None:
            return 2
        verdicts = set() if self.updated else {row.verdict for row in self.rows}
        gates = {gate.verdict for gate in self.gates}
        if "worse" in verdicts or "failed" in gates or self.bitwise is not None:
            return 1
        left_out = self.agreement is not None and self.agreement.left_out > 0
        return 2 if "unmeasured" in verdicts | gates or self.gaps or left_out else 0

    @property
    def bitwise(self) -> FirstDifference | None:
        """The first token on which the two policies differ, where they must not."""
        return None if self.agreement is None else self.agreement.first

    def count(self, verdict: str) -> int:
        return sum(row.verdict == verdict for row in self.rows)

    @property
    def nulls_as_approved(self) -> int:
        """Figures among the same ones that have no value, as when the file was written."""
        return sum(row.is_null for row in self.rows)


def stopped(golden: str | os.PathLike[str] | None, error: Exception) -> CheckResult:
    """The result of a check that an error ended: outputs for machines carry its one line."""
    text = " ".join(str(error).split())
    known = isinstance(error, RolloutAuditError)
    return CheckResult(
        None if golden is None else os.fspath(golden),
        stopped=text if known else f"internal error: {type(error).__name__}: {text}",
    )
