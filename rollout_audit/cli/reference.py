"""Which correction is meant: a preset, or what a trainer's own configuration says."""

from __future__ import annotations

from rollout_audit.cli.messages import say
from rollout_audit.errors import UsageError

__all__ = ["check_one", "one_correction", "say_config"]


def check_one(preset: str | None, trainer: str | None, config: str | None) -> None:
    """At most one correction is named.

    Raises:
        UsageError: both of --preset and --trainer, or --config without --trainer.
    """
    if preset is not None and (trainer is not None or config is not None):
        raise UsageError("--preset and --trainer both name the correction; give one of them")
    if trainer is None and config is not None:
        raise UsageError("--config needs --trainer: whose keys are these?")


def one_correction(preset: str | None, trainer: str | None, config: str | None) -> str:
    """What names the one correction: a preset, or a configuration of the trainer.

    Raises:
        UsageError: as `check_one`, and where none is named.
    """
    check_one(preset, trainer, config)
    if preset is None and trainer is None:
        raise UsageError("which correction? give --preset NAME, or --trainer NAME with --config")
    return preset if preset is not None else or_defaults(config)


def or_defaults(config: str | None) -> str:
    """The configuration, or one without settings; an empty text is not that, and is refused where it is read."""
    return "{}" if config is None else config


def say_config(trainer: str | None, config: str | None, *, quiet: bool = False) -> None:
    """On stderr: what a trainer's configuration was read as, and what in it is probably not meant."""
    if trainer is None:
        return
    from rollout_audit.audit.selection import config_text, config_warnings
    from rollout_audit.trainers.references import Note

    say(config_text(trainer, or_defaults(config)), quiet=quiet)
    for warning in config_warnings(trainer, or_defaults(config)):
        say(f"{'note' if isinstance(warning, Note) else 'warning'}: {warning}", quiet=quiet)
