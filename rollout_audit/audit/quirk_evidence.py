"""What the quirks of a trainer are judged by: the report, what the trainer logs, and what else was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollout_audit.audit.dialect import TrainerEvidence
from rollout_audit.audit.report import CorrectionReport, Report
from rollout_audit.corrections.model import Correction
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers.base import Quirk, Trainer

__all__ = ["LEAST", "Evidence", "Number", "departs"]

Number = float | int | None

DEPARTS = 0.05
"""Relative difference from the native figure that is said"""
LEAST = 1e-9
"""Absolute difference that is none"""


def departs(value: float, native: float) -> bool:
    """Whether the two are more than 5 % apart."""
    return abs(value - native) > max(DEPARTS * abs(native), LEAST)


@dataclass(frozen=True)
class Evidence:
    """What a check looks at."""

    trainer: Trainer[Any]
    correction: Correction
    report: Report
    own: CorrectionReport
    """of the run's own configuration"""
    asked: TrainerEvidence
    """what a reading of the tokens told"""
    config: object = None
    """the trainer's parsed configuration, where it was read"""

    @property
    def logged(self) -> Metrics:
        """What the trainer would have logged of the dump as one batch."""
        return self.asked.pooled

    def scored(self, name: str) -> Number:
        """The figure of that name without the rows that have no valid token; None where there are none."""
        return None if self.asked.scored is None else self.asked.scored.get(name)

    @property
    def empty_rows(self) -> int:
        """How many rows have no valid token."""
        return self.report.counts.sequences - self.report.counts.scored_sequences

    def figure(self, name: str) -> Number:
        """What `Counterpart.native` names, `overall` being the pair that the correction compares."""
        where, _, metric = name.partition(".")
        if where == "removed":
            return self.removed_by(metric)
        if where == "overall":
            return self.pair("total" if self.own.training_column == "log_probs" else "engine").get(metric)
        stage: Mapping[str, Number] = getattr(self.own.stages, where)
        return stage.get(metric)

    def removed_by(self, name: str) -> Number:
        """Share of the valid tokens that a rule removes by itself; of two with that name the later's."""
        tokens = self.report.counts.valid_tokens
        rules = zip(self.correction.all_rules, self.asked.work or (), strict=False)
        removed = [one.removed for rule, one in rules if rule.name == name]
        return removed[-1] / tokens if removed and tokens else None

    def pair(self, name: str) -> Mapping[str, Number]:
        """Native metrics of two policies; empty where they are not recorded."""
        return next((pair.metrics for pair in self.report.pairs if pair.name == name), {})

    def known(self, *names: str) -> list[float]:
        """These figures where all of them have a value, else none of them."""
        values = [self.figure(name) for name in names]
        found = [float(value) for value in values if value is not None]
        return found if len(found) == len(names) else []

    def quirks(self, name: str) -> list[Quirk]:
        """The trainer's quirks that a finding of that name tells, where the configuration has them."""
        return [quirk for quirk in self.trainer.quirks if name in (quirk.name, quirk.told_by) and self.has(quirk)]

    def has(self, quirk: Quirk) -> bool:
        """Whether the configuration has the quirk, as far as that is known."""
        return self.config is None or quirk.when(self.config)
