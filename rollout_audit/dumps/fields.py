"""What the columns of a dump mean: the only place that knows trainers' names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal

from rollout_audit.errors import MissingFieldError, UnreadableFileError, UsageError, suggest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

__all__ = [
    "COLUMN_NAMES",
    "FIELDS",
    "FIELD_NAMES",
    "LEADS",
    "LOG_PROBS",
    "NAMES",
    "TRAINING",
    "Field",
    "Kind",
    "Mapped",
    "Origin",
    "RolloutAloneError",
    "TrainerAloneError",
    "named_log_probs",
    "resolve_fields",
]

Kind = Literal["token", "row", "either"]
Origin = Literal["exact", "alias", "format", "map", "join"]


class RolloutAloneError(MissingFieldError):
    """A file in which nothing is known to be the trainer's, though something is the rollout's."""

    def __init__(self, message: str, names: list[str]) -> None:
        super().__init__(message)
        self.reason = f"no column is known as theirs (of {_listed(names)}; --map old_log_probs=COLUMN names it)"


class TrainerAloneError(MissingFieldError):
    """A file in which nothing is known to be the rollout's, though something is the trainer's."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the dump, and the columns of trainers that hold it."""

    name: str
    kind: Kind
    """`token`: one value a token; `row`: one a response; `either`: both occur"""
    aliases: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Mapped:
    """The column that a field is read from, and how it was found."""

    column: str
    origin: Origin


FIELDS: tuple[Field, ...] = (
    Field(
        "rollout_log_probs",
        "token",
        (
            "rollout_logprobs",  # SkyRL
            "rollout_log_prob",
            "generation_logprobs",  # NeMo-RL
            "inference_logprobs",  # prime-rl
            "sampling_per_token_logps",  # TRL
            "rollout_per_token_logps",  # ms-swift
            "infer_logprobs",  # ROLL
            "infer_log_probs",
            "vllm_logprobs",  # open-instruct
            "vllm_log_probs",
            "behavior_log_probs",
            "sampled_logprobs",  # tinker
            "logprobs",  # AReaL, open-instruct, tinker
        ),
        "of the inference engine that sampled the token. Wherever a trainer writes a bare `logprobs` it is "
        "the engine's; beside another alias it is an error, since it may then be the trainer's.",
    ),
    Field(
        "old_log_probs",
        "token",
        (
            "old_logprobs",
            "old_log_prob",
            "prev_logprobs",  # NeMo-RL
            "old_per_token_logps",  # TRL, ms-swift
            "action_log_probs",  # SkyRL
            "prox_logp",  # AReaL
            "proximal_log_probs",
            "prox_logprobs",
        ),
        "of the trainer, recomputed before the update.",
    ),
    Field(
        "log_probs",
        "token",
        (
            "trainer_logprobs",  # prime-rl: current weights
            "train_log_probs",  # miles policy_loss_debug: current weights
            "trainer_scored_log_probs",  # miles, without a separate forward pass
            "per_token_logps",  # TRL
            "current_log_probs",
            "cur_log_probs",
            "curr_logprobs",  # NeMo-RL loss
        ),
        "of the policy when the loss was computed. slime's and miles' own train files use `log_probs` for "
        "the recomputed (old) ones; in Parquet and safetensors the word keeps this tool's meaning.",
    ),
    Field(
        "response_mask",
        "token",
        (
            "loss_mask",  # SkyRL, AReaL, slime and miles rollouts, prime-rl
            "loss_masks",  # slime, miles
            "completion_mask",  # TRL, ms-swift
            "token_loss_mask",  # NeMo-RL
            "action_mask",  # OpenRLHF
            "local_loss_mask",  # miles policy_loss_debug
        ),
        "1 where the policy sampled the token and the loss counts it. Beside an alias the exact name counts "
        "(SkyRL's `response_mask` has 1 on tool tokens: map its `loss_mask`).",
    ),
    Field("advantages", "either", ("advantage",), "one value a token, or one a response"),
    Field("reward", "row", ("rewards", "raw_reward", "score", "seq_reward"), "one value a response"),
    Field(
        "token_ids",
        "token",
        ("response_tokens", "completion_ids", "response_ids", "responses"),
        "of the response",
    ),
    Field("uid", "row", ("uids", "sample_id", "sample_index", "sample_indices")),
    Field("group_id", "row", ("group_ids", "group_index", "prompt_idx")),
    Field(
        "policy_version",
        "row",
        (
            "policy_versions",
            "rollout_version",
            "weight_version",
            "weight_versions",  # slime, miles: one a turn
            "versions",  # AReaL: one a token, -1 on the prompt
        ),
        "of the sampler's weights; of a list the oldest counts, and `mixed_versions` looks at the newest too.",
    ),
    Field("trainer_version", "row", ("trainer_versions",)),
    Field("step", "row", ("steps", "global_step", "global_steps", "rollout_id", "training_step")),
)

LOG_PROBS = ("rollout_log_probs", "old_log_probs")
"""What a dump needs, the second also under the name of `log_probs`"""
LEADS = ("rollout_log_probs", "old_log_probs", "log_probs")
"""Fields that may say how many tokens a row has, the first that is there"""
TRAINING = {"old_log_probs", "log_probs"}
FIELD_NAMES: tuple[str, ...] = tuple(field.name for field in FIELDS)
NAMES: Mapping[str, tuple[str, ...]] = {field.name: (field.name, *field.aliases) for field in FIELDS}
"""field → the columns that may hold it, best first"""
COLUMN_NAMES = frozenset(chain.from_iterable(NAMES.values()))
"""Every name of a column that may hold a field"""


def resolve_fields(
    columns: Iterable[str],
    field_map: Mapping[str, str] | None = None,
    *,
    where: str = "the dump",
    format_map: Mapping[str, str] | None = None,
    needed: Collection[str] = LOG_PROBS,
) -> dict[str, Mapped]:
    """Which column holds which field.

    Args:
        columns: the names in one file.
        field_map: field → column, as `--map` gives it; outranks names and aliases.
        where: what an error calls the file.
        format_map: field → column, as the format of the file says; outranked by `field_map` alone.
        needed: the log-probs that must be there; `old_log_probs` and `log_probs` stand for each other.

    Raises:
        UsageError: `--map` names an unknown field, or two aliases of one field are there (of a per-row field
            the first in the table is taken).
        MissingFieldError: a needed field, or a column that `--map` names, is not there; a TrainerAloneError where
            it is the rollout's log-probs and those of the trainer are there, a RolloutAloneError the other way round.
        UnreadableFileError: two columns of the same name.
    """
    names = list(columns)
    chosen = dict(field_map or {})
    _check_duplicates(names, where)
    _check_map(chosen, names, where)
    given = _given(chosen, format_map or {}, names)
    taken = {mapped.column for mapped in given.values()}
    free = [name for name in names if name not in taken]
    found = {f.name: given.get(f.name) or _find(f, free, where) for f in FIELDS}
    mapping = {name: mapped for name, mapped in found.items() if mapped}
    _check_needed(mapping, names, where, needed)
    return mapping


def named_log_probs(fields: Collection[str]) -> set[str]:
    """Every name under which a column may hold one of these log-probs."""
    chosen = set(fields) | (TRAINING if "old_log_probs" in fields else set())
    return {name for field in chosen & NAMES.keys() for name in NAMES[field]}


def _given(chosen: Mapping[str, str], format_map: Mapping[str, str], names: list[str]) -> dict[str, Mapped]:
    """What need not be found: columns that a person or the format names."""
    of_format = {
        field: Mapped(column, "format")
        for field, column in format_map.items()
        if column in names and column not in chosen.values()
    }
    return of_format | {field: Mapped(column, "map") for field, column in chosen.items()}


def _find(field: Field, free: list[str], where: str) -> Mapped | None:
    if field.name in free:
        return Mapped(field.name, "exact")
    hits = [alias for alias in field.aliases if alias in free]
    if len(hits) > 1 and field.kind != "row":
        raise UsageError(
            f"{where}: both {hits[0]!r} and {hits[1]!r} could be {field.name}; choose with --map {field.name}=COLUMN"
        )
    return Mapped(hits[0], "alias") if hits else None


def _check_duplicates(names: list[str], where: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise UnreadableFileError(f"{where}: two columns are named {repeated[0]!r}; rename one")


def _check_map(chosen: Mapping[str, str], names: list[str], where: str) -> None:
    for field, column in chosen.items():
        if field not in FIELD_NAMES:
            raise UsageError(
                f"--map {field}={column}: no field is named {field!r}{suggest(field, FIELD_NAMES) or ';'} "
                f"fields are {', '.join(FIELD_NAMES)}"
            )
        if column not in names:
            raise MissingFieldError(
                f"{where}: --map {field}={column}: no column is named {column!r}{suggest(column, names) or ';'} "
                f"columns are {_listed(names)}"
            )


def _check_needed(mapping: Mapping[str, Mapped], names: list[str], where: str, needed: Collection[str]) -> None:
    if "rollout_log_probs" in needed and "rollout_log_probs" not in mapping:
        kind = TrainerAloneError if TRAINING & mapping.keys() else MissingFieldError
        raise kind(_missing("rollout_log_probs", names, mapping, where))
    if "old_log_probs" in needed and not TRAINING & mapping.keys():
        message = _missing("old_log_probs", names, mapping, where, " (or log_probs)")
        raise RolloutAloneError(message, names) if "rollout_log_probs" in mapping else MissingFieldError(message)


def _missing(field: str, names: list[str], mapping: Mapping[str, Mapped], where: str, alternative: str = "") -> str:
    taken = {mapped.column for mapped in mapping.values()}
    hint = suggest(field, [name for name in names if name not in taken])
    return (
        f"{where}: no column for {field}{alternative}{hint or ';'} "
        f"columns are {_listed(names)}; name it with --map {field}=COLUMN"
    )


def _listed(names: list[str], most: int = 20) -> str:
    shown = ", ".join(names[:most]) or "none"
    return f"{shown}, … ({len(names)} in all)" if len(names) > most else shown
