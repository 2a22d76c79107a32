"""The arrays of a report, where it has them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit.pictures import Pictures
from rollout_audit.audit.report import Report

__all__ = ["in_line", "pictures_of"]


def pictures_of(report: Report) -> Pictures | None:
    """None for a report that was read from JSON, which keeps no arrays."""
    try:
        return report.pictures
    except ValueError:
        return None


def in_line(sweep: Mapping[str, object]) -> NDArray[np.bool_]:
    """[points] those whose thresholds follow each other: a band of k1 that is not reciprocal stands by itself."""
    lower, upper = (np.asarray(sweep[name], dtype=np.float64) for name in ("rule_lower", "rule_upper"))
    line: NDArray[np.bool_] = np.isnan(lower) | (lower == -upper)
    return line
