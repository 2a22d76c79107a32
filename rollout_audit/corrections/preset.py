"""What a named configuration is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollout_audit.corrections.model import Correction

__all__ = ["Preset"]


@dataclass(frozen=True, slots=True)
class Preset:
    """A named correction: where it comes from, when to use it, which thresholds its origin recommends."""

    name: str
    correction: Correction
    origin: str
    """trainer and version, after a comma where in it"""
    use: str
    recommended: str | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    """The trainer's own keys, ready to paste"""
    section: tuple[str, ...] = ()
    """where the trainer's configuration nests these keys"""
    warnings: tuple[str, ...] = ()
    """what of it is probably not meant"""
