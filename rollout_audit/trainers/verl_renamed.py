"""Keys that verl had before December 2025, and what they are today.

Source: reference/trainers.md 1A, legacy (b) and (c).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rollout_audit.errors import ConfigError
from rollout_audit.trainers.base import Renamed, replaced_by
from rollout_audit.trainers.section import Section
from rollout_audit.trainers.settings import positive

__all__ = [
    "ACTOR",
    "BYPASS",
    "CAP",
    "CLIP_RATIOS",
    "ELSEWHERE",
    "POLICY_LOSS",
    "PURE",
    "RENAMED",
    "SECTION",
    "VETO",
    "capped",
]

Settings = Mapping[str, object]

CAP = "tis_imp_ratio_cap"
ACTOR = Section(("actor_rollout_ref", "actor"), shared=True)
POLICY_LOSS = Section((*ACTOR.path, "policy_loss"), shared=True)
SECTION = Section(
    ("algorithm", "rollout_correction"), also=(ACTOR, POLICY_LOSS, Section(("algorithm",), prefix="rollout_is"))
)
CLIP_RATIOS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
ELSEWHERE = {**dict.fromkeys(CLIP_RATIOS, ACTOR.path), "loss_mode": POLICY_LOSS.path}
LEVELS = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
RS, RS_UPPER, RS_LOWER = "rollout_rs", "rollout_rs_threshold", "rollout_rs_threshold_lower"
VETO = "rollout_token_veto_threshold"
BYPASS, PURE = "bypass_old_logprob_for_rollout", "use_pure_rollout_correction"
"""Of the first weeks of November 2025"""


def capped(*, rollout_is: object) -> Callable[[object, Settings], Settings]:
    """A cap of token weights, in a version that says `rollout_is` so; not above 0 it was off."""

    def translate(value: object, _settings: Settings) -> Settings:
        on = isinstance(value, int | float) and value > 0
        return {"rollout_is": rollout_is, "rollout_is_threshold": value} if on else {}

    return translate


def _level(value: object, settings: Settings) -> Settings:
    """Bounds on the ratio itself as a k1 band, which is compared with −log ρ and so swaps its ends."""
    upper, lower = settings.get(RS_UPPER), settings.get(RS_LOWER)
    option = {RS: LEVELS[str(value)]}
    if upper is None:
        return option
    low, high = 1 / positive(RS_UPPER, upper), None if lower is None else 1 / positive(RS_LOWER, lower)
    return {**option, RS_UPPER: f"{low!r}_{1 / low if high is None else high!r}"}


def _weight_level(value: object, settings: Settings) -> Settings:
    return {"rollout_is": value} if settings.get("rollout_is") else {}


def _weight_mode(value: object, _settings: Settings) -> Settings:
    if value != "truncate":
        raise ConfigError("rollout_is_mode", value, "of verl in October 2025; --trainer verl-2025-10 reads it")
    return {}


def _gradient(value: object, _settings: Settings) -> Settings:
    return {"loss_type": "reinforce"} if value else {}


NOVEMBER = "--trainer verl-2025-11 has the names that version logs"
OCTOBER = "--trainer verl-2025-10 has the names that version logs"
LOW_SIDE = (
    "removed in December 2025; read as what it was, a veto of rows with a ratio below it; seq_max_k2 in its place is "
    f"two-sided; {NOVEMBER}"
)


def _veto(value: object, _settings: Settings) -> Settings:
    return {} if value is None else {VETO: value}


RENAMED = (
    Renamed(CAP, "now rollout_is 'token' with rollout_is_threshold", capped(rollout_is="token")),
    Renamed(
        RS,
        "now one of token_k1, seq_sum_k1, seq_mean_k1, whose band is compared with −log ρ; translated; " + NOVEMBER,
        _level,
        frozenset(LEVELS),
    ),
    Renamed(RS_LOWER, f"now the band 'lower_upper' in {RS_UPPER}", lambda _value, _settings: {}),
    Renamed(VETO, LOW_SIDE, _veto),
    Renamed("rollout_is_level", "now the value of rollout_is itself", _weight_level),
    Renamed("rollout_is_mode", "now always truncation", _weight_mode),
    Renamed("rollout_is_veto_threshold", LOW_SIDE.replace(NOVEMBER, OCTOBER), _veto),
    Renamed(
        "rollout_is",
        "now a level: token, sequence or null",
        lambda value, _settings: {"rollout_is": "token" if value else None},
        frozenset({True, False}),
    ),
    *(Renamed(key, f"now loss_type 'reinforce'; {NOVEMBER}", _gradient) for key in ("use_policy_gradient", PURE)),
    replaced_by(BYPASS, "bypass_mode"),
)
"""In this order: each sees what those before it made"""
