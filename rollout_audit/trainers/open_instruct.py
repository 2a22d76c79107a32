"""open-instruct, August 2026: the `rho_…` correction, on by default, logged as `val/rho_…` and `debug/vllm_…`.

Source: reference/trainers.md 11, conformance/MORE.md (open_instruct/grpo_utils.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from rollout_audit.corrections.cuts import ratio_interval
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Mode,
    Rule,
    Sign,
    Statistic,
    Weight,
)
from rollout_audit.corrections.tokens import Tokens, row_mean, row_sum, spread
from rollout_audit.errors import ConfigError
from rollout_audit.statistics.metrics import Figure, Metrics
from rollout_audit.trainers.base import Columns, Counterpart, OrderStatistics, Quirk, Trainer, replaced_by
from rollout_audit.trainers.columns import described
from rollout_audit.trainers.expression import Options, lower, or_else, rule_bound, rule_lower, rule_upper, upper
from rollout_audit.trainers.otherwise import reweighed, unclamped
from rollout_audit.trainers.reductions import NEEDS_ADVANTAGES, largest, summarise, token_std
from rollout_audit.trainers.section import Section
from rollout_audit.trainers.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TRAINER", "OpenInstructConfig"]

ENABLED, ANCHOR, TV = "use_rho_correction", "use_vllm_logprobs", "rho_mask_tv_divergence"
CLAMP_LOWER, CLAMP_UPPER = "rho_clamp_lower_bound", "rho_clamp_upper_bound"
MASK_LOWER, MASK_UPPER = "rho_mask_lower_bound", "rho_mask_upper_bound"
DEFAULTS: dict[str, object] = {
    ENABLED: True,
    CLAMP_LOWER: 0.0,
    CLAMP_UPPER: 2.0,
    MASK_LOWER: 0.0,
    MASK_UPPER: 0.0,
    "rho_mask_sequence_level": False,
    TV: False,
    ANCHOR: False,
}
CLAMP = 10.0
"""Bound on |log-ratio| of each token before exp"""

QUIRKS = (
    Quirk(
        "clamp_of_ten",
        "The log-ratio of each token is clamped to ±10, where other trainers clamp to ±20 or not at all.",
        "reference/trainers.md 11A",
        instead=lambda config: unclamped(correction(config)),
    ),
    Quirk(
        "geometric_sequence_level",
        "rho_mask_sequence_level turns the weight itself, not only the mask, into the geometric mean.",
        "reference/trainers.md 11A",
        instead=lambda config: (
            reweighed(correction(config), level=Level.TOKEN) if config.enabled and config.by_sequence else None
        ),
    ),
    Quirk(
        "packed_rows",
        "The trainer takes that mean over a packed row of several responses; here a row is one response.",
        "reference/trainers.md 11A; conformance/MORE.md",
    ),
    Quirk(
        "masking_is_zeroing",
        "Dropped tokens have weight 0 and stay in the denominator of the loss.",
        "reference/trainers.md 11A",
    ),
    Quirk(
        "clipfrac_of_dropped",
        "rho_clipfrac counts clamped tokens that are dropped as well.",
        "conformance/MORE.md, correction 8",
        untold="No native figure parts clamped tokens by whether they are dropped",
    ),
    Quirk(
        "zeros_when_off",
        "Without use_rho_correction all val/rho_… are logged as 0.",
        "conformance/MORE.md, correction 8",
        when=lambda config: not config.enabled,
    ),
    Quirk(
        "weighted_reverse_kl",
        "vllm_local_reverse_kl multiplies by the sampled probability once more: no unbiased estimate, may be negative.",
        "reference/trainers.md 11B",
    ),
    Quirk(
        "last_micro_batch",
        "debug/vllm_… of a run hold the last micro-batch alone; the figures here are of the whole batch.",
        "conformance/MORE.md, correction 8",
    ),
)

DIVERGENCE = (Statistic.RATIO_DISTANCE, Aggregation.SEQ_MEAN)
BY_SEQUENCE = "rho_mask_sequence_level"
OPTIONS: Options = (
    (({ENABLED: False}, {ENABLED: False, ANCHOR: True}),),
    (
        (
            {ENABLED: True, CLAMP_LOWER: or_else(lower, 0.0), CLAMP_UPPER: or_else(upper, 0.0)},
            {ENABLED: True, CLAMP_LOWER: 0.0, CLAMP_UPPER: 0.0},
        ),
        (
            *(
                {**keys, MASK_LOWER: or_else(rule_lower(own), 0.0), MASK_UPPER: or_else(rule_upper(own), 0.0)}
                for keys, own in (({}, Aggregation.TOKEN), ({BY_SEQUENCE: True}, Aggregation.SEQ_MEAN))
            ),
            *(
                {
                    **keys,
                    TV: True,
                    MASK_LOWER: or_else(rule_bound(*DIVERGENCE, "lower"), 0.0),
                    MASK_UPPER: or_else(rule_bound(*DIVERGENCE), 0.0),
                }
                for keys in ({}, {BY_SEQUENCE: True})
            ),
        ),
    ),
)
COUNTERPARTS = {
    "debug/vllm_vs_local_logprob_diff_mean": Counterpart("overall.log_prob_diff_abs_mean", "last_micro_batch"),
    "debug/vllm_local_reverse_kl": Counterpart("overall.kl_k1", "weighted_reverse_kl"),
    "val/rho_drop_frac": Counterpart("kept.masked_fraction", "packed_rows"),
}


RENAMED = (
    replaced_by("truncated_importance_sampling_ratio_cap", CLAMP_UPPER),
    replaced_by("tis_mask_lower", MASK_LOWER),
    replaced_by("tis_mask_upper", MASK_UPPER),
)


@dataclass(frozen=True, slots=True)
class Band:
    """Bounds on a ratio (or, for the TV mask, on mean |ρ − 1|); None leaves a side open."""

    lower: float | None
    upper: float | None

    @property
    def is_open(self) -> bool:
        return self.lower is None and self.upper is None


@dataclass(frozen=True, slots=True)
class OpenInstructConfig:
    """The parsed flags."""

    enabled: bool
    clamp: Band
    mask: Band
    by_sequence: bool
    tv: bool
    bypass: bool


def parse(raw: Mapping[str, object]) -> OpenInstructConfig:
    """Flat settings → configuration (ConfigError where the trainer's own checks refuse, SPEC 3 beside them)."""
    settings = Settings.read(raw, DEFAULTS)
    enabled, bypass = settings.flag(ENABLED), settings.flag(ANCHOR)
    if enabled and bypass:
        raise ConfigError(ANCHOR, bypass, f"open-instruct refuses it together with {ENABLED}")
    return OpenInstructConfig(
        enabled=enabled,
        clamp=_band(settings, CLAMP_LOWER, CLAMP_UPPER),
        mask=_band(settings, MASK_LOWER, MASK_UPPER),
        by_sequence=settings.flag("rho_mask_sequence_level"),
        tv=settings.flag(TV),
        bypass=bypass,
    )


def _band(settings: Settings, lower_key: str, upper_key: str) -> Band:
    """0 switches a side off; a lower bound must lie below 1 and an upper bound above it."""
    lower, upper = settings.open_band(lower_key, upper_key, off=0.0)
    if lower is not None and lower >= 1:
        raise ConfigError(lower_key, settings.values[lower_key], "must lie below 1, or be 0 for none")
    if upper is not None and upper <= 1:
        raise ConfigError(upper_key, settings.values[upper_key], "must lie above 1, or be 0 for none")
    return Band(lower, upper)


def correction(config: OpenInstructConfig) -> Correction:
    """What the flags do, in the tool's vocabulary."""
    mode = Mode.BYPASS if config.bypass else Mode.DECOUPLED
    if not config.enabled:
        return Correction(denominator=Denominator.ORIGINAL, mode=mode)
    return Correction(_weight(config), _rules(config), denominator=Denominator.ORIGINAL, mode=mode)


def _weight(config: OpenInstructConfig) -> Weight:
    weight = Weight(Level.TOKEN, clamp=CLAMP)
    if config.by_sequence:
        weight = Weight(Level.GEOMETRIC, clamp=None, token_clamp=CLAMP)
    if config.clamp.is_open:
        return weight
    return replace(weight, bound=Bound.CLIP, lower=config.clamp.lower, upper=config.clamp.upper)


def _rules(config: OpenInstructConfig) -> tuple[Rule, ...]:
    if config.mask.is_open:
        return ()
    if config.tv:
        return (_tv_rule(config.mask),)
    aggregation = Aggregation.SEQ_MEAN if config.by_sequence else Aggregation.TOKEN
    return (Rule(Statistic.RATIO, aggregation, config.mask.lower, config.mask.upper, clamp=CLAMP),)


def _tv_rule(mask: Band) -> Rule:
    """Mean |ρ − 1| of the response; only tokens whose update would push the ratio further from 1 are dropped."""
    return Rule(Statistic.RATIO_DISTANCE, Aggregation.SEQ_MEAN, mask.lower, mask.upper, CLAMP, Sign.OUTWARD)


def warnings(config: OpenInstructConfig) -> tuple[str, ...]:
    """A TV mask with a lower bound or without any."""
    if not (config.enabled and config.tv):
        return ()
    if config.mask.is_open:
        return (f"{TV} = True: does nothing without {MASK_UPPER}",)
    if config.mask.lower is not None:
        return (f"{MASK_LOWER} = {config.mask.lower:.12g}: with {TV} it drops tokens of rows that diverge little",)
    return ()


def row_columns(tokens: Tokens, config: OpenInstructConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    d, lengths = tokens.log_ratio, tokens.lengths
    columns = {
        "tokens": lengths.to(torch.float64),
        **described("diff", d.abs(), lengths),
        "reverse_kl": row_sum(-d * tokens.rollout_log_probs.exp(), lengths),
    }
    return columns | (_rho_columns(tokens, config) if config.enabled else {})


def _rho_columns(tokens: Tokens, config: OpenInstructConfig) -> dict[str, Tensor]:
    """Sums of the weight and counts of what was clamped and dropped; NaN where the TV mask lacks advantages."""
    d, lengths = tokens.log_ratio.clamp(-CLAMP, CLAMP), tokens.lengths
    effective = spread(row_mean(d, lengths), lengths) if config.by_sequence else d
    low, high = _dropped(tokens, effective, config)
    bounds = ratio_interval(config.clamp.lower, config.clamp.upper)
    clamped = (effective < bounds.lower) | (effective > bounds.upper)
    rho = effective.exp().clamp(config.clamp.lower or 0.0, config.clamp.upper or math.inf)
    kept = torch.where(low.isnan(), torch.nan, 1.0 - torch.maximum(low, high))
    per_token = {
        "weight": torch.where(kept == 0, 0.0, kept * rho),
        "clipped": clamped.double(),
        "low": low,
        "high": high,
        "dropped": torch.maximum(low, high),
    }
    return {name: row_sum(values, lengths) for name, values in per_token.items()}


def _dropped(tokens: Tokens, effective: Tensor, config: OpenInstructConfig) -> tuple[Tensor, Tensor]:
    """float64 [tokens] 1 where dropped for lying below, above the bounds."""
    if not config.tv:
        bounds = ratio_interval(config.mask.lower, config.mask.upper)
        return (effective < bounds.lower).double(), (effective > bounds.upper).double()
    d, lengths = tokens.log_ratio.clamp(-CLAMP, CLAMP), tokens.lengths
    divergence = spread(row_mean(d.expm1().abs(), lengths), lengths)
    grows = _grows_divergence(tokens, d)
    lower, upper = config.mask.lower or 0.0, config.mask.upper or math.inf
    return (divergence < lower) * grows, (divergence > upper) * grows


def _grows_divergence(tokens: Tokens, d: Tensor) -> Tensor:
    """float64 [tokens] 1 where the advantage pushes the policies apart; NaN without an advantage."""
    if tokens.advantages is None:
        return torch.full_like(d, torch.nan)
    return torch.where(tokens.advantages.isnan(), torch.nan, (d.sign() * tokens.advantages > 0).double())


RHO_METRICS = {
    "val/rho_clipfrac": "clipped",
    "val/rho_weight": "weight",
    "val/rho_drop_frac": "dropped",
    "val/rho_drop_low_frac": "low",
    "val/rho_drop_high_frac": "high",
}


def metrics(rows: Columns, config: OpenInstructConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - no percentile
    """The values of one batch, all of it one micro-batch."""

    def compute() -> dict[str, Figure]:
        return _debug(rows) | {name: _rho(rows, column, config) for name, column in RHO_METRICS.items()}

    return summarise(rows, compute, "")


def _debug(rows: Columns) -> dict[str, Figure]:
    n, tokens = rows["tokens"], rows["tokens"].sum()
    return {
        "debug/vllm_vs_local_logprob_diff_mean": rows["diff"].sum() / tokens,
        "debug/vllm_vs_local_logprob_diff_max": largest(rows["diff.max"]),
        "debug/vllm_vs_local_logprob_diff_std": token_std(rows["diff"], rows["diff.within"], n) if tokens > 1 else 0.0,
        "debug/vllm_local_reverse_kl": rows["reverse_kl"].sum() / tokens,
    }


def _rho(rows: Columns, column: str, config: OpenInstructConfig) -> Figure:
    """Mean over valid tokens; 0 where the correction is off, as logged."""
    if not config.enabled:
        return 0.0
    value = rows[column].sum() / rows["tokens"].sum()
    return NEEDS_ADVANTAGES if np.isnan(value) else value


TRAINER: Trainer[OpenInstructConfig] = Trainer(
    name="open-instruct",
    version="2026-08",
    defaults=DEFAULTS,
    section=Section(prefix="rho_"),
    parse=parse,
    correction=correction,
    warnings=warnings,
    row_columns=row_columns,
    metrics=metrics,
    renamed=RENAMED,
    quirks=QUIRKS,
    options=OPTIONS,
    counterparts=COUNTERPARTS,
    syntax="flags",
)
