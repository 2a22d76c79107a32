"""What a quirk changes: the weights in the loss beside those of the correction that one would expect without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rollout_audit.corrections.describe import describe
from rollout_audit.corrections.direct import apply
from rollout_audit.corrections.model import Correction
from rollout_audit.corrections.tokens import row_sum
from rollout_audit.trainers.base import Trainer

if TYPE_CHECKING:
    from torch import Tensor

    from rollout_audit.corrections.tokens import Tokens

__all__ = ["Instead", "expected", "instead_columns", "instead_of"]

PREFIX = "instead."
SAME = 1e-6
"""Relative difference of two weights that is none"""


@dataclass(frozen=True, slots=True)
class Instead:
    """A correction that one would expect, on the dump: sums are over tokens, before batch normalisation."""

    text: str
    """the correction in words"""
    tokens: int
    """whose weight in the loss is another"""
    own: float
    """sum of the weights in the loss as it is"""
    other: float
    """the same, as one would expect"""


def expected(trainer: Trainer[Any], config: object) -> dict[str, Correction]:
    """Quirk → the correction without it, for the quirks that the configuration has."""
    own = trainer.correction(config)
    asked = {quirk.name: quirk.instead(config) for quirk in trainer.quirks if quirk.instead is not None}
    return {name: other for name, other in asked.items() if other is not None and other != own}


def instead_columns(own: Correction, others: Mapping[str, Correction], tokens: Tokens) -> dict[str, Tensor]:
    """float64 [rows] of one chunk; NaN where a rule asks for advantages that are not recorded."""
    mine = _in_the_loss(own, tokens) if others else None
    columns: dict[str, Tensor] = {}
    for name, correction in others.items():
        theirs = _in_the_loss(correction, tokens)
        if mine is None or theirs is None:
            sums = [torch.full((tokens.rows,), torch.nan, dtype=torch.float64)] * 3
        else:
            differ = (mine - theirs).abs() > SAME * torch.maximum(mine, theirs)
            sums = [row_sum(values, tokens.lengths) for values in (differ.double(), mine, theirs)]
        columns |= dict(zip((f"{PREFIX}{name}.{part}" for part in ("tokens", "own", "other")), sums, strict=True))
    return columns


def _in_the_loss(correction: Correction, tokens: Tokens) -> Tensor | None:
    """[tokens] weights, 0 where rejected; None where the advantages are not known."""
    advantages = tokens.advantages
    if correction.needs_advantages and (advantages is None or bool(advantages.isnan().any())):
        return None
    applied = apply(correction, tokens, tokens.log_ratio.new_tensor(1.0))
    return applied.bounded.masked_fill(~applied.kept, 0.0)


def instead_of(others: Mapping[str, Correction], columns: Mapping[str, NDArray[np.float64]]) -> dict[str, Instead]:
    """Of the whole dump; without those that could not be asked everywhere."""
    found = {}
    for name, correction in others.items():
        differing, own, other = (float(columns[f"{PREFIX}{name}.{part}"].sum()) for part in ("tokens", "own", "other"))
        if not np.isnan(differing):
            found[name] = Instead(describe(correction), int(differing), own, other)
    return found
