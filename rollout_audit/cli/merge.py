"""`rollout-audit merge`: several reports as one."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_audit.cli.options import NoPlots, Output, PerStepGrid, Quiet, ReportOut
from rollout_audit.cli.writing import write_and_show
from rollout_audit.errors import UsageError

__all__ = ["MERGE_EPILOG", "merge"]

OUT = "./rollout-audit-merged"

MERGE_EPILOG = """\b
Examples:
  rollout-audit merge machine-a/report machine-b/report --out report
  rollout-audit merge reports/* --no-plots --format markdown
"""

Reports = Annotated[
    list[str], typer.Argument(metavar="REPORT...", help="Folders that analyze or sweep wrote.", show_default=False)
]


def merge(
    reports: Reports,
    out: ReportOut = OUT,
    per_step_grid: PerStepGrid = False,
    output: Output = None,
    no_plots: NoPlots = False,
    quiet: Quiet = False,
) -> None:
    """Join reports of several machines or runs into the report on all of their files."""
    from pathlib import Path

    from rollout_audit.reports.folder import check_output
    from rollout_audit.reports.saved import merge as join
    from rollout_audit.reports.summary import report_document

    if Path(out).resolve() in (Path(report).resolve() for report in reports):
        raise UsageError(f"--out {out}: is one of the reports to merge, and would be replaced; give another --out")
    check_output(out)
    report = join(reports, per_step_grid=per_step_grid)
    write_and_show(report, report_document(report), out, output, plots=not no_plots, quiet=quiet)
