"""Numbers that lost their digits on the way to the file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollout_audit.audit.causes.exhibit import Exhibit
from rollout_audit.audit.causes.model import Hit
from rollout_audit.audit.causes.sampled import Array, Flags

__all__ = ["is_coarse", "low_precision_storage"]

DISTINCT = 20
"""Distinct values; a float32 falls on the bfloat16 grid by chance once in 65,536"""
FIRST = 1024
"""Values that rule a grid out, nearly always"""
MATTERS = 0.1
"""Share of the mean |d| that rounding must make up; of the mean d² where a health limit is passed"""
SQUARE = 4.0 / 3.0
"""Mean square of an error that is even up to half a spacing, over its mean size squared"""


class _Grid(NamedTuple):
    name: str
    bits: int
    """of the mantissa, the leading one counted"""


GRIDS = (_Grid("bfloat16", 8), _Grid("float16", 11))


def low_precision_storage(exhibit: Exhibit) -> Hit | None:
    """Every value of a column lies on the bfloat16 or the float16 grid."""
    columns = {exhibit.rollout: exhibit.sample.rollout, exhibit.training: exhibit.sample.training}
    found = {name: grid for name, values in columns.items() if (grid := _grid_of(values)) is not None}
    if not found:
        return None
    errors = [_rounding(columns[name], grid) for name, grid in found.items()]
    rounding, log_ratio = float(sum(e.mean() for e in errors)), exhibit.sample.log_ratio
    share = rounding / max(float(np.abs(log_ratio).mean()), 1e-12)
    of_squares = SQUARE * float(sum((e**2).mean() for e in errors)) / max(float((log_ratio**2).mean()), 1e-24)
    names = " and ".join(f"every {name} lies on the {grid.name} grid" for name, grid in found.items())
    text = f"{names}: rounding alone moves d by {rounding:.2g} a token, {min(share, 1.0):.0%} of the mean |d|"
    figures = {"rounding": rounding, "share_of_mean_abs_d": share, "columns": len(found)}
    brain = any(grid.name == "bfloat16" for grid in found.values())
    matters = of_squares >= MATTERS if exhibit.past_limits else brain or share >= MATTERS
    return Hit(text, 0.95, figures, harmless=not matters)


def _grid_of(values: Array) -> _Grid | None:
    """The coarsest grid that holds every value other than 0."""
    some = values[values != 0]
    grid = next((grid for grid in GRIDS if _on_grid(some[:FIRST], grid).all() and _on_grid(some, grid).all()), None)
    return grid if len(np.unique(some[:FIRST] if grid is None else some)) >= DISTINCT else None


def is_coarse(values: Array) -> bool:
    """Whether half of the values could have been float16 or bfloat16: then a round one says nothing."""
    return not len(values) or bool(_on_grid(values, GRIDS[-1]).mean() >= 0.5)


def _on_grid(values: Array, grid: _Grid) -> Flags:
    mantissa, _ = np.frexp(values)
    scaled = np.ldexp(mantissa, grid.bits)
    return np.asarray(scaled == np.rint(scaled))


def _rounding(values: Array, grid: _Grid) -> Array:
    """[tokens] mean error of rounding to nearest: a quarter of the spacing."""
    _, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.where(values != 0, 0.25, 0.0), exponent - grid.bits))
