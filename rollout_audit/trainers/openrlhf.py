"""OpenRLHF, August 2026: `--algo.advantage.is_correction_…`, of which `vllm_kl` alone is logged.

Source: reference/trainers.md 7, conformance/MORE.md (openrlhf/models/loss.py, cli/train_ppo_ray.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Rule,
    Statistic,
    Weight,
)
from rollout_audit.corrections.tokens import Tokens, row_sum
from rollout_audit.errors import ConfigError
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers.base import Columns, Counterpart, OrderStatistics, Quirk, Renamed, Trainer, replaced_by
from rollout_audit.trainers.expression import MISSING, Fill, Options, lower, rule_lower, rule_upper, upper
from rollout_audit.trainers.otherwise import reweighed
from rollout_audit.trainers.reductions import summarise
from rollout_audit.trainers.section import Section
from rollout_audit.trainers.settings import Settings, positive

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TRAINER", "OpenRlhfConfig"]

PREFIX = "is_correction_"
ENABLED, TYPE, THRESHOLD = f"{PREFIX}enable", f"{PREFIX}type", f"{PREFIX}threshold"
LOSS = "policy_loss_type"
DEFAULTS: dict[str, object] = {ENABLED: False, TYPE: "tis", THRESHOLD: [0.5, 5.0], LOSS: "ppo"}
LOSSES: dict[str | None, bool] = {"ppo": False, "gspo": True}
SEQUENCE_MASK = "seq-mask-tis"
TYPES: dict[str | None, Bound] = {"tis": Bound.CLIP, "icepop": Bound.MASK, SEQUENCE_MASK: Bound.NONE}

QUIRKS = (
    Quirk(
        "two_sided_tis",
        "tis clips on both sides: ratios below the lower threshold are raised to it.",
        "reference/trainers.md 7A",
        instead=lambda config: (
            reweighed(correction(config), bound=Bound.TRUNCATE, lower=None) if config.bound is Bound.CLIP else None
        ),
    ),
    Quirk(
        "raw_weights_of_kept_sequences",
        "seq-mask-tis leaves token weights of kept sequences raw; its help text speaks of a clamp.",
        "reference/trainers.md 7A",
        instead=lambda config: (
            reweighed(correction(config), bound=Bound.CLIP, lower=config.lower, upper=config.upper)
            if config.bound is Bound.NONE
            else None
        ),
    ),
    Quirk(
        "wide_geometric_bounds",
        "The default thresholds 0.5 and 5 bound a geometric mean with seq-mask-tis and hardly ever reject.",
        "reference/trainers.md 7A",
        told_by="idle_bound",
        when=lambda config: config.bound is Bound.NONE and config.lower < 0.9 and config.upper > 1.1,
    ),
    Quirk(
        "masking_is_zeroing",
        "Tokens that icepop or seq-mask-tis drop have weight 0 and stay in the denominator of the loss.",
        "reference/trainers.md 7A",
    ),
    Quirk(
        "ppo_only",
        "The weights multiply the loss of policy_loss_type ppo alone; gspo builds its own ratio on the rollout policy.",
        "reference/trainers.md 7A",
        untold="Which loss the run uses stands in no setting of the correction, and in no dump",
    ),
    Quirk(
        "signed_kl",
        "vllm_kl is the mean of rollout minus trainer log-prob: errors of both signs cancel.",
        "reference/trainers.md 7B",
    ),
    Quirk(
        "implied_enable",
        "Where a fragment gives a type or a threshold and no is_correction_enable, it is read as given.",
        "conformance/MORE.md, openrlhf",
        untold="How the settings are read is said when they are",
    ),
)


def _both(low: Fill, high: Fill) -> Fill:
    def filled(correction: Correction) -> object:
        bounds = [low(correction), high(correction)]
        return MISSING if MISSING in bounds else bounds

    return filled


OPTIONS: Options = (
    (
        (
            {ENABLED: False},
            {ENABLED: True, TYPE: "tis", THRESHOLD: _both(lower, upper)},
            *(
                {ENABLED: True, TYPE: name, THRESHOLD: _both(rule_lower(own), rule_upper(own))}
                for name, own in {"icepop": Aggregation.TOKEN, SEQUENCE_MASK: Aggregation.SEQ_MEAN}.items()
            ),
        ),
    ),
)
COUNTERPARTS = {"vllm_kl": Counterpart("overall.kl_k1", "signed_kl")}

RENAMED = (
    replaced_by("enable_vllm_is_correction", ENABLED),
    replaced_by("vllm_is_truncated_threshold", THRESHOLD),
    replaced_by("vllm_is_correction_type", TYPE),
    Renamed("use_icepop", f"now {TYPE} icepop", lambda on, _: {TYPE: "icepop"} if on else {}, yields_to=(TYPE,)),
)


@dataclass(frozen=True, slots=True)
class OpenRlhfConfig:
    """The parsed options; `bound` None where the correction is off, NONE for seq-mask-tis."""

    bound: Bound | None
    lower: float
    upper: float
    remarks: tuple[str, ...]


def parse(raw: Mapping[str, object]) -> OpenRlhfConfig:
    """Flat settings → configuration (ConfigError: unknown type, not two positive ascending thresholds)."""
    settings = Settings.read(raw, DEFAULTS)
    implied = ENABLED not in raw and bool(raw.keys() - {LOSS})
    bound = settings.choice(TYPE, TYPES)
    lower, upper = _thresholds(settings.values[THRESHOLD])
    on, gspo = implied or settings.flag(ENABLED), settings.choice(LOSS, LOSSES)
    assumed = f"{ENABLED}: not given and false by default, where nothing is weighed; read as if it were true"
    unweighed = (
        f"{LOSS} = 'gspo': its own ratio is taken to the engine, which is not weighed here, and {TYPE} does nothing"
    )
    return OpenRlhfConfig(
        bound=bound if on and not gspo else None,
        lower=lower,
        upper=upper,
        remarks=tuple(text for text, said in ((assumed, implied), (unweighed, on and gspo)) if said),
    )


def relevant(settings: Mapping[str, object]) -> Mapping[str, object]:
    """The usual loss says nothing of a correction."""
    return {key: value for key, value in settings.items() if (key, value) != (LOSS, DEFAULTS[LOSS])}


def _thresholds(value: object) -> tuple[float, float]:
    if not (isinstance(value, list | tuple) and len(value) == 2):
        raise ConfigError(THRESHOLD, value, "expected two numbers, lower and upper")
    lower, upper = (positive(THRESHOLD, bound) for bound in value)
    if lower > upper:
        raise ConfigError(THRESHOLD, value, f"lower bound {lower:.12g} above the upper bound {upper:.12g}")
    return lower, upper


def correction(config: OpenRlhfConfig) -> Correction:
    """What the options do, in the tool's vocabulary."""
    if config.bound is None:
        return Correction(denominator=Denominator.ORIGINAL)
    if config.bound is Bound.NONE:
        rule = Rule(Statistic.RATIO, Aggregation.SEQ_MEAN, config.lower, config.upper, clamp=None)
        return Correction(Weight(Level.TOKEN, clamp=None), (rule,), denominator=Denominator.ORIGINAL)
    weight = Weight(Level.TOKEN, config.bound, config.lower, config.upper, clamp=None)
    return Correction(weight, denominator=Denominator.ORIGINAL)


def warnings(config: OpenRlhfConfig) -> tuple[str, ...]:
    """Token bounds on a geometric mean, bounds that leave 1 out, what is assumed."""
    found = list(config.remarks)
    if config.bound is Bound.NONE and config.lower < 0.9 and config.upper > 1.1:
        found.append(
            f"{THRESHOLD} = [{config.lower:.12g}, {config.upper:.12g}]: wide for a geometric mean, hardly ever rejects"
        )
    if config.bound is not None and not config.lower <= 1 <= config.upper:
        found.append(f"{THRESHOLD} = [{config.lower:.12g}, {config.upper:.12g}]: leaves out where the policies agree")
    return tuple(found)


def row_columns(tokens: Tokens, config: OpenRlhfConfig) -> dict[str, Tensor]:  # noqa: ARG001 - one signature
    """float64 [rows] columns of one chunk."""
    return {"tokens": tokens.lengths.to(torch.float64), "log_ratio": row_sum(tokens.log_ratio, tokens.lengths)}


def metrics(rows: Columns, config: OpenRlhfConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - one signature
    """`vllm_kl` of one batch, whatever is corrected."""
    return summarise(rows, lambda: {"vllm_kl": -rows["log_ratio"].sum() / rows["tokens"].sum()}, "")


TRAINER: Trainer[OpenRlhfConfig] = Trainer(
    name="openrlhf",
    version="2026-08",
    defaults=DEFAULTS,
    section=Section(("algo", "advantage"), prefix=PREFIX, also=(Section(("actor",), prefix=LOSS),)),
    elsewhere={LOSS: ("actor",)},
    relevant=relevant,
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
