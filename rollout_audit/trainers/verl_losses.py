"""verl's `actor.policy_loss.loss_mode`: DPPO as a correction, and a line on each of the others.

Source: reference/trainers.md 1A (verl/trainer/ppo/core_algos.py, verl/workers/config/actor.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rollout_audit.corrections.direct import kept_tokens
from rollout_audit.corrections.model import (
    SAFETY_CLAMP,
    Bound,
    Correction,
    Denominator,
    Level,
    Loss,
    Mode,
    Sign,
    Statistic,
    Weight,
    rules_by_sign,
)
from rollout_audit.corrections.tokens import row_sum
from rollout_audit.statistics.metrics import Figure
from rollout_audit.trainers.base import Quirk
from rollout_audit.trainers.columns import counted
from rollout_audit.trainers.otherwise import at_sign
from rollout_audit.trainers.reductions import NEEDS_ADVANTAGES, token_mean
from rollout_audit.trainers.verl_renamed import CLIP_RATIOS

if TYPE_CHECKING:
    from torch import Tensor

    from rollout_audit.corrections.tokens import Tokens
    from rollout_audit.trainers.base import Columns
    from rollout_audit.trainers.settings import Settings

__all__ = [
    "DEFAULTS",
    "DIVERGENCES",
    "POOLING",
    "QUIRKS",
    "Dppo",
    "PolicyLoss",
    "parse",
    "pooled",
    "relevant",
    "remarks",
]

DEFAULTS: dict[str, object] = {
    "loss_mode": "vanilla",
    "clip_ratio": 0.2,
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.2,
    "clip_ratio_c": 3.0,
}
DIVERGENCES = {"dppo_tv": Statistic.PROB_DIFF, "dppo_kl": Statistic.BINARY_KL}
"""What DPPO bounds; both have the sign of the log-ratio"""

BY_ITSELF = "no correction of the gap to the engine by itself, and rollout_is multiplies it as it does vanilla"
POOLING = "geo_mean"
OTHERS = {
    "vanilla": "",
    "gspo": f"clips the geometric ratio of the update; {BY_ITSELF}",
    "sapo": f"a smooth gate on the ratio of the update; {BY_ITSELF}",
    "cispo": f"clips the ratio of the update and keeps the token; {BY_ITSELF}",
    "gpg": f"uses no ratio; {BY_ITSELF}",
    "dro": f"a squared log-ratio of the update as penalty; {BY_ITSELF}",
    "clip_cov": f"leaves tokens of high covariance out; {BY_ITSELF}",
    "kl_cov": f"penalises tokens of high covariance; {BY_ITSELF}",
    POOLING: "the geometric mean of the weights of rollout_is multiplies a response, so that one of 0 takes nearly all "
    "of it away; with rollout_is_batch_normalize weighed here token by token",
    "bypass_mode": "is what bypass_mode sets; without that the old policy is taken for the engine's",
}
"""Of each loss mode, what it has to do with the gap between trainer and engine; nothing to say of the default"""

QUIRKS = (
    Quirk(
        "dppo_anchor",
        "DPPO compares the current policy with old_log_probs, which only bypass_mode makes those of the engine; "
        "rollout_is and rollout_rs are then not computed.",
        "reference/trainers.md 1A",
        untold="Without bypass_mode no correction is made of it: what is read of the settings says so",
    ),
    Quirk(
        "dppo_keeps_denominator",
        "Tokens that DPPO masks stay in the denominator of the loss; those that rollout_rs removes do not.",
        "reference/trainers.md 1A",
        told_by="gradient_scale",
        when=lambda config: config.policy.dppo is not None,
    ),
    Quirk(
        "dppo_zero_advantage",
        "An advantage of 0 takes the low side of DPPO's mask.",
        "reference/trainers.md QUIRKS 18",
        instead=lambda config: (
            None
            if config.policy.dppo is None
            else at_sign(config.policy.dppo.correction, Sign.NOT_POSITIVE, Sign.NEGATIVE)
        ),
    ),
    Quirk(
        "dppo_thresholds",
        "clip_ratio alone does nothing: clip_ratio_low and clip_ratio_high are 0.2 where they are not given, whether "
        "they bound a ratio, a difference of probabilities or a divergence.",
        "verl/workers/config/actor.py",
        untold="A setting that is not looked at is named when the settings are read",
    ),
)


@dataclass(frozen=True, slots=True)
class Dppo:
    """A mask by divergence from the engine, on the side to which the advantage pushes."""

    statistic: Statistic
    low: float
    high: float
    cap: float
    """of the detached ratio that multiplies the loss"""

    @property
    def correction(self) -> Correction:
        """What it does where the engine is its anchor."""
        return Correction(
            weight=Weight(Level.TOKEN, Bound.TRUNCATE, upper=self.cap),
            rules=rules_by_sign(self.statistic, self.low, self.high),
            denominator=Denominator.ORIGINAL,
            mode=Mode.BYPASS,
            loss=Loss.REINFORCE,
        )

    def columns(self, tokens: Tokens) -> dict[str, Tensor]:
        """float64 [rows] masked tokens and kept ones above the cap; none without advantages."""
        columns = {"drift": row_sum(-tokens.log_ratio.clamp(-SAFETY_CLAMP, SAFETY_CLAMP), tokens.lengths)}
        if tokens.advantages is None:
            return columns
        kept = kept_tokens(self.correction, tokens)
        above = kept & (tokens.log_ratio.clamp(max=SAFETY_CLAMP).exp() > self.cap)
        hits = {"dppo_masked": ~kept, "dppo_above": above, "dppo_unsigned": tokens.advantages.isnan()}
        return columns | {name: counted(where, tokens.lengths) for name, where in hits.items()}

    def metrics(self, rows: Columns) -> dict[str, Figure]:
        """What the loss logs, the batch as one micro-batch."""
        n, signed = rows["tokens"], "dppo_unsigned" in rows and not rows["dppo_unsigned"].any()
        shares = {"actor/pg_clipfrac": "dppo_masked", "actor/pg_clipfrac_lower": "dppo_above"}
        values: dict[str, Figure] = {"actor/ppo_kl": token_mean(rows["drift"], n)}
        return values | {
            name: token_mean(rows[column], n) if signed else NEEDS_ADVANTAGES for name, column in shares.items()
        }


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A parsed `policy_loss.loss_mode` with the clip ratios that DPPO takes its thresholds from."""

    mode: str
    dppo: Dppo | None
    """where the engine is its anchor"""
    remarks: tuple[str, ...]


def relevant(settings: Mapping[str, object]) -> Mapping[str, object]:
    """The settings without what belongs to PPO's clip alone: DPPO's thresholds stand in the same keys."""
    mode = settings.get("loss_mode", DEFAULTS["loss_mode"])
    if str(mode) in DIVERGENCES:
        return settings
    moot = {*CLIP_RATIOS, *({"loss_mode"} if mode == DEFAULTS["loss_mode"] else ())}
    return {key: value for key, value in settings.items() if key not in moot}


def parse(settings: Settings, given: Mapping[str, object], *, bypass: bool) -> PolicyLoss:
    """`given`: the settings that are not left at their defaults (ConfigError: an unknown mode, a bad threshold)."""
    mode = settings.choice("loss_mode", {name: name for name in (*OTHERS, *DIVERGENCES)})
    if mode in DIVERGENCES:
        dppo = _dppo(settings, DIVERGENCES[mode])
        return PolicyLoss(mode, dppo if bypass else None, tuple(_of_dppo(mode, given, bypass=bypass)))
    text = "bypass_mode puts the loss of loss_type in its place" if bypass else OTHERS[mode]
    said = text and not (bypass and mode in ("vanilla", "bypass_mode"))
    return PolicyLoss(mode, None, (f"loss_mode = {mode!r}: {text}",) if said else ())


def pooled(weight: Weight, mode: str) -> Weight:
    """What geo_mean makes of token weights; at sequence level a response has one weight already."""
    pools = mode == POOLING and weight.level is Level.TOKEN and not weight.normalise
    return replace(weight, pooled=True) if pools else weight


def remarks(settings: Settings) -> tuple[str, ...]:
    """On the loss mode of a version before DPPO (ConfigError: an unknown one)."""
    mode = settings.choice("loss_mode", {name: name for name in OTHERS})
    return (f"loss_mode = {mode!r}: {OTHERS[mode]}",) if OTHERS[mode] else ()


def _dppo(settings: Settings, statistic: Statistic) -> Dppo:
    low, high = (_threshold(settings, key) for key in ("clip_ratio_low", "clip_ratio_high"))
    return Dppo(statistic, low, high, settings.positive("clip_ratio_c"))


def _threshold(settings: Settings, key: str) -> float:
    return settings.not_negative("clip_ratio" if settings.values[key] is None else key)


SIDES = {"clip_ratio_low", "clip_ratio_high"}
WEIGHING = ("rollout_is", "rollout_rs")


def _of_dppo(mode: str, given: Mapping[str, object], *, bypass: bool) -> list[str]:
    """What the other settings do beside it."""
    remarks = []
    lone = given.get("clip_ratio", 0.2) != 0.2 and not SIDES & given.keys()
    if lone:
        reason = f"not looked at, {' and '.join(sorted(SIDES))} are 0.2 by default"
        remarks.append(f"clip_ratio = {given['clip_ratio']!r}: {reason}")
    if not bypass:
        reason = (
            "without bypass_mode it masks by the update (log_probs against old_log_probs), not by the gap to the engine"
        )
        remarks.append(f"loss_mode = {mode!r}: {reason}; not in the correction that is weighed")
    elif mode == "dppo_tv":
        remarks += [
            f"{key} = {given[key]!r}: no two probabilities differ by so much"
            for key in sorted(SIDES & given.keys())
            if given[key] is not None and float(str(given[key])) >= 1
        ]
    idle = [key for key in WEIGHING if bypass and given.get(key)]
    if idle:
        remarks.append(f"{' and '.join(idle)}: not computed with loss_mode {mode!r} in bypass_mode")
    return remarks
