"""What a trainer has logged, read from the exports that people have: metric by step.

W&B history as CSV, JSONL or Parquet and its chart export (`run - metric` columns); TensorBoard's CSV and JSON of one
tag, its long form with a `tag` column, and its event files; the trainer's own JSONL, nested or flat; transformers'
`trainer_state.json` and ms-swift's `logging.jsonl`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollout_audit.dumps.event_files import is_event_file
from rollout_audit.dumps.log_files import SUFFIXES, Record, is_log_file, number, read_log_file
from rollout_audit.errors import DumpNotFoundError, UnreadableFileError

__all__ = ["Log", "read_log", "slashed"]

STEP_KEYS = (
    "global_step", "global_steps", "train/global_step", "training/global_step", "trainer/global_step", "train/step",
    "trainer/step", "training/step", "rollout/step", "rollout_id", "training_step", "global_step/max_steps",
    "iteration", "step", "steps", "Step", "_step",
)  # fmt: skip
"""In this order: a counter of the trainer's own before W&B's, which counts calls"""
_SCALAR = {"wall_time", "step", "value"}
_TAGS = ("tag", "metric", "key")
_RUNS = ("run", "run_name", "dir_name")
_CHART = " - "
_EXTREMES = ("__MIN", "__MAX")
_TAG_IN_NAME = re.compile(r"(?:.*-)?tag-(.+?)(?: ?\(\d+\))?")
_OF_ALL = re.compile(r"\d+/\d+")


@dataclass(frozen=True)
class Log:
    """Logged values."""

    files: tuple[str, ...]
    step_keys: tuple[str, ...]
    """the keys or columns that steps were read from"""
    series: Mapping[str, Mapping[int, float]]
    """key → step → value, NaN and infinities where they were logged as such"""
    of_file_names: frozenset[str] = frozenset()
    """keys that the name of a file gave, where `/` is spelt `_`"""
    notes: tuple[str, ...] = ()


class _Stepless(UnreadableFileError):
    """Rows without a step: in a folder, a file of other things."""


@dataclass
class _Gathered:
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    step_keys: dict[str, None] = field(default_factory=dict)
    of_file_names: set[str] = field(default_factory=set)
    cut: list[str] = field(default_factory=list)
    left_out: list[tuple[str, _Stepless]] = field(default_factory=list)
    stepless: int = 0
    repeated: int = 0

    def put(self, key: str, step: int, value: float) -> None:
        values = self.series.setdefault(key, {})
        self.repeated += step in values and repr(values[step]) != repr(value)
        values[step] = value

    @property
    def notes(self) -> Iterator[str]:
        yield from self.cut
        if self.left_out:
            yield f"files of the folder without a step, left out: {', '.join(name for name, _ in self.left_out)}"
        if self.stepless:
            yield f"rows of the log without a whole number for their step, left out: {self.stepless:,}"
        if self.repeated:
            yield f"values logged again at the same step, of which the last counts: {self.repeated:,}"


def read_log(paths: str | Path | Sequence[str | Path]) -> Log:
    """Read one log, which may be several files (TensorBoard exports one a tag) or a folder of them.

    An empty cell, a null, and NaN in CSV or Parquet (which pandas writes for an empty cell) are values that were not
    logged; `NaN` in JSON was logged.

    Raises:
        DumpNotFoundError: no such file, or a folder without one of a known suffix.
        UnreadableFileError: not as its suffix says, no step or no value in it, or the runs of several trainings. A last
            line that was cut off is left out, with a note.
    """
    files = _files([paths] if isinstance(paths, str | Path) else paths)
    found = _Gathered()
    for file, searched in files:
        try:
            _gather(file, found)
        except _Stepless as error:
            if not searched:
                raise
            found.left_out.append((file.name, error))
    if found.left_out and not any(found.series.values()):
        raise found.left_out[0][1]
    if not any(found.series.values()):
        raise UnreadableFileError(f"--log {files[0][0]}: no number at any step")
    names = tuple(file.name for file, _ in files if file.name not in dict(found.left_out))
    return Log(names, tuple(found.step_keys), found.series, frozenset(found.of_file_names), tuple(found.notes))


def _files(paths: Sequence[str | Path]) -> list[tuple[Path, bool]]:
    """Each file, and whether it was found in a folder, where other things lie too."""
    files: list[tuple[Path, bool]] = []
    for path in map(Path, paths):
        if not path.exists():
            raise DumpNotFoundError(f"--log {path}: no such file")
        inside = sorted(filter(is_log_file, path.rglob("*"))) if path.is_dir() else [path]
        if not inside:
            raise DumpNotFoundError(f"--log {path}: holds none of {', '.join(SUFFIXES)}")
        files += [(file, path.is_dir()) for file in inside]
    if folders := dict.fromkeys(file.parent.name for file, _ in files if is_event_file(file)):
        _one_run(files[0][0].parent, folders)
    return files


def _gather(file: Path, found: _Gathered) -> None:
    """Read one file into what was found so far."""
    read = read_log_file(file)
    records = read.records
    found.cut += read.notes
    keys = dict.fromkeys(key for record in records for key in record)
    names = {_plain(key): key for key in keys}
    tag = next((names[name] for name in _TAGS if name in names), None)
    if tag is not None and {"step", "value"} <= names.keys():
        _long_form(file, records, names, tag, found)
    elif names.keys() >= {"step", "value"} and names.keys() <= _SCALAR:
        _one_tag(file, records, names, found)
    elif records:
        _wide_form(file, [_without_run(file, keys, record) for record in records], found)


def _plain(key: str) -> str:
    return key.strip().lower().replace(" ", "_")


def _long_form(file: Path, records: Iterable[Record], names: Mapping[str, str], tag: str, found: _Gathered) -> None:
    """A row a value."""
    if run := next((names[name] for name in _RUNS if name in names), None):
        _one_run(file, dict.fromkeys(str(record[run]) for record in records))
    _put_rows(((str(r[tag]), r.get(names["step"]), r.get(names["value"])) for r in records), names["step"], found)


def _one_tag(file: Path, records: Iterable[Record], names: Mapping[str, str], found: _Gathered) -> None:
    """TensorBoard downloads one tag as `run-RUN-tag-TAG.csv`, and the browser a second one as `… (1).csv`."""
    named = _TAG_IN_NAME.fullmatch(file.stem)
    key = named[1] if named else file.stem
    found.of_file_names.add(key)
    _put_rows(((key, r.get(names["step"]), r.get(names["value"])) for r in records), names["step"], found)


def _put_rows(rows: Iterable[tuple[str, Any, Any]], step_key: str, found: _Gathered) -> None:
    found.step_keys[step_key] = None
    for key, at, value in rows:
        step, one = _whole(at), number(value)
        found.stepless += step is None
        if step is not None and one is not None:
            found.put(key, step, one)


def _wide_form(file: Path, records: Iterable[Record], found: _Gathered) -> None:
    """A row a step, or several that each hold some of its metrics."""
    records = list(records)
    seen = {slashed(key): key for record in records for key, value in record.items() if value is not None}
    step_key = next((seen[key] for key in STEP_KEYS if key in seen), None)
    if step_key is None:
        raise _Stepless(f"--log {file}: no step in it; one of {', '.join(STEP_KEYS)} must say which")
    found.step_keys[step_key] = None
    for record in records:
        step = _whole(record.get(step_key))
        found.stepless += step is None
        for key, value in record.items() if step is not None else ():
            if slashed(key) not in STEP_KEYS and (one := number(value)) is not None:
                found.put(key, step, one)  # type: ignore[arg-type] # None is left out by the loop


def slashed(key: str) -> str:
    """W&B writes nested dicts with dots; a key that has slashes keeps its dots."""
    return key if "/" in key else key.replace(".", "/")


def _without_run(file: Path, keys: Iterable[str], record: Record) -> Record:
    """`run - metric` of W&B's charts as `metric`, without the extremes that it adds."""
    runs = dict.fromkeys(key.rpartition(_CHART)[0] for key in keys if _CHART in key)
    if not runs:
        return record
    _one_run(file, runs)
    return {key.rpartition(_CHART)[2]: value for key, value in record.items() if not key.endswith(_EXTREMES)}


def _one_run(file: Path, runs: Mapping[str, object]) -> None:
    if len(runs) > 1:
        first, second, *_ = runs
        raise UnreadableFileError(
            f"--log {file}: holds {len(runs)} runs ({first}, {second}{', …' if len(runs) > 2 else ''}); export one"
        )


def _whole(value: Any) -> int | None:
    """A whole number; `5/100`, of a step and the last one, is 5."""
    if isinstance(value, str) and _OF_ALL.fullmatch(value):
        value = value.partition("/")[0]
    found = number(value)
    return int(found) if found is not None and found.is_integer() else None
