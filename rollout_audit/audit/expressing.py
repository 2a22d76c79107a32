"""What a trainer makes of a candidate of `recommend`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from rollout_audit.audit.advice import Candidate
from rollout_audit.corrections.describe import describe
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Loss,
    Mode,
    Rule,
    Statistic,
    Weight,
)
from rollout_audit.corrections.presets import PRESETS
from rollout_audit.errors import ConfigError
from rollout_audit.trainers.base import Trainer
from rollout_audit.trainers.expression import Expression

__all__ = ["expressed"]

RULES = {f"{a.value}_{s.value}": (s, a) for s, a in product(Statistic, Aggregation)}


def expressed(candidate: Candidate, mode: Mode, trainer: Trainer[Any]) -> Candidate | None:
    """The candidate with the trainer's settings for it; None where it has none.

    No limit of `recommend` looks at what the loss divides by, so a trainer that divides otherwise still expresses it,
    and that is said.
    """
    correction = _correction(candidate, mode)
    if correction is None:
        return None
    for wanted in _with_any_denominator(correction):
        found = trainer.expressed(wanted)
        if found is None:
            continue
        other = () if wanted is correction else (f"the loss divides by {wanted.denominator.value} tokens",)
        return candidate.model_copy(update=_settings(trainer, found, other))
    return None


def _settings(trainer: Trainer[Any], found: Expression, other: tuple[str, ...]) -> dict[str, object]:
    return {
        "config": trainer.nested(found.settings),
        "syntax": trainer.syntax_of(found.settings),
        "fine_print": [*found.fine_print, *other],
    }


def _with_any_denominator(correction: Correction) -> Iterator[Correction]:
    yield correction
    yield from (replace(correction, denominator=d) for d in Denominator if d is not correction.denominator)


def _correction(candidate: Candidate, mode: Mode) -> Correction | None:
    """A preset's own, else what the settings say where they say all of it."""
    if candidate.name in PRESETS:
        return PRESETS[candidate.name].correction
    try:
        built = _built(candidate, mode)
    except (ConfigError, KeyError):
        return None
    return built if describe(built) == candidate.formula or candidate.source == "sweep" else None


def _built(candidate: Candidate, mode: Mode) -> Correction:
    said: dict[str, Any] = candidate.settings
    weight = Weight()
    if said["level"] != Level.NONE:
        weight = Weight(Level(said["level"]), Bound(said["bound"]), said["lower"], said["upper"])
    rules: tuple[Rule, ...] = ()
    if said["rule"] is not None:
        rules = (Rule(*RULES[said["rule"]], said["rule_lower"], said["rule_upper"]),)
    loss = Loss.REINFORCE if mode is Mode.BYPASS else Loss.PPO_CLIP
    return Correction(weight, rules, mode=mode, loss=loss)
