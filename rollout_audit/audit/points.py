"""The points of a sweep in long form: one row a configuration and batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit.report import StageReport
from rollout_audit.audit.sweep import SETTINGS, settings_of
from rollout_audit.corrections.describe import describe
from rollout_audit.corrections.model import Correction
from rollout_audit.statistics.stages import METRICS_OF_STAGE
from rollout_audit.statistics.sweep import COLUMNS
from rollout_audit.statistics.sweep_errors import Answered

__all__ = ["Points", "grid_points", "long_form", "named_points"]

Points: TypeAlias = Mapping[str, Sequence[object] | NDArray[np.float64]]
PRESET = "preset"
"""The family of the named points"""


def grid_points(sweep: Answered, columns: Points, step: int | None = None) -> Points:
    """The points of a grid, over the whole dump or on one step; `columns` are those of `sweep_columns`.

    Where a point is not `exact`, `FIGURE_error` says how far its figure may be off.
    """
    size = len(sweep.corrections)
    errors = {} if sweep.exact.all() else {f"{name}_error": sweep.errors[name] for name in COLUMNS}
    exact = {"exact": sweep.exact.tolist()}
    return {"name": [None] * size, "step": [step] * size, **columns, **exact, **errors}


def named_points(
    corrections: Mapping[str, Correction],
    stages: Mapping[str, StageReport],
    step: int | None,
    left: Mapping[str, Mapping[str, float | int | None]] = MappingProxyType({}),
) -> Points:
    """Presets over the whole dump or on one step, which are exact always; `left` has what their stages do not."""
    size = len(stages)
    settings = [
        {**settings_of(corrections[name]), "family": PRESET, "formula": describe(corrections[name])} for name in stages
    ]
    figures = {
        name: np.array([_figure(of, name, left.get(own, {})) for own, of in stages.items()], dtype=np.float64)
        for name in COLUMNS
    }
    named: dict[str, Sequence[object]] = {"name": list(stages), "step": [step] * size, "exact": [True] * size}
    return {**named, **{s: [point[s] for point in settings] for s in SETTINGS}, **figures}


def long_form(parts: Iterable[Points]) -> Points:
    """All rows under each other; null where a part has no such column."""
    listed = list(parts)
    names = dict.fromkeys(name for part in listed for name in part)
    return {name: _under_each_other(name, listed) for name in names}


def _under_each_other(name: str, parts: Sequence[Points]) -> Sequence[object] | NDArray[np.float64]:
    columns: list[Any] = [part.get(name, np.full(len(part["step"]), np.nan)) for part in parts]
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns)
    return [value for column in columns for value in column]


def _figure(stages: StageReport, name: str, left: Mapping[str, float | int | None]) -> float:
    """At the stage where it is looked for first; NaN where it has no value."""
    stage = next((stage for stage, metrics in METRICS_OF_STAGE.items() if name in metrics), None)
    value = left.get(name) if stage is None else getattr(stages, stage)[name]
    return np.nan if value is None else float(value)
