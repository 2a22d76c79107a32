"""AReaL, May 2026: `actor.rejection_sampling` and M2PO, logged as `ppo_actor/update/…`.

Source: reference/trainers.md 9 (areal/utils/functional/functional.py, trainer/ppo/actor.py), conformance/MORE.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from rollout_audit.corrections.direct import apply, remaining_tokens
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
from rollout_audit.corrections.tokens import Tokens, row_max, row_min, row_sum
from rollout_audit.errors import ConfigError
from rollout_audit.statistics.metrics import Figure, Metrics
from rollout_audit.trainers.base import Columns, Counterpart, OrderStatistics, Quirk, Renamed, Trainer
from rollout_audit.trainers.columns import counted
from rollout_audit.trainers.expression import Axis, Options, lower, or_else, rule_bound, rule_lower, rule_upper, upper
from rollout_audit.trainers.otherwise import reruled, reweighed
from rollout_audit.trainers.reductions import largest, smallest, summarise
from rollout_audit.trainers.section import Section
from rollout_audit.trainers.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TRAINER"]

REJECTION: dict[str, object] = {
    "level": "token",
    "action": "mask",
    "metric": "ratio",
    "agg": "mean",
    "upper": 5.0,
    "lower": None,
}
DEFAULTS: dict[str, object] = {"rejection_sampling": None, "m2_threshold": None}
SAMPLING = "rejection_sampling"
DECOUPLED, PROXIMAL = "use_decoupled_loss", "prox_logp_method"
PROXIMALS: dict[str | None, str] = {
    "recompute": "",
    "metrics": "",
    "loglinear": "the proximal log-probs are interpolated between those of the engine and of the current policy; "
    "old_log_probs of the dump must be these for the weights to be those of the run",
}
"""What is to be said of how AReaL comes by prox_logp; metrics interpolates for the log alone"""
CAP, WEIGHT_MODE = "behave_imp_weight_cap", "behave_imp_weight_mode"
OLD_MODES: dict[str | None, dict[str, object] | None] = {
    "disabled": None,
    "token_mask": {"level": "token", "action": "mask"},
    "token_truncate": {"level": "token", "action": "clamp"},
    "sequence_mask": {"level": "sequence", "action": "mask"},
    "sequence_truncate": {"level": "sequence", "action": "clamp"},
}
"""Of behave_imp_weight_mode; the ratio of a sequence was the geometric mean then as now"""
LEVELS: dict[str | None, bool] = {"token": False, "sequence": True}
ACTIONS: dict[str | None, bool] = {"mask": False, "clamp": True}
METRICS: dict[str | None, Statistic] = {
    "ratio": Statistic.RATIO,
    "kl_k1": Statistic.K1,
    "kl_k2": Statistic.K2,
    "kl_k3": Statistic.K3_REVERSE,
}
AGGREGATIONS: dict[str | None, Aggregation] = {
    "sum": Aggregation.SEQ_SUM,
    "mean": Aggregation.SEQ_MEAN,
    "max": Aggregation.SEQ_MAX,
}

QUIRKS = (
    Quirk(
        "k1_is_log_ratio",
        "kl_k1 is +log ρ, the opposite sign of verl's k1, and behave_approx_kl is minus the usual KL, over the tokens "
        "whose weight is above 0.",
        "reference/trainers.md 9A and 9B",
    ),
    Quirk(
        "k3_of_the_inverse",
        "kl_k3 is 1/ρ − 1 + log ρ, while its help text says ρ − 1 − log ρ.",
        "reference/trainers.md 9A",
        instead=lambda config: reruled(
            correction(config),
            lambda rule: replace(rule, statistic=Statistic.K3) if rule.statistic is Statistic.K3_REVERSE else rule,
        ),
    ),
    Quirk(
        "geometric_weight",
        "At level sequence with metric ratio the weight is the geometric mean ratio whatever agg is; with a KL metric "
        "it is the token's own ratio.",
        "reference/trainers.md 9A",
        instead=lambda config: _of_its_aggregate(config),
    ),
    Quirk(
        "clamp_of_another_ratio",
        "action clamp with agg sum or max tests the product or the largest ratio and clamps the geometric mean: where "
        "that lies inside the bounds nothing happens.",
        "conformance/MORE.md, correction 6",
        instead=lambda config: _clamping_what_it_tests(config),
    ),
    Quirk(
        "filtered_means_changed",
        "With action clamp rs_filtered_fraction counts tokens whose weight changed, not those out of bounds.",
        "conformance/MORE.md, correction 6",
    ),
    Quirk(
        "vanishing_keys",
        "behave_… are over tokens with a weight above 0, and not logged at all where none is left.",
        "conformance/MORE.md, correction 7",
    ),
    Quirk(
        "denominators_differ",
        "n_valid_tokens and the denominator of the loss shrink with M2PO and not with rejection.",
        "reference/trainers.md 9A",
        told_by="gradient_scale",
    ),
    Quirk(
        "m2po_by_micro_batch",
        "M2PO sorts the tokens of one micro-batch; here a step (or the dump) is one, and of equal d² the tokens that "
        "come first stay.",
        "reference/trainers.md 9A",
        untold="A dump does not tell the micro-batches",
    ),
    Quirk(
        "no_weight_by_default",
        "Without rejection_sampling, or without use_decoupled_loss, the ratio to the engine is not applied at all.",
        "reference/trainers.md 9A",
        instead=lambda config: (
            replace(correction(config), weight=Weight(Level.TOKEN, clamp=None)) if config.rejection is None else None
        ),
    ),
)


def _of_old_mode(value: object, settings: Mapping[str, object]) -> Mapping[str, object]:
    """`rejection_sampling` for a mode with the cap beside it; the mode was translated before the cap."""
    if SAMPLING in settings:
        return {}
    old = Settings({WEIGHT_MODE: value}).choice(WEIGHT_MODE, OLD_MODES)
    if old is None:
        return {"rejection_sampling": None}
    cap = settings.get(CAP, REJECTION["upper"])
    if cap is None:
        raise ConfigError(CAP, None, "was a raw ratio without a bound; rejection_sampling wants a number for upper")
    return {"rejection_sampling": {**old, "metric": "ratio", "upper": cap}}


def _of_old_cap(value: object, settings: Mapping[str, object]) -> Mapping[str, object]:
    return _of_old_mode("token_mask", {CAP: value, **settings})


RENAMED = (
    Renamed(
        WEIGHT_MODE,
        "removed; now level and action of rejection_sampling, translated",
        _of_old_mode,
        yields_to=(SAMPLING,),
    ),
    Renamed(
        CAP,
        "removed; now upper of rejection_sampling with metric ratio, translated",
        _of_old_cap,
        yields_to=(SAMPLING,),
    ),
)
"""In this order: the cap alone had the mode token_mask"""


def _rejection(**keys: object) -> dict[str, object]:
    return {DECOUPLED: True, **{f"rejection_sampling.{key}": value for key, value in keys.items()}}


def _tests(level: str, agg: str, own: Aggregation) -> Axis:
    """What may be tested at one level: ratios, which may also be clamped, and three divergences."""
    place = {"level": level, "agg": agg}
    mirrored = Aggregation.SEQ_MIN if own is Aggregation.SEQ_MAX else own
    divergences = {"kl_k2": Statistic.K2, "kl_k3": Statistic.K3_REVERSE}
    return (
        _rejection(**place, action="mask", metric="ratio",
                   upper=rule_upper(own), lower=or_else(rule_lower(own), None)),
        _rejection(**place, action="clamp", metric="ratio", upper=upper, lower=or_else(lower, None)),
        _rejection(**place, action="mask", metric="kl_k1",
                   upper=rule_bound(Statistic.K1, mirrored, "lower", scale=-1.0),
                   lower=or_else(rule_bound(Statistic.K1, mirrored, "upper", scale=-1.0), None)),
        *(
            _rejection(**place, action="mask", metric=name, upper=rule_bound(statistic, own),
                       lower=or_else(rule_bound(statistic, own, "lower"), None))
            for name, statistic in divergences.items()
        ),
    )  # fmt: skip


OPTIONS: Options = (
    (
        (
            {"rejection_sampling": None},
            *_tests("token", "mean", Aggregation.TOKEN),
            *(test for agg, own in AGGREGATIONS.items() for test in _tests("sequence", str(agg), own)),
        ),
        ({}, {DECOUPLED: True, "m2_threshold": rule_bound(Statistic.K2, Aggregation.BATCH_MEAN, scale=2.0)}),
    ),
)
COUNTERPARTS = {
    "ppo_actor/update/behave_approx_kl/avg": Counterpart("overall.kl_k1", "k1_is_log_ratio"),
    "ppo_actor/update/behave_imp_weight/avg": Counterpart("bounded.weight_mean", "vanishing_keys"),
    "ppo_actor/update/rs_filtered_fraction": Counterpart(
        "kept.masked_fraction", "filtered_means_changed", when=lambda correction: not correction.batch_rules
    ),
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """`rejection_sampling`."""

    sequence: bool
    clamps: bool
    statistic: Statistic
    aggregation: Aggregation
    lower: float | None
    upper: float


@dataclass(frozen=True, slots=True)
class ArealConfig:
    """The two parsed settings of `actor`."""

    rejection: Rejection | None
    m2_threshold: float | None
    remarks: tuple[str, ...] = ()

    @property
    def m2_rules(self) -> tuple[Rule, ...]:
        """M2 is d², twice k2."""
        if self.m2_threshold is None:
            return ()
        return (Rule(Statistic.K2, Aggregation.BATCH_MEAN, None, self.m2_threshold / 2, clamp=None),)


def parse(raw: Mapping[str, object]) -> ArealConfig:
    """Settings of `actor` → configuration; the keys of `rejection_sampling` may also stand beside `m2_threshold`.

    ConfigError: what RejectionSamplingConfig refuses, removed keys, bounds that no value can meet.
    """
    flat = {key: value for key, value in raw.items() if key in REJECTION}
    own = {key: value for key, value in raw.items() if key not in flat}
    settings = Settings.read(own, {**DEFAULTS, DECOUPLED: True, PROXIMAL: "recompute"})
    nested = settings.values["rejection_sampling"]
    if nested is not None and not isinstance(nested, Mapping):
        raise ConfigError("rejection_sampling", nested, f"expected settings: {', '.join(REJECTION)}")
    listed = nested is not None or bool(flat)
    config = ArealConfig(
        rejection=_parsed(Settings.read({**(nested or {}), **flat}, REJECTION)) if listed else None,
        m2_threshold=settings.optional_positive("m2_threshold"),
    )
    config = _decoupled(config, applies=settings.flag(DECOUPLED), given=DECOUPLED in raw)
    said = settings.choice(PROXIMAL, PROXIMALS) if settings.flag(DECOUPLED) else ""
    about = (f"{PROXIMAL} = {settings.values[PROXIMAL]!r}: {said}",) if said else ()
    return replace(config, remarks=(*config.remarks, *about))


def _decoupled(config: ArealConfig, *, applies: bool, given: bool) -> ArealConfig:
    """Without the decoupled loss both policies are one: nothing is weighed, nothing masked."""
    set_up = config.rejection is not None or config.m2_threshold is not None
    if not applies:
        idle = f"{DECOUPLED} = False: rejection_sampling and m2_threshold do nothing without it"
        return ArealConfig(rejection=None, m2_threshold=None, remarks=(idle,) if set_up else ())
    assumed = f"{DECOUPLED}: not given and false by default, where nothing is weighed; read as if it were true"
    return replace(config, remarks=(assumed,) if set_up and not given else ())


def _parsed(settings: Settings) -> Rejection:
    statistic, clamps = settings.choice("metric", METRICS), settings.choice("action", ACTIONS)
    if clamps and statistic is not Statistic.RATIO:
        raise ConfigError("action", "clamp", f"AReaL clamps ratios only, not {settings.values['metric']}")
    lower, upper = _bounds(settings, statistic)
    return Rejection(
        sequence=settings.choice("level", LEVELS),
        clamps=clamps,
        statistic=statistic,
        aggregation=settings.choice("agg", AGGREGATIONS),
        lower=lower,
        upper=upper,
    )


def _bounds(settings: Settings, statistic: Statistic) -> tuple[float | None, float]:
    lower, upper = settings.optional_number("lower"), settings.number("upper")
    if statistic is Statistic.RATIO and not upper > 1:
        raise ConfigError("upper", settings.values["upper"], "AReaL wants a bound above 1 for a ratio")
    if statistic is Statistic.RATIO and lower is not None and lower < 0:
        raise ConfigError("lower", settings.values["lower"], "a bound on a ratio must not be negative")
    if statistic in (Statistic.K2, Statistic.K3_REVERSE) and not upper > 0:
        raise ConfigError("upper", settings.values["upper"], f"{settings.values['metric']} is never below 0")
    if lower is not None and lower > upper:
        raise ConfigError("lower", settings.values["lower"], f"above upper = {upper:.12g}")
    return (None if statistic is Statistic.RATIO and lower == 0 else lower), upper


def correction(config: ArealConfig) -> Correction:
    """What the configuration does, in the tool's vocabulary."""
    if config.rejection is None:
        return Correction(rules=config.m2_rules, denominator=Denominator.KEPT)
    over = Over.REMAINING if config.m2_rules else Over.EVERY
    rules = () if config.rejection.clamps else (_rule(config.rejection, over),)
    return Correction(
        weight=_weight(config.rejection, over),
        rules=(*config.m2_rules, *rules),
        denominator=Denominator.REMAINING if config.m2_rules else Denominator.ORIGINAL,
    )


def _rule(rejection: Rejection, over: Over) -> Rule:
    lower, upper, aggregation = rejection.lower, rejection.upper, rejection.aggregation
    if not rejection.sequence:
        aggregation = Aggregation.TOKEN
    if rejection.statistic is not Statistic.K1:
        return Rule(rejection.statistic, aggregation, lower, upper, clamp=None, over=over)
    # k1 is −d here and +d in AReaL: the bounds change sides, and the largest becomes the smallest
    mirrored = Aggregation.SEQ_MIN if aggregation is Aggregation.SEQ_MAX else aggregation
    return Rule(Statistic.K1, mirrored, -upper, None if lower is None else -lower, clamp=None, over=over)


def _weight(rejection: Rejection, over: Over) -> Weight:
    geometric = rejection.sequence and rejection.statistic is Statistic.RATIO
    level = Level.GEOMETRIC if geometric else Level.TOKEN
    over = over if geometric else Over.EVERY
    if not rejection.clamps:
        return Weight(level, clamp=None, over=over)
    bound = Bound.TRUNCATE if rejection.lower is None else Bound.CLIP
    outside = _rule(rejection, over) if _tests_another_ratio(rejection) else None
    return Weight(level, bound, rejection.lower, rejection.upper, clamp=None, over=over, outside=outside)


def _tests_another_ratio(rejection: Rejection) -> bool:
    """Whether the tested ratio may be inside while the geometric mean is outside the bounds.

    Above 1 it cannot: the product and the largest ratio lie further out than the mean. Below, the largest may.
    """
    if not rejection.sequence or rejection.lower is None:
        return False
    of_sum = rejection.aggregation is Aggregation.SEQ_SUM and rejection.lower > 1
    return of_sum or rejection.aggregation is Aggregation.SEQ_MAX


def _of_its_aggregate(config: ArealConfig) -> Correction | None:
    """Responses weighed by what `metric` and `agg` are about."""
    rejection = config.rejection
    if rejection is None or rejection.clamps or not rejection.sequence:
        return None
    if rejection.statistic is not Statistic.RATIO:
        return reweighed(correction(config), level=Level.GEOMETRIC)
    product = rejection.aggregation is Aggregation.SEQ_SUM
    return reweighed(correction(config), level=Level.SEQUENCE) if product else None


def _clamping_what_it_tests(config: ArealConfig) -> Correction | None:
    """The product clamped where it is tested; the mean, where it is the largest ratio that is tested."""
    rejection = config.rejection
    if rejection is None or not rejection.clamps or not rejection.sequence:
        return None
    level = Level.SEQUENCE if rejection.aggregation is Aggregation.SEQ_SUM else Level.GEOMETRIC
    return reweighed(correction(config), level=level, outside=None)


def warnings(config: ArealConfig) -> tuple[str, ...]:
    """A clamp that tests one ratio and clamps another, weights without a bound."""
    return (*_of_rejection(config.rejection), *config.remarks)


def _of_rejection(rejection: Rejection | None) -> tuple[str, ...]:
    if rejection is None:
        return ()
    if rejection.clamps and rejection.sequence and rejection.aggregation is not Aggregation.SEQ_MEAN:
        agg = rejection.aggregation.value.removeprefix("seq_")
        return (
            f"agg = {agg!r}: action clamp then tests that ratio and clamps the geometric mean, which may be inside",
        )
    if rejection.statistic is not Statistic.RATIO:
        return (f"metric = 'kl_{rejection.statistic.value[:2]}': weights are raw ratios without any bound",)
    return ()


def row_columns(tokens: Tokens, config: ArealConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    its, lengths = correction(config), tokens.lengths
    remaining = remaining_tokens(Correction(rules=config.m2_rules), tokens)
    columns = {"tokens": lengths.double(), "valid": counted(remaining, lengths)}
    if config.rejection is None:
        return columns
    applied = apply(its, tokens)
    filtered = applied.bounded != applied.raw if config.rejection.clamps else ~applied.kept
    weighed = applied.kept & (applied.bounded > 0)
    columns |= {"filtered": counted(remaining & filtered, lengths), "weighed": counted(weighed, lengths)}
    return (
        columns | _over("weight", applied.bounded, weighed, lengths) | _over("kl", tokens.log_ratio, weighed, lengths)
    )


def _over(name: str, values: Tensor, chosen: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """float64 [rows] sum, maximum and minimum of the chosen tokens."""
    return {
        name: row_sum(values.masked_fill(~chosen, 0.0), lengths),
        f"{name}.max": row_max(values.masked_fill(~chosen, -torch.inf), lengths),
        f"{name}.min": row_min(values.masked_fill(~chosen, torch.inf), lengths),
    }


def metrics(rows: Columns, config: ArealConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - no percentile
    """The `ppo_actor/update/…` values of one batch, one micro-batch."""

    def compute() -> dict[str, Figure]:
        valid = rows["valid"].sum()
        values: dict[str, Figure] = {"n_valid_tokens": float(valid)}
        if config.rejection is not None:
            values["rs_filtered_fraction"] = float(rows["filtered"].sum() / valid)
            values["rs_filtered_fraction__count"] = 1.0
            values |= _behaviour(rows)
        return values

    return summarise(rows, compute, "ppo_actor/update/")


def _behaviour(rows: Columns) -> dict[str, Figure]:
    left = rows["weighed"].sum()
    values: dict[str, Figure] = {"unclipped_behave_tokens": float(left)}
    if not left and rows["tokens"].sum():
        return values
    for name, column in (("behave_imp_weight", "weight"), ("behave_approx_kl", "kl")):
        values[f"{name}/avg"] = float(rows[column].sum() / left)
        values[f"{name}/max"] = largest(rows[f"{column}.max"])
        values[f"{name}/min"] = smallest(rows[f"{column}.min"])
    return values


TRAINER: Trainer[ArealConfig] = Trainer(
    name="areal",
    version="2026-05",
    defaults=DEFAULTS,
    section=Section(("actor",), shared=True),
    parse=parse,
    correction=correction,
    warnings=warnings,
    row_columns=row_columns,
    metrics=metrics,
    optional=frozenset((*REJECTION, DECOUPLED, PROXIMAL)),
    renamed=RENAMED,
    quirks=QUIRKS,
    options=OPTIONS,
    counterparts=COUNTERPARTS,
)
