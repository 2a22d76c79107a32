"""Which rules of a correction do nothing: each asked by itself, and what it removes that all the others leave."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from rollout_audit.corrections.describe import describe
from rollout_audit.corrections.direct import has_sign, remaining_tokens, rule_keeps, rule_values
from rollout_audit.corrections.model import Aggregation, Correction, Rule, Sign, Statistic
from rollout_audit.corrections.tokens import row_max, row_min, row_sum

if TYPE_CHECKING:
    from torch import Tensor

    from rollout_audit.corrections.tokens import Tokens

__all__ = ["Work", "work_columns", "work_of"]

Array = NDArray[np.float64]
PREFIX = "work."


@dataclass(frozen=True, slots=True)
class Work:
    """What one rule of a correction does to a dump, the veto too."""

    text: str
    """the rule in words"""
    removed: int
    """tokens that it removes by itself"""
    only_here: int
    """of these, tokens that all other rules leave"""
    by_side: Mapping[str, int]
    """tokens removed by its lower and by its upper bound, of those that it has"""
    span: tuple[float, float]
    """least and greatest value that it looked at, as ratios where it bounds ratios; inverted where it saw none"""
    unit: str

    @property
    def values(self) -> str:
        """What it looked at, in words."""
        if self.span[0] > self.span[1]:
            return "it looks at no token here"
        return f"{self.unit} lies from {self.span[0]:.4g} to {self.span[1]:.4g}"


def work_columns(correction: Correction, tokens: Tokens) -> dict[str, Tensor]:
    """float64 [rows] counts and extremes of one chunk; NaN where a rule asks for advantages that are not recorded."""
    rules = correction.all_rules
    if not all(_is_known(rule, tokens) for rule in rules):
        unknown = torch.full((tokens.rows,), torch.nan, dtype=torch.float64)
        return {f"{PREFIX}{i}.{name}": unknown for i, rule in enumerate(rules) for name in _names(rule)}
    remaining = remaining_tokens(correction, tokens)
    kept = [rule_keeps(rule, tokens, remaining) for rule in rules]
    columns: dict[str, Tensor] = {}
    for i, rule in enumerate(rules):
        only = torch.stack([~kept[i], *(mask for j, mask in enumerate(kept) if j != i)]).all(dim=0)
        counts = {"removed": ~kept[i], "only": only} | {
            side: ~rule_keeps(part, tokens, remaining) for side, part in _sides(rule).items()
        }
        columns |= {f"{PREFIX}{i}.{name}": row_sum(hits.double(), tokens.lengths) for name, hits in counts.items()}
        columns |= _extremes(f"{PREFIX}{i}", rule, tokens, remaining)
    return columns


def _is_known(rule: Rule, tokens: Tokens) -> bool:
    return rule.sign is Sign.ANY or (tokens.advantages is not None and not bool(tokens.advantages.isnan().any()))


def _names(rule: Rule) -> tuple[str, ...]:
    return ("removed", "only", *_sides(rule), "least", "greatest")


def _sides(rule: Rule) -> dict[str, Rule]:
    """A two-sided rule as its two bounds; a rule of the batch has one."""
    if rule.lower is None or rule.upper is None:
        return {}
    return {"lower": replace(rule, upper=None), "upper": replace(rule, lower=None)}


def _extremes(name: str, rule: Rule, tokens: Tokens, remaining: Tensor) -> dict[str, Tensor]:
    values, asked = rule_values(rule, tokens, remaining), has_sign(rule, tokens)
    return {
        f"{name}.least": row_min(values.masked_fill(~asked, math.inf), tokens.lengths),
        f"{name}.greatest": row_max(values.masked_fill(~asked, -math.inf), tokens.lengths),
    }


def work_of(correction: Correction, columns: Mapping[str, Array]) -> tuple[Work, ...] | None:
    """Of the whole dump; None where a rule could not be asked everywhere."""
    rules = correction.all_rules
    if any(np.isnan(columns[f"{PREFIX}{i}.removed"]).any() for i in range(len(rules))):
        return None
    return tuple(_work(correction, i, rule, columns) for i, rule in enumerate(rules))


def _work(correction: Correction, i: int, rule: Rule, columns: Mapping[str, Array]) -> Work:
    def total(name: str) -> int:
        return int(columns[f"{PREFIX}{i}.{name}"].sum())

    veto = i == len(correction.rules)
    span = (
        float(columns[f"{PREFIX}{i}.least"].min(initial=math.inf)),
        float(columns[f"{PREFIX}{i}.greatest"].max(initial=-math.inf)),
    )
    in_ratios = rule.statistic in (Statistic.K1, Statistic.RATIO)
    return Work(
        text=_text(correction, None if veto else rule),
        removed=total("removed"),
        only_here=total("only"),
        by_side={_end(rule, side): total(side) for side in _sides(rule)},
        span=_as_ratios(rule, span) if in_ratios and span[0] <= span[1] else span,
        unit=_unit(rule) if in_ratios else f"its {rule.statistic.value}",
    )


def _text(correction: Correction, rule: Rule | None) -> str:
    alone = Correction(rules=() if rule is None else (rule,), veto=correction.veto if rule is None else None)
    return describe(alone)


def _end(rule: Rule, side: str) -> str:
    """The bound on the ratio: k1 is −log ρ, so that its ends swap."""
    if rule.statistic is not Statistic.K1:
        return side
    return "upper" if side == "lower" else "lower"


_UNITS = {
    Aggregation.SEQ_SUM: "the product ratio",
    Aggregation.SEQ_MEAN: "the geometric ratio",
    Aggregation.SEGMENT_MEAN: "the geometric ratio of a segment",
    Aggregation.SEQ_MAX: "the largest ratio of a response",
    Aggregation.SEQ_MIN: "the least ratio of a response",
}


def _unit(rule: Rule) -> str:
    swapped = {Aggregation.SEQ_MAX: Aggregation.SEQ_MIN, Aggregation.SEQ_MIN: Aggregation.SEQ_MAX}
    own = rule.aggregation
    return _UNITS.get(swapped.get(own, own) if rule.statistic is Statistic.K1 else own, "ρ")


def _as_ratios(rule: Rule, span: tuple[float, float]) -> tuple[float, float]:
    """The values are logs; those of k1 with the other sign."""
    low, high = (-span[1], -span[0]) if rule.statistic is Statistic.K1 else span
    least, greatest = np.exp(np.clip([low, high], -700.0, 700.0))
    return float(least), float(greatest)
