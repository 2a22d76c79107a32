"""Where the mismatch sits: by place in the response, length of the response, probability of the token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from rollout_audit.audit.pictures import TokenSample
from rollout_audit.audit.report import Report
from rollout_audit.reports.plots.evidence import pictures_of
from rollout_audit.reports.plots.stories import EQUAL, rank_correlation
from rollout_audit.reports.plots.style import BLUE, GREY, ORANGE, SKY, heading, log_axis, new_figure, note
from rollout_audit.reports.plots.wording import counted, percent, power, short

__all__ = ["PROBABILITY_EDGES", "Profile", "draw", "profiles"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

PROBABILITY_EDGES = (0.0, -2.3, -6.9, -13.8, -27.6)
"""log μ; from 1 down to a tenth, a thousandth, a millionth, 1e-12, and the rest"""
_PROBABILITIES = (">0.1", "0.1–\n0.001", "0.001–\n10⁻⁶", "10⁻⁶–\n10⁻¹²", "<10⁻¹²")
ENOUGH = 30
"""Tokens that a bin needs to be part of a claim"""
CLEAR_FACTOR, CLEAR_CORRELATION = 2.0, 0.8
MOST_LABELS = 6


def draw(report: Report) -> Figure | None:
    """Mean |d| with its middle half, k3, and the number of tokens, each by bins of three quantities."""
    pictures = pictures_of(report)
    if pictures is None or not len(pictures.sample.positions):
        return None
    sample = pictures.sample
    found = profiles(sample)
    figure = new_figure(6.2, _finding(sample, found), _subtitle(sample))
    grid = figure.subplots(3, 3, sharex="col", sharey="row", height_ratios=[1.2, 1.2, 0.75])
    for column, profile in enumerate(found):
        _column(grid[:, column], profile)
    for axes, label in zip(grid[:, 0], ("|d|, nats", "mean k3, nats", "tokens"), strict=True):
        axes.set_ylabel(label)
    grid[0, 0].set_ylim(bottom=0)
    _widen(grid[1, 0])
    grid[2, 0].set_ylim(bottom=0.7)
    return figure


@dataclass(frozen=True)
class Profile:
    """Tokens in bins of one quantity; bins without tokens are left out."""

    name: str
    axis: str
    labels: tuple[str, ...]
    bins: Integers
    """[tokens] bin of each token"""
    log_ratio: Array

    @property
    def counts(self) -> Integers:
        return np.bincount(self.bins, minlength=len(self.labels))

    def mean(self, values: Array) -> Array:
        """Per bin, NaN where it is empty."""
        sums = np.bincount(self.bins, weights=values, minlength=len(self.labels))
        means: Array = np.full(len(self.labels), np.nan)
        np.divide(sums, self.counts, out=means, where=self.counts > 0)
        return means

    @property
    def mean_abs(self) -> Array:
        return self.mean(np.abs(self.log_ratio))

    @property
    def mean_k3(self) -> Array:
        return self.mean(_k3(self.log_ratio))

    def quartiles(self) -> tuple[Array, Array]:
        """25% and 75% of |d| per bin."""
        groups = [np.abs(self.log_ratio[self.bins == i]) for i in range(len(self.labels))]
        ends = [np.quantile(g, [0.25, 0.75]) if len(g) else np.full(2, np.nan) for g in groups]
        low, high = np.array(ends).T
        return low, high


def _k3(d: Array) -> Array:
    with np.errstate(over="ignore"):
        k3: Array = np.expm1(np.minimum(d, 700.0)) - d
    return k3


def profiles(sample: TokenSample) -> tuple[Profile, ...]:
    """By position and length in powers of two, by the sampler's probability in steps of a thousand."""
    edges = -np.array(PROBABILITY_EDGES[1:])
    unlikely = np.searchsorted(edges, -sample.rollout_log_probs, side="left")
    used = int(unlikely.max()) + 1
    d = sample.log_ratio
    return (
        _doubling("By position in the response", "position, first token = 1", sample.positions + 1, d),
        _doubling("By length of the response", "valid tokens of the response", sample.row_lengths, d),
        Profile("By probability of the token", "probability μ", _PROBABILITIES[:used], unlikely, d),
    )


def _doubling(name: str, axis: str, values: Integers, d: Array) -> Profile:
    """Bins 1–7, 8–15, 16–31, … cut to those in use."""
    bins = np.maximum(np.floor(np.log2(values)).astype(np.int64) - 2, 0)
    first, last = int(bins.min()), int(bins.max())
    labels = [f"{1 if i == 0 else 2 ** (i + 2):,}–\n{2 ** (i + 3) - 1:,}" for i in range(first, last + 1)]
    return Profile(name, axis, tuple(labels), bins - first, d)


def _finding(sample: TokenSample, found: Sequence[Profile]) -> str:
    d = sample.log_ratio
    if (d == 0).all():
        return f"{EQUAL} at every position, length and probability"
    if len(d) < ENOUGH:
        return f"Too few tokens for a profile: {counted(len(d), 'token')}"
    return (
        _rare_tokens(found[2])
        or _growth(found[0], "position")
        or _growth(found[1], "length")
        or ("k3 shows no clear trend with position, length or probability")
    )


def _rare_tokens(by_probability: Profile) -> str | None:
    """Where unlikely tokens hold much more of the k3 than of the tokens."""
    k3 = _k3(by_probability.log_ratio)
    rare = by_probability.bins > 0
    share, carried = float(rare.mean()), float(k3[rare].sum() / k3.sum())
    if int(rare.sum()) < ENOUGH or carried < 1.5 * share:
        return None
    return f"Tokens below p = 0.1 are {percent(share)} of all and carry {percent(carried)} of k3"


def _growth(profile: Profile, quantity: str) -> str | None:
    enough = profile.counts >= ENOUGH
    k3 = profile.mean_k3[enough]
    if len(k3) < 3:
        return None
    correlation = rank_correlation(np.arange(len(k3), dtype=np.float64), k3)
    first, last = short(float(k3[0])), short(float(k3[-1]))
    if correlation >= CLEAR_CORRELATION and k3[-1] > CLEAR_FACTOR * k3[0]:
        return f"Mismatch rises with {quantity}: mean k3 from {first} to {last}"
    if correlation <= -CLEAR_CORRELATION and k3[0] > CLEAR_FACTOR * k3[-1]:
        return f"Mismatch falls with {quantity}: mean k3 from {first} to {last}"
    return None


def _subtitle(sample: TokenSample) -> str:
    rows = "" if sample.stride == 1 else f" of one sequence in {sample.stride}"
    return (
        f"{counted(len(sample.positions), 'valid token')}{rows}. Line: mean of the bin; band: middle half of |d|; "
        f"hollow: fewer than {ENOUGH} tokens. Position counts masked tokens, length does not."
    )


def _column(panels: Sequence[Axes], profile: Profile) -> None:
    top, middle, bottom = panels
    heading(top, profile.name)
    places = np.arange(len(profile.labels), dtype=np.float64)
    _mean_abs(top, profile, places)
    _mean_k3(middle, profile, places)
    _counts(bottom, profile, places)
    every = -(-len(places) // MOST_LABELS)
    bottom.set_xticks(places[::every], profile.labels[::every], fontsize=8.5)
    bottom.set_xlim(-0.6, len(places) - 0.4)
    bottom.set_xlabel(profile.axis)


def _mean_abs(axes: Axes, profile: Profile, places: Array) -> None:
    low, high = profile.quartiles()
    axes.errorbar(
        places, (low + high) / 2, yerr=(high - low) / 2, fmt="none", ecolor=SKY, elinewidth=9, alpha=0.45, zorder=2
    )
    _line(axes, profile, profile.mean_abs, places, BLUE)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(power))


def _line(axes: Axes, profile: Profile, values: Array, places: Array, colour: str) -> None:
    drawn = np.isfinite(values)
    axes.plot(places[drawn], values[drawn], color=colour, lw=1.8, zorder=3)
    faces = np.where(profile.counts[drawn] >= ENOUGH, colour, "white")
    axes.scatter(places[drawn], values[drawn], s=34, c=faces, edgecolors=colour, linewidths=1.4, zorder=4)


def _mean_k3(axes: Axes, profile: Profile, places: Array) -> None:
    k3 = profile.mean_k3
    positive = np.where(k3 > 0, k3, np.nan)
    if not np.isfinite(positive).any():
        note(axes, "0 in every bin")
        axes.set_yticks([])
        return
    log_axis(axes, "y")
    _line(axes, profile, positive, places, ORANGE)


def _widen(axes: Axes) -> None:
    """At least a factor of four in view, so that small differences look small."""
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log" and high < 4 * low:
        middle = math.sqrt(low * high)
        axes.set_ylim(middle / 2, middle * 2)


def _counts(axes: Axes, profile: Profile, places: Array) -> None:
    axes.bar(places, profile.counts, width=0.7, color=GREY, zorder=2)
    log_axis(axes, "y")
