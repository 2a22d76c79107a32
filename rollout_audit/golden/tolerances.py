"""How far a figure may move, and which way is worse: from the catalogue, unless a settings file says otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rollout_audit.golden.directions import direction_of_logged, is_logged, is_of_one_side
from rollout_audit.reports.catalogue import CATALOGUE, Worse

__all__ = [
    "COUNTS",
    "DIRECTIONS",
    "MASK",
    "METRICS",
    "SPELT",
    "Tolerance",
    "default_tolerance",
    "has_threshold",
    "is_counted",
    "is_held",
    "is_logged",
    "tolerances_for",
]

DIRECTIONS: tuple[Worse, ...] = get_args(Worse)
SPELT = {"up": "higher", "down": "lower"}
"""Words of the tables that stand for a direction in settings too"""
COUNTS = ("steps", "sequences", "scored_sequences", "tokens", "valid_tokens", "dropped_sequences")
"""Sizes of a dump or of a step"""
SHARES = frozenset(
    {
        *("within_1pct", "within_5pct", "within_10pct", "catastrophic_fraction", "veto_fraction"),
        *("capped_fraction", "below_lower_fraction", "zeroed_fraction"),
        *("masked_fraction", "seq_masked_fraction", "seq_touched_fraction"),
    }
)
"""A number of tokens or sequences divided by all of them"""
MASK = "mask"
"""Which tokens a correction leaves; its tolerance is in tokens"""
PAST_CLAMP = frozenset({"tokens_past_clamp", "sequences_past_clamp"})
METRICS = (*COUNTS, MASK, *CATALOGUE)
"""Every name that may have a tolerance; a trainer's own metrics, `TRAINER:METRIC`, are the trainer's to name"""


def _spelt(word: object) -> object:
    return SPELT.get(word, word) if isinstance(word, str) else word


class Tolerance(BaseModel):
    """A figure is the same where |got − expected| ≤ atol + rtol · |expected|; beyond it `direction` says what is worse.

    With atol = rtol = 0 a counting metric is compared as the whole number it stands for, a mask token by token.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    atol: float = Field(default=1e-12, ge=0)
    rtol: float = Field(default=1e-6, ge=0)
    direction: Annotated[
        Worse, BeforeValidator(lambda word: SPELT.get(word, word) if isinstance(word, str) else word)
    ] = Field(default="neither", description="which way is worse; neither: every change is")


def is_counted(metric: str) -> bool:
    """Whether the figure is a number of tokens or sequences, or a share of them."""
    return metric in COUNTS or metric in SHARES or (metric in CATALOGUE and CATALOGUE[metric].unit == "count")


def has_threshold(metric: str) -> bool:
    """Whether what it counts lies on one side of a threshold, so that rounding may decide."""
    return metric in SHARES or metric in PAST_CLAMP


def default_tolerance(metric: str) -> Tolerance:
    """Exact for what counts; else 1e-6 relative, in which the rounding of other processors is lost many times over."""
    if is_logged(metric):
        return Tolerance(direction=direction_of_logged(metric))
    if metric == MASK:
        return Tolerance(atol=0, rtol=0, direction="higher")
    direction = CATALOGUE[metric].worse if metric in CATALOGUE else "neither"
    return Tolerance(atol=0, rtol=0, direction=direction) if is_counted(metric) else Tolerance(direction=direction)


def is_held(metric: str, recorded: Mapping[str, Tolerance], asked: Mapping[str, Mapping[str, object]]) -> bool:
    """Whether a golden file holds it: what looks at one policy alone only where it has or is given a tolerance."""
    return metric in asked or metric in recorded or not is_of_one_side(metric)


def tolerances_for(
    metrics: Iterable[str], recorded: Mapping[str, Tolerance], asked: Mapping[str, Mapping[str, object]]
) -> dict[str, Tolerance]:
    """What holds for each metric: the settings' word, else the golden file's, else the default."""
    found = {metric: recorded.get(metric, default_tolerance(metric)) for metric in metrics}
    return {m: Tolerance.model_validate(t.model_dump() | dict(asked.get(m, {}))) for m, t in found.items()}
