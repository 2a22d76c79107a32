"""slime's debug dumps: `train_data/{rollout_id}.pt`, and `rollout_data/{rollout_id}.pt` as miles writes it too.

Train file (format_version 2): one dictionary a sample, response tokens only, not shifted; `log_probs` are those
recomputed before the update. Source: `train_data_utils.py`, `rollout_data_utils.py`, THUDM/slime 624b824;
`debug_data.py`, radixark/miles 31f1ca9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_audit.dumps.formats.table import known_version

if TYPE_CHECKING:
    from rollout_audit.dumps.records import Record

__all__ = ["ROLLOUT_FIELDS", "TRAIN_FIELDS", "rollout_rows", "train_rows"]

TRAIN_FIELDS = {
    "rollout_log_probs": "rollout_log_probs",
    "old_log_probs": "log_probs",
    "response_mask": "loss_masks",
    "reward": "local_raw_reward",
    "uid": "sample_index",
}
ROLLOUT_FIELDS = {"response_mask": "loss_mask", "uid": "index", "group_id": "group_index"}
VERSION = 2
_LEFT_OUT = ("tokens", "rollout_id", "rollout_ids", "rewards")


def train_rows(content: dict[str, Any]) -> list[Record]:
    """The samples of a train file in the order of the rollout, with the ids of the response.

    Raises:
        ValueError: of another format_version, whose meaning nobody here has read.
    """
    known_version("format_version", content.get("format_version", VERSION), VERSION)
    return [_with_ids(sample, sample["response_lengths"]) for sample in content["samples"]]


def rollout_rows(content: dict[str, Any]) -> list[Record]:
    """The samples of a rollout file. One that is marked for removal is masked as a whole, as training does."""
    return [_masked(_with_ids(sample, sample["response_length"])) for sample in content["samples"]]


def _with_ids(sample: dict[str, Any], length: int) -> dict[str, Any]:
    kept = {name: value for name, value in sample.items() if name not in _LEFT_OUT}
    tokens = sample.get("tokens")
    return kept if tokens is None else kept | {"token_ids": tokens[len(tokens) - length :]}


def _masked(sample: dict[str, Any]) -> dict[str, Any]:
    length = sample["response_length"]
    if sample.get("remove_sample"):
        return sample | {"loss_mask": [0] * length}
    return sample | {"loss_mask": [1] * length if sample.get("loss_mask") is None else sample["loss_mask"]}
