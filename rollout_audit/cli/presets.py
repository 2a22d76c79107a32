"""`rollout-audit presets`: named corrections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rollout_audit.cli.options import TRAINERS_HELP, Output
from rollout_audit.errors import UsageError

if TYPE_CHECKING:
    from rollout_audit.reports.tables import Document

__all__ = ["PRESETS_EPILOG", "presets"]

PRESETS_EPILOG = """\b
Examples:
  rollout-audit presets
  rollout-audit presets decoupled_k3_rs_seq_tis
  rollout-audit presets decoupled_token_icepop --as trl

\b
Exit codes: 0 shown; 1 --as: that trainer cannot express it; 2 no such preset or trainer
"""

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show everything about one.", show_default=False)]
AsTrainer = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="TRAINER",
        envvar="ROLLOUT_AUDIT_AS",
        help=f"Print the configuration of that trainer which does the same. {TRAINERS_HELP}",
        show_default=False,
    ),
]


def presets(name: Name = None, trainer: AsTrainer = None, output: Output = None) -> None:
    """List the presets, or show one with the configuration to paste."""
    from rollout_audit.corrections.presets import PRESETS
    from rollout_audit.reports.presets import presets_document
    from rollout_audit.reports.terminal import emit

    if trainer is not None:
        raise typer.Exit(_translated(name, trainer, output))
    emit(_preset(name) if name else presets_document(list(PRESETS.values())), output.value if output else None)


def _preset(name: str) -> Document:
    from rollout_audit.corrections.presets import preset
    from rollout_audit.reports.presets import preset_document
    from rollout_audit.trainers.registry import get_trainer

    chosen = preset(name)
    return preset_document(chosen, get_trainer(chosen.origin.split()[0]))


def _translated(name: str | None, trainer: str, output: Output) -> int:
    from rollout_audit.corrections.presets import preset
    from rollout_audit.reports.presets import translation_document
    from rollout_audit.reports.terminal import emit
    from rollout_audit.trainers.registry import get_trainer

    if name is None:
        raise UsageError("--as needs a preset: rollout-audit presets NAME --as TRAINER")
    chosen, dialect = preset(name), get_trainer(trainer)
    found = dialect.express(chosen.correction)
    emit(translation_document(chosen, dialect, found), output.value if output else None)
    return 0 if hasattr(found, "settings") else 1
