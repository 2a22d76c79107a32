"""ms-swift, August 2026: rollout importance sampling of its GRPO trainer, logged as `rollout_correction/…`.

Source: reference/trainers.md 12 (swift/rlhf_trainers/grpo_trainer.py), conformance/MORE.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from rollout_audit.corrections.direct import apply
from rollout_audit.corrections.model import (
    SAFETY_CLAMP,
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Over,
    Rule,
    Sign,
    Statistic,
    Weight,
)
from rollout_audit.corrections.tokens import Tokens, row_sum
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers.base import Columns, Counterpart, OrderStatistics, Quirk, Trainer
from rollout_audit.trainers.columns import counted
from rollout_audit.trainers.expression import Options, rule_bound, rule_upper, upper
from rollout_audit.trainers.off_policy import clamped
from rollout_audit.trainers.otherwise import reruled, reweighed
from rollout_audit.trainers.reductions import fraction, largest, mean, smallest, summarise
from rollout_audit.trainers.section import Section
from rollout_audit.trainers.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TRAINER"]

DEFAULTS: dict[str, object] = {
    "rollout_importance_sampling_mode": None,
    "rollout_importance_sampling_threshold": 2.0,
    "log_rollout_offpolicy_metrics": False,
    "off_policy_sequence_mask_delta": None,
}
MODES: dict[str | None, str | None] = {
    name: name for name in (None, "token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
}
K3_LIMIT = 10.0

QUIRKS = (
    Quirk(
        "geometric_sequence",
        "sequence_truncate and sequence_mask use the geometric mean of the response's ratios; TRL's modes of the same "
        "names use the product.",
        "reference/trainers.md 12A",
        instead=lambda config: _product(config),
    ),
    Quirk(
        "sequence_mask_keeps_tokens",
        "sequence_mask weighs the tokens of a response that stays with their own ratios, unbounded.",
        "reference/trainers.md 12A",
        instead=lambda config: (
            reweighed(correction(config), level=Level.GEOMETRIC) if config.mode == "sequence_mask" else None
        ),
    ),
    Quirk(
        "upper_bound_only",
        "There is no lower bound: a mask drops what the trainer finds likelier than the engine, never the reverse.",
        "reference/trainers.md 12A",
        instead=lambda config: _two_sided(config),
    ),
    Quirk(
        "weights_kl_term",
        "The weight multiplies the loss after the KL penalty was added, so that is weighted too.",
        "reference/trainers.md 12A",
        untold="A dump holds no KL penalty",
    ),
    Quirk(
        "clamped_k3",
        "k3_kl clamps the log-ratio to ±20 and each token's value to 10.",
        "conformance/MORE.md, ms-swift",
    ),
    Quirk(
        "geometric_chi2",
        "chi2_seq is of the geometric mean ratio, not of the product.",
        "reference/trainers.md 12B",
    ),
    Quirk(
        "ess_of_clamped_weights",
        "ess clamps weights into [1/T, T] first, so a masked token counts as 1/T.",
        "reference/trainers.md 12B",
    ),
    Quirk(
        "empty_rows",
        "Row means count rows without a valid token: perplexity 1, difference 0, ratio 1.",
        "conformance/MORE.md, ms-swift",
    ),
    Quirk(
        "denominators_differ",
        "Importance sampling only zeroes weights; off_policy_sequence_mask_delta edits the mask, so the denominator "
        "shrinks with it.",
        "reference/trainers.md 12A",
        told_by="gradient_scale",
    ),
)

MODE, THRESHOLD = "rollout_importance_sampling_mode", "rollout_importance_sampling_threshold"
BOUNDS = {
    "token_truncate": upper,
    "token_mask": rule_upper(Aggregation.TOKEN),
    "sequence_truncate": upper,
    "sequence_mask": rule_upper(Aggregation.SEQ_MEAN),
}
OPTIONS: Options = (
    (
        ({MODE: None}, *({MODE: mode, THRESHOLD: bound} for mode, bound in BOUNDS.items())),
        ({}, {"off_policy_sequence_mask_delta": rule_bound(Statistic.K1, Aggregation.SEQ_MEAN)}),
    ),
)
COUNTERPARTS = {
    "rollout_correction/training_ppl": Counterpart("overall.training_ppl", "empty_rows"),
    "rollout_correction/rollout_ppl": Counterpart("overall.rollout_ppl", "empty_rows"),
    "rollout_correction/ppl_ratio": Counterpart("overall.ppl_ratio", "empty_rows"),
    "rollout_correction/log_ppl_diff": Counterpart("overall.log_ppl_diff", "empty_rows"),
    "rollout_correction/log_ppl_abs_diff": Counterpart("overall.log_ppl_abs_diff", "empty_rows"),
    "rollout_correction/kl": Counterpart("overall.kl_k1", "empty_rows"),
    "rollout_correction/k3_kl": Counterpart("overall.kl_k3", "clamped_k3"),
    "rollout_correction/chi2_seq": Counterpart("overall.chi2_seq", "geometric_chi2"),
    "rollout_correction/ess": Counterpart("raw.ess", "ess_of_clamped_weights"),
}


@dataclass(frozen=True, slots=True)
class MsSwiftConfig:
    """Parsed arguments of the GRPO trainer."""

    mode: str | None
    threshold: float
    logs: bool
    delta: float | None

    @property
    def by_token(self) -> bool:
        return self.mode is not None and self.mode.startswith("token")

    @property
    def importance_sampling(self) -> Correction:
        """The correction without the off-policy sequence mask."""
        weight, rules = _weight_and_rules(self.mode, self.threshold)
        return Correction(weight, rules, denominator=Denominator.ORIGINAL)


def parse(raw: Mapping[str, object]) -> MsSwiftConfig:
    """Flat settings → configuration (ConfigError: unknown mode, threshold that is not positive)."""
    settings = Settings.read(raw, DEFAULTS)
    return MsSwiftConfig(
        mode=settings.choice("rollout_importance_sampling_mode", MODES),
        threshold=settings.positive("rollout_importance_sampling_threshold"),
        logs=settings.flag("log_rollout_offpolicy_metrics"),
        delta=settings.optional_number("off_policy_sequence_mask_delta"),
    )


def _weight_and_rules(mode: str | None, threshold: float) -> tuple[Weight, tuple[Rule, ...]]:
    match mode:
        case "token_truncate":
            return Weight(Level.TOKEN, Bound.TRUNCATE, upper=threshold), ()
        case "token_mask":
            return Weight(Level.TOKEN, Bound.MASK, upper=threshold), ()
        case "sequence_truncate":
            return Weight(Level.GEOMETRIC, Bound.TRUNCATE, upper=threshold, token_clamp=SAFETY_CLAMP), ()
        case "sequence_mask":
            return Weight(Level.TOKEN), (Rule(Statistic.RATIO, Aggregation.SEQ_MEAN, upper=threshold),)
        case _:
            return Weight(), ()


def correction(config: MsSwiftConfig) -> Correction:
    """What the configuration does, in the tool's vocabulary."""
    sampling = config.importance_sampling
    if config.delta is None:
        return sampling
    drifted = Rule(Statistic.K1, Aggregation.SEQ_MEAN, None, config.delta, clamp=None, sign=Sign.NEGATIVE_MEAN)
    zeroing = tuple(
        Rule(rule.statistic, rule.aggregation, rule.lower, rule.upper, rule.clamp, over=Over.REMAINING)
        for rule in sampling.rules
    )
    return Correction(sampling.weight, (drifted, *zeroing), denominator=Denominator.REMAINING)


def _product(config: MsSwiftConfig) -> Correction | None:
    """The modes of sequences with the product of the ratios, as TRL has them."""
    if config.mode is None or not config.mode.startswith("sequence"):
        return None
    own = correction(config)
    if config.mode == "sequence_truncate":
        return reweighed(own, level=Level.SEQUENCE)
    return reruled(
        own, lambda rule: replace(rule, aggregation=Aggregation.SEQ_SUM) if rule.statistic is Statistic.RATIO else rule
    )


def _two_sided(config: MsSwiftConfig) -> Correction | None:
    """The masks with the reciprocal as a lower bound."""
    floor = 1.0 / config.threshold
    if config.mode == "token_mask" and floor < 1:
        return reweighed(correction(config), lower=floor)
    if config.mode != "sequence_mask" or floor >= 1:
        return None
    return reruled(
        correction(config), lambda rule: replace(rule, lower=floor) if rule.statistic is Statistic.RATIO else rule
    )


def warnings(config: MsSwiftConfig) -> tuple[str, ...]:
    """A threshold below 1."""
    if config.mode is None or config.threshold >= 1:
        return ()
    threshold = f"rollout_importance_sampling_threshold = {config.threshold:.12g}"
    return (f"{threshold}: below 1 it touches weights where the policies agree",)


def row_columns(tokens: Tokens, config: MsSwiftConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    d = clamped(tokens.log_ratio)
    per_token = {
        "training": tokens.training_log_probs,
        "rollout": tokens.rollout_log_probs,
        "log_ratio": tokens.log_ratio,
        "clamped_log_ratio": d,
        "k3": (d.expm1() - d).clamp(max=K3_LIMIT),
        "ratio_squared": (2 * d).exp(),
    }
    columns = {name: row_sum(values, tokens.lengths) for name, values in per_token.items()}
    return {"tokens": tokens.lengths.double(), **columns, **_weight_columns(tokens, config)}


def _weight_columns(tokens: Tokens, config: MsSwiftConfig) -> dict[str, Tensor]:
    if config.mode is None:
        return {}
    applied = apply(config.importance_sampling, tokens)
    weight = applied.bounded.masked_fill(~applied.kept, 0.0)
    inside = weight.clamp(1 / config.threshold, config.threshold)
    sums = {"weight": weight, "inside": inside, "inside_squared": inside.square()}
    above = torch.exp(clamped(tokens.log_ratio)) > config.threshold
    columns = {name: row_sum(values, tokens.lengths) for name, values in sums.items()}
    return columns | {"above": counted(above, tokens.lengths)}


def metrics(rows: Columns, config: MsSwiftConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - no percentile
    """The `rollout_correction/…` values of one batch; none where neither a mode nor the logging is on."""

    def compute() -> dict[str, float]:
        logs = config.logs or config.mode is not None
        values = _off_policy(rows) if logs else {}
        return values | (_weights(rows, config) if config.mode is not None else {})

    return summarise(rows, compute, "rollout_correction/")


def _off_policy(rows: Columns) -> dict[str, float]:
    """Means over all B rows of row values, then means over the N valid tokens."""
    n, total = np.maximum(rows["tokens"], 1), rows["tokens"].sum()
    training, rollout = -rows["training"] / n, -rows["rollout"] / n
    difference = training - rollout
    return {
        "training_ppl": mean(np.exp(training)),
        "training_log_ppl": mean(training),
        "rollout_ppl": mean(np.exp(rollout)),
        "rollout_log_ppl": mean(rollout),
        "log_ppl_diff": mean(difference),
        "log_ppl_abs_diff": mean(np.abs(difference)),
        "log_ppl_diff_max": largest(difference),
        "log_ppl_diff_min": smallest(difference),
        "ppl_ratio": mean(np.exp(difference)),
        "kl": float(-rows["log_ratio"].sum() / total),
        "k3_kl": float(rows["k3"].sum() / total),
        "chi2_token": float(rows["ratio_squared"].sum() / total) - 1,
        "chi2_seq": mean(np.exp(2 * rows["log_ratio"] / n)) - 1,
    }


def _weights(rows: Columns, config: MsSwiftConfig) -> dict[str, float]:
    total = rows["tokens"].sum()
    center = rows["inside"].sum() / total + 1e-8
    geometric = np.exp(rows["clamped_log_ratio"] / np.maximum(rows["tokens"], 1))
    by_token = float(rows["above"].sum() / total)
    return {
        "is_weight_mean": float(rows["weight"].sum() / total),
        "ess": float(center**2 * total / rows["inside_squared"].sum()),
        "clipped_frac": by_token if config.by_token else fraction(geometric > config.threshold),
    }


TRAINER: Trainer[MsSwiftConfig] = Trainer(
    name="ms-swift",
    version="2026-08",
    defaults=DEFAULTS,
    section=Section(shared=True),
    parse=parse,
    correction=correction,
    warnings=warnings,
    row_columns=row_columns,
    metrics=metrics,
    quirks=QUIRKS,
    options=OPTIONS,
    counterparts=COUNTERPARTS,
    syntax="flags",
)
