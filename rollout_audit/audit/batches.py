"""The pass that comes first where a rule needs the order of a whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rollout_audit.audit.reading import Reading
from rollout_audit.corrections.model import Rule
from rollout_audit.corrections.packing import Packed
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.engines.upkeep import one_torch_thread
from rollout_audit.statistics.batch_cuts import BatchOrders, Cuts

__all__ = ["batch_cuts"]


def batch_cuts(
    reading: Reading, training: str, rollout: str, rules: Sequence[Rule], device: torch.device, workers: int
) -> Cuts:
    """Where those rules cut each step, and the dump as one batch; nothing is read where there are none.

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
    return orders.cuts()
