"""NeMo-RL, August 2026: `loss_fn` of the clipped policy-gradient loss and `grpo.seq_logprob_error_threshold`.

Logged as `train/…` (here without that prefix). Source: reference/trainers.md 6, conformance/MORE.md
(nemo_rl/algorithms/loss/loss_functions.py, nemo_rl/algorithms/grpo.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import torch

from rollout_audit.corrections.direct import bounded_weight, statistic_bounds
from rollout_audit.corrections.model import (
    FLOAT32_END,
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
from rollout_audit.corrections.tokens import Tokens, k3, row_mean, row_sum
from rollout_audit.errors import ConfigError
from rollout_audit.statistics.metrics import Figure, Metrics, Noted
from rollout_audit.trainers.base import Columns, Counterpart, OrderStatistics, Quirk, Trainer
from rollout_audit.trainers.expression import Axis, Options, lower, or_else, rule_bound, rule_lower, rule_upper, upper
from rollout_audit.trainers.otherwise import reweighed
from rollout_audit.trainers.reductions import EPSILON, NEEDS_REWARD, fraction, largest, mean, smallest, summarise
from rollout_audit.trainers.section import Section
from rollout_audit.trainers.settings import Settings
from rollout_audit.trainers.thresholds import band_without_one

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["TRAINER", "NemoConfig"]

ENABLED, BY_SEQUENCE = "use_importance_sampling_correction", "sequence_level_importance_ratios"
TYPE, UPPER = "truncated_importance_sampling_type", "truncated_importance_sampling_ratio"
LOWER, ERROR_THRESHOLD = f"{UPPER}_min", "seq_logprob_error_threshold"
KL_TYPE = "reference_policy_kl_type"
DEFAULTS: dict[str, object] = {
    ENABLED: False,
    TYPE: None,
    UPPER: None,
    LOWER: None,
    BY_SEQUENCE: False,
    "token_level_loss": True,
    KL_TYPE: "k3",
}


class Truncation(StrEnum):
    TIS = "tis"
    ICEPOP = "icepop"
    SEQUENCE_MASK = "seq-mask-tis"


TYPES: dict[str | None, Truncation | None] = {None: None, **{kind.value: kind for kind in Truncation}}
KL_TYPES: dict[str | None, str] = {name: name for name in ("k1", "k2", "k3")}

QUIRKS = (
    Quirk(
        "not_a_mean",
        "With sequence_level_importance_ratios, sampling_importance_ratio is the mean weight times the micro-batch: "
        "the figure here takes the batch as one micro-batch.",
        "conformance/MORE.md, correction 1",
    ),
    Quirk(
        "ratio_without_correction",
        "sampling_importance_ratio is logged without use_importance_sampling_correction too, after the truncation "
        "that would have been applied.",
        "reference/trainers.md 6B",
    ),
    Quirk(
        "overflow_is_zero",
        "A weight that overflows float32 (log-ratio above 88.7) becomes 0 before it is bounded, not the cap.",
        "reference/trainers.md 6A",
        instead=lambda config: reweighed(correction(config), overflow=None),
    ),
    Quirk(
        "raw_weights_of_kept_sequences",
        "seq-mask-tis leaves the token weights of kept sequences raw; is_oob_ratio is then a share of rows, empty "
        "ones inside the bounds.",
        "reference/trainers.md 6A; conformance/MORE.md, correction 9",
        instead=lambda config: _clipped(config),
    ),
    Quirk(
        "zero_or_mask",
        "Truncation zeroes weights and leaves denominators alone; the sequence error mask shrinks them.",
        "reference/trainers.md 6A",
        told_by="gradient_scale",
    ),
    Quirk(
        "swapped_policy_kl",
        "policy_kl_error puts 1/ρ into the estimator of gen_kl_error: with k3 one token of tiny probability dominates "
        "it, with k1 only the sign differs.",
        "reference/trainers.md 6B; reference/cases.md 29",
    ),
    Quirk(
        "pseudo_js",
        "js_divergence_error is of sampled tokens alone and can exceed log 2, the bound of a true divergence.",
        "reference/trainers.md 6B; reference/cases.md 29",
    ),
    Quirk(
        "kept_samples_only",
        "Means over tokens are of the sequences that the error mask keeps: what it drops is not in the errors logged.",
        "conformance/MORE.md, nemo-rl",
    ),
    Quirk(
        "epsilon",
        "Means divide by the count + 1e-8; where every row is masked they are 0, not null.",
        "conformance/MORE.md, nemo-rl",
    ),
)


def _weights(own: Aggregation) -> Axis:
    """Truncations of the weight whose log-ratio is aggregated so."""
    band = {UPPER: rule_upper(own), LOWER: rule_lower(own)}
    return (
        {},
        {TYPE: "tis", UPPER: upper, LOWER: or_else(lower, None)},
        {TYPE: "icepop", **band},
    )


GEOMETRIC = {UPPER: rule_upper(Aggregation.SEQ_MEAN), LOWER: rule_lower(Aggregation.SEQ_MEAN)}
ERROR_MASK: Axis = ({}, {ERROR_THRESHOLD: rule_bound(Statistic.MULT_ERROR, Aggregation.SEQ_MEAN)})
OPTIONS: Options = (
    (({ENABLED: False},), ERROR_MASK),
    (({ENABLED: True},), (*_weights(Aggregation.TOKEN), {TYPE: "seq-mask-tis", **GEOMETRIC}), ERROR_MASK),
    (
        ({ENABLED: True, BY_SEQUENCE: True, "token_level_loss": False},),
        _weights(Aggregation.SEQ_SUM),
        ERROR_MASK,
    ),
)


def _kl(config: NemoConfig) -> str:
    return f"overall.kl_{config.kl}"


COUNTERPARTS = {
    "token_mult_prob_error": Counterpart("overall.mult_prob_error", "kept_samples_only"),
    "gen_kl_error": Counterpart("overall.kl_k3", "kept_samples_only", native_by=_kl),
    "policy_kl_error": Counterpart("overall.kl_k3", "swapped_policy_kl", rejecting="kept_samples_only", native_by=_kl),
    "sampling_importance_ratio": Counterpart(
        "bounded.weight_mean", "not_a_mean", when=lambda c: c.weight.level is Level.SEQUENCE
    ),
}


@dataclass(frozen=True, slots=True)
class ErrorMask:
    """The masking function ran; `threshold` None only measures."""

    threshold: float | None


@dataclass(frozen=True, slots=True)
class NemoConfig:
    """Parsed settings; `mask` None where grpo gives no seq_logprob_error_threshold."""

    enabled: bool
    by_sequence: bool
    truncation: Truncation | None
    lower: float | None
    upper: float | None
    kl: str
    mask: ErrorMask | None

    @property
    def weight(self) -> Weight:
        """The weight that is logged, whether or not it is applied."""
        level = Level.SEQUENCE if self.by_sequence else Level.TOKEN
        bounds = {Truncation.TIS: Bound.CLIP, Truncation.ICEPOP: Bound.MASK}
        if self.truncation not in bounds:
            return Weight(level, clamp=None, overflow=FLOAT32_END)
        band = bounds[self.truncation], self.lower, self.upper
        return Weight(level, *band, clamp=None, overflow=FLOAT32_END)

    @property
    def geometric_rule(self) -> Rule | None:
        """Which sequences seq-mask-tis keeps."""
        if self.truncation is not Truncation.SEQUENCE_MASK:
            return None
        return Rule(Statistic.RATIO, Aggregation.SEQ_MEAN, self.lower, self.upper, clamp=None)


def parse(raw: Mapping[str, object]) -> NemoConfig:
    """Flat settings → configuration (ConfigError where the loss raises, SPEC 3 beside it)."""
    settings = Settings.read(raw, {**DEFAULTS, ERROR_THRESHOLD: None})
    by_sequence = settings.flag(BY_SEQUENCE)
    truncation = _truncation(settings, by_sequence)
    lower, upper = settings.open_band(LOWER, UPPER)
    if by_sequence and settings.flag("token_level_loss"):
        raise ConfigError("token_level_loss", value=True, reason=f"NeMo-RL wants false with {BY_SEQUENCE}")
    mask = ErrorMask(settings.optional_positive(ERROR_THRESHOLD)) if ERROR_THRESHOLD in raw else None
    kl = settings.choice(KL_TYPE, KL_TYPES)
    return NemoConfig(settings.flag(ENABLED), by_sequence, truncation, lower, upper, kl, mask)


def _truncation(settings: Settings, by_sequence: bool) -> Truncation | None:  # noqa: FBT001 - a parsed flag
    kind = settings.choice(TYPE, TYPES)
    upper, lower = settings.values[UPPER], settings.values[LOWER]
    if kind is None and upper is not None:
        raise ConfigError(TYPE, None, f"{UPPER} = {upper!r} needs one of {', '.join(Truncation)}")
    if kind is None:
        return None
    if upper is None:
        raise ConfigError(UPPER, None, f"{kind.value} needs it")
    if lower is None and kind is not Truncation.TIS:
        raise ConfigError(LOWER, None, f"{kind.value} needs it")
    if by_sequence and kind is Truncation.SEQUENCE_MASK:
        raise ConfigError(TYPE, kind.value, f"not with {BY_SEQUENCE}")
    return kind


def correction(config: NemoConfig) -> Correction:
    """What the settings do, in the tool's vocabulary.

    The sequence error mask shrinks the denominator, seq-mask-tis zeroes weights of what that leaves.
    """
    error, zeroes = _error_rule(config), config.geometric_rule if config.enabled else None
    weight = config.weight if config.enabled else Weight()
    if error is None:
        return Correction(weight, () if zeroes is None else (zeroes,), denominator=Denominator.ORIGINAL)
    if zeroes is None:
        return Correction(weight, (error,), denominator=Denominator.KEPT)
    return Correction(weight, (error, replace(zeroes, over=Over.REMAINING)), denominator=Denominator.REMAINING)


def _clipped(config: NemoConfig) -> Correction | None:
    """seq-mask-tis with its band on the token weights too."""
    if not config.enabled or config.geometric_rule is None:
        return None
    return reweighed(correction(config), bound=Bound.CLIP, lower=config.lower, upper=config.upper)


def _error_rule(config: NemoConfig) -> Rule | None:
    if config.mask is None or config.mask.threshold is None:
        return None
    return Rule(Statistic.MULT_ERROR, Aggregation.SEQ_MEAN, upper=config.mask.threshold, clamp=None)


def warnings(config: NemoConfig) -> tuple[str, ...]:
    """Truncation without correction, a cap below 1, an error threshold that no sequence meets."""
    found = []
    if config.truncation is not None and not config.enabled:
        found.append(f"{TYPE} = {config.truncation.value!r}: logged, not applied without {ENABLED}")
    if config.truncation is Truncation.TIS and config.upper is not None and config.upper < 1:
        found.append(f"{UPPER} = {config.upper:.12g}: a cap below 1 shrinks weights where the policies agree")
    if config.truncation in (Truncation.ICEPOP, Truncation.SEQUENCE_MASK):
        found += band_without_one(f"{LOWER} and {UPPER}", config.lower, config.upper)
    threshold = config.mask.threshold if config.mask else None
    if threshold is not None and threshold < 1:
        found.append(f"{ERROR_THRESHOLD} = {threshold:.12g}: the error is never below 1, every sequence is masked")
    return tuple(found)


def row_columns(tokens: Tokens, config: NemoConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    per_token = _divergences(tokens, config.kl)
    columns = {name: row_sum(values, tokens.lengths) for name, values in per_token.items()}
    columns |= {"tokens": tokens.lengths.to(torch.float64), "reward": _rewards(tokens)}
    return columns | _weight_columns(tokens, config)


def _rewards(tokens: Tokens) -> Tensor:
    missing = torch.full((tokens.rows,), torch.nan, dtype=torch.float64)
    return missing if tokens.rewards is None else tokens.rewards.to(torch.float64)


def _divergences(tokens: Tokens, kl: str) -> dict[str, Tensor]:
    """float64 [tokens] the error and the estimators, of NeMo-RL's prev (training) against generation (rollout)."""
    d, prev, generation = tokens.log_ratio, tokens.training_log_probs, tokens.rollout_log_probs
    mixture = torch.logaddexp(prev, generation) - math.log(2.0)
    return {
        "error": d.abs().exp(),
        "gen_kl": _estimator(kl, d),
        "policy_kl": _estimator(kl, -d),
        "js": 0.5 * (k3(prev - mixture) + k3(generation - mixture)),
        "entropy": -d.exp() * prev,
    }


def _estimator(kind: str, x: Tensor) -> Tensor:
    """k1 is −x, k2 is x²/2, k3 is expm1(x) − x."""
    return {"k1": -x, "k2": x.square() / 2.0}[kind] if kind != "k3" else k3(x)


def _weight_columns(tokens: Tokens, config: NemoConfig) -> dict[str, Tensor]:
    """`ratio` and `outside`, summed over tokens; one weight a row at sequence level."""
    d, lengths, weight = tokens.log_ratio, tokens.lengths, config.weight
    if config.by_sequence:
        of_row = row_sum(d, lengths)
        return {"ratio": bounded_weight(weight, of_row), "outside": _outside(weight, of_row) * lengths}
    if (rule := config.geometric_rule) is None:
        return {
            "ratio": row_sum(bounded_weight(weight, d), lengths),
            "outside": row_sum(_outside(weight, d), lengths),
        }
    bounds, of_row = statistic_bounds(rule), row_mean(d, lengths)
    inside = (of_row >= bounds.lower) & (of_row <= bounds.upper)
    return {"ratio": row_sum(bounded_weight(weight, d), lengths) * inside, "outside": (~inside).double()}


def _outside(weight: Weight, log_ratio: Tensor) -> Tensor:
    ratio = log_ratio.exp()
    below, above = ratio < (weight.lower or 0.0), ratio > (math.inf if weight.upper is None else weight.upper)
    return (below | above).double()


def metrics(rows: Columns, config: NemoConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - no percentile
    """The values of one batch, all of it one micro-batch."""

    def compute() -> dict[str, Figure]:
        kept = _kept(rows, config)
        masked = _error_metrics(rows, kept) if config.mask else {}
        return masked | _loss_metrics(rows, kept) | _weight_metrics(rows, kept, config)

    return summarise(rows, compute, "")


def _sequence_error(rows: Columns) -> NDArray[np.float64]:
    """[rows] mean exp |d|; 0 for a row without a valid token."""
    return rows["error"] / np.maximum(rows["tokens"], 1)


def _kept(rows: Columns, config: NemoConfig) -> NDArray[np.bool_]:
    """[rows] NeMo-RL's sample mask."""
    threshold = config.mask.threshold if config.mask else None
    return _sequence_error(rows) <= (np.inf if threshold is None else threshold)


def _error_metrics(rows: Columns, kept: NDArray[np.bool_]) -> dict[str, Figure]:
    error, valid = _sequence_error(rows), rows["tokens"] > 0
    reduce = {"max": largest, "mean": mean, "min": smallest}
    before = {f"{name}_seq_mult_prob_error": how(error[valid]) for name, how in reduce.items()}
    left = error[valid & kept]
    after = {f"{name}_seq_mult_prob_error_after_mask": how(left) if left.size else 0.0 for name, how in reduce.items()}
    masked = int(np.count_nonzero(~kept))
    return {
        **before,
        **after,
        "num_masked_seqs_by_logprob_error": masked,
        "masked_correct_pct": _masked_correct(rows["reward"][~kept]) if masked else 0.0,
    }


def _masked_correct(rewards: NDArray[np.float64]) -> Figure:
    return NEEDS_REWARD if np.isnan(rewards).any() else fraction(rewards == 1.0)


def _loss_metrics(rows: Columns, kept: NDArray[np.bool_]) -> dict[str, Figure]:
    names = {
        "token_mult_prob_error": "error",
        "gen_kl_error": "gen_kl",
        "policy_kl_error": "policy_kl",
        "js_divergence_error": "js",
        "approx_entropy": "entropy",
    }
    tokens = rows["tokens"][kept].sum() + EPSILON
    values: dict[str, Figure] = {name: rows[column][kept].sum() / tokens for name, column in names.items()}
    return values | {"num_valid_samples": int(np.count_nonzero(kept))}


def _weight_metrics(rows: Columns, kept: NDArray[np.bool_], config: NemoConfig) -> dict[str, Figure]:
    tokens, samples = rows["tokens"][kept].sum() + EPSILON, np.count_nonzero(kept)
    values: dict[str, Figure] = {"sampling_importance_ratio": rows["ratio"][kept].sum() / tokens}
    if config.by_sequence:
        # weights [B, 1] times the sample mask [B] broadcast to [B, B]
        product = rows["ratio"].sum() * samples / (samples + EPSILON)
        remark = f"mean weight times {kept.size} rows: the batch taken as one micro-batch"
        values["sampling_importance_ratio"] = Noted(product, remark)
    if config.truncation is not None:
        by_row = config.truncation is Truncation.SEQUENCE_MASK
        values["is_oob_ratio"] = rows["outside"][kept].sum() / (samples + EPSILON if by_row else tokens)
    return values


TRAINER: Trainer[NemoConfig] = Trainer(
    name="nemo-rl",
    version="2026-08",
    defaults=DEFAULTS,
    section=Section(("loss_fn",), shared=True, also=(Section(("grpo",), shared=True),)),
    optional=frozenset({ERROR_THRESHOLD}),
    parse=parse,
    correction=correction,
    warnings=warnings,
    row_columns=row_columns,
    metrics=metrics,
    quirks=QUIRKS,
    options=OPTIONS,
    counterparts=COUNTERPARTS,
    elsewhere={ERROR_THRESHOLD: ("grpo",)},
)
