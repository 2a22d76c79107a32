"""The trainers by name; a module is loaded when it is asked for (they need torch, the table does not)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from rollout_audit.errors import UsageError, suggest
from rollout_audit.trainers.base import Trainer

__all__ = ["TRAINERS", "get_trainer"]

TRAINERS: dict[str, str] = {
    "verl": "verl",
    "verl-2026-01": "verl_2026_01",
    "verl-2025-11": "verl_2025_11",
    "verl-2025-10": "verl_2025_10",
    "miles": "miles",
    "slime": "slime",
    "trl": "trl",
    "nemo-rl": "nemo_rl",
    "openrlhf": "openrlhf",
    "open-instruct": "open_instruct",
    "skyrl": "skyrl",
    "areal": "areal",
    "roll": "roll",
    "ms-swift": "ms_swift",
    "prime-rl": "prime_rl",
}
"""name → module of this package, which holds it as `TRAINER`"""


def get_trainer(name: str) -> Trainer[Any]:
    """The trainer of that name (UsageError with a suggestion where there is none)."""
    if not isinstance(name, str):
        raise UsageError(f"no trainer {name!r}: expected a name, as 'verl'")
    if name not in TRAINERS:
        near = suggest(name, TRAINERS) or f"; choose from {', '.join(TRAINERS)}"
        raise UsageError(f"no trainer {name!r}{near}")
    module = import_module(f"rollout_audit.trainers.{TRAINERS[name]}")
    return cast("Trainer[Any]", module.TRAINER)
