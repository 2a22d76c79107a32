"""Every way to set a correction in `rollout_correction`, and a correction's rules in verl's notation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from rollout_audit.corrections.equivalence import rule_bands
from rollout_audit.corrections.model import Aggregation, Correction, Rule, Sign, Statistic
from rollout_audit.trainers.expression import (
    MISSING,
    Axis,
    Fill,
    Options,
    or_else,
    ratio_of,
    rule_bound,
    rule_lower,
    rule_upper,
    upper,
)
from rollout_audit.trainers.thresholds import REJECTION_OPTIONS
from rollout_audit.trainers.verl_losses import DIVERGENCES, POOLING

__all__ = ["OPTIONS"]

NO_CAP = 10000.0
"""What the recipe of DPPO sets to switch the cap off"""


def _band(low: Fill, high: Fill) -> Fill:
    """`lower_upper`."""

    def filled(correction: Correction) -> object:
        bounds = (low(correction), high(correction))
        return MISSING if MISSING in bounds else "{!r}_{!r}".format(*bounds)

    return filled


def _in_notation(rule: Rule) -> tuple[str, float | str] | None:
    """verl's name and threshold: k2 and k3 as they are, what is a two-sided band of a ratio as k1."""
    if rule.sign is not Sign.ANY:
        return None
    if rule.name in REJECTION_OPTIONS and rule.statistic is not Statistic.K1 and rule.upper is not None:
        return rule.name, rule.upper
    for band in rule_bands(rule):
        name = f"{band.kind}_k1"
        if name in REJECTION_OPTIONS and math.isfinite(band.lower) and math.isfinite(band.upper):
            # −log ρ between the logs of the two numbers: the ends swap
            return name, f"{ratio_of(-band.upper)!r}_{ratio_of(-band.lower)!r}"
    return None


def _written(correction: Correction) -> Iterator[tuple[str, float | str]]:
    return (found for rule in correction.rules if (found := _in_notation(rule)) is not None)


def _list_of(part: Callable[[tuple[str, float | str]], object]) -> Fill:
    def filled(correction: Correction) -> object:
        parts = [part(one) for one in _written(correction)]
        return ",".join(map(str, parts)) if len(parts) > 1 else next(iter(parts), MISSING)

    return filled


LEVELS = {"token": Aggregation.TOKEN, "sequence": Aggregation.SEQ_SUM}

WEIGHTS: Axis = (
    {"rollout_is": None},
    *({"rollout_is": level, "rollout_is_threshold": upper} for level in LEVELS),
    *(
        {"rollout_is": level, "rollout_is_threshold": _band(rule_lower(own), rule_upper(own))}
        for level, own in LEVELS.items()
    ),
    *(
        {"rollout_is": level, "rollout_is_threshold": _band(lambda c: c.weight.lower or MISSING, upper)}
        for level in LEVELS
    ),
)
POOLED: Axis = tuple({**given, "loss_mode": POOLING} for given in WEIGHTS if given["rollout_is"] == "token")
REJECTION: Axis = (
    {"rollout_rs": None},
    {"rollout_rs": _list_of(lambda one: one[0]), "rollout_rs_threshold": _list_of(lambda one: one[1])},
)
MODES: Axis = (
    {},
    {"loss_type": "reinforce"},
    *({"bypass_mode": True, "loss_type": loss} for loss in ("ppo_clip", "reinforce")),
)
DPPO: Axis = tuple(
    {
        "bypass_mode": True,
        "loss_mode": mode,
        "clip_ratio_low": rule_bound(statistic, Aggregation.TOKEN, "lower", scale=-1.0),
        "clip_ratio_high": rule_bound(statistic, Aggregation.TOKEN),
        "clip_ratio_c": or_else(upper, NO_CAP),
    }
    for mode, statistic in DIVERGENCES.items()
)
OPTIONS: Options = (
    (WEIGHTS, ({}, {"rollout_is_batch_normalize": True}), REJECTION, MODES),
    (DPPO,),
    (POOLED, REJECTION, MODES[:2]),
)
