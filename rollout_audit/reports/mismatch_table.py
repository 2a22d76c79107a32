"""The native metrics of every pair of policies that the dump lets us compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollout_audit.audit.report import PairReport, Report
from rollout_audit.reports import figures
from rollout_audit.reports.tables import Block, Cell, Column, Note, Table

__all__ = ["mismatch_blocks"]

PAIR_TITLES = {"engine": "engine\nmismatch", "policy_update": "policy\nupdate", "total": "total"}


def mismatch_blocks(report: Report) -> Iterator[Block]:
    """One column a pair; then why a value is null."""
    pairs = report.pairs
    several = len(pairs) > 1
    headers = [PAIR_TITLES[pair.name] if several else "value" for pair in pairs]
    columns = (
        Column("metric", "metric", "label"),
        *(Column(pair.name, header, "figure") for pair, header in zip(pairs, headers, strict=True)),
    )
    rows: list[list[Cell]] = [[metric, *(pair.metrics.get(metric) for pair in pairs)] for metric in report.overall]
    title = "Mismatch, whole dump"
    yield Table(title, columns, rows, caption=_pair_meanings(pairs) if several else "")
    yield from _reasons(pairs)


def _pair_meanings(pairs: Sequence[PairReport]) -> str:
    texts = [f"{' '.join(PAIR_TITLES[p.name].split())}: {p.training_column} against {p.rollout_column}" for p in pairs]
    noise = " A second pass of the trainer, read as log_probs, makes the policy update its noise floor."
    meanings = f"{'; '.join(texts)}. The engine's numerics and the age of its weights both lie in the engine mismatch."
    return meanings + (noise if any(p.name == "policy_update" for p in pairs) else "")


def _reasons(pairs: Sequence[PairReport]) -> Iterator[Block]:
    by_reason: dict[str, list[str]] = {}
    for pair in pairs:
        for metric, reason in pair.reasons.items():
            by_reason.setdefault(reason, []).append(metric)
    for reason, metrics in by_reason.items():
        yield Note(f"{figures.ABSENT} {', '.join(dict.fromkeys(metrics))}: {reason}", quiet=True)
