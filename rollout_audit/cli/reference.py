"""Which correction is meant: a preset, or what a trainer's own configuration says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rollout_audit.errors import UsageError

if TYPE_CHECKING:
    from rollout_audit.corrections.presets import Preset

__all__ = ["one_correction", "reference_correction"]


def reference_correction(
    preset: str | None, trainer: str | None, config: str | None
) -> tuple[Literal["all"] | list[Preset], str | None]:
    """The corrections of the report and the name of the reference among them.

    Raises:
        UsageError: --preset together with --config, or --config without --trainer.
        ConfigError: the trainer itself would refuse the configuration.
    """
    if trainer is None and config is None:
        return "all", preset
    if preset is not None:
        raise UsageError("--preset and --config both name the reference correction; give one of them")
    if trainer is None:
        raise UsageError("--config needs --trainer: whose keys are these?")
    return _of_trainer(trainer, config or "{}")


def one_correction(preset: str | None, trainer: str | None, config: str | None) -> str:
    """What names the one correction: a preset, or a configuration of the trainer.

    Raises:
        UsageError: neither or both of --preset and --trainer, or --config without --trainer.
    """
    if preset is not None and (trainer is not None or config is not None):
        raise UsageError("--preset and --trainer both name the correction; give one of them")
    if trainer is None and config is not None:
        raise UsageError("--config needs --trainer: whose keys are these?")
    if preset is None and trainer is None:
        raise UsageError("which correction? give --preset NAME, or --trainer NAME with --config")
    return preset if preset is not None else config or "{}"


def _of_trainer(trainer: str, config: str) -> tuple[list[Preset], str]:
    from rollout_audit.audit.selection import as_correction, config_warnings
    from rollout_audit.corrections.presets import BY_DEFAULT, Preset

    name = f"{trainer}-config"
    correction = as_correction(config, trainer)
    return [
        *BY_DEFAULT,
        Preset(
            name,
            correction,
            f"{trainer}, --config",
            "The run's own configuration.",
            warnings=config_warnings(trainer, config),
        ),
    ], name
