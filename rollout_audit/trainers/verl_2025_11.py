"""verl, November and December 2025: `algorithm.rollout_correction` with bounds on the ratio itself, and a veto.

Source: reference/trainers.md 1A, legacy (b) (verl/trainer/ppo/rollout_corr_helper.py, 2025-11-07 to 2025-12-15).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rollout_audit.corrections.model import Bound, Correction, Level, Loss, Mode, Rule, Statistic, Weight
from rollout_audit.corrections.tokens import Tokens, row_sum
from rollout_audit.errors import ConfigError
from rollout_audit.statistics.metrics import Figure, Metrics
from rollout_audit.trainers import verl, verl_losses
from rollout_audit.trainers.base import (
    Columns,
    Counterpart,
    OrderStatistics,
    Quirk,
    Renamed,
    Trainer,
    read_by,
    replaced_by,
    weighs,
)
from rollout_audit.trainers.expression import Axis, Options, rule_lower, rule_upper, upper, veto
from rollout_audit.trainers.levels import AGGREGATIONS, LEVELS
from rollout_audit.trainers.off_policy import off_policy_columns, raw_weight
from rollout_audit.trainers.reductions import fraction, summarise, token_mean
from rollout_audit.trainers.settings import Settings
from rollout_audit.trainers.thresholds import REJECTION_OPTIONS
from rollout_audit.trainers.verl_renamed import BYPASS, CAP, CAPPED, POLICY_LOSS, PURE, SECTION, VETO, capped
from rollout_audit.trainers.verl_weights import (
    Weights,
    extremes,
    level_of_rows,
    outside,
    sequence_weights,
    spread_of_weights,
    vetoing,
    weight_columns,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TRAINER", "RatioConfig"]

IS, IS_UPPER = "rollout_is", "rollout_is_threshold"
RS, RS_UPPER, RS_LOWER = "rollout_rs", "rollout_rs_threshold", "rollout_rs_threshold_lower"

DEFAULTS: dict[str, object] = {
    IS: None,
    IS_UPPER: 2.0,
    "rollout_is_batch_normalize": False,
    RS: None,
    RS_UPPER: None,
    RS_LOWER: None,
    VETO: None,
    "bypass_mode": False,
    "use_policy_gradient": False,
    "loss_type": "ppo_clip",
    "loss_mode": "vanilla",
}
WEIGHING = {name: level for name, level in verl.LEVELS.items() if name is not None}
REJECTING: dict[str | None, Level | None] = {None: None, **LEVELS}

SHARED = ("empty_rows", "normaliser_before_rejection", "clamped_chi2")
QUIRKS = (
    Quirk(
        "raw_weights",
        "rollout_is_mean, _max, _min and _seq_* are of the weights before truncation.",
        "verl v0.7, rollout_corr_helper",
    ),
    Quirk(
        "ess_of_clamped",
        "std and effective sample size are of weights clamped into [1/T, T], which lifts the latter.",
        "verl v0.7, rollout_corr_helper",
    ),
    Quirk(
        "veto_apart",
        "rollout_rs_masked_fraction does not hold the vetoed sequences; rollout_is_veto_fraction is of all rows, empty "
        "ones too, and 0 where there is no veto.",
        "verl v0.7, rollout_corr_helper",
    ),
    Quirk(
        "mixed_populations",
        "Fractions are of tokens at token level and of all rows at sequence and geometric level; "
        "rollout_rs_masked_fraction is always of tokens.",
        "verl v0.7, rollout_corr_helper",
    ),
    Quirk(
        "bypass_rejects_nothing",
        "bypass_mode with PPO's clip ignores rollout_rs and the veto until loss_type replaced use_policy_gradient in "
        "December 2025: they act in decoupled mode and with use_policy_gradient.",
        "verl v0.7, ray_trainer",
        instead=lambda config: correction(replace(config, rejects=True)),
    ),
    *(quirk for quirk in verl.QUIRKS if quirk.name in SHARED),
)

WEIGHTS: Axis = ({IS: None}, *({IS: name, IS_UPPER: upper} for name in WEIGHING))
REJECTION: Axis = (
    {RS: None},
    *(
        {RS: name, RS_UPPER: rule_upper(AGGREGATIONS[lv]), RS_LOWER: rule_lower(AGGREGATIONS[lv])}
        for name, lv in LEVELS.items()
    ),
)
MODES: Axis = (
    {},
    {"loss_type": "reinforce"},
    *({"bypass_mode": True, "loss_type": loss} for loss in ("ppo_clip", "reinforce")),
)
POOLED: Axis = ({IS: "token", IS_UPPER: upper, "loss_mode": verl_losses.POOLING},)
OPTIONS: Options = (
    (WEIGHTS, ({}, {"rollout_is_batch_normalize": True}), REJECTION, ({}, {VETO: veto}), MODES),
    (POOLED, REJECTION, ({}, {VETO: veto})),
)

SHARED_COUNTERPARTS = {
    name: one for name, one in verl.COUNTERPARTS.items() if one.quirk in ("empty_rows", "clamped_chi2")
}
COUNTERPARTS = {
    **SHARED_COUNTERPARTS,
    "rollout_corr/rollout_is_mean": Counterpart("bounded.weight_mean", "raw_weights", when=weighs),
    "rollout_corr/rollout_is_eff_sample_size": Counterpart("raw.ess", "ess_of_clamped", when=weighs),
    "rollout_corr/rollout_is_ratio_fraction_high": Counterpart(
        "bounded.capped_fraction", "mixed_populations", when=weighs
    ),
    "rollout_corr/rollout_rs_masked_fraction": Counterpart("kept.masked_fraction", "veto_apart"),
    "rollout_corr/rollout_rs_seq_masked_fraction": Counterpart("kept.seq_touched_fraction", "veto_apart"),
}


@dataclass(frozen=True, slots=True)
class RatioConfig:
    """A parsed `rollout_correction` of that time."""

    level: Level
    cap: float
    batch_normalize: bool
    rejection: Level | None
    """level of the ratio that is bounded"""
    lower: float
    upper: float
    veto: float | None
    mode: Mode
    loss: Loss
    rejects: bool
    """False in bypass with PPO's clip, before loss_type"""
    pooling: str
    """the loss mode where it is not that of bypass_mode"""
    remarks: tuple[str, ...]

    @property
    def spread(self) -> tuple[float, float]:
        """Bounds of the weights that std and sample size are taken of."""
        return 1 / self.cap, self.cap


def parse(raw: Mapping[str, object]) -> RatioConfig:
    """Flat settings → configuration (ConfigError where a value is refused)."""
    settings = Settings.read(raw, DEFAULTS)
    _refuse_later(settings)
    level = settings.choice(IS, verl.LEVELS)
    rejection = settings.choice(RS, REJECTING)
    lower, upper = (0.0, 1.0) if rejection is None else _band(settings)
    bypass = settings.flag("bypass_mode")
    gradient = settings.flag("use_policy_gradient") or settings.choice("loss_type", verl.LOSSES) is Loss.REINFORCE
    return RatioConfig(
        level=level,
        # without weights verl never looks at their threshold, and null is common there
        cap=2.0 if level is Level.NONE else settings.positive(IS_UPPER),
        batch_normalize=settings.flag("rollout_is_batch_normalize"),
        rejection=rejection,
        lower=lower,
        upper=upper,
        veto=settings.optional_positive(VETO),
        mode=Mode.BYPASS if bypass else Mode.DECOUPLED,
        loss=Loss.REINFORCE if gradient else Loss.PPO_CLIP,
        rejects=not bypass or gradient or "loss_type" in raw,
        pooling="" if bypass else str(settings.values["loss_mode"]),
        remarks=verl_losses.remarks(settings),
    )


def _refuse_later(settings: Settings) -> None:
    """Raises ConfigError for what only later versions understand."""
    for key in (IS_UPPER, RS_UPPER):
        if isinstance(settings.values[key], str) and "_" in str(settings.values[key]):
            raise ConfigError(key, settings.values[key], "bands came later; --trainer verl reads them")
    given = str(settings.values[RS]).split(",")
    if any(name.strip() in REJECTION_OPTIONS for name in given):
        raise ConfigError(RS, settings.values[RS], "of verl since December 2025; --trainer verl reads it")


def _band(settings: Settings) -> tuple[float, float]:
    if settings.values[RS_UPPER] is None:
        raise ConfigError(RS_UPPER, None, "rollout_rs needs a threshold")
    return settings.band(RS_LOWER, RS_UPPER)


def correction(config: RatioConfig) -> Correction:
    """What the configuration does, in the tool's vocabulary."""
    weight = Weight(config.level, Bound.TRUNCATE, upper=config.cap, normalise=config.batch_normalize)
    rejects = config.rejects
    return Correction(
        weight=Weight() if config.level is Level.NONE else verl_losses.pooled(weight, config.pooling),
        rules=_rules(config) if rejects else (),
        veto=config.veto if rejects else None,
        mode=config.mode,
        loss=config.loss,
    )


def _rules(config: RatioConfig) -> tuple[Rule, ...]:
    if config.rejection is None:
        return ()
    return (Rule(Statistic.RATIO, AGGREGATIONS[config.rejection], config.lower, config.upper, clamp=None),)


def warnings(config: RatioConfig) -> tuple[str, ...]:
    """A cap below 1, and what bypass_mode does not apply."""
    found = []
    if config.level is not Level.NONE and config.cap < 1:
        cap = f"{config.cap:.12g}"
        found.append(f"rollout_is_threshold = {cap}: a cap below 1 shrinks weights where the policies agree")
    if correction(config).applied_weight.level is not config.level:
        found.append("rollout_is: not applied in bypass mode with PPO's clip (the ratio carries it)")
    idle = [key for key, on in ((RS, config.rejection is not None), (VETO, config.veto is not None)) if on]
    if idle and not config.rejects:
        found.append(f"{' and '.join(idle)}: bypass_mode rejects nothing without use_policy_gradient")
    return (*found, *config.remarks)


def row_columns(tokens: Tokens, config: RatioConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    columns = off_policy_columns(tokens)
    if not config.rejects:
        return columns
    if config.level is not Level.NONE:
        bounded = raw_weight(tokens, config.level).clamp(max=config.cap)
        columns |= _columns(tokens, config.level, *config.spread)
        columns |= {"is_bounded": row_sum(bounded, tokens.lengths)}
    if config.rejection is not None:
        of_ratios = _columns(tokens, config.rejection, config.lower, config.upper)
        columns |= {f"rs_{name}": column for name, column in of_ratios.items()}
    return columns | {"vetoing": vetoing(tokens, config.veto)}


def _columns(tokens: Tokens, level: Level, lower: float, upper: float) -> dict[str, Tensor]:
    raw = raw_weight(tokens, level)
    return weight_columns(Weights(raw, shown=raw, spread=raw.clamp(lower, upper)), lower, upper, tokens.lengths)


def metrics(rows: Columns, config: RatioConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - no percentile
    """The `rollout_corr/…` values of one batch."""

    def compute() -> dict[str, Figure]:
        values: dict[str, Figure] = {**verl.off_policy(rows)}
        return values | (_acting(rows, config) if config.rejects else {})

    return summarise(rows, compute, "rollout_corr/")


def _acting(rows: Columns, config: RatioConfig) -> dict[str, float]:
    values = {
        "rollout_is_veto_fraction": fraction(rows["vetoing"] > 0),
        "rollout_is_catastrophic_token_fraction": token_mean(rows["vetoing"], rows["tokens"]),
    }
    if config.level is not Level.NONE:
        values |= _ratios(rows, config.level, *config.spread)
        if config.batch_normalize:
            values["rollout_is_batch_norm_factor"] = verl.batch_norm_factor(rows, config.level)
    return values | (_rejection(rows, config.rejection, config) if config.rejection is not None else {})


def _rejection(rows: Columns, level: Level, config: RatioConfig) -> dict[str, float]:
    """The same figures of the ratios that are bounded, and what leaves the band."""
    renamed = {name.removeprefix("rs_"): column for name, column in rows.items() if name.startswith("rs_")}
    of_ratios = {"tokens": rows["tokens"], "log_ratio": rows["log_ratio"], **renamed}
    found = _ratios(of_ratios, level, config.lower, config.upper)
    values = {name.replace("rollout_is_", "rollout_rs_"): value for name, value in found.items()}
    gone = of_ratios["is_above"] + of_ratios["is_below"]
    values["rollout_rs_masked_fraction"] = token_mean(gone, rows["tokens"])
    high, low = (values[f"rollout_rs_ratio_fraction_{side}"] for side in ("high", "low"))
    values["rollout_rs_seq_masked_fraction"] = fraction(gone > 0) if level is Level.TOKEN else high + low
    return values


def _ratios(rows: Columns, level: Level, lower: float, upper: float) -> dict[str, float]:
    values = {"rollout_is_mean": token_mean(rows["is_shown"], rows["tokens"])}
    values |= extremes(rows, level) | _outside(rows, level, lower, upper)
    return values | spread_of_weights(rows) | sequence_weights(rows, lower, upper)


def _outside(rows: Columns, level: Level, lower: float, upper: float) -> dict[str, float]:
    """Of all B rows at geometric level too."""
    if level is not Level.GEOMETRIC:
        return outside(rows, level, lower, upper)
    return outside({**rows, "log_ratio": level_of_rows(rows, level)}, Level.SEQUENCE, lower, upper)


OCTOBER = ("rollout_is_level", "rollout_is_mode", "rollout_is_threshold_lower", "rollout_is_veto_threshold")
RENAMED = (
    Renamed(CAP, "now rollout_is 'token' with rollout_is_threshold", capped(rollout_is="token"), yields_to=CAPPED),
    *(read_by(key, "of verl in October 2025", "verl-2025-10") for key in OCTOBER),
    read_by(IS, "of verl in October 2025", "verl-2025-10", frozenset({True, False})),
    replaced_by(BYPASS, "bypass_mode"),
    replaced_by(PURE, "use_policy_gradient"),
)

TRAINER: Trainer[RatioConfig] = Trainer(
    name="verl-2025-11",
    version="2025-11",
    defaults=DEFAULTS,
    section=SECTION,
    parse=parse,
    correction=correction,
    warnings=warnings,
    row_columns=row_columns,
    metrics=metrics,
    quirks=QUIRKS,
    options=OPTIONS,
    counterparts=COUNTERPARTS,
    elsewhere={"loss_mode": POLICY_LOSS.path},
    renamed=RENAMED,
    relevant=verl_losses.relevant,
)
