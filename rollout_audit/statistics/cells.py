"""Token weights binned by cell of the log-ratio, kept apart by step and by class.

A token's class says which of the named row, segment and probability filters keep it: bit i for filter i. Whatever a
named correction does to single tokens is then a union of classes cut at edges of the grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollout_audit.statistics.grid import CellGrid
from rollout_audit.statistics.population import Population

__all__ = ["CellTable", "Cells", "SharedCells", "cell_table", "population_of"]


SUMMED = ("counts", "sum_u", "sum_u_sq")
DENSE_CELLS = 1 << 22
"""Cells that one dense table may hold: groups beyond it are binned after one another"""


@dataclass(frozen=True)
class Cells:
    """Occupied cells in ascending order. Sums are relative to the ratio ρ₀ at the cell's midpoint.

    u = ρ / ρ₀ − 1 is small, so Σu and Σu² hold the cell's mean and spread to the last digits however large or
    small its ratios are.
    """

    index: NDArray[np.int64]
    counts: NDArray[np.int64]
    sum_u: NDArray[np.float64]
    sum_u_sq: NDArray[np.float64]

    @classmethod
    def total(cls, parts: Sequence[Cells]) -> Cells:
        """The sum of all parts, added in their order."""
        if len(parts) == 1:
            return parts[0]
        index = np.concatenate([part.index for part in parts]) if parts else np.empty(0, dtype=np.int64)
        counts = _by_cell(index, [p.counts.astype(np.float64) for p in parts])
        at = np.flatnonzero(counts)
        return cls(
            index=at.astype(np.int64),
            counts=counts[at].astype(np.int64),
            sum_u=_by_cell(index, [p.sum_u for p in parts])[at],
            sum_u_sq=_by_cell(index, [p.sum_u_sq for p in parts])[at],
        )


def _by_cell(index: NDArray[np.int64], parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return _added(index, np.concatenate([np.empty(0), *parts]))


def _added(place: NDArray[np.int64], values: NDArray[np.float64], size: int = 0) -> NDArray[np.float64]:
    return np.asarray(np.bincount(place, weights=values, minlength=size), dtype=np.float64)


@dataclass
class CellTable:
    """Cells by (step, class). Counts merge exactly in any order; sums in the order of the file."""

    parts: dict[tuple[int, int], Cells] = field(default_factory=dict)

    def absorb(self, other: CellTable) -> None:
        for key, cells in other.parts.items():
            mine = self.parts.get(key)
            self.parts[key] = cells if mine is None else Cells.total([mine, cells])

    def by_step(self) -> Mapping[int, Mapping[int, Cells]]:
        """step → class → cells."""
        steps: dict[int, dict[int, Cells]] = {}
        for (step, its_class), cells in sorted(self.parts.items(), key=itemgetter(0)):
            steps.setdefault(step, {})[its_class] = cells
        return steps

    def pooled(self) -> Mapping[int, Cells]:
        """class → cells of all steps."""
        parts: dict[int, list[Cells]] = {}
        for (_, its_class), cells in sorted(self.parts.items(), key=itemgetter(0)):
            parts.setdefault(its_class, []).append(cells)
        return {its_class: Cells.total(of_class) for its_class, of_class in parts.items()}


@dataclass(frozen=True)
class SharedCells:
    """Cells of several batches, all classes side by side: what a filter leaves is added up without a sort."""

    batch: NDArray[np.int64]
    """[cells] ascending"""
    index: NDArray[np.int64]
    """[cells] ascending within a batch"""
    place: NDArray[np.int64]
    """[entries] which of the cells"""
    classes: NDArray[np.int64]
    """[entries]"""
    sums: tuple[NDArray[np.float64], ...]
    """[entries] each: counts, Σu, Σu²"""

    @classmethod
    def of(cls, batches: Sequence[Mapping[int, Cells]], grid: CellGrid) -> SharedCells:
        """Each batch by class."""
        cells, places, lookup, start = [], [], np.empty(grid.cells, dtype=np.int64), 0
        for by_class in batches:
            index = np.concatenate([part.index for part in by_class.values()])
            occupied = np.flatnonzero(np.bincount(index, minlength=grid.cells))
            lookup[occupied] = np.arange(start, start + len(occupied))
            places.append(lookup[index])
            cells.append(occupied)
            start += len(occupied)
        parts = [(bits, part) for by_class in batches for bits, part in by_class.items()]
        return cls(
            batch=np.repeat(np.arange(len(batches)), [len(occupied) for occupied in cells]),
            index=np.concatenate(cells),
            place=np.concatenate(places),
            classes=np.repeat([bits for bits, _ in parts], [len(part.index) for _, part in parts]),
            sums=tuple(np.concatenate([getattr(p, name) for _, p in parts], dtype=np.float64) for name in SUMMED),
        )

    def population(
        self, grid: CellGrid, keep: int | None, greatest: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], Population]:
        """The tokens of the classes that filter `keep` leaves: the batch [atoms] of each atom, and the atoms.

        `greatest` [batches] is the greatest log-ratio of each.
        """
        kept = slice(None) if keep is None else np.flatnonzero(self.classes >> keep & 1)
        place, size = self.place[kept], len(self.index)
        counts, sum_u, sum_u_sq = (_added(place, x[kept], size) for x in self.sums)
        some = np.flatnonzero(counts)
        whole = counts[some].astype(np.int64)
        cells = Cells(self.index[some], whole, sum_u[some], sum_u_sq[some])
        batch = self.batch[some]
        return batch, population_of([cells], grid, greatest[batch])


def population_of(cells: Iterable[Cells], grid: CellGrid, greatest: float | NDArray[np.float64]) -> Population:
    """The sum of some classes as one population of token weights; `greatest` log-ratio of all, or of each atom's."""
    total = Cells.total(list(cells))
    at_middle, excess_at_middle = grid.ratios[total.index], grid.excesses[total.index]
    with np.errstate(over="ignore", invalid="ignore"):
        return Population(
            # A bound past the greatest log-ratio lets the last cell through, wherever in the cell it lies
            edges=np.minimum(grid.edges[total.index], greatest),
            values=grid.midpoints[total.index],
            counts=total.counts,
            ratio=at_middle * (total.counts + total.sum_u),
            excess=total.counts * excess_at_middle + at_middle * total.sum_u,
            spread=at_middle**2 * np.maximum(total.sum_u_sq - total.sum_u**2 / total.counts, 0.0),
        )


def cell_table(log_ratio: Tensor, step: Tensor, token_class: Tensor, grid: CellGrid) -> CellTable:
    """Bin one chunk: all arguments [tokens], step and class int64."""
    if log_ratio.numel() == 0:
        return CellTable()
    keys, group = _groups(step, token_class)
    cell = grid.cell_of(log_ratio)
    u = (log_ratio - torch.from_numpy(grid.midpoints).to(log_ratio.device)[cell]).expm1()
    at_once = max(1, DENSE_CELLS // grid.cells)
    if len(keys) <= at_once:
        return CellTable(_binned(keys, group, cell, u, grid.cells))
    table = CellTable()
    for start in range(0, len(keys), at_once):
        some = (group >= start) & (group < start + at_once)
        part = _binned(keys[start : start + at_once], group[some] - start, cell[some], u[some], grid.cells)
        table.parts.update(part)
    return table


def _binned(
    keys: Sequence[tuple[int, int]], group: Tensor, cell: Tensor, u: Tensor, cells: int
) -> dict[tuple[int, int], Cells]:
    """Dense tables of these groups, of which the occupied cells are kept."""
    flat, size = group * cells + cell, len(keys) * cells
    counts = torch.bincount(flat, minlength=size)
    sums = [_weighted_count(flat, weights, size) for weights in (u, u.square())]
    tables = [x.reshape(len(keys), cells).cpu().numpy() for x in (counts, *sums)]
    return {key: _occupied(*(t[i] for t in tables)) for i, key in enumerate(keys)}


def _groups(step: Tensor, token_class: Tensor) -> tuple[list[tuple[int, int]], Tensor]:
    """Distinct (step, class) pairs and the place of each token's pair among them.

    Steps come in runs (rows of one batch lie together), so they are ranked run by run instead of sorted.
    """
    runs, lengths = torch.unique_consecutive(step, return_counts=True)
    steps, rank = torch.unique(runs, return_inverse=True)
    classes = int(token_class.max()) + 1
    key = torch.repeat_interleave(rank, lengths) * classes + token_class
    present = torch.bincount(key, minlength=len(steps) * classes) > 0
    place = present.cumsum(0) - 1
    pairs = [(int(steps[k // classes]), k % classes) for k in present.nonzero()[:, 0].tolist()]
    return pairs, place[key]


def _weighted_count(flat: Tensor, weights: Tensor, size: int) -> Tensor:
    """bincount with weights; on CUDA through a sort, since atomic float additions differ from run to run."""
    if flat.device.type == "cpu":
        return torch.bincount(flat, weights=weights, minlength=size)
    order = torch.argsort(flat, stable=True)
    lengths = torch.bincount(flat, minlength=size)
    return torch.segment_reduce(weights[order], "sum", lengths=lengths, initial=0.0)


def _occupied(counts: NDArray[np.int64], sum_u: NDArray[np.float64], sum_u_sq: NDArray[np.float64]) -> Cells:
    at = np.flatnonzero(counts)
    return Cells(at, counts[at], sum_u[at], sum_u_sq[at])
