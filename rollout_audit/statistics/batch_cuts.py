"""Rules that need the order of a whole batch (M2PO), answered for a dump that is read chunk by chunk.

A first pass keeps of each step what decides (`BatchOrder`: a count, a sum and the values at or above the bound);
its cuts then say of every token, wherever it stands, whether it is among those that stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from rollout_audit.corrections.batch_order import BatchOrder, Cut, keeps
from rollout_audit.corrections.direct import statistic_bounds, token_statistic
from rollout_audit.corrections.model import Rule
from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.tokens import Tokens

__all__ = ["BatchOrders", "Cuts", "decide"]

Cuts = Mapping[tuple[Rule, int | None], Cut]
"""(rule, step) → where that batch is cut; step None: the whole dump as one batch"""


@dataclass
class BatchOrders:
    """Mergeable evidence by rule and step. The identity is a fresh instance; `absorb` leaves its argument alone."""

    orders: dict[tuple[Rule, int], BatchOrder] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: Sequence[Rule], packed: Packed, tokens: Tokens) -> BatchOrders:
        """Of one chunk."""
        steps = _step_of_token(packed)
        found = cls()
        for rule in rules:
            values = token_statistic(rule, tokens).cpu().numpy()
            for step in np.unique(steps).tolist():
                at = steps == step
                found.orders[rule, step] = BatchOrder.of(statistic_bounds(rule).upper, values[at], packed.places[at])
        return found

    def absorb(self, other: BatchOrders) -> None:
        for (rule, step), order in other.orders.items():
            self.orders.setdefault((rule, step), BatchOrder(statistic_bounds(rule).upper)).absorb(order)

    def infeasible(self, rule: Rule) -> list[int]:
        """Steps, ascending, of which no token meets the rule's bound."""
        return sorted(step for (its, step), order in self.orders.items() if its == rule and order.infeasible)

    def cuts(self) -> Cuts:
        """Of each step, and of all steps together."""
        pooled: dict[Rule, BatchOrder] = {}
        for (rule, _), order in sorted(self.orders.items(), key=lambda item: item[0][1]):
            pooled.setdefault(rule, BatchOrder(statistic_bounds(rule).upper)).absorb(order)
        cuts: dict[tuple[Rule, int | None], Cut] = {(rule, None): order.cut() for rule, order in pooled.items()}
        return cuts | {key: order.cut() for key, order in self.orders.items()}


def decide(rules: Sequence[Rule], cuts: Cuts, packed: Packed, tokens: Tokens, *, pooled: bool = False) -> Tokens:
    """A chunk's tokens with what those rules leave of them; `pooled`: the dump is one batch, else each step is."""
    return replace(tokens, decided={rule: _kept(rule, cuts, packed, tokens, pooled=pooled) for rule in rules})


def _kept(rule: Rule, cuts: Cuts, packed: Packed, tokens: Tokens, *, pooled: bool) -> torch.Tensor:
    values, steps = token_statistic(rule, tokens).cpu().numpy(), _step_of_token(packed)
    kept = np.ones(len(values), dtype=bool)
    for step in np.unique(steps).tolist():
        at = steps == step
        kept[at] = keeps(cuts[rule, None if pooled else step], values[at], packed.places[at])
    return torch.from_numpy(kept).to(packed.device)


def _step_of_token(packed: Packed) -> NDArray[np.int64]:
    return np.repeat(packed.chunk.steps, packed.lengths)
