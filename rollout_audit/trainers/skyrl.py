"""SkyRL, August 2026: `trainer.algorithm.off_policy_correction`, logged as `policy/loss_metrics/…`.

The order matters: responses with an outlier go first, then single tokens, and what a sequence weight or a sequence
mask sums over is what these two leave. Source: reference/trainers.md 8, conformance/MORE.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rollout_audit.corrections.cuts import ratio_interval
from rollout_audit.corrections.direct import remaining_tokens
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Over,
    Rule,
    Statistic,
    Weight,
)
from rollout_audit.corrections.tokens import Tokens, row_sum
from rollout_audit.errors import ConfigError
from rollout_audit.statistics.metrics import Figure, Metrics
from rollout_audit.trainers import skyrl_losses
from rollout_audit.trainers.base import Columns, Counterpart, OrderStatistics, Quirk, Renamed, Trainer, weighs
from rollout_audit.trainers.columns import counted, described, positions
from rollout_audit.trainers.expression import Options, rule_lower, rule_upper, upper, veto
from rollout_audit.trainers.off_policy import raw_weight
from rollout_audit.trainers.otherwise import over_every
from rollout_audit.trainers.reductions import fraction, largest, smallest, summarise, token_std
from rollout_audit.trainers.section import Section
from rollout_audit.trainers.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TRAINER"]

DEFAULTS: dict[str, object] = {
    "tis_ratio_type": None,
    "token_tis_ratio_clip_high": 2.0,
    "sequence_tis_ratio_clip_high": 5.0,
    "sequence_mask_metric": None,
    "geo_mask_low": 0.99,
    "geo_mask_high": 1.01,
    "product_mask_low": 0.5,
    "product_mask_high": 2.0,
    "outlier_token_is_threshold_low": None,
    "outlier_token_is_threshold_high": None,
    "token_mask_is_threshold_low": None,
    "token_mask_is_threshold_high": None,
}
RENAMED = (
    Renamed(
        "tis_imp_ratio_cap",
        "now token_tis_ratio_clip_high",
        lambda cap, given: {"token_tis_ratio_clip_high": cap} if given.get("use_tis") else {},
        yields_to=("token_tis_ratio_clip_high", "tis_ratio_type"),
    ),
    Renamed(
        "use_tis",
        "now tis_ratio_type token",
        lambda on, _: {"tis_ratio_type": "token"} if on else {},
        yields_to=("tis_ratio_type",),
    ),
)
"""In this order: the cap looks whether it was in use"""
LEVELS = {None: Level.NONE, "token": Level.TOKEN, "sequence": Level.SEQUENCE}
MASKS: dict[str | None, tuple[str, Aggregation] | None] = {
    None: None,
    "geometric": ("geo", Aggregation.SEQ_MEAN),
    "product": ("product", Aggregation.SEQ_SUM),
}

QUIRKS = (
    Quirk(
        "masks_before_ratios",
        "Sequence weights and sequence masks look only at tokens that the outlier and token masks leave; a response "
        "with none left has ratio 1.",
        "reference/trainers.md 8A",
        instead=lambda config: over_every(correction(config)),
    ),
    Quirk(
        "one_sided_token_mask",
        "A token mask with one threshold only is silently off: no mask, no metric, no error.",
        "conformance/MORE.md, correction 10",
        untold="Such a mask is none: what is read of the settings says so",
    ),
    Quirk(
        "padding_in_ratios",
        "is_ratio_std, is_ratio_min and is_ratio_max run over all positions of a batch padded to its longest "
        "response, masked ones as 0: the minimum is 0 whenever a position is masked or padded.",
        "conformance/MORE.md, skyrl",
    ),
    Quirk(
        "raw_ratios",
        "is_ratio_… are of the untruncated token ratio under the original mask, whatever the correction.",
        "conformance/MORE.md, skyrl",
    ),
    Quirk(
        "mixed_populations",
        "Row ratios are of all rows, also of those without a valid token; token ratios of the tokens that earlier "
        "masks leave.",
        "conformance/MORE.md, skyrl",
    ),
    Quirk(
        "binary_icepop",
        "What the documentation calls IcePop is the token mask alone: tokens inside count in full, without a weight.",
        "reference/trainers.md 8A",
        instead=lambda config: (
            replace(correction(config), weight=Weight(Level.TOKEN))
            if config.token_mask is not None and config.level is Level.NONE
            else None
        ),
    ),
    Quirk(
        "original_denominator",
        "The loss is a sum whose normalisation stands in the advantages already, so masks do not change it.",
        "reference/trainers.md 8A",
        told_by="gradient_scale",
    ),
    *skyrl_losses.QUIRKS,
)

OPTIONS: Options = (
    (
        (
            {"tis_ratio_type": None},
            *({"tis_ratio_type": name, f"{name}_tis_ratio_clip_high": upper} for name in ("token", "sequence")),
        ),
        (
            {},
            *(
                {
                    "sequence_mask_metric": metric,
                    f"{name}_mask_low": rule_lower(own),
                    f"{name}_mask_high": rule_upper(own),
                }
                for metric, (name, own) in ((m, found) for m, found in MASKS.items() if found is not None)
            ),
        ),
        ({}, {"outlier_token_is_threshold_low": veto}),
        ({}, {"outlier_token_is_threshold_high": rule_upper(Aggregation.SEQ_MAX)}),
        (
            {},
            {
                "token_mask_is_threshold_low": rule_lower(Aggregation.TOKEN),
                "token_mask_is_threshold_high": rule_upper(Aggregation.TOKEN),
            },
        ),
    ),
    skyrl_losses.OPTIONS,
)


def _by_token(correction: Correction) -> bool:
    """Whether the native weights are of tokens too, which the logged ratios always are."""
    return correction.applied_weight.level is Level.TOKEN


COUNTERPARTS = {
    "policy/rollout_train_logprobs_abs_diff_mean": Counterpart("overall.log_prob_diff_abs_mean", "mixed_populations"),
    "policy/loss_metrics/is_ratio_mean": Counterpart("bounded.weight_mean", "raw_ratios", when=weighs),
    "policy/loss_metrics/is_ratio_min": Counterpart("raw.weight_min", "padding_in_ratios", when=_by_token),
    "policy/loss_metrics/is_ratio_std": Counterpart("raw.weight_std", "padding_in_ratios", when=_by_token),
}


@dataclass(frozen=True, slots=True)
class SkyRlConfig:
    """A parsed `off_policy_correction`."""

    level: Level
    cap: float
    outlier: tuple[float | None, float | None]
    """ratios outside which a token takes its whole response along"""
    token_mask: tuple[float, float] | None
    sequence_mask: tuple[str, Rule] | None
    """name in the metrics, and the rule"""
    lone_threshold: str | None
    """the token threshold that stands alone and does nothing"""
    loss: skyrl_losses.PolicyLoss

    @property
    def outlier_rules(self) -> tuple[Rule, ...]:
        low, high = self.outlier
        rules = () if low is None else (Rule(Statistic.RATIO, Aggregation.SEQ_MIN, lower=low),)
        return rules if high is None else (*rules, Rule(Statistic.RATIO, Aggregation.SEQ_MAX, upper=high))

    @property
    def token_rules(self) -> tuple[Rule, ...]:
        if self.token_mask is None:
            return ()
        return (Rule(Statistic.RATIO, Aggregation.TOKEN, *self.token_mask),)

    @property
    def first_rules(self) -> tuple[Rule, ...]:
        """The rules over every token."""
        return (*self.outlier_rules, *self.token_rules)

    @property
    def acts(self) -> bool:
        """Whether SkyRL computes anything at all."""
        return bool(self.first_rules) or self.level is not Level.NONE or self.sequence_mask is not None


def parse(raw: Mapping[str, object]) -> SkyRlConfig:
    """Flat settings → configuration (ConfigError: unknown choice, threshold that is not positive, inverted band)."""
    settings = Settings.read(raw, {**DEFAULTS, **skyrl_losses.DEFAULTS})
    level = settings.choice("tis_ratio_type", LEVELS)
    low, high = settings.open_band("token_mask_is_threshold_low", "token_mask_is_threshold_high")
    token_mask = None if low is None or high is None else (low, high)
    outlier = settings.open_band("outlier_token_is_threshold_low", "outlier_token_is_threshold_high")
    sequence_mask = _sequence_mask(settings, Over.EVERY if token_mask is None else Over.REMAINING)
    weighs = level is not Level.NONE
    acts = weighs or any(part is not None for part in (token_mask, sequence_mask, *outlier))
    return SkyRlConfig(
        level=level,
        cap=settings.positive(f"{'token' if level is Level.TOKEN else 'sequence'}_tis_ratio_clip_high"),
        outlier=outlier,
        token_mask=token_mask,
        sequence_mask=sequence_mask,
        lone_threshold=None if (low is None) == (high is None) else "low" if high is None else "high",
        loss=skyrl_losses.parse(settings, acts=acts, weighs=weighs),
    )


def _band(settings: Settings, name: str) -> tuple[float, float]:
    keys = f"{name}_low", f"{name}_high"
    low, high = (settings.positive(key) for key in keys)
    if low > high:
        raise ConfigError(keys[0], settings.values[keys[0]], f"above {keys[1]} = {high:.12g}")
    return low, high


def _sequence_mask(settings: Settings, over: Over) -> tuple[str, Rule] | None:
    chosen = settings.choice("sequence_mask_metric", MASKS)
    if chosen is None:
        return None
    name, aggregation = chosen
    return name, Rule(Statistic.RATIO, aggregation, *_band(settings, f"{name}_mask"), clamp=None, over=over)


def correction(config: SkyRlConfig) -> Correction:
    """What the configuration does, in the tool's vocabulary: off_policy_correction, else a loss with the engine."""
    if config.loss.correction is not None:
        return config.loss.correction
    last = () if config.sequence_mask is None else (config.sequence_mask[1],)
    return Correction(
        weight=_weight(config),
        rules=(*config.first_rules, *last),
        denominator=Denominator.ORIGINAL,
    )


def _weight(config: SkyRlConfig) -> Weight:
    if config.level is Level.NONE:
        return Weight()
    partial = config.level is Level.SEQUENCE and config.token_mask is not None
    over = Over.REMAINING if partial else Over.EVERY
    return Weight(config.level, Bound.TRUNCATE, upper=config.cap, over=over)


def warnings(config: SkyRlConfig) -> tuple[str, ...]:
    """A token mask with one threshold, a cap below 1, a loss with a ratio or a mask of its own."""
    found = []
    if config.lone_threshold is not None:
        other = "high" if config.lone_threshold == "low" else "low"
        key = f"token_mask_is_threshold_{config.lone_threshold}"
        found.append(f"{key}: the token mask is off without token_mask_is_threshold_{other}, and SkyRL does not say so")
    if config.level is not Level.NONE and config.cap < 1:
        key = f"{config.level.value}_tis_ratio_clip_high"
        found.append(f"{key} = {config.cap:.12g}: a cap below 1 shrinks weights where the policies agree")
    return (*found, *config.loss.remarks)


def row_columns(tokens: Tokens, config: SkyRlConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    lengths = tokens.lengths
    columns = {"tokens": lengths.double(), **described("abs", tokens.log_ratio.abs(), lengths)}
    columns |= config.loss.columns(tokens)
    if config.acts:
        columns["positions"] = positions(tokens)
        ratio = raw_weight(tokens, Level.TOKEN)
        columns |= described("ratio", ratio, lengths)
        columns |= _mask_columns(tokens, config, ratio)
    return columns


def _mask_columns(tokens: Tokens, config: SkyRlConfig, ratio: Tensor) -> dict[str, Tensor]:
    lengths = tokens.lengths
    after_outlier = remaining_tokens(Correction(rules=config.outlier_rules), tokens)
    remaining = remaining_tokens(Correction(rules=config.first_rules), tokens)
    return {
        "after_outlier": counted(after_outlier, lengths),
        "remaining": counted(remaining, lengths),
        "capped": counted(remaining & (ratio > config.cap), lengths),
        "sequence_log_ratio": row_sum(tokens.log_ratio.masked_fill(~remaining, 0.0), lengths),
    }


def metrics(rows: Columns, config: SkyRlConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - no percentile
    """The `policy/…` values of one batch, padded to its longest response."""

    def compute() -> dict[str, Figure]:
        values = _log_prob_diff(rows)
        if config.acts:
            values |= _ratios(rows) | _outliers(rows, config) | _token_mask(rows, config)
            values |= _tis(rows, config) | _sequence_mask_metrics(rows, config)
        return values | config.loss.metrics(rows)

    return summarise(rows, compute, "policy/")


def _log_prob_diff(rows: Columns) -> dict[str, Figure]:
    name, n = "rollout_train_logprobs_abs_diff", rows["tokens"]
    return {
        f"{name}_mean": float(rows["abs"].sum() / n.sum()),
        f"{name}_max": largest(rows["abs.max"]),
        f"{name}_min": smallest(rows["abs.min"]),
        f"{name}_std": token_std(rows["abs"], rows["abs.within"], n),
    }


def _ratios(rows: Columns) -> dict[str, Figure]:
    """std, min and max over the padded batch, where what is not valid is 0."""
    n = rows["tokens"]
    blank = len(n) * rows["positions"].max() - n.sum()
    return {
        "loss_metrics/is_ratio_mean": float(rows["ratio"].sum() / n.sum()),
        "loss_metrics/is_ratio_std": token_std(rows["ratio"], rows["ratio.within"], n, zeros=float(blank)),
        "loss_metrics/is_ratio_max": largest(rows["ratio.max"]),
        "loss_metrics/is_ratio_min": 0.0 if blank else smallest(rows["ratio.min"]),
    }


def _outliers(rows: Columns, config: SkyRlConfig) -> dict[str, Figure]:
    if not config.outlier_rules:
        return {}
    low, high = config.outlier
    over = rows["ratio.max"] > (np.inf if high is None else high)
    under = rows["ratio.min"] < (-np.inf if low is None else low)
    return {
        "loss_metrics/outlier_seq_masked_ratio": fraction(over | under),
        "loss_metrics/outlier_seq_over_high_ratio": fraction(over),
        "loss_metrics/outlier_seq_under_low_ratio": fraction(under),
    }


def _token_mask(rows: Columns, config: SkyRlConfig) -> dict[str, Figure]:
    if config.token_mask is None:
        return {}
    before = rows["after_outlier"].sum()
    return {"loss_metrics/token_mask_ratio": float((before - rows["remaining"].sum()) / max(before, 1.0))}


def _tis(rows: Columns, config: SkyRlConfig) -> dict[str, Figure]:
    if config.level is Level.TOKEN:
        left = max(float(rows["remaining"].sum()), 1.0)
        return {"loss_metrics/tis_token_clip_high_ratio": float(rows["capped"].sum()) / left}
    if config.level is Level.SEQUENCE:
        above = rows["sequence_log_ratio"] > ratio_interval(None, config.cap).upper
        return {"loss_metrics/tis_seq_clip_high_ratio": fraction(above)}
    return {}


def _sequence_mask_metrics(rows: Columns, config: SkyRlConfig) -> dict[str, Figure]:
    if config.sequence_mask is None:
        return {}
    name, rule = config.sequence_mask
    log_ratio = rows["sequence_log_ratio"]
    if rule.aggregation is Aggregation.SEQ_MEAN:
        log_ratio = log_ratio / np.maximum(rows["remaining"], 1)
    low, high = ratio_interval(rule.lower, rule.upper)
    over, under = log_ratio > high, log_ratio < low
    return {
        f"loss_metrics/{name}_sequence_mask_masked_ratio": fraction(over | under),
        f"loss_metrics/{name}_sequence_mask_over_high_ratio": fraction(over),
        f"loss_metrics/{name}_sequence_mask_under_low_ratio": fraction(under),
    }


TRAINER: Trainer[SkyRlConfig] = Trainer(
    name="skyrl",
    version="2026-08",
    defaults=DEFAULTS,
    section=Section(("trainer", "algorithm", "off_policy_correction"), also=skyrl_losses.SECTIONS),
    parse=parse,
    correction=correction,
    warnings=warnings,
    row_columns=row_columns,
    metrics=metrics,
    quirks=QUIRKS,
    options=OPTIONS,
    counterparts=COUNTERPARTS,
    padded=("/is_ratio_std", "/is_ratio_min"),
    optional=frozenset(skyrl_losses.DEFAULTS),
    elsewhere=skyrl_losses.ELSEWHERE,
    renamed=RENAMED,
    relevant=skyrl_losses.relevant,
)
