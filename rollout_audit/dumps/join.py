"""A second dump beside the first, row by row by `uid`: what the rollout wrote and what the trainer wrote, as one."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np

from rollout_audit.dumps.chunk import Finding
from rollout_audit.dumps.columns import Batch, Ragged, Scalars, end_to_end, rows_taken
from rollout_audit.dumps.fields import FIELDS, TRAINING, Mapped
from rollout_audit.dumps.opening import reopened
from rollout_audit.dumps.per_row import as_names, one_per_row, steps_of
from rollout_audit.errors import DumpError, MissingFieldError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from rollout_audit.dumps.columns import Source
    from rollout_audit.dumps.opening import FileInfo

__all__ = ["Join", "JoinedSource", "join_dumps"]

Key: TypeAlias = "str | tuple[int, str]"
"""A uid, or step and uid where uids begin anew with each step"""

_AnyKey = TypeVar("_AnyKey", bound="Key")

_OF_THE_TRAINER = (*sorted(TRAINING), "response_mask", "advantages")
"""Taken from the second dump whatever the first has: it stands nearer to the loss"""
_ROW_NAME = re.compile(r".+\.\w+#\d+")
"""What `convert` calls a row without uid"""
_UNITS_HELD = 8
_WHOLE = 2**31
"""tokens of a unit that is read at once"""


class _Named(NamedTuple):
    """A row that can be joined."""

    step: int
    uid: str
    place: tuple[int, int, int]
    """file, row group, row in the row group"""


_Side: TypeAlias = "Sequence[_Named]"


class _Counts(NamedTuple):
    matched: int
    ours: int
    theirs: int


@dataclass(frozen=True, slots=True)
class Join:
    """The second dump: where each key stands in it, and which of its fields are taken."""

    infos: tuple[FileInfo, ...]
    layout: str | None
    fields: tuple[str, ...]
    places: Mapping[Key, tuple[int, int, int]]
    """file, row group, row in the row group"""
    by_step: bool

    @property
    def digest(self) -> str:
        return hashlib.sha256("".join(info.digest for info in self.infos).encode()).hexdigest()


def join_dumps(
    first: Sequence[FileInfo], second: Sequence[FileInfo], layout: str | None
) -> tuple[list[FileInfo], Join, list[Finding]]:
    """The files of the first dump with the fields of the second.

    Rows without a partner are left out on both sides, and counted.

    Raises:
        UsageError: no uid in one of them, or one that names several rows.
        DumpError: no row has a partner.
        MissingFieldError: the second dump holds nothing of the trainer.
    """
    if bare := next((info for info in second if info.lacks_training), None):
        raise MissingFieldError(f"{bare.file.name}: no log-probs of the trainer to join, {bare.lacks_training}")
    ours, theirs = _named_rows(first, layout), _named_rows(second, layout)
    if ours and theirs and all(_ROW_NAME.fullmatch(row.uid) for side in (ours, theirs) for row in side):
        raise UsageError(
            f"{first[0].file.name}: its uids, such as {ours[0].uid!r}, only name rows that had none: nothing to "
            "join by; name the columns that agree with --map uid=COLUMN"
        )
    by_step = any(_repeated(row.uid for row in side) is not None for side in (ours, theirs))
    places = {_key(row.step, row.uid, by_step): row.place for row in theirs}
    for side, infos in ((ours, first), (theirs, second)):
        _check_distinct(side, infos)
    keys = {_key(row.step, row.uid, by_step) for row in ours}
    matched = keys & places.keys()
    if not matched:
        raise DumpError(_nothing_matched(ours, theirs, first, second, by_step=by_step))
    counts = _Counts(len(matched), sum(info.rows for info in first), sum(info.rows for info in second))
    made = Join(tuple(second), layout, _taken(first, second), places, by_step)
    return (
        [_with_fields(info, made) for info in first],
        made,
        [*_unmatched(counts), *_steps_apart(ours, theirs, by_step=by_step)],
    )


def _check_distinct(rows: _Side, infos: Sequence[FileInfo]) -> None:
    """Raises UsageError where step and uid do not tell two rows of one dump apart."""
    if (again := _repeated((row.step, row.uid) for row in rows)) is not None:
        one, two, *_ = [row.place for row in rows if (row.step, row.uid) == again]
        names = [infos[place[0]].file.name for place in (one, two)]
        where = names[0] if names[0] == names[1] else " and ".join(names)
        raise UsageError(
            f"{where}: several rows of step {again[0]} have the uid {again[1]!r}, so they cannot be joined by it; join "
            "one run at a time, or name a column that tells them apart with --map uid=COLUMN"
        )


def _nothing_matched(
    ours: _Side, theirs: _Side, first: Sequence[FileInfo], second: Sequence[FileInfo], *, by_step: bool
) -> str:
    for rows, infos in ((ours, first), (theirs, second)):
        if not rows:
            kind = "rows with a uid" if any(info.rows for info in infos) else "rows"
            return f"{infos[0].file.name}: zero {kind}, nothing to join"
    here, there = (f"{rows[0].uid!r}{f' of step {rows[0].step}' if by_step else ''}" for rows in (ours, theirs))
    agree = "uid=COLUMN" + (", or step=COLUMN: uids begin anew with each step" if by_step else "")
    return (
        f"{first[0].file.name}: no uid of it is in {second[0].file.name} (here {here}, there {there}); "
        f"name the columns that agree with --map {agree}"
    )


def _taken(first: Sequence[FileInfo], second: Sequence[FileInfo]) -> tuple[str, ...]:
    there = [f.name for f in FIELDS if all(f.name in info.fields for info in second)]
    here = {f.name for f in FIELDS if any(f.name in info.fields for info in first)}
    return tuple(name for name in there if name in _OF_THE_TRAINER or name not in {*here, "step", "uid"})


def _unmatched(counts: _Counts) -> list[Finding]:
    matched, ours, theirs = counts
    if matched == ours == theirs:
        return []
    text = (
        f"joined by uid: {ours - matched} of {ours} rows have no partner in the second dump, "
        f"{theirs - matched} of its {theirs} rows have none in the first; they are left out"
    )
    return [Finding("join_unmatched", "warning", text, count=ours + theirs - 2 * matched)]


def _steps_apart(ours: _Side, theirs: _Side, *, by_step: bool) -> list[Finding]:
    """Where uids begin anew with each step, or may do so, rows of different steps are no partners."""
    here, there = ({row.step for row in rows} for rows in (ours, theirs))
    if by_step and not (here <= there or there <= here):
        text = "uids begin anew with each step, and"
    elif not by_step and len(here) == len(there) == 1 and here != there and 0 not in here | there:
        text = "joined by uid alone, and"
    else:
        return []
    text += f" the steps are not the same ({_span(here)} here, {_span(there)} there): do both count from one number?"
    return [Finding("join_steps", "warning", text, count=len(here ^ there))]


def _span(steps: Collection[int]) -> str:
    return f"{min(steps)} to {max(steps)}" if len(steps) > 1 else str(*steps)


def _key(step: int, uid: str, by_step: bool) -> Key:  # noqa: FBT001 - part of the key's type
    return (step, uid) if by_step else uid


def _repeated(keys: Iterable[_AnyKey]) -> _AnyKey | None:
    return next((key for key, count in Counter(keys).items() if count > 1), None)


def _named_rows(infos: Sequence[FileInfo], layout: str | None) -> list[_Named]:
    """Every row that has a uid, read from the columns of names and steps alone."""
    found: list[_Named] = []
    for index, info in enumerate(infos):
        if "uid" not in info.fields:
            raise UsageError(f"{info.file.name}: no uid to join by; name its column with --map uid=COLUMN")
        source = reopened(info, layout)
        for group in range(len(info.row_groups)):
            row = 0
            for batch in _read(source, info, ("uid", "step"), group):
                steps, uids = _names(batch, info)
                named = zip(steps, uids, range(row, row + batch.rows), strict=True)
                found += [_Named(step, uid, (index, group, at)) for step, uid, at in named if uid]
                row += batch.rows
    return found


def _read(source: Source, info: FileInfo, fields: Collection[str], group: int) -> Iterator[Batch]:
    columns = {info.fields[name].column for name in fields if name in info.fields}
    return source.batches(columns, size_by=info.lead, chunk_tokens=_WHOLE, row_groups=[group])


def _names(batch: Batch, info: FileInfo) -> tuple[list[int], tuple[str, ...]]:
    mapping = {name: mapped.column for name, mapped in info.fields.items()}
    uids = as_names(one_per_row("uid", batch.columns[mapping["uid"]]))
    return steps_of(batch, mapping, info.step).values.tolist(), uids or ()


def _with_fields(info: FileInfo, made: Join) -> FileInfo:
    other = made.infos[0]
    columns = [replace(other.column(other.fields[name].column), name=_called(name)) for name in made.fields]
    fields = {**info.fields, **{name: Mapped(_called(name), "join") for name in made.fields}}
    lacks = "" if TRAINING & fields.keys() else info.lacks_training
    digest = hashlib.sha256((info.digest + made.digest).encode()).hexdigest()
    return replace(info, columns=(*info.columns, *columns), fields=fields, lacks_training=lacks, digest=digest)


def _called(field: str) -> str:
    return f"{field} of the joined dump"


class JoinedSource:
    """A file of the first dump whose batches carry the columns of the second; rows without a partner are left out."""

    def __init__(self, source: Source, info: FileInfo, made: Join) -> None:
        self._source = source
        self._info = info
        self._join = made
        self._units: OrderedDict[tuple[int, int], Batch] = OrderedDict()

    def batches(
        self, columns: Collection[str], *, size_by: str, chunk_tokens: int, row_groups: Sequence[int]
    ) -> Iterator[Batch]:
        """As `Source.batches`."""
        joined = [name for name in self._join.fields if _called(name) in columns]
        keys = {self._info.fields[name].column for name in ("uid", "step") if name in self._info.fields}
        own = {*columns, *keys} - set(map(_called, joined))
        for batch in self._source.batches(own, size_by=size_by, chunk_tokens=chunk_tokens, row_groups=row_groups):
            places = self._places(batch)
            kept = batch.select(np.array([place is not None for place in places], np.bool_))
            there = [place for place in places if place is not None]
            if there:
                yield Batch(
                    kept.row_numbers, {**kept.columns, **{_called(n): self._gathered(n, there) for n in joined}}
                )

    def _places(self, batch: Batch) -> list[tuple[int, int, int] | None]:
        steps, uids = _names(batch, self._info)
        keys = (_key(step, uid, self._join.by_step) for step, uid in zip(steps, uids, strict=True))
        return [self._join.places.get(key) for key in keys]

    def _gathered(self, field: str, places: Sequence[tuple[int, int, int]]) -> Ragged | Scalars:
        """The second dump's column at these places, in their order."""
        at: dict[tuple[int, int], list[int]] = {}
        for index, (file, group, _) in enumerate(places):
            at.setdefault((file, group), []).append(index)
        parts = [
            rows_taken(self._column(*unit, field), np.array([places[i][2] for i in own])) for unit, own in at.items()
        ]
        order = np.argsort(np.concatenate(list(at.values())), kind="stable")
        return rows_taken(end_to_end(parts), order)

    def _column(self, file: int, group: int, field: str) -> Ragged | Scalars:
        return self._unit(file, group).columns[self._join.infos[file].fields[field].column]

    def _unit(self, file: int, group: int) -> Batch:
        """One row group of the second dump; the last few are kept."""
        if (file, group) not in self._units:
            info = self._join.infos[file]
            source = reopened(info, self._join.layout)
            (self._units[file, group],) = _read(source, info, self._join.fields, group)
            if len(self._units) > _UNITS_HELD:
                self._units.popitem(last=False)
        self._units.move_to_end((file, group))
        return self._units[file, group]
