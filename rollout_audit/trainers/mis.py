"""mis.py, the mismatch helper that slime and miles share, textually the same in both.

Every figure is reduced alike: the mean over valid tokens of each row, then the mean over all rows, where a
row without a valid token counts as 0. Source: reference/trainers.md 2A and 2B, conformance/MORE.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rollout_audit.corrections.model import (
    Bound,
    Correction,
    Denominator,
    Level,
    Rows,
    Rule,
    Statistic,
    Weight,
)
from rollout_audit.corrections.tokens import Tokens, row_max, row_min, row_sum
from rollout_audit.errors import ConfigError
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers.base import Columns, Counterpart, OrderStatistics, Quirk
from rollout_audit.trainers.expression import Axis, Options, lower, rule_lower, rule_upper, upper, veto
from rollout_audit.trainers.levels import AGGREGATIONS, LEVELS
from rollout_audit.trainers.off_policy import off_policy_columns, off_policy_rows, raw_weight
from rollout_audit.trainers.reductions import fraction, mean, sample_mean, summarise
from rollout_audit.trainers.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "COMPUTE",
    "COUNTERPARTS",
    "DEFAULTS",
    "FUNCTION",
    "QUIRKS",
    "MisConfig",
    "correction",
    "figures",
    "metrics",
    "options",
    "parse",
    "row_columns",
    "warnings",
]

FUNCTION = "custom_tis_function_path"
COMPUTE = "compute_mis_weights_with_cp"
NORMALISE = "tis_batch_normalize"
DEFAULTS: dict[str, object] = {
    "use_tis": True,
    "tis_level": "token",
    "tis_mode": "truncate",
    "tis_lower_bound": None,
    "tis_upper_bound": 2.0,
    NORMALISE: False,
    "use_rs": False,
    "rs_level": "token",
    "rs_lower_bound": None,
    "rs_upper_bound": None,
    "rs_veto_threshold": None,
}
MODES: dict[str | None, Bound] = {"truncate": Bound.TRUNCATE, "clip": Bound.CLIP, "mask": Bound.MASK}

VETO = 1e-4
"""The veto threshold of the published mis.yaml"""

QUIRKS = (
    Quirk(
        "mean_of_means",
        "Every figure is a mean of row means, mis_kl and mis_chi2_token too: a token of a short row weighs more.",
        "reference/trainers.md 2B",
    ),
    Quirk(
        "empty_rows",
        "Rows without a valid token count as 0 in every mean, perplexities and weights included.",
        "conformance/MORE.md, slime",
    ),
    Quirk(
        "clamped_chi2",
        "mis_chi2_token and mis_chi2_seq clamp the log-ratio to ±20 before squaring; mis_k3_kl does not.",
        "reference/trainers.md 2B",
    ),
    Quirk(
        "mask_keeps_weights",
        "Mode mask removes tokens from the mask and leaves the weights raw and unbounded.",
        "reference/trainers.md 2A",
        told_by="normaliser_before_rejection",
        when=lambda config: config.mis is not None and config.mis.bound is Bound.MASK,
    ),
    Quirk(
        "normaliser_before_rejection",
        "The batch norm factor is the mean weight before rejection; at sequence level empty rows count as 0.",
        "reference/cases.md 25, conformance/expected.parquet",
        when=lambda config: config.mis is not None,
    ),
    Quirk(
        "factor_diluted",
        "mis_batch_norm_factor is logged times the share of rows with a valid token.",
        "reference/trainers.md 2B",
        told_by="empty_rows",
        when=lambda config: config.mis is not None and config.mis.enabled and config.mis.batch_normalize,
    ),
    Quirk(
        "veto_needs_rs",
        "rs_veto_threshold does nothing unless use_rs is true.",
        "reference/trainers.md 2A",
        instead=lambda config: (
            replace(correction(config.mis), veto=VETO)
            if config.mis is not None and config.mis.enabled and config.mis.rejection is None
            else None
        ),
    ),
    Quirk(
        "after_rs_is_not",
        "mis_is_ratio_mean_after_tis_rs is before batch normalisation and not reduced by rejection: it equals "
        "mis_tis_weight_after_bound.",
        "reference/trainers.md 2B",
    ),
    Quirk(
        "original_denominators",
        "Rejected tokens leave the numerator of the loss only; the README says otherwise.",
        "reference/trainers.md 2A",
        told_by="gradient_scale",
    ),
)

WEIGHTS: Axis = tuple(
    {"use_tis": True, "tis_level": name, **bounds}
    for name, level in LEVELS.items()
    for bounds in (
        {"tis_mode": "truncate", "tis_lower_bound": None, "tis_upper_bound": upper},
        {"tis_mode": "clip", "tis_lower_bound": lower, "tis_upper_bound": upper},
        {
            "tis_mode": "mask",
            "tis_lower_bound": rule_lower(AGGREGATIONS[level]),
            "tis_upper_bound": rule_upper(AGGREGATIONS[level]),
        },
    )
)
REJECTION: Axis = tuple(
    {
        "use_rs": True,
        "rs_level": name,
        "rs_lower_bound": rule_lower(AGGREGATIONS[level]),
        "rs_upper_bound": rule_upper(AGGREGATIONS[level]),
        **vetoes,
    }
    for name, level in LEVELS.items()
    for vetoes in ({"rs_veto_threshold": None}, {"rs_veto_threshold": veto})
)


def options(package: str) -> Options:
    """Every way to set mis.py of that package, with each key that its shipped file sets otherwise than mis.py does:
    what is pasted over that file means the same."""
    function = {FUNCTION: f"{package}.mis.{COMPUTE}"}
    return (((function,), WEIGHTS, ({NORMALISE: False}, {NORMALISE: True}), ({"use_rs": False}, *REJECTION)),)


COUNTERPARTS = {
    "mis_training_ppl": Counterpart("overall.training_ppl", "empty_rows"),
    "mis_rollout_ppl": Counterpart("overall.rollout_ppl", "empty_rows"),
    "mis_ppl_ratio": Counterpart("overall.ppl_ratio", "empty_rows"),
    "mis_log_ppl_diff": Counterpart("overall.log_ppl_diff", "empty_rows"),
    "mis_log_ppl_abs_diff": Counterpart("overall.log_ppl_abs_diff", "empty_rows"),
    "mis_kl": Counterpart("overall.kl_k1", "mean_of_means"),
    "mis_k3_kl": Counterpart("overall.kl_k3", "mean_of_means"),
    "mis_chi2_token": Counterpart("overall.chi2_token", "mean_of_means"),
    "mis_chi2_seq": Counterpart("overall.chi2_seq", "clamped_chi2"),
    "mis_tis_weight_before_bound": Counterpart("raw.weight_mean", "mean_of_means"),
    "mis_tis_weight_after_bound": Counterpart("bounded.weight_mean", "mean_of_means"),
    "mis_is_ratio_mean_after_tis_rs": Counterpart("kept.weight_mean", "after_rs_is_not"),
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """`use_rs`: keep where lower ≤ ratio of the level ≤ upper; rows with a token of ρ < veto go whole."""

    level: Level
    lower: float
    upper: float
    veto: float | None


@dataclass(frozen=True, slots=True)
class MisConfig:
    """A parsed mis.yaml."""

    enabled: bool
    level: Level
    bound: Bound
    lower: float
    upper: float
    batch_normalize: bool
    rejection: Rejection | None


def parse(raw: Mapping[str, object]) -> MisConfig:
    """Flat settings → configuration (ConfigError where mis.py raises, SPEC 3 beside it)."""
    settings = Settings.read(raw, DEFAULTS)
    enabled = settings.flag("use_tis")
    if not enabled:
        settings = Settings.read({}, DEFAULTS)  # mis.py returns before it looks at any of them
    bound = settings.choice("tis_mode", MODES)
    lower, upper = _tis_bounds(settings, bound)
    return MisConfig(
        enabled=enabled,
        level=settings.choice("tis_level", LEVELS),
        bound=bound,
        lower=lower,
        upper=upper,
        batch_normalize=_batch_normalize(settings),
        rejection=_rejection(settings) if settings.flag("use_rs") else None,
    )


def _tis_bounds(settings: Settings, bound: Bound) -> tuple[float, float]:
    lower_key, upper_key = "tis_lower_bound", "tis_upper_bound"
    if bound is Bound.TRUNCATE and settings.values[lower_key] is None:
        upper = settings.positive(upper_key)
        return 1 / upper, upper
    return settings.band(lower_key, upper_key)


def _batch_normalize(settings: Settings) -> bool:
    normalise = settings.flag("tis_batch_normalize")
    if normalise and settings.values["tis_level"] == "geometric":
        raise ConfigError("tis_batch_normalize", normalise, "mis.py refuses it with tis_level geometric")
    return normalise


def _rejection(settings: Settings) -> Rejection:
    """Bounds that are null are those of tis, and a lower bound that is null there too is 1 / upper."""
    lower, upper = settings.band(_given(settings, "lower_bound"), _given(settings, "upper_bound"))
    veto = settings.optional_positive("rs_veto_threshold")
    return Rejection(settings.choice("rs_level", LEVELS), lower, upper, veto)


def _given(settings: Settings, bound: str) -> str:
    own, shared = f"rs_{bound}", f"tis_{bound}"
    fallback = settings.values[own] is None and settings.values[shared] is not None
    return shared if fallback else own


def correction(config: MisConfig) -> Correction:
    """What the configuration does, in the tool's vocabulary; `use_tis: false` only measures."""
    if not config.enabled:
        return Correction(denominator=Denominator.ORIGINAL)
    rules = [_rule(config)] if config.bound is Bound.MASK else []
    if config.rejection is not None:
        rules.append(_rule(config.rejection))
    return Correction(
        weight=_weight(config),
        rules=tuple(rules),
        veto=config.rejection.veto if config.rejection else None,
        denominator=Denominator.ORIGINAL,
    )


def _weight(config: MisConfig) -> Weight:
    weight = _bounded_weight(config)
    return replace(weight, normalise=True, mean_over=Rows.ALL) if config.batch_normalize else weight


def _bounded_weight(config: MisConfig) -> Weight:
    match config.bound:
        case Bound.MASK:
            return Weight(config.level)
        case Bound.TRUNCATE:
            return Weight(config.level, Bound.TRUNCATE, upper=config.upper)
        case _:
            return Weight(config.level, config.bound, config.lower, config.upper)


def _rule(band: MisConfig | Rejection) -> Rule:
    # the ratio is clamped after the sum, far outside any bound: no clamp of single tokens
    return Rule(Statistic.RATIO, AGGREGATIONS[band.level], band.lower, band.upper, clamp=None)


def warnings(config: MisConfig) -> tuple[str, ...]:
    """A cap below 1 in truncate mode."""
    if config.enabled and config.bound is Bound.TRUNCATE and config.upper < 1:
        cap = f"{config.upper:.12g}"
        return (f"tis_upper_bound = {cap}: a cap below 1 shrinks weights where the policies agree",)
    return ()


def row_columns(tokens: Tokens, config: MisConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    columns = off_policy_columns(tokens)
    if config.enabled:
        columns |= _weight_columns(tokens, config)
        columns |= _rejection_columns(tokens, config.rejection) if config.rejection else {}
    return columns


def _weight_columns(tokens: Tokens, config: MisConfig) -> dict[str, Tensor]:
    raw = raw_weight(tokens, config.level)
    bounded = _bounded(raw, config)
    sums = {
        "before_bound": raw,
        "after_bound": bounded,
        "above": (raw > config.upper).double(),
        "below": (raw < config.lower).double(),
    }
    columns = {name: row_sum(values, tokens.lengths) for name, values in sums.items()}
    return columns | {"max": row_max(bounded, tokens.lengths), "min": row_min(bounded, tokens.lengths)}


def _bounded(raw: Tensor, config: MisConfig) -> Tensor:
    match config.bound:
        case Bound.TRUNCATE:
            return raw.clamp(0.0, config.upper)
        case Bound.CLIP:
            return raw.clamp(config.lower, config.upper)
        case _:
            return raw


def _rejection_columns(tokens: Tokens, rejection: Rejection) -> dict[str, Tensor]:
    ratio = raw_weight(tokens, rejection.level)
    catastrophic = tokens.log_ratio < (-math.inf if rejection.veto is None else math.log(rejection.veto))
    counts = {
        "rs_above": ratio > rejection.upper,
        "rs_below": ratio < rejection.lower,
        "catastrophic": catastrophic,
    }
    return {name: row_sum(hits.double(), tokens.lengths) for name, hits in counts.items()}


def metrics(rows: Columns, config: MisConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - no percentile
    """The `mis_…` values of one batch."""
    return summarise(rows, lambda: figures(rows, config), "")


def figures(rows: Columns, config: MisConfig) -> dict[str, float]:
    """Name → value, for a batch with a valid token."""
    values = _off_policy(rows)
    if config.enabled:
        values |= _weights(rows, config)
        values |= _rejected(rows, config.rejection) if config.rejection else {}
        values |= _final(rows, config)
    return {f"mis_{name}": value for name, value in values.items()}


def _off_policy(rows: Columns) -> dict[str, float]:
    valid = rows["tokens"] > 0
    per_row = off_policy_rows(rows)
    values = {name: mean(np.where(valid, figures, 0.0)) for name, figures in per_row.items()}
    return values | {
        "kl": sample_mean(-rows["log_ratio"], rows),
        "k3_kl": sample_mean(rows["k3"], rows),
        "chi2_token": sample_mean(rows["ratio_squared"] - rows["tokens"], rows),
    }


FRACTION_NAMES = {
    Bound.TRUNCATE: {"above": "tis_truncate_fraction"},
    Bound.CLIP: {"below": "tis_clip_fraction_low", "above": "tis_clip_fraction_high"},
    Bound.MASK: {"below": "tis_mask_fraction_low", "above": "tis_mask_fraction_high"},
}


def _weights(rows: Columns, config: MisConfig) -> dict[str, float]:
    after_bound = sample_mean(rows["after_bound"], rows)
    return {
        "tis_weight_before_bound": sample_mean(rows["before_bound"], rows),
        **{name: sample_mean(rows[count], rows) for count, name in FRACTION_NAMES[config.bound].items()},
        "tis_weight_after_bound": after_bound,
        "is_ratio_mean_after_tis_rs": after_bound,
    }


def _rejected(rows: Columns, rejection: Rejection) -> dict[str, float]:
    values = {
        "rs_mask_fraction_low": sample_mean(rows["rs_below"], rows),
        "rs_mask_fraction_high": sample_mean(rows["rs_above"], rows),
    }
    if rejection.veto is not None:
        values["rs_catastrophic_token_fraction"] = sample_mean(rows["catastrophic"], rows)
        values["rs_catastrophic_seq_fraction"] = fraction(rows["catastrophic"] > 0)
    return values


def _final(rows: Columns, config: MisConfig) -> dict[str, float]:
    """After batch normalisation; max and min are means over all B rows of the extremes of each row."""
    valid = rows["tokens"] > 0
    factor = _batch_norm_factor(rows, config)
    extremes = {name: mean(np.where(valid, rows[name], 0.0)) / factor for name in ("min", "max")}
    values = {f"is_ratio_{name}_final": value for name, value in extremes.items()}
    values["is_ratio_mean_final"] = sample_mean(rows["after_bound"], rows) / factor
    if config.batch_normalize:
        values["batch_norm_factor"] = factor * fraction(valid)
    return values


def _batch_norm_factor(rows: Columns, config: MisConfig) -> float:
    """Mean weight over valid tokens, or of all B rows; 1 without normalisation or where it is too small."""
    if not config.batch_normalize:
        return 1.0
    if config.level is Level.TOKEN:
        factor = float(rows["after_bound"].sum() / rows["tokens"].sum())
    else:
        factor = sample_mean(rows["after_bound"], rows)
    return factor if factor > 1e-8 else 1.0
