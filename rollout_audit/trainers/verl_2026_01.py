"""verl, January 2026: the settings of today without IcePop, and weights logged before truncation.

Source: reference/trainers.md 1, "verl JAN"; conformance/MORE.md, correction 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rollout_audit.errors import ConfigError
from rollout_audit.trainers import verl, verl_losses
from rollout_audit.trainers.base import Counterpart, Quirk, Trainer, weighs
from rollout_audit.trainers.verl_options import OPTIONS
from rollout_audit.trainers.verl_renamed import ELSEWHERE, RENAMED, SECTION
from rollout_audit.trainers.verl_weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

    from rollout_audit.corrections.tokens import Tokens
    from rollout_audit.trainers.thresholds import Band

__all__ = ["TRAINER"]

REPLACED = {"ess_after_bounding", "empty_weights", *(quirk.name for quirk in verl_losses.QUIRKS)}
QUIRKS = (
    Quirk(
        "raw_weights",
        "rollout_is_mean, _max, _min and _seq_* are of the weights before truncation.",
        "conformance/MORE.md, correction 3",
    ),
    Quirk(
        "ess_of_clamped",
        "std and effective sample size are of weights clamped into [1/T, T], which lifts the latter.",
        "conformance/MORE.md, correction 3",
    ),
    *(quirk for quirk in verl.QUIRKS if quirk.name not in REPLACED),
)

COUNTERPARTS = {
    **verl.COUNTERPARTS,
    "rollout_corr/rollout_is_mean": Counterpart("bounded.weight_mean", "raw_weights", when=weighs),
    "rollout_corr/rollout_is_eff_sample_size": Counterpart("raw.ess", "ess_of_clamped", when=weighs),
}


def parse(raw: Mapping[str, object]) -> verl.VerlConfig:
    """As `verl`, where a band is refused: rollout_is_threshold was one float."""
    config = verl.parse(raw)
    if config.icepop:
        value = raw["rollout_is_threshold"]
        raise ConfigError("rollout_is_threshold", value, "one number in verl 2026-01; bands came later")
    if config.policy.mode in verl_losses.DIVERGENCES:
        raise ConfigError("loss_mode", config.policy.mode, "not in verl 2026-01; --trainer verl reads it")
    return config


def row_columns(tokens: Tokens, config: verl.VerlConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    return verl.columns_of(tokens, config, _raw_weights)


def _raw_weights(raw: Tensor, band: Band) -> Weights:
    return Weights(raw, shown=raw, spread=raw.clamp(band.lower_or_reciprocal, band.upper))


TRAINER: Trainer[verl.VerlConfig] = Trainer(
    name="verl-2026-01",
    version="2026-01",
    defaults=verl.DEFAULTS,
    section=SECTION,
    parse=parse,
    correction=verl.correction,
    warnings=verl.warnings,
    row_columns=row_columns,
    metrics=verl.metrics,
    quirks=QUIRKS,
    options=OPTIONS,
    counterparts=COUNTERPARTS,
    elsewhere=ELSEWHERE,
    renamed=RENAMED,
    relevant=verl_losses.relevant,
)
