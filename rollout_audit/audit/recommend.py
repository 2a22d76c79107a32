"""From a report to the mildest correction that suffices.

A correction suffices where it keeps the stated limits. Health judges the smaller of raw and applied ess, since a
bounded ess alone hides a fault; here the question is what a correction leaves, so its limit is on the ess of the
weights that are applied to the kept tokens, and the raw one stands beside it. Weights of 1 always have an ess of 1:
what carries no token or sequence weight is held to the k3 of the tokens that it keeps instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rollout_audit.audit.advice import Candidate, LimitReport, Recommendation, Verdict
from rollout_audit.audit.advice_text import broken_text, none_needed, nothing_meets, recommended, refused
from rollout_audit.audit.alike import alike
from rollout_audit.audit.best import NOTHING, Columns, SweepPoints
from rollout_audit.audit.expressing import expressed
from rollout_audit.audit.health import RULES
from rollout_audit.audit.limits import CORRECTING, WEIGHT_MEAN, Limit, Limits, distance
from rollout_audit.audit.nearest import nearest_place, overstep, relaxed
from rollout_audit.audit.report import CorrectionReport, Report
from rollout_audit.corrections.model import Level, Mode
from rollout_audit.trainers.base import Trainer

__all__ = ["MENDED_BY_REJECTION", "PLUMBING", "recommendation"]

Number = float | int | None

PLUMBING = frozenset({"identical_columns"})
"""Findings that say the figures are not what they seem: to choose a correction by them would hide the fault"""
MENDED_BY_REJECTION = frozenset({"kl_k3", "cancellation", "chi2_token", "veto_fraction", "catastrophic_fraction"})
"""Rules that dropping the worst tokens or responses can mend; a drift of all tokens takes weights"""
OF_MISMATCH = frozenset(rule.name for rule in RULES if rule.source == "mismatch")
SHOWN = (
    *("ess", "ess_seq", "weight_mean", "weight_std"),
    *("masked_fraction", "seq_masked_fraction", "mass_lost", "kept_reward_mean"),
)


def recommendation(
    report: Report, sweep: Columns | None, limits: Limits, trainer: Trainer[Any] | None = None
) -> Recommendation:
    """Presets of the report's own mode and every point of the sweep, held against the limits.

    Args:
        report: what an audit found; one read back from JSON will do.
        sweep: columns of its sweep (`sweep.parquet`); None: presets alone.
        limits: what a correction may cost.
        trainer: whose settings are wanted; what it cannot express is counted and left out.
    """
    return _Choice(report, None if sweep is None else SweepPoints(sweep), limits, trainer).made()


@dataclass(frozen=True)
class _Choice:
    report: Report
    points: SweepPoints | None
    stated: Limits
    trainer: Trainer[Any] | None = None

    def made(self) -> Recommendation:
        verdict = self.verdict
        return Recommendation(
            verdict=verdict,
            sentence=self._sentence(verdict),
            mode=self.report.settings.mode,
            limits=[_limit_report(limit, bound) for limit, bound in self.limits.pairs()],
            raw=self.raw,
            past_limit=self.past_limit,
            mildest_preset=None if self.refusals else self.mildest_preset,
            mildest_point=None if self.refusals else self.mildest_point,
            ranked=[] if self.refusals else self.ranked,
            failing=[] if self.refusals else self.failing,
            relax=self.relax if verdict == "nothing meets the limits" else [],
            refusals=self.refusals,
            trainer=None if self.trainer is None else self.trainer.name,
            inexpressible=self.inexpressible,
            notes=list(self._notes()),
        )

    @cached_property
    def verdict(self) -> Verdict:
        if self.refusals:
            return "refused"
        if not self.past_limit:
            return "none needed"
        return "recommended" if self.mildest_preset or self.mildest_point else "nothing meets the limits"

    def _sentence(self, verdict: Verdict) -> str:
        match verdict:
            case "refused":
                return refused(self.refusals)
            case "none needed":
                return none_needed(self.raw)
            case "recommended":
                return recommended(self.past_limit, self.mildest_preset, self.mildest_point)
            case _:
                left_out = self.trainer.name if self.trainer is not None and self.inexpressible else None
                return nothing_meets(self.past_limit, self.nearest, self.relax, left_out)

    @cached_property
    def limits(self) -> Limits:
        steps = self.report.steps
        return self.stated.for_steps(self.report.overall["kl_k3"], [step.metrics["kl_k3"] for step in steps])

    @cached_property
    def refusals(self) -> list[str]:
        dropped = self.report.settings.on_fault == "drop"
        return [
            f"{finding.kind}: {finding.message}"
            for finding in self.report.findings
            if finding.kind in PLUMBING or (finding.severity == "error" and not dropped)
        ]

    @cached_property
    def past_limit(self) -> list[str]:
        """Rules of the mismatch that are broken, pooled or in a step; k3 and raw ess by the limits as stated."""
        pooled = [v.metric for v in self.report.health if v.status in ("warn", "critical")]
        names = [*pooled, *(name for step in self.report.steps for name in step.past_limit)]
        divergences = [self.report.overall["kl_k3"], *(step.metrics["kl_k3"] for step in self.report.steps)]
        ess = self.raw["ess"]
        own = {
            "kl_k3": any(k3 is None or k3 > self.stated.max_kl for k3 in divergences),
            "raw ess": ess is None or ess < self.stated.min_ess,
        }
        broken = [name for name in names if name in OF_MISMATCH and name not in own]
        return list(dict.fromkeys([*broken, *(name for name, past in own.items() if past)]))

    @cached_property
    def raw(self) -> dict[str, Number]:
        overall = self.report.overall
        ess = {name: _ess_of(overall[f"chi2_rel_{level}"]) for name, level in (("ess", "token"), ("ess_seq", "seq"))}
        return {**ess, **{name: overall[name] for name in ("kl_k1", "kl_k3", "ppl_ratio")}}

    @cached_property
    def raw_ess(self) -> Mapping[str, Number]:
        """level → ess of its raw weights; without a weight that of the token ratios, which are left as they are."""
        own = [c for c in self.report.corrections if c.mode == self.report.settings.mode]
        found = {str(c.settings["level"]): c.stages.raw.get("ess") for c in own}
        return {**found, Level.NONE.value: self.raw["ess"], Level.TOKEN.value: self.raw["ess"]}

    @cached_property
    def drift(self) -> list[str]:
        """What is past a limit and stays so whatever is rejected."""
        return [name for name in self.past_limit if name not in MENDED_BY_REJECTION]

    @property
    def cancels(self) -> bool:
        return "cancellation" in self.past_limit

    @cached_property
    def _every_preset(self) -> list[Candidate]:
        mode = self.report.settings.mode
        return [self._of_preset(c) for c in self.report.corrections if c.mode == mode]

    @cached_property
    def presets(self) -> list[Candidate]:
        return self._expressible(self._every_preset)

    def _expressible(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """With the settings of the trainer that is asked about, without those that it has none for."""
        if self.trainer is None:
            return list(candidates)
        mode = Mode(self.report.settings.mode)
        return [found for c in candidates if (found := expressed(c, mode, self.trainer)) is not None]

    @property
    def inexpressible(self) -> int:
        return len(self._every_preset) - len(self.presets) + len(self._every_family) - len(self.points_within)

    def _of_preset(self, correction: CorrectionReport) -> Candidate:
        level = str(correction.settings["level"])
        figures = {**_figures(correction), "raw_ess": self.raw_ess[level]}
        why_not = list(self._why_not(figures, level))
        return Candidate(
            name=correction.name,
            source="preset",
            formula=correction.formula,
            settings=correction.settings,
            meets=not why_not,
            distance=distance(figures),
            figures=figures,
            why_not=why_not,
        )

    def _why_not(self, figures: Mapping[str, Number], level: str) -> Iterator[str]:
        if figures["ess"] is None:
            yield "no token is kept"
            return
        broken = self.limits.broken(figures, level)
        yield from (broken_text(limit, bound, broken[limit.key]) for limit, bound in self.limits.pairs()
                    if limit.key in broken)  # fmt: skip
        mean = figures["weight_mean"]
        if mean is not None and not WEIGHT_MEAN[0] <= mean <= WEIGHT_MEAN[1]:
            yield f"weight_mean {mean:.3g} outside [{WEIGHT_MEAN[0]:g}, {WEIGHT_MEAN[1]:g}]"
        if self.past_limit and not _acts(figures):
            yield f"changes nothing, so {_staying(self.past_limit)}"
        elif self.drift and level not in CORRECTING:
            yield f"no token or sequence weight, so {_staying(self.drift)}"
        if self.cancels and level == Level.SEQUENCE.value:
            yield "errors of both signs cancel in the product ratio, so its weights do not see them"

    @cached_property
    def points_within(self) -> list[Candidate]:
        return self._expressible(self._every_family)

    @cached_property
    def _every_family(self) -> list[Candidate]:
        """Of each family of the sweep the mildest point that suffices."""
        if self.points is None or not len(self.points):
            return []
        points = self.points
        chosen = points.within(self.limits) & points.acts & points.balanced & (points.weighted | points.unweighted)
        chosen &= points.every_part_acts
        if self.drift:
            chosen &= points.weighted
        if self.cancels:
            chosen &= np.array(points.columns["level"]) != Level.SEQUENCE.value
        families = np.array(points.columns["family"])
        found = [points.first(chosen & (families == f), (("distance", 1),)) for f in dict.fromkeys(families.tolist())]
        return [self._of_point(points, i) for i in found if i is not None]

    def _of_point(self, points: SweepPoints, i: int, why_not: Sequence[str] = ()) -> Candidate:
        return Candidate(
            name=str(points.columns["family"][i]),
            source="sweep",
            formula=str(points.columns["formula"][i]),
            settings=points.settings(i),
            meets=not why_not,
            distance=float(points.distance[i]),
            figures={**points.figures(i), "raw_ess": self.raw_ess.get(str(points.columns["level"][i]))},
            why_not=list(why_not),
        )

    @cached_property
    def distinct(self) -> list[Candidate]:
        """The presets, those that come to the same as one: under the first name, or the one with least fine print."""
        by_name = {p.name: p for p in self.presets}
        groups = [[by_name[c.name] for c in group if c.name in by_name] for group in alike(self.report.corrections)]
        return [_as_one(group) for group in groups if group]

    @cached_property
    def ranked(self) -> list[Candidate]:
        return sorted([p for p in self.distinct if p.meets] + self.points_within, key=_by_distance)

    @cached_property
    def failing(self) -> list[Candidate]:
        return sorted([p for p in self.distinct if not p.meets], key=_by_what_is_missing)

    @property
    def mildest_preset(self) -> Candidate | None:
        return next((c for c in self.ranked if c.source == "preset"), None)

    @property
    def mildest_point(self) -> Candidate | None:
        return next((c for c in self.ranked if c.source == "sweep"), None)

    @cached_property
    def nearest(self) -> Candidate | None:
        """Of all that have weights, or can do without: what oversteps the limits least, relative to each."""
        able = [p for p in self.failing if p.distance is not None and not (self.drift and _weightless(p))]
        point = self._nearest_point()
        return min([*able, *([] if point is None else [point])], key=lambda c: overstep(self.limits, c), default=None)

    def _nearest_point(self) -> Candidate | None:
        i = None if self.points is None else nearest_place(self.points, self.limits, weights_only=bool(self.drift))
        if i is None or self.points is None:
            return None
        level = str(self.points.columns["level"][i])
        point = self._of_point(self.points, i, list(self._why_not(self.points.figures(i), level)))
        return next(iter(self._expressible([point])), None)

    @cached_property
    def relax(self) -> list[str]:
        return [] if self.nearest is None else relaxed(self.limits, self.nearest)

    def _notes(self) -> Iterator[str]:
        if self.limits.max_kl < self.stated.max_kl:
            yield (
                f"Pooling hides a worse step: k3 is held to {self.limits.max_kl:.2g} over the whole dump, so that the "
                f"worst step is expected within {self.stated.max_kl:g}."
            )
        others = sum(c.mode != self.report.settings.mode for c in self.report.corrections)
        if others:
            other = "bypass" if self.report.settings.mode == "decoupled" else "decoupled"
            yield f"{others} presets of {other} mode are not ranked: --mode {other} holds them against their own pair."
        if self.trainer is not None and self.inexpressible:
            what = f"{self.inexpressible} presets and families of the sweep"
            yield f"{what} are left out: {self.trainer.name} has no settings for them."
        if self.points is None:
            yield "No sweep: presets alone are ranked."
        if self.report.length_trap is not None:
            yield self.report.length_trap.sentence
        yield "Limits are held against the whole dump as one batch."
        if self.trainer is None:
            yield "`--for TRAINER` ranks what that trainer can express, and prints its configuration to paste."


def _figures(correction: CorrectionReport) -> dict[str, Number]:
    stages = correction.stages
    bounded = [stages.bounded.get(name) for name in ("capped_fraction", "below_lower_fraction")]
    known = [value for value in bounded if value is not None]
    values: dict[str, Number] = {
        name: (stages.bounded if name == "mass_lost" else stages.kept).get(name) for name in SHOWN
    }
    return {
        **values,
        "bounded_fraction": sum(known) if len(known) == len(bounded) else None,
        "kept_kl_k3": correction.kept_kl_k3,
    }


def _acts(figures: Mapping[str, Number]) -> bool:
    """Whether anything is masked or weighted at all."""
    mean, spread = figures["weight_mean"], figures["weight_std"]
    return (
        bool(figures["masked_fraction"])
        or (mean is not None and abs(mean - 1.0) > NOTHING)
        or bool(spread is not None and spread > NOTHING)
    )


def _limit_report(limit: Limit, bound: float) -> LimitReport:
    return LimitReport(
        key=limit.key,
        option=limit.option,
        comparison=limit.comparison,
        bound=bound,
        default=limit.default,
        reason=limit.reason,
    )


def _staying(names: Sequence[str]) -> str:
    return f"{', '.join(names)} past the limit {'stays' if len(names) == 1 else 'stay'}"


def _as_one(group: Sequence[Candidate]) -> Candidate:
    first = min(group, key=lambda candidate: len(candidate.fine_print))
    return first.model_copy(update={"alike": [c.name for c in group if c is not first]})


def _by_distance(candidate: Candidate) -> tuple[float, bool, int]:
    """Of equals presets first, then what has fewer parts; what still ties stays in the order of the report."""
    far = math.inf if candidate.distance is None else round(candidate.distance, 9)
    parts = (candidate.settings["level"] != Level.NONE.value) + (candidate.settings["rule"] is not None)
    return far, candidate.source == "sweep", parts


def _by_what_is_missing(candidate: Candidate) -> tuple[object, ...]:
    return candidate.distance is None, len(candidate.why_not), *_by_distance(candidate)


def _weightless(candidate: Candidate) -> bool:
    return candidate.settings["level"] not in CORRECTING


def _ess_of(chi2_rel: Number) -> float | None:
    return None if chi2_rel is None else 1.0 / (1.0 + chi2_rel)
