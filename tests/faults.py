"""Faults of the plumbing, put into sound recordings: each is a kind, its strengths and a function of both.

Nothing here is measured by the detectors' own formulas: a fault changes the recorded log-probs as the mistake that it
is named for would. Where that needs a distribution that was not recorded, the docstring says what is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tests.off_rows import (
    certain_rows,
    constant,
    garbled,
    garbled_end,
    garbled_stretch,
    low_training,
    not_a_number,
    only,
    random_training,
    scattered_in_two,
)
from tests.recordings import SOUND, Array, Inject, Recording, Rng, long_rows, some_rows, sound, write
from tests.shifts import exchanged_in_padding, one_shifted, shifted, shifted_from_the_middle, token_lost

__all__ = ["FAULTS", "SOUND", "Fault", "Recording", "few_tokens", "sound", "write"]


def raw_temperature(recording: Recording, temperature: float, rng: Rng) -> Recording:
    """The trainer divides by a temperature and the rollout side does not.

    Assumes that the rest of the mass is spread evenly over 1 to 50 other tokens.
    """

    def divide(t: Array, r: Array) -> tuple[Array, Array]:
        others = np.exp(rng.uniform(0, np.log(50), len(t)))
        rest = np.log(others) + (np.log(-np.expm1(np.minimum(t, -1e-9))) - np.log(others)) / temperature
        return t / temperature - np.logaddexp(t / temperature, rest), r

    return recording.map(divide)


def few_tokens(recording: Recording, temperature: float, rng: Rng) -> Recording:
    """As above, of three tokens with the logits 2, 1 and 0, whatever came before: log-probs take three values."""
    return _of_logits(recording, temperature, lambda tokens: np.tile([2.0, 1.0, 0.0], (tokens, 1)), rng)


def small_vocabulary(recording: Recording, temperature: float, rng: Rng) -> Recording:
    """As above, of six tokens with normal logits."""
    return _of_logits(recording, temperature, lambda tokens: rng.normal(0.0, 2.0, (tokens, 6)), rng)


def flat_contexts(recording: Recording, temperature: float, rng: Rng) -> Recording:
    """As above, of 300 tokens of which several are likely as often as not, as at the start of a training run."""

    def logits(tokens: int) -> Array:
        drawn = rng.normal(size=(tokens, 300)) * (0.8 + rng.gamma(3.0, 0.5, (tokens, 1)))
        drawn[:, 0] = drawn.max(axis=1) + rng.exponential(3.0, tokens) * (rng.random(tokens) < 0.75)
        return drawn

    return _of_logits(recording, temperature, logits, rng)


def _of_logits(recording: Recording, temperature: float, logits_of: Callable[[int], Array], rng: Rng) -> Recording:
    """Rows as long as those of the recording, drawn at the temperature; the rollout side tells raw log-probs."""

    def draw(t: Array, r: Array) -> tuple[Array, Array]:
        logits = logits_of(len(t))
        raw, divided = (x - np.logaddexp.reduce(x, axis=1, keepdims=True) for x in (logits, logits / temperature))
        drawn = (divided + rng.gumbel(size=divided.shape)).argmax(axis=1)[:, None]
        return tuple(np.take_along_axis(x, drawn, axis=1)[:, 0] for x in (divided, raw))  # type: ignore[return-value]

    return recording.map(draw)


def nucleus(recording: Recording, top_p: float, rng: Rng) -> Recording:
    """The rollout side renormalises over a nucleus, whose mass is the token's own or a bit above top_p."""

    def renormalise(t: Array, r: Array) -> tuple[Array, Array]:
        mass = np.maximum(np.exp(r), top_p + (1 - top_p) * rng.beta(1, 3, len(r)))
        return t, np.where(np.exp(r) >= top_p, 0.0, np.minimum(r - np.log(mass), 0.0))

    return recording.map(renormalise)


def top_k(recording: Recording, lost: float, rng: Rng) -> Recording:
    """The trainer renormalises over the likeliest tokens, which leave out some mass around `lost` of what is unsure."""

    def renormalise(t: Array, r: Array) -> tuple[Array, Array]:
        mass = 1.0 - lost * rng.beta(8, 8, len(t)) * 2.0 * (1.0 - np.exp(np.minimum(t, 0.0)))
        return np.minimum(t - np.log(mass), 0.0), r

    return recording.map(renormalise)


def _kept(log_prob: Array, survives: Callable[[Array, Array], NDArray[np.bool_]], rng: Rng) -> Array:
    """log of the mass that a truncation keeps, by token.

    Assumes that the other tokens fall off geometrically, as fast or slowly as it comes, a hundred of them, and that no
    other token is so likely that the one that was drawn would have been cut off.
    """
    own = np.exp(np.minimum(log_prob, 0.0))[:, None]
    ratio = rng.uniform(0.3, 0.9, own.shape)
    others = (1.0 - own) * (1.0 - ratio) * ratio ** np.arange(100)
    kept = own[:, 0] + np.sum(others * survives(own, others), axis=1)
    return np.log(np.minimum(kept, 1.0))


def _on(side: str, recording: Recording, mass: Callable[[Array], Array]) -> Recording:
    """That side is renormalised over the mass that is kept."""
    if side == "rollout":
        return recording.map(lambda t, r: (t, np.minimum(r - mass(r), 0.0)))
    return recording.map(lambda t, r: (np.minimum(t - mass(t), 0.0), r))


def min_p(side: str) -> Inject:
    """One side renormalises over tokens of at least that share of the likeliest one's probability."""

    def survives(own: Array, others: Array, least: float) -> NDArray[np.bool_]:
        limit = np.minimum(least * np.maximum(own, others[:, :1]), own)
        return others >= limit

    return lambda recording, least, rng: _on(
        side, recording, lambda log_prob: _kept(log_prob, lambda own, others: survives(own, others, least), rng)
    )


def few_likeliest(side: str) -> Inject:
    """One side renormalises over its k likeliest tokens, which hold more of one context's mass than of another's."""

    def survives(own: Array, others: Array, k: float) -> NDArray[np.bool_]:
        rank = np.arange(1, others.shape[1] + 1)
        return (rank < k) | (others >= own)

    return lambda recording, k, rng: _on(
        side, recording, lambda log_prob: _kept(log_prob, lambda own, others: survives(own, others, k), rng)
    )


def scattered(recording: Recording, share: float, rng: Rng) -> Recording:
    """The rollout side says −1 for a share of the tokens, here and there, to which the trainer gives 60% and more."""

    def fill(t: Array, r: Array) -> tuple[Array, Array]:
        hit = (rng.random(len(r)) < share) & (t > -0.5)
        return t, np.where(hit, -1.0, r)

    return recording.map(fill)


def sentinels(recording: Recording, share: float, rng: Rng) -> Recording:
    """Runs of four tokens without a rollout log-prob are filled with 0.0, −9999 or +1."""
    value = float(rng.choice([0.0, -9999.0, 1.0]))

    def fill(t: Array, r: Array) -> tuple[Array, Array]:
        at = int(rng.integers(0, max(1, len(r) - 4)))
        t, r = t.copy(), r.copy()
        r[at : at + 4] = value
        t[at : at + 4] = np.minimum(t[at : at + 4], -rng.uniform(2, 8, len(t[at : at + 4])))
        return t, r

    return recording.map(fill, some_rows(recording, share, rng))


def appended_eos(value: float) -> Inject:
    """The framework appends an end token with that rollout log-prob, to which the trainer gives 0.1% to 1%."""

    def inject(recording: Recording, share: float, rng: Rng) -> Recording:
        def append(t: Array, r: Array) -> tuple[Array, Array]:
            return np.append(t, np.log(rng.uniform(0.001, 0.01))), np.append(r, value)

        return recording.map(append, some_rows(recording, share, rng))

    return inject


def bypass(recording: Recording, share: float, rng: Rng) -> Recording:
    """The recompute is a copy of the rollout's in all steps, or in one of two."""
    rows = range(round(share * recording.rows))
    copied = recording.map(lambda _, r: (r, r), rows)
    return replace(copied, step=tuple(0 if i in rows else 1 for i in range(recording.rows)))


def prompt_in_mask(recording: Recording, tokens: float, rng: Rng) -> Recording:
    """Tokens that nobody sampled stand before the response: each engine finds its own improbable log-prob for them."""

    def prepend(t: Array, r: Array) -> tuple[Array, Array]:
        strange = [-rng.gamma(2.0, 2.0, int(tokens)) for _ in range(2)]
        return np.concatenate([strange[0], t]), np.concatenate([strange[1], r])

    long = [i for i in range(recording.rows) if len(recording.training[i]) >= tokens]
    return recording.map(prepend, long)


def _tool_output(tokens: int, rng: Rng) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Tokens that nobody sampled stand in the middle of a row."""

    def insert(t: Array, r: Array) -> tuple[Array, Array]:
        at = len(t) // 2
        strange = [-rng.gamma(2.0, 2.0, tokens) for _ in range(2)]
        return np.insert(t, at, strange[0]), np.insert(r, at, strange[1])

    return insert


def tool_in_mask(recording: Recording, tokens: float, rng: Rng) -> Recording:
    """The output of a tool stands in the middle of the response, in half of the rows."""
    long = [i for i in range(recording.rows) if len(recording.training[i]) >= tokens]
    return recording.map(_tool_output(int(tokens), rng), long[::2])


def tool_in_few(recording: Recording, share: float, rng: Rng) -> Recording:
    """Thirty tokens of a tool's output stand in the middle of few responses."""
    return recording.map(_tool_output(30, rng), long_rows(recording, share, rng))


def zero_first(recording: Recording, share: float, rng: Rng) -> Recording:
    """The mask begins one token early in some rows: the rollout side says 0.0 for the prompt's last token."""
    return recording.map(
        lambda t, r: (np.append(-1.0 - rng.gamma(2.0, 2.0), t), np.append(0.0, r)), some_rows(recording, share, rng)
    )


def zeros_in_mask(recording: Recording, tokens: float, rng: Rng) -> Recording:
    """As the two above, at either place in half of the rows: the rollout side says 0.0."""

    def insert(t: Array, r: Array) -> tuple[Array, Array]:
        at = int(rng.choice([0, len(t) // 2]))
        return np.insert(t, at, -1.0 - rng.gamma(2.0, 2.0, int(tokens))), np.insert(r, at, np.zeros(int(tokens)))

    long = [i for i in range(recording.rows) if len(recording.training[i]) >= tokens]
    return recording.map(insert, long[::2])


def exchanged(recording: Recording, share: float, rng: Rng) -> Recording:
    """Rollout log-probs of some rows went to one another, cut to the shorter of both."""
    rows = some_rows(recording, share, rng)
    source = dict(zip(rows, np.roll(rows, 1).tolist(), strict=True))
    pairs = [(t, recording.rollout[source.get(i, i)]) for i, t in enumerate(recording.training)]
    cut = [(t[: len(r)], r[: len(t)]) for t, r in pairs]
    return replace(recording, training=tuple(t for t, _ in cut), rollout=tuple(r for _, r in cut))


def siblings(recording: Recording, alike: float, rng: Rng) -> Recording:
    """Groups of eight rows that share their first tokens, as long a part of a row as `alike` says.

    Assumes that the engines are as far apart on a text that they meet again as on another one.
    """
    rows = [i for i in rng.permutation(recording.rows).tolist() if len(recording.training[i]) >= 12]
    training, rollout = [], []
    for first in rows[: max(3, len(rows) // 8)]:
        log_prob = recording.training[first]
        same = int(alike * len(log_prob))
        for _ in range(8):
            other = rows[int(rng.integers(len(rows)))]
            noise = rng.normal(0.0, 0.1, len(log_prob)) * (1.0 - np.exp(np.minimum(log_prob, 0.0)))
            again = np.minimum(log_prob + noise, -1e-6)[:same]
            rest = [side[other][: len(log_prob) - same] for side in (recording.training, recording.rollout)]
            training.append(np.concatenate([log_prob[:same], rest[0]]))
            rollout.append(np.concatenate([again, rest[1]]))
    return Recording(tuple(training), tuple(rollout), (0,) * len(training))


def exchanged_in_groups(recording: Recording, alike: float, rng: Rng) -> Recording:
    """Rollout log-probs of a third of the rows went to another row that begins with the same text."""
    grouped = siblings(recording, alike, rng)
    source = {}
    for group in range(0, grouped.rows, 8):
        chosen = group + rng.permutation(8)[:3]
        source |= dict(zip(chosen.tolist(), np.roll(chosen, 1).tolist(), strict=True))
    pairs = [(t, grouped.rollout[source.get(i, i)]) for i, t in enumerate(grouped.training)]
    cut = [(t[: len(r)], r[: len(t)]) for t, r in pairs]
    return replace(grouped, training=tuple(t for t, _ in cut), rollout=tuple(r for _, r in cut))


def routing_in_groups(recording: Recording, share: float, rng: Rng) -> Recording:
    """As `routing`, on the rollout side and where the rows of a group have one text, so that each fits the others."""
    return routing(siblings(recording, 1.0, rng), share, rng, side="rollout")


def top1(side: str) -> Inject:
    """The likeliest token's log-prob in place of the sampled one's, on one side.

    Assumes that it is the token's own where that is above a half. Of the others as many had a likelier token above a
    half as the sampler was right about: each token drawn with p stands for (1 − p) / p that were missed by it.
    """

    def inject(recording: Recording, share: float, rng: Rng) -> Recording:
        drawn = np.exp(np.concatenate(recording.rollout))
        sure = drawn[drawn > 0.5]
        misses = (1.0 - sure) / sure
        beaten = misses.sum() / max(len(drawn) - len(sure), 1)

        def likeliest(values: Array, _: Array) -> Array:
            p = np.exp(values)
            high = rng.choice(sure, len(p), p=misses / misses.sum())
            high = np.where(rng.random(len(p)) < beaten, high, rng.uniform(0.2, 0.5, len(p)))
            return np.where(p > 0.5, values, np.log(np.maximum(p, np.minimum(high, 1.0 - p))))

        return recording.map(only(side, likeliest), some_rows(recording, share, rng))

    return inject


def bfloat16(recording: Recording, columns: float, rng: Rng) -> Recording:
    """Stored in bfloat16: the rollout side, or both."""

    def store(values: Array) -> Array:
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)

    return recording.map(lambda t, r: (store(t) if columns > 1 else t, store(r)))


def float16(recording: Recording, columns: float, rng: Rng) -> Recording:
    """Stored in float16: the rollout side, or both."""

    def store(values: Array) -> Array:
        return values.astype(np.float16).astype(np.float64)

    return recording.map(lambda t, r: (store(t) if columns > 1 else t, store(r)))


def stored_in_bfloat16(inject: Inject) -> Inject:
    """Another fault, and both sides are stored in bfloat16 afterwards."""
    return lambda recording, strength, rng: bfloat16(inject(recording, strength, rng), 2, rng)


def _drifted(t: Array, scale: float, rng: Rng) -> Array:
    """Another policy's log-probs: logits moved by normal noise, which unsure tokens follow; mean ratio 1."""
    unsure = scale * (1.0 - np.exp(np.minimum(t, 0.0)))
    return np.minimum(t + unsure * rng.standard_normal(len(t)) - unsure**2 / 2.0, -1e-6)


def _in_steps(recording: Recording, steps: int) -> Recording:
    return replace(recording, step=tuple(i * steps // recording.rows for i in range(recording.rows)))


def stale_with_versions(recording: Recording, scale: float, rng: Rng) -> Recording:
    """Four steps on one version of the sampler's weights: the policy moves on by that scale a step."""
    stepped = _in_steps(recording, 4)
    training = tuple(_drifted(t, scale * s, rng) for t, s in zip(stepped.training, stepped.step, strict=True))
    zeros = (0,) * recording.rows
    return replace(stepped, training=training, policy_version=zeros, trainer_version=stepped.step)


def stale_from_a_step(recording: Recording, scale: float, rng: Rng) -> Recording:
    """Weights no longer arrive from the third of five steps on; no version is recorded."""
    stepped = _in_steps(recording, 5)
    training = (_drifted(t, scale, rng) if s >= 2 else t for t, s in zip(stepped.training, stepped.step, strict=True))
    return replace(stepped, training=tuple(training))


def mixed(recording: Recording, scale: float, rng: Rng) -> Recording:
    """Every third row was sampled by older weights."""
    old = [i % 3 == 0 for i in range(recording.rows)]
    training = (_drifted(t, scale, rng) if o else t for t, o in zip(recording.training, old, strict=True))
    versions = tuple(3 if o else 7 for o in old)
    return replace(recording, training=tuple(training), policy_version=versions, trainer_version=(7,) * recording.rows)


def routing(recording: Recording, share: float, rng: Rng, side: str = "training") -> Recording:
    """A small share of the tokens takes other experts: their log-ratio is that of two models, ±3 nats."""

    def reroute(t: Array, r: Array) -> tuple[Array, Array]:
        hit, size = rng.random(len(t)) < share, rng.normal(0, 3.0, len(t))
        if side == "rollout":
            return t, np.where(hit, np.minimum(r + size, -1e-6), r)
        return np.where(hit, np.minimum(t + size, -1e-6), t), r

    return recording.map(reroute)


def cancelling(recording: Recording, scale: float, rng: Rng) -> Recording:
    """Errors of both signs and one size, as of a coarse quantiser: no mean, a large spread; sure tokens stay sure."""

    def add(t: Array, r: Array) -> tuple[Array, Array]:
        size, sign = scale * (1.0 - np.exp(r)), np.empty(len(r))
        sign[np.argsort(size)] = np.resize([1.0, -1.0], len(r)) * rng.choice([-1.0, 1.0])
        return np.minimum(r + size * sign, -1e-6), r

    return recording.map(add)


@dataclass(frozen=True)
class Fault:
    """One kind of fault. `strengths` run from what must be found to what hardly shows."""

    name: str
    cause: str
    inject: Inject
    strengths: tuple[float, ...]
    unit: str


STRETCHED = (0.3, 0.1, 0.05, 0.02)

FAULTS: tuple[Fault, ...] = (
    Fault("shift by one", "shift_by_one", shifted, (1.0, 0.5, 0.2, 0.05), "share of rows"),
    Fault("shift from the middle on", "shift_by_one", shifted_from_the_middle, (1.0, 0.3, 0.1), "share of rows"),
    Fault("one row shifted", "shift_by_one", one_shifted, (60, 40), "tokens"),
    Fault("a packed token lost", "shift_by_one", token_lost, (0.0, 0.5, 0.9), "share of the batch before it"),
    Fault("rows exchanged", "misordered_rows", exchanged, (1.0, 0.5, 0.2, 0.05), "share of rows"),
    Fault("padded rows exchanged", "misordered_rows", exchanged_in_padding, (1.0, 0.5, 0.2), "share of rows"),
    Fault("rows exchanged in groups", "misordered_rows", exchanged_in_groups, (0.0, 0.4, 0.7), "of a row is one text"),
    Fault("placeholders", "placeholder", sentinels, (1.0, 0.5, 0.2, 0.05), "share of rows"),
    Fault("scattered −1", "placeholder", scattered, (0.2, 0.05, 0.01), "share of tokens"),
    Fault("top-1 recorded", "top1_recorded", top1("rollout"), (1.0, 0.5, 0.2, 0.05), "share of rows"),
    Fault("top-1, trainer's side", "top1_recorded", top1("training"), (1.0, 0.5, 0.2, 0.05), "share of rows"),
    Fault("garbled rows", "broken_rows", garbled("rollout"), (0.2, 0.1, 0.05, 0.02), "share of rows"),
    Fault("garbled rows, trainer's side", "broken_rows", garbled("training"), (0.2, 0.1, 0.05, 0.02), "share of rows"),
    Fault("random rows, trainer's side", "broken_rows", random_training, (0.2, 0.1, 0.05, 0.02), "share of rows"),
    Fault("rollout rows near 0", "broken_rows", certain_rows, (0.2, 0.1, 0.05, 0.02), "share of rows"),
    Fault("garbled start", "broken_rows", garbled_stretch("start"), STRETCHED, "share of rows"),
    Fault("garbled middle", "broken_rows", garbled_stretch("middle"), STRETCHED, "share of rows"),
    Fault("garbled end", "broken_rows", garbled_stretch("end"), STRETCHED, "share of rows"),
    Fault(
        "garbled middle, trainer's side",
        "broken_rows",
        garbled_stretch("middle", "training"),
        STRETCHED,
        "share of rows",
    ),
    Fault("garbled from a token on, two rows", "broken_rows", garbled_end, (0.6, 0.5, 0.35), "share of the row"),
    Fault("trainer's side off, two rows", "broken_rows", low_training, (0.8, 0.6, 0.45), "share of the row"),
    Fault("scattered in two rows", "broken_rows", scattered_in_two, (0.28, 0.2, 0.15), "share of the row"),
    Fault("constant rows", "broken_rows", constant, (0.4, 0.2, 0.1, 0.05), "share of rows"),
    Fault("NaN", "broken_rows", not_a_number, (0.5, 0.2, 0.1, 0.02), "share of rows"),
    Fault("appended end token", "synthetic_eos", appended_eos(0.0), (1.0, 0.5, 0.2, 0.05), "share of rows"),
    Fault("end token near 0", "synthetic_eos", appended_eos(-0.0003), (1.0, 0.5, 0.2, 0.1), "share of rows"),
    Fault("prompt in the mask", "mask_too_wide", prompt_in_mask, (32, 16, 8, 4, 2, 1), "tokens"),
    Fault("mask begins a token early", "mask_too_wide", zero_first, (1.0, 0.3, 0.1), "share of rows"),
    Fault("tool output in the mask", "mask_too_wide", tool_in_mask, (32, 16, 8, 4), "tokens"),
    Fault("tool output in few rows", "mask_too_wide", tool_in_few, STRETCHED, "share of rows"),
    Fault("zeros on prompt and tools", "placeholder", zeros_in_mask, (32, 16, 8, 4), "tokens"),
    Fault("bypass dump", "identical_columns", bypass, (1.0, 0.5), "share of steps"),
    Fault("temperature", "temperature", raw_temperature, (0.5, 0.6, 0.7, 0.8, 0.9, 1.2, 1.5), "T"),
    Fault("temperature, three tokens", "temperature", few_tokens, (0.5, 0.6, 0.7, 0.8, 0.9, 1.5), "T"),
    Fault("temperature, six tokens", "temperature", small_vocabulary, (0.5, 0.6, 0.7, 0.8, 0.9, 1.5), "T"),
    Fault("temperature, flat contexts", "temperature", flat_contexts, (0.4, 0.5, 0.7, 1.5), "T"),
    Fault("top-p, rollout side", "truncated_sampling", nucleus, (0.7, 0.8, 0.9, 0.95), "p"),
    Fault("top-k, rollout side", "truncated_sampling", few_likeliest("rollout"), (2, 5, 20), "k"),
    Fault("top-k of any mass, trainer side", "truncated_sampling", few_likeliest("training"), (2, 5, 20), "k"),
    Fault("min-p, rollout side", "truncated_sampling", min_p("rollout"), (0.2, 0.1, 0.05), "p"),
    Fault("min-p, trainer side", "truncated_sampling", min_p("training"), (0.2, 0.1, 0.05), "p"),
    Fault("mixed versions", "mixed_versions", mixed, (1.0, 0.6, 0.4, 0.2), "drift"),
    Fault("stale, versions recorded", "stale_weights", stale_with_versions, (0.4, 0.2, 0.1, 0.05), "drift a step"),
    Fault("stale from a step on", "stale_weights", stale_from_a_step, (0.8, 0.4, 0.2, 0.1), "drift"),
    Fault("bfloat16 storage", "low_precision_storage", bfloat16, (2, 1), "columns"),
    Fault("temperature, bfloat16", "temperature", stored_in_bfloat16(raw_temperature), (0.5, 0.7, 0.8), "T"),
    Fault("top-p, bfloat16", "truncated_sampling", stored_in_bfloat16(nucleus), (0.7, 0.8, 0.9), "p"),
    Fault(
        "stale from a step on, bfloat16",
        "stale_weights",
        stored_in_bfloat16(stale_from_a_step),
        (0.8, 0.4, 0.2),
        "drift",
    ),
    Fault("routing, bfloat16", "heavy_tail", stored_in_bfloat16(routing), (0.02, 0.01), "share of tokens"),
    Fault("prompt in the mask, bfloat16", "mask_too_wide", stored_in_bfloat16(prompt_in_mask), (16, 8, 1), "tokens"),
    Fault("float16 storage", "low_precision_storage", float16, (2, 1), "columns"),
    Fault("top-k, trainer side", "truncated_sampling", top_k, (0.4, 0.2, 0.1), "mass left out"),
    Fault("routing", "heavy_tail", routing, (0.02, 0.01, 0.005, 0.002), "share of tokens"),
    Fault("routing in groups of one text", "heavy_tail", routing_in_groups, (0.1, 0.05, 0.02), "share of tokens"),
    Fault("errors that cancel", "cancellation", cancelling, (0.5, 0.3, 0.2, 0.1), "size"),
)
