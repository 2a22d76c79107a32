"""The names that trainers log, each with its reduction: data alone, so that a name can be looked up without torch.

d = log π − log μ of a token, w its importance weight. "All rows" includes those without a valid token. Sources:
reference/trainers.md, part B of each trainer; tests hold the names to those that the trainers' own code gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

__all__ = ["LOGGED", "LoggedName", "bare_names", "logged_names"]


@dataclass(frozen=True, slots=True)
class LoggedName:
    """One name, or several that only differ where * stands."""

    trainers: tuple[str, ...]
    prefix: str
    name: str
    reduction: str

    def spelled(self, given: str) -> str | None:
        """The name in full where `given` is it, with all of its prefix, the end of it, or none; else None."""
        parts = self.prefix.split("/")
        for tail in ("/".join(parts[start:]) for start in range(len(parts) + 1)):
            if given.startswith(tail) and fnmatchcase(given.removeprefix(tail), self.name):
                return self.prefix + given.removeprefix(tail)
        return None


TOKENS, ROWS = "over all valid tokens of the batch", "over all rows"
PER_ROW = "row means, averaged over all rows, one without a valid token as 0"


def _off_policy(tokens: str, rows: str) -> dict[str, str]:
    """verl's names and those of its descendants; how each averages tokens and rows."""
    return {
        "training_ppl": f"exp(−mean log π of the row), mean {rows}",
        "training_log_ppl": f"−mean log π of the row, mean {rows}",
        "rollout_ppl": f"exp(−mean log μ of the row), mean {rows}",
        "rollout_log_ppl": f"−mean log μ of the row, mean {rows}",
        "ppl_ratio": f"exp(mean log μ − mean log π of the row), mean {rows}",
        "log_ppl_diff": f"mean log μ − mean log π of the row, mean {rows}",
        "log_ppl_abs_diff": f"|mean log μ − mean log π| of the row, mean {rows}",
        "log_ppl_diff_max": f"mean log μ − mean log π of the row, largest {rows}",
        "log_ppl_diff_min": f"mean log μ − mean log π of the row, smallest {rows}",
        "kl": f"mean of −d, {tokens}",
        "k3_kl": f"mean of expm1(d) − d, {tokens}",
        "chi2_token": f"mean of exp(2d) with d clamped to ±20, {tokens}; minus 1",
        "chi2_seq": f"exp(2Σd) with Σd clamped to ±20, mean {rows}; minus 1",
    }


def _weights(of: str, spread: str, what: str = "rollout_is") -> dict[str, str]:
    """verl's figures of weights: `of` which form, `spread` the bounds of the copy for std and sample size."""
    return {
        f"{what}_mean": f"mean of {of}, {TOKENS}",
        f"{what}_max": f"largest of {of}: of tokens at token level, else of rows",
        f"{what}_min": f"smallest of {of}: of tokens at token level, else of rows",
        f"{what}_std": f"√(E[x²] − E[x]²) {TOKENS}, x {spread}",
        f"{what}_eff_sample_size": f"1 / E[(x / E[x])²] {TOKENS}, x {spread}",
        f"{what}_ratio_fraction_high": "share of raw weights above the upper bound: of tokens at token level, of all "
        "rows at sequence level",
        f"{what}_ratio_fraction_low": "share of raw weights below the lower bound (1/T where there is none): of "
        "tokens at token level, of all rows at sequence level",
        f"{what}_seq_mean": f"row mean of {of}, mean {ROWS}",
        f"{what}_seq_std": f"row mean of {of}, unbiased standard deviation {ROWS}",
        f"{what}_seq_max": f"row mean of {of}, largest {ROWS}",
        f"{what}_seq_min": f"row mean of {of}, smallest {ROWS}",
        f"{what}_seq_max_deviation": f"|row mean of {of} − 1|, largest {ROWS}",
        f"{what}_seq_fraction_high": f"share of rows whose mean raw weight is above the upper bound, {ROWS}",
        f"{what}_seq_fraction_low": f"share of rows whose mean raw weight is below the lower bound, {ROWS}",
    }


BATCH_NORM = "mean bounded weight before rejection: of tokens at token level, else of rows with a valid token"
VETO = {
    "rollout_is_veto_fraction": f"share of rows with a token of ρ below the veto, {ROWS}",
    "rollout_is_catastrophic_token_fraction": f"share of tokens of ρ below the veto, {TOKENS}",
}
RULE = {
    "rollout_rs_*_mean": f"mean of the option's statistic, {TOKENS}; of a sequence option once for each token",
    "rollout_rs_*_max": "largest of the option's statistic: of tokens, or of rows with a valid token",
    "rollout_rs_*_min": "smallest of the option's statistic: of tokens, or of rows with a valid token",
    "rollout_rs_*_std": f"√(E[x²] − E[x]²) {TOKENS}, x the statistic clamped into the bounds",
    "rollout_rs_*_fraction_high": "share above the upper bound: of tokens, or of rows with a valid token",
    "rollout_rs_*_fraction_low": "share below the lower bound: of tokens, or of rows with a valid token",
    "rollout_rs_*_seq_mean": "row mean of the statistic, mean over rows with a valid token",
    "rollout_rs_*_seq_std": "row mean of the statistic, unbiased standard deviation over rows with a valid token",
    "rollout_rs_*_seq_max": "row mean of the statistic, largest over rows with a valid token",
    "rollout_rs_*_seq_min": "row mean of the statistic, smallest over rows with a valid token",
    "rollout_rs_*_seq_max_deviation": "|row mean of the statistic|, largest over rows with a valid token",
    "rollout_rs_*_seq_fraction_high": "share of rows with a valid token whose mean statistic is above the bound",
    "rollout_rs_*_seq_fraction_low": "share of rows with a valid token whose mean statistic is below the bound",
    "rollout_rs_*_masked_fraction": f"share of tokens that the option removes, {TOKENS}",
    "rollout_rs_*_seq_masked_fraction": "share of rows with a valid token of which the option removes a token",
}
TOTALS = {
    "rollout_rs_masked_fraction": f"share of tokens that rejection removes, {TOKENS}",
    "rollout_rs_seq_masked_fraction": f"share of rows of which rejection removes a token, {ROWS}",
}
RAW_SPREAD = "the weight clamped into [1/T, T]"
_MIS_NAMES = _off_policy(PER_ROW, PER_ROW)


def _table() -> Iterator[tuple[tuple[str, ...], str, Mapping[str, str]]]:
    """Trainers, prefix, name → reduction."""
    modern, of_2026 = ("verl", "verl-2026-01", "verl-2025-11"), ("verl", "verl-2026-01")
    yield modern, "rollout_corr/", _off_policy(TOKENS, ROWS)
    yield (
        ("verl",),
        "rollout_corr/",
        _weights("the bounded weight", "the bounded weight")
        | {"rollout_is_oob_ratio": f"share of tokens that IcePop zeroes, {TOKENS}"},
    )
    yield modern[1:], "rollout_corr/", _weights("the raw weight", RAW_SPREAD)
    yield modern, "rollout_corr/", {"rollout_is_batch_norm_factor": BATCH_NORM}
    yield of_2026, "rollout_corr/", RULE
    yield modern, "rollout_corr/", TOTALS
    yield ("verl-2025-11",), "rollout_corr/", VETO | _weights("the raw ratio", "it clamped into the band", "rollout_rs")
    yield (
        ("verl",),
        "actor/",
        {
            "ppo_kl": f"mean of −d of the update, {TOKENS}",
            "pg_clipfrac": f"share of tokens that DPPO masks, {TOKENS}",
            "pg_clipfrac_lower": f"share of kept tokens above clip_ratio_c, {TOKENS}",
        },
    )
    october = {k: v for k, v in _off_policy(TOKENS, ROWS).items() if not k.startswith("chi2")}
    yield ("verl-2025-10",), "mismatch/mismatch_", october
    yield (
        ("verl-2025-10",),
        "mismatch/",
        VETO
        | _weights("the raw weight", "it clamped into [lower, T]")
        | {
            **{f"rollout_is_p{p}": f"{p}th percentile of the raw weight, {TOKENS}" for p in (25, 50, 75, 95, 99)},
            "rollout_is_masked_fraction": f"share of tokens outside the band, {TOKENS}; vetoed rows apart",
            "rollout_is_seq_masked_fraction": f"share of rows with a token outside the band, {ROWS}",
        },
    )
    forks = ("slime", "miles")
    yield forks, "mis_", {k: v for k, v in _MIS_NAMES.items() if not k.endswith(("_max", "_min"))}
    yield (
        forks,
        "mis_",
        {
            "tis_weight_before_bound": f"raw weight: {PER_ROW}",
            "tis_weight_after_bound": f"bounded weight: {PER_ROW}",
            "tis_truncate_fraction": f"share of tokens above the cap: {PER_ROW}",
            "tis_clip_fraction_*": f"share of tokens outside that bound: {PER_ROW}",
            "tis_mask_fraction_*": f"share of tokens outside that bound: {PER_ROW}",
            "rs_mask_fraction_*": f"share of tokens outside that bound of rejection: {PER_ROW}",
            "rs_catastrophic_token_fraction": f"share of tokens of ρ below the veto: {PER_ROW}",
            "rs_catastrophic_seq_fraction": "share of rows with a token of ρ below the veto, over all rows",
            "is_ratio_mean_after_tis_rs": f"bounded weight, rejected tokens in it: {PER_ROW}",
            "is_ratio_mean_final": f"weight after batch normalisation: {PER_ROW}",
            "is_ratio_max_final": "largest weight of each row, mean over all rows",
            "is_ratio_min_final": "smallest weight of each row, mean over all rows",
            "batch_norm_factor": "mean bounded weight, times the share of rows with a valid token",
        },
    )
    yield (
        forks,
        "train/",
        {
            "train_rollout_logprob_abs_diff": f"|d|: {PER_ROW}",
            "tis": f"raw ratio: {PER_ROW}",
            "tis_abs": f"|raw ratio − 1|: {PER_ROW}",
            "tis_clipfrac": f"share of tokens that the bounds change: {PER_ROW}",
            "opsm_clipfrac": "tokens that OPSM drops, masked ones too, over valid ones of the row: mean over all rows",
        },
    )
    yield ("miles",), "train/", {"train_rollout_kl": f"k3 of d clamped to ±20, at most 10 a token: {PER_ROW}"}
    yield (
        ("trl",),
        "sampling/",
        {
            "sampling_logp_difference/mean": f"mean of |d|, {TOKENS}",
            "sampling_logp_difference/max": f"largest |d|, {TOKENS}",
            "importance_sampling_ratio/*": "bounded weight: over tokens in token modes, else over all rows",
        },
    )
    yield (
        ("nemo-rl",),
        "",
        {
            "token_mult_prob_error": f"mean of exp|d|, {TOKENS} that the error mask keeps",
            "gen_kl_error": f"mean of expm1(d) − d, {TOKENS} that the error mask keeps",
            "policy_kl_error": f"mean of expm1(−d) + d, {TOKENS} that the error mask keeps",
            "js_divergence_error": f"half of k3 of both policies to their mixture at the sampled token, mean {TOKENS}",
            "sampling_importance_ratio": "mean weight after truncation or zeroing, also where it is not applied",
            "is_oob_ratio": "share outside the bounds: of tokens, of rows with seq-mask-tis",
            "approx_entropy": f"−mean of ρ log π, {TOKENS}",
            "*_seq_mult_prob_error": "mean of exp|d| of a row, over rows with a valid token",
            "*_seq_mult_prob_error_after_mask": "mean of exp|d| of a row, over rows that the error mask keeps",
            "num_masked_seqs_by_logprob_error": "rows that the error mask drops, a count",
            "num_valid_samples": "rows that are left, a count",
            "masked_correct_pct": "share of the dropped rows with reward 1",
        },
    )
    yield ("openrlhf",), "", {"vllm_kl": f"mean of −d, {TOKENS}"}
    yield (
        ("open-instruct",),
        "val/",
        {
            "rho_weight": f"mean weight after clamping and dropping, {TOKENS}",
            "rho_clipfrac": f"share of tokens whose weight is not ρ, dropped ones too, {TOKENS}",
            "rho_drop_frac": f"share of tokens dropped, {TOKENS}",
            "rho_drop_*_frac": f"share of tokens dropped on that side, {TOKENS}",
        },
    )
    yield (
        ("open-instruct",),
        "debug/",
        {
            "vllm_vs_local_logprob_diff_*": f"|d| {TOKENS}: mean, largest, standard deviation",
            "vllm_local_reverse_kl": f"mean of −μ·d, {TOKENS}: no estimate of a divergence",
        },
    )
    yield (
        ("skyrl",),
        "policy/",
        {
            "rollout_train_logprobs_abs_diff_*": f"|d| {TOKENS}: mean, largest, smallest, standard deviation",
        },
    )
    yield (
        ("skyrl",),
        "policy/loss_metrics/",
        {
            "is_ratio_mean": f"mean of the raw ratio, {TOKENS}",
            "is_ratio_*": "raw ratio over all positions of the padded batch, masked ones as 0",
            "outlier_seq_*": f"share of rows past the outlier thresholds, {ROWS}",
            "token_mask_ratio": "share of tokens masked, of those that the outlier mask leaves",
            "*_sequence_mask_*": f"share of rows outside the sequence mask, {ROWS}",
            "tis_token_clip_high_ratio": "share of tokens above the cap, of those that the masks leave",
            "tis_seq_clip_high_ratio": f"share of rows above the cap, {ROWS}",
            "clip_ratio": f"share of tokens that rollout_is, cispo or dppo zeroes, clips or masks, {TOKENS}",
        },
    )
    yield (
        ("areal",),
        "ppo_actor/update/",
        {
            "behave_approx_kl/*": "d, of tokens with a weight above 0: mean, largest, smallest",
            "behave_imp_weight/*": "weight, of tokens with a weight above 0: mean, largest, smallest",
            "rs_filtered_fraction*": "share of tokens that rejection removes; __count the number it is of",
            "n_valid_tokens": "valid tokens, a count",
            "unclipped_behave_tokens": "tokens with a weight above 0, a count",
        },
    )
    yield (
        ("roll",),
        "actor/",
        {
            "train_infer_ratio_*_mean@sum": "ratio of that level: row means, averaged over rows",
            "train_infer_diff_*_mean@sum": "π − μ in probability of that level, signed: row means, averaged over rows",
            "train_infer_*_mask_mean@sum": "share of positions that the filter lets through, padding in it",
            "train_infer_final_mask_mean": f"share of tokens that all filters let through, {TOKENS}",
            "is_weight_clipfrac@sum": "share of weights above the upper bound: row means, averaged over rows",
        },
    )
    swift = _off_policy(TOKENS, ROWS) | {
        "k3_kl": f"mean of k3 of d clamped to ±20, at most 10 a token, {TOKENS}",
        "chi2_seq": f"exp(2 mean d), mean {ROWS}; minus 1: of the geometric ratio",
        "is_weight_mean": f"mean weight after truncation or masking, {TOKENS}",
        "ess": f"1 / mean((w / mean w)²) {TOKENS}, w clamped into [1/T, T]",
        "clipped_frac": f"share of weights that the threshold changes, {TOKENS}",
    }
    yield ("ms-swift",), "rollout_correction/", swift
    yield (
        ("prime-rl",),
        "",
        {
            "mismatch_kl/all/*": f"expm1(d) − d of the current policy, {TOKENS}: mean, largest, standard deviation",
            "masked_mismatch_kl/*": "expm1(d) − d of the masked tokens: mean of each row, then over rows",
            "unmasked_mismatch_kl/*": "expm1(d) − d of the kept tokens: mean of each row, then over rows",
            "is_masked/*": "share of tokens masked: mean of each row, then over rows",
            "is_masked_*/*": "share of tokens masked on that side: mean of each row, then over rows",
            "masked_advantage_*/*": "share of tokens masked, A of that sign: mean of each row, then over rows",
        },
    )


LOGGED: tuple[LoggedName, ...] = tuple(
    LoggedName(trainers, prefix, name, reduction)
    for trainers, prefix, names in _table()
    for name, reduction in names.items()
)


def logged_names(given: str) -> list[tuple[LoggedName, str]]:
    """What a name as a trainer logs it may be, with its full spelling; a prefix of the run's own is left off."""
    while given:
        found = [(one, full) for one in LOGGED if (full := one.spelled(given)) is not None]
        exact = {trainer for one, _ in found if "*" not in one.name for trainer in one.trainers}
        if found:
            return [(one, full) for one, full in found if "*" not in one.name or not exact & set(one.trainers)]
        given = given.partition("/")[2]
    return []


def bare_names() -> list[str]:
    """Every name with and without its prefix, for suggestions."""
    return sorted({name for one in LOGGED if "*" not in one.name for name in (one.name, one.prefix + one.name)})
