"""`rollout-audit presets`: named corrections."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_audit.cli.options import Output

__all__ = ["PRESETS_EPILOG", "presets"]

PRESETS_EPILOG = """\b
Examples:
  rollout-audit presets
  rollout-audit presets decoupled_k3_rs_seq_tis
"""

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show everything about one.", show_default=False)]


def presets(name: Name = None, output: Output = None) -> None:
    """List the presets, or show one with the configuration to paste."""
    from rollout_audit.corrections.presets import PRESETS, preset
    from rollout_audit.reports.presets import preset_document, presets_document
    from rollout_audit.reports.terminal import emit

    document = presets_document(list(PRESETS.values())) if name is None else preset_document(preset(name))
    emit(document, output.value if output else None)
