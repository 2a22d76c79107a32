"""The length trap: at which response length sequence weights saturate or lose most of the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

from rollout_audit.audit.report import LengthBandReport, LengthTrap
from rollout_audit.corrections.model import SAFETY_CLAMP
from rollout_audit.errors import amount
from rollout_audit.statistics.length import LEAST_ESS_SEQ, LEAST_SEQUENCES, LengthFit, length_bands, length_fit
from rollout_audit.statistics.scope import Scope

__all__ = ["length_trap"]

FARTHEST = 10**9
"""Tokens beyond which a length is no length of a response"""

_EQUAL = "never: the two policies give every token the same log-prob"
_FEW = f"fewer than {LEAST_SEQUENCES} responses: their spread cannot be told"
_STILL = "never: no drift of the log weight was measured"
_EVEN = "never: the log weights of equally long responses do not differ"
_FAR = f"past {FARTHEST:,} tokens"


def length_trap(scope: Scope) -> LengthTrap | None:
    """Both lengths with what they follow from; None where there is no valid token."""
    if not scope.tokens:
        return None
    fit, lengths = length_fit(scope.rows), scope.rows["valid_tokens"]
    found, reasons = _lengths(fit)
    return LengthTrap(
        kl_per_token=-fit.drift + 0.0,
        kl_k3=_measured(float(scope.rows["sum_k3"].sum()) / scope.tokens),
        spread_per_token=_measured(fit.independent),
        spread_per_token_squared=_measured(fit.shared),
        unevenness=_measured(fit.unevenness),
        **found,
        mean_length=float(lengths.mean()),
        longest=int(lengths.max()),
        bands=[LengthBandReport(**asdict(band)) for band in length_bands(scope.rows, fit)],
        reasons=reasons,
        sentence=_sentence(fit, found, reasons, int(lengths.max())),
    )


def _lengths(fit: LengthFit) -> tuple[dict[str, int | None], dict[str, str]]:
    """name → first whole length that reaches it, and why there is none."""
    equal = fit.drift == 0.0 and fit.independent == fit.shared == 0.0
    exact = {
        "typical_clamp_length": (fit.typical_length_at(SAFETY_CLAMP), _STILL),
        "clamp_length": (fit.length_at(SAFETY_CLAMP), _STILL),
        "ess_length": (fit.length_at_ess(LEAST_ESS_SEQ), _EVEN),
    }
    reasons = {name: _EQUAL if equal else _why(length, never) for name, (length, never) in exact.items()}
    found = {name: None if reasons[name] else _whole(length) for name, (length, _) in exact.items()}
    return found, {name: reason for name, reason in reasons.items() if reason}


def _why(length: float, never: str) -> str:
    if math.isnan(length):
        return _FEW
    if math.isinf(length):
        return never
    return _FAR if length > FARTHEST else ""


def _whole(length: float) -> int:
    """The first whole length, where rounding may have lifted one that is whole already."""
    return max(1, math.ceil(length * (1.0 - 1e-12)))


def _measured(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sentence(fit: LengthFit, found: dict[str, int | None], reasons: dict[str, str], longest: int) -> str:
    if _EQUAL in reasons.values():
        return "Length trap: none, the two policies give every token the same log-prob."
    return f"Length trap at k1 {-fit.drift:.3g} a token: {'; '.join(_parts(found, reasons, longest))}."


def _parts(found: dict[str, int | None], reasons: dict[str, str], longest: int) -> Iterator[str]:
    clamp, typical, ess = (found[name] for name in ("clamp_length", "typical_clamp_length", "ess_length"))
    half = "" if typical is None else f" (a typical response at {typical:,})"
    if clamp is not None:
        yield f"sequence weights reach the ±{SAFETY_CLAMP:g} clamp from {amount(clamp, 'token')}{half}"
    elif typical is not None:
        yield f"a typical sequence weight reaches the ±{SAFETY_CLAMP:g} clamp at {amount(typical, 'token')}"
    if ess is not None:
        yield f"ess_seq falls under {LEAST_ESS_SEQ:g} from {ess:,}"
    else:
        yield f"ess_seq under {LEAST_ESS_SEQ:g}: {reasons['ess_length']}"
    yield f"the longest response has {longest:,}"
