"""What `apply` prints of the files that it wrote."""

from __future__ import annotations

import json
from dataclasses import asdict

from rollout_audit.audit.apply_files import WrittenCorrection
from rollout_audit.reports.tables import Cell, Column, Document, Note, Table

__all__ = ["applied_document"]

_ROWS = {
    "rows": "rows",
    "left_out": "rows left out",
    "tokens": "tokens",
    "valid_tokens": "valid tokens",
    "kept_tokens": "kept tokens",
    "masked_fraction": "masked, share of the valid",
    "zeroed_fraction": "weight 0, share of the valid",
    "weight_mean": "weight, mean",
    "weight_min": "weight, least",
    "weight_max": "weight, greatest",
    "kept_weight_mean": "weight, mean of the kept",
    "rejected_weight_mean": "weight, mean of the rejected",
}


def applied_document(written: WrittenCorrection) -> Document:
    """Counts and the weights in brief; as JSON with the files."""
    figures = {name: getattr(written, name) for name in _ROWS}
    rows: list[list[Cell]] = [[label, figures[name]] for name, label in _ROWS.items()]
    columns = (Column("figure", "figure", "label"), Column("value", "value", "figure"))
    return Document(
        (Note(written.formula), Table("Applied", columns, rows)),
        json=lambda: json.dumps(asdict(written), ensure_ascii=False, allow_nan=False, indent=2) + "\n",
        records=lambda: [{"figure": name, "value": value} for name, value in figures.items()],
        lines=lambda: [figures],
    )
