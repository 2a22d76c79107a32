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
    from rollout_audit.errors import ConfigError, DumpError, ReportError, RolloutAuditError, UsageError
    from rollout_audit.reports.folder import read_report, write_report
    from rollout_audit.statistics.metrics import Metrics

__all__ = [
    "ConfigError",
    "Dump",
    "DumpError",
    "Metrics",
    "Report",
    "ReportError",
    "RolloutAuditError",
    "UsageError",
    "analyze",
    "apply_correction",
    "open_dump",
    "read_report",
    "trainer_metrics",
    "write_report",
]

_HOME = {
    "ConfigError": "errors",
    "Dump": "dumps.dump",
    "DumpError": "errors",
    "Metrics": "statistics.metrics",
    "Report": "audit.report",
    "ReportError": "errors",
    "UsageError": "errors",
    "RolloutAuditError": "errors",
    "analyze": "audit.analyze",
    "apply_correction": "audit.apply",
    "open_dump": "dumps.dump",
    "read_report": "reports.folder",
    "trainer_metrics": "audit.dialect",
    "write_report": "reports.folder",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing the package loads neither torch nor matplotlib."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
