"""Step by step: how the mismatch moves, with the age of the sampler where it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from rollout_audit.audit.report import Report, StepReport
from rollout_audit.reports import figures
from rollout_audit.reports.tables import Cell, Column, Table

__all__ = ["step_table"]

STEPS_SHOWN = 16
STEPS_LISTED = 8
SEQUENCE_WEIGHTED = "decoupled_seq_is"

Number: TypeAlias = float | int | None
StepReader: TypeAlias = Callable[[Report, StepReport], Cell]


def step_table(report: Report) -> Table:
    """All steps, or the worst of many; columns that no step has a value for are left out."""
    shown = _steps_to_show(report.steps)
    columns = [(column, read) for column, read in _STEP_COLUMNS if any(read(report, s) is not None for s in shown)]
    rows = [[read(report, step) for _, read in columns] for step in shown]
    all_shown = len(shown) == len(report.steps)
    title = "Steps" if all_shown else f"The {len(shown)} worst of {len(report.steps):,} steps, by kl_k3"
    caption = " ".join(filter(None, (_age_story(report.steps), _broken_in(report), _whose_weights(report))))
    return Table(title, tuple(column for column, _ in columns), rows, caption)


def _whose_weights(report: Report) -> str:
    names = {correction.name for correction in report.corrections}
    by_sequence = f", ess seq is {SEQUENCE_WEIGHTED}'s" if SEQUENCE_WEIGHTED in names else ""
    return f"ess is {report.settings.reference}'s{by_sequence}, both as applied."


def _steps_to_show(steps: Sequence[StepReport]) -> list[StepReport]:
    if len(steps) <= STEPS_SHOWN:
        return list(steps)
    worst = sorted(steps, key=lambda step: -(step.metrics.get("kl_k3") or 0.0))[:STEPS_SHOWN]
    return sorted(worst, key=lambda step: step.step)


def _native(metric: str) -> StepReader:
    return lambda _, step: step.metrics.get(metric)


def _broken_in(report: Report) -> str:
    """Which rules are broken in which steps."""
    steps: dict[str, list[int]] = {}
    for step in report.steps:
        for metric in step.past_limit:
            steps.setdefault(metric, []).append(step.step)
    texts = [f"{metric} in {_listed(found)}" for metric, found in steps.items()]
    return f"Past the limit: {'; '.join(texts)}." if texts else ""


def _listed(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:STEPS_LISTED]))
    more = f" and {len(steps) - STEPS_LISTED:,} more" if len(steps) > STEPS_LISTED else ""
    return f"step{'' if len(steps) == 1 else 's'} {shown}{more}"


def _kept(name: str, metric: str) -> StepReader:
    return lambda _, step: step.corrections[name].kept.get(metric) if name in step.corrections else None


_STEP_COLUMNS: tuple[tuple[Column, StepReader], ...] = (
    (Column("step", "step", "index"), lambda _, step: step.step),
    (Column("policy_age", "sampler\nage", "figure"), lambda _, step: _whole(step.policy_age)),
    (Column("reward", "reward", "number", 3), lambda _, step: step.reward_mean),
    (Column("sequences", "seqs", "count"), lambda _, step: step.sequences),
    (Column("valid_tokens", "tokens", "count"), lambda _, step: step.valid_tokens),
    (Column("log_prob_diff_abs_mean", "mean\n|d|", "number", 3), _native("log_prob_diff_abs_mean")),
    (Column("kl_k3", "kl_k3", "number", 4), _native("kl_k3")),
    (Column("ppl_ratio", "ppl\nratio", "number", 3), _native("ppl_ratio")),
    (Column("chi2_token", "chi2\ntoken", "number", 4), _native("chi2_token")),
    (
        Column("ess", "ess", "number", 3),
        lambda report, step: _kept(report.settings.reference, "ess")(report, step),
    ),
    (Column("ess_seq", "ess\nseq", "number", 3), _kept(SEQUENCE_WEIGHTED, "ess_seq")),
    (Column("mark", "mark", "status"), lambda _, step: step.status),
)


def _whole(value: Number) -> Number:
    return int(value) if value is not None and value == int(value) else value


def _age_story(steps: Sequence[StepReport]) -> str:
    """Mean |d| pooled over the steps of each sampler age, which is what staleness looks like."""
    by_age: dict[float, list[StepReport]] = {}
    for step in steps:
        if step.policy_age is not None and step.valid_tokens:
            by_age.setdefault(step.policy_age, []).append(step)
    if not 1 < len(by_age) <= STEPS_SHOWN:
        return ""
    parts = [f"{figures.number(_whole(age))} → {figures.number(_mean_abs(by_age[age]), 3)}" for age in sorted(by_age)]
    return f"Mean |d| by age of the sampler, in trainer updates: {', '.join(parts)}."


def _mean_abs(steps: Sequence[StepReport]) -> float:
    tokens = sum(step.valid_tokens for step in steps)
    return sum(float(step.metrics["log_prob_diff_abs_mean"] or 0.0) * step.valid_tokens for step in steps) / tokens
