"""A recommendation in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollout_audit.audit.advice import Candidate
from rollout_audit.audit.limits import Limit

__all__ = ["bound_text", "broken_text", "none_needed", "nothing_meets", "recommended", "refused"]

Number = float | int | None


def none_needed(raw: Mapping[str, Number]) -> str:
    return (
        f"None needed: the raw token weights keep an ess of {_shown(raw['ess'])}, k3 is {_shown(raw['kl_k3'])}, "
        "and no health rule of the mismatch is broken in any step."
    )


def recommended(past_limit: Sequence[str], preset: Candidate | None, point: Candidate | None) -> str:
    past = f"{', '.join(past_limit)} past the limit"
    if preset is None:
        assert point is not None
        return f"{past}: no preset suffices; of all thresholds tried, {point.formula} does, as the mildest."
    of_sweep = "" if point is None else f"; of all thresholds tried, {point.formula}"
    return f"{past}: the mildest preset that suffices is {preset.name} ({preset.formula}){of_sweep}."


def nothing_meets(
    past_limit: Sequence[str], nearest: Candidate | None, relax: Sequence[str], trainer: str | None = None
) -> str:
    """`trainer`: the one that has no settings for some of the candidates."""
    past = f"{', '.join(past_limit)} past the limit, and nothing meets the limits"
    if nearest is None:
        named = f"{trainer} has settings for none of them"
        return f"{past}: {named if trainer else 'no correction leaves a figure to judge'}."
    name = nearest.name if nearest.source == "preset" else nearest.formula
    relaxed = f"; {' '.join(relax)} would admit it" if relax else ""
    return f"{past}. Nearest: {name} ({'; '.join(nearest.why_not)}){relaxed}."


def refused(refusals: Sequence[str]) -> str:
    kinds = ", ".join(dict.fromkeys(text.partition(":")[0] for text in refusals))
    return f"No recommendation: {kinds}. Mend the recording first; a correction chosen by such figures hides the fault."


def broken_text(limit: Limit, bound: float, value: Number) -> str:
    """`masked_fraction 0.956 > 0.1`, in as many digits as it takes to see that it is."""
    if value is None:
        return f"{limit.key} could not be computed"
    sign = "<" if limit.comparison == "≥" else ">"
    least = bound_text(bound)
    texts = [f"{value:.{digits}g}" for digits in range(3, 18)]
    told = (text for text in texts if (float(text) < float(least) if sign == "<" else float(text) > float(least)))
    return f"{limit.key} {next(told, texts[0])} {sign} {least}"


def bound_text(bound: float) -> str:
    """In three digits, or as it was stated where that takes up to six."""
    stated = (text for digits in range(3, 7) if float(text := f"{bound:.{digits}g}") == bound)
    return next(stated, f"{bound:.3g}")


def _shown(value: Number) -> str:
    return "past the largest float" if value is None else f"{value:.3g}"
