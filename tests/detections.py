"""How often the right cause is named, by kind of fault and strength: for docs/causes.md and for the tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import rollout_audit as ra
from rollout_audit.audit.causes import Cause, causes_of_dump
from rollout_audit.audit.report import CauseReport
from rollout_audit.dumps.inspection import inspect_dump
from tests.faults import FAULTS, SOUND, Fault, Recording, sound, write

__all__ = ["Detection", "Trial", "detections", "trial"]


@dataclass(frozen=True)
class Trial:
    """One fault in one recording with one seed."""

    causes: Sequence[CauseReport | Cause]
    past_limit: bool
    """a health limit is passed, pooled or in a step, or the data have faults at error level"""

    @property
    def alarms(self) -> list[str]:
        return [cause.cause for cause in self.causes if cause.severity != "info"]

    def names(self, cause: str) -> bool:
        """Whether it is the first of what is shown, as a fault."""
        return bool(self.alarms) and self.causes[0].cause == cause


@dataclass(frozen=True)
class Detection:
    """A row of the table."""

    fault: Fault
    strength: float
    trials: tuple[Trial, ...]

    @property
    def named(self) -> int:
        return sum(t.names(self.fault.cause) for t in self.trials)

    @property
    def past(self) -> int:
        return sum(t.past_limit for t in self.trials)

    @property
    def missed(self) -> int:
        """Of the trials past a limit, those whose cause is not named."""
        return sum(t.past_limit and not t.names(self.fault.cause) for t in self.trials)

    @property
    def also(self) -> list[str]:
        """Other causes named as faults beside the right one."""
        return sorted({alarm for t in self.trials for alarm in t.alarms} - {self.fault.cause})


def trial(recording: Recording, folder: Path) -> Trial:
    """Audit it; what cannot be audited is inspected, as a user would."""
    dump = ra.open_dump(write(recording, folder))
    try:
        report = ra.analyze(dump, presets=["decoupled_token_is"], sweep=False, on_fault="drop", workers=1)
    except ra.DumpError:
        return Trial(causes_of_dump(dump, inspect_dump(dump).findings, workers=1), True)
    past = any(v.status in ("warn", "critical") for v in report.health) or any(s.past_limit for s in report.steps)
    return Trial(report.causes, past or any(f.severity == "error" for f in report.findings))


def detections(folder: Path, seeds: Sequence[int], faults: Sequence[Fault] = FAULTS) -> Iterator[Detection]:
    """Every fault at every strength in every sound recording with every seed."""
    for fault in faults:
        for strength in fault.strengths:
            trials = [
                trial(fault.inject(sound(name), strength, np.random.default_rng(seed)), folder)
                for name in SOUND
                for seed in seeds
            ]
            yield Detection(fault, strength, tuple(trials))
