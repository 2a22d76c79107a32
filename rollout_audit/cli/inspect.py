"""`rollout-audit inspect`: what a dump holds, without auditing it."""

from __future__ import annotations

import typer

from rollout_audit.cli.options import (
    CHUNK_TOKENS,
    ChunkTokens,
    Dumps,
    InputFormat,
    Join,
    Layout,
    Limit,
    Maps,
    Output,
    RequireMarker,
    Steps,
    Workers,
)
from rollout_audit.cli.parsing import parse_maps, parse_steps

__all__ = ["INSPECT_EPILOG", "inspect"]

INSPECT_EPILOG = """\b
Examples:
  rollout-audit inspect run/dumps
  rollout-audit inspect 'run/step_*.parquet' --format json
  rollout-audit inspect run/dumps --steps 100:110

\b
Exit codes:
  0    nothing that would stop an audit
  1    faults of severity error were found
  2    the dump cannot be read, or holds nothing to audit
"""


def inspect(
    dumps: Dumps,
    field_map: Maps = None,
    input_format: InputFormat = None,
    layout: Layout = None,
    join: Join = None,
    require_marker: RequireMarker = None,
    steps: Steps = None,
    limit: Limit = None,
    output: Output = None,
    workers: Workers = None,
    chunk_tokens: ChunkTokens = CHUNK_TOKENS,
) -> None:
    """Show files, fields and their mapping, counts, value ranges, faults and likely causes."""
    fields, span = parse_maps(field_map), parse_steps(steps)

    from rollout_audit.audit.causes import causes_of_dump
    from rollout_audit.dumps.dump import open_dump
    from rollout_audit.dumps.inspection import inspect_dump
    from rollout_audit.reports.inspection import inspection_document
    from rollout_audit.reports.terminal import emit

    dump = open_dump(
        dumps,
        field_map=fields,
        layout=layout,
        input_format=input_format,
        join=join,
        require_marker=require_marker,
    )
    inspection = inspect_dump(dump, steps=span, limit=limit, chunk_tokens=chunk_tokens)
    causes = causes_of_dump(
        dump, inspection.findings, steps=span, limit=limit, chunk_tokens=chunk_tokens, workers=workers
    )
    emit(inspection_document(inspection, causes), output.value if output else None)
    raise typer.Exit(2 if inspection.is_empty else 1 if inspection.has_errors else 0)
