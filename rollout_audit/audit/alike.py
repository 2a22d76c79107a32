"""Presets that come to the same on a dump: many trainers ship the same correction under a name of their own."""

from __future__ import annotations

from collections.abc import Iterable

from rollout_audit.audit.report import CorrectionReport

__all__ = ["Group", "alike", "equals", "trainer_of"]

Group = tuple[CorrectionReport, ...]

DIGITS = 9
"""Sums over a cut and sums over no cut may differ in the last places"""


def alike(corrections: Iterable[CorrectionReport]) -> list[Group]:
    """The corrections in their order, those together that let the same through and agree in every figure."""
    groups: dict[object, list[CorrectionReport]] = {}
    for correction in corrections:
        groups.setdefault(_effect(correction), []).append(correction)
    return [tuple(group) for group in groups.values()]


def equals(groups: Iterable[Group]) -> str:
    """`slime_tis = nemo_rl_tis; slime_mis = miles_mis` of the groups that hold several, else nothing."""
    return "; ".join(" = ".join(c.name for c in group) for group in groups if len(group) > 1)


def trainer_of(correction: CorrectionReport) -> str:
    """Its origin without version and place."""
    return correction.origin.partition(",")[0].rpartition(" ")[0] or correction.origin


def _effect(correction: CorrectionReport) -> object:
    stages = (correction.stages.raw, correction.stages.bounded, correction.stages.normalised, correction.stages.kept)
    figures = tuple((name, _rounded(value)) for stage in stages for name, value in stage.items())
    return correction.mode, correction.loss, tuple(correction.keeps), figures


def _rounded(value: float | int | None) -> str:
    return "" if value is None else f"{value:.{DIGITS}g}"
