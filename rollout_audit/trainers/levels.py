"""The levels that verl of 2025 and mis.py name, and how a rejection at each aggregates the log-ratio."""

from __future__ import annotations

from rollout_audit.corrections.model import Aggregation, Level

__all__ = ["AGGREGATIONS", "LEVELS"]

LEVELS: dict[str | None, Level] = {
    "token": Level.TOKEN,
    "sequence": Level.SEQUENCE,
    "geometric": Level.GEOMETRIC,
}
AGGREGATIONS = {
    Level.TOKEN: Aggregation.TOKEN,
    Level.SEQUENCE: Aggregation.SEQ_SUM,
    Level.GEOMETRIC: Aggregation.SEQ_MEAN,
}
