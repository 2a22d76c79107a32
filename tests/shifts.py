"""Columns that do not speak of the same tokens: a place early or late, in rows or from a place on; other rows'."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.recordings import Array, Recording, Rng, some_rows

__all__ = ["exchanged_in_padding", "one_shifted", "shifted", "shifted_from_the_middle", "token_lost"]


def shifted(recording: Recording, share: float, rng: Rng) -> Recording:
    """The trainer's values stand one place early or late in some rows; the place without a value is left out."""
    early = bool(rng.integers(2))
    cut = (lambda t, r: (t[1:], r[:-1])) if early else (lambda t, r: (t[:-1], r[1:]))
    return recording.map(cut, [i for i in some_rows(recording, share, rng) if len(recording.training[i]) > 1])


def shifted_from_the_middle(recording: Recording, share: float, rng: Rng) -> Recording:
    """From the second turn on, somewhere in the middle third of a row, the trainer's values stand one place early."""

    def lose_one(t: Array, r: Array) -> tuple[Array, Array]:
        at = int(len(t) * rng.uniform(1 / 3, 2 / 3))
        return np.delete(t, at), r[:-1]

    return recording.map(lose_one, [i for i in some_rows(recording, share, rng) if len(recording.training[i]) > 24])


def one_shifted(recording: Recording, tokens: float, rng: Rng) -> Recording:
    """One row of that many tokens at least is shifted."""
    long = [i for i in range(recording.rows) if len(recording.training[i]) > tokens]
    return recording.map(lambda t, r: (t[1:], r[:-1]), [int(rng.choice(long))])


def token_lost(recording: Recording, share: float, rng: Rng) -> Recording:
    """Of the trainer's packed tokens one got lost, after that share of the batch; all that follow move up."""
    packed = np.concatenate(recording.training)
    packed = np.append(np.delete(packed, int(share * len(packed))), packed[-1])
    ends = np.cumsum([len(t) for t in recording.training])
    return replace(recording, training=tuple(np.split(packed, ends[:-1])))


def exchanged_in_padding(recording: Recording, share: float, rng: Rng) -> Recording:
    """The trainer's rows of a padded batch went to one another: 0.0 stands where one is shorter than the mask says."""
    rows = some_rows(recording, share, rng)
    source = dict(zip(rows, np.roll(rows, 1).tolist(), strict=True))

    def padded(i: int) -> Array:
        own, other = recording.training[i], recording.training[source.get(i, i)]
        return np.append(other, np.zeros(len(own)))[: len(own)]

    return replace(recording, training=tuple(padded(i) for i in range(recording.rows)))
