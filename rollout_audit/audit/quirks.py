"""Which of a trainer's quirks matter on this dump, with the numbers.

Four sources: figures of the trainer that are more than 5 % off the native ones they are named like (SPEC 4), each with
the quirk that explains it; figures that rows without a valid token change; corrections as one would expect them, beside
what is done instead; and a table of checks on what the configuration does to these tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

from rollout_audit.audit.dialect import TrainerEvidence
from rollout_audit.audit.quirk_checks import CHECKS, Check
from rollout_audit.audit.quirk_evidence import Evidence, Number, departs
from rollout_audit.audit.report import CounterpartReport, FindingReport, Report, TrainerReport
from rollout_audit.corrections.model import Correction
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers.base import Counterpart, Quirk, Trainer

__all__ = ["CHECKS", "EMPTY_ROWS", "Check", "Evidence", "beside", "findings", "with_trainer", "without_its_figures"]

EMPTY_ROWS = "empty_rows"
"""The quirk of means that rows without a valid token dilute; any trainer's, as that is found by leaving them out"""


def findings(evidence: Evidence, figures: Sequence[CounterpartReport]) -> list[FindingReport]:
    """One finding for each quirk that matters.

    Args:
        evidence: what quirks are judged by.
        figures: those of the trainer beside the native ones, of `beside`.
    """
    found = {name: (check.severity, text) for name, check, text in _checked(evidence)}
    for quirk, severity, text in _otherwise(evidence):
        found[quirk] = severity, text
    for quirk, text in _departing(evidence, figures):
        severity, before = found.get(quirk, ("warning", ""))
        found[quirk] = severity, " ".join(filter(None, (before, text)))
    return [_finding(evidence, name, severity, text) for name, (severity, text) in found.items()]


def with_trainer(
    report: Report,
    trainer: Trainer[Any],
    correction: Correction,
    asked: TrainerEvidence,
    reads: str,
    config: object,
) -> Report:
    """The report with what the trainer would have logged, and with its quirks that matter among the findings.

    Args:
        report: of an audit whose reference is the trainer's own correction.
        trainer: whose names and quirks.
        correction: what its configuration does.
        asked: what a reading of the tokens told of it.
        reads: what its configuration was read as, in words.
        config: its parsed configuration.
    """
    own = next(c for c in report.corrections if c.name == report.settings.reference)
    evidence = Evidence(trainer, correction, report, own, asked, config)
    figures = beside(evidence)
    its = TrainerReport(
        name=trainer.name,
        version=trainer.version,
        reads=reads,
        metrics=asked.pooled.as_dict(),
        reasons=dict(asked.pooled.reasons),
        beside=figures,
    )
    return report.model_copy(update={"trainer": its, "findings": [*report.findings, *findings(evidence, figures)]})


def without_its_figures(report: Report, trainer: Trainer[Any], correction: Correction) -> Report:
    """The report with the quirks that the correction and the native figures tell, where nothing was logged again.

    Args:
        report: whose reference is the trainer's own correction.
        trainer: whose names and quirks.
        correction: what its configuration does.
    """
    own = next(c for c in report.corrections if c.name == report.settings.reference)
    evidence = Evidence(trainer, correction, report, own, TrainerEvidence(Metrics({}), None, None))
    return report.model_copy(update={"findings": [*report.findings, *findings(evidence, beside(evidence))]})


def beside(evidence: Evidence) -> list[CounterpartReport]:
    """Figures of the trainer beside their native counterparts, where both have a value."""
    found = []
    for name, listed in evidence.trainer.counterparts.items():
        counterpart = listed.configured(evidence.config)
        value, native = evidence.logged.get(name), _native(evidence, counterpart)
        if value is None or native is None:
            continue
        found.append(
            CounterpartReport(
                metric=name,
                value=value,
                native=counterpart.label,
                native_value=native,
                departs=departs(value, native),
                quirk=_cause(evidence, name, counterpart, native),
            )
        )
    return found


def _cause(evidence: Evidence, name: str, counterpart: Counterpart, native: float) -> str:
    """The counterpart's quirk for what is rejected or not, or that of empty rows where the figure is the native one
    without them."""
    rejecting = counterpart.rejecting if evidence.figure("kept.masked_fraction") else ""
    scored = evidence.scored(name)
    return rejecting or counterpart.quirk if scored is None or departs(scored, native) else EMPTY_ROWS


def _native(evidence: Evidence, counterpart: Counterpart) -> Number:
    value = evidence.figure(counterpart.native) if counterpart.when(evidence.correction) else None
    return value if value is None or counterpart.of == "value" else 1.0 - value


def _otherwise(evidence: Evidence) -> Iterator[tuple[str, Literal["warning", "info"], str]]:
    """(quirk, severity, what it changes); a warning where it changes more than 5 % of the tokens or of the weights."""
    tokens = evidence.report.counts.valid_tokens
    for name, one in evidence.asked.instead.items():
        if one.tokens:
            matters = departs(one.own, one.other) or departs(tokens - one.tokens, tokens)
            yield (
                name,
                "warning" if matters else "info",
                f'{one.tokens:,} of {tokens:,} tokens have another weight in the loss than "{one.text}" would give: '
                f"the weights add up to {one.own / tokens:.4g} of the tokens, with that to {one.other / tokens:.4g}.",
            )


def _departing(evidence: Evidence, figures: Sequence[CounterpartReport]) -> Iterator[tuple[str, str]]:
    """(quirk, its figures beside the native ones)."""
    by_quirk: dict[str, list[str]] = {}
    for one in figures:
        if one.departs:
            text = f"{one.metric} = {one.value:.4g} where {one.native} is {one.native_value:.4g}"
            scored = None if one.quirk == EMPTY_ROWS else evidence.scored(one.metric)
            diluted = scored is not None and departs(one.value, scored)
            text += f" ({scored:.4g} without the empty rows)" if diluted else ""
            by_quirk.setdefault(one.quirk, []).append(text)
    told = {one.metric for one in figures if one.departs and one.quirk == EMPTY_ROWS}
    by_quirk.setdefault(EMPTY_ROWS, []).extend(_diluted(evidence, told))
    for quirk, texts in by_quirk.items():
        if texts:
            yield quirk, f"{_rows_text(evidence) if quirk == EMPTY_ROWS else ''}{'; '.join(texts)}."


def _diluted(evidence: Evidence, told: Collection[str]) -> Iterator[str]:
    """All other figures that are another number without the rows that have no valid token."""
    for name, value in evidence.logged.items():
        scored = evidence.scored(name)
        if name not in told and value is not None and scored is not None and departs(value, scored):
            yield f"{name} = {value:.4g}, {scored:.4g} without them"


def _rows_text(evidence: Evidence) -> str:
    empty, rows = evidence.empty_rows, evidence.report.counts.sequences
    return f"{empty:,} of {rows:,} rows have no valid token. " if empty else ""


def _checked(evidence: Evidence) -> Iterator[tuple[str, Check, str]]:
    for check in CHECKS:
        text = check.sentence(evidence) if check.every_trainer or evidence.quirks(check.name) else None
        if text is not None:
            yield check.name, check, f"{text}."


def _finding(evidence: Evidence, name: str, severity: Literal["warning", "info"], text: str) -> FindingReport:
    why = "".join(map(_why, evidence.quirks(name)))
    message = f"{evidence.trainer.name}, whole dump as one batch: {text}{why}"
    return FindingReport(kind=f"quirk:{name}", severity=severity, message=message)


def _why(quirk: Quirk) -> str:
    """The sentence, with the sources that a reader can look up."""
    public = "; ".join(part for part in quirk.source.split("; ") if not part.startswith(("reference/", "conformance/")))
    return f" {quirk.sentence}{f' ({public})' if public else ''}"
