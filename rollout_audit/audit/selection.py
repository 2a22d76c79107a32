"""What a caller may name a correction by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout_audit.corrections.describe import describe, effective_intervals
from rollout_audit.corrections.model import Correction
from rollout_audit.corrections.presets import PRESETS, Preset, as_presets, preset
from rollout_audit.errors import UsageError
from rollout_audit.trainers.base import Trainer
from rollout_audit.trainers.registry import get_trainer

__all__ = [
    "ConfigSource",
    "as_correction",
    "config_settings",
    "config_text",
    "config_warnings",
    "configure",
    "named_presets",
    "run_preset",
]

ConfigSource = Mapping[str, object] | str | Path


def configure(trainer: str, source: ConfigSource) -> tuple[Trainer[Any], Any]:
    """A trainer and its configuration from its own keys, a file, or the name of a preset of its own.

    Raises:
        ConfigError: the trainer itself would refuse the settings.
        UsageError: no such trainer, or the source cannot be read as its configuration.
    """
    dialect = get_trainer(trainer)
    return dialect, dialect.configure(_own(trainer, source))


def config_warnings(trainer: str, source: ConfigSource) -> tuple[str, ...]:
    """Settings that the trainer takes and that are probably not meant, one line each."""
    dialect, config = configure(trainer, source)
    return (*dialect.settings(_own(trainer, source))[1], *dialect.warnings(config))


def config_settings(trainer: str, source: ConfigSource) -> Mapping[str, object]:
    """The settings that a configuration gives, in the trainer's keys of today; what is absent has its default."""
    return get_trainer(trainer).settings(_own(trainer, source))[0]


def config_text(trainer: str, source: ConfigSource) -> str:
    """What a configuration was read as, in one line: its parsed bands and the ratios that they let through."""
    dialect, config = configure(trainer, source)
    correction = dialect.correction(config)
    intervals = effective_intervals(correction)
    let_through = f" (lets through {'; '.join(intervals)})" if intervals else ""
    return f"{dialect.name} {dialect.version} reads: {describe(correction)}{let_through}"


def run_preset(trainer: str, source: ConfigSource) -> Preset:
    """A run's own configuration, as a preset called `TRAINER-config`."""
    dialect, config = configure(trainer, source)
    use = "The run's own configuration."
    warnings = config_warnings(trainer, source)
    origin = f"{dialect.name} {dialect.version}, the run's"
    return Preset(f"{trainer}-config", dialect.correction(config), origin, use, warnings=warnings)


def named_presets(
    names: Sequence[str | Preset], trainer: str | None = None, config: ConfigSource | None = None
) -> tuple[Preset, ...]:
    """What was asked for by name, each once: the run's own configuration, then presets.

    Raises:
        UsageError: no such preset or trainer, or a configuration without its trainer.
        ConfigError: the trainer itself would refuse the configuration.
    """
    if trainer is None and config is not None:
        raise UsageError("a configuration needs the trainer's name: whose keys are these?")
    own = () if trainer is None else (run_preset(trainer, {} if config is None else config),)
    given = [*own, *as_presets(names)]
    return tuple({one.name: one for one in given}.values())


def as_correction(given: ConfigSource | Correction | Preset, trainer: str | None = None) -> Correction:
    """The correction that a preset's name, a preset, a trainer's configuration or a correction stands for."""
    if isinstance(given, Correction):
        return given
    if isinstance(given, Preset):
        return given.correction
    if trainer is not None:
        dialect, config = configure(trainer, given)
        return dialect.correction(config)
    if isinstance(given, str):
        return preset(given).correction
    raise UsageError("a trainer's configuration needs the trainer's name: trainer='verl'")


def _own(trainer: str, source: ConfigSource) -> ConfigSource:
    """The configuration that a preset's name stands for, or the source as it is."""
    by_name = isinstance(source, str) and source in PRESETS
    return _preset_config(PRESETS[str(source)], trainer) if by_name else source


def _preset_config(chosen: Preset, trainer: str) -> Mapping[str, object]:
    if not chosen.origin.startswith(trainer):
        raise UsageError(f"preset {chosen.name!r} is in the keys of {chosen.origin}, not of {trainer}")
    return chosen.config
