"""verl, October 2025: `algorithm.rollout_is…`, logged as `mismatch/…`.

Source: reference/trainers.md 1A, legacy (a), and 1B (verl/trainer/ppo/mismatch_helper.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollout_audit.corrections.model import (
    SAFETY_CLAMP,
    Bound,
    Correction,
    Level,
    Rule,
    Statistic,
    Weight,
)
from rollout_audit.corrections.tokens import Tokens
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers import verl_losses
from rollout_audit.trainers.base import Columns, Counterpart, OrderStatistics, Quirk, Renamed, Trainer, read_by, weighs
from rollout_audit.trainers.expression import Options, rule_lower, rule_upper, upper, veto
from rollout_audit.trainers.levels import AGGREGATIONS, LEVELS
from rollout_audit.trainers.off_policy import off_policy_columns, raw_weight
from rollout_audit.trainers.reductions import fraction, percentiles, row_order, summarise, token_mean
from rollout_audit.trainers.section import Section
from rollout_audit.trainers.settings import Settings
from rollout_audit.trainers.verl_renamed import ACTOR, CAP, CAPPED, POLICY_LOSS, capped
from rollout_audit.trainers.verl_weights import (
    Weights,
    eleven_off_policy,
    extremes,
    level_of_rows,
    outside,
    sequence_weights,
    spread_of_weights,
    vetoing,
    weight_columns,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["TRAINER", "LegacyConfig"]

DEFAULTS: dict[str, object] = {
    "rollout_is": False,
    "rollout_is_level": "token",
    "rollout_is_mode": "truncate",
    "rollout_is_threshold": None,
    "rollout_is_threshold_lower": None,
    "rollout_is_veto_threshold": None,
    "loss_mode": "vanilla",
}
MODES: dict[str | None, Bound] = {"truncate": Bound.TRUNCATE, "mask": Bound.MASK, "clip": Bound.MASK}
"""mask was called clip for one day"""
LEVELS_OF_PERCENTILES = (0.25, 0.50, 0.75, 0.95, 0.99)

QUIRKS = (
    Quirk(
        "raw_weights",
        "mean, max, min, percentiles and seq_* are of the weights before truncation or masking.",
        "reference/trainers.md 1B",
    ),
    Quirk(
        "reciprocal_lower_bound",
        "The lower bound 1/T is in use in truncate mode too: in fraction_low, std and effective sample size.",
        "reference/trainers.md 1B",
    ),
    Quirk(
        "ess_of_clamped",
        "The effective sample size is of weights clamped into [lower, T], which lifts it.",
        "reference/trainers.md 1B",
    ),
    Quirk(
        "veto_apart",
        "masked_fraction does not hold the vetoed sequences; veto_fraction is of all rows, empty ones too.",
        "conformance/expected.parquet",
    ),
    Quirk(
        "empty_rows",
        "Rows without a valid token count in sequence means: perplexity 1, difference 0, weight 0.",
        "reference/cases.md 1 and 2",
    ),
)

MASKS = tuple(
    {
        "rollout_is_level": name,
        "rollout_is_mode": "mask",
        "rollout_is_threshold": rule_upper(AGGREGATIONS[level]),
        "rollout_is_threshold_lower": rule_lower(AGGREGATIONS[level]),
    }
    for name, level in LEVELS.items()
)
OPTIONS: Options = (
    (({},),),
    (
        (
            *({"rollout_is": True, "rollout_is_level": name, "rollout_is_threshold": upper} for name in LEVELS),
            {"rollout_is": True, "rollout_is_threshold": upper, "loss_mode": verl_losses.POOLING},
            *({"rollout_is": applied, **mask} for mask in MASKS for applied in (True, False)),
            {"rollout_is": False, "rollout_is_threshold": 2.0},
        ),
        ({}, {"rollout_is_veto_threshold": veto}),
    ),
)
COUNTERPARTS = {
    **{
        f"mismatch/mismatch_{name}": Counterpart(f"overall.{of}", "empty_rows")
        for name, of in {
            "training_ppl": "training_ppl",
            "rollout_ppl": "rollout_ppl",
            "ppl_ratio": "ppl_ratio",
            "log_ppl_diff": "log_ppl_diff",
            "log_ppl_abs_diff": "log_ppl_abs_diff",
            "kl": "kl_k1",
            "k3_kl": "kl_k3",
        }.items()
    },
    "mismatch/rollout_is_mean": Counterpart("bounded.weight_mean", "raw_weights", when=weighs),
    "mismatch/rollout_is_eff_sample_size": Counterpart("raw.ess", "ess_of_clamped", when=weighs),
    "mismatch/rollout_is_masked_fraction": Counterpart("kept.masked_fraction", "veto_apart"),
    "mismatch/rollout_is_ratio_fraction_low": Counterpart(
        "bounded.below_lower_fraction",
        "reciprocal_lower_bound",
        when=lambda correction: correction.weight.bound is Bound.TRUNCATE,
    ),
}


@dataclass(frozen=True, slots=True)
class LegacyConfig:
    """The parsed `rollout_is…` settings; `upper` None turns everything off."""

    applied: bool
    level: Level
    bound: Bound
    lower: float
    upper: float | None
    veto: float | None
    loss_mode: str
    remarks: tuple[str, ...]
    """on the loss that the weights multiply"""


def parse(raw: Mapping[str, object]) -> LegacyConfig:
    """Flat settings → configuration (ConfigError where a value is refused)."""
    settings = Settings.read(raw, DEFAULTS)
    bound = settings.choice("rollout_is_mode", MODES)
    lower, upper = _bounds(settings, bound)
    return LegacyConfig(
        applied=settings.flag("rollout_is"),
        level=settings.choice("rollout_is_level", LEVELS),
        bound=bound,
        lower=lower,
        upper=upper,
        veto=settings.optional_positive("rollout_is_veto_threshold"),
        loss_mode=str(settings.values["loss_mode"]),
        remarks=verl_losses.remarks(settings),
    )


def _bounds(settings: Settings, bound: Bound) -> tuple[float, float | None]:
    lower_key, upper_key = "rollout_is_threshold_lower", "rollout_is_threshold"
    upper, lower = settings.optional_positive(upper_key), settings.optional_positive(lower_key)
    if upper is None:
        return 0.0, None
    if bound is Bound.MASK or lower is not None:
        return settings.band(lower_key, upper_key)
    return 1 / upper, upper


def correction(config: LegacyConfig) -> Correction:
    """Weights only where `rollout_is` applies them; mask mode and the veto remove tokens either way."""
    if config.upper is None:
        return Correction()
    truncate = config.bound is Bound.TRUNCATE
    weight = Weight(config.level, *((Bound.TRUNCATE, None, config.upper) if truncate else ()))
    return Correction(
        weight=verl_losses.pooled(weight, config.loss_mode) if config.applied else Weight(),
        rules=() if truncate else _band(config),
        veto=config.veto,
    )


def _band(config: LegacyConfig) -> tuple[Rule, ...]:
    return (Rule(Statistic.RATIO, AGGREGATIONS[config.level], config.lower, config.upper, clamp=None),)


def warnings(config: LegacyConfig) -> tuple[str, ...]:
    """Settings that log without applying, that log nothing, or a cap below 1."""
    if config.upper is None:
        return ("rollout_is_threshold = null: verl computes and logs nothing", *config.remarks)
    found = []
    if not config.applied:
        found.append("rollout_is = False: weights are logged, not applied; mask mode and veto still remove")
    if config.bound is Bound.TRUNCATE and config.upper < 1:
        cap = f"{config.upper:.12g}"
        found.append(f"rollout_is_threshold = {cap}: a cap below 1 shrinks weights where the policies agree")
    return (*found, *config.remarks)


def row_columns(tokens: Tokens, config: LegacyConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    columns = off_policy_columns(tokens)
    if config.upper is None:
        return columns
    raw = raw_weight(tokens, config.level)
    weights = Weights(raw, shown=raw, spread=raw.clamp(config.lower, config.upper))
    columns |= weight_columns(weights, config.lower, config.upper, tokens.lengths)
    return columns | {"vetoing": vetoing(tokens, config.veto)}


def metrics(rows: Columns, config: LegacyConfig, order: OrderStatistics) -> Metrics:
    """The `mismatch/…` values of one batch; `order` answers for its token log-ratios."""
    upper = config.upper
    if upper is None:
        return Metrics({})

    def compute() -> dict[str, float]:
        mismatch = {f"mismatch_{name}": value for name, value in eleven_off_policy(rows).items()}
        weights = {"rollout_is_mean": token_mean(rows["is_shown"], rows["tokens"])}
        weights |= extremes(rows, config.level) | outside(rows, config.level, config.lower, upper)
        weights |= spread_of_weights(rows) | sequence_weights(rows, config.lower, upper)
        return weights | _removed(rows, config) | _percentiles(rows, config, order) | mismatch

    return summarise(rows, compute, "mismatch/")


def _removed(rows: Columns, config: LegacyConfig) -> dict[str, float]:
    values = {
        "rollout_is_veto_fraction": fraction(rows["vetoing"] > 0),
        "rollout_is_catastrophic_token_fraction": token_mean(rows["vetoing"], rows["tokens"]),
    }
    if config.bound is Bound.MASK:
        outside_band = rows["is_above"] + rows["is_below"]
        values["rollout_is_masked_fraction"] = token_mean(outside_band, rows["tokens"])
        values["rollout_is_seq_masked_fraction"] = fraction(outside_band > 0)
    return values


def _percentiles(rows: Columns, config: LegacyConfig, order: OrderStatistics) -> dict[str, float]:
    """Over valid tokens at every level: a row's weight counts once for each of its tokens."""
    names = [f"rollout_is_p{round(100 * level)}" for level in LEVELS_OF_PERCENTILES]
    tokens = int(rows["tokens"].sum())
    if not tokens:
        return dict.fromkeys(names, math.nan)
    if config.level is not Level.TOKEN:
        order = row_order(level_of_rows(rows, config.level), rows["tokens"])
    values = percentiles(LEVELS_OF_PERCENTILES, tokens, order, _weight)
    return dict(zip(names, values.tolist(), strict=True))


def _weight(log_ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(np.clip(log_ratio, -SAFETY_CLAMP, SAFETY_CLAMP))


def quantiles(config: LegacyConfig) -> tuple[float, ...]:
    """Only token-level percentiles need the tokens; those of sequence levels follow from the rows."""
    needed = config.level is Level.TOKEN and config.upper is not None
    return LEVELS_OF_PERCENTILES if needed else ()


LATER = "of verl since November 2025"
NOVEMBER = (
    "rollout_correction",
    "rollout_rs",
    "rollout_rs_threshold",
    "rollout_rs_threshold_lower",
    "rollout_token_veto_threshold",
    "rollout_is_batch_normalize",
)
RENAMED = (
    Renamed(CAP, "now rollout_is true with rollout_is_threshold", capped(rollout_is=True), yields_to=CAPPED),
    *(read_by(key, LATER, "verl-2025-11") for key in NOVEMBER),
    read_by("rollout_is", LATER, "verl-2025-11", frozenset({"token", "sequence", "geometric"})),
)

TRAINER: Trainer[LegacyConfig] = Trainer(
    name="verl-2025-10",
    version="2025-10",
    defaults=DEFAULTS,
    section=Section(("algorithm",), prefix="rollout_is", also=(ACTOR, POLICY_LOSS)),
    parse=parse,
    correction=correction,
    warnings=warnings,
    row_columns=row_columns,
    metrics=metrics,
    quirks=QUIRKS,
    options=OPTIONS,
    counterparts=COUNTERPARTS,
    quantiles=quantiles,
    elsewhere={"loss_mode": POLICY_LOSS.path},
    relevant=verl_losses.relevant,
    renamed=RENAMED,
)
