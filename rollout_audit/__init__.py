"""Offline audit of the mismatch between rollout engine and trainer in LLM reinforcement learning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_audit.audit.analyze import analyze
    from rollout_audit.audit.apply import apply_correction
    from rollout_audit.audit.dialect import trainer_metrics
    from rollout_audit.audit.report import Report
    from rollout_audit.corrections.model import (
        Aggregation,
        Bound,
        Correction,
        Denominator,
        Level,
        Loss,
        Mode,
        Rule,
        Statistic,
        Weight,
    )
    from rollout_audit.corrections.presets import Preset
    from rollout_audit.dumps.chunk import Row
    from rollout_audit.dumps.dump import Dump, open_dump
    from rollout_audit.errors import ConfigError, DumpError, ReportError, RolloutAuditError, UsageError
    from rollout_audit.golden.check import CheckResult, check
    from rollout_audit.reports.folder import read_report, write_report
    from rollout_audit.statistics.metrics import Metrics

__all__ = [
    "Aggregation",
    "Bound",
    "CheckResult",
    "ConfigError",
    "Correction",
    "Denominator",
    "Dump",
    "DumpError",
    "Level",
    "Loss",
    "Metrics",
    "Mode",
    "Preset",
    "Report",
    "ReportError",
    "RolloutAuditError",
    "Row",
    "Rule",
    "Statistic",
    "UsageError",
    "Weight",
    "analyze",
    "apply_correction",
    "check",
    "open_dump",
    "read_report",
    "trainer_metrics",
    "write_report",
]

_HOME = {
    "Aggregation": "corrections.model",
    "Bound": "corrections.model",
    "CheckResult": "golden.check",
    "ConfigError": "errors",
    "Correction": "corrections.model",
    "Denominator": "corrections.model",
    "Dump": "dumps.dump",
    "DumpError": "errors",
    "Level": "corrections.model",
    "Loss": "corrections.model",
    "Metrics": "statistics.metrics",
    "Mode": "corrections.model",
    "Preset": "corrections.presets",
    "Report": "audit.report",
    "ReportError": "errors",
    "RolloutAuditError": "errors",
    "Row": "dumps.chunk",
    "Rule": "corrections.model",
    "Statistic": "corrections.model",
    "UsageError": "errors",
    "Weight": "corrections.model",
    "analyze": "audit.analyze",
    "apply_correction": "audit.apply",
    "check": "golden.check",
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
