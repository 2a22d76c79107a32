"""open-instruct's `{run_name}_rollouts_{shard}.jsonl`: the engine's log-probs alone, of response tokens.

Neither a loss mask nor a mark of tool tokens is in the file (their log-probs are 0.0); a failed request holds one NaN.
Source: `rl_utils.py`, allenai/open-instruct e6c3044.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_audit.dumps.records import Record

__all__ = ["FIELDS", "MASK", "unpack"]

MASK = "mask of failed requests"
FIELDS = {
    "response_mask": MASK,
    "rollout_log_probs": "logprobs",
    "token_ids": "response_tokens",
    "group_id": "prompt_idx",
    "uid": "step/sample_idx",
}


def unpack(record: Record) -> dict[str, Any]:
    """The record itself, named by its step and place in it: it has no name of its own.

    A failed request stands as one end-of-sequence token whose log-prob is NaN: a response of no valid token. Which
    tokens of others are a tool's is not known.
    """
    name = f"{record.get('step')}/{record.get('sample_idx')}"
    values: list[float] = record["logprobs"] or []
    failed = len(values) == 1 and values[0] != values[0]
    return {**record, "step/sample_idx": name, MASK: [0 if failed else 1] * len(values)}
