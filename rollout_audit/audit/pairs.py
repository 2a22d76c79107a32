"""Which pairs of policies a dump lets us compare, and which of them a correction acts on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from rollout_audit.corrections.model import Mode
from rollout_audit.dumps.dump import Dump
from rollout_audit.errors import MissingFieldError

__all__ = ["Pair", "PairName", "pair_for", "pairs_in"]

PairName = Literal["engine", "policy_update", "total"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A training policy against the policy that its ratio is anchored on."""

    name: PairName
    training: str
    rollout: str
    meaning: str


_TRAINING = ("old_log_probs", "log_probs")
_PAIRS = (
    Pair("engine", "old_log_probs", "rollout_log_probs", "trainer before the update against the rollout engine"),
    Pair("policy_update", "log_probs", "old_log_probs", "current policy against the trainer before the update"),
    Pair("total", "log_probs", "rollout_log_probs", "current policy against the rollout engine"),
)


def pairs_in(dump: Dump) -> tuple[Pair, ...]:
    """The pairs whose two columns are recorded in every file.

    Raises:
        MissingFieldError: some files have only `old_log_probs`, the others only `log_probs`, or some neither.
    """
    dump.require_training()
    found = tuple(pair for pair in _PAIRS if dump.has(pair.training) and dump.has(pair.rollout))
    if not found:
        lacking = {name: next(f for f, fields in dump.fields.items() if name not in fields) for name in _TRAINING}
        texts = " and ".join(f"{name} is not in {file}" for name, file in lacking.items())
        raise MissingFieldError(f"{texts}: no training column is in every file; audit them apart")
    return found


def pair_for(mode: Mode, pairs: Collection[Pair]) -> Pair:
    """The pair a mode compares: decoupled the recompute, bypass the current policy, else the one that is there."""
    preferred = ("engine", "total") if mode is Mode.DECOUPLED else ("total", "engine")
    return next(pair for name in preferred for pair in pairs if pair.name == name)


def primary_mode(asked: Mode | None, pairs: Collection[Pair]) -> Mode:
    """The mode of the report: as asked, else decoupled where `old_log_probs` is recorded.

    Raises:
        MissingFieldError: decoupled was asked for and the dump has no `old_log_probs`.
    """
    has_engine = any(pair.name == "engine" for pair in pairs)
    if asked is Mode.DECOUPLED and not has_engine:
        raise MissingFieldError(
            "--mode decoupled compares old_log_probs, which this dump does not have; "
            "--mode bypass compares log_probs, or name the column with --map old_log_probs=COLUMN"
        )
    return asked or (Mode.DECOUPLED if has_engine else Mode.BYPASS)
