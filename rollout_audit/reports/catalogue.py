"""Every figure of a report, explained: formula, unit of averaging, range, which way is worse, source.

Limits are not typed here: they are those of `audit.health.RULES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from rollout_audit.audit.health import RULES, HealthRule
from rollout_audit.errors import UsageError, suggest
from rollout_audit.trainers.logged import LoggedName, bare_names, logged_names

__all__ = ["CATALOGUE", "MetricEntry", "explanation", "limits_text"]

Family = Literal["mismatch", "correction"]
Unit = Literal["token", "sequence", "token or sequence", "count", "dump"]
Worse = Literal["higher", "lower", "above 0", "away from 0", "away from 1", "neither"]


@dataclass(frozen=True, slots=True)
class MetricEntry:
    """What one metric is."""

    name: str
    family: Family
    unit: Unit
    formula: str
    range: str
    worse: Worse
    meaning: str
    source: str

    @property
    def rules(self) -> tuple[HealthRule, ...]:
        return tuple(rule for rule in RULES if rule.metric == self.name)


SCHULMAN = "Schulman, Approximating KL divergence (joschu.net/blog/kl-approx.html)"
VERL = "verl 2026-08, rollout_corr_helper"
VERL_2025 = "verl 2025-10, mismatch_helper"
NEMO = "NeMo-RL, token_mult_prob_error"
SLIME = "slime, train/train_rollout_logprob_abs_diff"
KONG = "Kong 1992, effective sample size of importance weights"
OURS = "rollout-audit"
UNIT_SHARE = "[0, 1]"
POSITIVE = "[0, ∞)"
REAL = "(−∞, ∞)"

_MISMATCH: tuple[tuple[str, Unit, str, str, Worse, str, str], ...] = (
    ("kl_k1", "token", "mean −d", REAL, "away from 0",
     "Unbiased estimate of KL(μ‖π); errors of both signs cancel in it.", SCHULMAN),
    ("kl_k2", "token", "mean d²/2", POSITIVE, "higher",
     "Biased, low-variance estimate of KL(μ‖π) for small d.", SCHULMAN),
    ("kl_k3", "token", "mean expm1(d) − d", POSITIVE, "higher",
     "Unbiased and never negative estimate of KL(μ‖π): nothing cancels.", SCHULMAN),
    ("mult_prob_error", "token", "mean exp |d|", "[1, ∞)", "higher",
     "By what factor the probabilities of the two engines differ; 1.05 is a usual alarm.", NEMO),
    ("log_prob_diff_abs_mean", "token", "mean |d|", POSITIVE, "higher",
     "The plainest size of the mismatch: about 0.01 between bf16 engines, 0.1 is much.", SLIME),
    ("log_prob_diff_abs_max", "token", "max |d|", POSITIVE, "higher", "The single worst token.", OURS),
    ("log_prob_diff_abs_p50", "token", "median of |d|", POSITIVE, "higher",
     "The typical token; far below the mean where a few tokens carry the mismatch.", OURS),
    ("log_prob_diff_abs_p95", "token", "95th percentile of |d|", POSITIVE, "higher",
     "One token in 20 is worse.", OURS),
    ("log_prob_diff_abs_p99", "token", "99th percentile of |d|", POSITIVE, "higher",
     "One token in 100 is worse.", OURS),
    ("log_prob_diff_abs_p999", "token", "99.9th percentile of |d|", POSITIVE, "higher",
     "One token in 1,000 is worse.", OURS),
    ("log_prob_diff_std", "token", "standard deviation of d, divided by n", POSITIVE, "higher",
     "The spread that a mean near 0 hides.", OURS),
    ("prob_diff_abs_mean", "token", "mean |π − μ|, in probability", UNIT_SHARE, "higher",
     "Weighs likely tokens more than the log-ratio does.", "verl, training/rollout_probs_diff_mean"),
    ("prob_diff_abs_max", "token", "max |π − μ|, in probability", UNIT_SHARE, "higher",
     "Near 1: one engine is sure of a token that the other finds impossible.",
     "verl, training/rollout_probs_diff_max"),
    ("prob_pearson", "token", "correlation of π and μ, in probability", "[−1, 1]", "lower",
     "Above 0.99 between healthy engines.", "verl, training/rollout_actor_probs_pearson_corr"),
    ("chi2_token", "token", "mean ρ² − 1", "[−1, ∞)", "above 0",
     "Variance that token weights bring in; estimates χ²(π‖μ).", VERL),
    ("log1p_chi2_token", "token", "log mean ρ²", REAL, "above 0", "chi2_token where it would overflow.", OURS),
    ("chi2_rel_token", "token", "mean ρ² / (mean ρ)² − 1", POSITIVE, "higher",
     "chi2_token without the part that comes from a mean other than 1; 1/ess − 1.", OURS),
    ("chi2_seq", "sequence", "mean (Πρ)² − 1", "[−1, ∞)", "above 0",
     "Variance that whole-response weights bring in; grows with length.", VERL),
    ("log1p_chi2_seq", "sequence", "log mean (Πρ)²", REAL, "above 0", "chi2_seq where it would overflow.",
     OURS),
    ("chi2_rel_seq", "sequence", "mean (Πρ)² / (mean Πρ)² − 1", POSITIVE, "higher",
     "chi2_seq without the part that comes from a mean other than 1.", OURS),
    ("tokens_past_clamp", "count", "tokens with |d| > 20", "0, 1, 2, …", "higher",
     "Tokens whose log-ratio trainers clamp before exp.", VERL),
    ("sequences_past_clamp", "count", "sequences with |Σd| > 20", "0, 1, 2, …", "higher",
     "Responses whose product ratio trainers clamp before exp.", VERL),
    ("training_ppl", "sequence", "mean exp(−mean log π)", "[1, ∞)", "neither",
     "Perplexity of the responses under the trainer.", VERL),
    ("rollout_ppl", "sequence", "mean exp(−mean log μ)", "[1, ∞)", "neither",
     "Perplexity of the responses under the rollout engine.", VERL),
    ("ppl_ratio", "sequence", "mean exp(mean log μ − mean log π)", "(0, ∞)", "away from 1",
     "Above 1: the trainer finds the responses less likely than the engine that wrote them.", VERL),
    ("log_ppl_diff", "sequence", "mean (mean log μ − mean log π)", REAL, "away from 0",
     "Logarithm of the perplexity ratio, averaged.", VERL),
    ("log_ppl_abs_diff", "sequence", "mean |mean log μ − mean log π|", POSITIVE, "higher",
     "As log_ppl_diff, but responses cannot cancel each other.", VERL),
    ("log_ppl_diff_max", "sequence", "max (mean log μ − mean log π)", REAL, "away from 0",
     "The response the trainer finds most unlikely, relatively.", VERL),
    ("log_ppl_diff_min", "sequence", "min (mean log μ − mean log π)", REAL, "away from 0",
     "The response the trainer finds likelier than its author did.", VERL),
    ("within_1pct", "token", "share with ρ in [0.99, 1.01]", UNIT_SHARE, "lower",
     "Tokens that agree closely.", OURS),
    ("within_5pct", "token", "share with ρ in [0.95, 1.05]", UNIT_SHARE, "lower", "Tokens that agree.", OURS),
    ("within_10pct", "token", "share with ρ in [0.9, 1.1]", UNIT_SHARE, "lower",
     "Tokens that agree roughly.", OURS),
    ("catastrophic_fraction", "token", "share with ρ < 1e-4", UNIT_SHARE, "higher",
     "Tokens that were sampled and that the trainer finds impossible.", VERL_2025),
    ("veto_fraction", "sequence", "share with a token of ρ < 1e-4", UNIT_SHARE, "higher",
     "Responses that hold such a token, which a veto would remove.", VERL_2025),
)  # fmt: skip

ALIASES = {"cancellation": "kl_k3"}
"""Verdicts that are called otherwise than the metric they look at"""

_STAGE: tuple[tuple[str, Unit, str, str, Worse, str, str], ...] = (
    ("weight_mean", "token", "mean w", POSITIVE, "away from 1",
     "Raw weights of samples from μ average 1; a cap pulls the mean below.", VERL),
    ("weight_std", "token", "standard deviation of w, divided by n", POSITIVE, "higher",
     "How uneven the weights are.", VERL),
    ("weight_min", "token", "min w", POSITIVE, "away from 1", "The least weight.", VERL),
    ("weight_max", "token", "max w", POSITIVE, "away from 1", "The greatest weight.", VERL),
    ("weight_p01", "token", "1st percentile of w", POSITIVE, "away from 1", "One token in 100 weighs less.", OURS),
    ("weight_p25", "token", "25th percentile of w", POSITIVE, "away from 1",
     "A quarter of the tokens weigh less.", VERL_2025),
    ("weight_p50", "token", "median of w", POSITIVE, "away from 1", "The typical weight.", VERL_2025),
    ("weight_p75", "token", "75th percentile of w", POSITIVE, "away from 1",
     "A quarter of the tokens weigh more.", VERL_2025),
    ("weight_p95", "token", "95th percentile of w", POSITIVE, "away from 1",
     "One token in 20 weighs more.", VERL_2025),
    ("weight_p99", "token", "99th percentile of w", POSITIVE, "away from 1",
     "One token in 100 weighs more.", VERL_2025),
    ("ess", "token", "(Σw)² / (n Σw²)", "(0, 1]; 0 where every weight is 0", "lower",
     "Share of the tokens that, evenly weighted, would do the same. A bounded ess hides faults: see it raw.",
     KONG),
    ("ess_seq", "sequence", "(Σw)² / (n Σw²), one weight a sequence", "(0, 1]; 0 where every weight is 0",
     "lower",
     "As ess over responses; null at token level.", KONG),
    ("capped_fraction", "token", "share with a raw ratio above the upper bound", UNIT_SHARE, "higher",
     "Tokens that the cap changes.", VERL),
    ("below_lower_fraction", "token", "share with a raw ratio below the lower bound", UNIT_SHARE, "higher",
     "Tokens that the lower bound changes.", VERL),
    ("zeroed_fraction", "token", "share with a weight of 0 after bounding", UNIT_SHARE, "higher",
     "Tokens that a masking bound (IcePop) takes out of the loss.", OURS),
    ("mass_lost", "token", "Σ max(ρ − w, 0) / Σρ", UNIT_SHARE, "higher",
     "Share of the weight that bounding cuts away: the bias it brings.", OURS),
    ("batch_norm_factor", "token or sequence", "mean bounded weight before rejection", POSITIVE,
     "away from 1",
     "What batch normalisation divides by.", VERL),
    ("masked_fraction", "token", "share of the tokens removed by rules and veto", UNIT_SHARE, "higher",
     "How much of the batch rejection throws away.", VERL),
    ("seq_masked_fraction", "sequence", "share of the sequences removed whole", UNIT_SHARE, "higher",
     "Responses that are gone.", VERL),
    ("seq_touched_fraction", "sequence", "share of the sequences with any token removed", UNIT_SHARE,
     "higher",
     "Responses that are not as they were.", VERL),
    ("kept_reward_mean", "sequence", "mean reward over sequences with a kept token", REAL, "neither",
     "Beside the mean of all: whether rejection prefers good or bad responses. Needs rewards.", OURS),
    ("kept_positive_fraction", "sequence", "share with a positive advantage, of sequences with a kept token",
     UNIT_SHARE, "neither",
     "Whether rejection prefers what is reinforced. Needs advantages.", OURS),
    ("gradient_scale_kept", "token", "Σ w of kept tokens / kept tokens", POSITIVE, "away from 1",
     "Size of the gradient where the loss divides by what is kept (verl).", OURS),
    ("gradient_scale_original", "token", "Σ w of kept tokens / all tokens", POSITIVE, "away from 1",
     "Size of the gradient where the loss divides by all valid tokens (slime, miles, TRL).", OURS),
    ("gradient_scale", "token", "Σ w of kept tokens / the trainer's own denominator", POSITIVE, "away from 1",
     "The one of the two that this correction's trainer uses.", OURS),
)  # fmt: skip


def _entries() -> Iterator[tuple[str, MetricEntry]]:
    families: tuple[tuple[Family, tuple[tuple[str, Unit, str, str, Worse, str, str], ...]], ...] = (
        ("mismatch", _MISMATCH),
        ("correction", _STAGE),
    )
    for family, rows in families:
        for name, *rest in rows:
            yield name, MetricEntry(name, family, *rest)  # type: ignore[arg-type]


CATALOGUE: Mapping[str, MetricEntry] = MappingProxyType(dict(_entries()))
"""metric name → what it is; exactly the names that a report holds"""


def explanation(name: str) -> MetricEntry | list[tuple[LoggedName, str]]:
    """The entry of a metric, `kept.ess` and `decoupled_seq_is:ess` are found too; else what trainers log by that name.

    Raises:
        UsageError: no such metric; the message suggests the nearest name.
    """
    bare = name.rpartition(":")[2].rpartition(".")[2]
    bare = ALIASES.get(bare, bare)
    if bare in CATALOGUE:
        return CATALOGUE[bare]
    if found := logged_names(name):
        return found
    near = ("" if "/" in name else suggest(bare, CATALOGUE)) or suggest(name, bare_names())
    raise UsageError(f"no metric {name!r}{near}; see `rollout-audit explain`")


def limits_text(rule: HealthRule) -> str:
    """`critical above 0.1`, `warn outside [0.95, 1.05]`."""
    bounds = ", ".join(f"{limit:g}" for limit in rule.limit)
    words = {
        "<": f"below {bounds}",
        ">": f"above {bounds}",
        "|x| >": f"further from 0 than {bounds}",
        "outside": f"outside [{bounds}]",
        "cancels": f"above {rule.limit[0]:g} with |kl_k1| < {rule.limit[-1]:g} · kl_k3",
    }
    return f"{rule.severity} {words[rule.comparison]}"
