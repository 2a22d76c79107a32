"""Per-row columns that several trainers need: sums with their spread and extremes, and lengths with padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rollout_audit.corrections.tokens import Tokens, row_max, row_mean, row_min, row_sum, spread

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["counted", "described", "positions"]


def described(name: str, values: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """float64 [rows] `name` Σx, `name.within` Σ(x − mean of the row)², `name.max` and `name.min` of [tokens] x."""
    centred = values - spread(row_mean(values, lengths), lengths)
    return {
        name: row_sum(values, lengths),
        f"{name}.within": row_sum(centred.square(), lengths),
        f"{name}.max": row_max(values, lengths),
        f"{name}.min": row_min(values, lengths),
    }


def counted(hits: Tensor, lengths: Tensor) -> Tensor:
    """float64 [rows] how often a predicate over [tokens] holds."""
    return row_sum(hits.to(torch.float64), lengths)


def positions(tokens: Tokens) -> Tensor:
    """float64 [rows] all positions of each response; a trainer pads all rows to the longest of them."""
    lengths = tokens.lengths if tokens.response_lengths is None else tokens.response_lengths
    return lengths.to(torch.float64)
