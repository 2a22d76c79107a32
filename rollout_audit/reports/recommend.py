"""`recommend`: the function, for a dump, a report or its folder, and what the command prints of its answer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollout_audit.audit.advice import Candidate, LimitReport, Recommendation
from rollout_audit.audit.advice_text import bound_text
from rollout_audit.audit.analyze import analyze
from rollout_audit.audit.best import SETTINGS, Columns
from rollout_audit.audit.limits import Limits
from rollout_audit.audit.recommend import recommendation
from rollout_audit.audit.report import Report
from rollout_audit.dumps.dump import Dump
from rollout_audit.errors import ReportError
from rollout_audit.reports.folder import SWEEP, read_report, report_folder
from rollout_audit.reports.pasting import pasted
from rollout_audit.reports.plots.evidence import pictures_of
from rollout_audit.reports.tables import Block, Cell, Column, Document, Note, Table, Verdict
from rollout_audit.trainers.registry import get_trainer

__all__ = ["recommend", "recommendation_document"]

NEEDED = frozenset({"family", *SETTINGS, "formula", "ess", "mass_lost", "below_lower_fraction", "kept_kl_k3"})
SHOWN_OF_SWEEP = 8
STATUS = {"none needed": "ok", "recommended": "ok", "nothing meets the limits": "critical", "refused": "unmeasured"}
_FIGURES = (
    Column("distance", "distance", "number", 3),
    Column("ess", "ess", "number", 3),
    Column("raw_ess", "raw\ness", "number", 3),
    Column("ess_seq", "ess\nseq", "number", 3),
    Column("bounded_fraction", "bounded", "percent"),
    Column("mass_lost", "mass\nlost", "percent"),
    Column("masked_fraction", "masked\ntokens", "percent"),
    Column("kept_kl_k3", "k3 of\nkept", "figure"),
)


def recommend(
    source: Dump | Report | str | os.PathLike[str],
    *,
    min_ess: float = Limits.min_ess,
    max_masked: float = Limits.max_masked,
    max_mass_lost: float = Limits.max_mass_lost,
    max_bounded: float = Limits.max_bounded,
    max_kl: float = Limits.max_kl,
    trainer: str | None = None,
) -> Recommendation:
    """The mildest correction that keeps stated limits, and why the others do not.

    Args:
        source: a dump, which is audited first; a report; or the folder of one, for which no dump is needed.
        min_ess: least effective sample size of the weights applied to the kept tokens, a share.
        max_masked: largest share of tokens removed by rejection.
        max_mass_lost: largest share of Σρ that bounding cuts away.
        max_bounded: largest share of the weights that a bound replaced.
        max_kl: largest k3 of the kept tokens where no token or sequence weight corrects them.
        trainer: a name of `trainers.registry.TRAINERS`: rank only what that trainer can express, with its settings.

    Raises:
        UsageError: a limit that is none, or no such trainer.
        ReportError: no report in that folder, or its sweep.parquet is damaged or of another version.
        DumpError: the dump cannot be audited.
    """
    limits = Limits(min_ess, max_masked, max_mass_lost, max_bounded, max_kl)
    dialect = None if trainer is None else get_trainer(trainer)
    if isinstance(source, Dump):
        source = analyze(source)
    if isinstance(source, Report):
        pictures = pictures_of(source)
        return recommendation(source, None if pictures is None else pictures.sweep, limits, dialect)
    return recommendation(read_report(source), _read_sweep(report_folder(source) / SWEEP), limits, dialect)


def _read_sweep(file: Path) -> Columns | None:
    """The columns of sweep.parquet; None where the report was made without a sweep."""
    if not file.is_file():
        return None
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise ReportError(f"{file}: cannot be read ({' '.join(str(error).split())}); run analyze again") from error
    if missing := sorted(NEEDED - set(table.column_names)):
        raise ReportError(f"{file}: has no column {missing[0]!r}, another version wrote it; run analyze again")
    return {name: _column(values) for name, values in zip(table.column_names, _grid_alone(table).columns, strict=True)}


def _grid_alone(table: pa.Table) -> pa.Table:
    """Without the rows of single steps and of presets, where the table has such."""
    for name in {"step", "name"} & set(table.column_names):
        table = table.filter(pc.is_null(table[name]))
    return table


def _column(values: pa.ChunkedArray) -> Sequence[object]:
    """Numbers with null as NaN, text as it is."""
    return values.to_numpy() if pa.types.is_floating(values.type) else values.to_pylist()  # type: ignore[no-any-return]


def recommendation_document(found: Recommendation) -> Document:
    """The verdict, the limits and why they are so, what keeps them and why the rest does not."""
    return Document(
        tuple(_blocks(found)),
        json=lambda: found.model_dump_json(indent=2) + "\n",
        records=lambda: [_record(candidate) for candidate in (*found.ranked, *found.failing)],
    )


def _blocks(found: Recommendation) -> Iterator[Block]:
    yield Verdict(STATUS[found.verdict], found.sentence)
    yield from (Note(text) for text in found.refusals)
    yield from (Note(line) for line in _settings(found))
    yield _limit_table(found.limits)
    if found.ranked:
        yield _ranked_table(found)
    if found.failing:
        yield _failing_table(found.failing)
    yield Note("")
    yield from (Note(note, quiet=True) for note in found.notes)


def _settings(found: Recommendation) -> Iterator[str]:
    """The configuration to paste, of the mildest preset and of the mildest threshold."""
    if found.trainer is None or found.verdict != "recommended":
        return
    for candidate in (found.mildest_preset, found.mildest_point):
        if candidate is not None and candidate.config is not None:
            yield ""
            yield f"{candidate.name} for {found.trainer}, to paste:"
            yield from pasted(candidate.config, candidate.syntax or "yaml").splitlines()
            yield from (f"# {line}" for line in candidate.fine_print)


def _limit_table(limits: Sequence[LimitReport]) -> Table:
    columns = (
        Column("option", "option", "label"),
        Column("limit", "limit"),
        Column("reason", "why", "prose"),
    )
    rows: list[list[Cell]] = [
        [limit.option, f"{limit.key} {limit.comparison} {bound_text(limit.bound)}", limit.reason] for limit in limits
    ]
    return Table("Limits", columns, rows)


def _ranked_table(found: Recommendation) -> Table:
    presets = [c for c in found.ranked if c.source == "preset"]
    points = [c for c in found.ranked if c.source == "sweep"]
    shown = [c for c in found.ranked if c.source == "preset" or c in points[:SHOWN_OF_SWEEP]]
    more = len(presets) + len(points) - len(shown)
    caption = (
        "Distance from doing nothing: share of tokens masked + of weights that bounds replaced + of the weight lost + "
        "(1 − ess). Thresholds of the sweep stand under their family, the mildest of each"
        + (f"; {more} more families with --format json." if more else ".")
    )
    columns = (Column("name", "within the limits", "label"), *_FIGURES, Column("formula", "what it does", "prose"))
    return Table("Mildest first", columns, [_cells(candidate, candidate.formula) for candidate in shown], caption)


def _failing_table(failing: Sequence[Candidate]) -> Table:
    columns = (Column("name", "preset", "label"), *_FIGURES, Column("why_not", "why not", "prose"))
    rows = [_cells(candidate, "; ".join(candidate.why_not)) for candidate in failing]
    return Table("Presets that do not keep the limits", columns, rows)


def _cells(candidate: Candidate, text: str) -> list[Cell]:
    figures = {**candidate.figures, "distance": candidate.distance}
    same = f". The same here: {', '.join(candidate.alike)}" if candidate.alike else ""
    return [candidate.name, *(figures.get(column.key) for column in _FIGURES), f"{text}{same}"]


def _record(candidate: Candidate) -> Mapping[str, object]:
    names = {"name": candidate.name, "alike": " ".join(candidate.alike), "source": candidate.source}
    head = {**names, "formula": candidate.formula, "meets": candidate.meets}
    tail = {"why_not": "; ".join(candidate.why_not), **candidate.settings}
    pasting = {} if candidate.config is None else {"config": json.dumps(candidate.config)}
    return {**head, "distance": candidate.distance, **_numbers(candidate), **tail, **pasting}


def _numbers(candidate: Candidate) -> dict[str, object]:
    names = (*(c.key for c in _FIGURES if c.key != "distance"), "seq_masked_fraction", "weight_std", "kept_reward_mean")
    return {name: candidate.figures.get(name) for name in names}
