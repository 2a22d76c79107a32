"""Which correction is meant: a preset, or what a trainer's own configuration says."""

from __future__ import annotations

from rollout_audit.errors import UsageError

__all__ = ["one_correction"]


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
