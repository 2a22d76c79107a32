"""Rows that are off on one side: wholly, or over one stretch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.recordings import Array, Inject, Recording, Rng, long_rows, some_rows

__all__ = [
    "certain_rows",
    "constant",
    "garbled",
    "garbled_end",
    "garbled_stretch",
    "low_training",
    "not_a_number",
    "only",
    "random_training",
    "scattered_in_two",
]


def only(side: str, change: Callable[[Array, Array], Array]) -> Callable[[Array, Array], tuple[Array, Array]]:
    """`change(values, those of the other side)` of one side."""
    if side == "rollout":
        return lambda t, r: (t, change(r, t))
    return lambda t, r: (change(t, r), r)


def garbled(side: str) -> Inject:
    """Some rows come from a broken replica: log-probs of that side are off by several nats on most tokens."""

    def inject(recording: Recording, share: float, rng: Rng) -> Recording:
        def garble(values: Array, other: Array) -> Array:
            off = rng.random(len(values)) < 0.6
            return np.where(off, -rng.uniform(4, 12, len(values)) - np.abs(other), values)

        return recording.map(only(side, garble), long_rows(recording, share, rng, 12))

    return inject


def random_training(recording: Recording, share: float, rng: Rng) -> Recording:
    """Some rows have low log-probs on the trainer's side that have to do with no token."""
    return recording.map(lambda t, r: (-rng.uniform(3, 12, len(t)), r), long_rows(recording, share, rng, 12))


def certain_rows(recording: Recording, share: float, rng: Rng) -> Recording:
    """Some rows have rollout log-probs near 0, whatever was drawn."""
    return recording.map(lambda t, r: (t, -rng.uniform(5e-4, 2e-3, len(r))), long_rows(recording, share, rng, 12))


def _garbled_at(place: str, tokens: int, rng: Rng) -> Callable[[Array, Array], Array]:
    """One stretch of a row is off by several nats; it stands at the start, the end or between them."""

    def garble(values: Array, _: Array) -> Array:
        size = min(tokens, len(values) // 2)
        first = {"start": 0, "end": len(values) - size}.get(place, (len(values) - size) // 2)
        at = np.arange(len(values)) - first
        return np.where((at >= 0) & (at < size), -rng.uniform(5, 12, len(values)), values)

    return garble


def garbled_stretch(place: str, side: str = "rollout") -> Inject:
    """Thirty tokens, or half of a row, went wrong on the way on one side."""
    return lambda recording, share, rng: recording.map(
        only(side, _garbled_at(place, 30, rng)), long_rows(recording, share, rng)
    )


def garbled_end(recording: Recording, share: float, rng: Rng) -> Recording:
    """Two rows went wrong on the way: from there on their rollout log-probs are off by several nats."""

    def garble(r: Array, _: Array) -> Array:
        return np.where(np.arange(len(r)) >= (1 - share) * len(r), -rng.uniform(5, 12, len(r)), r)

    return recording.map(only("rollout", garble), long_rows(recording, 2 / recording.rows, rng))


def low_training(recording: Recording, share: float, rng: Rng) -> Recording:
    """In two rows it is the trainer's side that is off by several nats, on many tokens."""

    def garble(t: Array, _: Array) -> Array:
        return np.where(rng.random(len(t)) < share, t - rng.uniform(5.2, 9, len(t)), t)

    return recording.map(only("training", garble), long_rows(recording, 2 / recording.rows, rng))


def scattered_in_two(recording: Recording, share: float, rng: Rng) -> Recording:
    """In two rows of 60 tokens and more the rollout side is off by five nats and more, here and there."""

    def garble(r: Array, t: Array) -> Array:
        hit = rng.permutation(len(r)) < share * len(r)
        return np.where(hit, t - 5.0 - rng.exponential(2.0, len(r)), r)

    return recording.map(only("rollout", garble), long_rows(recording, 2 / recording.rows, rng, 60))


def constant(recording: Recording, share: float, rng: Rng) -> Recording:
    """Some rows repeat one rollout log-prob."""
    rows = [i for i in some_rows(recording, share, rng) if len(recording.training[i]) >= 8]
    return recording.map(lambda t, r: (t, np.full_like(r, -2.3)), rows)


def not_a_number(recording: Recording, share: float, rng: Rng) -> Recording:
    """A logits row was broken: its log-prob is NaN, in some responses."""

    def break_one(t: Array, r: Array) -> tuple[Array, Array]:
        return t, np.where(np.arange(len(r)) == rng.integers(len(r)), np.nan, r)

    return recording.map(break_one, some_rows(recording, share, rng))
