"""Corrections with one thing changed: what one would expect of a configuration without a quirk of its trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rollout_audit.corrections.model import Correction, Over, Rule, Sign

__all__ = ["at_sign", "over_every", "reruled", "reweighed", "unclamped"]


def reweighed(correction: Correction, **changes: Any) -> Correction:
    """With another weight; `changes` are fields of `Weight`."""
    return replace(correction, weight=replace(correction.weight, **changes))


def reruled(correction: Correction, change: Callable[[Rule], Rule]) -> Correction:
    """With every rule changed."""
    return replace(correction, rules=tuple(map(change, correction.rules)))


def at_sign(correction: Correction, now: Sign, then: Sign) -> Correction:
    """With the rules that act at one sign of the advantage acting at another."""
    return reruled(correction, lambda rule: replace(rule, sign=then if rule.sign is now else rule.sign))


def over_every(correction: Correction) -> Correction:
    """With all sums and means over every token."""
    return reruled(reweighed(correction, over=Over.EVERY), lambda rule: replace(rule, over=Over.EVERY))


def unclamped(correction: Correction) -> Correction:
    """Without any clamp of log-ratios."""
    return reruled(reweighed(correction, clamp=None, token_clamp=None), lambda rule: replace(rule, clamp=None))
