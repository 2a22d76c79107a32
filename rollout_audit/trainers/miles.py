"""miles, August 2026: the shared mis.py under `--custom-config-path`, logged as `mis_…`.

Source: reference/trainers.md 3.
"""

from __future__ import annotations

from rollout_audit.trainers import mis
from rollout_audit.trainers.base import Trainer
from rollout_audit.trainers.configfile import Section

__all__ = ["TRAINER"]

TRAINER: Trainer[mis.MisConfig] = Trainer(
    name="miles",
    version="2026-08",
    defaults=mis.DEFAULTS,
    section=Section(),
    parse=mis.parse,
    correction=mis.correction,
    warnings=mis.warnings,
    row_columns=mis.row_columns,
    metrics=mis.metrics,
    quirks=mis.QUIRKS,
    options=mis.OPTIONS,
    counterparts=mis.COUNTERPARTS,
)
