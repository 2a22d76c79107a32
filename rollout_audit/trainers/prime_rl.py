"""prime-rl, August 2026: `trainer.loss`, the current policy against the inference engine, nothing recomputed.

Source: reference/trainers.md 4 (src/prime_rl/trainer/rl/loss.py), conformance/MORE.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollout_audit.corrections.direct import kept_tokens, rule_keeps
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Loss,
    Mode,
    Rule,
    Sign,
    Statistic,
    Weight,
    rules_by_sign,
)
from rollout_audit.corrections.tokens import Tokens, k3, row_sum
from rollout_audit.errors import ConfigError
from rollout_audit.statistics.metrics import Figure, Metrics
from rollout_audit.trainers.base import Columns, Counterpart, OrderStatistics, Quirk, Trainer, replaced_by
from rollout_audit.trainers.columns import counted, described
from rollout_audit.trainers.expression import Options, rule_bound
from rollout_audit.trainers.otherwise import at_sign
from rollout_audit.trainers.reductions import NEEDS_ADVANTAGES, largest, mean, summarise, token_std
from rollout_audit.trainers.section import Section
from rollout_audit.trainers.settings import Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["TRAINER"]

DEFAULTS: dict[str, object] = {
    "type": "default",
    "dppo_mask_low": 0.2,
    "dppo_mask_high": 0.2,
    "ipo_threshold": 0.1,
    "adv_tau": 1.0,
    "kl_tau": 1e-3,
}
TYPES: dict[str | None, bool] = {"default": True, "ipo": False}
"""whether the mask looks at the sign of the advantage"""
BY_RATIO: dict[str, object] = {
    "ratio_type": "token",
    "token_mask_low": 0.125,
    "token_mask_high": 8.0,
    "geo_mask_low": 0.1,
    "geo_mask_high": 10.0,
    "sequence_mask_low": 0.0,
    "sequence_mask_high": 100.0,
    "sequence_clip_high": 10.0,
}
"""December 2025 to March 2026: tokens and responses masked by their ratios"""
BY_DIFFERENCE: dict[str, object] = {"ipo_mask_low": 0.2, "ipo_mask_high": 0.2}
"""March 2026: as today, whatever the advantage"""
TEACHER = "teacher_tau"
TODAY = ("dppo_mask_low", "dppo_mask_high", "ipo_threshold")
REPLACED = {
    "from before March 2026, when masks went by ratios; now dppo_mask_low and dppo_mask_high, on differences of "
    "probability": BY_RATIO,
    "from March 2026, when the sign of the advantage did not count; now dppo_mask_low and dppo_mask_high, or "
    "ipo_threshold with type ipo": BY_DIFFERENCE,
}
LARGEST_SUM = 10.0
"""What the summed log-ratio of a response was clamped to from above"""

RAW = Weight(Level.TOKEN, clamp=None)

QUIRKS = (
    Quirk(
        "current_policy",
        "The ratio is of the current weights to the inference engine, so it holds the lag of asynchronous training "
        "beside the mismatch of the engines.",
        "reference/trainers.md 4B",
    ),
    Quirk(
        "mask_by_probability",
        "Tokens are masked by the difference of probabilities: a rare token may change manyfold and stay.",
        "reference/trainers.md 4A",
    ),
    Quirk(
        "zero_advantage",
        "An advantage of 0 takes the low side of the mask.",
        "reference/trainers.md QUIRKS 18",
        instead=lambda config: at_sign(correction(config), Sign.NOT_POSITIVE, Sign.NEGATIVE),
    ),
    Quirk(
        "masked_tokens_keep_kl",
        "Masked tokens lose their policy gradient only: the squared log-ratio term stays on them.",
        "reference/trainers.md 4A",
    ),
    Quirk(
        "original_denominator",
        "The loss is divided by all tokens of the batch, masked ones too.",
        "reference/trainers.md 4A",
        told_by="gradient_scale",
    ),
    Quirk(
        "row_means",
        "is_masked, masked_mismatch_kl and their like are one value a response, 0 where it has no such token, "
        "averaged over all rows; mismatch_kl/all is over tokens.",
        "conformance/MORE.md, prime-rl",
    ),
)

DIFFERENCE = (Statistic.PROB_DIFF, Aggregation.TOKEN)
OPTIONS: Options = (
    (
        (
            {
                "type": "default",
                "dppo_mask_low": rule_bound(*DIFFERENCE, "lower", scale=-1.0),
                "dppo_mask_high": rule_bound(*DIFFERENCE),
            },
            {"type": "ipo", "ipo_threshold": rule_bound(*DIFFERENCE)},
            {"type": "default", "dppo_mask_low": 1.0, "dppo_mask_high": 1.0},
            # its own defaults: what comes nearest to a band of ratios
            {"type": "default", "dppo_mask_low": 0.2, "dppo_mask_high": 0.2},
            {"type": "ipo", "ipo_threshold": 0.1},
        ),
    ),
)
COUNTERPARTS = {
    "mismatch_kl/all/mean": Counterpart("overall.kl_k3", "current_policy"),
    "is_masked/mean": Counterpart("kept.masked_fraction", "row_means"),
}


@dataclass(frozen=True, slots=True)
class PrimeRlConfig:
    """A parsed `trainer.loss`."""

    signed: bool
    low: float
    high: float
    older: tuple[Rule, ...] = ()
    """the masks of an older version"""
    weight: Weight = RAW
    remarks: tuple[str, ...] = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The mask by probability difference; the high side first."""
        if self.older:
            return self.older
        if not self.signed:
            return (Rule(Statistic.PROB_DIFF, Aggregation.TOKEN, -self.low, self.high),)
        return rules_by_sign(Statistic.PROB_DIFF, self.low, self.high)


def parse(raw: Mapping[str, object]) -> PrimeRlConfig:
    """Flat settings → configuration (ConfigError: a threshold below 0, an unknown type; `custom` is no data)."""
    if raw.get("type") == "custom":
        own = f" ({raw['import_path']})" if "import_path" in raw else ""
        raise ConfigError(
            "type", "custom", f"a loss of the run's own code{own}, which no setting tells; not known here"
        )
    settings = Settings.read(raw, {**DEFAULTS, **BY_RATIO, **BY_DIFFERENCE, TEACHER: 0.0})
    signed = settings.choice("type", TYPES)
    for key in ("adv_tau", "kl_tau", TEACHER):
        settings.not_negative(key)
    if older := _older(raw, settings):
        return older
    others = ("ipo_threshold",) if signed else ("dppo_mask_low", "dppo_mask_high")
    kind = settings.values["type"]
    moot = [key for key in others if raw.get(key, DEFAULTS[key]) != DEFAULTS[key]]
    remarks = tuple(f"{key} = {raw[key]!r}: not looked at with type {kind!r}" for key in moot)
    low, high = ("dppo_mask_low", "dppo_mask_high") if signed else ("ipo_threshold", "ipo_threshold")
    return PrimeRlConfig(signed, settings.not_negative(low), settings.not_negative(high), remarks=remarks)


def _older(raw: Mapping[str, object], settings: Settings) -> PrimeRlConfig | None:
    """The masks of the version that the keys are of, with their defaults of that time."""
    found = [(now, keys) for now, keys in REPLACED.items() if keys.keys() & raw.keys()]
    if not found:
        return None
    (now, keys), *others = found
    given = sorted(keys.keys() & raw.keys())
    later = [key for _, other in others for key in other if key in raw] + [key for key in TODAY if key in raw]
    if later:
        raise ConfigError(given[0], raw[given[0]], f"of another version than {later[0]}; give the keys of one of them")
    weight, rules = _by_ratio(settings) if keys is BY_RATIO else (RAW, _by_difference(settings))
    remark = f"{', '.join(given)}: {now}; read as they were, under the names that are logged today"
    return PrimeRlConfig(signed=False, low=0.0, high=0.0, older=rules, weight=weight, remarks=(remark,))


def _by_difference(settings: Settings) -> tuple[Rule, ...]:
    low, high = (settings.not_negative(key) for key in BY_DIFFERENCE)
    return (Rule(Statistic.PROB_DIFF, Aggregation.TOKEN, -low, high),)


def _by_ratio(settings: Settings) -> tuple[Weight, tuple[Rule, ...]]:
    """The weight, and the ratios of a token, of the geometric mean and of every token that are kept."""
    places = {
        "token": (Aggregation.TOKEN, Aggregation.TOKEN),
        "geo": (Aggregation.SEQ_MEAN, Aggregation.SEQ_MEAN),
        "sequence": (Aggregation.SEQ_MIN, Aggregation.SEQ_MAX),
    }
    rules = [rule for place, ends in places.items() for rule in _outside(settings, f"{place}_mask", *ends)]
    cap = min(settings.positive("sequence_clip_high"), math.exp(LARGEST_SUM))
    weights: dict[str | None, Weight] = {
        "token": RAW,
        "sequence": Weight(Level.SEQUENCE, Bound.TRUNCATE, upper=cap, clamp=None),
    }
    return settings.choice("ratio_type", weights), tuple(rules)


def _outside(settings: Settings, mask: str, least: Aggregation, greatest: Aggregation) -> list[Rule]:
    low, high = settings.not_negative(f"{mask}_low"), settings.not_negative(f"{mask}_high")
    if low >= high:
        raise ConfigError(f"{mask}_low", settings.values[f"{mask}_low"], f"not below {mask}_high = {high:.12g}")
    if least is greatest:
        return [Rule(Statistic.RATIO, least, low or None, high, clamp=None)]
    floor = [Rule(Statistic.RATIO, least, low, None, clamp=None)] if low else []
    return [*floor, Rule(Statistic.RATIO, greatest, None, high, clamp=None)]


def correction(config: PrimeRlConfig) -> Correction:
    """What the configuration does, in the tool's vocabulary: the ratio itself as the weight, and the mask."""
    return Correction(
        weight=config.weight,
        rules=config.rules,
        denominator=Denominator.ORIGINAL,
        mode=Mode.BYPASS,
        loss=Loss.REINFORCE,
    )


def warnings(config: PrimeRlConfig) -> tuple[str, ...]:
    """Thresholds that no difference of probabilities can reach, keys of older versions."""
    if config.older:
        return config.remarks
    signed = {"dppo_mask_high": config.high, "dppo_mask_low": config.low}
    named = signed if config.signed else {"ipo_threshold": config.high}
    reason = "no two probabilities differ by so much"
    unreachable = (f"{key} = {value:.12g}: {reason}" for key, value in named.items() if value >= 1)
    return (*config.remarks, *unreachable)


def row_columns(tokens: Tokens, config: PrimeRlConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk; those of the mask only where it can be told."""
    kl = k3(tokens.log_ratio)
    columns = {"tokens": tokens.lengths.double(), **described("kl", kl, tokens.lengths)}
    if config.signed and tokens.advantages is None:
        return columns
    masked = ~kept_tokens(correction(config), tokens)
    columns["masked"] = counted(masked, tokens.lengths)
    columns["masked_kl"] = row_sum(kl.masked_fill(~masked, 0.0), tokens.lengths)
    columns["unmasked_kl"] = row_sum(kl.masked_fill(masked, 0.0), tokens.lengths)
    return columns | (_signed_columns(tokens, config, masked) if config.signed else {})


def _signed_columns(tokens: Tokens, config: PrimeRlConfig, masked: Tensor) -> dict[str, Tensor]:
    assert tokens.advantages is not None
    high, low = config.rules
    hits = {
        "masked_high": ~rule_keeps(high, tokens),
        "masked_low": ~rule_keeps(low, tokens),
        "masked_positive": masked & (tokens.advantages > 0),
        "masked_negative": masked & (tokens.advantages <= 0),
        "unsigned": tokens.advantages.isnan(),
    }
    return {name: counted(where, tokens.lengths) for name, where in hits.items()}


def metrics(rows: Columns, config: PrimeRlConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - no percentile
    """The values that pass prime-rl's W&B filter, of one batch."""

    def compute() -> dict[str, Figure]:
        return _mismatch(rows) | _mask(rows, config)

    return summarise(rows, compute, "")


def _mismatch(rows: Columns) -> dict[str, Figure]:
    n = rows["tokens"]
    return {
        "mismatch_kl/all/mean": float(rows["kl"].sum() / n.sum()),
        "mismatch_kl/all/max": largest(rows["kl.max"]),
        "mismatch_kl/all/std": token_std(rows["kl"], rows["kl.within"], n),
    }


MASK_METRICS = ("is_masked", "masked_mismatch_kl", "unmasked_mismatch_kl")
SIGNED_METRICS = ("is_masked_high", "is_masked_low", "masked_advantage_positive", "masked_advantage_negative")


def _mask(rows: Columns, config: PrimeRlConfig) -> dict[str, Figure]:
    """Mean and maximum over all B rows of one value a row."""
    names = (*MASK_METRICS, *SIGNED_METRICS) if config.signed else MASK_METRICS
    if config.signed and _advantages_missing(rows):
        return {f"{name}/{how}": NEEDS_ADVANTAGES for name in names for how in ("mean", "max")}
    per_row = _mask_rows(rows)
    means: dict[str, Figure] = {f"{name}/mean": mean(per_row[name]) for name in names}
    return means | {f"{name}/max": largest(per_row[name]) for name in names}


def _advantages_missing(rows: Columns) -> bool:
    """In some file, or in some row."""
    return "unsigned" not in rows or not np.all(rows["unsigned"] == 0)


def _mask_rows(rows: Columns) -> dict[str, NDArray[np.float64]]:
    """[rows] shares and means of each response; 0 where there is no such token."""
    n, masked = rows["tokens"], rows["masked"]
    counts = {
        "is_masked": (masked, n),
        "masked_mismatch_kl": (rows["masked_kl"], masked),
        "unmasked_mismatch_kl": (rows["unmasked_kl"], n - masked),
    }
    if "masked_high" in rows:
        counts |= {
            "is_masked_high": (rows["masked_high"], n),
            "is_masked_low": (rows["masked_low"], n),
            "masked_advantage_positive": (rows["masked_positive"], masked),
            "masked_advantage_negative": (rows["masked_negative"], masked),
        }
    return {name: np.where(of > 0, sums / np.maximum(of, 1), 0.0) for name, (sums, of) in counts.items()}


TRAINER: Trainer[PrimeRlConfig] = Trainer(
    name="prime-rl",
    version="2026-08",
    defaults=DEFAULTS,
    section=Section(("trainer", "loss")),
    parse=parse,
    correction=correction,
    warnings=warnings,
    row_columns=row_columns,
    metrics=metrics,
    quirks=QUIRKS,
    options=OPTIONS,
    counterparts=COUNTERPARTS,
    optional=frozenset((*BY_RATIO, *BY_DIFFERENCE, TEACHER, "import_path", "kwargs")),
    renamed=(
        replaced_by("sequence_mask_ratio_low", "sequence_mask_low"),
        replaced_by("sequence_mask_ratio_high", "sequence_mask_high"),
        replaced_by("ref_tau", TEACHER),
    ),
    syntax="toml",
)
