"""What rejection does to the batch that is left: its rewards and the length of its responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from rollout_audit.audit.report import Report
from rollout_audit.reports.plots.evidence import in_line, pictures_of
from rollout_audit.reports.plots.named import legend, mark_at, marks
from rollout_audit.reports.plots.style import (
    BLUE,
    GREEN,
    GREY,
    HALO,
    ORANGE,
    PURPLE,
    SMALL,
    heading,
    new_figure,
)
from rollout_audit.reports.plots.wording import counted, first_fitting, percent, short
from rollout_audit.reports.plots.zones import paint_zones, zones

__all__ = ["Path", "draw", "paths"]

Array = NDArray[np.float64]

FAMILIES = {
    "seq_sum_k1": ("product ratio", BLUE, "solid"),
    "seq_mean_k1": ("geometric mean", ORANGE, "dashed"),
    "seq_mean_k3": ("mean k3", GREEN, "dashdot"),
    "seq_max_k2": ("largest k2", PURPLE, "dotted"),
}
COMPARED_AT = 0.3
"""Share masked at which the title compares"""
LEAST_CHANGE = 0.02


@dataclass(frozen=True)
class Path:
    """One family of sequence rules, from the threshold that masks nothing to the tightest."""

    masked: Array
    reward: Array
    length: Array

    def at(self, share: float, values: Array) -> float | None:
        """The value at the loosest threshold that masks at least so much; None where none does."""
        reached = np.flatnonzero((self.masked >= share) & np.isfinite(values))
        return float(values[reached[0]]) if len(reached) else None


def paths(sweep: Mapping[str, object]) -> dict[str, Path]:
    """The families that are there, by growing share masked."""
    families = np.where(in_line(sweep), np.asarray(sweep["family"]), "")
    columns = ("masked_fraction", "kept_reward_mean", "kept_length_mean")
    found = {}
    for name in FAMILIES:
        masked, reward, length = (np.asarray(sweep[c], dtype=np.float64)[families == name] for c in columns)
        order = np.argsort(masked, kind="stable")
        if np.isfinite(length).any():
            found[name] = Path(masked[order], reward[order], length[order])
    return found


def draw(report: Report) -> Figure | None:
    """Mean reward and mean length of what four families of rules keep, against the tokens that they mask."""
    pictures = pictures_of(report)
    if pictures is None or pictures.sweep is None:
        return None
    found = paths(pictures.sweep)
    if not found:
        return None
    whole = _whole(pictures.sequences)
    rewards = any(np.isfinite(path.reward).any() for path in found.values())
    named = [mark for mark in marks(report) if mark.kept("masked_fraction") > 0]
    remark = "" if rewards else "No rewards recorded. "
    figure = new_figure(3.6, _finding(found, whole), f"{_subtitle(report, remark)}{legend(named)}")
    panels = list(figure.subplots(1, 2 if rewards else 1, squeeze=False).flat)
    for mark in named:
        if mark.correction.kept_length_mean is not None:
            mark_at(panels[-1], mark, mark.kept("masked_fraction"), mark.correction.kept_length_mean)
    _panel(panels[-1], "Mean length kept", {n: (p.masked, p.length) for n, p in found.items()}, whole["length"])
    panels[-1].set_ylabel("valid tokens a response")
    if rewards:
        _panel(panels[0], "Mean reward kept", {n: (p.masked, p.reward) for n, p in found.items()}, whole["reward"])
        panels[0].set_ylabel("reward")
        for mark in named:
            mark_at(panels[0], mark, mark.kept("masked_fraction"), mark.kept("kept_reward_mean"))
    return figure


def _whole(sequences: Mapping[str, object]) -> dict[str, float]:
    """Means over the responses with a valid token, NaN where not recorded."""
    tokens = np.asarray(sequences["valid_tokens"], dtype=np.float64)
    reward = np.asarray(sequences.get("reward", np.full(len(tokens), np.nan)), dtype=np.float64)
    known = reward[np.isfinite(reward) & (tokens > 0)]
    return {
        "reward": float(known.mean()) if len(known) else float("nan"),
        "length": float(tokens[tokens > 0].mean()) if (tokens > 0).any() else float("nan"),
    }


def _finding(found: Mapping[str, Path], whole: Mapping[str, float]) -> str:
    """The family that changes the length of what is kept most."""
    kept = {name: path.at(COMPARED_AT, path.length) for name, path in found.items()}
    changes = {name: length / whole["length"] - 1.0 for name, length in kept.items() if length is not None}
    if not changes:
        return "Rejection changes neither the length nor the rewards of what is kept"
    name = max(changes, key=lambda n: abs(changes[n]))
    if abs(changes[name]) < LEAST_CHANGE:
        return f"At {percent(COMPARED_AT)} masked no rule changes the mean length by more than {percent(LEAST_CHANGE)}"
    word = "shortens" if changes[name] < 0 else "lengthens"
    lengths = f"{short(whole['length'], 3)} → {short(kept[name], 3)} tokens"
    text = f"Rejection by {FAMILIES[name][0]} {word} what is kept: {lengths}"
    return first_fitting([f"{text} at {percent(COMPARED_AT)}", text])


def _subtitle(report: Report, remark: str) -> str:
    return (
        f"{counted(report.counts.scored_sequences, 'response')}, the dump as one batch; each point along a line is one "
        f"threshold. {remark}Thin line: all responses. A rule that follows length changes what is trained on. "
        "Shaded: past a health limit."
    )


def _panel(axes: Axes, title: str, lines: Mapping[str, tuple[Array, Array]], whole: float) -> None:
    heading(axes, title)
    drawn = {name: (x, y) for name, (x, y) in lines.items() if np.isfinite(y).any()}
    values = np.concatenate([y[np.isfinite(y)] for _, y in drawn.values()] + [np.array([whole])])
    room = 0.08 * (values.max() - values.min()) or 0.05 * max(abs(whole), 1.0)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(values.min() - room, values.max() + 3.0 * room)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("tokens masked")
    paint_zones(axes, zones("masked_fraction"), "x")
    axes.axhline(whole, color=GREY, lw=0.9, zorder=1.5)
    axes.annotate(
        f"all: {short(whole, 3)}", (1.0, whole), xytext=(0, 3), textcoords="offset points", ha="right", va="bottom",
        fontsize=SMALL, color=GREY, path_effects=HALO, zorder=4,
    )  # fmt: skip
    for name, (x, y) in drawn.items():
        word, colour, style = FAMILIES[name]
        mark = "o" if np.isfinite(y).sum() == 1 else ""
        axes.plot(x, y, color=colour, lw=1.8, ls=style, marker=mark, ms=5, label=word, zorder=3)
    key = axes.legend(loc="upper left", fontsize=SMALL, ncols=2, handlelength=2.6, borderaxespad=0.2)
    key.get_frame().set(facecolor="white", edgecolor="none", alpha=0.85)
