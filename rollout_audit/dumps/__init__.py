"""The only place that knows file formats and trainers' column names."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_audit.dumps.chunk import Chunk, Finding, Row, Severity
    from rollout_audit.dumps.discovery import DumpFile
    from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump, FileInfo, Part, open_dump
    from rollout_audit.dumps.fault_log import DroppedRow, FaultLog
    from rollout_audit.dumps.inspection import FileInspection, Inspection, inspect_dump

__all__ = [
    "DEFAULT_CHUNK_TOKENS",
    "Chunk",
    "DroppedRow",
    "Dump",
    "DumpFile",
    "FaultLog",
    "FileInfo",
    "FileInspection",
    "Finding",
    "Inspection",
    "Part",
    "Row",
    "Severity",
    "inspect_dump",
    "open_dump",
]

_HOMES = {
    "chunk": ("Chunk", "Finding", "Row", "Severity"),
    "discovery": ("DumpFile",),
    "dump": ("DEFAULT_CHUNK_TOKENS", "Dump", "FileInfo", "Part", "open_dump"),
    "fault_log": ("DroppedRow", "FaultLog"),
    "inspection": ("FileInspection", "Inspection", "inspect_dump"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load the module of a public name when it is first asked for: pyarrow costs a tenth of a second."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
