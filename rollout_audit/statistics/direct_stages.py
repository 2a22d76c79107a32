"""The stage metrics of corrections that no interval of d and no sum over a row can express.

Such a correction is applied chunk by chunk as `corrections.direct` defines it, each configuration by itself, and
only its sums are kept: signs of advantages, sums over remaining tokens, clamps of single tokens and M2PO's cut are
all decided within a row once a batch's cut is known (`batch_cuts`). Such corrections are not swept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray

from rollout_audit.corrections.cuts import weight_interval
from rollout_audit.corrections.direct import Applied, apply
from rollout_audit.corrections.model import Bound, Correction, Denominator, Level, Over, Rows, Weight
from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.tokens import Tokens, row_mean, row_sum
from rollout_audit.statistics.batch_cuts import Cuts, decide
from rollout_audit.statistics.metrics import OVERFLOW, UNDERFLOW, Absent, Figure, Metrics
from rollout_audit.statistics.stages import METRICS_OF_STAGE, NO_WEIGHT, NONE_KEPT, NOTHING_TO_WEIGH, QUANTILES
from rollout_audit.statistics.tally import Tally

__all__ = ["NEEDS_ADVANTAGES", "BatchSums", "DirectPlan", "DirectState", "direct_states"]

NEEDS_ADVANTAGES = Absent("needs advantages")

ONE = torch.tensor(1.0, dtype=torch.float64)
Array = NDArray[np.float64]
Figures = dict[str, Figure]


@dataclass
class Shares:
    """Counts and sums over tokens or sequences, which simply add up."""

    tokens: int = 0
    remaining: int = 0
    """tokens that the rules over every token leave"""
    above: int = 0
    below: int = 0
    zeroed: int = 0
    mass: float = 0.0
    """Σρ"""
    lost: float = 0.0
    """Σ max(ρ − w, 0)"""
    rows: int = 0
    """all sequences, those without a valid token too"""
    sequences: int = 0
    masked: int = 0
    """sequences removed whole"""
    touched: int = 0
    reward_columns: int = 0
    rewards: int = 0
    """kept sequences with a reward"""
    reward: float = 0.0
    advantage_columns: int = 0
    advantages: int = 0
    positive: int = 0
    lacking_advantages: int = 0
    """chunks in which a rule asked for the sign of advantages that are not there"""

    def absorb(self, other: Shares) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass
class BatchSums:
    """Evidence on one correction in one batch: by token, and one weight a sequence at sequence levels."""

    raw: Tally = field(default_factory=Tally)
    bounded: Tally = field(default_factory=Tally)
    kept: Tally = field(default_factory=Tally)
    raw_rows: Tally = field(default_factory=Tally)
    bounded_rows: Tally = field(default_factory=Tally)
    kept_rows: Tally = field(default_factory=Tally)
    shares: Shares = field(default_factory=Shares)

    def absorb(self, other: BatchSums) -> None:
        for each in fields(self):
            getattr(self, each.name).absorb(getattr(other, each.name))


@dataclass
class DirectState:
    """Mergeable evidence on one correction: step → sums; None → the dump as one batch, where that is not their sum."""

    batches: dict[int | None, BatchSums] = field(default_factory=dict)

    def absorb(self, other: DirectState) -> None:
        for step, sums in other.batches.items():
            self.batches.setdefault(step, BatchSums()).absorb(sums)

    def stages(self, correction: Correction, step: int | None = None) -> Mapping[str, Metrics]:
        """Metrics at each stage, of one step or of the dump as one batch."""
        if step is None and None not in self.batches:
            return stage_metrics(self._sum_of_steps(), correction)
        return stage_metrics(self.batches.get(step, BatchSums()), correction)

    def _sum_of_steps(self) -> BatchSums:
        total = BatchSums()
        for step in sorted(step for step in self.batches if step is not None):
            total.absorb(self.batches[step])
        return total


@dataclass(frozen=True)
class DirectPlan:
    """The corrections that are evaluated directly on one pair of policies."""

    corrections: Mapping[str, Correction]
    cuts: Cuts = field(default_factory=dict)
    """of their rules over a whole batch"""
    keep_values: bool = True
    """whether weights are kept, for exact quantiles"""


def direct_states(packed: Packed, training: str, rollout: str, plan: DirectPlan) -> dict[str, DirectState]:
    """Evidence of one chunk on one pair, by the name of the correction."""
    tokens = packed.tokens(training, rollout)
    return {n: DirectState(dict(_batches(packed, tokens, c, plan))) for n, c in plan.corrections.items()}


def _batches(
    packed: Packed, tokens: Tokens, correction: Correction, plan: DirectPlan
) -> Iterator[tuple[int | None, BatchSums]]:
    steps = packed.chunk.steps
    rules = correction.batch_rules
    by_step = _Evaluated.of(packed, decide(rules, plan.cuts, packed, tokens), correction)
    for step in np.unique(steps).tolist():
        yield step, by_step.sums(steps == step, keep_values=plan.keep_values)
    if rules:
        pooled = _Evaluated.of(packed, decide(rules, plan.cuts, packed, tokens, pooled=True), correction)
        yield None, pooled.sums(np.ones(len(steps), dtype=bool), keep_values=plan.keep_values)


def _without_rules(correction: Correction) -> Correction:
    """What is left to evaluate where the signs of the advantages are not known: the bare weight."""
    weight = replace(correction.weight, over=Over.EVERY)
    return replace(correction, weight=weight, rules=(), veto=None)


@dataclass(frozen=True)
class _Evaluated:
    """A correction applied to one chunk, as NumPy arrays."""

    weight: Weight
    lengths: NDArray[np.int64]
    log_ratio: Array
    bounded: Array
    kept: NDArray[np.bool_]
    remaining: NDArray[np.bool_]
    reward: Array | None
    advantage: Array | None
    """[rows] mean over valid tokens"""
    lacks_advantages: bool

    @classmethod
    def of(cls, packed: Packed, tokens: Tokens, correction: Correction) -> _Evaluated:
        lacking = correction.needs_advantages and tokens.advantages is None
        applied: Applied = apply(_without_rules(correction) if lacking else correction, tokens, ONE)
        advantages = tokens.advantages
        return cls(
            weight=correction.applied_weight,
            lengths=packed.lengths,
            log_ratio=applied.log_ratio.cpu().numpy(),
            bounded=applied.bounded.cpu().numpy(),
            kept=applied.kept.cpu().numpy(),
            remaining=applied.remaining.cpu().numpy(),
            reward=packed.chunk.reward,
            advantage=None if advantages is None else row_mean(advantages, tokens.lengths).cpu().numpy(),
            lacks_advantages=lacking,
        )

    def sums(self, chosen: NDArray[np.bool_], *, keep_values: bool) -> BatchSums:
        """Of the chosen [rows]."""
        at = np.repeat(chosen, self.lengths)
        x, bounded, kept = self.log_ratio[at], self.bounded[at], self.kept[at]
        log_bounded = _log(bounded)
        populations = {"raw": x, "bounded": log_bounded, "kept": log_bounded[kept]}
        lengths = self.lengths[chosen & (self.lengths > 0)]
        left = _row_counts(kept, lengths)
        if self.weight.level in (Level.SEQUENCE, Level.GEOMETRIC):
            first = np.cumsum(lengths) - lengths
            rows = {"raw_rows": x[first], "bounded_rows": log_bounded[first]}
            populations |= rows | {"kept_rows": rows["bounded_rows"][left > 0]}
        tallies = {name: Tally.of(logs, keep_values=keep_values) for name, logs in populations.items()}
        return BatchSums(**tallies, shares=self._shares(chosen, x, bounded, self.remaining[at], left))

    def _shares(
        self, chosen: NDArray[np.bool_], x: Array, bounded: Array, remaining: NDArray[np.bool_], left: Array
    ) -> Shares:
        inside, rows = weight_interval(self.weight), chosen & (self.lengths > 0)
        above, below = x > inside.upper, x < inside.lower
        with np.errstate(over="ignore", invalid="ignore"):
            ratio = np.exp(x)
            lost = float(np.maximum(ratio - bounded, 0.0).sum())
        outside = (above | below) & (self.weight.bound is Bound.MASK)
        overflown = x > (math.inf if self.weight.overflow is None else self.weight.overflow)
        zeroed = (outside | overflown) & (bounded == 0)
        rewards, advantages = (_recorded(column, rows, left > 0) for column in (self.reward, self.advantage))
        return Shares(
            tokens=len(x),
            remaining=int(np.count_nonzero(remaining)),
            above=int(np.count_nonzero(above)),
            below=int(np.count_nonzero(below)),
            zeroed=int(np.count_nonzero(zeroed)),
            mass=float(ratio.sum()),
            lost=lost,
            rows=int(np.count_nonzero(chosen)),
            sequences=len(left),
            masked=int(np.count_nonzero(left == 0)),
            touched=int(np.count_nonzero(left < self.lengths[rows])),
            reward_columns=_is_recorded(self.reward, rows),
            rewards=len(rewards),
            reward=float(rewards.sum()),
            advantage_columns=_is_recorded(self.advantage, rows),
            advantages=len(advantages),
            positive=int(np.count_nonzero(advantages > 0)),
            lacking_advantages=int(self.lacks_advantages),
        )


def _recorded(column: Array | None, rows: NDArray[np.bool_], kept: NDArray[np.bool_]) -> Array:
    """What is known of the sequences, among the chosen [rows], with a kept token."""
    if column is None:
        return np.empty(0)
    values = column[rows][kept]
    return values[~np.isnan(values)]


def _is_recorded(column: Array | None, rows: NDArray[np.bool_]) -> int:
    """1 where one of the chosen [rows] at least has a value."""
    return 0 if column is None else int(not np.isnan(column[rows]).all())


def _log(weights: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(weights))


def _row_counts(hits: NDArray[np.bool_], lengths: NDArray[np.int64]) -> Array:
    counts: Array = row_sum(torch.from_numpy(hits.astype(np.float64)), torch.from_numpy(lengths)).numpy()
    return counts


def stage_metrics(sums: BatchSums, correction: Correction) -> Mapping[str, Metrics]:
    """The figures of SPEC 4 from the sums of one batch."""
    if not sums.shares.tokens:
        return NOTHING_TO_WEIGH
    found = _Figures(sums, correction)
    stages = {"raw": found.raw(), "bounded": found.bounded(), "normalised": found.normalised(), "kept": found.kept()}
    if sums.shares.lacking_advantages:
        stages |= {stage: dict.fromkeys(stages[stage], NEEDS_ADVANTAGES) for stage in _undecided(correction)}
    return {stage: Metrics(figures) for stage, figures in stages.items()}


def _undecided(correction: Correction) -> tuple[str, ...]:
    """The stages that hang on the signs of the advantages."""
    by_rest = correction.applied_weight.over is Over.REMAINING
    return ("raw", "bounded", "normalised", "kept") if by_rest else ("kept",)


@dataclass(frozen=True)
class _Figures:
    sums: BatchSums
    correction: Correction

    @property
    def by_sequence(self) -> bool:
        return self.correction.applied_weight.level in (Level.SEQUENCE, Level.GEOMETRIC)

    @property
    def factor(self) -> float:
        """What batch normalisation divides by, the batch taken as one."""
        if not self.correction.applied_weight.normalise:
            return 1.0
        mean = self._mean_of_sequences() if self.by_sequence else self.sums.bounded.mean
        return mean if mean > 1e-8 else 1.0

    def _mean_of_sequences(self) -> float:
        """A response without a valid token counts as 0 where the trainer divides by all of them."""
        scored = self.sums.bounded_rows
        every = self.correction.applied_weight.mean_over is Rows.ALL
        return scored.mean * scored.size / self.sums.shares.rows if every else scored.mean

    def raw(self) -> Figures:
        figures = self._weights(self.sums.raw, self.sums.raw_rows, 1.0)
        figures["ess"] = self.sums.raw.log_ess
        if self.by_sequence:
            figures["ess_seq"] = self.sums.raw_rows.log_ess
        return figures

    def bounded(self) -> Figures:
        shares = self.sums.shares
        n = shares.tokens
        return self._weights(self.sums.bounded, self.sums.bounded_rows, 1.0) | {
            "capped_fraction": shares.above / n,
            "below_lower_fraction": shares.below / n,
            "zeroed_fraction": shares.zeroed / n,
            "mass_lost": _mass_lost(shares),
        }

    def normalised(self) -> Figures:
        figures = self._weights(self.sums.bounded, self.sums.bounded_rows, self.factor)
        return figures | {"batch_norm_factor": self.factor}

    def kept(self) -> Figures:
        shares, kept = self.sums.shares, self.sums.kept
        return self._weights(kept, self.sums.kept_rows, self.factor) | {
            "masked_fraction": (shares.tokens - kept.size) / shares.tokens,
            "seq_masked_fraction": shares.masked / shares.sequences,
            "seq_touched_fraction": shares.touched / shares.sequences,
            "kept_reward_mean": _kept_reward(shares),
            "kept_positive_fraction": _kept_positive(shares),
            **self._gradient_scale(),
        }

    def _weights(self, some: Tally, rows: Tally, factor: float) -> Figures:
        if not some.size:
            return dict.fromkeys(METRICS_OF_STAGE["raw"], NONE_KEPT)
        quantiles = zip(QUANTILES, some.quantiles(list(QUANTILES.values())), strict=True)
        return {
            "weight_mean": some.mean / factor,
            "weight_std": _std(some, factor),
            "weight_min": some.least / factor,
            "weight_max": some.greatest / factor,
            **{f"weight_{name}": value / factor for name, value in quantiles},
            "ess": _ess(some),
            "ess_seq": _ess(rows) if self.by_sequence else self._no_sequence_weight(),
        }

    def _no_sequence_weight(self) -> Absent:
        return Absent(f"no one weight a sequence at {self.correction.applied_weight.level.value} level")

    def _gradient_scale(self) -> Figures:
        kept, shares = self.sums.kept, self.sums.shares
        if not kept.size:
            return {"gradient_scale_kept": NONE_KEPT, "gradient_scale_original": 0.0, "gradient_scale": 0.0}
        total = kept.mean / self.factor * kept.size
        over = {
            Denominator.KEPT: kept.size,
            Denominator.ORIGINAL: shares.tokens,
            Denominator.REMAINING: shares.remaining,
        }
        return {
            "gradient_scale_kept": total / kept.size,
            "gradient_scale_original": total / shares.tokens,
            "gradient_scale": total / over[self.correction.denominator],
        }


def _std(of: Tally, factor: float) -> Figure:
    if of.size < 2:
        return Absent("n < 2")
    return math.sqrt(of.variance) / factor if math.isfinite(of.variance) else OVERFLOW


def _ess(of: Tally) -> Figure:
    if of.zeros == of.size:
        return NO_WEIGHT
    if not math.isfinite(of.variance):
        return OVERFLOW
    return UNDERFLOW if math.isnan(of.ess) else of.ess


def _mass_lost(shares: Shares) -> Figure:
    if not math.isfinite(shares.mass):
        return OVERFLOW
    return shares.lost / shares.mass if shares.mass > 0 else Absent("no mass: every ratio is 0")


def _kept_reward(shares: Shares) -> Figure:
    if not shares.reward_columns:
        return Absent("needs rewards")
    if not math.isfinite(shares.reward):
        return Absent("a reward is infinite")
    return shares.reward / shares.rewards if shares.rewards else NONE_KEPT


def _kept_positive(shares: Shares) -> Figure:
    if not shares.advantage_columns:
        return NEEDS_ADVANTAGES
    return shares.positive / shares.advantages if shares.advantages else NONE_KEPT
