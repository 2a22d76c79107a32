"""What `recommend` answers, as plain data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rollout_audit.audit.report import Figures, Number, Strict

__all__ = ["Candidate", "LimitReport", "Recommendation", "Verdict"]

Verdict = Literal["none needed", "recommended", "nothing meets the limits", "refused"]


class LimitReport(Strict):
    """One limit that candidates are held to."""

    key: str
    option: str
    comparison: Literal["≥", "≤"]
    bound: float
    default: float
    reason: str


class Candidate(Strict):
    """A correction held against the limits."""

    name: str = Field(description="the preset, or the family of a point of the sweep")
    alike: list[str] = Field(default=[], description="other presets that come to the same on this dump")
    source: Literal["preset", "sweep"]
    formula: str
    settings: dict[str, str | float | None] = Field(description="level, bound, lower, upper, rule and its bounds")
    meets: bool
    distance: Number = Field(description="from doing nothing; null where no token is kept")
    figures: Figures
    why_not: list[str] = Field(description="each limit that it does not keep, with its figure")
    config: dict[str, Any] | None = Field(default=None, description="of --for: that trainer's settings, nested")
    syntax: str | None = Field(default=None, description="of --for: how that trainer takes them")
    fine_print: list[str] = Field(default=[], description="of --for: where that trainer does not quite the same")


class Recommendation(Strict):
    """Which correction suffices at the least change, and why the others do not."""

    verdict: Verdict
    sentence: str
    mode: Literal["decoupled", "bypass"]
    limits: list[LimitReport]
    raw: Figures = Field(description="before any correction: ess of the raw token weights, ess_seq of the product ones")
    past_limit: list[str] = Field(description="health rules of the mismatch that are broken, pooled or in a step")
    mildest_preset: Candidate | None
    mildest_point: Candidate | None = Field(description="of all thresholds of the sweep")
    ranked: list[Candidate] = Field(description="those that keep all limits, mildest first; of the sweep one a family")
    failing: list[Candidate] = Field(description="presets that do not, nearest first")
    relax: list[str] = Field(description="where nothing keeps the limits: which to relax, and to what, for the nearest")
    refusals: list[str] = Field(description="faults that must be mended before any correction is chosen")
    trainer: str | None = Field(default=None, description="whose settings the ranking is restricted to (--for)")
    inexpressible: int = Field(default=0, description="candidates that this trainer has no settings for")
    notes: list[str]
