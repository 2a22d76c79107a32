"""Keys that verl had before December 2025, and what they are today.

Source: reference/trainers.md 1A, legacy (b) and (c).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rollout_audit.errors import ConfigError
from rollout_audit.trainers.base import Renamed, read_by, replaced_by
from rollout_audit.trainers.section import Section
from rollout_audit.trainers.settings import positive

__all__ = [
    "ACTOR",
    "BYPASS",
    "CAP",
    "CAPPED",
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
CAPPED = ("rollout_is", "rollout_is_threshold")
"""What it became"""
ACTOR = Section(("actor_rollout_ref", "actor"), shared=True)
POLICY_LOSS = Section((*ACTOR.path, "policy_loss"), shared=True)
SECTION = Section(
    ("algorithm", "rollout_correction"),
    also=(ACTOR, POLICY_LOSS, Section(("algorithm",), prefix="rollout_is", older=True)),
)
CLIP_RATIOS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
ELSEWHERE = {**dict.fromkeys(CLIP_RATIOS, ACTOR.path), "loss_mode": POLICY_LOSS.path}
LEVELS = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
LOWER = "rollout_is_threshold_lower"
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
    return option if upper is None else {**option, RS_UPPER: _as_k1((RS_LOWER, lower), (RS_UPPER, upper))}


def _as_k1(lower: tuple[str, object], upper: tuple[str, object]) -> str:
    """A band of ρ, its keys beside its ends, as one of −log ρ; without a lower end that is the reciprocal."""
    low, high = 1 / positive(*upper), None if lower[1] is None else 1 / positive(*lower)
    return f"{low!r}_{1 / low if high is None else high!r}"


def _weight_level(value: object, settings: Settings) -> Settings:
    if not settings.get("rollout_is"):
        return {}
    if value == "geometric":
        raise ConfigError("rollout_is_level", value, f"no weight of today is a geometric mean; {OF_OCTOBER}")
    return {"rollout_is": value}


def _weight_mask(_value: object, settings: Settings) -> Settings:
    """Tokens or rows outside the band left the mask, whether or not the weights were applied."""
    level, upper = settings.get("rollout_is_level", "token"), settings.get("rollout_is_threshold")
    if level not in LEVELS:
        raise ConfigError("rollout_is_level", level, f"must be one of {', '.join(LEVELS)}")
    if upper is None:
        return {"rollout_is": None}
    band = _as_k1((LOWER, settings.get(LOWER)), ("rollout_is_threshold", upper))
    # those that stay lie below the cap, which changes nothing
    applied = {"rollout_is": level if settings.get("rollout_is") else None}
    return {RS: LEVELS[str(level)], RS_UPPER: band, **applied}


def _weight_mode(value: object, _settings: Settings) -> Settings:
    if value != "truncate":
        raise ConfigError("rollout_is_mode", value, f"must be one of truncate, mask, clip; {OF_OCTOBER}")
    return {}


def _weight_switch(value: object, settings: Settings) -> Settings:
    on = value and settings.get("rollout_is_threshold", 2.0) is not None  # null was off
    return {"rollout_is": "token" if on else None}


def _gradient(value: object, _settings: Settings) -> Settings:
    return {"loss_type": "reinforce"} if value else {}


OF_OCTOBER = "of verl in October 2025; --trainer verl-2025-10 reads it"
NOVEMBER = "--trainer verl-2025-11 has the names that version logs"
OCTOBER = "--trainer verl-2025-10 has the names that version logs"
LOW_SIDE = (
    "removed in December 2025; read as what it was, a veto of rows with a ratio below it; seq_max_k2 in its place is "
    f"two-sided; {NOVEMBER}"
)


def _veto(value: object, _settings: Settings) -> Settings:
    return {} if value is None else {VETO: value}


RENAMED = (
    Renamed(CAP, "now rollout_is 'token' with rollout_is_threshold", capped(rollout_is="token"), yields_to=CAPPED),
    Renamed(
        RS,
        "now one of token_k1, seq_sum_k1, seq_mean_k1, whose band is compared with −log ρ; translated; " + NOVEMBER,
        _level,
        frozenset(LEVELS),
    ),
    Renamed(RS_LOWER, f"now the band 'lower_upper' in {RS_UPPER}", lambda _value, _settings: {}),
    Renamed(VETO, LOW_SIDE, _veto),
    Renamed(
        "rollout_is_mode",
        f"now rollout_rs, whose band is compared with −log ρ; translated; {OCTOBER}",
        _weight_mask,
        frozenset({"mask", "clip"}),
    ),
    Renamed(
        LOWER,
        f"now the band of {RS} where rollout_is_mode was mask; truncated weights it bounded in figures alone",
        lambda _value, _settings: {},
    ),
    Renamed("rollout_is_level", "now the value of rollout_is itself", _weight_level),
    Renamed("rollout_is_mode", "now always truncation", _weight_mode),
    Renamed("rollout_is_veto_threshold", LOW_SIDE.replace(NOVEMBER, OCTOBER), _veto),
    Renamed(
        "rollout_is",
        "now a level: token, sequence or null",
        _weight_switch,
        frozenset({True, False}),
    ),
    read_by("rollout_is", "a weight of verl in October to December 2025", "verl-2025-11", frozenset({"geometric"})),
    *(Renamed(key, f"now loss_type 'reinforce'; {NOVEMBER}", _gradient) for key in ("use_policy_gradient", PURE)),
    replaced_by(BYPASS, "bypass_mode"),
)
"""In this order: each sees what those before it made"""
