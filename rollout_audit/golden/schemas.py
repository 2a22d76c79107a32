"""Published JSON Schemas, made from the models that write the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, create_model

from rollout_audit.audit.report import Report
from rollout_audit.audit.sweep import SETTINGS
from rollout_audit.golden.model import Golden
from rollout_audit.statistics.sweep import COLUMNS

__all__ = ["SCHEMAS", "sweep_row_schema"]

NUMBERS = frozenset({"lower", "upper", "rule_lower", "rule_upper"})
"""Settings of a point that are numbers; the others are text"""


def sweep_row_schema() -> dict[str, Any]:
    """One row of sweep.parquet: what names the point, then its figures; a null is a value that cannot be computed."""
    kinds: dict[str, Any] = {"name": str, "step": int}
    kinds |= {name: (float if name in NUMBERS else str) for name in SETTINGS}
    kinds |= {**dict.fromkeys(COLUMNS, float), "exact": bool}
    fields: dict[str, Any] = {name: (kind | None, ...) for name, kind in kinds.items()}
    fields |= {f"{name}_error": (float | None, None) for name in COLUMNS}  # there where some point is not exact
    row = create_model("SweepRow", __config__=ConfigDict(extra="ignore"), __doc__="One row of sweep.parquet.", **fields)
    schema: dict[str, Any] = row.model_json_schema()
    return schema


SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = {
    # Looked up when asked for
    "report": lambda: Report.json_schema(),
    "sweep": sweep_row_schema,
    "golden": Golden.json_schema,
}
