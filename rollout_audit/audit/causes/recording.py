"""Values that are not the log-prob of the sampled token: placeholders, another token, tokens nobody sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit.causes.exhibit import Exhibit
from rollout_audit.audit.causes.kinds import UNLIKELY
from rollout_audit.audit.causes.model import Hit
from rollout_audit.audit.causes.sampled import BIG, Flags
from rollout_audit.audit.causes.storage import is_coarse
from rollout_audit.corrections.model import SAFETY_CLAMP
from rollout_audit.dumps.faults import LIKELY_CAUSE
from rollout_audit.errors import amount

__all__ = ["broken_rows", "identical_columns", "mask_too_wide", "placeholder", "synthetic_eos", "top1_recorded"]

IDENTICAL_FROM = 100
EDGE_ROWS, EDGE_SHARE = 3, 0.05
"""So many rows, and such a share of them, must agree before an edge of the mask is called wrong"""
TOP1_TOKENS = 8
MINUS_ONES, AT_ODDS = 5, 0.5
"""Tokens, and the least distance of the other side from −1; beyond the clamp it is an extreme ratio of its own"""
ZEROS_FROM = 8
"""Tokens; fewer zeros may be requests that went wrong"""
BROKEN_AT_MOST = 0.5
STRETCH_TOKENS = 8
"""Big log-ratios of one row that make a bad stretch by themselves"""
MINOR = 0.5
"""Of rows that are broken, exchanged, or have one bad stretch the rarer kind is named if it is half as frequent: a few
rows of each look like the other, and exchanged ones that are too short for a partner like both"""
LAST_SHARE = 0.1
LAST_AGAINST_REST = 10.0


def _faults(exhibit: Exhibit, cause: str) -> tuple[int, str]:
    """How many, and the message of the first."""
    found = [f for f in exhibit.findings if LIKELY_CAUSE.get(f.kind) == cause]
    where = "".join(f" (first: {f.file} row {f.row})" for f in found[:1] if f.row is not None)
    return sum(f.count for f in found), f"{found[0].message}{where}" if found else ""


def placeholder(exhibit: Exhibit) -> Hit | None:
    """Values that stand for 'no log-prob', under a mask of 1."""
    count, first = _faults(exhibit, "placeholder")
    text = f"{amount(count, 'placeholder')} under mask 1: {first}"
    return Hit(text, 0.95, {"values": count}) if count else _minus_ones(exhibit)


def _minus_ones(exhibit: Exhibit) -> Hit | None:
    """−1 here and there, too few in a row to be told from a log-prob by that row alone."""
    rows = exhibit.sample
    sides = ((exhibit.rollout, rows.rollout, rows.training), (exhibit.training, rows.training, rows.rollout))
    for name, values, other in sides:
        gap = np.abs(other + 1.0)
        ones = (values == -1.0) & (gap > AT_ODDS) & (gap <= SAFETY_CLAMP)
        if ones.sum() >= MINUS_ONES and not is_coarse(values[values != -1.0]):
            text = (
                f"{name} is exactly -1 on {int(ones.sum()):,} of {rows.tokens:,} tokens where the other side is "
                f"{_median(other[ones]):.3g} in the middle: a log-prob is that once in ten million"
            )
            return Hit(text, 0.9, {"values": int(ones.sum())})
    return None


def synthetic_eos(exhibit: Exhibit) -> Hit | None:
    """The last token stands apart from all others: the framework appended it, the engine never sampled it."""
    appended, total = int(exhibit.appended.sum()), exhibit.sample.rows
    if appended and appended >= LAST_AGAINST_REST * total * _certain_elsewhere(exhibit):
        trainer = _median(exhibit.sample.training[exhibit.sample.last[exhibit.appended]])
        text = (
            f"the last scored token has rollout log-prob 0.0 in {appended:,} of {total:,} rows "
            f"({appended / total:.0%}), where the trainer gives {trainer:.3g}"
        )
        return Hit(text, 0.95, {"rows": appended, "rows_share": appended / total})
    return _odd_last_tokens(exhibit)


def _certain_elsewhere(exhibit: Exhibit) -> float:
    """Share of the other tokens that the rollout side is certain of and the trainer is not, as a truncation makes."""
    rows = exhibit.sample
    certain = (rows.rollout == 0.0) & (rows.training < -1.0)
    certain[rows.last] = False
    return float(certain.sum() / max(rows.tokens - rows.rows, 1))


def _odd_last_tokens(exhibit: Exhibit) -> Hit | None:
    rows = exhibit.sample
    judged = ~exhibit.kinds.flagged & (rows.lengths > 4)
    if judged.sum() < EDGE_ROWS:
        return None
    others = rows.big & judged[rows.row]
    odd = judged & rows.big[rows.last]
    share = odd.sum() / judged.sum()
    elsewhere = (others.sum() - odd.sum()) / max(rows.lengths[judged].sum() - judged.sum(), 1)
    if odd.sum() < EDGE_ROWS or share < LAST_SHARE or share < LAST_AGAINST_REST * elsewhere:
        return None
    text = (
        f"|d| of the last token exceeds {BIG:g} in {share:.0%} of the rows (median there "
        f"{_median(np.abs(rows.log_ratio[rows.last[odd]])):.3g}) and in {elsewhere:.2%} of the other tokens"
    )
    return Hit(text, 0.7, {"rows": int(odd.sum()), "rows_share": float(share), "share_of_other_tokens": elsewhere})


def identical_columns(exhibit: Exhibit) -> Hit | None:
    """Bit-identical over the whole dump, or over whole steps of it."""
    same = np.maximum(-exhibit.table["min_d"], exhibit.table["max_d"]) == 0.0
    steps = [s for s, its in zip(exhibit.steps, exhibit.rows_of_steps, strict=True) if same[its].all()]
    rows = np.isin(exhibit.table["step"], steps)
    tokens = int(exhibit.table["valid_tokens"][rows].sum())
    if tokens < IDENTICAL_FROM:
        return None
    where = "" if rows.all() else f" in step{'' if len(steps) == 1 else 's'} {', '.join(map(str, steps[:6]))}"
    text = f"{exhibit.training} and {exhibit.rollout} are bit-identical over {tokens:,} tokens{where}"
    return Hit(text, 0.9, {"tokens": tokens, "tokens_share": tokens / exhibit.tokens})


def mask_too_wide(exhibit: Exhibit) -> Hit | None:
    """One stretch of large |d| in many rows, at an end or inside, and agreement outside of it; or zeros, or padding."""
    return _wide_rows(exhibit) or _unsampled(exhibit) or _padding(exhibit)


def _wide_rows(exhibit: Exhibit) -> Hit | None:
    wide, rows = exhibit.kinds.wide, exhibit.sample
    others = exhibit.kinds.broken.sum() + exhibit.kinds.exchanged.sum()
    if _few(wide) or wide.sum() < MINOR * others:
        return None
    place, length = _stretches(exhibit, wide)
    text = (
        f"{int(wide.sum()):,} of {rows.rows:,} rows have one stretch of |d| above {BIG:g} ({place} of the response, "
        f"some {length:.0f} tokens) and agree outside of it"
    )
    return Hit(text, 0.8, {"rows": int(wide.sum()), "rows_share": float(wide.mean()), "tokens": length})


def _unsampled(exhibit: Exhibit) -> Hit | None:
    """Zeros in runs are placeholders first; enough of them say which tokens they stand for."""
    zeros = exhibit.count("zero_placeholder")
    if zeros < ZEROS_FROM:
        return None
    text = (
        f"{zeros:,} tokens under mask 1 have log-prob 0.0 in runs where the other side is below -1: what frameworks "
        "write for tokens that nobody sampled (prompt, tool output)"
    )
    return Hit(text, 0.7, {"tokens": zeros})


def _padding(exhibit: Exhibit) -> Hit | None:
    padded = exhibit.count("constant_tail")
    text = f"no response mask, and constant values in both columns at the end of {amount(padded, 'row')}"
    return Hit(text, 0.6, {"rows": padded}) if padded else None


def _stretches(exhibit: Exhibit, wide: Flags) -> tuple[str, float]:
    """Where most of them stand, and their median length."""
    rows, (first, last) = exhibit.sample, exhibit.kinds.stretch
    at_start = np.mean(first[wide] - rows.starts[wide] <= 2)
    at_end = np.mean(rows.last[wide] - last[wide] <= 2)
    place = "at the start" if at_start > 0.5 else "at the end" if at_end > 0.5 else "in the middle"
    return place, _median(last[wide] - first[wide] + 1.0)


def top1_recorded(exhibit: Exhibit) -> Hit | None:
    """Rollout log-probs that never say 'unlikely' where the trainer does, and agree where it says 'likely'."""
    rows, top1 = exhibit.sample, exhibit.kinds.top1
    inside = top1[rows.row]
    hidden = inside & (rows.training < UNLIKELY)
    if hidden.sum() < TOP1_TOKENS:
        return None
    floor, reach = float(rows.rollout[inside].min()), float(rows.training[inside].min())
    text = (
        f"in {int(top1.sum()):,} of {rows.rows:,} rows log μ never falls below {floor:.2f} while log π reaches "
        f"{reach:.2f}: {int(hidden.sum()):,} tokens that the trainer finds unlikely were likely to the rollout side"
    )
    figures = {"rows": int(top1.sum()), "rollout_floor": floor, "training_floor": reach, "tokens": int(hidden.sum())}
    return Hit(text, 0.9, figures)


def broken_rows(exhibit: Exhibit) -> Hit | None:
    """NaN, null or constant log-probs; or a few rows that are wholly off."""
    count, first = _faults(exhibit, "broken_rows")
    if count:
        return Hit(f"{amount(count, 'fault')} of whole rows or broken logits: {first}", 0.9, {"values": count})
    return _wholly_off(exhibit) or _few_stretches(exhibit)


def _wholly_off(exhibit: Exhibit) -> Hit | None:
    broken, rows = exhibit.kinds.broken, exhibit.sample
    others = exhibit.kinds.wide.sum() + exhibit.kinds.exchanged.sum()
    if not broken.any() or broken.mean() > BROKEN_AT_MOST or broken.sum() < MINOR * others:
        return None
    share = _median(rows.share(rows.big)[broken])
    text = (
        f"{int(broken.sum()):,} of {rows.rows:,} rows are wholly off ({share:.0%} of their tokens with |d| above "
        f"{BIG:g}, {int(exhibit.kinds.constant.sum()):,} of them constant on one side), the others agree; "
        f"first: {exhibit.place(int(np.flatnonzero(broken)[0]))}"
    )
    return Hit(text, 0.85, {"rows": int(broken.sum()), "rows_share": float(broken.mean())})


def _few_stretches(exhibit: Exhibit) -> Hit | None:
    """One bad stretch in rows that are too few for a mask to be at fault, where it costs a limit."""
    kinds, rows = exhibit.kinds, exhibit.sample
    off = kinds.broken | (kinds.wide & (rows.sums(rows.big) >= STRETCH_TOKENS))
    stretched = off & kinds.wide
    if not stretched.any() or not _few(kinds.broken | kinds.wide) or off.mean() > BROKEN_AT_MOST:
        return None
    if off.sum() < MINOR * kinds.exchanged.sum() or not exhibit.past_limits:
        return None
    place, length = _stretches(exhibit, stretched)
    text = (
        f"{int(off.sum()):,} of {rows.rows:,} rows have a stretch of |d| above {BIG:g} ({place} of the response, some "
        f"{length:.0f} tokens), the others agree; first: {exhibit.place(int(np.flatnonzero(off)[0]))}"
    )
    return Hit(text, 0.7, {"rows": int(off.sum()), "rows_share": float(off.mean()), "tokens": length})


def _few(rows: Flags) -> bool:
    """Too few to be a fault of the mask, which is the same for many."""
    return bool(rows.sum() < EDGE_ROWS or rows.mean() < EDGE_SHARE)


def _median(values: NDArray[np.floating[Any]]) -> float:
    return float(np.median(values))
