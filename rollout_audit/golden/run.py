"""The run's own trainer and configuration: its correction and what it would have logged, held to a golden file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollout_audit.audit.selection import ConfigSource, config_settings
from rollout_audit.errors import ConfigError, ReportError, UsageError
from rollout_audit.golden.model import Golden
from rollout_audit.trainers.registry import get_trainer

__all__ = ["TrainerRun", "recorded_run", "trainer_run"]


@dataclass(frozen=True, slots=True)
class TrainerRun:
    """Whose metrics and correction are checked."""

    trainer: str
    settings: Mapping[str, Any]
    """every setting in the trainer's keys of today, defaults written out: one that changes is another configuration"""

    @property
    def preset(self) -> str:
        """What its correction is called among the presets."""
        return f"{self.trainer}-config"


def trainer_run(trainer: str, config: ConfigSource) -> TrainerRun:
    """A trainer with its settings, as a golden file records them.

    Raises:
        ConfigError: the trainer itself would refuse the settings.
        UsageError: no such trainer, or the source cannot be read as its configuration.
    """
    dialect = get_trainer(trainer)
    settings = {**dialect.defaults, **config_settings(trainer, config)}
    dialect.configure(settings)
    return TrainerRun(trainer, json.loads(json.dumps(settings, sort_keys=True)))


def recorded_run(golden: Golden, file: str) -> TrainerRun | None:
    """The run that a golden file was made of; None where it records none.

    Raises:
        ReportError: its settings are not read any more.
    """
    trainer, config = golden.settings.trainer, golden.settings.config
    if trainer is None:
        return None
    try:
        return trainer_run(trainer, config or {})
    except (ConfigError, UsageError) as error:
        raise ReportError(
            f"{file}: its settings of {trainer} are not read any more ({error}); give --trainer and --config"
        ) from error
