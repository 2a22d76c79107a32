"""`rollout-audit schema`: the JSON Schema of report.json."""

from __future__ import annotations

import json

__all__ = ["schema"]


def schema() -> None:
    """Print the JSON Schema of report.json."""
    from rollout_audit.audit.report import Report
    from rollout_audit.reports.tables import Document
    from rollout_audit.reports.terminal import emit

    text = json.dumps(Report.json_schema(), ensure_ascii=False, indent=2) + "\n"
    emit(Document((), json=lambda: text, records=list), "json")
