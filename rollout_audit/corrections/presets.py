"""Named configurations, as data.

verl's own (verl 1dda039b, 2026-08, `RolloutCorrectionConfig` class methods) and the three its documentation
describes without a method; then what other trainers do by default or recommend. `recommended` is the range of the
threshold that the origin's documentation gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rollout_audit.corrections.cuts import is_interval, is_streamed
from rollout_audit.corrections.mask_presets import MASKS
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
from rollout_audit.corrections.trainer_presets import OTHERS
from rollout_audit.corrections.verl_presets import EARLIER
from rollout_audit.errors import UsageError, suggest

__all__ = ["BY_DEFAULT", "PRESETS", "REFERENCE_PRESET", "Preset", "as_preset", "as_presets", "preset"]

REFERENCE_PRESET = "decoupled_token_is"
"""The correction that health rules look at unless another is named (SPEC 8)."""


VERL = "verl 2026-08"
VERL_DOCS = "verl 2026-08, documented"
VERL_SECTION = ("algorithm", "rollout_correction")

TOKEN_IS = Weight(Level.TOKEN, Bound.TRUNCATE, upper=2.0)
SEQ_IS = Weight(Level.SEQUENCE, Bound.TRUNCATE, upper=2.0)
ICEPOP = Weight(Level.TOKEN, Bound.MASK, lower=0.5, upper=5.0)


def _k1(aggregation: Aggregation, lower: float, upper: float) -> Rule:
    """verl compares −log ρ with [log lower, log upper]."""
    return Rule(Statistic.K1, aggregation, math.log(lower), math.log(upper))


GEO_RS = _k1(Aggregation.SEQ_MEAN, 0.999, 1.001)
SEQ_RS = _k1(Aggregation.SEQ_SUM, 0.5, 2.0)
TOKEN_RS = _k1(Aggregation.TOKEN, 1 / 2.0, 2.0)
K3_RS = Rule(Statistic.K3, Aggregation.SEQ_MEAN, upper=0.01)

_IS_KEYS: dict[Weight, dict[str, object]] = {
    Weight(): {"rollout_is": None},
    TOKEN_IS: {"rollout_is": "token", "rollout_is_threshold": 2.0},
    SEQ_IS: {"rollout_is": "sequence", "rollout_is_threshold": 2.0},
    ICEPOP: {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"},
}
_RS_KEYS: dict[Rule | None, dict[str, object]] = {
    None: {"rollout_rs": None},
    GEO_RS: {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"},
    SEQ_RS: {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"},
    TOKEN_RS: {"rollout_rs": "token_k1", "rollout_rs_threshold": 2.0},
    K3_RS: {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01},
}

TOKEN_CAP = "upper 1.5 to 5"
SEQ_CAP = "upper 2 to 10"
GEO_BAND = "0.999_1.001 to 0.99_1.01"
K3_LIMIT = "0.001 to 0.01"

_PPO, _PG = Loss.PPO_CLIP, Loss.REINFORCE
_DECOUPLED, _BYPASS = Mode.DECOUPLED, Mode.BYPASS

_ROWS: tuple[tuple[str, Weight, Rule | None, Mode, Loss, str, str | None, str], ...] = (
    ("decoupled_token_is", TOKEN_IS, None, _DECOUPLED, _PPO, VERL, TOKEN_CAP,
     "The mild first choice: caps single tokens, rejects nothing."),
    ("decoupled_seq_is", SEQ_IS, None, _DECOUPLED, _PPO, VERL, SEQ_CAP,
     "Unbiased for whole responses while they are short; its ess falls with length."),
    ("decoupled_token_icepop", ICEPOP, None, _DECOUPLED, _PPO, VERL, "0.5_5.0",
     "Zeroes tokens on which the engines disagree badly, both ways."),
    ("decoupled_seq_is_rs", SEQ_IS, SEQ_RS, _DECOUPLED, _PPO, VERL, SEQ_CAP,
     "Sequence weights, and responses whose product ratio leaves the band are dropped."),
    ("decoupled_geo_rs", Weight(), GEO_RS, _DECOUPLED, _PPO, VERL, GEO_BAND,
     "Drops responses by their mean log-ratio; blind to errors that cancel."),
    ("decoupled_geo_rs_seq_tis", SEQ_IS, GEO_RS, _DECOUPLED, _PPO, VERL, GEO_BAND,
     "Geometric rejection, then capped sequence weights on what is left."),
    ("decoupled_geo_rs_token_tis", TOKEN_IS, GEO_RS, _DECOUPLED, _PPO, VERL, GEO_BAND,
     "Geometric rejection, then capped token weights on what is left."),
    ("decoupled_k3_rs", Weight(), K3_RS, _DECOUPLED, _PPO, VERL, K3_LIMIT,
     "Drops responses by their mean k3, in which errors cannot cancel."),
    ("decoupled_k3_rs_seq_tis", SEQ_IS, K3_RS, _DECOUPLED, _PPO, VERL, K3_LIMIT,
     "k3 rejection, then capped sequence weights on what is left."),
    ("decoupled_k3_rs_token_tis", TOKEN_IS, K3_RS, _DECOUPLED, _PPO, VERL, K3_LIMIT,
     "k3 rejection, then capped token weights on what is left."),
    ("bypass_ppo_clip", Weight(), None, _BYPASS, _PPO, VERL, None,
     "PPO clip anchored on the rollout policy: saves the recompute, the ratio carries the mismatch."),
    ("bypass_ppo_clip_geo_rs", Weight(), GEO_RS, _BYPASS, _PPO, VERL, GEO_BAND,
     "The same with geometric rejection."),
    ("bypass_ppo_clip_k3_rs", Weight(), K3_RS, _BYPASS, _PPO, VERL, K3_LIMIT,
     "The same with k3 rejection."),
    ("bypass_pg_is", SEQ_IS, None, _BYPASS, _PG, VERL, SEQ_CAP,
     "Policy gradient with capped sequence weights against the rollout policy."),
    ("bypass_pg_token_icepop", ICEPOP, None, _BYPASS, _PG, VERL, "0.5_5.0",
     "Policy gradient that zeroes tokens outside the band."),
    ("bypass_pg_geo_rs", Weight(), GEO_RS, _BYPASS, _PG, VERL, GEO_BAND,
     "Policy gradient without weights on responses inside the geometric band."),
    ("bypass_pg_geo_rs_seq_tis", SEQ_IS, GEO_RS, _BYPASS, _PG, VERL, GEO_BAND,
     "Geometric rejection, then capped sequence weights."),
    ("bypass_pg_geo_rs_token_tis", TOKEN_IS, GEO_RS, _BYPASS, _PG, VERL, GEO_BAND,
     "Geometric rejection, then capped token weights."),
    ("disabled", Weight(), None, _DECOUPLED, _PPO, VERL, None,
     "No correction, metrics only: right where the engines agree."),
    ("token_is_rs", TOKEN_IS, TOKEN_RS, _DECOUPLED, _PPO, VERL_DOCS, TOKEN_CAP,
     "Capped token weights, and tokens outside [1/2, 2] leave the loss."),
    ("token_rs", Weight(), TOKEN_RS, _DECOUPLED, _PPO, VERL_DOCS, TOKEN_CAP,
     "Tokens outside [1/2, 2] leave the loss, the rest count in full."),
    ("seq_rs", Weight(), SEQ_RS, _DECOUPLED, _PPO, VERL_DOCS, "0.5_2.0",
     "Responses whose product ratio leaves [1/2, 2] are dropped."),
)  # fmt: skip


def _preset(
    name: str,
    weight: Weight,
    rule: Rule | None,
    mode: Mode,
    loss: Loss,
    origin: str,
    recommended: str | None,
    use: str,
) -> Preset:
    correction = Correction(weight, () if rule is None else (rule,), mode=mode, loss=loss)
    config = {**_IS_KEYS[weight], **_RS_KEYS[rule]}
    if mode is Mode.BYPASS:
        config |= {"bypass_mode": True, "loss_type": loss.value}
    return Preset(name, correction, origin, use, recommended, MappingProxyType(config), VERL_SECTION)


_ALL = (*(_preset(*row) for row in _ROWS), *EARLIER, *OTHERS, *MASKS)
PRESETS: Mapping[str, Preset] = MappingProxyType({p.name: p for p in _ALL})


def _at_once(correction: Correction) -> bool:
    """Whether whole rows and intervals of the log-ratio say all of it."""
    plain = all(rule.aggregation.per_row or is_interval(rule) for rule in correction.all_rules)
    return plain and is_streamed(correction)


BY_DEFAULT: tuple[Preset, ...] = tuple(p for p in _ALL if _at_once(p.correction))
"""Those that one pass answers all at once; the others are evaluated token by token, where they are named"""


def preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        UsageError: no such preset; the message suggests the nearest name.
    """
    if name not in PRESETS:
        raise UsageError(f"no preset {name!r}{suggest(name, PRESETS)}; see `rollout-audit presets`")
    return PRESETS[name]


def as_preset(given: str | Preset) -> Preset:
    """A preset as it is, or the one of that name (UsageError: neither)."""
    if isinstance(given, Preset):
        return given
    if not isinstance(given, str):
        raise UsageError(f"no preset {given!r}: expected a name or a Preset")
    return preset(given)


def as_presets(given: Iterable[str | Preset]) -> tuple[Preset, ...]:
    """The same of several (UsageError: one name in the place of a list, or no list)."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"presets {given!r}: expected a list of names or Presets")
    return tuple(as_preset(one) for one in given)
