"""Figures of what a correction leaves, where it leaves other tokens: they follow its mask, which has a verdict already.

Of a token that lies within rounding of a threshold another machine may decide otherwise, and a mean over what is left
then moves by far more than rounding. Figures of raw weights and of the mismatch are over all tokens and keep guarding.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from rollout_audit.golden.compare import EDGE_SENSITIVE, Comparison
from rollout_audit.golden.directions import REMOVED_OR_CHANGED
from rollout_audit.golden.figures import FigureKey
from rollout_audit.golden.tolerances import MASK, is_counted, is_logged
from rollout_audit.trainers.registry import get_trainer

__all__ = ["follow_masks"]

STAGES_LEFT = ("bounded", "normalised", "kept")
AT_EDGES = f"{EDGE_SENSITIVE}: follows kept.{MASK}, other only within rounding of a threshold"
FEWER_REMOVED = f"follows kept.{MASK}, which removes fewer"


def follow_masks(figures: Sequence[Comparison], masks: Sequence[Comparison]) -> list[Comparison]:
    """The figures, with those that moved as their mask allows passed and named so.

    Where a mask differs at edges alone, every figure of what is left may differ, but for counts, which know their own
    edges. Where fewer tokens are removed, what has no bad direction may be anything: mean rewards of what is kept.
    """
    by_place = {(mask.key.subject, mask.key.scope): mask for mask in masks}
    return [_followed(row, by_place.get((_correction_of(row.key), row.key.scope))) for row in figures]


def _followed(row: Comparison, mask: Comparison | None) -> Comparison:
    if mask is None or row.difference is None or row.verdict == "same" or not _is_of_what_is_left(row.key):
        return row
    if mask.is_edge_sensitive and not is_counted(row.key.name):
        return replace(row, verdict="same", note=AT_EDGES)
    if mask.verdict == "better" and row.direction == "neither":
        return replace(row, verdict="better", note=FEWER_REMOVED)
    return row


def _correction_of(key: FigureKey) -> str:
    return f"{key.subject}-config" if is_logged(key.name) else key.subject


def _is_of_what_is_left(key: FigureKey) -> bool:
    if not is_logged(key.name):
        return key.metric.partition(".")[0] in STAGES_LEFT
    counterpart = get_trainer(key.subject).counterparts.get(key.metric)
    if counterpart is not None:
        return counterpart.native.partition(".")[0] in STAGES_LEFT
    return re.search(REMOVED_OR_CHANGED, key.metric) is not None
