"""The arrays that pictures and tables are made of, gathered from what was evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rollout_audit.audit.evaluated import Evaluated
from rollout_audit.audit.pictures import Histogram, Pictures
from rollout_audit.audit.points import Points, grid_points, long_form, named_points
from rollout_audit.audit.report import CorrectionReport, StepReport
from rollout_audit.audit.states import pack, row_columns_of
from rollout_audit.audit.sweep import sweep_columns
from rollout_audit.statistics.scope import Scope

__all__ = ["arrays"]


def arrays(found: Evaluated, whole: Sequence[CorrectionReport], steps: Sequence[StepReport]) -> Pictures:
    """Arrays of the primary pair, with what the report says of each correction and step."""
    primary = found.basis.primary
    return Pictures(
        histogram=_histogram(found.pooled[primary]),
        sample=found.state.token_sample(found.basis.sample_stride),
        sequences=row_columns_of(found.basis, found.state, found.places.uids),
        states=pack(found.basis, found.state),
        sweep=None if found.sweep is None else found.sweep_columns,
        points=None if found.sweep is None else long_form(_points(found, whole, steps)),
    )


def _points(found: Evaluated, whole: Sequence[CorrectionReport], steps: Sequence[StepReport]) -> Iterator[Points]:
    """The grid over the whole dump, presets over the whole dump and by step, and the grid by step where asked."""
    assert found.sweep is not None
    corrections = found.basis.options.corrections
    yield grid_points(found.sweep, found.sweep_columns)
    yield named_points(corrections, {c.name: c.stages for c in whole}, None, _left(whole))
    for step in steps:
        yield named_points(corrections, step.corrections, step.step)
    if found.basis.options.per_step_grid:
        yield from (grid_points(sweep, sweep_columns(sweep), step) for step, sweep in found.step_sweeps())


def _left(corrections: Sequence[CorrectionReport]) -> Mapping[str, Mapping[str, float | int | None]]:
    """What of each correction is said of the tokens that it keeps, besides its stages."""
    return {c.name: {"kept_kl_k3": c.kept_kl_k3, "kept_length_mean": c.kept_length_mean} for c in corrections}


def _histogram(scope: Scope) -> Histogram:
    """The occupied span of the grid, cells of the fine bins and cuts as they are."""
    cells = scope.token_cells()
    if not len(cells.edges):
        return Histogram(np.zeros(1), np.empty(0, dtype=np.int64))
    grid = scope.grid.edges
    place = np.searchsorted(grid, cells.edges)
    first, last = int(place[0]), int(place[-1])
    counts = np.zeros(last - first + 1, dtype=np.int64)
    counts[place - first] = cells.counts
    low = grid[first - 1] if first else min(float(scope.rows["min_d"].min()), grid[0]) - 1.0
    edges = np.concatenate([[low], grid[first : last + 1]])
    edges[-1] = min(edges[-1], max(float(scope.rows["max_d"].max()), edges[-2]))
    return Histogram(edges, counts)
