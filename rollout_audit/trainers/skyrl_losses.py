"""SkyRL's `policy_loss_type`: those that weigh or mask by the engine as corrections, and a line on each of the others.

Source: reference/trainers.md 8A (skyrl/backends/skyrl_train/utils/ppo_utils.py, config.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollout_audit.corrections.cuts import weight_interval
from rollout_audit.corrections.direct import kept_tokens
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Loss,
    Mode,
    Rule,
    Sign,
    Statistic,
    Weight,
    rules_by_sign,
)
from rollout_audit.corrections.tokens import Tokens
from rollout_audit.errors import ConfigError
from rollout_audit.statistics.metrics import Figure
from rollout_audit.trainers.base import Quirk
from rollout_audit.trainers.columns import counted
from rollout_audit.trainers.expression import MISSING, Axis, Fill, rule_bound
from rollout_audit.trainers.otherwise import at_sign, reweighed
from rollout_audit.trainers.reductions import NEEDS_ADVANTAGES
from rollout_audit.trainers.section import Section

if TYPE_CHECKING:
    from torch import Tensor

    from rollout_audit.trainers.base import Columns
    from rollout_audit.trainers.settings import Settings

__all__ = ["DEFAULTS", "ELSEWHERE", "OPTIONS", "QUIRKS", "SECTIONS", "PolicyLoss", "parse", "relevant"]

LOSS = "policy_loss_type"
CLIP_LOW, CLIP_HIGH = "eps_clip_low", "eps_clip_high"
CISPO_LOW, CISPO_HIGH, ANCHOR = "cispo_eps_clip_low", "cispo_eps_clip_high", "cispo_anchor"
DPPO, DELTA_LOW, DELTA_HIGH = "dppo_type", "delta_low", "delta_high"
DEFAULTS: dict[str, object] = {
    LOSS: "regular",
    CLIP_LOW: 0.2,
    CLIP_HIGH: 0.2,
    CISPO_LOW: 1.0,
    CISPO_HIGH: 4.0,
    ANCHOR: "old",
    DPPO: "binary_tv",
    DELTA_LOW: 0.2,
    DELTA_HIGH: 0.2,
}
ALGORITHM = ("trainer", "algorithm")
ELSEWHERE = {
    **dict.fromkeys((LOSS, CLIP_LOW, CLIP_HIGH), ALGORITHM),
    **dict.fromkeys((CISPO_LOW, CISPO_HIGH, ANCHOR), (*ALGORITHM, "cispo")),
    **dict.fromkeys((DPPO, DELTA_LOW, DELTA_HIGH), (*ALGORITHM, "dppo")),
}
SECTIONS = tuple(Section(path, shared=True) for path in dict.fromkeys(ELSEWHERE.values()))
KEYS_OF = {
    "rollout_is": (CLIP_LOW, CLIP_HIGH),
    "cispo": (CISPO_LOW, CISPO_HIGH, ANCHOR),
    "dppo": (DPPO, DELTA_LOW, DELTA_HIGH),
}
"""The settings that each of these looks at"""
DIVERGENCES: dict[str | None, Statistic] = {
    "binary_tv": Statistic.PROB_DIFF,
    "binary_kl": Statistic.BINARY_KL,
}
UNSEEN = "off_policy_correction was not seen to act on this loss"
OTHERS: dict[str, str] = {
    **dict.fromkeys(("regular", "dual_clip", "gspo", "sapo"), ""),
    **dict.fromkeys(("clip_cov", "kl_cov", "cross_entropy", "importance_sampling"), UNSEEN),
}
"""Losses without a ratio to the engine, and what is to be said of them"""
BESIDE = "compares the current policy with the engine, off_policy_correction old_log_probs: only the latter is weighed"

QUIRKS = (
    Quirk(
        "exclusive_bounds",
        "rollout_is zeroes a ratio that equals 1 ± eps_clip; every other band here keeps its ends.",
        "skyrl, rollout_is_policy_loss",
        instead=lambda config: _inclusive(config.loss.correction),
    ),
    Quirk(
        "dppo_zero_advantage",
        "DPPO never masks a token of advantage 0; verl and prime-rl bound it on the low side.",
        "reference/trainers.md QUIRKS 18",
        instead=lambda config: (
            None
            if config.loss.correction is None
            else at_sign(config.loss.correction, Sign.NEGATIVE, Sign.NOT_POSITIVE)
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A parsed `policy_loss_type`; `correction` where the engine is its anchor and nothing else is weighed."""

    name: str
    correction: Correction | None
    remarks: tuple[str, ...]

    def columns(self, tokens: Tokens) -> dict[str, Tensor]:
        """float64 [rows] tokens that the loss clips, zeroes or masks; none where it is no correction."""
        if self.correction is None or (self.correction.needs_advantages and tokens.advantages is None):
            return {}
        weight = self.correction.weight
        bounded = weight.bound is not Bound.NONE
        clipped = _outside(weight, tokens) if bounded else ~kept_tokens(self.correction, tokens)
        columns = {"loss_clipped": counted(clipped, tokens.lengths)}
        if self.correction.needs_advantages and tokens.advantages is not None:
            columns["loss_unsigned"] = counted(tokens.advantages.isnan(), tokens.lengths)
        return columns

    def metrics(self, rows: Columns) -> dict[str, Figure]:
        """`clip_ratio`: the share of valid tokens that the loss clips, zeroes or masks."""
        if self.correction is None:
            return {}
        known = "loss_clipped" in rows and not rows.get("loss_unsigned", rows["tokens"] * 0).any()
        if not known:
            return {"loss_metrics/clip_ratio": NEEDS_ADVANTAGES}
        return {"loss_metrics/clip_ratio": float(rows["loss_clipped"].sum() / rows["tokens"].sum())}


def _outside(weight: Weight, tokens: Tokens) -> Tensor:
    inside = weight_interval(weight)
    return (tokens.log_ratio < inside.lower) | (tokens.log_ratio > inside.upper)


def relevant(settings: Mapping[str, object]) -> Mapping[str, object]:
    """The settings without a loss that has nothing to do with the engine, and what only other losses look at."""
    name = str(settings.get(LOSS))
    own = {LOSS, *KEYS_OF.get(name, ())} if name in KEYS_OF or OTHERS.get(name, "unknown") else set[str]()
    return {key: value for key, value in settings.items() if key not in DEFAULTS or key in own}


def parse(settings: Settings, *, acts: bool, weighs: bool) -> PolicyLoss:
    """`acts`: whether off_policy_correction does anything; `weighs`: whether TIS is on."""
    name = settings.choice(LOSS, {name: name for name in (*OTHERS, *KEYS_OF)})
    if name in OTHERS:
        return PolicyLoss(name, None, (f"{LOSS} = {name!r}: {OTHERS[name]}",) if OTHERS[name] else ())
    anchored = name != "cispo" or settings.choice(ANCHOR, {"old": False, "rollout": True})
    if not anchored:
        text = "clips the ratio of the update, which is no correction of the gap to the engine"
        return PolicyLoss(name, None, (f"{LOSS} = 'cispo': {text}; {ANCHOR} 'rollout' would be one",))
    if name == "cispo" and weighs:
        raise ConfigError(ANCHOR, "rollout", "SkyRL refuses it with tis_ratio_type: the gap would count twice")
    correction = _READ[name](settings)
    return PolicyLoss(name, None, (f"{LOSS} = {name!r}: {BESIDE}",)) if acts else PolicyLoss(name, correction, ())


def _applied(weight: Weight, rules: tuple[Rule, ...] = ()) -> Correction:
    return Correction(weight, rules, denominator=Denominator.ORIGINAL, mode=Mode.BYPASS, loss=Loss.REINFORCE)


def _rollout_is(settings: Settings) -> Correction:
    """The ratio where 1 − low < ρ < 1 + high, both strict: the bounds are the next numbers inside."""
    low, high = settings.not_negative(CLIP_LOW), settings.not_negative(CLIP_HIGH)
    lower = math.nextafter(1 - low, math.inf) if low < 1 else None
    upper = math.nextafter(1 + high, 0.0)
    if lower is not None and lower > upper:
        raise ConfigError(CLIP_LOW, settings.values[CLIP_LOW], f"with {CLIP_HIGH} = {high:g} no ratio has a weight")
    return _applied(Weight(Level.TOKEN, Bound.MASK, lower, upper))


def _inclusive(correction: Correction | None) -> Correction | None:
    """rollout_is with both its ends inside."""
    if correction is None or correction.weight.bound is not Bound.MASK:
        return None
    lower, upper = correction.weight.lower, correction.weight.upper
    ends = {
        "lower": None if lower is None else math.nextafter(lower, 0.0),
        "upper": None if upper is None else math.nextafter(upper, math.inf),
    }
    return reweighed(correction, **ends)


def _cispo(settings: Settings) -> Correction:
    low, high = settings.not_negative(CISPO_LOW), settings.not_negative(CISPO_HIGH)
    return _applied(Weight(Level.TOKEN, Bound.CLIP, 1 - low if low < 1 else None, 1 + high))


def _dppo(settings: Settings) -> Correction:
    statistic = settings.choice(DPPO, DIVERGENCES)
    low, high = settings.not_negative(DELTA_LOW), settings.not_negative(DELTA_HIGH)
    return _applied(Weight(Level.TOKEN), rules_by_sign(statistic, low, high, down=Sign.NEGATIVE))


_READ: Mapping[str, Callable[[Settings], Correction]] = {"rollout_is": _rollout_is, "cispo": _cispo, "dppo": _dppo}


def _offset(bound: str, nearer: float) -> Fill:
    """How far a bound of the weight lies from 1, in the fewest digits; a strict one was moved towards `nearer`."""

    def filled(correction: Correction) -> object:
        value = getattr(correction.weight, bound)
        if value is None:
            return 1.0 if bound == "lower" else MISSING
        sign = -1.0 if bound == "lower" else 1.0
        exact = sign * (value - 1)
        for digits in range(1, 18):
            short = float(f"{exact:.{digits}g}")
            end = 1 + sign * short
            if short >= 0 and (math.nextafter(end, nearer) if nearer != 1.0 else end) == value:
                return short
        return max(exact, 0.0)

    return filled


OPTIONS: tuple[Axis, ...] = (
    (
        {LOSS: "rollout_is", CLIP_LOW: _offset("lower", math.inf), CLIP_HIGH: _offset("upper", 0.0)},
        {
            LOSS: "cispo",
            ANCHOR: "rollout",
            CISPO_LOW: _offset("lower", 1.0),
            CISPO_HIGH: _offset("upper", 1.0),
        },
        *(
            {
                LOSS: "dppo",
                DPPO: kind,
                DELTA_LOW: rule_bound(statistic, Aggregation.TOKEN, "lower", scale=-1.0),
                DELTA_HIGH: rule_bound(statistic, Aggregation.TOKEN),
            }
            for kind, statistic in DIVERGENCES.items()
            if kind is not None
        ),
    ),
)
