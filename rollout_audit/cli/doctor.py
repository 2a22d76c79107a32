"""`rollout-audit doctor`: what this machine offers."""

from __future__ import annotations

from rollout_audit.cli.options import Output

__all__ = ["doctor"]


def doctor(output: Output = None) -> None:
    """Check versions, devices, threads, readable formats and writable folders."""
    from rollout_audit.cli.machine import examine
    from rollout_audit.reports.machine import machine_document
    from rollout_audit.reports.terminal import emit

    emit(machine_document(examine()), output.value if output else None)
