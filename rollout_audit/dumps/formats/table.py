"""The formats that are read: what each is called, how it is recognised, and what it may lack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rollout_audit.errors import UsageError, suggest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["FORMATS", "SUFFIXES", "Container", "Format", "check_format", "known_version", "recognise", "suffixes_of"]

Container = Literal["parquet", "safetensors", "jsonl", "torch", "npz"]

SUFFIXES: Mapping[str, Container] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".safetensors": "safetensors",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".pt": "torch",
    ".pth": "torch",
    ".npz": "npz",
}
"""What a folder is searched for; a file that is named is read whatever it is called."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way in which responses are kept in files. Its reader is in `sources`."""

    name: str
    """as `--input-format` spells it"""
    container: Container
    written_by: str
    signature: frozenset[str] = frozenset()
    """columns, keys or names at the top that tell it from others in the same kind of file; empty: all the rest"""
    lacks_training: str = ""
    """why a file may have no log-probs of the trainer"""


FORMATS: Mapping[str, Format] = {
    one.name: one
    for one in (
        Format(
            "miles-dashboard",
            "parquet",
            "miles `dashboard_columns/rollout_{id}.parquet`",
            frozenset({"sample_index", "response_length", "total_length", "tokens", "rollout_log_probs"}),
            "a dashboard of miles holds the rollout's log-probs alone",
        ),
        Format("parquet", "parquet", "this tool, and any trainer by a few lines"),
        Format("safetensors", "safetensors", "verl, TRL, SkyRL, ROLL, AReaL batches, saved as tensors"),
        Format(
            "nemo-rl",
            "jsonl",
            "NeMo-RL `train_data_step{N}.jsonl`",
            frozenset({"token_loss_mask", "generation_logprobs", "token_ids"}),
            "prev_logprobs is 0.0 throughout: NeMo-RL skipped the trainer's forward pass (force_on_policy_ratio)",
        ),
        Format(
            "prime-rl",
            "jsonl",
            "prime-rl `token_exports/step_{N}/rank_{R}.jsonl`, complete once STABLE is beside it",
            frozenset({"inference_logprobs", "trainer_logprobs", "micro_step"}),
        ),
        Format(
            "open-instruct",
            "jsonl",
            "open-instruct `{run}_rollouts_{shard}.jsonl`",
            frozenset({"response_tokens", "logprobs", "request_info"}),
            "open-instruct writes the engine's log-probs alone, and no mask of tool tokens",
        ),
        Format("jsonl", "jsonl", "JSON Lines with the columns of this tool or of a trainer"),
        Format(
            "slime",
            "torch",
            "slime `train_data/{id}.pt`, format_version 2",
            frozenset({"format_version", "samples", "dp_shards"}),
            "log_probs were not recomputed in this run of slime",
        ),
        Format(
            "slime-rollout",
            "torch",
            "slime and miles `rollout_data/{id}.pt`",
            frozenset({"rollout_id", "samples"}),
            "a rollout file of slime or miles is written before training (--dump-details DIR writes train_data too)",
        ),
        Format(
            "miles",
            "torch",
            "miles `train_data/{id}_{rank}.pt`, the files of all ranks as one",
            frozenset({"rollout_id", "rollout_data"}),
            "log_probs were not recomputed in this run of miles",
        ),
        Format("torch", "torch", "`torch.save` of tensors, of lists of them, or of one dictionary a row"),
        Format("npz", "npz", "`numpy.savez` of the same arrays as safetensors"),
    )
}
"""What `--input-format` may name. Of formats that fit, the first in the table is taken."""


def check_format(name: str | None) -> None:
    """Raises UsageError for a format that nobody knows."""
    if name is not None and name not in FORMATS:
        known = ", ".join(FORMATS)
        raise UsageError(f"input format {name!r}: expected one of {known}{suggest(name, FORMATS)}")


def known_version(key: str, found: object, known: int) -> None:
    """Raises ValueError for a file of a version whose columns may mean something else."""
    if found != known:
        raise ValueError(
            f"{key} is {found!r}, and {known} is the one that is known: save its tensors as safetensors or JSON Lines "
            "under this tool's names"
        )


def recognise(container: str, names: Collection[str]) -> str:
    """The format of a file of that kind with these names at its top."""
    fitting = (f for f in FORMATS.values() if f.container == container and f.signature <= set(names))
    return next(fitting).name


def suffixes_of(input_format: str | None) -> tuple[str, ...]:
    """The suffixes by which a folder is searched, of one format or of all."""
    container = FORMATS[input_format].container if input_format else None
    return tuple(suffix for suffix, kind in SUFFIXES.items() if container in (None, kind))
