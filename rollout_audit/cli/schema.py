"""`rollout-audit schema`: the JSON Schemas of what the tool writes."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

__all__ = ["SchemaName", "schema"]


class SchemaName(StrEnum):
    REPORT = "report"
    SWEEP = "sweep"
    GOLDEN = "golden"


Name = Annotated[
    SchemaName,
    typer.Argument(metavar="[report|sweep|golden]", help="report.json, a row of sweep.parquet, or a golden file."),
]


def schema(name: Name = SchemaName.REPORT) -> None:
    """Print the JSON Schema of report.json, of a row of sweep.parquet, or of a golden file."""
    from rollout_audit.golden.schemas import SCHEMAS
    from rollout_audit.reports.tables import Document
    from rollout_audit.reports.terminal import emit

    text = json.dumps(SCHEMAS[name.value](), ensure_ascii=False, indent=2) + "\n"
    emit(Document((), json=lambda: text, records=list), "json")
