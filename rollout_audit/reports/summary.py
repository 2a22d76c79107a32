"""What `analyze` shows of a report: the verdict and the worst first, then the figures behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from rollout_audit.audit import health
from rollout_audit.audit.report import (
    CorrectionReport,
    FindingReport,
    HealthVerdict,
    PairReport,
    Report,
    StepReport,
)
from rollout_audit.dumps.chunk import Finding
from rollout_audit.reports import figures
from rollout_audit.reports.tables import Block, Cell, Column, Document, Note, Table, Verdict

__all__ = ["report_document", "report_records", "short_interval"]

STEPS_SHOWN = 16
WORST_SHOWN = 8
STEPS_LISTED = 8
DROPPED_SHOWN = 8
SEQUENCE_WEIGHTED = "decoupled_seq_is"
PAIR_TITLES = {"engine": "engine\nmismatch", "policy_update": "policy\nupdate", "total": "total"}
INTERVAL_WORDS = {
    "ρ of the token": "ρ",
    "product ratio of the sequence": "Πρ",
    "geometric ratio of the sequence": "geo ρ",
    "geometric ratio of the segment": "segment ρ",
    " in full": "",
}

STATUS_PREFIX = re.compile("^(Critical|Worth a look): ")
LONG_NUMBER = re.compile(r"\d+\.\d{5,}")

Number: TypeAlias = float | int | None


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


def report_records(report: Report) -> list[Mapping[str, object]]:
    """Every figure in long form: step (empty: pooled), subject, stage, metric, value, reason."""
    pooled = [
        record
        for pair in report.pairs
        for record in _records(None, pair.name, "native", pair.metrics, pair.reasons)
    ]
    for correction in report.corrections:
        pooled += _stage_records(correction)
    return [*pooled, *(record for step in report.steps for record in _step_records(report, step))]


def short_interval(keeps: Iterable[str]) -> str:
    """Effective intervals in the table's own signs: `ρ ≤ 2; geo ρ in [0.999, 1.001]`."""
    text = "; ".join(keeps)
    for words, sign in INTERVAL_WORDS.items():
        text = text.replace(words, sign)
    return LONG_NUMBER.sub(lambda match: f"{float(match[0]):.4g}", text) or "all"


def _blocks(report: Report, gates: Sequence[str]) -> Iterator[Block]:
    yield Verdict(report.status, STATUS_PREFIX.sub("", report.headline))
    yield from (Note(line) for line in _preamble(report))
    yield from (Note(line) for line in gates)
    yield from _health(report)
    yield from _findings(report)
    yield from _dropped(report)
    yield from _steps(report)
    yield from _metrics(report)
    yield _presets(report)
    yield from _worst(report)
    yield Note("")
    yield from (Note(note, quiet=True) for note in report.notes if not note.startswith("π is "))


def _preamble(report: Report) -> Iterator[str]:
    settings, counts = report.settings, report.counts
    meaning = next(p.meaning for p in report.pairs if p.training_column == settings.training_column
                   and p.rollout_column == settings.rollout_column)  # fmt: skip
    yield f"π is {settings.training_column}, μ is {settings.rollout_column} ({settings.mode}): {meaning}."
    yield (
        f"{figures.amount(counts.sequences, 'sequence')}, {_tokens_text(report)} in {figures.amount(counts.steps, 'step')} "
        f"and {figures.amount(counts.files, 'file')}{_left_out(report)}."
    )


def _tokens_text(report: Report) -> str:
    valid, every = report.counts.valid_tokens, report.counts.tokens
    masked = "" if valid == every else f" of {every:,}"
    return f"{valid:,} valid{masked} token{'' if every == 1 else 's'}"


def _left_out(report: Report) -> str:
    counts = report.counts
    empty = counts.sequences - counts.scored_sequences
    texts = [
        f"{figures.amount(empty, 'sequence')} without a valid token left out" if empty else "",
        f"{figures.amount(counts.dropped_sequences, 'faulty sequence')} dropped" if counts.dropped_sequences else "",
    ]
    return "".join(f"; {text}" for text in texts if text)


def _health(report: Report) -> Iterator[Block]:
    broken = [verdict for verdict in report.health if verdict.status != "ok"]
    if not broken:
        yield Note(
            f"All {len(report.health)} health rules hold for the mismatch and {report.settings.reference}."
        )
        return
    columns = (
        Column("status", "status", "status"),
        Column("metric", "metric", "label"),
        Column("value", "value", "figure"),
        Column("limit", "limit", "text"),
        Column("subject", "of"),
        Column("advice", "what to try", "prose"),
    )
    rows = [[v.status, v.metric, v.value, f"{v.comparison} {v.limit}", v.subject, v.advice] for v in broken]
    held = len(report.health) - len(broken)
    yield Table(
        "Health", columns, rows, caption=f"{len(broken)} of {len(report.health)} rules broken, {held} hold."
    )


def _findings(report: Report) -> Iterator[Block]:
    if report.findings:
        yield findings_table(report.findings)


def findings_table(findings: Sequence[FindingReport | Finding]) -> Table:
    columns = (
        Column("severity", "severity", "status"),
        Column("kind", "kind", "label"),
        Column("count", "count", "count"),
        Column("where", "first at"),
        Column("message", "what", "prose"),
    )
    rows: list[list[Cell]] = [
        [f.severity, f.kind, f.count, place(f.file, f.row, f.position), f.message] for f in findings
    ]
    return Table("Findings in the dump", columns, rows)


def place(file: str | None, row: int | None, position: int | None = None) -> str:
    """`file row 3 position 17`, as much of it as is known."""
    parts = [
        file,
        None if row is None else f"row {row}",
        None if position is None else f"position {position}",
    ]
    return " ".join(part for part in parts if part)


def _dropped(report: Report) -> Iterator[Block]:
    if not report.dropped:
        return
    columns = (
        Column("uid", "uid", "label"),
        Column("file", "file"),
        Column("row", "row", "index"),
        Column("kind", "fault"),
    )
    rows: list[list[Cell]] = [[d.uid, d.file, d.row, d.kind] for d in report.dropped[:DROPPED_SHOWN]]
    more = len(report.dropped) - len(rows)
    yield Table(
        "Sequences left out", columns, rows, caption=f"and {more:,} more, in report.json" if more > 0 else ""
    )


def _steps(report: Report) -> Iterator[Block]:
    if len(report.steps) < 2:
        return
    shown = _steps_to_show(report.steps)
    columns = [
        (column, read) for column, read in _STEP_COLUMNS if any(read(report, s) is not None for s in shown)
    ]
    rows = [[read(report, step) for _, read in columns] for step in shown]
    title = (
        "Steps"
        if len(shown) == len(report.steps)
        else f"The {len(shown)} worst of {len(report.steps)} steps, by kl_k3"
    )
    caption = " ".join(filter(None, (_age_story(report.steps), _broken_in(report))))
    yield Table(title, tuple(column for column, _ in columns), rows, caption)


def _steps_to_show(steps: Sequence[StepReport]) -> list[StepReport]:
    if len(steps) <= STEPS_SHOWN:
        return list(steps)
    worst = sorted(steps, key=lambda step: -(step.metrics.get("kl_k3") or 0.0))[:STEPS_SHOWN]
    return sorted(worst, key=lambda step: step.step)


StepReader: TypeAlias = Callable[[Report, StepReport], Cell]


def _native(metric: str) -> StepReader:
    return lambda _, step: step.metrics.get(metric)


def step_verdicts(report: Report, step: StepReport) -> list[HealthVerdict]:
    """What the health rules say of one step; rules whose figures are not kept by step say nothing."""
    reference = report.settings.reference
    own = step.corrections[reference]
    stages: dict[str, Mapping[str, Number]] = {"raw": {}, "bounded": own.bounded, "kept": own.kept}
    verdicts = health.judge(health.Figures(step.metrics, step.reasons, stages, {}, reference))
    return [verdict for verdict in verdicts if verdict.status != "unmeasured"]


def _step_mark(report: Report, step: StepReport) -> str:
    return health.worst_status([verdict.status for verdict in step_verdicts(report, step)])


def _broken_in(report: Report) -> str:
    """Which rules are broken in which steps."""
    steps: dict[str, list[int]] = {}
    for step in report.steps:
        for metric in dict.fromkeys(v.metric for v in step_verdicts(report, step) if v.status != "ok"):
            steps.setdefault(metric, []).append(step.step)
    return " ".join(f"{metric} is past its limit in {_listed(found)}." for metric, found in steps.items())


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
    (Column("log_prob_diff_abs_mean", "mean\n|d|", "number"), _native("log_prob_diff_abs_mean")),
    (Column("kl_k3", "kl_k3", "number"), _native("kl_k3")),
    (Column("ppl_ratio", "ppl\nratio", "number", 3), _native("ppl_ratio")),
    (Column("chi2_token", "chi2\ntoken", "number", 4), _native("chi2_token")),
    (
        Column("ess", "ess", "number", 3),
        lambda report, step: _kept(report.settings.reference, "ess")(report, step),
    ),
    (Column("ess_seq", "ess\nseq", "number", 3), _kept(SEQUENCE_WEIGHTED, "ess_seq")),
    (Column("mark", "mark", "status"), _step_mark),
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
    parts = [
        f"{figures.number(_whole(age))} → {figures.number(_mean_abs(by_age[age]), 3)}"
        for age in sorted(by_age)
    ]
    return f"Mean |d| by age of the sampler, in trainer updates: {', '.join(parts)}."


def _mean_abs(steps: Sequence[StepReport]) -> float:
    tokens = sum(step.valid_tokens for step in steps)
    return (
        sum(float(step.metrics["log_prob_diff_abs_mean"] or 0.0) * step.valid_tokens for step in steps)
        / tokens
    )


def _metrics(report: Report) -> Iterator[Block]:
    pairs = report.pairs
    several = len(pairs) > 1
    headers = [PAIR_TITLES[pair.name] if several else "value" for pair in pairs]
    columns = (
        Column("metric", "metric", "label"),
        *(Column(pair.name, header, "figure") for pair, header in zip(pairs, headers, strict=True)),
    )
    rows: list[list[Cell]] = [
        [metric, *(pair.metrics.get(metric) for pair in pairs)] for metric in report.overall
    ]
    title = "Mismatch, whole dump"
    yield Table(title, columns, rows, caption=_pair_meanings(pairs) if several else "")
    yield from _reasons(pairs)


def _pair_meanings(pairs: Sequence[PairReport]) -> str:
    texts = [
        f"{' '.join(PAIR_TITLES[p.name].split())}: {p.training_column} against {p.rollout_column}"
        for p in pairs
    ]
    return "; ".join(texts) + "."


def _reasons(pairs: Sequence[PairReport]) -> Iterator[Block]:
    by_reason: dict[str, list[str]] = {}
    for pair in pairs:
        for metric, reason in pair.reasons.items():
            by_reason.setdefault(reason, []).append(metric)
    for reason, metrics in by_reason.items():
        yield Note(f"{figures.ABSENT} {', '.join(dict.fromkeys(metrics))}: {reason}", quiet=True)


def _presets(report: Report) -> Table:
    reference = report.settings.reference
    ordered = sorted(report.corrections, key=lambda c: c.name != reference)
    columns = tuple(column for column, _ in _PRESET_COLUMNS)
    rows = [[read(correction) for _, read in _PRESET_COLUMNS] for correction in ordered]
    caption = (
        f"{reference} is the reference of the health rules. What lies inside the interval counts "
        "in full: ρ of the token, Πρ product over the response, geo ρ its geometric mean. "
        "mark: own figures against the health limits."
    )
    return Table("Corrections, whole dump", columns, rows, caption)


CorrectionReader: TypeAlias = Callable[[CorrectionReport], Cell]


def _stage(stage: str, metric: str) -> CorrectionReader:
    return lambda c: getattr(c.stages, stage).get(metric)


_PRESET_COLUMNS: tuple[tuple[Column, CorrectionReader], ...] = (
    (Column("name", "preset", "label"), lambda c: c.name),
    (Column("keeps", "in full where"), lambda c: short_interval(c.keeps)),
    (Column("ess_raw", "ess\nraw", "number", 3), _stage("raw", "ess")),
    (Column("ess_kept", "ess\nkept", "number", 3), _stage("kept", "ess")),
    (Column("ess_seq", "ess_seq\nkept", "number", 3), _stage("kept", "ess_seq")),
    (Column("capped_fraction", "capped", "percent"), _stage("bounded", "capped_fraction")),
    (Column("masked_fraction", "masked\ntokens", "percent"), _stage("kept", "masked_fraction")),
    (Column("seq_masked_fraction", "masked\nseqs", "percent"), _stage("kept", "seq_masked_fraction")),
    (Column("kept_reward_mean", "kept\nreward", "number", 3), _stage("kept", "kept_reward_mean")),
    (Column("mode", "mode"), lambda c: c.mode),
    (Column("status", "mark", "status"), lambda c: c.status),
)


def _worst(report: Report) -> Iterator[Block]:
    if report.worst_tokens:
        yield _worst_tokens(report)
    if report.worst_sequences:
        yield _worst_sequences(report)


def _worst_tokens(report: Report) -> Table:
    columns = (
        Column("file", "file", "label"),
        Column("row", "row", "index"),
        Column("position", "position", "index"),
        Column("uid", "uid"),
        Column("step", "step", "index"),
        Column("training_log_prob", "log π", "number", 3),
        Column("rollout_log_prob", "log μ", "number", 3),
        Column("log_ratio", "d", "number", 3),
    )
    rows: list[list[Cell]] = [
        [t.file, t.row, t.position, t.uid, t.step, t.training_log_prob, t.rollout_log_prob, t.log_ratio]
        for t in report.worst_tokens[:WORST_SHOWN]
    ]
    return Table("Worst tokens, by |d|", columns, rows)


def _worst_sequences(report: Report) -> Table:
    columns = (
        Column("file", "file", "label"),
        Column("row", "row", "index"),
        Column("uid", "uid"),
        Column("step", "step", "index"),
        Column("valid_tokens", "tokens", "count"),
        Column("k3_mean", "mean\nk3", "number"),
        Column("log_ratio_mean", "mean\nd", "number"),
        Column("log_ratio_sum", "sum\nd", "number"),
        Column("log_ratio_max_abs", "max\n|d|", "number"),
    )
    rows: list[list[Cell]] = [
        [
            s.file,
            s.row,
            s.uid,
            s.step,
            s.valid_tokens,
            s.k3_mean,
            s.log_ratio_mean,
            s.log_ratio_sum,
            s.log_ratio_max_abs,
        ]
        for s in report.worst_sequences[:WORST_SHOWN]
    ]
    return Table("Worst sequences, by mean k3", columns, rows)


def _stage_records(correction: CorrectionReport) -> list[Mapping[str, object]]:
    return [
        record
        for stage, metrics in correction.stages.model_dump().items()
        for record in _records(None, correction.name, stage, metrics, _of_stage(correction.reasons, stage))
    ]


def _of_stage(reasons: Mapping[str, str], stage: str) -> dict[str, str]:
    return {
        key.removeprefix(f"{stage}."): text for key, text in reasons.items() if key.startswith(f"{stage}.")
    }


def _step_records(report: Report, step: StepReport) -> Iterator[Mapping[str, object]]:
    primary = next(p.name for p in report.pairs if p.training_column == report.settings.training_column
                   and p.rollout_column == report.settings.rollout_column)  # fmt: skip
    yield from _records(step.step, primary, "native", step.metrics, step.reasons)
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
