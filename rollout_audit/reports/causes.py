"""Likely causes of the mismatch, gravest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollout_audit.audit.causes.model import Cause
from rollout_audit.audit.report import CauseReport
from rollout_audit.reports.tables import Block, Note

__all__ = ["causes_blocks"]

SURENESS = ((0.85, "high"), (0.55, "medium"), (0.0, "low"))


def causes_blocks(causes: Sequence[CauseReport | Cause]) -> Iterator[Block]:
    """A few lines a fault; one sentence where nothing is wrong or nothing can be said."""
    faults = [cause for cause in causes if cause.severity != "info"]
    if not causes:
        yield Note("Likely cause: none stands out; there is too little to go by, or the figures fit no known one.")
    elif not faults:
        texts = "; ".join(f"{cause.cause}, {_sureness(cause)}: {cause.evidence}" for cause in causes)
        yield Note(f"No fault of the plumbing shows ({texts}).")
    for cause in faults:
        yield Note(f"Likely cause: {cause.cause} ({cause.severity}, {_sureness(cause)}): {cause.evidence}.")
        yield Note(f"  What to do: {cause.advice}.")
        yield Note(f"  If it were something else: {cause.alternative}.", quiet=True)


def _sureness(cause: CauseReport | Cause) -> str:
    word = next(word for least, word in SURENESS if cause.confidence >= least)
    return f"{word} confidence {cause.confidence:.2f}"
