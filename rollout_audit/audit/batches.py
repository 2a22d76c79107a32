"""The pass that comes first where a rule needs the order of a whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from rollout_audit.audit.reading import Reading
from rollout_audit.corrections.model import Rule
from rollout_audit.corrections.packing import Packed
from rollout_audit.dumps.chunk import Chunk, Finding
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.engines.upkeep import one_torch_thread
from rollout_audit.errors import amount
from rollout_audit.statistics.batch_cuts import BatchOrders, Cuts

__all__ = ["batch_cuts"]


def batch_cuts(
    reading: Reading,
    training: str,
    rollout: str,
    rules: Sequence[Rule],
    device: torch.device,
    workers: int,
    log: FaultLog | None = None,
) -> Cuts:
    """Where those rules cut each step, and the dump as one batch; nothing is read where there are none.

    The log is told of batches that a rule leaves one token of because none meets its bound.

    Raises:
        DumpError: as `Dump.chunks`.
    """
    if not rules:
        return {}

    def orders_of(chunk: Chunk) -> BatchOrders:
        packed = Packed(chunk, device)
        return BatchOrders.of(rules, packed, packed.tokens(training, rollout))

    orders = BatchOrders()
    with one_torch_thread():
        for part in reading.map(orders_of, workers, FaultLog()):
            orders.absorb(part)
    if log is not None:
        log.notes.update(note for rule in rules for note in _infeasible(rule, orders))
    return orders.cuts()


def _infeasible(rule: Rule, orders: BatchOrders) -> Iterator[Finding]:
    steps = orders.infeasible(rule)
    if steps:
        where = f"{amount(len(steps), 'step')} (first: step {steps[0]})"
        text = (
            f"a mean {rule.statistic.value} < {rule.upper:g} of the batch is infeasible in {where}: no token is "
            "below, and the one with the least stays alone"
        )
        yield Finding("constraint_infeasible", "warning", text, count=len(steps))
