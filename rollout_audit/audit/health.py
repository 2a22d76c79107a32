"""Health rules as data, and what they say of one set of figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rollout_audit.audit.report import HealthVerdict, Status

__all__ = ["RULES", "Figures", "HealthRule", "judge", "limits", "mark", "past_limits", "worst_status"]

Number = float | int | None
Severity = Literal["warn", "critical"]


@dataclass(frozen=True, slots=True)
class HealthRule:
    """A metric, what is wrong with it and from which limit on. `source` says which figures it looks at."""

    metric: str
    comparison: Literal["<", ">", "|x| >", "outside", "cancels"]
    severity: Severity
    limit: tuple[float, ...]
    source: Literal["mismatch", "correction", "both"]
    advice: str

    @property
    def name(self) -> str:
        """What a verdict is called: the metric, but for the rule that holds two against each other."""
        return "cancellation" if self.comparison == "cancels" else self.metric


_STALE = "one policy finds the tokens likelier throughout: check temperature, top-p and the age of the sampler"
_APART = "the engines hardly speak of the same tokens: check alignment (a shift by one), temperature, stale weights"
_ENGINE = "compare precisions and kernels of the two engines; see which tokens carry it in the worst-token table"

RULES: tuple[HealthRule, ...] = (
    HealthRule("ess", "<", "critical", (0.3,), "both",
               "few tokens carry the gradient: lower the cap, or reject by seq_mean_k3"),
    HealthRule("ess", "<", "warn", (0.5,), "both",
               "half of the batch is lost to uneven weights: lower the cap or shorten responses"),
    HealthRule("weight_mean", "outside", "critical", (0.5, 2.0), "correction",
               "weights no longer average 1: the samples are not from the recorded rollout policy"),
    HealthRule("weight_std", ">", "warn", (1.0,), "correction", "cap lower, or use token weights"),
    HealthRule("kl_k1", "|x| >", "critical", (0.1,), "mismatch", _STALE),
    HealthRule("kl_k3", ">", "critical", (0.1,), "mismatch", _APART),
    HealthRule("kl_k3", ">", "warn", (0.01,), "mismatch", _ENGINE),
    HealthRule("kl_k3", "cancels", "warn", (0.01, 0.1), "mismatch",
               "errors of both signs cancel in k1 and in geometric ratios: judge and reject by k3"),
    HealthRule("chi2_token", ">", "critical", (1.0,), "mismatch",
               "a few tokens have enormous ratios: see the worst-token table, use token_icepop"),
    HealthRule("masked_fraction", ">", "critical", (0.3,), "correction",
               "most of the batch is thrown away: widen the band, or weight instead of rejecting"),
    HealthRule("masked_fraction", ">", "warn", (0.1,), "correction",
               "look at what rejection does to rewards before you trust it"),
    HealthRule("veto_fraction", ">", "critical", (0.1,), "mismatch",
               "tokens that the trainer finds impossible: look for placeholders and broken rows"),
    HealthRule("veto_fraction", ">", "warn", (0.05,), "mismatch",
               "tokens that the trainer finds impossible: see the worst-token table"),
    HealthRule("catastrophic_fraction", ">", "warn", (0.01,), "mismatch",
               "tokens that the trainer finds impossible: see the worst-token table"),
    HealthRule("capped_fraction", ">", "warn", (0.1,), "correction",
               "the cap changes many weights: the gradient is biased, raise it or remove the cause"),
    HealthRule("ppl_ratio", "outside", "warn", (0.95, 1.05), "mismatch",
               "the trainer finds the responses likelier or less likely as a whole: check temperature and staleness"),
)  # fmt: skip

_RANK: dict[Status, int] = {"critical": 0, "warn": 1, "unmeasured": 2, "ok": 3}


@dataclass(frozen=True)
class Figures:
    """What the rules look at: native metrics, and a correction's stages."""

    mismatch: Mapping[str, Number]
    mismatch_reasons: Mapping[str, str]
    stages: Mapping[str, Mapping[str, Number]]
    stage_reasons: Mapping[str, str]
    correction: str


def judge(figures: Figures) -> list[HealthVerdict]:
    """One verdict a metric and subject, the severest rule that it breaks, worst first."""
    verdicts: dict[str, HealthVerdict] = {}
    for rule in RULES:
        verdict = _verdict(rule, figures)
        known = verdicts.get(rule.name)
        if known is None or _RANK[verdict.status] < _RANK[known.status]:
            verdicts[rule.name] = verdict
    return sorted(verdicts.values(), key=lambda v: _RANK[v.status])


def mark(figures: Figures) -> Status:
    """How a correction's own figures stand, its mismatch aside."""
    own = [_verdict(rule, figures).status for rule in RULES if rule.source != "mismatch"]
    return worst_status([status for status in own if status != "unmeasured"])


def past_limits(mismatch: Mapping[str, Number]) -> list[str]:
    """Those native metrics that break a rule of their own."""
    figures = Figures(mismatch, {}, {}, {}, "")
    own = [rule for rule in RULES if rule.source == "mismatch" and rule.name == rule.metric]
    values = [(rule, mismatch.get(rule.metric)) for rule in own]
    return [rule.metric for rule, value in values if value is not None and _breaks(rule, value, figures)]


def worst_status(statuses: Sequence[Status]) -> Status:
    return min(statuses, key=lambda status: _RANK[status], default="ok")


def limits(metric: str) -> list[HealthRule]:
    """The rules of one metric, for drawing its limits."""
    return [rule for rule in RULES if rule.metric == metric]


def _verdict(rule: HealthRule, figures: Figures) -> HealthVerdict:
    value, reason, subject = _value(rule, figures)
    if value is None:
        overflow = reason.startswith("overflow")
        status: Status = rule.severity if overflow else "unmeasured"
    else:
        status = rule.severity if _breaks(rule, value, figures) else "ok"
    return HealthVerdict(
        metric=rule.name,
        status=status,
        value=value,
        comparison=rule.comparison,
        limit=_limit_text(rule),
        subject=subject,
        advice=rule.advice if value is not None else f"{rule.metric} could not be computed ({reason})",
    )


def _breaks(rule: HealthRule, value: float, figures: Figures) -> bool:
    return _BREAKS[rule.comparison](value, rule.limit, figures)


def _value(rule: HealthRule, figures: Figures) -> tuple[Number, str, str]:
    """The figure a rule looks at. For `ess` the smaller of raw and kept: a bounded ess alone hides faults."""
    if rule.source == "mismatch":
        name = rule.metric
        return figures.mismatch.get(name), figures.mismatch_reasons.get(name, "not there"), "mismatch"
    if rule.source == "both":
        both = [(figures.stages[s].get(rule.metric), s) for s in ("raw", "kept")]
        measured = [(v, s) for v, s in both if v is not None]
        if len(measured) == len(both):
            value, stage = min(measured)
            return value, "", f"{figures.correction}, {stage} weights"
        stage = next(s for v, s in both if v is None)
        return None, figures.stage_reasons.get(f"{stage}.{rule.metric}", "not there"), figures.correction
    for stage in ("kept", "bounded"):
        if rule.metric in figures.stages[stage]:
            reason = figures.stage_reasons.get(f"{stage}.{rule.metric}", "not there")
            return figures.stages[stage][rule.metric], reason, figures.correction
    return None, "not there", figures.correction


_BREAKS: Mapping[str, Callable[[float, tuple[float, ...], Figures], bool]] = {
    "<": lambda x, limit, _: x < limit[0],
    ">": lambda x, limit, _: x > limit[0],
    "|x| >": lambda x, limit, _: abs(x) > limit[0],
    "outside": lambda x, limit, _: not limit[0] <= x <= limit[1],
    "cancels": lambda x, limit, figures: x > limit[0] and abs(figures.mismatch.get("kl_k1") or 0.0) < limit[1] * x,
}


def _limit_text(rule: HealthRule) -> str:
    if rule.comparison == "outside":
        return f"[{rule.limit[0]:g}, {rule.limit[1]:g}]"
    if rule.comparison == "cancels":
        return f"kl_k3 > {rule.limit[0]:g} with |kl_k1| < {rule.limit[1]:g}·kl_k3"
    return f"{rule.limit[0]:g}"
