"""`rollout-audit explain`: what a metric is."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_audit.cli.options import Output

__all__ = ["EXPLAIN_EPILOG", "explain"]

EXPLAIN_EPILOG = """\b
Examples:
  rollout-audit explain
  rollout-audit explain kl_k3
"""

Metric = Annotated[
    str | None,
    typer.Argument(metavar="[METRIC]", help="Explain this one; without it list all.", show_default=False),
]


def explain(metric: Metric = None, output: Output = None) -> None:
    """Explain a metric: formula, range, which way is worse, limits, source."""
    from rollout_audit.reports.catalogue import explanation
    from rollout_audit.reports.explanations import catalogue_document, explanation_document
    from rollout_audit.reports.terminal import emit

    document = catalogue_document() if metric is None else explanation_document(explanation(metric))
    emit(document, output.value if output else None)
