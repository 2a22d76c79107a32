"""The evidence of several reports as that of one: what other machines or earlier runs have read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit.again import MERGED, NO_SAMPLE, UNLOGGED
from rollout_audit.audit.assemble import assemble
from rollout_audit.audit.causes.gather import causes_of_rows
from rollout_audit.audit.passes import EXACT_QUANTILES_UP_TO, PassState
from rollout_audit.audit.plan import Basis, Input, Options
from rollout_audit.audit.quirks import without_its_figures
from rollout_audit.audit.report import CauseReport, Report
from rollout_audit.audit.states import Faults, Saved
from rollout_audit.audit.verdict import timestamp
from rollout_audit.audit.worst import row_name
from rollout_audit.dumps.chunk import SEVERITIES
from rollout_audit.dumps.naming import natural_key
from rollout_audit.errors import UsageError
from rollout_audit.statistics.pair import PairState, RowTable, TokenValues
from rollout_audit.statistics.tail import WorstTokens
from rollout_audit.trainers.registry import get_trainer

__all__ = ["merged_report"]

Array = NDArray[np.float64]

NAMED = 3
"""Corrections that an error names"""


def merged_report(parts: Sequence[Saved], *, per_step_grid: bool = False) -> Report:
    """One report on everything that the parts have read, in whatever order they are given.

    `per_step_grid` tries the grid on every step by itself too, which reports without a sweep cannot.

    Raises:
        UsageError: fewer than two parts, other corrections or columns, a row that two of them hold, or no grid to try.
    """
    if len(parts) < 2:
        raise UsageError(f"merge takes two reports or more, not {len(parts)}")
    for part in parts[1:]:
        _check_alike(parts[0], part)
    for one, two in combinations(parts, 2):
        _check_apart(one, two)
    if per_step_grid and not parts[0].header.sweep:
        raise UsageError(f"--per-step-grid: {parts[0].place} has no sweep; analyze the dumps without --no-sweep")
    merged = _Merged(sorted(parts, key=_place), per_step_grid)
    basis = replace(merged.basis, causes=tuple(merged.causes()))
    report = assemble(basis, merged.state, merged.faults, timestamp())
    options = basis.options
    if options.trainer is None:
        return report
    return without_its_figures(report, get_trainer(options.trainer), options.corrections[options.reference])


_ALIKE: Mapping[str, Callable[[Saved], object]] = {
    "the columns compared": lambda saved: [(pair.training, pair.rollout) for pair in saved.basis.pairs],
    "--mode": lambda saved: saved.basis.mode.value,
    "the corrections": lambda saved: [(p.name, p.correction) for p in saved.header.presets],
    "the reference correction": lambda saved: saved.basis.options.reference,
    "the trainer": lambda saved: saved.basis.options.trainer or "none",
    "the grid of the sweep": lambda saved: (saved.header.sweep, saved.header.grid),
    "the cuts": lambda saved: [(pair.cuts, pair.extra_clamps, pair.token_caps) for pair in saved.header.pairs],
}


def _check_alike(one: Saved, two: Saved) -> None:
    for what, of in _ALIKE.items():
        mine, theirs = of(one), of(two)
        if mine != theirs:
            raise UsageError(
                f"{one.place} and {two.place} differ in {what}{_difference(mine, theirs)}, so they cannot be merged; "
                "analyze both with the same options"
            )


def _difference(one: object, two: object) -> str:
    """What differs, where it is short enough for one line."""
    if isinstance(one, str) and isinstance(two, str):
        return f" ({one} against {two})"
    if isinstance(one, list) and isinstance(two, list):
        names = list(dict.fromkeys(item[0] for item in [*one, *two] if (item in one) != (item in two)))
        if names and all(isinstance(name, str) for name in names):
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            return f" ({', '.join(names[:NAMED])}{more})"
    return ""


def _check_apart(one: Saved, two: Saved) -> None:
    """A file may have been read in two parts, and files of equal shape share a safetensors header: rows decide."""
    mine, theirs = one.basis.inputs, two.basis.inputs
    for a, b in product(range(len(mine)), range(len(theirs))):
        if mine[a].digest == theirs[b].digest and len(common := np.intersect1d(_marks(one, a), _marks(two, b))):
            raise UsageError(
                f"{one.place} and {two.place} both hold {one.basis.names[a]} ({len(common)} rows of it): "
                "merging would count them twice; leave one of the reports out"
            )


def _marks(saved: Saved, file: int) -> NDArray[np.void]:
    """Of each row of a file, its number and the sums of its log-probs as bytes."""
    common = saved.state.common.columns()
    rows = saved.state.pairs[saved.basis.primary.name].rows.columns()
    of_file = common["file"] == file
    marks = np.stack([common["row"], rows["sum_log_pi"], rows["sum_log_mu"], rows["valid_tokens"]], axis=1)[of_file]
    return np.ascontiguousarray(marks).view(np.dtype((np.void, marks.itemsize * 4)))[:, 0]


def _place(saved: Saved) -> tuple[object, ...]:
    """By the first input, ties by what was read of it: independent of the order of the arguments."""
    first = saved.basis.inputs[0]
    rows = saved.state.common.columns()
    sums = saved.state.pairs[saved.basis.primary.name].rows.columns()["sum_log_pi"]
    return natural_key(first.name), first.digest, float(rows["step"].min()), float(rows["row"].min()), sums.tolist()


@dataclass(frozen=True)
class _Merged:
    """Parts in an order of their own."""

    parts: Sequence[Saved]
    per_step_grid: bool

    @cached_property
    def basis(self) -> Basis:
        first = self.parts[0].basis
        plans = {pair: replace(plan, keep_values=self.keeps_values) for pair, plan in first.plans.items()}
        notes = (NO_SAMPLE, f"{MERGED} {len(self.parts)} reports.", *self._left_out())
        return replace(
            first,
            options=self._options(),
            inputs=tuple(self._inputs),
            plans=plans,
            notes=notes,
        )

    def _left_out(self) -> Iterator[str]:
        """What parts say that takes the tokens, and is of none but themselves."""
        trainer = self.parts[0].basis.options.trainer
        if trainer is None:
            return
        log = ", nor the comparison with its log" if any(part.report.log for part in self.parts) else ""
        yield (
            f"What {trainer} {UNLOGGED}: it is not here, nor the quirks that show "
            f"in it{log}. `analyze --trainer {trainer} --config` of all dumps at once has it."
        )

    def causes(self) -> list[CauseReport]:
        """What the rows of all parts tell together, then each part's own, whose tokens are not kept."""
        rows = self.basis.evidence(self.state)[self.basis.primary].rows
        together = [CauseReport(**asdict(cause)) for cause in causes_of_rows(self.basis, rows)]
        told = {cause.cause for cause in together}
        found = [*together, *(cause for cause in self._of_parts() if cause.cause not in told)]
        return sorted(found, key=lambda cause: (SEVERITIES.index(cause.severity), -cause.confidence))

    def _of_parts(self) -> Iterator[CauseReport]:
        """Of one cause the surest."""
        found: dict[str, list[tuple[CauseReport, str]]] = {}
        for number, part in enumerate(self.parts):
            for cause in part.report.causes:
                found.setdefault(cause.cause, []).append((cause, self._files[number, 0].name))
        for told in found.values():
            cause, file = max(told, key=lambda t: t[0].confidence)
            where = f"in {len(told)} of the {len(self.parts)} merged reports, here in that which begins with {file}"
            yield cause.model_copy(update={"evidence": f"{where}: {cause.evidence}"})

    @cached_property
    def keeps_values(self) -> bool:
        """As analyzing all files at once would."""
        return sum(given.values for given in self._inputs) <= EXACT_QUANTILES_UP_TO

    @cached_property
    def state(self) -> PassState:
        total = PassState()
        for number, part in enumerate(self.parts):
            total.absorb(self._renumbered(number, part))
        order = np.lexsort([total.common.columns()[name] for name in ("row", "file")])
        uids = [uid for part in total.uids if part is not None for uid in part]
        return replace(
            total,
            common=_ordered(total.common, order),
            uids=[tuple(uids[i] for i in order)],
            pairs={name: self._ordered_pair(state, order) for name, state in total.pairs.items()},
            sample=self.parts[0].state.sample,
        )

    @cached_property
    def faults(self) -> Faults:
        findings = {
            replace(finding, file=None if finding.file is None else self._new_name(number, finding.file)): None
            for number, part in enumerate(self.parts)
            for finding in part.faults.findings
        }
        dropped = [
            replace(row, file=self._new_name(number, row.file))
            for number, part in enumerate(self.parts)
            for row in part.faults.dropped
        ]
        return Faults(tuple(findings), tuple(dict.fromkeys(dropped)))

    def _options(self) -> Options:
        every = [part.basis.options for part in self.parts]
        same = all((o.steps, o.limit) == (every[0].steps, every[0].limit) for o in every)
        return replace(
            every[0],
            on_fault="drop" if any(o.on_fault == "drop" for o in every) else "stop",
            steps=every[0].steps if same else None,
            limit=every[0].limit if same else None,
            named=tuple(dict.fromkeys(name for o in every for name in o.named)),
            chunk_tokens=max(o.chunk_tokens for o in every),
            per_step_grid=self.per_step_grid,
        )

    @cached_property
    def _files(self) -> Mapping[tuple[int, int], Input]:
        """(part, file) → the input that it is in the merged report."""
        kept: list[Input] = []
        found: dict[tuple[int, int], Input] = {}
        for number, part in enumerate(self.parts):
            for file, given in enumerate(part.basis.inputs):
                found[number, file] = _named(given, kept, self._read_in_parts(number, file, found))
                kept.append(found[number, file])
        return found

    def _read_in_parts(self, number: int, file: int, found: Mapping[tuple[int, int], Input]) -> Input | None:
        """The same file in an earlier part, which has read other rows of it."""
        part, given = self.parts[number], self.parts[number].basis.inputs[file]
        rows = _rows_of(part, file)
        for (other, its_file), known in found.items():
            theirs = self.parts[other].basis.inputs[its_file]
            same = (theirs.name, theirs.digest) == (given.name, given.digest)
            if other != number and same and not np.intersect1d(rows, _rows_of(self.parts[other], its_file)).size:
                return known
        return None

    @cached_property
    def _inputs(self) -> list[Input]:
        return sorted(dict.fromkeys(self._files.values()), key=lambda given: natural_key(given.name))

    def _new_name(self, number: int, name: str) -> str:
        return self._files[number, self.parts[number].basis.names.index(name)].name

    def _renumbered(self, number: int, part: Saved) -> PassState:
        """Its evidence with files by their number and name in the merged report."""
        numbers = {given: i for i, given in enumerate(self._inputs)}
        new = np.array([numbers[self._files[number, file]] for file in range(len(part.basis.inputs))])
        common = part.state.common.columns()
        old = common["file"].astype(int)
        pairs = {name: _renumbered_worst(state, new) for name, state in part.state.pairs.items()}
        return PassState(
            pairs=pairs,
            common=RowTable([{**common, "file": new[old].astype(np.float64)}]),
            uids=[tuple(self._uids(part, old, new))],
            tokens=part.state.tokens,
        )

    def _uids(self, part: Saved, old: NDArray[np.int64], new: NDArray[np.int64]) -> Iterator[str]:
        """As recorded; a row that is called by its file takes the file's new name."""
        rows = part.state.common.columns()["row"].astype(int).tolist()
        names = [given.name for given in self._inputs]
        uids = [uid for given in part.state.uids if given is not None for uid in given]
        for uid, file, row in zip(uids, old.tolist(), rows, strict=True):
            yield row_name(names, int(new[file]), row) if uid == row_name(part.basis.names, file, row) else uid

    def _ordered_pair(self, state: PairState, order: NDArray[np.int64]) -> PairState:
        values = state.values if self.keeps_values else TokenValues([], state.values.size)
        return replace(state, rows=_ordered(state.rows, order), values=values)


def _rows_of(saved: Saved, file: int) -> Array:
    common = saved.state.common.columns()
    rows: Array = common["row"][common["file"] == file]
    return rows


def _named(given: Input, kept: Sequence[Input], known: Input | None) -> Input:
    """The input itself, under a name that no other file has."""
    if known is not None:
        return known
    taken = {other.name for other in kept}
    names = (given.name, *(f"{given.name}~{i}" for i in range(2, len(kept) + 3)))
    return replace(given, name=next(name for name in names if name not in taken))


def _ordered(table: RowTable, order: NDArray[np.int64]) -> RowTable:
    return RowTable([{name: column[order] for name, column in table.columns().items()}])


def _renumbered_worst(state: PairState, new: NDArray[np.int64]) -> PairState:
    return replace(state, worst=WorstTokens([t._replace(file=int(new[t.file])) for t in state.worst.tokens]))
