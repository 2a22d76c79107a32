"""From evidence to the causes that it speaks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout_audit.audit.causes.exhibit import Exhibit
from rollout_audit.audit.causes.model import Cause, Detector, Hit
from rollout_audit.audit.causes.table import DETECTORS
from rollout_audit.dumps.chunk import SEVERITIES

__all__ = ["find_causes"]


@dataclass(frozen=True)
class _Found:
    detector: Detector
    hit: Hit

    @property
    def cause(self) -> Cause:
        detector, hit = self.detector, self.hit
        return Cause(
            cause=detector.cause,
            severity="info" if hit.harmless else detector.severity,
            confidence=round(hit.confidence, 2),
            evidence=hit.evidence,
            figures=dict(hit.figures),
            alternative=detector.alternative,
            advice=detector.advice,
        )

    @property
    def is_fault(self) -> bool:
        return self.detector.severity != "info" and not self.hit.harmless and not self.hit.by_elimination


def find_causes(exhibit: Exhibit, detectors: Sequence[Detector] = DETECTORS) -> list[Cause]:
    """Gravest first, then the most certain; of equals in the order of the table. Empty: nothing can be said."""
    hits = [_Found(detector, hit) for detector in detectors if (hit := detector.find(exhibit)) is not None]
    causes = [found.cause for found in hits if not found.hit.by_elimination or _nothing_else(found, hits)]
    return sorted(causes, key=lambda cause: (SEVERITIES.index(cause.severity), -cause.confidence))


def _nothing_else(found: _Found, hits: Sequence[_Found]) -> bool:
    """Cancellation is no cause of its own, it goes with many."""
    return not any(other.is_fault and other.detector.cause != "cancellation" for other in hits if other is not found)
