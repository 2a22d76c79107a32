"""What a cause is, and what a detector is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rollout_audit.audit.causes.exhibit import Exhibit
from rollout_audit.dumps.chunk import Severity

__all__ = ["Cause", "Detector", "Hit", "Severity"]


@dataclass(frozen=True)
class Hit:
    """What a detector found."""

    evidence: str
    confidence: float
    """in (0, 1]"""
    figures: Mapping[str, float | int] = field(default_factory=dict)
    harmless: bool = False
    """no health limit is at stake: the cause is shown as info"""
    by_elimination: bool = False
    """named only where nothing else is found at fault"""


@dataclass(frozen=True)
class Detector:
    """One row of the table of causes."""

    cause: str
    severity: Severity
    find: Callable[[Exhibit], Hit | None]
    rule: str
    """what it takes to be named, and why the threshold stands where it does"""
    alternative: str
    """what the figures would look like if it were something else"""
    advice: str


@dataclass(frozen=True)
class Cause:
    """A likely cause of the mismatch. Every text is a sentence for people; `figures` are its numbers."""

    cause: str
    severity: Severity
    confidence: float
    evidence: str
    figures: Mapping[str, float | int]
    alternative: str
    advice: str
