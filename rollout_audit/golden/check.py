"""A dump held against a golden file: the whole of `rollout-audit check`, as one function.

What needs torch is loaded when an audit begins: a missing file and bitwise agreement are told in a third of the time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, cast

from rollout_audit.audit.bitwise import agreement
from rollout_audit.audit.report import Report
from rollout_audit.corrections.presets import BY_DEFAULT, PRESETS, REFERENCE_PRESET, preset
from rollout_audit.dumps.digest import with_content_digests
from rollout_audit.dumps.dump import Dump
from rollout_audit.errors import OldGoldenError, ReportError, UsageError, amount, suggest
from rollout_audit.golden.compare import Comparison, Mask, compare, compare_masks, rank
from rollout_audit.golden.figures import Figure, FigureKey, figures_of
from rollout_audit.golden.file import read_golden, update_command, write_golden
from rollout_audit.golden.following import follow_masks
from rollout_audit.golden.model import Golden, golden_of
from rollout_audit.golden.notes import remarks_on, unlogged
from rollout_audit.golden.result import CheckResult
from rollout_audit.golden.run import TrainerRun, recorded_run, trainer_run
from rollout_audit.golden.settings import Settings, checked_tolerances, gates_of, settings, tolerances_of
from rollout_audit.golden.tolerances import MASK, is_held, tolerances_for

if TYPE_CHECKING:
    from rollout_audit.audit.gates import Gate, GateResult
    from rollout_audit.audit.plan import Device
    from rollout_audit.audit.selection import ConfigSource
    from rollout_audit.statistics.metrics import Metrics

__all__ = ["check"]


class Selection(TypedDict, total=False):
    """Which rows are read, and how; what is None is as the golden file was made."""

    mode: Literal["decoupled", "bypass"] | None
    on_fault: Literal["stop", "drop"] | None
    steps: tuple[int | None, int | None] | None
    limit: int | None
    chunk_tokens: int


OF_MASKS = ("on_fault", "steps", "limit", "workers", "chunk_tokens")
"""Without the mode: a correction says which policies it compares"""


class Reading(Selection, total=False):
    """Options of `analyze` that a check passes on."""

    device: Device
    workers: int | None
    on_progress: Callable[[int], None] | None


def check(
    dump: Dump,
    golden: str | os.PathLike[str] | None = None,
    *,
    update: bool = False,
    expect_bitwise: bool = False,
    presets: str | Sequence[str] | None = None,
    trainer: str | None = None,
    config: ConfigSource | None = None,
    tolerances: Mapping[str, Mapping[str, object]] | None = None,
    gates: Sequence[Gate | str] | str | None = None,
    dumps: Sequence[str] = ("DUMP",),
    **reading: Unpack[Reading],
) -> CheckResult:
    """Hold a dump against a golden file, gates, and the promise of bitwise agreement.

    Args:
        dump: what `open_dump` returned.
        golden: the file; may be left out where gates or `expect_bitwise` say what to check.
        update: write the file instead of failing; what changed is still in the result.
        expect_bitwise: whether the first d ≠ 0 fails.
        presets: corrections to run, by name, or "all", or names parted by commas; the first is the reference. Else
            those of the golden file.
        trainer: whose correction is the reference, and whose logged metrics are held too. Else that of the golden file.
        config: that trainer's own keys, as in `analyze`; its defaults where not given.
        tolerances: metric → atol, rtol, direction; by default those of the settings file.
        gates: conditions that fail the check, as for `--fail-on` where they are text; by default those of the
            settings file.
        dumps: how the dump was named, for the command in an error.
        reading: as for `analyze`; mode, steps, limit and on_fault are those of the golden file where not given.

    Raises:
        ReportError: no golden file, or one that cannot be read.
        DumpError: the dump cannot be audited as asked.
        UsageError: nothing to check against or to update; an unknown preset, trainer or metric; a `config` of none; a
            tolerance, a gate or a path that is none.
        ConfigError: the trainer itself would refuse the configuration.
    """
    if not isinstance(golden, str | os.PathLike | None):
        raise UsageError(f"golden = {golden!r}: expected the path of a file")
    conditions = gates_of(settings()) if gates is None else _gates(gates)
    names = _names(presets)
    if golden is None and not expect_bitwise and not conditions:
        raise UsageError("nothing to check against: give --golden FILE, --expect-bitwise or a gate")
    if golden is None and update:
        raise UsageError("nothing to update: name the golden file, --golden FILE")
    if config is not None and trainer is None:
        raise UsageError("a configuration needs the trainer's name: whose keys are these?")
    for name in () if names == "all" else names:
        preset(name)
    given = Settings("tolerances")
    asked = tolerances_of(settings()) if tolerances is None else checked_tolerances(given, tolerances)
    own = None if trainer is None else trainer_run(trainer, {} if config is None else config)
    old = None if golden is None else _old(golden, dumps, update=update)
    reading = _as_recorded(old, str(golden), dump, reading)
    agreed = agreement(dump, **_selection(reading)) if expect_bitwise else None  # type: ignore[arg-type]
    found = CheckResult(None, agreement=agreed, reading=_part_read(reading))
    if golden is None and not conditions:
        return found
    run = recorded_run(old, str(golden)) if own is None and old is not None else own
    run_of = _presets(names, old, run)
    if old is not None and not names:
        _check_recorded(run_of, str(golden), dumps)
    audited = _audited(dump, run_of, run, conditions, reading)
    if golden is not None:
        audited = replace(audited, masks=_masks(dump, audited, reading))
    part = _part_read(reading, audited.report.counts.dropped_sequences)
    found = replace(found, gates=audited.gates, findings=audited.report.findings, reading=part)
    return found if golden is None else _against(golden, old, audited, found, asked, update=update)


def _gates(given: Sequence[Gate | str] | str) -> list[Gate]:
    from rollout_audit.audit.gates import gates_in

    each = [given] if isinstance(given, str) else given
    return [gate for one in each for gate in (gates_in([one], "gates") if isinstance(one, str) else [one])]


def _names(presets: str | Sequence[str] | None) -> Literal["all"] | Sequence[str]:
    if isinstance(presets, str):
        names = [name.strip() for name in presets.split(",") if name.strip()]
        return "all" if names == ["all"] else names
    return list(presets or [])


@dataclass(frozen=True)
class _Audited:
    report: Report
    run: TrainerRun | None
    presets: Sequence[str]
    gates: Sequence[GateResult]
    masks: Mapping[FigureKey, Mask] = field(default_factory=dict)

    @property
    def logged(self) -> Mapping[int, Metrics]:
        """step → what the trainer of the run would have logged"""
        return {} if self.run is None else self.report.logged_steps


def _audited(
    dump: Dump, presets: Sequence[str], run: TrainerRun | None, gates: Sequence[Gate], reading: Reading
) -> _Audited:
    from rollout_audit.audit.analyze import analyze
    from rollout_audit.audit.gates import check_names, judge_gates

    own = {} if run is None else {"trainer": run.trainer, "config": run.settings, "logged_steps": True}
    check_names(gates, [*([] if run is None else [run.preset]), *presets])
    report = analyze(with_content_digests(dump), presets=presets, sweep=False, edges=True, **own, **reading)  # type: ignore[arg-type]
    return _Audited(report, run, presets, judge_gates(gates, report))


def _masks(dump: Dump, audited: _Audited, reading: Reading) -> dict[FigureKey, Mask]:
    """Of each correction of the report; of its reference by step too, as its figures are."""
    from rollout_audit.audit.masks import mask_digests
    from rollout_audit.audit.selection import named_presets

    run, report = audited.run, audited.report
    own = (None, None) if run is None else (run.trainer, run.settings)
    corrections = {preset.name: preset.correction for preset in named_presets(audited.presets, *own)}
    per_step = [report.settings.reference] if len(report.steps) > 1 else []
    how = {name: value for name, value in reading.items() if name in OF_MASKS}
    found = mask_digests(dump, corrections, per_step=per_step, **how)  # type: ignore[arg-type]
    keys = {
        (step, name): FigureKey(name, f"kept.{MASK}", "pooled" if step is None else str(step)) for step, name in found
    }
    return {keys[place]: mask for place, mask in found.items()}


def _against(
    golden: str | os.PathLike[str],
    old: Golden | None,
    audited: _Audited,
    found: CheckResult,
    asked: Mapping[str, Mapping[str, object]],
    *,
    update: bool,
) -> CheckResult:
    config = None if audited.run is None else audited.run.settings
    recorded = {} if old is None else old.tolerances
    new = golden_of(audited.report, recorded, asked, config, audited.logged, audited.masks)
    if update:
        write_golden(new, golden)
    return replace(
        found,
        golden=os.fspath(golden),
        rows=[] if old is None else _rows(old, audited, asked),
        notes=[*([] if old is None else remarks_on(old, new, update=update)), *unlogged(new, asked)],
        gaps=[] if old is None or update else old.gaps,
        updated=update,
        nulls=new.nulls if update else None,
        golden_lines=_lines(golden),
    )


def _selection(reading: Reading) -> Selection:
    return cast("Selection", {name: value for name, value in reading.items() if name in Selection.__annotations__})


def _as_recorded(old: Golden | None, golden: str, dump: Dump, reading: Reading) -> Reading:
    """What is not asked for otherwise is read as it was when the golden file was made.

    Raises:
        ReportError: the golden file is of a column that the dump does not have.
    """
    given = cast("Reading", {name: value for name, value in reading.items() if value is not None})
    if old is None:
        return given
    was = old.settings
    first, _, stop = (was.steps or "").partition(":")
    steps = None if was.steps is None else (int(first) if first else None, int(stop) if stop else None)
    made = {"mode": was.mode, "on_fault": was.on_fault, "steps": steps, "limit": was.limit}
    if "mode" not in given and not dump.has(was.training_column):
        other = "bypass" if was.mode == "decoupled" else "decoupled"
        raise ReportError(
            f"{golden}: made of {was.training_column}, which this dump does not have; name the column with "
            f"--map {was.training_column}=COLUMN, or compare another all the same with --mode {other}"
        )
    return cast("Reading", {name: value for name, value in made.items() if value is not None} | given)


def _part_read(reading: Reading, dropped: int = 0) -> str:
    """In words; empty for the whole of a dump."""
    first, stop = reading.get("steps") or (None, None)
    bounds = [f"from {first}"] * (first is not None) + [f"before {stop}"] * (stop is not None)
    steps = [f"steps {' and '.join(bounds)}"] if bounds else []
    rows = reading.get("limit")
    limit = [] if rows is None else [f"the first {amount(rows, 'row')}"]
    return ", ".join([*steps, *limit, *([f"{amount(dropped, 'faulty row')} left out"] if dropped else [])])


def _presets(asked: Literal["all"] | Sequence[str], old: Golden | None, run: TrainerRun | None) -> list[str]:
    """The golden file's reference stays the reference, whatever is added before it; a run's own comes before all."""
    recorded = _recorded_presets(old) if old is not None else [] if run is not None else [REFERENCE_PRESET]
    named = [preset.name for preset in BY_DEFAULT] if asked == "all" else asked
    names = list(dict.fromkeys(named or recorded))
    return sorted(names, key=lambda name: name not in recorded[:1])


def _recorded_presets(old: Golden) -> list[str]:
    """Those with a name of their own."""
    return [name for name in old.settings.presets if name != f"{old.settings.trainer}-config"]


def _check_recorded(names: Sequence[str], golden: str, dumps: Sequence[str]) -> None:
    """Presets may have been renamed since, or the file edited.

    Raises:
        ReportError: a preset that is not known.
    """
    gone = [name for name in names if name not in PRESETS]
    if gone:
        left = ",".join(name for name in names if name in PRESETS) or REFERENCE_PRESET
        raise ReportError(
            f"{golden}: its preset {gone[0]!r} is not known{suggest(gone[0], PRESETS)}; "
            f"write the file anew with: {update_command(dumps, golden, '--presets', left)}"
        )


def _old(golden: str | os.PathLike[str], dumps: Sequence[str], *, update: bool) -> Golden | None:
    """None where there is nothing to hold the dump against, because the file is about to be written."""
    if update and not Path(golden).exists():
        return None
    try:
        return read_golden(golden, dumps)
    except OldGoldenError:
        if update:
            return None
        raise


def _rows(old: Golden, audited: _Audited, asked: Mapping[str, Mapping[str, object]]) -> list[Comparison]:
    expected = {FigureKey.parse(text): Figure(None, reason) for text, reason in old.nulls.items()}
    expected |= {FigureKey.parse(t): Figure(v) for t, v in old.figures.items()}
    masks = {FigureKey.parse(text): mask for text, mask in old.masks.items()}
    tolerances = tolerances_for({key.name for key in (*expected, *masks)}, old.tolerances, asked)
    got, whole = figures_of(audited.report, audited.logged), old.is_whole
    was, now = ({k: f for k, f in x.items() if is_held(k.name, old.tolerances, asked)} for x in (expected, got))
    left = compare_masks(masks, audited.masks, tolerances, whole=whole)
    figures = follow_masks(compare(was, now, tolerances, whole=whole), left)
    return sorted([*figures, *left], key=rank)


def _lines(golden: str | os.PathLike[str]) -> dict[str, int]:
    """figure → its line, counted from 1; figures stand one a line."""
    lines = Path(golden).read_text(encoding="utf-8-sig").splitlines()
    found = ((line.strip().partition('": ')[0].removeprefix('"'), number) for number, line in enumerate(lines, 1))
    return {key: number for key, number in found if "@" in key}
