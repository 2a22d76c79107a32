"""The word and the sentence that a report opens with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime

from rollout_audit.audit import health
from rollout_audit.audit.report import HealthVerdict, Status, StepReport
from rollout_audit.errors import UsageError
from rollout_audit.statistics.metrics import Metrics

__all__ = ["headline", "past_limit", "report_status", "step_status", "timestamp"]

STEPS_NAMED = 6


def timestamp() -> str:
    """Now, or SOURCE_DATE_EPOCH, in UTC.

    Raises:
        UsageError: SOURCE_DATE_EPOCH is no integer.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        moment = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"SOURCE_DATE_EPOCH={epoch!r}: expected seconds since 1970 as an integer") from None
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def step_status(verdicts: Sequence[HealthVerdict]) -> Status:
    measured: list[Status] = [v.status for v in verdicts if v.status != "unmeasured"]
    return health.worst_status(measured) if measured else "unmeasured"


def report_status(verdicts: Sequence[HealthVerdict], steps: Sequence[StepReport]) -> Status:
    """The worst pooled verdict; a step past a limit that pooling hides weighs as a warning."""
    pooled = health.worst_status([v.status for v in verdicts])
    hidden = pooled in ("ok", "unmeasured") and any(step.past_limit for step in steps)
    return "warn" if hidden else pooled


def headline(verdicts: Sequence[HealthVerdict], overall: Metrics, steps: Sequence[StepReport]) -> str:
    broken = past_limit(verdicts)
    by_step = "" if len(steps) < 2 else _broken_in(steps, broken)
    k3, ratio = overall["kl_k3"], overall["ppl_ratio"]
    size = f" (k3 {k3:.2g}, ppl ratio {ratio:.4g})" if k3 is not None and ratio is not None else ""
    if broken:
        return f"{', '.join(broken)} past the limit{size}{'; ' + by_step if by_step else ''}."
    if by_step:
        return f"Pooled over all steps the policies agree within all limits{size}, but {by_step}."
    return f"The two policies agree within all health limits{size}."


def _broken_in(steps: Sequence[StepReport], already_said: Sequence[str]) -> str:
    """The steps that break a rule which the pooled figures keep: pooling hides them."""
    found = [step for step in steps if set(step.past_limit) - set(already_said)]
    if not found:
        return ""
    metrics = dict.fromkeys(m for step in found for m in step.past_limit if m not in already_said)
    numbers = ", ".join(str(step.step) for step in found[:STEPS_NAMED])
    more = f" and {len(found) - STEPS_NAMED} more" if len(found) > STEPS_NAMED else ""
    return f"{', '.join(metrics)} past the limit in step{'' if len(found) == 1 else 's'} {numbers}{more}"


def past_limit(verdicts: Sequence[HealthVerdict]) -> list[str]:
    return list(dict.fromkeys(v.metric for v in verdicts if v.status in ("critical", "warn")))
