"""`rollout-audit schema`: the JSON Schema of report.json."""

from __future__ import annotations

import json
import sys

__all__ = ["schema"]


def schema() -> None:
    """Print the JSON Schema of report.json."""
    from rollout_audit.audit.report import Report

    sys.stdout.write(json.dumps(Report.json_schema(), indent=2) + "\n")
