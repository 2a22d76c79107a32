"""The arrays of a report, where it has them."""

from __future__ import annotations

from rollout_audit.audit.pictures import Pictures
from rollout_audit.audit.report import Report

__all__ = ["pictures_of"]


def pictures_of(report: Report) -> Pictures | None:
    """None for a report that was read from JSON, which keeps no arrays."""
    try:
        return report.pictures
    except ValueError:
        return None
