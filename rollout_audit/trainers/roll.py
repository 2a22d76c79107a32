"""ROLL, August 2026: `train_infer_correction`, logged as `actor/train_infer_…`.

Source: reference/trainers.md 10 (roll/utils/train_infer_corrections.py), conformance/MORE.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from rollout_audit.corrections.direct import kept_tokens, level_log_ratio, rule_keeps
from rollout_audit.corrections.model import Aggregation, Bound, Correction, Denominator, Level, Rule, Statistic, Weight
from rollout_audit.corrections.tokens import Tokens, row_mean, row_sum, spread
from rollout_audit.errors import ConfigError
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers.base import Columns, Counterpart, OrderStatistics, Quirk, Renamed, Trainer
from rollout_audit.trainers.columns import counted, positions
from rollout_audit.trainers.expression import MISSING, Options, ratio_of, upper
from rollout_audit.trainers.reductions import EPSILON, row_values, summarise
from rollout_audit.trainers.references import Note
from rollout_audit.trainers.section import Section
from rollout_audit.trainers.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TRAINER"]

IS_WEIGHT: dict[str, object] = {"enabled": False, "weight_type": "token", "upper_bound": 1.2, "detach": True}
FILTER: dict[str, object] = {
    "enabled": False,
    "agg_type": "token",
    "ratio_enabled": True,
    "ratio_low": 0.8,
    "ratio_high": 1.2,
    "diff_enabled": False,
    "diff_low": -0.2,
    "diff_high": 0.2,
}
RECOMPUTE, NEVER_RECOMPUTE = "enable_old_logprobs_recompute", "force_disable_old_logprobs_recompute"
ESTIMATOR = "adv_estimator"
VARIANT = "pg_variant"
RECOMPUTING = ("step_reinforce", "gigpo")
"""Estimators that switch the recompute on"""
DEFAULTS: dict[str, object] = {
    "is_weight": IS_WEIGHT,
    "filters": [],
    RECOMPUTE: False,
    NEVER_RECOMPUTE: False,
    ESTIMATOR: "gae",
}
LEVELS: dict[str | None, Level] = {
    "token": Level.TOKEN,
    "geometric": Level.GEOMETRIC,
    "sequence": Level.SEQUENCE,
    "segment": Level.SEGMENT,
}
AGGREGATIONS = {
    Level.TOKEN: Aggregation.TOKEN,
    Level.GEOMETRIC: Aggregation.SEQ_MEAN,
    Level.SEQUENCE: Aggregation.SEQ_SUM,
    Level.SEGMENT: Aggregation.SEGMENT_MEAN,
}
BY_ROW = (Level.GEOMETRIC, Level.SEQUENCE)

USUAL_RATIOS = (0.8, 1.2)
"""What an enabled filter keeps where nothing else is said"""

QUIRKS = (
    Quirk(
        "padding_passes",
        "clipfrac and the mask means sum over all positions of the padded batch and divide by valid tokens, so a pass "
        "rate above 1 is padding. Padding has ratio 1 or the value of its response; a token under a mask of 0 has "
        "whatever the two columns hold there. The batch is padded to its longest response here; in ROLL the prompt "
        "is in it too.",
        "conformance/MORE.md, correction 2",
    ),
    Quirk(
        "geometric_difference",
        "The geometric difference is the plain mean of the differences in probability, the sequence difference "
        "their sum.",
        "reference/trainers.md 10A",
    ),
    Quirk(
        "signed_difference",
        "train_infer_diff_… are signed: errors of both signs cancel in them.",
        "reference/trainers.md 10B",
    ),
    Quirk(
        "ratio_filter_on",
        "A filter that is enabled filters ratios by 0.8 to 1.2 unless ratio_enabled is switched off.",
        "reference/trainers.md 10A",
        instead=lambda config: _without_unasked(config),
    ),
    Quirk(
        "denominator_by_path",
        "With enable_old_logprobs_recompute the masks are edited before tokens are counted and the denominator "
        "shrinks; without it, which is the default, it does not, and old_log_probs are those of the first pass in "
        "training. ROLL switches it on by itself for step_reinforce and gigpo and where a step takes several backward "
        "steps, which no setting alone shows.",
        "reference/trainers.md 10A; roll/configs/base_config.py",
        told_by="gradient_scale",
    ),
    Quirk(
        "no_clamp",
        "Log-ratios are not clamped before exp.",
        "reference/trainers.md 10A",
        told_by="unclamped_ratio",
    ),
    Quirk(
        "missing_log_probs",
        "Where the engine's log-probs are missing, ROLL takes the trainer's own: every ratio is 1.",
        "reference/trainers.md 10A",
        untold="A dump without the log-probs of the engine has nothing to audit",
    ),
)


def _filters(correction: Correction) -> object:
    """One entry for each two-sided rule on ratios or differences."""
    entries = [entry for rule in correction.rules for entry in _entries(rule)]
    return entries or MISSING


def _entries(rule: Rule) -> Iterator[dict[str, object]]:
    level = next((level for level, own in AGGREGATIONS.items() if own is rule.aggregation), None)
    name = {Statistic.RATIO: "ratio", Statistic.K1: "ratio", Statistic.PROB_DIFF: "diff"}.get(rule.statistic)
    if level is None or name is None or rule.lower is None or rule.upper is None:
        return
    bounds = (rule.lower, rule.upper)
    if rule.statistic is Statistic.K1:
        bounds = (ratio_of(-rule.upper), ratio_of(-rule.lower))
    on = {"enabled": True, "agg_type": level.value, "ratio_enabled": name == "ratio", "diff_enabled": name == "diff"}
    yield {**on, f"{name}_low": bounds[0], f"{name}_high": bounds[1]}


OPTIONS: Options = (
    (
        (
            {"is_weight.enabled": False},
            *(
                {"is_weight.enabled": True, "is_weight.weight_type": level, "is_weight.upper_bound": bound}
                for level in LEVELS
                for bound in (upper, None)
            ),
        ),
        ({}, {"filters": _filters}, {"filters": _filters, RECOMPUTE: True}),
    ),
)
STATISTICS = {"ratio": Statistic.RATIO, "diff": Statistic.PROB_DIFF}
COUNTERPARTS = {
    **{
        f"actor/train_infer_{name}_{kind}_mask_mean@sum": Counterpart(
            f"removed.{AGGREGATIONS[level]}_{statistic}", "padding_passes", "complement"
        )
        for name, level in LEVELS.items()
        for kind, statistic in STATISTICS.items()
    },
    "actor/is_weight_clipfrac@sum": Counterpart("bounded.capped_fraction", "padding_passes"),
}


@dataclass(frozen=True, slots=True)
class Filter:
    """One enabled entry of `filters`."""

    level: Level
    ratio: tuple[float, float] | None
    difference: tuple[float, float] | None

    @property
    def rules(self) -> Iterator[tuple[str, Rule]]:
        """(name in the metrics, rule)."""
        for name, band in (("ratio", self.ratio), ("diff", self.difference)):
            if band is not None:
                rule = Rule(STATISTICS[name], AGGREGATIONS[self.level], *band, clamp=None)
                yield f"{self.level.value}_{name}", rule


@dataclass(frozen=True, slots=True)
class RollConfig:
    """A parsed `train_infer_correction`."""

    level: Level
    upper: float | None
    filters: tuple[Filter, ...]
    lists_filters: bool
    """whether `filters` has any entry, enabled or not"""
    recomputes: bool
    """whether old_log_probs are computed, and masks edited, before tokens are counted"""
    warnings: tuple[str, ...]

    @property
    def rules(self) -> dict[str, Rule]:
        """By name in the metrics; of two filters that share it, ROLL logs the later."""
        return {name: rule for each in self.filters for name, rule in each.rules}


def parse(raw: Mapping[str, object]) -> RollConfig:
    """Nested settings → configuration (ConfigError: unknown key or choice, bound not positive, inverted band)."""
    settings = Settings.read(raw, DEFAULTS)
    weight = _read("is_weight", settings.values["is_weight"], IS_WEIGHT)
    listed = settings.values["filters"] or ()
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise ConfigError("filters", listed, "expected a list of filters")
    entries = [_read(f"filters[{i}]", entry, FILTER) for i, entry in enumerate(listed)]
    enabled = [(f"filters[{i}]", entry) for i, entry in enumerate(entries) if entry.flag(f"filters[{i}].enabled")]
    level = weight.choice("is_weight.weight_type", LEVELS)
    return RollConfig(
        level=level if weight.flag("is_weight.enabled") else Level.NONE,
        upper=weight.optional_positive("is_weight.upper_bound"),
        filters=tuple(_filter(name, entry) for name, entry in enabled),
        lists_filters=bool(entries),
        recomputes=_recomputes(settings),
        warnings=(*_probably_not_meant(raw, weight, entries), *(_unsaid(settings) if enabled else ())),
    )


def _recomputes(settings: Settings) -> bool:
    wanted = settings.flag(RECOMPUTE) or settings.values[ESTIMATOR] in RECOMPUTING
    return wanted and not settings.flag(NEVER_RECOMPUTE)


def _unsaid(settings: Settings) -> Iterator[str]:
    """What ROLL decides by the sizes of a step."""
    if not _recomputes(settings) and not settings.flag(NEVER_RECOMPUTE):
        yield Note(
            f"{RECOMPUTE} = False: ROLL sets it to true where a step takes several backward steps, and the loss then "
            "divides by the tokens that are left; set it here to see that"
        )


def _read(name: str, given: object, defaults: Mapping[str, object]) -> Settings:
    """One nested group under dotted keys, so that errors name the whole path."""
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(name, given, f"expected settings: {', '.join(defaults)}")
    dotted = {f"{name}.{key}": value for key, value in (given or {}).items()}
    return Settings.read(dotted, {f"{name}.{key}": value for key, value in defaults.items()})


def _filter(name: str, entry: Settings) -> Filter:
    ratio = _band(f"{name}.ratio", entry) if entry.flag(f"{name}.ratio_enabled") else None
    if ratio is not None:
        entry.positive(f"{name}.ratio_low")
    difference = _band(f"{name}.diff", entry) if entry.flag(f"{name}.diff_enabled") else None
    return Filter(entry.choice(f"{name}.agg_type", LEVELS), ratio, difference)


def _band(name: str, entry: Settings) -> tuple[float, float]:
    keys = f"{name}_low", f"{name}_high"
    low, high = map(entry.number, keys)
    if low > high:
        raise ConfigError(keys[0], entry.values[keys[0]], f"above {keys[1]} = {high:.12g}")
    return low, high


def _probably_not_meant(raw: Mapping[str, object], weight: Settings, entries: Sequence[Settings]) -> Iterator[str]:
    """What is listed and off, or on without being asked for."""
    set_apart = any(weight.values[f"is_weight.{key}"] != default for key, default in IS_WEIGHT.items())
    if set_apart and not weight.values["is_weight.enabled"]:
        yield "is_weight: does nothing without enabled: true"
    upper = weight.optional_positive("is_weight.upper_bound")
    if weight.values["is_weight.enabled"] and upper is not None and upper < 1:
        yield f"is_weight.upper_bound = {upper:.12g}: a cap below 1 shrinks weights where the policies agree"
    given = raw.get("filters") or ()
    for i, entry in enumerate(entries):
        name = f"filters[{i}]"
        if not entry.values[f"{name}.enabled"]:
            yield f"{name}: does nothing without enabled: true"
        elif entry.values[f"{name}.diff_enabled"] and "ratio_enabled" not in given[i]:  # type: ignore[index]
            yield f"{name}: filters ratios too, since ratio_enabled is true by default"


def correction(config: RollConfig) -> Correction:
    """What the configuration does, in the tool's vocabulary."""
    weight = Weight() if config.level is Level.NONE else Weight(config.level, clamp=None)
    if config.level is not Level.NONE and config.upper is not None:
        weight = Weight(config.level, Bound.TRUNCATE, upper=config.upper, clamp=None)
    rules = tuple(rule for each in config.filters for _, rule in each.rules)
    # before tokens are counted there is nothing to divide otherwise without a filter
    shrinks = config.recomputes and rules
    return Correction(weight, rules, denominator=Denominator.KEPT if shrinks else Denominator.ORIGINAL)


def _without_unasked(config: RollConfig) -> Correction | None:
    """Without the usual ratio filter of entries that bound a difference."""
    filters = tuple(
        replace(each, ratio=None) if each.difference is not None and each.ratio == USUAL_RATIOS else each
        for each in config.filters
    )
    return None if filters == config.filters else correction(replace(config, filters=filters))


def relevant(settings: Mapping[str, object]) -> Mapping[str, object]:
    """Without an estimator that changes nothing here, and losses that nobody takes for a correction."""
    moot = {ESTIMATOR: RECOMPUTING, VARIANT: ("tis",)}
    return {key: value for key, value in settings.items() if key not in moot or value in moot[key]}


def warnings(config: RollConfig) -> tuple[str, ...]:
    """Entries that are off, a ratio filter that nobody asked for, a cap below 1, what ROLL may decide otherwise."""
    return config.warnings


def row_columns(tokens: Tokens, config: RollConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    columns = {"tokens": tokens.lengths.double(), "positions": positions(tokens)}
    for level in LEVELS.values():
        columns[f"ratio_{level.value}"] = row_sum(level_log_ratio(level, tokens).exp(), tokens.lengths)
        columns[f"diff_{level.value}"] = row_sum(_difference(level, tokens), tokens.lengths)
    for name, rule in config.rules.items():
        columns |= _counts(name, partial(rule_keeps, rule), tokens, by_token=rule.aggregation is Aggregation.TOKEN)
    if config.upper is not None:
        columns |= _counts("capped", partial(_capped, config), tokens, by_token=config.level is Level.TOKEN)
    return columns | {"kept": counted(kept_tokens(correction(config), tokens), tokens.lengths)}


def _capped(config: RollConfig, tokens: Tokens) -> Tensor:
    return level_log_ratio(config.level, tokens).exp() > (torch.inf if config.upper is None else config.upper)


def _counts(name: str, holds: Callable[[Tokens], Tensor], tokens: Tokens, *, by_token: bool) -> dict[str, Tensor]:
    """float64 [rows] how often a predicate holds of valid tokens, and of single tokens under a mask of 0."""
    columns = {name: counted(holds(tokens), tokens.lengths)}
    if by_token and tokens.masked is not None:
        columns[f"{name}.masked"] = counted(holds(tokens.masked), tokens.masked.lengths)
    return columns


def _difference(level: Level, tokens: Tokens) -> Tensor:
    """float64 [tokens] π − μ in probability: of the token, or mean or sum over what the level spans."""
    difference = torch.exp(tokens.training_log_probs) - torch.exp(tokens.rollout_log_probs)
    match level:
        case Level.GEOMETRIC:
            return spread(row_mean(difference, tokens.lengths), tokens.lengths)
        case Level.SEQUENCE:
            return spread(row_sum(difference, tokens.lengths), tokens.lengths)
        case Level.SEGMENT:
            return spread(row_mean(difference, tokens.segment_lengths), tokens.segment_lengths)
        case _:
            return difference


def metrics(rows: Columns, config: RollConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - no percentile
    """The `actor/…` values of one batch, padded to its longest response."""

    def compute() -> dict[str, float]:
        names = [f"{what}_{level.value}" for what in ("ratio", "diff") for level in LEVELS.values()]
        values = {f"train_infer_{name}_mean@sum": _row_mean(rows[name], rows) for name in names}
        for name, rule in config.rules.items():
            passes = _everywhere(rows, name, by_row=rule.aggregation.per_row, blank=_keeps_agreement(rule))
            values[f"train_infer_{name}_mask_mean@sum"] = passes
        if config.lists_filters:
            values["train_infer_final_mask_mean"] = float(rows["kept"].sum() / (rows["tokens"].sum() + EPSILON))
        if config.level is not Level.NONE and config.upper is not None:
            by_row = config.level in BY_ROW
            values["is_weight_clipfrac@sum"] = _everywhere(rows, "capped", by_row=by_row, blank=config.upper < 1)
        return values

    return summarise(rows, compute, "actor/")


def _row_mean(sums: np.ndarray, rows: Columns) -> float:
    """Sum of row means over B+ rows."""
    return float(row_values(sums, rows["tokens"]).sum() / (np.count_nonzero(rows["tokens"]) + EPSILON))


def _keeps_agreement(rule: Rule) -> bool:
    """Whether a ratio of 1, or a difference of 0, passes."""
    at = 1.0 if rule.statistic is Statistic.RATIO else 0.0
    return (rule.lower is None or rule.lower <= at) and (rule.upper is None or at <= rule.upper)


def _everywhere(rows: Columns, name: str, *, by_row: bool, blank: bool) -> float:
    """Hits over all positions of the padded batch, divided by the valid tokens.

    A response's value stands on all its positions; single tokens under a mask of 0 count as what they hold, and
    where nothing says otherwise `blank` counts.
    """
    n, width, hits = rows["tokens"], rows["positions"].max(), rows[name]
    if by_row:
        total = np.where(n > 0, np.where(hits > 0, width, 0.0), blank * width)
    elif f"{name}.masked" in rows:
        total = hits + rows[f"{name}.masked"] + blank * (width - rows["positions"])
    else:
        total = hits + blank * (width - n)
    return float(total.sum() / (n.sum() + EPSILON))


TRAINER: Trainer[RollConfig] = Trainer(
    name="roll",
    version="2026-08",
    defaults=DEFAULTS,
    section=Section(("train_infer_correction",), also=(Section(prefix=RECOMPUTE, shared=True),)),
    parse=parse,
    correction=correction,
    warnings=warnings,
    row_columns=row_columns,
    metrics=metrics,
    quirks=QUIRKS,
    options=OPTIONS,
    counterparts=COUNTERPARTS,
    elsewhere=dict.fromkeys((RECOMPUTE, NEVER_RECOMPUTE, ESTIMATOR), ()),
    relevant=relevant,
    renamed=(
        Renamed(VARIANT, "a clamp of the ratio of the update, not of that to the engine; not looked at", lambda *_: {}),
    ),
    padded=("_mask_mean@sum", "_clipfrac@sum"),
    counts_masked=True,
)
