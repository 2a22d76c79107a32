"""What `config show` prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rollout_audit.reports.tables import Column, Document, Note, Table

__all__ = ["Setting", "settings_document"]


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    value: str
    origin: str
    """flag, the name of a variable, the settings file, or default"""
    commands: str


def settings_document(found: Sequence[Setting], file: str) -> Document:
    columns = (
        Column("key", "setting", "label"),
        Column("value", "value"),
        Column("origin", "origin"),
        Column("commands", "used by", "prose"),
    )
    records = [asdict(setting) for setting in found]
    table = Table("Settings", columns, [[s.key, s.value, s.origin, s.commands] for s in found])
    head = Note(f"Settings file: {file}." if file else "No rollout-audit.toml, no [tool.rollout-audit].")
    text = json.dumps({"file": file or None, "settings": records}, ensure_ascii=False, indent=2) + "\n"
    return Document((head, table), lambda: text, lambda: records)
