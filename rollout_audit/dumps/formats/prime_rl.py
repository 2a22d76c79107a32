"""prime-rl's token exports, `token_exports/step_{N}/rank_{R}.jsonl`: one sequence a line, prompt included.

Index i of an array belongs to token i. `trainer_logprobs` are those of the current weights; non-finite values are null.
A step is complete once its folder holds `STABLE`. Source: `token_export.py`, PrimeIntellect-ai/prime-rl 559b447.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_audit.dumps.formats.table import known_version
from rollout_audit.dumps.spans import response_span

if TYPE_CHECKING:
    from rollout_audit.dumps.records import Record

__all__ = ["FIELDS", "MARKER", "unpack"]

MARKER = "STABLE"
VERSION = 1
FIELDS = {"response_mask": "loss_mask", "log_probs": "trainer_logprobs"}


def unpack(record: Record) -> dict[str, Any]:
    """The sequence from the first token that the loss counts: what stands before is no response."""
    known_version("schema_version", record.get("schema_version", VERSION), VERSION)
    mask = [bool(value) for value in record["loss_mask"]]
    start, stop = response_span(mask, len(mask))
    return {
        name: value[start:stop] if isinstance(value, list) and len(value) == stop else value
        for name, value in record.items()
    }
