"""The one vocabulary that says what any trainer does to its tokens (data only, no tensors)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from rollout_audit.errors import ConfigError

__all__ = [
    "FLOAT32_END",
    "SAFETY_CLAMP",
    "Aggregation",
    "Bound",
    "Correction",
    "Denominator",
    "Level",
    "Loss",
    "Mode",
    "Over",
    "Rows",
    "Rule",
    "Sign",
    "Statistic",
    "Weight",
    "rules_by_sign",
]

SAFETY_CLAMP = 20.0
"""Bound on |log-ratio| before exp in verl, slime's mis.py, SkyRL and ms-swift."""

FLOAT32_END = math.log((2.0 - 2.0**-23) * 2.0**127)
"""Log-ratio past which a ratio in float32 is infinite"""


class Level(StrEnum):
    """What one importance weight is made of."""

    NONE = "none"
    TOKEN = "token"
    """exp d of the token"""
    SEQUENCE = "sequence"
    """exp Σd of the response, on each of its tokens"""
    GEOMETRIC = "geometric"
    """exp mean d of the response, on each of its tokens"""
    SEGMENT = "segment"
    """exp mean d of the run of mask 1 that holds the token"""


class Bound(StrEnum):
    """What happens to a weight outside its bounds."""

    NONE = "none"
    TRUNCATE = "truncate"
    """min(w, upper); a lower bound is not looked at"""
    CLIP = "clip"
    """moved to the nearer bound"""
    MASK = "mask"
    """0 outside [lower, upper], both inclusive (IcePop)"""


class Statistic(StrEnum):
    """A function of the log-ratio d (or of the two probabilities) that a rejection rule looks at."""

    K1 = "k1"
    """−d"""
    K2 = "k2"
    """d² / 2"""
    K3 = "k3"
    """expm1(d) − d"""
    K3_REVERSE = "k3_reverse"
    """expm1(−d) + d: k3 with the policies exchanged"""
    RATIO = "ratio"
    """exp d; aggregated in log space: exp Σd, exp mean d, exp max d, exp min d"""
    ABS_LOG_RATIO = "abs_log_ratio"
    """|d|"""
    MULT_ERROR = "mult_error"
    """exp |d|: NeMo-RL's multiplicative error"""
    PROB_DIFF = "prob_diff"
    """π − μ, in probability"""
    BINARY_KL = "binary_kl"
    """KL of "this token or another" from μ to π, with the sign of d (`tokens.signed_binary_kl`)"""
    RATIO_DISTANCE = "ratio_distance"
    """|exp d − 1|: twice the total variation, on average over samples of μ"""


class Aggregation(StrEnum):
    TOKEN = "token"
    """each token by itself"""
    SEQ_SUM = "seq_sum"
    SEQ_MEAN = "seq_mean"
    SEQ_MAX = "seq_max"
    SEQ_MIN = "seq_min"
    SEGMENT_MEAN = "segment_mean"
    """mean over the run of mask 1 that holds the token; removes that run"""
    BATCH_MEAN = "batch_mean"
    """mean over the batch: the largest values go until the mean of the rest is below the bound (strict; M2PO)"""

    @property
    def per_row(self) -> bool:
        """Whether the rule decides on whole responses."""
        return self.startswith("seq_")


class Rows(StrEnum):
    """Whose mean a sequence weight is normalised by."""

    SCORED = "scored"
    """responses with a valid token (verl)"""
    ALL = "all"
    """all responses; one without a valid token counts as weight 0 (mis.py of slime and miles)"""


class Sign(StrEnum):
    """The advantages A at which a rule can remove anything; elsewhere it keeps what it is asked about."""

    ANY = "any"
    POSITIVE = "positive"
    """A > 0 of the token"""
    NOT_POSITIVE = "not_positive"
    """A ≤ 0 of the token"""
    NEGATIVE = "negative"
    """A < 0 of the token"""
    NEGATIVE_MEAN = "negative_mean"
    """mean A < 0 of the response"""
    OUTWARD = "outward"
    """d · A > 0: where the update would push the ratio further from 1"""


class Over(StrEnum):
    """Which tokens a sum, mean or extreme is taken over."""

    EVERY = "every"
    """all valid tokens"""
    REMAINING = "remaining"
    """those that the rules over every token leave; a response with none has log-ratio 0"""


class Denominator(StrEnum):
    """What the loss divides by after rejection."""

    KEPT = "kept"
    """tokens that are left (verl)"""
    REMAINING = "remaining"
    """tokens that the rules over every token leave (AReaL after M2PO)"""
    ORIGINAL = "original"
    """all valid tokens (slime, miles, TRL, …)"""


class Mode(StrEnum):
    DECOUPLED = "decoupled"
    """π is the trainer's recompute before the update (`old_log_probs`)"""
    BYPASS = "bypass"
    """π is the current policy (`log_probs`); the rollout policy is the anchor of the loss"""


class Loss(StrEnum):
    PPO_CLIP = "ppo_clip"
    REINFORCE = "reinforce"


@dataclass(frozen=True, slots=True)
class Rule:
    """Keep where lower ≤ statistic ≤ upper, both inclusive and in the statistic's own units.

    For `k1` these are log units: verl's "0.5_2.0" is lower = log 0.5, upper = log 2. `clamp` bounds |d| of each
    token before the statistic is taken. `sign`: where the rule can remove anything. `over`: which tokens an
    aggregate is taken over.
    """

    statistic: Statistic
    aggregation: Aggregation
    lower: float | None = None
    upper: float | None = None
    clamp: float | None = SAFETY_CLAMP
    sign: Sign = Sign.ANY
    over: Over = Over.EVERY

    def __post_init__(self) -> None:
        if self.lower is None and self.upper is None:
            raise ConfigError(self.name, None, "a rejection rule needs a bound")
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise ConfigError(self.name, (self.lower, self.upper), "lower bound above the upper bound")
        if self.statistic is Statistic.MULT_ERROR and self.clamp is not None:
            raise ConfigError(self.name, self.clamp, "a clamp is not defined for it; give clamp=None")
        if self.by_batch and (self.upper is None or self.lower is not None or self.over is Over.REMAINING):
            raise ConfigError(self.name, (self.lower, self.upper), "takes one upper bound, over every token")

    @property
    def name(self) -> str:
        """The name verl's option has where it has one: `token_k1`, `seq_mean_k3`."""
        return f"{self.aggregation}_{self.statistic}"

    @property
    def by_batch(self) -> bool:
        """Whether the rule needs all tokens of a batch to decide on one of them."""
        return self.aggregation is Aggregation.BATCH_MEAN


def rules_by_sign(statistic: Statistic, low: float, high: float, down: Sign = Sign.NOT_POSITIVE) -> tuple[Rule, Rule]:
    """Tokens bounded on the side to which the advantage pushes them, the high side first; `down` says which go down."""
    return (
        Rule(statistic, Aggregation.TOKEN, None, high, sign=Sign.POSITIVE),
        Rule(statistic, Aggregation.TOKEN, -low, None, sign=down),
    )


@dataclass(frozen=True, slots=True)
class Weight:
    """Importance weight: level, then clamp of the log-ratio, then bounds, then batch normalisation.

    `lower` and `upper` bound the ratio. `clamp` bounds |log-ratio| before exp, after the sum at sequence level;
    None leaves it alone. `normalise` divides by the mean weight over the valid tokens before rejection (token,
    segment) or over the sequences that `mean_over` names (sequence, geometric).

    `token_clamp` bounds |d| of each token before the sum or mean. `over`: which tokens these are taken over. The
    bounds act only on responses that `outside` would remove, everywhere without it. `pooled`: each token of a response
    has the geometric mean of the bounded weights + 1e-10 of its kept tokens (verl's geo_mean). `overflow`: the
    log-ratio, at the weight's level, past which the ratio is 0 before it is bounded (NeMo-RL: where float32 ends).
    """

    level: Level = Level.NONE
    bound: Bound = Bound.NONE
    lower: float | None = None
    upper: float | None = None
    normalise: bool = False
    clamp: float | None = SAFETY_CLAMP
    mean_over: Rows = Rows.SCORED
    token_clamp: float | None = None
    over: Over = Over.EVERY
    outside: Rule | None = None
    pooled: bool = False
    overflow: float | None = None

    def __post_init__(self) -> None:
        for key, value in (("lower", self.lower), ("upper", self.upper)):
            if value is not None and not value > 0:
                raise ConfigError(key, value, "a bound on a ratio must be positive")
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise ConfigError("lower", self.lower, f"above the upper bound {self.upper!r}")
        if self.bound is not Bound.NONE and self.upper is None and self.lower is None:
            raise ConfigError("upper", None, f"bound mode {self.bound.value} needs a bound")
        if self.pooled and (self.level is not Level.TOKEN or self.normalise):
            raise ConfigError("pooled", value=True, reason="is of token weights that are not normalised")
        outside = self.outside
        if outside is not None and not (outside.aggregation.per_row and outside.sign is Sign.ANY):
            raise ConfigError("outside", outside.name, "must decide on whole responses, whatever the advantage")

    @property
    def loses_overflow(self) -> bool:
        """Whether `overflow` takes a ratio that the bounds would leave or cap."""
        if self.overflow is None or self.level is Level.NONE:
            return False
        zeroed = self.bound is Bound.MASK and self.upper is not None and math.log(self.upper) <= self.overflow
        return not zeroed


@dataclass(frozen=True, slots=True)
class Correction:
    """Weight, rejection and veto of one configuration; rules are joined by AND.

    `veto`: a response with any valid token of ρ < veto (strict) is removed whole.
    """

    weight: Weight = Weight()
    rules: tuple[Rule, ...] = ()
    veto: float | None = None
    denominator: Denominator = Denominator.KEPT
    mode: Mode = Mode.DECOUPLED
    loss: Loss = Loss.PPO_CLIP

    def __post_init__(self) -> None:
        if self.veto is not None and not self.veto > 0:
            raise ConfigError("veto", self.veto, "a veto threshold must be positive")

    @property
    def applied_weight(self) -> Weight:
        """The weight that multiplies the loss: none in bypass with ppo_clip, where the ratio carries it."""
        carried = self.mode is Mode.BYPASS and self.loss is Loss.PPO_CLIP
        return Weight() if carried else self.weight

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        """The rules with the veto as one more: least log-ratio of the row ≥ log veto."""
        if self.veto is None:
            return self.rules
        veto = Rule(Statistic.K1, Aggregation.SEQ_MAX, upper=-math.log(self.veto), clamp=None)
        return (*self.rules, veto)

    @property
    def batch_rules(self) -> tuple[Rule, ...]:
        """The rules that need all tokens of a batch to decide on one of them."""
        return tuple(rule for rule in self.rules if rule.by_batch)

    @property
    def needs_advantages(self) -> bool:
        """Whether the dump must record advantages for this to be evaluated."""
        return any(rule.sign is not Sign.ANY for rule in self.rules)
