"""Which way is worse of what trainers log, where no native figure says it, and what says nothing of the mismatch.

By the words of the name: trainers spell the same reduction in a dozen ways, and in few words.
"""

from __future__ import annotations

import re

from rollout_audit.reports.catalogue import CATALOGUE, Worse
from rollout_audit.trainers.registry import TRAINERS, get_trainer

__all__ = ["REMOVED_OR_CHANGED", "direction_of_logged", "is_logged", "is_of_one_side"]

NATIVE_OF_ONE_SIDE = frozenset({"training_ppl", "rollout_ppl"})
LOGGED_OF_ONE_SIDE = re.compile(r"(training|rollout)_(log_)?ppl$|approx_entropy$")
REMOVED_OR_CHANGED = r"frac|mask|clip|veto|catastrophic|oob_ratio|outlier"
COMPLEMENT: dict[Worse, Worse] = {
    "higher": "lower",
    "lower": "higher",
    "above 0": "neither",
    "away from 0": "away from 1",
    "away from 1": "away from 0",
    "neither": "neither",
}
"""direction of x → that of 1 − x"""
_PATTERNS: tuple[tuple[str, Worse], ...] = (
    # Over the padding too, which counts as 0: where it would stand without a mismatch depends on the lengths
    (r"loss_metrics/is_ratio_std", "neither"),
    (r"__count$|n_valid_tokens$|masked_correct", "neither"),
    # What is left
    (r"eff_sample_size|num_valid_samples|unclipped_behave_tokens", "lower"),
    (r"train_infer_.*mask_mean", "lower"),
    # Spreads and sizes
    (r"[_/]std$|max_deviation$|abs_diff|tis_abs$|mult_prob_error|js_divergence|logp_difference|logprob_diff", "higher"),
    (REMOVED_OR_CHANGED, "higher"),
    # Signed
    (r"chi2", "above 0"),
    (r"log_ppl_diff|train_infer_diff|approx_kl|ppo_kl|_k1_", "away from 0"),
    (r"kl|_k2_|_k3_", "higher"),
    (r"ppl_ratio|rollout_[ir]s_|is_ratio|importance_sampling_ratio|train_infer_ratio", "away from 1"),
    (r"weight|batch_norm_factor|/tis$", "away from 1"),
)
DIRECTIONS_BY_NAME: tuple[tuple[re.Pattern[str], Worse], ...] = tuple((re.compile(p), w) for p, w in _PATTERNS)
"""The first that is found in a name counts"""


def is_logged(metric: str) -> bool:
    """Whether it is `TRAINER:METRIC`."""
    trainer, colon, _ = metric.partition(":")
    return bool(colon) and trainer in TRAINERS


def direction_of_logged(metric: str) -> Worse:
    """That of the native figure that `TRAINER:METRIC` stands beside, where there is one; else by the name."""
    trainer, _, name = metric.partition(":")
    counterpart = get_trainer(trainer).counterparts.get(name)
    if counterpart is not None:
        worse = CATALOGUE[counterpart.metric].worse
        return worse if counterpart.of == "value" else COMPLEMENT[worse]
    return next((worse for pattern, worse in DIRECTIONS_BY_NAME if pattern.search(name)), "neither")


def is_of_one_side(metric: str) -> bool:
    """Whether it looks at one of the two policies alone, as a perplexity: any value of it may be right."""
    return bool(LOGGED_OF_ONE_SIDE.search(metric)) if is_logged(metric) else metric in NATIVE_OF_ONE_SIDE
