"""What SkyRL, AReaL, ROLL, ms-swift and prime-rl do by default and recommend, and verl's DPPO.

Each correction equals what the trainer's module makes of the configuration beside it: a test holds them equal.
Sources: reference/trainers.md, section of each trainer; M2PO's threshold from its paper (arXiv 2510.01161).
"""

from __future__ import annotations

import math
from dataclasses import replace

from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Loss,
    Mode,
    Rule,
    Sign,
    Statistic,
    Weight,
    rules_by_sign,
)
from rollout_audit.corrections.preset import Preset

__all__ = ["MASKS"]

SKYRL, SKYRL_DOCS = "skyrl 2026-08", "skyrl 2026-08, documented"
SKYRL_GLM = "skyrl 2026-08, recipe of GLM-5"
AREAL, AREAL_DOCS = "areal 2026-05", "areal 2026-05, M2PO"
ROLL = "roll 2026-08"
SWIFT, SWIFT_DOCS = "ms-swift 2026-08", "ms-swift 2026-08, documented"
PRIME = "prime-rl 2026-08"
VERL_RECIPE = "verl 2026-08, recipe of DPPO"

IN_SKYRL = ("trainer", "algorithm", "off_policy_correction")
IN_AREAL, IN_ROLL, IN_PRIME = ("actor",), ("train_infer_correction",), ("trainer", "loss")

TOKEN_CAP = "upper 1.5 to 5"

NOTHING = Correction(denominator=Denominator.ORIGINAL)
RAW = Weight(Level.TOKEN, clamp=None)


def _weighted(weight: Weight) -> Correction:
    return Correction(weight, denominator=Denominator.ORIGINAL)


def _ratios(aggregation: Aggregation, lower: float, upper: float, clamp: float | None = None) -> Correction:
    rule = Rule(Statistic.RATIO, aggregation, lower, upper, clamp)
    return Correction(rules=(rule,), denominator=Denominator.ORIGINAL)


def _by_engine(weight: Weight, *rules: Rule) -> Correction:
    """The current policy's ratio to the inference engine is the weight."""
    return Correction(weight, rules, denominator=Denominator.ORIGINAL, mode=Mode.BYPASS, loss=Loss.REINFORCE)


def _prime(*rules: Rule) -> Correction:
    """Where the mask goes by probabilities."""
    return _by_engine(RAW, *rules)


SKYRL_OUTLIERS = Correction(
    rules=(
        Rule(Statistic.RATIO, Aggregation.SEQ_MIN, lower=1e-4),
        Rule(Statistic.RATIO, Aggregation.SEQ_MAX, upper=100.0),
    ),
    denominator=Denominator.ORIGINAL,
)
AREAL_MASK = Correction(
    RAW, (Rule(Statistic.RATIO, Aggregation.TOKEN, None, 5.0, clamp=None),), denominator=Denominator.ORIGINAL
)
M2PO = Correction(rules=(Rule(Statistic.K2, Aggregation.BATCH_MEAN, None, 0.02, clamp=None),))
OPSM = Correction(
    rules=(Rule(Statistic.K1, Aggregation.SEQ_MEAN, None, 0.5, clamp=None, sign=Sign.NEGATIVE_MEAN),),
    denominator=Denominator.REMAINING,
)


DPPO = _prime(*rules_by_sign(Statistic.PROB_DIFF, 0.2, 0.2))


SKYRL_CALIBRATED = _by_engine(Weight(Level.TOKEN, Bound.MASK, math.nextafter(0.8, math.inf), math.nextafter(1.2, 0.0)))
SKYRL_DPPO = _by_engine(Weight(Level.TOKEN), *rules_by_sign(Statistic.PROB_DIFF, 0.2, 0.2, down=Sign.NEGATIVE))


def _skyrl_loss(name: str, **sections: object) -> dict[str, object]:
    return {"trainer": {"algorithm": {"policy_loss_type": name, **sections}}}


def _verl_dppo(statistic: Statistic, limit: float) -> Correction:
    weight = Weight(Level.TOKEN, Bound.TRUNCATE, upper=1e4)
    return replace(_prime(*rules_by_sign(statistic, limit, limit)), weight=weight)


def _verl_dppo_keys(mode: str, limit: float) -> dict[str, object]:
    clips = {"clip_ratio_low": limit, "clip_ratio_high": limit, "clip_ratio_c": 1e4}
    return {
        "algorithm": {"rollout_correction": {"bypass_mode": True}},
        "actor_rollout_ref": {"actor": {**clips, "policy_loss": {"loss_mode": mode}}},
    }


MASKS: tuple[Preset, ...] = (
    Preset("skyrl_default", NOTHING, SKYRL, "No correction: what SkyRL does unless asked.", None,
           {"tis_ratio_type": None}, IN_SKYRL),
    Preset("skyrl_token_tis", _weighted(Weight(Level.TOKEN, Bound.TRUNCATE, upper=2.0)), SKYRL,
           "Token weights capped at 2.", TOKEN_CAP, {"tis_ratio_type": "token"}, IN_SKYRL),
    Preset("skyrl_sequence_tis", _weighted(Weight(Level.SEQUENCE, Bound.TRUNCATE, upper=5.0)), SKYRL,
           "Product weights of whole responses capped at 5.", "upper 2 to 10", {"tis_ratio_type": "sequence"},
           IN_SKYRL),
    Preset("skyrl_token_mask", _ratios(Aggregation.TOKEN, 0.5, 2.0, clamp=20.0), SKYRL_DOCS,
           "What SkyRL's pages call IcePop: tokens inside [0.5, 2] count in full, without a weight.", "0.5 to 2",
           {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0}, IN_SKYRL),
    Preset("skyrl_geometric_mask", _ratios(Aggregation.SEQ_MEAN, 0.99, 1.01), SKYRL,
           "Drops responses by their mean log-ratio; blind to errors that cancel.", "0.99 to 1.01",
           {"sequence_mask_metric": "geometric"}, IN_SKYRL),
    Preset("skyrl_product_mask", _ratios(Aggregation.SEQ_SUM, 0.5, 2.0), SKYRL,
           "Drops responses whose product ratio leaves [0.5, 2]; hard on long ones.", "0.5 to 2",
           {"sequence_mask_metric": "product"}, IN_SKYRL),
    Preset("skyrl_outlier_mask", SKYRL_OUTLIERS, SKYRL_DOCS,
           "Drops responses with a single token past 1e-4 or 100.", "1e-4 and 100",
           {"outlier_token_is_threshold_low": 1e-4, "outlier_token_is_threshold_high": 100.0}, IN_SKYRL),
    Preset("skyrl_rollout_is", SKYRL_CALIBRATED, SKYRL_GLM,
           "Raw token weights inside (0.8, 1.2), 0 from there on: the calibrated policy gradient of GLM-5.", "eps 0.2",
           _skyrl_loss("rollout_is")),
    Preset("skyrl_cispo_rollout", _by_engine(Weight(Level.TOKEN, Bound.CLIP, None, 5.0)), SKYRL_DOCS,
           "Token weights against the engine capped at 5, every token keeps a gradient: for asynchronous training.",
           "upper 5", _skyrl_loss("cispo", cispo={"cispo_anchor": "rollout"})),
    Preset("skyrl_dppo", SKYRL_DPPO, SKYRL,
           "Token weights; tokens whose probability moved by 0.2 the way the advantage pushes are dropped.", "0.2",
           _skyrl_loss("dppo")),
    Preset("areal_default", Correction(), AREAL, "Neither filter nor weight: what AReaL does unless asked.", None,
           {"rejection_sampling": None}, IN_AREAL),
    Preset("areal_token_mask", AREAL_MASK, AREAL,
           "Raw token weights, tokens above 5 rejected: rejection_sampling with its own defaults.", TOKEN_CAP,
           {"use_decoupled_loss": True,
            "rejection_sampling": {"level": "token", "action": "mask", "metric": "ratio", "upper": 5.0}}, IN_AREAL),
    Preset("areal_m2po", M2PO, AREAL_DOCS,
           "Drops the largest log-ratios of a batch until the mean of d² is small: keeps most of a stale batch.",
           "m2_threshold 0.04", {"use_decoupled_loss": True, "m2_threshold": 0.04}, IN_AREAL),
    Preset("roll_default", NOTHING, ROLL, "No correction: what ROLL does unless asked.", None,
           {"is_weight": {"enabled": False}}, IN_ROLL),
    Preset("roll_is_weight", _weighted(Weight(Level.TOKEN, Bound.TRUNCATE, upper=1.2, clamp=None)), ROLL,
           "Token weights capped at 1.2, unclamped before.", TOKEN_CAP, {"is_weight": {"enabled": True}}, IN_ROLL),
    Preset("roll_token_filter", _ratios(Aggregation.TOKEN, 0.8, 1.2), ROLL,
           "Tokens outside [0.8, 1.2] leave the mask, the rest count in full.", "0.8 to 1.2",
           {"filters": [{"enabled": True}]}, IN_ROLL),
    Preset("ms_swift_default", NOTHING, SWIFT, "No correction: what ms-swift does unless asked.", None,
           {"rollout_importance_sampling_mode": None}),
    Preset("ms_swift_token_truncate", _weighted(Weight(Level.TOKEN, Bound.TRUNCATE, upper=2.0)), SWIFT,
           "Token weights capped at 2.", TOKEN_CAP, {"rollout_importance_sampling_mode": "token_truncate"}),
    Preset("ms_swift_token_mask", _weighted(Weight(Level.TOKEN, Bound.MASK, None, 2.0)), SWIFT,
           "Zeroes tokens above 2 and weighs the rest; there is no floor.", None,
           {"rollout_importance_sampling_mode": "token_mask"}),
    Preset("ms_swift_sequence_truncate",
           _weighted(Weight(Level.GEOMETRIC, Bound.TRUNCATE, upper=2.0, token_clamp=20.0)), SWIFT,
           "Geometric weights of whole responses capped at 2, which hardly ever binds.", None,
           {"rollout_importance_sampling_mode": "sequence_truncate"}),
    Preset("ms_swift_sequence_mask",
           Correction(Weight(Level.TOKEN), (Rule(Statistic.RATIO, Aggregation.SEQ_MEAN, upper=2.0),),
                      denominator=Denominator.ORIGINAL), SWIFT,
           "Raw token weights of responses whose geometric ratio is at most 2, which is nearly all.", None,
           {"rollout_importance_sampling_mode": "sequence_mask"}),
    Preset("ms_swift_off_policy_mask", OPSM, SWIFT_DOCS,
           "Drops responses with a negative advantage that the trainer finds much less likely.", "delta 0.5",
           {"off_policy_sequence_mask_delta": 0.5}),
    Preset("prime_rl_default", DPPO, PRIME,
           "Raw token weights; tokens whose probability moved by 0.2 the way the advantage pushes are dropped.",
           "0.2", {"type": "default"}, IN_PRIME),
    Preset("prime_rl_ipo", _prime(Rule(Statistic.PROB_DIFF, Aggregation.TOKEN, -0.1, 0.1)), PRIME,
           "Raw token weights; tokens whose probability moved by 0.1 either way are dropped.", "0.1",
           {"type": "ipo"}, IN_PRIME),
    Preset("bypass_dppo_tv", _verl_dppo(Statistic.PROB_DIFF, 0.15), VERL_RECIPE,
           "Token weights; tokens whose probability moved by 0.15 the way the advantage pushes are dropped.",
           "0.15", _verl_dppo_keys("dppo_tv", 0.15)),
    Preset("bypass_dppo_kl", _verl_dppo(Statistic.BINARY_KL, 0.05), VERL_RECIPE,
           "Token weights; tokens past a divergence of 0.05 on the side to which the advantage pushes are dropped.",
           "0.05", _verl_dppo_keys("dppo_kl", 0.05)),
)  # fmt: skip
