"""The metrics over training steps, each against its health limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rollout_audit.audit.report import Report, StepReport
from rollout_audit.reports.plots.panels import MARKERS_UP_TO, Panel, Track, draw_over_steps, draw_single, finite
from rollout_audit.reports.plots.stories import limit_story, step_story
from rollout_audit.reports.plots.style import BLUE, GREEN, ORANGE, PURPLE, RED, new_figure
from rollout_audit.reports.plots.wording import counted, plain

__all__ = ["draw"]

Array = NDArray[np.float64]
Figures = Mapping[str, float | int | None]

PANEL_HEIGHT = 1.5
STRIP_HEIGHT = 0.56
REFRESHES_SHOWN = 60


def draw(report: Report) -> Figure | None:
    """Weights, ess, removals, KL estimators, perplexity ratio and χ² of every step; of a single step as gauges."""
    if not report.steps:
        return None
    recorded = _Steps(report)
    return _gauges(recorded) if len(report.steps) == 1 else _small_multiples(recorded)


@dataclass(frozen=True)
class _Steps:
    """The figures of every step as arrays."""

    report: Report

    @cached_property
    def numbers(self) -> Array:
        return np.array([step.step for step in self.report.steps], dtype=np.float64)

    @cached_property
    def ages(self) -> Array:
        return _column([step.policy_age for step in self.report.steps])

    @property
    def refreshes(self) -> list[float]:
        """Steps at which the sampler is younger than at the step before."""
        younger = np.diff(self.ages) < 0
        found = self.numbers[1:][younger].tolist()
        return found if len(found) <= REFRESHES_SHOWN else []

    def mismatch(self, metric: str) -> Array:
        return _column([step.metrics.get(metric) for step in self.report.steps])

    def kept(self, metric: str) -> Array:
        return _column([_kept(step, self.report.settings.reference).get(metric) for step in self.report.steps])

    def raw(self, metric: str) -> Array:
        reference = self.report.settings.reference
        return _column([step.corrections[reference].raw.get(metric) for step in self.report.steps])

    def gap(self, metric: str) -> str:
        """Why a metric is null where it is."""
        reasons = (step.reasons[metric] for step in self.report.steps if metric in step.reasons)
        return next(reasons, "not computed")


def _column(values: Sequence[float | int | None]) -> Array:
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


def _kept(step: StepReport, reference: str) -> Figures:
    correction = step.corrections.get(reference)
    return {} if correction is None else correction.kept


def _panels(steps: _Steps) -> Iterator[Panel]:
    k3, k1 = steps.mismatch("kl_k3"), np.abs(steps.mismatch("kl_k1"))
    positive = np.concatenate([[0.01], k3[k3 > 0], k1[k1 > 0]])
    kl = (Track("k3", "kl_k3", k3, BLUE), Track("|k1|", "kl_k1", k1, ORANGE, "dashed"))
    yield Panel("KL(μ‖π), nats per token", kl, (float(positive.min()), 0.4), log="log", gap=steps.gap("kl_k3"))
    ppl = Track("", "ppl_ratio", steps.mismatch("ppl_ratio"), BLUE)
    yield Panel("Perplexity ratio, π / μ", (ppl,), (0.925, 1.075), 1.0, gap=steps.gap("ppl_ratio"))
    yield from _weight_panels(steps)
    chi2 = steps.mismatch("chi2_token")
    log: Literal["log", "linear"] = "log" if len(finite(chi2)) and (finite(chi2) > 0).all() else "linear"
    low = float(min(0.1, *finite(chi2))) if log == "log" else 0.0
    yield Panel(
        "χ² of token ratios", (Track("", "chi2_token", chi2, BLUE),), (low, 6.0 if log == "log" else 1.6),
        log=log, gap=steps.gap("chi2_token"),
    )  # fmt: skip


def _weight_panels(steps: _Steps) -> Iterator[Panel]:
    kept = Track("kept", "ess", steps.kept("ess"), BLUE)
    raw = Track("raw", "ess", steps.raw("ess"), ORANGE, "dashed")
    none = "no token kept"
    yield Panel("Effective sample size, share", (kept, raw), (0.0, 1.0), 1.0, gap=none)
    mean = Track("", "weight_mean", steps.kept("weight_mean"), BLUE)
    yield Panel("Weight mean, kept", (mean,), (0.2, 2.4), 1.0, gap=none)
    masked = Track("", "masked_fraction", steps.kept("masked_fraction"), BLUE)
    yield Panel("Tokens masked, share", (masked,), (0.0, 0.42), gap=none)
    veto = Track("", "veto_fraction", steps.mismatch("veto_fraction"), RED)
    yield Panel("Sequences with a token of ρ < 1e-4 (veto)", (veto,), (0.0, 0.14), gap=steps.gap("veto_fraction"))


def _context_panels(steps: _Steps) -> Iterator[Panel]:
    """What may explain the rest, where it is recorded."""
    if len(finite(steps.ages)):
        top = float(finite(steps.ages).max())
        track = Track("", "policy_age", steps.ages, GREEN)
        yield Panel("Sampler's age, updates", (track,), (0.0, max(1.0, top)), None, gap="not recorded")
    rewards = _column([step.reward_mean for step in steps.report.steps])
    if len(finite(rewards)):
        low, high = float(finite(rewards).min()), float(finite(rewards).max())
        span = (min(0.0, low), high if high > low else low + 1)
        yield Panel("Reward, mean", (Track("", "reward", rewards, PURPLE),), span, None, gap="not recorded")
    lengths = _column([step.mean_tokens for step in steps.report.steps])
    longest = float(max(finite(lengths), default=1.0))
    yield Panel("Response length, valid tokens", (Track("", "mean_tokens", lengths, GREEN),), (0.0, longest), None)


def _small_multiples(steps: _Steps) -> Figure:
    panels = [*_panels(steps), *_context_panels(steps)]
    rows = len(panels) // 2
    figure = new_figure(PANEL_HEIGHT * rows + 0.3, step_story(steps.report), _subtitle(steps))
    grid = figure.subplots(rows, 2, sharex=True, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        draw_over_steps(axes, panel, steps.numbers, steps.refreshes)
    for axes in grid[-1]:
        axes.set_xlabel("training step")
    return figure


def _subtitle(steps: _Steps) -> str:
    report = steps.report
    refreshed = " Dotted lines: the sampler was refreshed." if steps.refreshes else ""
    many = " Bold: running median." if len(report.steps) > MARKERS_UP_TO else ""
    return (
        f"{counted(len(report.steps), 'step')}, {counted(report.counts.valid_tokens, 'valid token')}. Weights are "
        f"those of {plain(report.settings.reference, 40)}. Shaded: past a health limit.{refreshed}{many}"
    )


def _gauges(steps: _Steps) -> Figure:
    panels = [single for panel in _panels(steps) for single in _split(panel)]
    title = limit_story([(p.tracks[0].metric, [float(t.values[0]) for t in p.tracks]) for p in panels])
    figure = new_figure(STRIP_HEIGHT * len(panels) + 0.35, title, _single_subtitle(steps.report))
    grid = figure.subplots(len(panels), 1, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=True):
        draw_single(axes, panel)
    return figure


def _split(panel: Panel) -> Iterator[Panel]:
    """One panel a metric: a scale has the limits of one."""
    metrics = dict.fromkeys(track.metric for track in panel.tracks)
    for metric in metrics:
        tracks = tuple(track for track in panel.tracks if track.metric == metric)
        if len(metrics) > 1:
            tracks = (replace(tracks[0], label="", dashed="solid"),)
        yield replace(panel, name=_SINGLE[metric], tracks=tracks)


_SINGLE = {
    "kl_k3": "KL by k3, nats",
    "kl_k1": "|KL by k1|, nats",
    "ppl_ratio": "Perplexity ratio",
    "ess": "Effective sample size",
    "weight_mean": "Weight mean, kept",
    "masked_fraction": "Tokens masked",
    "veto_fraction": "Veto: some ρ < 1e-4",
    "chi2_token": "χ² of token ratios",
}


def _single_subtitle(report: Report) -> str:
    step = report.steps[0]
    return (
        f"Step {step.step}: {counted(step.valid_tokens, 'valid token')} in {counted(step.sequences, 'sequence')}. "
        f"Weights are those of {plain(report.settings.reference, 40)}. Yellow: past a warning limit; red: critical."
    )
