"""The evidence on causes that one pass over a dump has kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rollout_audit.audit.causes.exhibit import Exhibit
from rollout_audit.audit.causes.find import find_causes
from rollout_audit.audit.causes.model import Cause
from rollout_audit.audit.causes.sampled import Array, SampledRows
from rollout_audit.audit.causes.table import DETECTORS
from rollout_audit.audit.plan import Audit, Basis, Options
from rollout_audit.dumps.chunk import Finding
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.engines.upkeep import one_torch_thread
from rollout_audit.errors import DumpError

__all__ = ["causes_of_dump", "causes_of_rows", "exhibit_of"]

NOTHING: Mapping[str, Array] = dict.fromkeys(
    ("step", "valid_tokens", "sum_d", "sum_abs_d", "sum_k3", "sum_chi2", "min_d", "max_d"), np.empty(0)
)
TOLD_BY_ROWS = ("stale_weights", "mixed_versions", "cancellation")
NO_TOKENS: Mapping[str, Array] = dict.fromkeys(("training", "rollout", "position", "file", "row", "step"), np.empty(0))


def exhibit_of(
    audit: Basis, rows: Mapping[str, Array], sample: Mapping[str, Array], findings: Sequence[Finding]
) -> Exhibit:
    """From the columns [rows] of the primary pair, and those [tokens] of the sample."""
    scored = rows["valid_tokens"] > 0
    with np.errstate(over="ignore"):
        table = {**rows, "sum_chi2": np.exp(rows["log_sum_ratio_sq"])}
    kept = (*NOTHING, "policy_age", "policy_version", "newest_version")
    return Exhibit(
        sample=SampledRows.of_columns(sample),
        table={name: table[name][scored] for name in kept if name in table},
        findings=findings,
        training=audit.primary.training,
        rollout=audit.primary.rollout,
        files=audit.names,
    )


def causes_of_rows(audit: Basis, rows: Mapping[str, Array]) -> list[Cause]:
    """What sums of every row tell by themselves, where no tokens were kept: changes from step to step, versions."""
    told = [detector for detector in DETECTORS if detector.cause in TOLD_BY_ROWS]
    return find_causes(exhibit_of(audit, rows, NO_TOKENS, ()), told)


def causes_of_dump(
    dump: Dump,
    findings: Sequence[Finding],
    *,
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    workers: int | None = None,
) -> list[Cause]:
    """Likely causes of the mismatch, for a dump that nobody audits: one pass over its sound rows.

    Args:
        dump: what `open_dump` returned.
        findings: what is wrong with the data, as `inspect_dump` returned it.
        steps, limit: which rows are read, as in `inspect_dump`.
        chunk_tokens: tokens that one unit of work holds.
        workers: threads that compute.

    Raises:
        UnreadableFileError: damaged data.
    """
    options = Options(presets=(), on_fault="drop", steps=steps, limit=limit, chunk_tokens=chunk_tokens, workers=workers)
    try:
        audit = Audit(dump, options)
        state = audit.run(FaultLog())
    except DumpError:  # no row is left, or nothing to compare with: `findings` say why
        return find_causes(_of_findings(dump, findings))
    with one_torch_thread():
        rows = audit.basis.evidence(state)[audit.basis.primary].rows
        return find_causes(exhibit_of(audit.basis, rows, state.sample.columns(), findings))


def _of_findings(dump: Dump, findings: Sequence[Finding]) -> Exhibit:
    columns = "old_log_probs", "rollout_log_probs"
    return Exhibit(SampledRows.of_columns(NO_TOKENS), NOTHING, findings, *columns, dump.names)
