"""`rollout-audit convert`: any dump as native Parquet."""

from __future__ import annotations

from rollout_audit.cli.messages import say, warn_of
from rollout_audit.cli.options import (
    CHUNK_TOKENS,
    ChunkTokens,
    Dumps,
    InputFormat,
    Join,
    Layout,
    Limit,
    Maps,
    NewOut,
    OnFault,
    OnFaultName,
    Quiet,
    RequireMarker,
    Steps,
)
from rollout_audit.cli.parsing import parse_maps, parse_steps

__all__ = ["CONVERT_EPILOG", "convert"]

CONVERT_EPILOG = """\b
Examples:
  rollout-audit convert run/token_exports --out run/dumps
  rollout-audit convert run/rollout_data --join run/train_data --out run/dumps
  rollout-audit convert batch.safetensors --layout roll --out run/dumps
"""


def convert(
    dumps: Dumps,
    out: NewOut,
    field_map: Maps = None,
    input_format: InputFormat = None,
    layout: Layout = None,
    join: Join = None,
    require_marker: RequireMarker = None,
    steps: Steps = None,
    limit: Limit = None,
    on_fault: OnFault = OnFaultName.STOP,
    chunk_tokens: ChunkTokens = CHUNK_TOKENS,
    quiet: Quiet = False,
) -> None:
    """Write a dump of any format as Parquet with this tool's own columns, one file a file."""
    fields, span = parse_maps(field_map), parse_steps(steps)

    from rollout_audit.dumps.convert import convert_dump
    from rollout_audit.dumps.dump import open_dump
    from rollout_audit.dumps.fault_log import FaultLog
    from rollout_audit.dumps.target import check_target
    from rollout_audit.reports.figures import amount

    check_target(out, dumps)
    dump = open_dump(
        dumps,
        field_map=fields,
        layout=layout,
        input_format=input_format,
        join=join,
        require_marker=require_marker,
    )
    for finding in dump.left_out:
        say(
            f"{finding.severity}: {finding.message} (first {finding.file})" if finding.file else finding.message,
            quiet=quiet,
        )
    log = FaultLog()
    written = convert_dump(
        dump, out, on_fault=on_fault.value, steps=span, limit=limit, chunk_tokens=chunk_tokens, log=log
    )
    warn_of(log.findings(dump.names), quiet=quiet)
    if written.dropped:
        say(
            f"warning: {amount(written.dropped, 'faulty row')} left out; `rollout-audit inspect` shows what is wrong",
            quiet=quiet,
        )
    say(f"wrote {written.folder} ({amount(len(written.files), 'file')}, {amount(written.rows, 'row')})", quiet=quiet)
