"""Where nothing keeps the limits: what comes nearest, and which limits to relax for it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit.advice import Candidate
from rollout_audit.audit.best import SweepPoints
from rollout_audit.audit.limits import Limit, Limits

__all__ = ["nearest_place", "overstep", "relaxed"]

Array = NDArray[np.float64]

TINY = 1e-12


def overstep(limits: Limits, candidate: Candidate) -> float:
    """By how much it is past its limits, each in units of the limit; inf where a figure has no value."""
    broken = limits.broken(candidate.figures, str(candidate.settings["level"]))
    values = {key: math.inf if value is None else value for key, value in broken.items()}
    return sum(float(_past(li, b, np.array(values[li.key]))) for li, b in limits.pairs() if li.key in values)


def nearest_place(points: SweepPoints, limits: Limits, *, weights_only: bool) -> int | None:
    """The point of the sweep that is least past the limits; None where no figure is known."""
    if not len(points):
        return None
    parts = {limit.key: _past(limit, bound, points.figure(limit.key)) for limit, bound in limits.pairs()}
    parts["kept_kl_k3"] = np.where(points.weighted, 0.0, parts["kept_kl_k3"])
    able = points.weighted if weights_only else points.weighted | points.unweighted
    total = np.where(able & points.balanced, np.sum(list(parts.values()), axis=0), np.nan)
    return int(np.nanargmin(total)) if np.isfinite(total).any() else None


def relaxed(limits: Limits, candidate: Candidate) -> list[str]:
    """Options that would let it in, in two digits."""
    broken = limits.broken(candidate.figures, str(candidate.settings["level"]))
    values = [(limit, broken[limit.key]) for limit, _ in limits.pairs() if limit.key in broken]
    return [f"{limit.option} {_admitting(limit, value)}" for limit, value in values if value is not None]


def _past(limit: Limit, bound: float, value: Array) -> Array:
    beyond = bound - value if limit.comparison == "≥" else value - bound
    past: Array = np.maximum(beyond, 0.0) / max(bound, TINY)
    return past


def _admitting(limit: Limit, value: float) -> str:
    """The value rounded so that it is let in."""
    if not value:
        return "0"
    scale = 10.0 ** (1 - math.floor(math.log10(abs(value))))
    rounded = math.floor(value * scale) if limit.comparison == "≥" else math.ceil(value * scale)
    most = math.inf if limit.key == "kept_kl_k3" else 1.0
    return f"{min(rounded / scale, most):.2g}"
