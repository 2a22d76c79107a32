"""Every figure of a report in long form, for programs that read rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from rollout_audit.audit.report import CorrectionReport, PairReport, Report, StepReport

__all__ = ["primary_pair", "report_records"]

Number: TypeAlias = float | int | None


def primary_pair(report: Report) -> PairReport:
    """The pair that the report is about."""
    columns = (report.settings.training_column, report.settings.rollout_column)
    return next(pair for pair in report.pairs if (pair.training_column, pair.rollout_column) == columns)


def report_records(report: Report) -> list[Mapping[str, object]]:
    """Every figure in long form: step (empty: pooled), subject, stage, metric, value, reason."""
    pooled = [
        record for pair in report.pairs for record in _records(None, pair.name, "native", pair.metrics, pair.reasons)
    ]
    for correction in report.corrections:
        pooled += _stage_records(correction)
    return [*pooled, *(record for step in report.steps for record in _step_records(report, step))]


def _stage_records(correction: CorrectionReport) -> list[Mapping[str, object]]:
    return [
        record
        for stage, metrics in correction.stages.model_dump().items()
        for record in _records(None, correction.name, stage, metrics, _of_stage(correction.reasons, stage))
    ]


def _of_stage(reasons: Mapping[str, str], stage: str) -> dict[str, str]:
    return {key.removeprefix(f"{stage}."): text for key, text in reasons.items() if key.startswith(f"{stage}.")}


def _step_records(report: Report, step: StepReport) -> Iterator[Mapping[str, object]]:
    yield from _records(step.step, primary_pair(report).name, "native", step.metrics, step.reasons)
    for name, metrics in step.pairs.items():
        yield from _records(step.step, name, "native", metrics, {})
    for name, correction in step.corrections.items():
        yield from _records(step.step, name, "bounded", correction.bounded, {})
        yield from _records(step.step, name, "kept", correction.kept, {})


def _records(
    step: int | None, subject: str, stage: str, metrics: Mapping[str, Number], reasons: Mapping[str, str]
) -> Iterator[Mapping[str, object]]:
    for metric, value in metrics.items():
        yield {
            "step": step,
            "subject": subject,
            "stage": stage,
            "metric": metric,
            "value": value,
            "reason": reasons.get(metric),
        }
