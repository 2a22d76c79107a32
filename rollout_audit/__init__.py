"""Offline audit of the mismatch between rollout engine and trainer in LLM reinforcement learning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_audit.audit.advice import Recommendation
    from rollout_audit.audit.analyze import analyze
    from rollout_audit.audit.apply import apply_correction
    from rollout_audit.audit.apply_files import WrittenCorrection, write_correction
    from rollout_audit.audit.compare_log import compare_log
    from rollout_audit.audit.dialect import trainer_metrics
    from rollout_audit.audit.grids import sweep_grid
    from rollout_audit.audit.report import LogReport, Report
    from rollout_audit.audit.sweep import Grid
    from rollout_audit.corrections.model import (
        Aggregation,
        Bound,
        Correction,
        Denominator,
        Level,
        Loss,
        Mode,
        Rows,
        Rule,
        Statistic,
        Weight,
    )
    from rollout_audit.corrections.presets import Preset
    from rollout_audit.dumps.chunk import Row
    from rollout_audit.dumps.convert import convert_dump
    from rollout_audit.dumps.dump import Dump, open_dump
    from rollout_audit.dumps.writer import DumpWriter
    from rollout_audit.errors import ConfigError, DumpError, ReportError, RolloutAuditError, UsageError
    from rollout_audit.golden.check import check
    from rollout_audit.golden.result import CheckResult
    from rollout_audit.reports.folder import read_report, write_report
    from rollout_audit.reports.recommend import recommend
    from rollout_audit.reports.saved import merge, sweep
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
    "DumpWriter",
    "Grid",
    "Level",
    "LogReport",
    "Loss",
    "Metrics",
    "Mode",
    "Preset",
    "Recommendation",
    "Report",
    "ReportError",
    "RolloutAuditError",
    "Row",
    "Rows",
    "Rule",
    "Statistic",
    "UsageError",
    "Weight",
    "WrittenCorrection",
    "analyze",
    "apply_correction",
    "check",
    "compare_log",
    "convert_dump",
    "merge",
    "open_dump",
    "read_report",
    "recommend",
    "sweep",
    "sweep_grid",
    "trainer_metrics",
    "write_correction",
    "write_report",
]

_HOME = {
    "Aggregation": "corrections.model",
    "Bound": "corrections.model",
    "CheckResult": "golden.result",
    "ConfigError": "errors",
    "Correction": "corrections.model",
    "Denominator": "corrections.model",
    "Dump": "dumps.dump",
    "DumpError": "errors",
    "DumpWriter": "dumps.writer",
    "Grid": "audit.sweep",
    "Level": "corrections.model",
    "LogReport": "audit.report",
    "Loss": "corrections.model",
    "Metrics": "statistics.metrics",
    "Mode": "corrections.model",
    "Preset": "corrections.presets",
    "Recommendation": "audit.advice",
    "Report": "audit.report",
    "ReportError": "errors",
    "RolloutAuditError": "errors",
    "Row": "dumps.chunk",
    "Rows": "corrections.model",
    "Rule": "corrections.model",
    "Statistic": "corrections.model",
    "UsageError": "errors",
    "Weight": "corrections.model",
    "WrittenCorrection": "audit.apply_files",
    "analyze": "audit.analyze",
    "apply_correction": "audit.apply",
    "check": "golden.check",
    "compare_log": "audit.compare_log",
    "convert_dump": "dumps.convert",
    "merge": "reports.saved",
    "open_dump": "dumps.dump",
    "read_report": "reports.folder",
    "recommend": "reports.recommend",
    "sweep": "reports.saved",
    "sweep_grid": "audit.grids",
    "trainer_metrics": "audit.dialect",
    "write_correction": "audit.apply_files",
    "write_report": "reports.folder",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing the package loads neither torch nor matplotlib."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
