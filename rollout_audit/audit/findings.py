"""What of a dump deserves a line beside its figures: the faults of its files, and what the figures give away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from rollout_audit.audit.evaluated import Evaluated
from rollout_audit.audit.report import FindingReport
from rollout_audit.audit.units import collapsed_products
from rollout_audit.dumps.chunk import Finding
from rollout_audit.trainers.references import Note

__all__ = ["findings"]

IDENTICAL_FROM = 100


def findings(found: Evaluated, of_files: Sequence[Finding]) -> list[FindingReport]:
    """Those of the figures, then those of the files."""
    own = [*_identical_columns(found), *_unusable_rewards(found), *_configuration(found)]
    own += collapsed_products(found.pooled[found.basis.primary])
    return [*own, *(FindingReport(**asdict(finding)) for finding in of_files)]


def _identical_columns(found: Evaluated) -> list[FindingReport]:
    """Agreement bit for bit is hardly ever genuine: more often one column stands for both."""
    primary = found.basis.primary
    scope = found.pooled[primary]
    if scope.tokens < IDENTICAL_FROM or found.native[primary]["log_prob_diff_abs_max"] != 0.0:
        return []
    text = (
        f"{primary.training} and {primary.rollout} are bit-identical over {scope.tokens:,} tokens: a bypass dump, "
        "one column mapped twice, or genuine bitwise parity; a KL of 0 is no evidence of health"
    )
    return [FindingReport(kind="identical_columns", severity="warning", message=text, count=scope.tokens)]


def _configuration(found: Evaluated) -> list[FindingReport]:
    return [
        FindingReport(
            kind="configuration",
            severity="info" if isinstance(text, Note) else "warning",
            message=f"{preset.name}: {text}",
        )
        for preset in found.basis.options.presets
        for text in preset.warnings
    ]


def _unusable_rewards(found: Evaluated) -> list[FindingReport]:
    if "reward" not in found.common:
        return []
    at = np.flatnonzero(~np.isfinite(found.common["reward"]))
    if not len(at):
        return []
    first = found.places.named(int(at[0]))
    text = f"{len(at)} of {len(found.common['reward'])} rewards are missing or not finite: means leave them out"
    return [
        FindingReport(
            kind="reward_value",
            severity="warning",
            message=text,
            file=str(first["file"]),
            row=int(first["row"]),
            count=len(at),
        )
    ]
