"""The length trap: the log weight of each response against its length, and the lengths at which it stops working."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rollout_audit.audit.report import LengthTrap, Report
from rollout_audit.corrections.model import SAFETY_CLAMP
from rollout_audit.reports.plots.evidence import pictures_of
from rollout_audit.reports.plots.style import (
    BLUE,
    GREY,
    HALO,
    INK,
    ORANGE,
    SMALL,
    ZONE_INK,
    heading,
    log_axis,
    new_figure,
    note,
)
from rollout_audit.reports.plots.wording import counted, first_fitting
from rollout_audit.statistics.length import DEVIATIONS, LEAST_ESS_SEQ, LengthFit

__all__ = ["draw"]

Array = NDArray[np.float64]
Side = Literal["left", "right"]

FLOOR = 1e-3
"""The least |Σd| that is drawn; smaller ones stand there"""
POINTS = 200
ROOM_RIGHT = 3.2
"""How far the axis reaches past the last mark, for its name"""
ROOM_LEFT = 3
"""Tokens from which a name fits on the left of its mark"""
FARTHEST_DRAWN = 300.0
"""How many times the longest response the axis reaches at most"""


def draw(report: Report) -> Figure | None:
    """Left |Σd| with the clamp and the fitted growth, right ess_seq by length."""
    pictures, trap = pictures_of(report), report.length_trap
    if pictures is None or trap is None:
        return None
    tokens = np.asarray(pictures.sequences["valid_tokens"], dtype=np.float64)
    total = np.abs(np.asarray(pictures.sequences["sum_d"], dtype=np.float64))
    figure = new_figure(3.7, _finding(trap), _subtitle(report, trap))
    growth, ess = figure.subplots(1, 2)
    right = _right_end(trap)
    _draw_growth(growth, tokens[tokens > 0], total[tokens > 0], trap, right)
    _draw_ess(ess, trap, right)
    return figure


def _finding(trap: LengthTrap) -> str:
    if trap.ess_length == 1:
        return "Sequence weights keep less than 30% of the batch at any length"
    if trap.ess_length is not None:
        text = f"Sequence weights keep 30% of the batch up to {counted(trap.ess_length - 1, 'token')}"
        return first_fitting([f"{text}; the longest has {trap.longest:,}", text])
    if trap.clamp_length is not None:
        return f"Sequence weights reach the ±20 clamp at {counted(trap.clamp_length, 'token')}"
    if trap.typical_clamp_length is not None:
        return f"A typical sequence weight reaches the ±20 clamp at {counted(trap.typical_clamp_length, 'token')}"
    return "No length trap: the policies give every token the same log-prob"


def _subtitle(report: Report, trap: LengthTrap) -> str:
    return (
        f"{counted(report.counts.scored_sequences, 'response')}; k1 {trap.kl_per_token:.3g} a token. Left: size of the "
        f"log weight of each. Bold: mean + {DEVIATIONS:g} standard deviations, dashed: mean, as fitted. Right: bold: "
        "ess_seq expected of very many responses of one length; dots: observed in bands, few flatter themselves."
    )


def _right_end(trap: LengthTrap) -> float:
    marked = [trap.clamp_length, trap.typical_clamp_length, trap.ess_length]
    most = max([float(trap.longest), *(float(n) for n in marked if n is not None)])
    return ROOM_RIGHT * min(most, max(FARTHEST_DRAWN * trap.longest, 10.0))


def _fit(trap: LengthTrap) -> LengthFit:
    a, b, u = (
        math.nan if x is None else x for x in (trap.spread_per_token, trap.spread_per_token_squared, trap.unevenness)
    )
    return LengthFit(-trap.kl_per_token, a, b, u)


def _lengths(axes: Axes, right: float) -> Array:
    axes.set_xlim(0.8, right)
    log_axis(axes, "x")
    axes.set_xlabel("valid tokens of a response")
    return np.geomspace(0.8, right, POINTS)


def _draw_growth(axes: Axes, tokens: Array, total: Array, trap: LengthTrap, right: float) -> None:
    heading(axes, "|Σd| of a response", (("responses", BLUE),))
    n, fit = _lengths(axes, right), _fit(trap)
    mean = np.abs(np.asarray(fit.mean(n)))
    far = mean + DEVIATIONS * np.sqrt(np.asarray(fit.variance(n)))
    low = min(max(FLOOR, float(np.quantile(total, 0.02)) / 2), SAFETY_CLAMP / 4)
    axes.set_ylim(low, max(4 * SAFETY_CLAMP, 1.5 * float(total.max())))
    log_axis(axes, "y")
    axes.plot(
        tokens,
        np.maximum(total, low),
        ls="",
        marker="o",
        ms=3.5,
        color=BLUE,
        alpha=0.45,
        mew=0,
        label="rows",
        clip_on=False,
    )
    if fit.drift:
        axes.plot(n, np.where(mean > low, mean, np.nan), color=INK, lw=1.2, ls="dashed", label="mean")
    if np.isfinite(far).all() and far.any():
        axes.plot(n, np.where(far > low, far, np.nan), color=INK, lw=2.0, label="far")
    axes.axhline(SAFETY_CLAMP, color=ZONE_INK["critical"], lw=1.2)
    axes.annotate(
        "±20 clamp", (0.9, SAFETY_CLAMP), xytext=(0, 3), textcoords="offset points", fontsize=SMALL,
        color=ZONE_INK["critical"], path_effects=HALO,
    )  # fmt: skip
    _mark(axes, trap.clamp_length, right, 0.03, side="left")
    _mark(axes, trap.typical_clamp_length, right, 0.03, word="typical\n")


def _draw_ess(axes: Axes, trap: LengthTrap, right: float) -> None:
    heading(axes, "ess_seq by length", (("observed", ORANGE),))
    fit = _fit(trap)
    if not np.isfinite(fit.independent):
        axes.set_axis_off()
        note(axes, "too few responses to tell their spread")
        return
    n = _lengths(axes, right)
    axes.set_ylim(0, 1.05)
    axes.plot(n, fit.ess_seq(n), color=INK, lw=2.0, label="expected")
    x = [band.mean_length for band in trap.bands]
    spans = [[m - band.shortest, band.longest - m] for m, band in zip(x, trap.bands, strict=True)]
    axes.errorbar(
        x, [band.ess_seq for band in trap.bands], xerr=np.transpose(spans), fmt="o", ms=6, color=ORANGE, lw=1.4,
        ecolor=ORANGE, mec=INK, mew=0.5, zorder=4, label="observed",
    )  # fmt: skip
    axes.axhline(LEAST_ESS_SEQ, color=ZONE_INK["critical"], lw=1.2)
    axes.annotate(
        f"critical < {LEAST_ESS_SEQ:g}", (0.9, LEAST_ESS_SEQ), xytext=(0, -3), textcoords="offset points",
        fontsize=SMALL, color=ZONE_INK["critical"], va="top", path_effects=HALO,
    )  # fmt: skip
    _mark(axes, trap.ess_length, right, 0.9)


def _mark(axes: Axes, length: int | None, right: float, height: float, *, word: str = "", side: Side = "right") -> None:
    """An upright line at a length, with its number beside it; at the left end there is room on the right alone."""
    if length is None:
        return
    if length > right:
        axes.annotate(
            f"{word.strip()} {length:,} →", (0.99, height), xycoords="axes fraction", ha="right", fontsize=SMALL,
            color=GREY, path_effects=HALO,
        )  # fmt: skip
        return
    axes.axvline(length, color=INK, lw=1.0, ls="dotted")
    left = side == "left" and length > ROOM_LEFT
    axes.annotate(
        f"{word}{length:,}", (length, height), xycoords=("data", "axes fraction"), xytext=(-4 if left else 4, 0),
        textcoords="offset points", ha="right" if left else "left", fontsize=SMALL, color=INK, path_effects=HALO,
        zorder=5,
    )  # fmt: skip
