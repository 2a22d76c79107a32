"""TRL's GRPO trainer, July 2026: `vllm_importance_sampling_…` of GRPOConfig, logged as `sampling/…`.

Source: reference/trainers.md 5, conformance/MORE.md (trl/trainer/grpo_trainer.py, grpo_config.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollout_audit.corrections.direct import bounded_weight
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Rule,
    Sign,
    Statistic,
    Weight,
)
from rollout_audit.corrections.tokens import Tokens, row_max, row_min, row_sum
from rollout_audit.errors import ConfigError
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers.base import Columns, Counterpart, OrderStatistics, Quirk, Trainer, replaced_by
from rollout_audit.trainers.expression import Options, lower, or_else, rule_bound, rule_lower, rule_upper, upper
from rollout_audit.trainers.otherwise import reweighed
from rollout_audit.trainers.reductions import largest, mean, smallest, summarise
from rollout_audit.trainers.section import Section
from rollout_audit.trainers.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TRAINER", "TrlConfig"]

PREFIX = "vllm_importance_sampling_"
ENABLED, MODE = f"{PREFIX}correction", f"{PREFIX}mode"
UPPER, LOWER = f"{PREFIX}clip_max", f"{PREFIX}clip_min"
OFF_POLICY = "off_policy_mask_threshold"
DEFAULTS: dict[str, object] = {ENABLED: True, MODE: "sequence_mask", UPPER: 3.0, LOWER: None, OFF_POLICY: None}
MODES: dict[str | None, tuple[Level, Bound]] = {
    "token_truncate": (Level.TOKEN, Bound.CLIP),
    "token_mask": (Level.TOKEN, Bound.MASK),
    "sequence_truncate": (Level.SEQUENCE, Bound.CLIP),
    "sequence_mask": (Level.SEQUENCE, Bound.MASK),
}

QUIRKS = (
    Quirk(
        "ratio_after_bounding",
        "importance_sampling_ratio is logged after truncation or masking: min is 0 where anything was masked.",
        "reference/trainers.md 5B",
    ),
    Quirk(
        "empty_rows",
        "At sequence level a row without a valid token counts with ratio 1.",
        "conformance/MORE.md, correction 9",
    ),
    Quirk(
        "masking_is_zeroing",
        "Masked tokens and sequences, those of off_policy_mask_threshold too, have weight 0 and stay in the "
        "denominator of the loss.",
        "reference/trainers.md 5A",
    ),
    Quirk(
        "product_ratio",
        "The sequence modes take the product of the token ratios; importance_sampling_level of the PPO ratio takes "
        "their geometric mean.",
        "reference/trainers.md 5A",
        instead=lambda config: (
            reweighed(correction(config), level=Level.GEOMETRIC)
            if config.weight is not None and config.weight.level is Level.SEQUENCE
            else None
        ),
    ),
    Quirk(
        "unclamped_ratio",
        "The log-ratio is exponentiated unclamped: a large sum over a sequence overflows and is then capped or zeroed.",
        "reference/trainers.md 5A",
    ),
)

MASKED = {"token_mask": Aggregation.TOKEN, "sequence_mask": Aggregation.SEQ_SUM}
OPTIONS: Options = (
    (
        (
            {ENABLED: False},
            *(
                {MODE: mode, UPPER: or_else(upper, None), LOWER: or_else(lower, None)}
                for mode, (_, bound) in MODES.items()
                if bound is Bound.CLIP
            ),
            *(
                {MODE: mode, UPPER: or_else(rule_upper(own), None), LOWER: or_else(rule_lower(own), None)}
                for mode, own in MASKED.items()
            ),
            *({MODE: mode, UPPER: None, LOWER: None} for mode in MASKED),
        ),
        ({}, {OFF_POLICY: rule_bound(Statistic.K1, Aggregation.SEQ_MEAN)}),
    ),
)
COUNTERPARTS = {
    "sampling/sampling_logp_difference/mean": Counterpart("overall.log_prob_diff_abs_mean", "empty_rows"),
    "sampling/importance_sampling_ratio/mean": Counterpart("raw.weight_mean", "ratio_after_bounding"),
    "sampling/importance_sampling_ratio/min": Counterpart("raw.weight_min", "ratio_after_bounding"),
    "sampling/importance_sampling_ratio/max": Counterpart("raw.weight_max", "ratio_after_bounding"),
}


@dataclass(frozen=True, slots=True)
class TrlConfig:
    """The parsed fields; `weight` None where the correction is off, `delta` where sequences are not masked."""

    weight: Weight | None
    delta: float | None


def parse(raw: Mapping[str, object]) -> TrlConfig:
    """Flat settings → configuration (ConfigError where GRPOConfig refuses, SPEC 3 beside it)."""
    settings = Settings.read(raw, DEFAULTS)
    level, bound = settings.choice(MODE, MODES)
    lower, upper = settings.open_band(LOWER, UPPER)
    if lower is None and upper is None:
        if bound is Bound.CLIP:
            mode = settings.values[MODE]
            raise ConfigError(UPPER, None, f"{MODE} {mode!r} needs {LOWER} or {UPPER}: both are null")
        bound = Bound.NONE
    weight = Weight(level, bound, lower, upper, clamp=None)
    return TrlConfig(weight if settings.flag(ENABLED) else None, settings.optional_number(OFF_POLICY))


def correction(config: TrlConfig) -> Correction:
    """What the configuration does, in the tool's vocabulary."""
    return Correction(config.weight or Weight(), _off_policy_mask(config), denominator=Denominator.ORIGINAL)


def _off_policy_mask(config: TrlConfig) -> tuple[Rule, ...]:
    """DeepSeek-V3.2's mask: a sequence of negative advantage goes where the mean of log μ − log π is above delta."""
    if config.delta is None:
        return ()
    sign = Sign.NEGATIVE_MEAN
    return (Rule(Statistic.K1, Aggregation.SEQ_MEAN, None, config.delta, clamp=None, sign=sign),)


def warnings(config: TrlConfig) -> tuple[str, ...]:
    """A cap below 1, and no bound at all."""
    weight = config.weight
    if weight is None:
        return ()
    if weight.bound is Bound.NONE:
        return (f"{UPPER} = None: no bound at all, weights are raw",)
    if weight.upper is not None and weight.upper < 1:
        return (f"{UPPER} = {weight.upper:.12g}: below 1 it acts on weights where the policies agree",)
    return ()


def row_columns(tokens: Tokens, config: TrlConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    difference, lengths = tokens.log_ratio.abs(), tokens.lengths
    columns = {"tokens": lengths.to(torch.float64)}
    if config.weight is None:
        return columns
    columns |= {"diff": row_sum(difference, lengths), "diff_max": row_max(difference, lengths)}
    return columns | _weight_columns(tokens, config.weight)


def _weight_columns(tokens: Tokens, weight: Weight) -> dict[str, Tensor]:
    """Sums and extremes over the tokens of a row, or the one weight of the row."""
    lengths = tokens.lengths
    if weight.level is Level.SEQUENCE:
        of_row = bounded_weight(weight, row_sum(tokens.log_ratio, lengths))
        return {"ratio": of_row, "ratio_max": of_row, "ratio_min": of_row}
    per_token = bounded_weight(weight, tokens.log_ratio)
    return {
        "ratio": row_sum(per_token, lengths),
        "ratio_max": row_max(per_token, lengths),
        "ratio_min": row_min(per_token, lengths),
    }


def metrics(rows: Columns, config: TrlConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - no percentile
    """The `sampling/…` values of one batch; none with the correction off, as TRL."""

    def compute() -> dict[str, float]:
        if config.weight is None:
            return {}
        tokens = rows["tokens"].sum()
        by_row = config.weight.level is Level.SEQUENCE
        return {
            "sampling_logp_difference/mean": rows["diff"].sum() / tokens,
            "sampling_logp_difference/max": largest(rows["diff_max"]),
            "importance_sampling_ratio/min": smallest(rows["ratio_min"]),
            "importance_sampling_ratio/mean": mean(rows["ratio"]) if by_row else rows["ratio"].sum() / tokens,
            "importance_sampling_ratio/max": largest(rows["ratio_max"]),
        }

    return summarise(rows, compute, "sampling/")


TRAINER: Trainer[TrlConfig] = Trainer(
    name="trl",
    version="2026-07",
    defaults=DEFAULTS,
    section=Section(prefix=(PREFIX, "off_policy_mask_")),
    parse=parse,
    correction=correction,
    warnings=warnings,
    row_columns=row_columns,
    metrics=metrics,
    renamed=(replaced_by(f"{PREFIX}cap", UPPER),),
    quirks=QUIRKS,
    options=OPTIONS,
    counterparts=COUNTERPARTS,
)
