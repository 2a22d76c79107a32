"""Which of a trainer's quirks matter on this dump, with the numbers.

Two sources: figures of the trainer that are more than 5 % off the native ones they are named like (SPEC 4), each with
the quirk that explains it, and a table of checks on what the configuration does to these tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollout_audit.audit.idle import Work
from rollout_audit.audit.report import CorrectionReport, CounterpartReport, FindingReport, Report, TrainerReport
from rollout_audit.corrections.model import Bound, Correction, Denominator, Level, Rule, Statistic
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers.base import Counterpart, Quirk, Trainer

__all__ = ["CHECKS", "Check", "Evidence", "beside", "findings", "with_trainer", "without_its_figures"]

Number = float | int | None

DEPARTS = 0.05
"""Relative difference from the native figure that is said"""
LEAST = 1e-9
"""Absolute difference that is none"""
ALMOST_EVERYTHING = 0.9
"""Share of the tokens whose loss is an alarm by itself"""
LOPSIDED = 0.02
"""How far the logs of a band may differ and still be meant as reciprocal: 0.99_1.01 is"""
CANCELS = 0.1
"""|mean d| over mean |d| below which errors of both signs cancel"""


@dataclass(frozen=True)
class Evidence:
    """What a check looks at."""

    trainer: Trainer[Any]
    correction: Correction
    report: Report
    own: CorrectionReport
    """of the run's own configuration"""
    logged: Metrics
    work: tuple[Work, ...] | None = None
    """what each rule does by itself; None where the tokens were not asked"""
    config: object = None
    """the trainer's parsed configuration, where it was read"""

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
        rules = zip(self.correction.all_rules, self.work or (), strict=False)
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

    def has(self, quirk: str) -> bool:
        return any(own.name == quirk for own in self.trainer.quirks)


Sentence = Callable[[Evidence], str | None]


@dataclass(frozen=True, slots=True)
class Check:
    """Something that a configuration may do to the data at hand."""

    name: str
    """of the trainer's quirk where it is one: its sentence is appended and its source named"""
    severity: Literal["warning", "info"]
    sentence: Sentence
    """with its numbers; None where it does not matter here"""
    every_trainer: bool = True
    """else only those that have a quirk of that name"""


def findings(evidence: Evidence) -> list[FindingReport]:
    """One finding for each quirk that matters."""
    found = {name: (check.severity, text) for name, check, text in _checked(evidence)}
    for quirk, text in _departing(evidence):
        severity, before = found.get(quirk, ("warning", ""))
        found[quirk] = severity, " ".join(filter(None, (before, text)))
    return [_finding(evidence.trainer, name, severity, text) for name, (severity, text) in found.items()]


def with_trainer(
    report: Report,
    trainer: Trainer[Any],
    correction: Correction,
    logged: Metrics,
    reads: str,
    work: tuple[Work, ...] | None = None,
    config: object = None,
) -> Report:
    """The report with what the trainer would have logged, and with its quirks that matter among the findings.

    Args:
        report: of an audit whose reference is the trainer's own correction.
        trainer: whose names and quirks.
        correction: what its configuration does.
        logged: its metrics, the whole dump as one batch.
        reads: what its configuration was read as, in words.
        work: what each of its rules does by itself, where the tokens were asked.
        config: its parsed configuration.
    """
    own = next(c for c in report.corrections if c.name == report.settings.reference)
    evidence = Evidence(trainer, correction, report, own, logged, work, config)
    its = TrainerReport(
        name=trainer.name,
        version=trainer.version,
        reads=reads,
        metrics=logged.as_dict(),
        reasons=dict(logged.reasons),
        beside=beside(evidence),
    )
    return report.model_copy(update={"trainer": its, "findings": [*report.findings, *findings(evidence)]})


def without_its_figures(report: Report, trainer: Trainer[Any], correction: Correction) -> Report:
    """The report with the quirks that the correction and the native figures tell, where nothing was logged again.

    Args:
        report: whose reference is the trainer's own correction.
        trainer: whose names and quirks.
        correction: what its configuration does.
    """
    own = next(c for c in report.corrections if c.name == report.settings.reference)
    evidence = Evidence(trainer, correction, report, own, Metrics({}))
    return report.model_copy(update={"findings": [*report.findings, *findings(evidence)]})


def beside(evidence: Evidence) -> list[CounterpartReport]:
    """Figures of the trainer beside their native counterparts, where both have a value."""
    found = []
    for name, listed in evidence.trainer.counterparts.items():
        counterpart = listed.configured(evidence.config)
        value, native = evidence.logged.get(name), _native(evidence, counterpart)
        if value is None or native is None:
            continue
        found.append(
            CounterpartReport(
                metric=name,
                value=value,
                native=counterpart.label,
                native_value=native,
                departs=_departs(value, native),
                quirk=_cause(evidence, counterpart, value, native),
            )
        )
    return found


def _cause(evidence: Evidence, counterpart: Counterpart, value: float, native: float) -> str:
    """The counterpart's quirk for what is rejected or not, or that of empty rows where the mean over the others is the
    native figure."""
    counts, filler = evidence.report.counts, counterpart.empty_row
    rejecting = counterpart.rejecting if evidence.figure("kept.masked_fraction") else ""
    quirk, empty = rejecting or counterpart.quirk, counts.sequences - counts.scored_sequences
    if filler is None or not empty or not counts.scored_sequences:
        return quirk
    without = (value * counts.sequences - filler * empty) / counts.scored_sequences
    return quirk if _departs(without, native) else "empty_rows"


def _native(evidence: Evidence, counterpart: Counterpart) -> Number:
    value = evidence.figure(counterpart.native) if counterpart.when(evidence.correction) else None
    return value if value is None or counterpart.of == "value" else 1.0 - value


def _departs(value: float, native: float) -> bool:
    return abs(value - native) > max(DEPARTS * abs(native), LEAST)


def _departing(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """(quirk, its figures beside the native ones)."""
    by_quirk: dict[str, list[str]] = {}
    for one in beside(evidence):
        if not one.departs:
            continue
        text = f"{one.metric} = {one.value:.4g} where {one.native} is {one.native_value:.4g}"
        by_quirk.setdefault(one.quirk, []).append(text)
    for quirk, texts in by_quirk.items():
        yield quirk, f"{_rows_text(evidence) if quirk == 'empty_rows' else ''}{'; '.join(texts)}."


def _rows_text(evidence: Evidence) -> str:
    counts = evidence.report.counts
    empty = counts.sequences - counts.scored_sequences
    return f"{empty:,} of {counts.sequences:,} rows have no valid token. " if empty else ""


def _checked(evidence: Evidence) -> Iterator[tuple[str, Check, str]]:
    for check in CHECKS:
        text = check.sentence(evidence) if check.every_trainer or evidence.has(check.name) else None
        if text is not None:
            yield check.name, check, f"{text}."


def _finding(trainer: Trainer[Any], name: str, severity: Literal["warning", "info"], text: str) -> FindingReport:
    quirk = next((quirk for quirk in trainer.quirks if quirk.name == name), None)
    message = f"{trainer.name}, whole dump as one batch: {text}{'' if quirk is None else _why(quirk)}"
    return FindingReport(kind=f"quirk:{name}", severity=severity, message=message)


def _why(quirk: Quirk) -> str:
    """The sentence, with the sources that a reader can look up."""
    public = "; ".join(part for part in quirk.source.split("; ") if not part.startswith(("reference/", "conformance/")))
    return f" {quirk.sentence}{f' ({public})' if public else ''}"


def _lopsided_k1(evidence: Evidence) -> str | None:
    lopsided = [rule for rule in evidence.correction.rules if _is_lopsided(rule)]
    return _each_leaving(evidence, {rule.name: _swapped(rule) for rule in lopsided}) if lopsided else None


def _each_leaving(evidence: Evidence, texts: Mapping[str, str]) -> str:
    """What is said of each rule, by its name, with the share of the tokens that it removes by itself."""
    alone = len(evidence.correction.all_rules) == 1
    masked = evidence.figure("kept.masked_fraction") or 0.0
    shares = {name: masked if alone else evidence.removed_by(name) for name in texts}
    if None in shares.values():
        return f"{'; '.join(texts.values())}: {masked:.2%} of the tokens leave, by all rules together"
    by_itself = "" if alone else " by this rule alone"
    return "; ".join(f"{text}: {shares[name]:.2%} of the tokens leave{by_itself}" for name, text in texts.items())


def _is_lopsided(rule: Rule) -> bool:
    if rule.statistic is not Statistic.K1 or rule.lower is None or rule.upper is None:
        return False
    return not math.isclose(-rule.lower, rule.upper, rel_tol=LOPSIDED)


def _swapped(rule: Rule) -> str:
    lower, upper = math.exp(rule.lower or 0.0), math.exp(rule.upper or 0.0)
    return f"{rule.name} '{lower:.6g}_{upper:.6g}' keeps ratios from {1 / upper:.6g} to {1 / lower:.6g}"


def _shared_threshold(evidence: Evidence) -> str | None:
    rules = [rule for rule in evidence.correction.rules if rule.upper is not None]
    ratios = [(rule, math.exp(rule.upper or 0.0)) for rule in rules if rule.statistic is Statistic.K1]
    others = [rule for rule in rules if rule.statistic in (Statistic.K2, Statistic.K3)]
    for rule, bound in ratios:
        same = [other.name for other in others if math.isclose(other.upper or 0.0, bound, rel_tol=1e-9)]
        if same:
            leaving = _each_leaving(evidence, {name: name for name in (rule.name, *same)})
            return f"{rule.name} and {', '.join(same)} share {bound:g}; {leaving}"
    return None


def _above_the_cap(evidence: Evidence) -> str | None:
    cap = evidence.correction.applied_weight.upper
    known = evidence.known("normalised.weight_max", "normalised.batch_norm_factor")
    if not known or cap is None or not evidence.correction.applied_weight.normalise:
        return None
    largest, factor = known
    text = f"batch normalisation divides by {factor:.4g} and lifts the largest weight to {largest:.4g}, above {cap:g}"
    return text if largest > cap * (1 + LEAST) else None


def _rejects_almost_everything(evidence: Evidence) -> str | None:
    known = evidence.known("kept.masked_fraction", "bounded.zeroed_fraction")
    if not known or max(known) <= ALMOST_EVERYTHING:
        return None
    lost, keeps = max(known), "; ".join(evidence.own.keeps)
    return f"{lost:.1%} of the tokens are rejected or zeroed: the band is too tight for this dump ({keeps})"


def _touches_nothing(evidence: Evidence) -> str | None:
    """Each bound of the weight and each rule by itself; a rule that only repeats others is one too."""
    return "; ".join([*_idle_bounds(evidence), *_idle_rules(evidence)]) or None


def _idle_bounds(evidence: Evidence) -> Iterator[str]:
    weight = evidence.correction.applied_weight
    known = evidence.known(*(f"bounded.{name}" for name in ("capped_fraction", "below_lower_fraction")))
    span = evidence.known("raw.weight_min", "raw.weight_max")
    if weight.bound is Bound.NONE or not known or not span:
        return
    lower = None if weight.bound is Bound.TRUNCATE else weight.lower
    sides = (("upper", weight.upper, known[0]), ("lower", lower, known[1]))
    given = [(name, bound, share) for name, bound, share in sides if bound is not None and math.isfinite(bound)]
    idle = [f"{name} bound {bound:g}" for name, bound, share in given if not share]
    if idle:
        yield (
            f"the {' and the '.join(idle)} of the weight change{'s' if len(idle) == 1 else ''} none: "
            f"raw weights lie from {span[0]:.4g} to {span[1]:.4g}"
        )


def _idle_rules(evidence: Evidence) -> Iterator[str]:
    if evidence.work is None:
        none = bool(evidence.correction.all_rules) and evidence.figure("kept.masked_fraction") == 0
        yield from ("no token is rejected by any rule",) if none else ()
        return
    for one in evidence.work:
        if not one.removed:
            yield f'"{one.text}" rejects nothing: {one.values}'
        elif not one.only_here:
            yield f'"{one.text}" rejects nothing that the other rules leave (tokens by itself: {one.removed:,})'
        for side in (name for name, count in one.by_side.items() if one.removed and not count):
            yield f'the {side} bound of "{one.text}" rejects nothing: {one.values}'


_DIVISORS = {
    Denominator.KEPT: "the tokens that are left",
    Denominator.REMAINING: "the tokens that the first rules leave",
    Denominator.ORIGINAL: "all tokens",
}


def _gradient_scale(evidence: Evidence) -> str | None:
    known = evidence.known("kept.gradient_scale_kept", "kept.gradient_scale_original")
    if not known or not known[1] or not _departs(known[0], known[1]):
        return None
    divisor = _DIVISORS[evidence.correction.denominator]
    return (
        f"the loss divides by {divisor}: the weights add up to {known[0]:.4g} of the tokens that are left and to "
        f"{known[1]:.4g} of all, a factor {known[0] / known[1]:.3g} of the gradient between the two conventions"
    )


def _cancelling(evidence: Evidence) -> str | None:
    known = evidence.known("overall.kl_k1", "overall.log_prob_diff_abs_mean")
    if not known or abs(known[0]) >= CANCELS * known[1]:
        return None
    return f"the log-ratio averages {-known[0]:.3g} and its size {known[1]:.3g}: errors of both signs cancel"


def _lag(evidence: Evidence) -> str | None:
    total, engine = (evidence.pair(name).get("kl_k3") for name in ("total", "engine"))
    if total is None or engine is None or not _departs(total, engine):
        return None
    return f"k3 to the engine is {total:.4g} from the current policy and {engine:.4g} from the one before the update"


def _logged_unapplied(evidence: Evidence) -> str | None:
    value = evidence.logged.get("sampling_importance_ratio")
    idle = evidence.correction.applied_weight.level is Level.NONE
    return f"sampling_importance_ratio = {value:.4g} is not applied" if idle and value is not None else None


CHECKS: tuple[Check, ...] = (
    Check("k1_sign", "warning", _lopsided_k1, every_trainer=False),
    Check("shared_threshold", "warning", _shared_threshold, every_trainer=False),
    Check("normalised_above_cap", "warning", _above_the_cap),
    Check("band_too_tight", "warning", _rejects_almost_everything),
    Check("idle_bound", "warning", _touches_nothing),
    Check("gradient_scale", "warning", _gradient_scale),
    Check("signed_kl", "warning", _cancelling, every_trainer=False),
    Check("signed_difference", "warning", _cancelling, every_trainer=False),
    Check("current_policy", "warning", _lag, every_trainer=False),
    Check("ratio_without_correction", "info", _logged_unapplied, every_trainer=False),
)
