"""miles, August 2026: a fork of slime, with the same flags and the shared mis.py under `--custom-config-path`.

A mis.yaml alone is read as one that mis.py is called with, and logs `mis_…`. Source: reference/trainers.md 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rollout_audit.corrections.model import SAFETY_CLAMP
from rollout_audit.corrections.tokens import k3, row_sum
from rollout_audit.trainers import mis, slime
from rollout_audit.trainers.base import Counterpart, Quirk, Trainer
from rollout_audit.trainers.expression import Options
from rollout_audit.trainers.reductions import sample_mean, summarise

if TYPE_CHECKING:
    from torch import Tensor

    from rollout_audit.corrections.tokens import Tokens
    from rollout_audit.statistics.metrics import Figure, Metrics
    from rollout_audit.trainers.base import Columns, OrderStatistics

__all__ = ["TRAINER"]

LARGEST_KL = 10.0
"""What a token's k3 is clamped to in train_rollout_kl"""
NOT_RUN = "diff_of_kept_tokens"
"""Seen in slime; whether miles reduces its own difference so was not tried, and with mis.py it is not given here"""
QUIRKS = (
    Quirk(
        "clamped_kl",
        "train_rollout_kl clamps the log-ratio to ±20 and each token's value to 10, and is a mean of row means.",
        "reference/trainers.md 3B",
    ),
    *(quirk for quirk in slime.QUIRKS if quirk.name != NOT_RUN),
)
OPTIONS: Options = (
    (({},),),
    *slime.flags(f"miles.backends.training_utils.loss_hub.corrections.{slime.ICEPOP}"),
    *mis.options("examples.infra_features.train_infer_mismatch_helper"),
)


def parse(raw: Mapping[str, object]) -> slime.SlimeConfig:
    """Flags as slime's; settings of mis.py without any of them are those of its file."""
    if slime.FLAGS & raw.keys() or not mis.DEFAULTS.keys() & raw.keys():
        return slime.parse(raw, "miles")
    remarks = (slime.as_if_named(sorted(mis.DEFAULTS.keys() & raw.keys())),)
    return slime.SlimeConfig(weight=None, mis=mis.parse(raw), opsm_delta=None, bypass=False, remarks=remarks)


def row_columns(tokens: Tokens, config: slime.SlimeConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    if config.mis is not None:
        return slime.row_columns(tokens, config)
    kl = k3(tokens.log_ratio.clamp(-SAFETY_CLAMP, SAFETY_CLAMP)).clamp(max=LARGEST_KL)
    return slime.row_columns(tokens, config) | {"kl": row_sum(kl, tokens.lengths)}


def metrics(rows: Columns, config: slime.SlimeConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - no percentile
    """The values of one batch."""

    def compute() -> dict[str, Figure]:
        values = slime.figures(rows, config)
        if config.mis is None:
            return values | {"train_rollout_kl": sample_mean(rows["kl"], rows)}
        return {name: value for name, value in values.items() if name != "train_rollout_logprob_abs_diff"}

    return summarise(rows, compute, "")


TRAINER: Trainer[slime.SlimeConfig] = Trainer(
    name="miles",
    version="2026-08",
    defaults=slime.DEFAULTS,
    section=slime.SECTION,
    parse=parse,
    correction=slime.correction,
    warnings=slime.warnings,
    row_columns=row_columns,
    metrics=metrics,
    quirks=QUIRKS,
    options=OPTIONS,
    counterparts={
        **slime.COUNTERPARTS,
        "train_rollout_kl": Counterpart("overall.kl_k3", "clamped_kl"),
    },
    syntax="dashed flags",
    file_keys=slime.FILE_KEYS,
    by_flags=slime.BY_FLAGS,
    file_setting=slime.CONFIG_FILE,
    renamed=slime.RENAMED,
)
