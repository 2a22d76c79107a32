"""What a trainer has logged, read from the exports that people have: metric by step.

W&B history as CSV, JSONL or Parquet and its chart export (`run - metric` columns); TensorBoard's CSV and JSON of one
tag, and its long form with a `tag` column; the trainer's own JSONL, nested or flat; transformers' `trainer_state.json`.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_audit.errors import DumpNotFoundError, UnreadableFileError

__all__ = ["Log", "read_log"]

STEP_KEYS = (
    "global_step", "global_steps", "train/global_step", "training/global_step", "trainer/global_step", "train/step",
    "rollout/step", "step", "steps", "Step", "_step",
)  # fmt: skip
"""In this order: a counter of the trainer's own before W&B's, which counts calls"""
_SCALAR = {"wall_time", "step", "value"}
_TAGS = ("tag", "metric", "key")
_RUNS = ("run", "run_name", "dir_name")
_CHART = " - "
_EXTREMES = ("__MIN", "__MAX")
_TAG_IN_NAME = re.compile(r"(?:.*-)?tag-(.+)")

Record = Mapping[str, Any]


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


@dataclass
class _Gathered:
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    step_keys: dict[str, None] = field(default_factory=dict)
    of_file_names: set[str] = field(default_factory=set)
    stepless: int = 0
    repeated: int = 0

    def put(self, key: str, step: int, value: float) -> None:
        values = self.series.setdefault(key, {})
        self.repeated += step in values
        values[step] = value

    @property
    def notes(self) -> Iterator[str]:
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
        UnreadableFileError: not as its suffix says, no step or no value in it, or the runs of several trainings.
    """
    files = _files([paths] if isinstance(paths, str | Path) else paths)
    found = _Gathered()
    for file in files:
        _gather(file, found)
    if not any(found.series.values()):
        raise UnreadableFileError(f"--log {files[0]}: no number at any step")
    names = tuple(file.name for file in files)
    return Log(names, tuple(found.step_keys), found.series, frozenset(found.of_file_names), tuple(found.notes))


def _files(paths: Sequence[str | Path]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise DumpNotFoundError(f"--log {path}: no such file")
        inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in _READERS) if path.is_dir() else [path]
        if not inside:
            raise DumpNotFoundError(f"--log {path}: holds none of {', '.join(_READERS)}")
        files += inside
    return files


def _gather(file: Path, found: _Gathered) -> None:
    """Read one file into what was found so far."""
    if (read := _READERS.get(file.suffix.lower())) is None:
        raise UnreadableFileError(f"--log {file}: of no known kind; give {', '.join(_READERS)}")
    try:
        records = read(file)
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise UnreadableFileError(f"--log {file}: cannot be read as {file.suffix} ({reason})") from error
    keys = dict.fromkeys(key for record in records for key in record)
    names = {_plain(key): key for key in keys}
    tag = next((names[name] for name in _TAGS if name in names), None)
    if tag is not None and {"step", "value"} <= names.keys():
        _long_form(file, records, names, tag, found)
    elif names.keys() >= {"step", "value"} and names.keys() <= _SCALAR:
        _one_tag(file, records, names, found)
    else:
        _wide_form(file, [_without_run(file, keys, record) for record in records], found)


def _plain(key: str) -> str:
    return key.strip().lower().replace(" ", "_")


def _long_form(file: Path, records: Iterable[Record], names: Mapping[str, str], tag: str, found: _Gathered) -> None:
    """A row a value."""
    if run := next((names[name] for name in _RUNS if name in names), None):
        _one_run(file, dict.fromkeys(str(record[run]) for record in records))
    _put_rows(((str(r[tag]), r.get(names["step"]), r.get(names["value"])) for r in records), names["step"], found)


def _one_tag(file: Path, records: Iterable[Record], names: Mapping[str, str], found: _Gathered) -> None:
    """TensorBoard downloads one tag as `run-RUN-tag-TAG.csv`."""
    named = _TAG_IN_NAME.fullmatch(file.stem)
    key = named[1] if named else file.stem
    found.of_file_names.add(key)
    _put_rows(((key, r.get(names["step"]), r.get(names["value"])) for r in records), names["step"], found)


def _put_rows(rows: Iterable[tuple[str, Any, Any]], step_key: str, found: _Gathered) -> None:
    found.step_keys[step_key] = None
    for key, at, value in rows:
        step, number = _whole(at), _number(value)
        found.stepless += step is None
        if step is not None and number is not None:
            found.put(key, step, number)


def _wide_form(file: Path, records: Iterable[Record], found: _Gathered) -> None:
    """A row a step, or several that each hold some of its metrics."""
    records = list(records)
    seen = {key for record in records for key, value in record.items() if value is not None}
    step_key = next((key for key in STEP_KEYS if key in seen), None)
    if step_key is None:
        raise UnreadableFileError(f"--log {file}: no step in it; one of {', '.join(STEP_KEYS)} must say which")
    found.step_keys[step_key] = None
    for record in records:
        step = _whole(record.get(step_key))
        found.stepless += step is None
        for key, value in record.items() if step is not None else ():
            if key not in STEP_KEYS and (number := _number(value)) is not None:
                found.put(key, step, number)  # type: ignore[arg-type] # None is left out by the loop


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
    number = _number(value)
    return int(number) if number is not None and number.is_integer() else None


def _number(value: Any) -> float | None:
    """A number, or text that spells one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _flat(tree: Record, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _rows_of(values: Iterable[Any]) -> list[Record]:
    """Objects as flat rows; `[wall time, step, value]` triples as TensorBoard's."""
    rows: list[Record] = []
    for i, value in enumerate(values):
        if isinstance(value, list) and len(value) == 3:
            rows.append(dict(zip(("Wall time", "Step", "Value"), value, strict=True)))
        elif isinstance(value, dict):
            rows.append(dict(_flat(value)))
        else:
            raise ValueError(f"row {i} is a JSON {type(value).__name__}, not an object")
    return rows


def _read_jsonl(file: Path) -> list[Record]:
    lines = [line for line in file.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    return _rows_of(json.loads(line) for line in lines)


def _read_json(file: Path) -> list[Record]:
    """A list of rows, `log_history` of transformers, or lines under another suffix."""
    try:
        tree = json.loads(file.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError:
        return _read_jsonl(file)
    if isinstance(tree, dict):
        tree = tree.get("log_history", [tree])
    if not isinstance(tree, list):
        raise ValueError(f"a JSON {type(tree).__name__}, not a list of rows")
    return _rows_of(tree)


def _read_csv(file: Path) -> list[Record]:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        return [_filled(row) for row in csv.DictReader(stream, restkey="")]


def _read_parquet(file: Path) -> list[Record]:
    return [_filled(dict(_flat(row))) for row in pq.read_table(file).to_pylist()]


def _filled(row: Record) -> Record:
    """Without empty cells, which pandas writes as NaN."""
    return {key: None if (n := _number(value)) is not None and math.isnan(n) else value for key, value in row.items()}


_READERS: Mapping[str, Callable[[Path], list[Record]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
