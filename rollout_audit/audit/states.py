"""The evidence of a pass as plain columns and tensors, and back: what other thresholds and merges are read from.

Rows of sufficient statistics are columns of `sequences.parquet`, one entry a row read; those of the primary pair keep
their names, those of another pair begin with its name and a slash. Cells, token values and segments are tensors of
`states.safetensors`, with one header in its metadata that says how to read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, ValidationError

from rollout_audit.audit.pairs import Pair, PairName, pair_for
from rollout_audit.audit.passes import PassState
from rollout_audit.audit.pictures import States
from rollout_audit.audit.plan import Basis, Input, Options
from rollout_audit.audit.report import InputFile, Report, Strict
from rollout_audit.audit.sweep import Grid, default_grid
from rollout_audit.corrections.cuts import is_streamed
from rollout_audit.corrections.model import Mode
from rollout_audit.corrections.presets import Preset
from rollout_audit.dumps.chunk import Finding
from rollout_audit.dumps.fault_log import DroppedRow
from rollout_audit.errors import ReportError
from rollout_audit.statistics.cells import Cells, CellTable
from rollout_audit.statistics.pair import PairState, RowTable, TokenValues
from rollout_audit.statistics.plan import PairPlan
from rollout_audit.statistics.tail import WorstToken, WorstTokens

__all__ = ["QUIRK", "Faults", "Header", "Saved", "pack", "row_columns_of", "unpack"]

STATES_NAME = "rollout-audit/states"
STATES_VERSION = 1
COMMON = ("file", "row", "step", "tokens", "reward", "advantage", "policy_age", "policy_version", "newest_version")
"""Columns of `sequences.parquet` that do not depend on the pair"""
INTEGERS = ("row", "step", "tokens", "valid_tokens")
OF_AUDIT = ("identical_columns", "configuration", "reward_value", "collapsed_products")
"""Findings that are read off the evidence and not off the files"""
QUIRK = "quirk:"
"""What findings on the trainer's own configuration begin with"""

LENIENT = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants", allow_inf_nan=True)
"""Thresholds may be infinite"""

Array = NDArray[np.float64]
Columns = Mapping[str, Sequence[object] | Array]


class PairHeader(Strict):
    """How the tensors of one pair are to be read."""

    model_config = LENIENT

    name: PairName
    training: str
    rollout: str
    meaning: str
    cuts: list[float] = Field(description="ends of cells besides those of the fine bins")
    extra_cuts: list[float]
    extra_clamps: list[float]
    token_caps: list[float]
    keep_values: bool


class Header(Strict):
    """What `states.safetensors` says of itself."""

    model_config = LENIENT

    name: str = STATES_NAME
    version: int = STATES_VERSION
    tool: str
    tokens: int
    values: list[int] = Field(description="of each input, tokens by its metadata")
    pairs: list[PairHeader]
    presets: list[Preset]
    sweep: bool
    grid: Grid | None = Field(description="null for the default grid of the version, or without a sweep")


@dataclass(frozen=True)
class Faults:
    """What reading the files found."""

    findings: tuple[Finding, ...]
    dropped: tuple[DroppedRow, ...]


@dataclass(frozen=True)
class Saved:
    """A report with the evidence that it was made from."""

    place: str
    """where it was read, for messages"""
    report: Report
    header: Header
    basis: Basis
    state: PassState

    @cached_property
    def faults(self) -> Faults:
        found = (
            Finding(f.kind, f.severity, f.message, f.file, f.row, f.position, f.count)
            for f in self.report.findings
            if f.kind not in OF_AUDIT and not f.kind.startswith(QUIRK)
        )
        dropped = (DroppedRow(d.file, d.row, d.uid, d.kind) for d in self.report.dropped)
        return Faults(tuple(found), tuple(dropped))


def pack(basis: Basis, state: PassState) -> States:
    """The tensors and the header of a finished pass."""
    tensors = {name: tensor for pair in basis.pairs for name, tensor in _tensors(pair, state.pairs[pair.name])}
    grid = basis.options.sweep
    header = Header(
        tool=version("rollout-audit"),
        tokens=state.tokens,
        values=[given.values for given in basis.inputs],
        pairs=[_pair_header(pair, basis.plans[pair]) for pair in basis.pairs],
        presets=[replace(preset, config=dict(preset.config)) for preset in basis.options.presets],
        sweep=grid is not None,
        grid=None if grid == default_grid() else grid,
    )
    return States(header.model_dump_json(), tensors)


def row_columns_of(basis: Basis, state: PassState, uids: Sequence[str]) -> Columns:
    """Every row that was read, those without a valid token too."""
    primary, common = basis.primary, state.common.columns()
    columns = {**common, **state.pairs[primary.name].rows.columns()}
    integers: dict[str, Sequence[object] | Array] = {name: columns[name].astype(int).tolist() for name in INTEGERS}
    named: dict[str, Sequence[object] | Array] = {
        "uid": list(uids),
        "file": [basis.names[int(i)] for i in common["file"]],
    }
    rest = {name: column for name, column in columns.items() if name not in {*INTEGERS, "file"}}
    others = {
        f"{pair.name}/{name}": column
        for pair in basis.pairs
        if pair != primary
        for name, column in state.pairs[pair.name].rows.columns().items()
        if name != "valid_tokens"
    }
    return {**named, **integers, **rest, **others}


def unpack(place: str, report: Report, rows: Mapping[str, NDArray[Any]], states: States) -> Saved:
    """The evidence as it was before it was saved; samples for pictures are not in it.

    Raises:
        ReportError: the states are of a newer version, damaged, or do not belong to the report.
    """
    header = _header(place, states.header)
    _check_streamed(place, header)
    plans = {_pair(of_pair): _plan(place, header, of_pair) for of_pair in header.pairs}
    basis = Basis(_options(report, header), _inputs(report, header), tuple(plans), Mode(report.settings.mode), plans)
    try:
        state = _state(basis, header, report, rows, states.tensors)
    except (KeyError, IndexError, ValueError) as error:
        raise ReportError(
            f"{place}: damaged states ({' '.join(str(error).split())}); analyze the dump again"
        ) from error
    return Saved(place, report, header, basis, state)


def _check_streamed(place: str, header: Header) -> None:
    """A correction that is evaluated token by token leaves no state but its own figures."""
    for preset in header.presets:
        if not is_streamed(preset.correction):
            raise ReportError(
                f"{place}: {preset.name} was evaluated token by token, of which no state is kept; analyze the dump "
                "without it"
            )


def _pair_header(pair: Pair, plan: PairPlan) -> PairHeader:
    return PairHeader(
        name=pair.name,
        training=pair.training,
        rollout=pair.rollout,
        meaning=pair.meaning,
        cuts=list(plan.grid.cuts),
        extra_cuts=list(plan.extra_cuts),
        extra_clamps=list(plan.extra_clamps),
        token_caps=list(plan.token_caps),
        keep_values=plan.keep_values,
    )


def _tensors(pair: Pair, state: PairState) -> Iterator[tuple[str, NDArray[Any]]]:
    keys = sorted(state.cells.parts)
    parts = [state.cells.parts[key] for key in keys]
    groups = [(*key, len(part.index)) for key, part in zip(keys, parts, strict=True)]
    yield f"{pair.name}/groups", np.array(groups, dtype=np.int64).reshape(-1, 3)
    yield f"{pair.name}/cells", _joined([part.index.astype(np.int32) for part in parts], np.int32)
    yield f"{pair.name}/counts", _joined([part.counts for part in parts], np.int64)
    yield f"{pair.name}/sum_u", _joined([part.sum_u for part in parts], np.float64)
    yield f"{pair.name}/sum_u_sq", _joined([part.sum_u_sq for part in parts], np.float64)
    if state.values.complete:
        yield from _value_tensors(pair, state.values)
    for name, table in state.segments.items():
        for column, values in table.columns().items():
            yield f"{pair.name}/segments/{name}/{column}", values


def _value_tensors(pair: Pair, kept: TokenValues) -> Iterator[tuple[str, NDArray[Any]]]:
    """Ascending within each step and class."""
    values, steps, classes = kept.sorted()
    order = np.lexsort((classes, steps))
    keys, counts = np.unique(np.stack([steps, classes], axis=1), axis=0, return_counts=True)
    yield f"{pair.name}/values", values[order]
    yield f"{pair.name}/value_groups", np.column_stack([keys, counts]).astype(np.int64)


def _joined(parts: Sequence[NDArray[Any]], kind: type) -> NDArray[Any]:
    return np.concatenate([*parts, np.empty(0, dtype=kind)])


def _header(place: str, text: str) -> Header:
    with suppress(ValueError):
        tag = json.loads(text)
        if isinstance(tag, dict) and isinstance(tag.get("version"), int) and tag["version"] > STATES_VERSION:
            reads = f"states of version {tag['version']}, this tool reads up to {STATES_VERSION}"
            raise ReportError(f"{place}: {reads}; upgrade rollout-audit")
    try:
        return Header.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ReportError(f"{place}: damaged states, {where}: {first['msg']}; analyze the dump again") from error


def _pair(header: PairHeader) -> Pair:
    return Pair(header.name, header.training, header.rollout, header.meaning)


def _plan(place: str, header: Header, of_pair: PairHeader) -> PairPlan:
    """Cells are only read under the very cuts that they were counted between."""
    pairs = tuple(map(_pair, header.pairs))
    own = {p.name: p.correction for p in header.presets if pair_for(p.correction.mode, pairs).name == of_pair.name}
    plan = PairPlan(
        own,
        tuple(of_pair.extra_cuts),
        tuple(of_pair.extra_clamps),
        tuple(of_pair.token_caps),
        keep_values=of_pair.keep_values,
    )
    if list(plan.grid.cuts) != of_pair.cuts:
        raise ReportError(
            f"{place}: rollout-audit {header.tool} counted between other cuts than this version; analyze the dump again"
        )
    return plan


def _options(report: Report, header: Header) -> Options:
    settings = report.settings
    return Options(
        mode=Mode(settings.mode),
        presets=tuple(header.presets),
        reference=settings.reference,
        trainer=settings.trainer,
        on_fault=settings.on_fault,
        steps=_steps(settings.steps),
        limit=settings.limit,
        chunk_tokens=settings.chunk_tokens,
        sweep=(header.grid or default_grid()) if header.sweep else None,
        named=() if report.sweep is None else tuple(report.sweep.named),
    )


def _steps(text: str | None) -> tuple[int | None, int | None] | None:
    if text is None:
        return None
    first, _, stop = text.partition(":")
    return int(first) if first else None, int(stop) if stop else None


def _inputs(report: Report, header: Header) -> tuple[Input, ...]:
    return tuple(_input(given, values) for given, values in zip(report.inputs, header.values, strict=True))


def _input(given: InputFile, values: int) -> Input:
    return Input(given.name, given.format, given.size, given.rows, given.digest, values)


def _state(
    basis: Basis, header: Header, report: Report, rows: Mapping[str, NDArray[Any]], tensors: Mapping[str, NDArray[Any]]
) -> PassState:
    numbers = {name: i for i, name in enumerate(basis.names)}
    files = np.array([numbers[name] for name in rows["file"].tolist()], dtype=np.float64)
    columns = {name: column.astype(np.float64) for name, column in rows.items() if name not in ("uid", "file")}
    common = {"file": files} | {name: columns[name] for name in COMMON if name in columns}
    pairs = {pair.name: _pair_state(pair, basis, columns, tensors) for pair in basis.pairs}
    pairs[basis.primary.name].worst = _worst(report, numbers)
    return PassState(
        pairs={str(name): state for name, state in pairs.items()},
        common=RowTable([common]),
        uids=[tuple(map(str, rows["uid"].tolist()))],
        sample=RowTable([dict.fromkeys(("training", "rollout", "position", "row_length"), np.empty(0))]),
        tokens=header.tokens,
    )


def _pair_state(
    pair: Pair, basis: Basis, columns: Mapping[str, Array], tensors: Mapping[str, NDArray[Any]]
) -> PairState:
    own = {name.removeprefix(f"{pair.name}/"): c for name, c in columns.items() if name.startswith(f"{pair.name}/")}
    if pair == basis.primary:
        own = {name: c for name, c in columns.items() if name not in COMMON and "/" not in name}
    segments: dict[str, dict[str, Array]] = {}
    prefix = f"{pair.name}/segments/"
    for name, tensor in sorted(tensors.items()):
        if name.startswith(prefix):
            correction, _, column = name.removeprefix(prefix).rpartition("/")
            segments.setdefault(correction, {})[column] = tensor
    return PairState(
        rows=RowTable([{"valid_tokens": columns["valid_tokens"], **own}]),
        segments={name: RowTable([table]) for name, table in segments.items()},
        cells=_cells(pair, tensors),
        values=_values(pair, tensors),
    )


def _cells(pair: Pair, tensors: Mapping[str, NDArray[Any]]) -> CellTable:
    names = ("cells", "counts", "sum_u", "sum_u_sq")
    index, counts, sum_u, sum_u_sq = (tensors[f"{pair.name}/{name}"] for name in names)
    parts, start = {}, 0
    for step, its_class, size in tensors[f"{pair.name}/groups"].tolist():
        span, start = slice(start, start + size), start + size
        parts[step, its_class] = Cells(index[span].astype(np.int64), counts[span], sum_u[span], sum_u_sq[span])
    if not start == len(index) == len(counts) == len(sum_u) == len(sum_u_sq):
        raise ValueError(f"{pair.name}/cells: {len(index)} entries for {start} cells")
    return CellTable(parts)


def _values(pair: Pair, tensors: Mapping[str, NDArray[Any]]) -> TokenValues:
    size = int(tensors[f"{pair.name}/counts"].sum())
    if f"{pair.name}/values" not in tensors:
        return TokenValues([], size)
    step, its_class, counts = tensors[f"{pair.name}/value_groups"].T
    values = tensors[f"{pair.name}/values"]
    return TokenValues([(values, np.repeat(step, counts), np.repeat(its_class, counts))], size)


def _worst(report: Report, numbers: Mapping[str, int]) -> WorstTokens:
    return WorstTokens(
        [
            WorstToken(-abs(t.log_ratio), numbers[t.file], t.row, t.position, t.training_log_prob, t.rollout_log_prob)
            for t in report.worst_tokens
        ]
    )
