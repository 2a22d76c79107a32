"""A dump held against a golden file: the whole of `rollout-audit check`, as one function.

What needs torch is loaded when an audit begins: a missing file and bitwise agreement are told in a third of the time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, cast

from rollout_audit.audit.bitwise import FirstDifference, first_difference
from rollout_audit.audit.report import FindingReport, Report
from rollout_audit.corrections.presets import BY_DEFAULT, PRESETS, REFERENCE_PRESET
from rollout_audit.dumps.digest import with_content_digests
from rollout_audit.dumps.dump import Dump
from rollout_audit.errors import OldGoldenError, ReportError, RolloutAuditError, UsageError, suggest
from rollout_audit.golden.compare import Comparison, Mask, compare, compare_masks, rank
from rollout_audit.golden.figures import Figure, FigureKey, figures_of
from rollout_audit.golden.model import Golden, golden_of, read_golden, update_command, write_golden
from rollout_audit.golden.run import TrainerRun, recorded_run, trainer_run
from rollout_audit.golden.settings import gates_of, settings, tolerances_of
from rollout_audit.golden.tolerances import MASK, is_logged, tolerances_for

if TYPE_CHECKING:
    from rollout_audit.audit.gates import Gate, GateResult
    from rollout_audit.audit.plan import Device
    from rollout_audit.audit.selection import ConfigSource
    from rollout_audit.statistics.metrics import Metrics

__all__ = ["CheckResult", "check", "stopped"]


@dataclass(frozen=True)
class CheckResult:
    """What a check found."""

    golden: str | None
    """the golden file as named; None where none was asked for"""
    rows: Sequence[Comparison] = ()
    """worst first"""
    notes: Sequence[str] = ()
    """said before anything else: another dump, other settings"""
    gates: Sequence[GateResult] = ()
    bitwise: FirstDifference | None = None
    bitwise_asked: bool = False
    updated: bool = False
    nulls: Mapping[str, str] | None = None
    """after an update: figures without a value → why"""
    golden_lines: Mapping[str, int] | None = None
    """figure → its line in the golden file, for annotations"""
    findings: Sequence[FindingReport] = ()
    """what reading the dump found"""
    stopped: str | None = None
    """why nothing could be checked, for outputs that are written all the same"""

    @property
    def exit_code(self) -> int:
        """0 the same or better, 1 something got worse or a gate failed, 2 something could not be compared."""
        if self.stopped is not None:
            return 2
        verdicts = set() if self.updated else {row.verdict for row in self.rows}
        gates = {gate.verdict for gate in self.gates}
        if "worse" in verdicts or "failed" in gates or self.bitwise is not None:
            return 1
        return 2 if "unmeasured" in verdicts | gates else 0

    def count(self, verdict: str) -> int:
        return sum(row.verdict == verdict for row in self.rows)

    @property
    def nulls_as_approved(self) -> int:
        """Figures among the same ones that have no value, as when the file was written."""
        return sum(row.verdict == "same" and row.expected is None for row in self.rows)


def stopped(golden: str | os.PathLike[str] | None, error: Exception) -> CheckResult:
    """The result of a check that an error ended: outputs for machines carry its one line."""
    text = " ".join(str(error).split())
    known = isinstance(error, RolloutAuditError)
    return CheckResult(
        None if golden is None else os.fspath(golden),
        stopped=text if known else f"internal error: {type(error).__name__}: {text}",
    )


class Selection(TypedDict, total=False):
    """Which rows are read, and how."""

    mode: Literal["decoupled", "bypass"] | None
    on_fault: Literal["stop", "drop"]
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
    presets: Literal["all"] | Sequence[str] | None = None,
    trainer: str | None = None,
    config: ConfigSource | None = None,
    tolerances: Mapping[str, Mapping[str, object]] | None = None,
    gates: Sequence[Gate] | None = None,
    dumps: Sequence[str] = ("DUMP",),
    **reading: Unpack[Reading],
) -> CheckResult:
    """Hold a dump against a golden file, gates, and the promise of bitwise agreement.

    Args:
        dump: what `open_dump` returned.
        golden: the file; may be left out where gates or `expect_bitwise` say what to check.
        update: write the file instead of failing; what changed is still in the result.
        expect_bitwise: whether the first d ≠ 0 fails.
        presets: corrections to run, by name, or "all"; the first is the reference. Else those of the golden file.
        trainer: whose correction is the reference, and whose logged metrics are held too. Else that of the golden file.
        config: that trainer's own keys, as in `analyze`; its defaults where not given.
        tolerances: metric → atol, rtol, direction; by default those of the settings file.
        gates: conditions that fail the check; by default those of the settings file.
        dumps: how the dump was named, for the command in an error.
        reading: as for `analyze`.

    Raises:
        ReportError: no golden file, or one that cannot be read.
        DumpError: the dump cannot be audited as asked.
        UsageError: nothing to check against, an unknown preset, trainer or metric; `config` without `trainer`.
        ConfigError: the trainer itself would refuse the configuration.
    """
    conditions = gates_of(settings()) if gates is None else gates
    if golden is None and not expect_bitwise and not conditions:
        raise UsageError("nothing to check against: give --golden FILE, --expect-bitwise or a gate")
    if config is not None and trainer is None:
        raise UsageError("a configuration needs the trainer's name: whose keys are these?")
    asked = tolerances_of(settings()) if tolerances is None else tolerances
    own = None if trainer is None else trainer_run(trainer, {} if config is None else config)
    old = None if golden is None else _old(golden, dumps, update=update)
    bitwise = first_difference(dump, **_selection(reading)) if expect_bitwise else None
    found = CheckResult(None, bitwise=bitwise, bitwise_asked=expect_bitwise)
    if golden is None and not conditions:
        return found
    run = recorded_run(old, str(golden)) if own is None and old is not None else own
    names = _presets(presets, old, run)
    if old is not None and not presets:
        _check_recorded(names, str(golden), dumps)
    audited = _audited(dump, names, run, conditions, reading)
    if golden is not None:
        audited = replace(audited, masks=_masks(dump, audited, reading))
    found = replace(found, gates=audited.gates, findings=audited.report.findings)
    return found if golden is None else _against(golden, old, audited, found, asked, update=update)


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
        notes=[*([] if old is None else _remarks(old, new)), *_unlogged(new, asked)],
        updated=update,
        nulls=new.nulls if update else None,
        golden_lines=_lines(golden),
    )


def _selection(reading: Reading) -> Selection:
    return cast("Selection", {name: value for name, value in reading.items() if name in Selection.__annotations__})


def _presets(asked: Literal["all"] | Sequence[str] | None, old: Golden | None, run: TrainerRun | None) -> list[str]:
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
    expected |= {FigureKey.parse(t): Figure(v, "", edge=old.edges.get(t, 0)) for t, v in old.figures.items()}
    masks = {FigureKey.parse(text): mask for text, mask in old.masks.items()}
    tolerances = tolerances_for({key.name for key in (*expected, *masks)}, old.tolerances, asked)
    figures = compare(expected, figures_of(audited.report, audited.logged), tolerances, old.tolerances)
    return sorted([*figures, *compare_masks(masks, audited.masks, tolerances)], key=rank)


def _remarks(old: Golden, new: Golden) -> list[str]:
    return [*_other_dump(old, new), *_other_settings(old, new), *old.remarks]


def _other_dump(old: Golden, new: Golden) -> list[str]:
    """Which files are not those that the golden file was made of."""
    if old.digest == new.digest:
        return []
    kinds = {
        "changed": [n for n, digest in new.digests.items() if n in old.digests and old.digests[n] != digest],
        "missing": [n for n in old.digests if n not in new.digests],
        "added": [n for n in new.digests if n not in old.digests],
    }
    texts = [f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''} {kind}" for kind, names in kinds.items() if names]
    return [f"not the dump that the golden file was made of: {'; '.join(texts)}"]


def _other_settings(old: Golden, new: Golden) -> list[str]:
    """Of two configurations of one trainer the settings that differ; of two trainers their names say enough."""
    was, now = old.settings.model_dump(), new.settings.model_dump()
    for tree in (was, now):
        config = tree.pop("config") or {}
        if was["trainer"] == now["trainer"]:
            tree |= {f"{tree['trainer']}'s {name}": value for name, value in config.items()}
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return [f"{name} is {now.get(name)!r}, in the golden file {was.get(name)!r}" for name in names]


def _unlogged(new: Golden, asked: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Tolerances of metrics that the trainer of the run does not log: a name that is misspelt does nothing."""
    names = [name for name in new.tolerances if is_logged(name)]
    lost = [name for name in asked if name.partition(":")[0] == new.settings.trainer and name not in names]
    return [f"check.metrics: {name!r} is not logged with these settings{suggest(name, names)}" for name in lost]


def _lines(golden: str | os.PathLike[str]) -> dict[str, int]:
    """figure → its line, counted from 1; figures stand one a line."""
    lines = Path(golden).read_text(encoding="utf-8-sig").splitlines()
    found = ((line.strip().partition('": ')[0].removeprefix('"'), number) for number, line in enumerate(lines, 1))
    return {key: number for key, number in found if "@" in key}
