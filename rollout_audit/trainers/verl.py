"""verl, August 2026: `algorithm.rollout_correction`, logged as `rollout_corr/…`, and DPPO (`verl_losses`).

Source: reference/trainers.md 1A and 1B (verl/trainer/ppo/rollout_corr_helper.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from rollout_audit.corrections.direct import token_statistic
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Level,
    Loss,
    Mode,
    Rule,
    Weight,
)
from rollout_audit.corrections.tokens import Tokens, row_max, row_mean, row_min, row_sum, spread
from rollout_audit.statistics.metrics import Figure, Metrics
from rollout_audit.trainers import verl_losses
from rollout_audit.trainers.base import Columns, Counterpart, OrderStatistics, Quirk, Trainer, weighs
from rollout_audit.trainers.off_policy import off_policy_columns, off_policy_rows, raw_weight
from rollout_audit.trainers.reductions import (
    fraction,
    largest,
    mean,
    row_values,
    smallest,
    summarise,
    token_mean,
    unbiased_std,
)
from rollout_audit.trainers.settings import Settings
from rollout_audit.trainers.thresholds import Band, band_without_one, parse_band, parse_rejection
from rollout_audit.trainers.verl_options import OPTIONS
from rollout_audit.trainers.verl_renamed import ELSEWHERE, RENAMED, SECTION, VETO
from rollout_audit.trainers.verl_weights import (
    Weights,
    eleven_off_policy,
    extremes,
    outside,
    sequence_weights,
    spread_of_weights,
    weight_columns,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "COUNTERPARTS",
    "DEFAULTS",
    "LEVELS",
    "LOSSES",
    "OFF_POLICY",
    "QUIRKS",
    "TRAINER",
    "VerlConfig",
    "batch_norm_factor",
    "bounded",
    "columns_of",
    "off_policy",
]

DEFAULTS: dict[str, object] = {
    "rollout_is": None,
    "rollout_is_threshold": 2.0,
    "rollout_is_batch_normalize": False,
    "rollout_rs": None,
    "rollout_rs_threshold": None,
    "bypass_mode": False,
    "loss_type": "ppo_clip",
    **verl_losses.DEFAULTS,
}
LEVELS = {None: Level.NONE, "token": Level.TOKEN, "sequence": Level.SEQUENCE}
LOSSES: dict[str | None, Loss] = {"ppo_clip": Loss.PPO_CLIP, "reinforce": Loss.REINFORCE}

QUIRKS = (
    Quirk(
        "k1_sign",
        "k1 bounds are compared with −log ρ: a band 'lo_hi' keeps ρ in [1/hi, 1/lo], not [lo, hi] as documented.",
        "verl PR #6377; reference/cases.md 8",
    ),
    Quirk(
        "empty_rows",
        "Rows without a valid token count in sequence means: perplexity 1, difference 0, ρ² 1, weight 0.",
        "verl issue #7771; reference/cases.md 1 and 2",
    ),
    Quirk(
        "ess_after_bounding",
        "The effective sample size is of bounded weights: a cap lifts it, the zeros of IcePop lower it; it exceeds 1 "
        "for tiny weights.",
        "reference/trainers.md 1B",
    ),
    Quirk(
        "empty_weights",
        "Where IcePop leaves every weight 0, verl fails; the tool gives an effective sample size of 0.",
        "conformance/README.md",
    ),
    Quirk(
        "mixed_populations",
        "Fractions are of tokens at token level, of all rows at sequence level, of rows with a valid token "
        "in rejection options, and of all rows again in rollout_rs_seq_masked_fraction.",
        "reference/trainers.md 1B",
    ),
    Quirk(
        "normaliser_before_rejection",
        "The batch norm factor is the mean weight before rejection; rejected tokens are in it.",
        "reference/cases.md 25",
    ),
    Quirk(
        "shared_threshold",
        "Chained options may share one number that means a ratio for k1 and a divergence for k2 and k3.",
        "reference/trainers.md 1A",
    ),
    Quirk(
        "clamped_chi2",
        "chi2_token and chi2_seq clamp the log-ratio to ±20 before squaring; k3_kl does not.",
        "reference/trainers.md 1B",
    ),
    *verl_losses.QUIRKS,
)

OFF_POLICY = {
    "training_ppl": "training_ppl",
    "rollout_ppl": "rollout_ppl",
    "ppl_ratio": "ppl_ratio",
    "log_ppl_diff": "log_ppl_diff",
    "log_ppl_abs_diff": "log_ppl_abs_diff",
    "kl": "kl_k1",
    "k3_kl": "kl_k3",
}
"""verl's names of what it shares with its descendants → native ones"""
LOGGED_RAW = {f"rollout_corr/{name}": Counterpart(f"overall.{of}", "empty_rows") for name, of in OFF_POLICY.items()}


def _vetoes_nothing(correction: Correction) -> bool:
    """Whether the rules that verl logs are all that removes a token: a veto was of a version before."""
    return correction.veto is None


COUNTERPARTS = {
    **LOGGED_RAW,
    "rollout_corr/chi2_token": Counterpart("overall.chi2_token", "clamped_chi2"),
    "rollout_corr/chi2_seq": Counterpart("overall.chi2_seq", "clamped_chi2"),
    "rollout_corr/rollout_is_mean": Counterpart("bounded.weight_mean", "mixed_populations", when=weighs),
    "rollout_corr/rollout_is_eff_sample_size": Counterpart("raw.ess", "ess_after_bounding", when=weighs),
    "rollout_corr/rollout_is_ratio_fraction_high": Counterpart(
        "bounded.capped_fraction", "mixed_populations", when=weighs
    ),
    "rollout_corr/rollout_rs_masked_fraction": Counterpart(
        "kept.masked_fraction", "mixed_populations", when=_vetoes_nothing
    ),
    "rollout_corr/rollout_rs_seq_masked_fraction": Counterpart(
        "kept.seq_touched_fraction", "mixed_populations", when=_vetoes_nothing
    ),
}


@dataclass(frozen=True, slots=True)
class VerlConfig:
    """A parsed `rollout_correction`, and the loss that it corrects."""

    level: Level
    band: Band
    """IcePop where it has a lower bound, else a truncation cap"""
    batch_normalize: bool
    rules: tuple[Rule, ...]
    veto: float | None
    """of a run before December 2025"""
    mode: Mode
    loss: Loss
    policy: verl_losses.PolicyLoss

    @property
    def icepop(self) -> bool:
        return self.band.lower is not None


def parse(raw: Mapping[str, object]) -> VerlConfig:
    """Flat settings → configuration (ConfigError: what verl's own checks refuse, SPEC 3 beside them)."""
    settings = Settings.read(raw, {**DEFAULTS, VETO: None})
    level = settings.choice("rollout_is", LEVELS)
    # without weights verl never looks at their threshold, and null is common there
    values = DEFAULTS if level is Level.NONE else settings.values
    bypass = settings.flag("bypass_mode")
    config = VerlConfig(
        level=level,
        band=parse_band("rollout_is_threshold", values["rollout_is_threshold"]),
        batch_normalize=settings.flag("rollout_is_batch_normalize"),
        rules=parse_rejection(settings.values["rollout_rs"], settings.values["rollout_rs_threshold"]),
        veto=settings.optional_positive(VETO),
        mode=Mode.BYPASS if bypass else Mode.DECOUPLED,
        loss=settings.choice("loss_type", LOSSES),
        policy=verl_losses.parse(settings, raw, bypass=bypass),
    )
    return replace(config, level=Level.NONE, rules=(), veto=None) if config.policy.dppo else config


def correction(config: VerlConfig) -> Correction:
    """What the configuration does, in the tool's vocabulary."""
    if config.policy.dppo is not None:
        return config.policy.dppo.correction
    weight = Weight(
        level=config.level,
        bound=Bound.MASK if config.icepop else Bound.TRUNCATE,
        lower=config.band.lower,
        upper=config.band.upper,
        normalise=config.batch_normalize,
    )
    if config.mode is Mode.DECOUPLED:
        weight = verl_losses.pooled(weight, config.policy.mode)
    return Correction(
        weight=Weight() if config.level is Level.NONE else weight,
        rules=config.rules,
        veto=config.veto,
        mode=config.mode,
        loss=config.loss,
    )


def warnings(config: VerlConfig) -> tuple[str, ...]:
    """A cap below 1, k1 bounds that are not reciprocal, weights that bypass does not apply."""
    found = [_one_sided(rule) for rule in config.rules if _lopsided(rule)]
    if config.level is not Level.NONE and not config.icepop and config.band.upper < 1:
        cap = f"{config.band.upper:.12g}"
        found.append(f"rollout_is_threshold = {cap}: a cap below 1 shrinks weights where the policies agree")
    if config.level is not Level.NONE and config.icepop:
        found += band_without_one("rollout_is_threshold", config.band.lower, config.band.upper)
    if config.policy.dppo is None and correction(config).applied_weight.level is not config.level:
        found.append("rollout_is: logged but not applied in bypass mode with ppo_clip (the ratio carries it)")
    return (*found, *config.policy.remarks)


def _lopsided(rule: Rule) -> bool:
    if rule.lower is None or rule.upper is None:
        return False
    # "0.99_1.01" is meant as reciprocal and as good as that: 1% of its width apart
    return not math.isclose(-rule.lower, rule.upper, rel_tol=0.02)


def _one_sided(rule: Rule) -> str:
    lower, upper = math.exp(rule.lower or 0), math.exp(rule.upper or 0)
    kept = f"ρ in [{1 / upper:.6g}, {1 / lower:.6g}]"
    return f"{rule.name} '{lower:.6g}_{upper:.6g}' keeps {kept}: verl compares the bounds with −log ρ"


def row_columns(tokens: Tokens, config: VerlConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    return columns_of(tokens, config, _bounded_weights)


WeightsLogged: TypeAlias = Callable[[Tensor, Band], Weights]
"""raw weights and their bounds → the forms of them that a version of verl logs"""


def _bounded_weights(raw: Tensor, band: Band) -> Weights:
    """Since August 2026 everything that is logged is of the bounded weight."""
    applied = bounded(raw, band)
    return Weights(raw, shown=applied, spread=applied)


def columns_of(tokens: Tokens, config: VerlConfig, logged: WeightsLogged) -> dict[str, Tensor]:
    """`row_columns` of any version that has these settings."""
    columns = off_policy_columns(tokens)
    if config.level is not Level.NONE:
        columns |= _weight_columns(tokens, config, logged)
    if config.rules:
        columns |= _rejection_columns(tokens, config.rules)
    return columns | (config.policy.dppo.columns(tokens) if config.policy.dppo else {})


def _weight_columns(tokens: Tokens, config: VerlConfig, logged: WeightsLogged) -> dict[str, Tensor]:
    raw = raw_weight(tokens, config.level)
    lower, upper = config.band.lower_or_reciprocal, config.band.upper
    columns = weight_columns(logged(raw, config.band), lower, upper, tokens.lengths)
    return columns | {"is_bounded": row_sum(bounded(raw, config.band), tokens.lengths)}


def bounded(raw: Tensor, band: Band) -> Tensor:
    """float64 [tokens] min(w, upper), or w inside the band and 0 outside (IcePop)."""
    if band.lower is None:
        return raw.clamp(max=band.upper)
    return torch.where((raw >= band.lower) & (raw <= band.upper), raw, 0.0)


AGGREGATIONS = {Aggregation.SEQ_SUM: row_sum, Aggregation.SEQ_MEAN: row_mean, Aggregation.SEQ_MAX: row_max}


def _rejection_columns(tokens: Tokens, rules: tuple[Rule, ...]) -> dict[str, Tensor]:
    """float64 [rows] per rule its sums, extremes and counts outside the bounds; `removed` by any rule."""
    columns: dict[str, Tensor] = {}
    removed = torch.zeros_like(tokens.log_ratio, dtype=torch.bool)
    for rule in rules:
        statistic = _statistic(tokens, rule)
        columns |= _rule_columns(rule, statistic, tokens.lengths)
        removed |= _above(statistic, rule) | _below(statistic, rule)
    return columns | {"removed": row_sum(removed.double(), tokens.lengths)}


def _statistic(tokens: Tokens, rule: Rule) -> Tensor:
    """float64 [tokens] what the rule looks at; a statistic of the row stands on each of its tokens."""
    per_token = token_statistic(rule, tokens)
    if not rule.aggregation.per_row:
        return per_token
    return spread(AGGREGATIONS[rule.aggregation](per_token, tokens.lengths), tokens.lengths)


def _rule_columns(rule: Rule, statistic: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    inside = statistic.clamp(min=0.0 if rule.lower is None else rule.lower, max=rule.upper)
    sums = {
        "sum": statistic,
        "inside": inside,
        "inside_squared": inside.square(),
        "above": _above(statistic, rule).double(),
        "below": _below(statistic, rule).double(),
    }
    columns = {f"{rule.name}.{name}": row_sum(values, lengths) for name, values in sums.items()}
    extreme = {"max": row_max(statistic, lengths), "min": row_min(statistic, lengths)}
    return columns | {f"{rule.name}.{name}": values for name, values in extreme.items()}


def _above(statistic: Tensor, rule: Rule) -> Tensor:
    return statistic > (math.inf if rule.upper is None else rule.upper)


def _below(statistic: Tensor, rule: Rule) -> Tensor:
    return statistic < (-math.inf if rule.lower is None else rule.lower)


def metrics(rows: Columns, config: VerlConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - no percentile
    """The `rollout_corr/…` values of one batch, and the `actor/…` values of DPPO."""

    def compute() -> dict[str, Figure]:
        values: dict[str, Figure] = {**off_policy(rows)}
        if config.level is not Level.NONE:
            values |= _weight_metrics(rows, config)
        if config.rules:
            values |= _rejection_metrics(rows, config.rules)
        own = {f"rollout_corr/{name}": value for name, value in values.items()}
        return own | (config.policy.dppo.metrics(rows) if config.policy.dppo else {})

    return summarise(rows, compute, "")


def off_policy(rows: Columns) -> dict[str, float]:
    """The eleven figures of every version, and χ² of tokens (pooled) and of products (over all B rows)."""
    return eleven_off_policy(rows) | {
        "chi2_token": token_mean(rows["ratio_squared"], rows["tokens"]) - 1,
        "chi2_seq": mean(off_policy_rows(rows)["chi2_seq"]),
    }


def _weight_metrics(rows: Columns, config: VerlConfig) -> dict[str, float]:
    lower, upper = config.band.lower_or_reciprocal, config.band.upper
    values = {"rollout_is_mean": token_mean(rows["is_shown"], rows["tokens"])}
    values |= extremes(rows, config.level) | outside(rows, config.level, lower, upper)
    values |= spread_of_weights(rows) | sequence_weights(rows, lower, upper)
    if config.icepop:
        values["rollout_is_oob_ratio"] = token_mean(rows["is_above"] + rows["is_below"], rows["tokens"])
    if config.batch_normalize:
        values["rollout_is_batch_norm_factor"] = batch_norm_factor(rows, config.level)
    return values


def batch_norm_factor(rows: Columns, level: Level) -> float:
    """Mean weight over valid tokens, or over B+ rows; 1 where it is too small to divide by."""
    n = rows["tokens"]
    if level is Level.TOKEN:
        factor = token_mean(rows["is_bounded"], n)
    else:
        factor = mean(row_values(rows["is_bounded"], n)[n > 0])
    return factor if factor > 1e-8 else 1.0


def _rejection_metrics(rows: Columns, rules: tuple[Rule, ...]) -> dict[str, float]:
    """`rollout_rs_…` of each option, and the totals of all options together (rows: of all B)."""
    values: dict[str, float] = {}
    for rule in rules:
        for name, value in _rule_metrics(rows, rule).items():
            values[f"rollout_rs_{rule.name}_{name}"] = value
    values["rollout_rs_masked_fraction"] = token_mean(rows["removed"], rows["tokens"])
    values["rollout_rs_seq_masked_fraction"] = fraction(rows["removed"] > 0)
    return values


def _rule_metrics(rows: Columns, rule: Rule) -> dict[str, float]:
    valid = rows["tokens"] > 0
    names = ("sum", "max", "min", "inside", "inside_squared", "above", "below")
    of_rule = {name: rows[f"{rule.name}.{name}"][valid] for name in names}
    n = rows["tokens"][valid]
    return _rule_over_tokens(of_rule, n, rule) | _rule_over_rows(of_rule, n, rule)


def _rule_over_tokens(of_rule: Columns, n: NDArray[np.float64], rule: Rule) -> dict[str, float]:
    """Means over valid tokens; fractions of a sequence option are of B+ rows."""
    first, second = token_mean(of_rule["inside"], n), token_mean(of_rule["inside_squared"], n)
    share = _row_share if rule.aggregation.per_row else token_mean
    return {
        "mean": token_mean(of_rule["sum"], n),
        "max": largest(of_rule["max"]),
        "min": smallest(of_rule["min"]),
        "std": math.sqrt(max(second - first**2, 0.0)) if n.sum() > 1 else 0.0,
        "fraction_high": share(of_rule["above"], n),
        "fraction_low": share(of_rule["below"], n),
        "masked_fraction": token_mean(of_rule["above"] + of_rule["below"], n),
    }


def _row_share(counts: NDArray[np.float64], n: NDArray[np.float64]) -> float:  # noqa: ARG001 - stands in for token_mean
    return fraction(counts > 0)


def _rule_over_rows(of_rule: Columns, n: NDArray[np.float64], rule: Rule) -> dict[str, float]:
    """The statistic of each B+ row, or its row mean for a token option."""
    per_row = of_rule["max"] if rule.aggregation.per_row else row_values(of_rule["sum"], n)
    values = {
        "seq_masked_fraction": fraction(of_rule["above"] + of_rule["below"] > 0),
        "seq_mean": mean(per_row),
        "seq_std": unbiased_std(per_row),
        "seq_max": largest(per_row),
        "seq_min": smallest(per_row),
        "seq_max_deviation": largest(abs(per_row)),
        "seq_fraction_high": fraction(per_row > (rule.upper or 0.0)),
    }
    if rule.lower is not None:
        values["seq_fraction_low"] = fraction(per_row < rule.lower)
    return values


TRAINER: Trainer[VerlConfig] = Trainer(
    name="verl",
    version="2026-08",
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
    elsewhere=ELSEWHERE,
    renamed=RENAMED,
    relevant=verl_losses.relevant,
)
