"""What `analyze` shows of a report: the verdict and the worst first, then the figures behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollout_audit.audit.report import HealthVerdict, Report
from rollout_audit.reports.causes import causes_blocks
from rollout_audit.reports.correction_table import correction_tables
from rollout_audit.reports.figures import amount
from rollout_audit.reports.findings import dropped_table, findings_table
from rollout_audit.reports.log_table import log_blocks
from rollout_audit.reports.mismatch_table import mismatch_blocks
from rollout_audit.reports.records import primary_pair, report_records
from rollout_audit.reports.step_table import step_table
from rollout_audit.reports.sweep_table import best_table, sweep_table
from rollout_audit.reports.tables import Block, Cell, Column, Document, Note, Table, Verdict
from rollout_audit.reports.trainer_table import trainer_table
from rollout_audit.reports.worst import worst_tables

__all__ = ["report_document"]


def report_document(report: Report, gates: Sequence[str] = ()) -> Document:
    """Everything worth printing; as JSON the report itself, as records every figure pooled and per step.

    Args:
        report: what an audit found.
        gates: one line for each gate that was asked about.
    """
    return Document(
        tuple(_blocks(report, gates)),
        json=report.to_json,
        records=lambda: report_records(report),
    )


def _blocks(report: Report, gates: Sequence[str]) -> Iterator[Block]:
    yield Verdict(report.status, report.headline)
    yield from (Note(line) for line in _preamble(report))
    yield from (Note(line) for line in gates)
    yield from causes_blocks(report.causes)
    yield from _health(report)
    if report.findings:
        yield findings_table(report.findings)
    if report.dropped:
        yield dropped_table(report.dropped)
    if report.log is not None:
        yield from log_blocks(report.log)
    if len(report.steps) > 1:
        yield step_table(report)
    if report.trainer is not None:
        yield trainer_table(report.trainer)
    yield from mismatch_blocks(report)
    yield from correction_tables(report)
    yield from (table for table in (best_table(report), sweep_table(report)) if table is not None)
    yield from worst_tables(report)
    yield Note("")
    yield from (Note(note, quiet=True) for note in report.notes if not note.startswith("π is "))


def _preamble(report: Report) -> Iterator[str]:
    settings, counts = report.settings, report.counts
    meaning = primary_pair(report).meaning
    yield f"π is {settings.training_column}, μ is {settings.rollout_column} ({settings.mode}): {meaning}."
    yield (
        f"{amount(counts.sequences, 'sequence')}, {_tokens_text(report)} in {amount(counts.steps, 'step')} "
        f"and {amount(counts.files, 'file')}{_left_out(report)}."
    )
    if report.length_trap is not None:
        yield report.length_trap.sentence
    if report.log is not None:
        yield report.log.sentence


def _tokens_text(report: Report) -> str:
    valid, every = report.counts.valid_tokens, report.counts.tokens
    masked = "" if valid == every else f" of {every:,}"
    return f"{valid:,} valid{masked} token{'' if every == 1 else 's'}"


def _left_out(report: Report) -> str:
    counts = report.counts
    empty = counts.sequences - counts.scored_sequences
    texts = [
        f"{amount(empty, 'sequence')} without a valid token left out" if empty else "",
        f"{amount(counts.dropped_sequences, 'faulty sequence')} dropped" if counts.dropped_sequences else "",
    ]
    return "".join(f"; {text}" for text in texts if text)


def _health(report: Report) -> Iterator[Block]:
    broken = [verdict for verdict in report.health if verdict.status != "ok"]
    if not broken:
        pooled = "Pooled, all" if len(report.steps) > 1 else "All"
        yield Note(f"{pooled} {len(report.health)} health rules hold for the mismatch and {report.settings.reference}.")
        return
    columns = (
        Column("status", "status", "status"),
        Column("metric", "metric", "label"),
        Column("value", "value", "figure"),
        Column("limit", "limit"),
        Column("advice", "what to try", "prose"),
    )
    rows: list[list[Cell]] = [[v.status, v.metric, v.value, _limit(v), _advice(v)] for v in broken]
    yield Table("Health", columns, rows, caption=_tally(report))


def _limit(verdict: HealthVerdict) -> str:
    return verdict.limit if verdict.comparison == "cancels" else f"{verdict.comparison} {verdict.limit}"


def _advice(verdict: HealthVerdict) -> str:
    """With the correction and the stage, where the figure is not the raw mismatch."""
    return verdict.advice if verdict.subject == "mismatch" else f"{verdict.subject}: {verdict.advice}"


def _tally(report: Report) -> str:
    """How many rules there are, and what became of them."""
    statuses = [verdict.status for verdict in report.health]
    counts = [f"{statuses.count(s)} {s}" for s in ("critical", "warn", "unmeasured", "ok") if s in statuses]
    return f"{amount(len(statuses), 'rule')}: {', '.join(counts)}."
