"""NeMo-RL's `train_data_step{N}.jsonl`: one object a sample, every value wrapped in a list of length 1.

Index t of an array is the log-prob of token t, over prompt, response and padding to the longest row of the file.
Source: `log_batched_dict_as_jsonl` and the dump block of `grpo_train`, NVIDIA-NeMo/RL 7ea279a.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_audit.dumps.spans import response_span

if TYPE_CHECKING:
    from rollout_audit.dumps.records import Record

__all__ = ["FIELDS", "MASK", "unpack"]

MASK = "token_loss_mask × sample_loss_mask"
FIELDS = {"response_mask": MASK, "reward": "rewards"}
_TOKENS = ("token_ids", "generation_logprobs", "prev_logprobs", "advantages")


def unpack(record: Record) -> dict[str, Any]:
    """The response of one sample: from the first token that the loss counts to the end of `input_lengths`.

    A sample that `sample_loss_mask` takes out has a mask of zeros. `prev_logprobs` that is 0.0 throughout, the
    prompt included, comes of a forward pass that was skipped: it counts as not there.
    """
    row = {name: _unwrapped(value) for name, value in record.items()}
    mask = row["token_loss_mask"]
    length = int(row.get("input_lengths") or len(mask))
    start, stop = response_span(mask, length)
    columns = {name: row[name][start:stop] for name in _TOKENS if isinstance(row.get(name), list)}
    if not any(row.get("prev_logprobs") or ()):
        columns["prev_logprobs"] = None
    columns[MASK] = _weighted(mask[start:stop], row.get("sample_loss_mask", 1))
    return columns | {"rewards": row.get("rewards"), "idx": row.get("idx")}


def _unwrapped(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _weighted(mask: list[Any], weight: Any) -> list[Any]:
    return mask if weight in (1, None) else [value * weight for value in mask]
