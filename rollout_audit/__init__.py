"""Offline audit of the mismatch between rollout engine and trainer in LLM reinforcement learning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_audit.audit.analyze import analyze
    from rollout_audit.audit.apply import apply_correction
    from rollout_audit.audit.dialect import trainer_metrics
    from rollout_audit.audit.report import Report
    from rollout_audit.dumps.dump import Dump, open_dump
    from rollout_audit.errors import ConfigError, DumpError, RolloutAuditError

__all__ = [
    "ConfigError",
    "Dump",
    "DumpError",
    "Report",
    "RolloutAuditError",
    "analyze",
    "apply_correction",
    "open_dump",
    "trainer_metrics",
]

_HOME = {
    "ConfigError": "errors",
    "Dump": "dumps.dump",
    "DumpError": "errors",
    "Report": "audit.report",
    "RolloutAuditError": "errors",
    "analyze": "audit.analyze",
    "apply_correction": "audit.apply",
    "open_dump": "dumps.dump",
    "trainer_metrics": "audit.dialect",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing the package loads neither torch nor matplotlib."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
