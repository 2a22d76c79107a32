"""The cell of a log-ratio is the number of edges below it, found from its bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollout_audit.statistics import cells
from rollout_audit.statistics.cells import cell_table
from rollout_audit.statistics.grid import FINE_BINS, QUANTILE_ERROR, CellGrid

GRID = CellGrid.with_cuts([0.3, -0.2, 1.5, 1e-9, 0.0, 64.0, np.inf])
EXTREMES = [0.0, -0.0, 5e-324, -5e-324, 2.0**-30, -(2.0**-30), 64.0, -64.0, 1e300, -1e300]


@given(st.lists(st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.floats(-1, 1)), min_size=1))
def test_cell_is_the_number_of_edges_below(values: list[float]) -> None:
    d = torch.tensor([*values, *EXTREMES, *GRID.edges[:-1].tolist()], dtype=torch.float64)
    expected = np.searchsorted(GRID.edges, d.numpy(), side="left")
    np.testing.assert_array_equal(GRID.cell_of(d).numpy(), expected)


def test_a_cut_on_an_edge_or_at_infinity_makes_no_cell() -> None:
    assert GRID.cells == FINE_BINS + 5
    assert len(GRID.edges) == GRID.cells


def test_midpoints_are_as_close_as_stated() -> None:
    edges = CellGrid().edges
    inside = (np.abs(edges) > 2.0**-30) & (np.abs(edges) < 64)
    middle = CellGrid().midpoints
    assert np.max(np.abs(middle[inside] - edges[inside]) / np.abs(middle[inside])) <= QUANTILE_ERROR * (1 + 1e-9)


def test_many_groups_are_binned_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk with thousands of steps must not ask for a table of steps × cells."""
    d = torch.linspace(-1, 1, 500, dtype=torch.float64)
    steps, classes = torch.arange(500) // 5, torch.arange(500) % 2
    whole = cell_table(d, steps, classes, GRID)
    monkeypatch.setattr(cells, "DENSE_CELLS", 3 * GRID.cells)
    in_turns = cell_table(d, steps, classes, GRID)
    assert in_turns.parts.keys() == whole.parts.keys()
    for key, part in whole.parts.items():
        np.testing.assert_array_equal(in_turns.parts[key].index, part.index)
        np.testing.assert_array_equal(in_turns.parts[key].sum_u, part.sum_u)


def test_a_cut_may_lie_past_every_ratio() -> None:
    """Where nothing can be inside a bound, its end is the largest float64: its cell has no ratio, and no warning."""
    grid = CellGrid.with_cuts([np.finfo(np.float64).max])
    assert np.isinf(grid.ratios[-1])
    assert np.isinf(grid.excesses[-1])
