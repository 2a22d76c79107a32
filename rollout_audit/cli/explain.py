"""`rollout-audit explain`: what a metric is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rollout_audit.cli.options import Output

if TYPE_CHECKING:
    from rollout_audit.reports.tables import Document

__all__ = ["EXPLAIN_EPILOG", "explain"]

EXPLAIN_EPILOG = """\b
Examples:
  rollout-audit explain
  rollout-audit explain kl_k3
  rollout-audit explain rollout_corr/kl
"""

Metric = Annotated[
    str | None,
    typer.Argument(
        metavar="[METRIC]", help="Explain this one, also as a trainer logs it; without it list all.", show_default=False
    ),
]


def explain(metric: Metric = None, output: Output = None) -> None:
    """Explain a metric: formula, range, which way is worse, limits, source."""
    from rollout_audit.reports.explanations import catalogue_document
    from rollout_audit.reports.terminal import emit

    emit(catalogue_document() if metric is None else _explained(metric), output.value if output else None)


def _explained(metric: str) -> Document:
    from rollout_audit.reports.catalogue import explanation
    from rollout_audit.reports.explanations import explanation_document, logged_document

    found = explanation(metric)
    return logged_document(found) if isinstance(found, list) else explanation_document(found)
