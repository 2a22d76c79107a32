"""The figures of a report that a golden file holds, each under a key of one line.

Keys follow the grammar of gates: `[PAIR or PRESET:]METRIC@pooled` or `@STEP`. A figure of a correction names its stage,
`decoupled_token_is:kept.ess@3`; without a prefix it is the report's own pair of policies. What a trainer would have
logged stands under the trainer's name and its own: `verl:rollout_corr/kl@3`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rollout_audit.audit.report import CorrectionReport, Report, StageReport, StepReport
from rollout_audit.golden.tolerances import COUNTS, is_counted, is_logged
from rollout_audit.reports.catalogue import CATALOGUE
from rollout_audit.reports.records import primary_pair
from rollout_audit.statistics.metrics import Metrics

__all__ = ["Figure", "FigureKey", "figures_of"]

Number = float | int | None
RECORDED: Mapping[str, tuple[str, ...] | None] = {
    "raw": None,
    "bounded": ("capped_fraction", "below_lower_fraction", "zeroed_fraction", "mass_lost"),
    "normalised": ("batch_norm_factor",),
    "kept": None,
}
"""Of each stage: weights are recorded as they come and as they are applied; None: all"""
RECORDED_OF_STEPS: Mapping[str, tuple[str, ...] | None] = {**RECORDED, "raw": ("ess",)}
NO_REASON = "no value"
SIZE_OF_UNIT = {"token": "valid_tokens", "sequence": "scored_sequences"}


@dataclass(frozen=True, slots=True)
class FigureKey:
    """What a figure is of."""

    subject: str
    """a pair, a preset or a trainer; empty for the report's own pair, and for the sizes of the dump"""
    metric: str
    """with its stage, where it has one"""
    scope: str
    """`pooled`, or a step"""

    @classmethod
    def parse(cls, text: str) -> FigureKey:
        """The inverse of str()."""
        rest, _, scope = text.rpartition("@")
        subject, _, metric = rest.rpartition(":")
        return cls(subject, metric, scope)

    @property
    def name(self) -> str:
        """What a tolerance is looked up by: the metric without its stage, or a trainer's own with the trainer."""
        logged = f"{self.subject}:{self.metric}"
        return logged if is_logged(logged) else self.metric.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.subject}{':' if self.subject else ''}{self.metric}@{self.scope}"


@dataclass(frozen=True, slots=True)
class Figure:
    value: Number
    reason: str = ""
    """why it is null, where it is"""
    size: int = 1
    """how many tokens or sequences a share is of"""
    edge: int = 0
    """how many of them lie within rounding of the threshold"""


def figures_of(report: Report, logged: Mapping[int, Metrics] | None = None) -> dict[FigureKey, Figure]:
    """What is recorded: all pairs and corrections pooled; per step the report's pair and its reference correction.

    Of a report with a trainer also what that would have logged, and of each step where `logged` has it.

    The steps of a dump that has one step alone would say the same again, and are left out.

    Raises:
        ValueError: the report was made without edges.
    """
    steps = report.steps if len(report.steps) > 1 else []
    found = dict(_pooled(report)) | {key: figure for step in steps for key, figure in _of_step(report, step)}
    return found | dict(_logged(report, {step.step: (logged or {})[step.step] for step in steps if logged}))


def _pooled(report: Report) -> Iterator[tuple[FigureKey, Figure]]:
    sizes = {name: getattr(report.counts, name) for name in COUNTS}
    yield from _numbers("", "pooled", sizes, {}, sizes, {})
    own = primary_pair(report)
    for pair in report.pairs:
        edges = report.edges[None, pair.name]
        yield from _numbers("" if pair is own else pair.name, "pooled", pair.metrics, pair.reasons, sizes, edges)
    for correction in report.corrections:
        yield from _stages(correction.name, "pooled", correction, sizes, report.edges[None, correction.name])


def _of_step(report: Report, step: StepReport) -> Iterator[tuple[FigureKey, Figure]]:
    scope, sizes = str(step.step), {name: getattr(step, name) for name in COUNTS if hasattr(step, name)}
    yield from _numbers("", scope, sizes, {}, sizes, {})
    pair, name = primary_pair(report).name, report.settings.reference
    yield from _numbers("", scope, step.metrics, step.reasons, sizes, report.edges[step.step, pair])
    yield from _stages(name, scope, step.corrections[name], sizes, report.edges[step.step, name])


def _logged(report: Report, steps: Mapping[int, Metrics]) -> Iterator[tuple[FigureKey, Figure]]:
    if report.trainer is None:
        return
    name, whole = report.trainer.name, report.trainer
    yield from _numbers(name, "pooled", whole.metrics, whole.reasons, {}, {})
    for step, metrics in steps.items():
        yield from _numbers(name, str(step), metrics, metrics.reasons, {}, {})


def _stages(
    subject: str,
    scope: str,
    correction: CorrectionReport | StageReport,
    sizes: Mapping[str, int],
    edges: Mapping[str, int],
) -> Iterator[tuple[FigureKey, Figure]]:
    stages = correction.stages if isinstance(correction, CorrectionReport) else correction
    for stage, wanted in (RECORDED if scope == "pooled" else RECORDED_OF_STEPS).items():
        metrics = getattr(stages, stage)
        figures = {f"{stage}.{m}": v for m, v in metrics.items() if wanted is None or m in wanted}
        yield from _numbers(subject, scope, figures, correction.reasons, sizes, edges)  # type: ignore[union-attr]


def _numbers(
    subject: str,
    scope: str,
    metrics: Mapping[str, Number],
    reasons: Mapping[str, str],
    sizes: Mapping[str, int],
    edges: Mapping[str, int],
) -> Iterator[tuple[FigureKey, Figure]]:
    for metric, value in metrics.items():
        key = FigureKey(subject, metric, scope)
        size = sizes[SIZE_OF_UNIT[CATALOGUE[key.name].unit]] if _is_share(key.name) else 1
        reason = reasons.get(metric) or (NO_REASON if value is None else "")
        yield key, Figure(value, reason, size, edges.get(metric, 0))


def _is_share(name: str) -> bool:
    return is_counted(name) and name in CATALOGUE and CATALOGUE[name].unit != "count"
