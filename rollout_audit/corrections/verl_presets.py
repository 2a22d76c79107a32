"""What verl did by default and recommended in its two versions of autumn 2025.

Each correction equals what the dialect of that version makes of the configuration beside it: a test holds them equal.
Source: reference/trainers.md 1A, legacy (a) and (b).
"""

from __future__ import annotations

from collections.abc import Mapping

from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Level,
    Loss,
    Mode,
    Rule,
    Statistic,
    Weight,
)
from rollout_audit.corrections.preset import Preset

__all__ = ["EARLIER"]

OCTOBER, NOVEMBER = "verl-2025-10 2025-10", "verl-2025-11 2025-11"
IN_OCTOBER, IN_NOVEMBER = ("algorithm",), ("algorithm", "rollout_correction")
GEO_BAND = "upper 1.0002 to 1.01, lower its inverse"

WIDEST = 1.001
GEOMETRIC = Rule(Statistic.RATIO, Aggregation.SEQ_MEAN, 1 / WIDEST, WIDEST, clamp=None)
NO_WEIGHT = Weight()
TOKEN_IS, SEQ_IS = (Weight(level, Bound.TRUNCATE, upper=2.0) for level in (Level.TOKEN, Level.SEQUENCE))
GEOMETRIC_KEYS: Mapping[str, object] = {
    "rollout_rs": "geometric",
    "rollout_rs_threshold": WIDEST,
    "rollout_token_veto_threshold": 1e-4,
}
SEQ_IS_KEYS: Mapping[str, object] = {"rollout_is": "sequence", "rollout_is_threshold": 2.0}
GRADIENT_KEYS: Mapping[str, object] = {"bypass_mode": True, "use_policy_gradient": True}


def _vetoed(weight: Weight, mode: Mode = Mode.DECOUPLED) -> Correction:
    """The band of the geometric ratio with the veto that came with it."""
    loss = Loss.REINFORCE if mode is Mode.BYPASS else Loss.PPO_CLIP
    return Correction(weight, (GEOMETRIC,), veto=1e-4, mode=mode, loss=loss)


EARLIER: tuple[Preset, ...] = (
    Preset("verl_2025_10_default", Correction(), OCTOBER,
           "No correction and no metrics: rollout_is_threshold was null.", None, {"rollout_is_threshold": None},
           IN_OCTOBER),
    Preset("verl_2025_10_token_is", Correction(TOKEN_IS), f"{OCTOBER}, documented",
           "Capped token weights: where its documentation told one to begin.", "upper 1.5 to 5",
           {"rollout_is": True, "rollout_is_threshold": 2.0}, IN_OCTOBER),
    Preset("verl_2025_11_geo_rs", _vetoed(NO_WEIGHT), NOVEMBER,
           "Drops responses by their mean log-ratio, and those with a token below 1e-4 whatever their mean.", GEO_BAND,
           GEOMETRIC_KEYS, IN_NOVEMBER),
    Preset("verl_2025_11_geo_rs_seq_tis", _vetoed(SEQ_IS), NOVEMBER,
           "The same, then capped sequence weights on what is left.", GEO_BAND,
           {**SEQ_IS_KEYS, **GEOMETRIC_KEYS}, IN_NOVEMBER),
    Preset("verl_2025_11_pg_rs", _vetoed(NO_WEIGHT, Mode.BYPASS), NOVEMBER,
           "Policy gradient without weights on what the band and the veto leave.", GEO_BAND,
           {**GEOMETRIC_KEYS, **GRADIENT_KEYS}, IN_NOVEMBER),
    Preset("verl_2025_11_pg_geo_rs_seq_tis", _vetoed(SEQ_IS, Mode.BYPASS), NOVEMBER,
           "Policy gradient with capped sequence weights on what the band and the veto leave.", GEO_BAND,
           {**SEQ_IS_KEYS, **GEOMETRIC_KEYS, **GRADIENT_KEYS}, IN_NOVEMBER),
)  # fmt: skip
