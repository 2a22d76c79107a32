"""The tables of trainers.md, asked of the trainers' modules: what each expresses, agreement, quirks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Loss,
    Mode,
    Rows,
    Rule,
    Sign,
    Statistic,
    Weight,
)
from rollout_audit.trainers.base import Trainer
from rollout_audit.trainers.registry import TRAINERS, get_trainer

__all__ = ["agreement", "expressible", "quirks"]

CONFORMANCE = Path(__file__).resolve().parents[1] / "tests" / "conformance"
NAMES_THERE = {"verl-legacy": "verl-2025-10"}
CAP, BAND = {"upper": 2.0}, {"lower": 0.5, "upper": 2.0}
BOUNDS = {"raw": (Bound.NONE, {}), "cap": (Bound.TRUNCATE, CAP), "clip": (Bound.CLIP, BAND), "mask": (Bound.MASK, BAND)}
PLACES = {
    Aggregation.TOKEN: "token",
    Aggregation.SEQ_SUM: "product",
    Aggregation.SEQ_MEAN: "geometric",
    Aggregation.SEGMENT_MEAN: "segment",
    Aggregation.SEQ_MAX: "largest",
    Aggregation.SEQ_MIN: "smallest",
}
MEANS = (Aggregation.TOKEN, Aggregation.SEQ_SUM, Aggregation.SEQ_MEAN, Aggregation.SEQ_MAX)
RULES: dict[str, tuple[Rule, ...]] = {
    **{f"{place} ratio": (Rule(Statistic.RATIO, a, 0.5, 2.0),) for a, place in PLACES.items()},
    **{f"{place} ratio (upper bound only)": (Rule(Statistic.RATIO, a, None, 2.0),) for a, place in PLACES.items()},
    **{
        f"{a.value}_{s.value}": (Rule(s, a, None, 0.1),)
        for s in (Statistic.K2, Statistic.K3, Statistic.K3_REVERSE)
        for a in MEANS
        if a is not Aggregation.TOKEN
    },
    "seq_mean_mult_error": (Rule(Statistic.MULT_ERROR, Aggregation.SEQ_MEAN, None, 2.0, clamp=None),),
    **{
        f"{a.value}_prob_diff": (Rule(Statistic.PROB_DIFF, a, -0.2, 0.2),)
        for a in (Aggregation.TOKEN, Aggregation.SEQ_SUM, Aggregation.SEQ_MEAN, Aggregation.SEGMENT_MEAN)
    },
    **{
        f"token_{s.value} by the sign of A": (
            Rule(s, Aggregation.TOKEN, None, 0.2, sign=Sign.POSITIVE),
            Rule(s, Aggregation.TOKEN, -0.2, None, sign=Sign.NOT_POSITIVE),
        )
        for s in (Statistic.PROB_DIFF, Statistic.BINARY_KL)
    },
    "seq_mean_k1 where A < 0": (Rule(Statistic.K1, Aggregation.SEQ_MEAN, None, 0.1, sign=Sign.NEGATIVE),),
    "seq_mean_k1 where mean A < 0": (Rule(Statistic.K1, Aggregation.SEQ_MEAN, None, 0.1, sign=Sign.NEGATIVE_MEAN),),
    "seq_mean_ratio_distance where d·A > 0": (
        Rule(Statistic.RATIO_DISTANCE, Aggregation.SEQ_MEAN, None, 0.1, 10.0, Sign.OUTWARD),
    ),
    "batch_mean_k2": (Rule(Statistic.K2, Aggregation.BATCH_MEAN, None, 0.1, clamp=None),),
}
WEIGHTS = (
    Weight(),
    Weight(Level.TOKEN, clamp=None),
    Weight(Level.TOKEN),
    Weight(Level.TOKEN, Bound.TRUNCATE, upper=3.0),
    Weight(Level.GEOMETRIC, clamp=None),
)
"""What a rule may come with: without a weight is asked first"""
POLICIES = {
    "decoupled": (Mode.DECOUPLED, Loss.PPO_CLIP),
    "bypass, PPO": (Mode.BYPASS, Loss.PPO_CLIP),
    "bypass, reinforce": (Mode.BYPASS, Loss.REINFORCE),
}

APPLYING = (POLICIES["decoupled"], POLICIES["bypass, reinforce"])
"""Where a weight multiplies the loss: with PPO in bypass the ratio carries it"""


@cache
def expressible() -> tuple[tuple[str, ...], ...]:
    """Rows: trainer, weights, rejection, denominators, veto, normalisation, policies."""
    return tuple(_row(get_trainer(name)) for name in TRAINERS)


def _row(trainer: Trainer[Any]) -> tuple[str, ...]:
    rules = list(_rules(trainer))
    return (
        f"`{trainer.name}`",
        "; ".join(_weights(trainer)) or "–",
        "; ".join(_words(rules)) or "–",
        _joined(dict.fromkeys(found.denominator.value for _, found in rules)),
        _joined(_vetoes(trainer)),
        _joined(_normalised(trainer)),
        "; ".join(_policies(trainer)),
    )


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(parts) or "–"


def _can(trainer: Trainer[Any], correction: Correction) -> bool:
    return trainer.expressed(correction) is not None


def _first(trainer: Trainer[Any], weights: Iterable[Weight], rules: tuple[Rule, ...], **more: Any) -> Correction | None:
    """The first combination with a denominator and a policy that the trainer has settings for."""
    denominators = _DENOMINATORS if rules or more else _DENOMINATORS[:1]
    for weight in weights:
        policies = APPLYING if weight.level is not Level.NONE else tuple(POLICIES.values())
        for denominator, (mode, loss) in product(denominators, policies):
            asked = Correction(weight, rules, denominator=denominator, mode=mode, loss=loss, **more)
            if _can(trainer, asked):
                return asked
    return None


_DENOMINATORS = (Denominator.ORIGINAL, Denominator.KEPT)


def _weights(trainer: Trainer[Any]) -> Iterator[str]:
    for level in (Level.TOKEN, Level.SEQUENCE, Level.GEOMETRIC, Level.SEGMENT):
        names = [
            name
            for name, (bound, limits) in BOUNDS.items()
            if _first(trainer, [Weight(level, bound, **limits, clamp=clamp) for clamp in (None, 20.0, 10.0)], ())
        ]
        if names:
            yield f"{level.value}: {', '.join(names)}"


def _rules(trainer: Trainer[Any]) -> Iterator[tuple[str, Correction]]:
    for name, rules in RULES.items():
        found = _first(trainer, WEIGHTS, rules)
        if found is not None:
            yield name, found


def _words(rules: Iterable[tuple[str, Correction]]) -> Iterator[str]:
    """What is rejected without a weight, then what only comes with one."""
    named = list(rules)
    for text, chosen in (
        ("", [name for name, found in named if found.applied_weight.level is Level.NONE]),
        ("with weights only: ", [name for name, found in named if found.applied_weight.level is not Level.NONE]),
    ):
        if chosen:
            yield text + ", ".join(chosen)


def _vetoes(trainer: Trainer[Any]) -> Iterator[str]:
    band = (Rule(Statistic.RATIO, Aggregation.TOKEN, 0.5, 2.0),)
    if _first(trainer, WEIGHTS, (), veto=1e-4):
        yield "yes"
    elif _first(trainer, WEIGHTS, band, veto=1e-4):
        yield "beside a rule"


def _normalised(trainer: Trainer[Any]) -> Iterator[str]:
    for level in (Level.TOKEN, Level.SEQUENCE):
        asked = [Weight(level, Bound.TRUNCATE, upper=2.0, normalise=True, mean_over=rows) for rows in Rows]
        if _first(trainer, asked, ()):
            yield level.value


def _policies(trainer: Trainer[Any]) -> Iterator[str]:
    """With no weight or a token weight, and with the mask of differences where there is no way around one."""
    signed = RULES["token_prob_diff by the sign of A"]
    for name, (mode, loss) in POLICIES.items():
        asked = [Correction(w, r, denominator=Denominator.ORIGINAL, mode=mode, loss=loss)
                 for w in WEIGHTS for r in ((), signed)]  # fmt: skip
        if any(_can(trainer, one) for one in asked):
            yield name


@cache
def agreement() -> tuple[tuple[str, ...], ...]:
    """Rows: trainer, values of each file; a total at the end."""
    counts: dict[str, dict[str, int]] = {name: {} for name in TRAINERS}
    files = ("expected.parquet", "expected_more.parquet")
    for file in files:
        column = pq.read_table(CONFORMANCE / file, columns=["trainer"])["trainer"].to_pylist()
        for name in column:
            own = counts[NAMES_THERE.get(name, name)]
            own[file] = own.get(file, 0) + 1
    rows = [
        (f"`{name}`", *(f"{own[file]:,}" if file in own else "–" for file in files)) for name, own in counts.items()
    ]
    totals = (f"{sum(own.get(file, 0) for own in counts.values()):,}" for file in files)
    return (*rows, ("all", *totals))


def quirks() -> Iterator[tuple[str, ...]]:
    """Rows: trainer, name, sentence; what several share word for word stands once."""
    named: dict[tuple[str, str], list[str]] = {}
    for name in TRAINERS:
        for quirk in get_trainer(name).quirks:
            untold = f" Documentation only: {quirk.untold[0].lower()}{quirk.untold[1:]}." if quirk.untold else ""
            named.setdefault((quirk.name, quirk.sentence + untold), []).append(name)
    for (quirk_name, sentence), owners in named.items():
        yield ", ".join(owners), f"`{quirk_name}`", sentence
