"""The reader of each format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_audit.errors import UsageError, suggest

if TYPE_CHECKING:
    from rollout_audit.dumps.columns import Source
    from rollout_audit.dumps.discovery import DumpFile

__all__ = ["LAYOUTS", "check_layout", "open_source"]

LAYOUTS = ("padded", "packed")


def check_layout(layout: str | None) -> None:
    """Raises UsageError for a tensor layout that nobody knows."""
    if layout is not None and layout not in LAYOUTS:
        raise UsageError(f"layout = {layout!r}: expected {' or '.join(LAYOUTS)}{suggest(layout, LAYOUTS)}")


def open_source(file: DumpFile, layout: str | None = None) -> Source:
    """Open one file; reads its footer or header only."""
    if file.format == "parquet":
        from rollout_audit.dumps.parquet import ParquetSource

        return ParquetSource(file)
    from rollout_audit.dumps.tensors import TensorSource

    return TensorSource(file, layout)
