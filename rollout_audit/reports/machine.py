"""What `doctor` shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rollout_audit.reports.tables import Column, Document, Table

__all__ = ["Fact", "machine_document"]


@dataclass(frozen=True, slots=True)
class Fact:
    subject: str
    value: str
    status: Literal["ok", "error"]


def machine_document(facts: Sequence[Fact]) -> Document:
    columns = (Column("status", "", "status"), Column("subject", "", "label"), Column("value", "", "prose"))
    table = Table("This machine", columns, [[f.status, f.subject, f.value] for f in facts])
    records = [asdict(fact) for fact in facts]
    return Document((table,), lambda: json.dumps(records, ensure_ascii=False, indent=2) + "\n", lambda: records)
