"""What a configuration may do to the data at hand, as a table of checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rollout_audit.audit.quirk_evidence import LEAST, Evidence, departs
from rollout_audit.corrections.model import Bound, Denominator, Level, Rule, Statistic

__all__ = ["CHECKS", "Check"]

ALMOST_EVERYTHING = 0.9
"""Share of the tokens whose loss is an alarm by itself"""
LOPSIDED = 0.02
"""How far the logs of a band may differ and still be meant as reciprocal: 0.99_1.01 is"""
CANCELS = 0.1
"""|mean d| over mean |d| below which errors of both signs cancel"""

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
    if evidence.asked.work is None:
        none = bool(evidence.correction.all_rules) and evidence.figure("kept.masked_fraction") == 0
        yield from ("no token is rejected by any rule",) if none else ()
        return
    for one in evidence.asked.work:
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
    if not known or not known[1] or not departs(known[0], known[1]):
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
    if total is None or engine is None or not departs(total, engine):
        return None
    return f"k3 to the engine is {total:.4g} from the current policy and {engine:.4g} from the one before the update"


def _logged_unapplied(evidence: Evidence) -> str | None:
    value = evidence.logged.get("sampling_importance_ratio")
    idle = evidence.correction.applied_weight.level is Level.NONE
    return f"sampling_importance_ratio = {value:.4g} is not applied" if idle and value is not None else None


def _every_weight_is_0(evidence: Evidence) -> str | None:
    return "every weight is 0" if evidence.figure("bounded.zeroed_fraction") == 1 else None


def _normalised_before(evidence: Evidence) -> str | None:
    known = evidence.known("normalised.weight_mean", "kept.weight_mean", "normalised.batch_norm_factor")
    if not known or not evidence.correction.applied_weight.normalise or not departs(known[1], known[0]):
        return None
    every, left, factor = known
    return f"divided by {factor:.4g} all weights average {every:.4g}, those of the tokens that are left {left:.4g}"


def _past_the_clamp(evidence: Evidence) -> str | None:
    by_row = evidence.correction.applied_weight.level is Level.SEQUENCE
    count = evidence.figure(f"overall.{'sequences' if by_row else 'tokens'}_past_clamp")
    if not count or evidence.correction.applied_weight.level is Level.NONE:
        return None
    span = evidence.known("raw.weight_min", "raw.weight_max")
    text = f"{count:,} {'responses' if by_row else 'tokens'} lie beyond a log-ratio of ±20"
    return f"{text}: raw weights from {span[0]:.4g} to {span[1]:.4g}" if span else text


def _zeroed(evidence: Evidence) -> str | None:
    """Of weights that are 0 and of rejected tokens, where neither changes the denominator."""
    known = evidence.known("bounded.zeroed_fraction", "kept.masked_fraction", "kept.gradient_scale_original")
    if not known or not departs(1 - max(known[:2]), 1):
        return None
    lost, total = max(known[:2]), known[2]
    over = f", {total / (1 - lost):.4g} of the others" if lost < 1 else ""
    return f"{lost:.2%} of the tokens have weight 0: the weights add up to {total:.4g} of all{over}"


LARGEST_JS = math.log(2)


def _no_divergence(evidence: Evidence) -> str | None:
    value = evidence.logged.get("js_divergence_error")
    above = value is not None and value > LARGEST_JS
    return f"js_divergence_error = {value:.4g} is above log 2 = {LARGEST_JS:.4g}" if above else None


def _nothing_left(evidence: Evidence) -> str | None:
    value = evidence.logged.get("token_mult_prob_error")
    none = evidence.figure("kept.masked_fraction") == 1
    return f"every row is masked: token_mult_prob_error is logged as {value:g}" if none and value == 0 else None


def _logged_as_0(evidence: Evidence) -> str | None:
    value = evidence.logged.get("val/rho_weight")
    return "val/rho_weight = 0 is logged, while every weight is 1" if value == 0 else None


def _by_difference(evidence: Evidence) -> str | None:
    shares = {name: evidence.removed_by(name) for name in ("seq_mean_prob_diff", "seq_sum_prob_diff")}
    texts = [
        f"{name} removes {share:.2%} of the tokens by itself" for name, share in shares.items() if share is not None
    ]
    return "; ".join(texts) or None


MANYFOLD = 2.0


def _ratios_that_stay(evidence: Evidence) -> str | None:
    known = evidence.known("kept.weight_min", "kept.weight_max")
    if not known or (known[0] >= 1 / MANYFOLD and known[1] <= MANYFOLD):
        return None
    return f"the ratios of the tokens that stay lie from {known[0]:.4g} to {known[1]:.4g}"


def _masked_but_penalised(evidence: Evidence) -> str | None:
    share = evidence.figure("kept.masked_fraction")
    return f"{share:.2%} of the tokens are masked and keep that term" if share else None


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
    Check("empty_weights", "warning", _every_weight_is_0, every_trainer=False),
    Check("normaliser_before_rejection", "warning", _normalised_before, every_trainer=False),
    Check("unclamped_ratio", "warning", _past_the_clamp, every_trainer=False),
    Check("masking_is_zeroing", "info", _zeroed, every_trainer=False),
    Check("pseudo_js", "warning", _no_divergence, every_trainer=False),
    Check("epsilon", "warning", _nothing_left, every_trainer=False),
    Check("zeros_when_off", "info", _logged_as_0, every_trainer=False),
    Check("geometric_difference", "info", _by_difference, every_trainer=False),
    Check("mask_by_probability", "warning", _ratios_that_stay, every_trainer=False),
    Check("masked_tokens_keep_kl", "info", _masked_but_penalised, every_trainer=False),
    Check("ratio_without_correction", "info", _logged_unapplied, every_trainer=False),
)
