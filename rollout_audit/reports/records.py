"""Every figure of a report in long form, for programs that read rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from rollout_audit.audit.report import PairReport, Report, StageReport, StepReport

__all__ = ["primary_pair", "report_records", "step_records"]

Number: TypeAlias = float | int | None


def primary_pair(report: Report) -> PairReport:
    """The pair that the report is about."""
    columns = (report.settings.training_column, report.settings.rollout_column)
    return next(pair for pair in report.pairs if (pair.training_column, pair.rollout_column) == columns)


def report_records(report: Report) -> list[Mapping[str, object]]:
    """Every figure in long form: step (empty: pooled), subject, stage, metric, value, reason."""
    return [*_pooled_records(report), *step_records(report)]


def step_records(report: Report) -> list[Mapping[str, object]]:
    """The same of the steps alone."""
    return [record for step in report.steps for record in _step_records(report, step)]


def _pooled_records(report: Report) -> Iterator[Mapping[str, object]]:
    for pair in report.pairs:
        yield from _records(None, pair.name, "native", pair.metrics, pair.reasons)
    for correction in report.corrections:
        yield from _stage_records(None, correction.name, correction.stages, correction.reasons)


def _step_records(report: Report, step: StepReport) -> Iterator[Mapping[str, object]]:
    yield from _records(step.step, primary_pair(report).name, "native", step.metrics, step.reasons)
    for name, pair in step.pairs.items():
        yield from _records(step.step, name, "native", pair.metrics, pair.reasons)
    for name, correction in step.corrections.items():
        yield from _stage_records(step.step, name, correction, correction.reasons)


def _stage_records(
    step: int | None, name: str, stages: StageReport, reasons: Mapping[str, str]
) -> Iterator[Mapping[str, object]]:
    for stage in ("raw", "bounded", "normalised", "kept"):
        yield from _records(step, name, stage, getattr(stages, stage), _of_stage(reasons, stage))


def _of_stage(reasons: Mapping[str, str], stage: str) -> dict[str, str]:
    return {key.removeprefix(f"{stage}."): text for key, text in reasons.items() if key.startswith(f"{stage}.")}


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
