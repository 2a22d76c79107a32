"""The rule that needs the order of a whole batch: its largest values go until the mean of the rest is small.

M2PO, second-moment trust region (AReaL `m2_threshold`): tokens leave in descending order of their statistic until
the mean of what is left is below the bound, strictly; at least one token stays. The mean of the k smallest values
grows with k, so every value below the bound stays, and only values at or above it need to be remembered and sorted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["BatchOrder", "Cut", "keeps"]

Array = NDArray[np.float64]
Places = NDArray[np.int64]


class Cut(NamedTuple):
    """The last token that stays: smaller values stay, of equal ones those at or before its place."""

    value: float
    place: tuple[int, int, int] = (-1, -1, -1)
    """file, row, position in the row"""


@dataclass
class BatchOrder:
    """What of a batch decides on its cut. The identity is a fresh instance; `absorb` leaves its argument alone."""

    bound: float
    below: int = 0
    """tokens whose value is below the bound"""
    excess: float = 0.0
    """Σ(value − bound) of these: what the others may use up"""
    values: list[Array] = field(default_factory=list)
    """at or above the bound"""
    places: list[Places] = field(default_factory=list)

    @classmethod
    def of(cls, bound: float, values: Array, places: Places) -> BatchOrder:
        """Of the tokens of a chunk: values [tokens], places [tokens, 3]."""
        small = values < bound
        excess = float((values[small] - bound).sum())
        return cls(bound, int(np.count_nonzero(small)), excess, [values[~small]], [places[~small]])

    def absorb(self, other: BatchOrder) -> None:
        self.below += other.below
        self.excess += other.excess
        self.values.extend(other.values)
        self.places.extend(other.places)

    @property
    def infeasible(self) -> bool:
        """Whether not even the smallest value is below the bound: the one token that stays does not meet it."""
        return self.below == 0 and any(map(len, self.values))

    def cut(self) -> Cut:
        """Where the batch is cut; ties go to the token that comes first in the dump."""
        values = np.concatenate([np.empty(0), *self.values])
        places = np.concatenate([np.empty((0, 3), dtype=np.int64), *self.places])
        order = np.lexsort((*places.T[::-1], values))
        running = self.excess + np.cumsum(values[order] - self.bound)
        staying = max(int(np.searchsorted(running, 0.0)), int(self.below == 0))
        if staying >= len(values):
            return Cut(math.inf)
        if not staying:
            return Cut(self.bound)
        last = order[staying - 1]
        file, row, position = places[last].tolist()
        return Cut(float(values[last]), (file, row, position))


def keeps(cut: Cut, values: Array, places: Places) -> NDArray[np.bool_]:
    """[tokens] bool: what a cut leaves of the tokens with those values and places."""
    file, row, position = places.T
    earlier_row = (file < cut.place[0]) | ((file == cut.place[0]) & (row < cut.place[1]))
    same_row = (file == cut.place[0]) & (row == cut.place[1])
    tied = (values == cut.value) & (earlier_row | (same_row & (position <= cut.place[2])))
    return np.asarray((values < cut.value) | tied)
