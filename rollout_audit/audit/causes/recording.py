"""Values that are not the log-prob of the sampled token: placeholders, another token, tokens nobody sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit.causes.exhibit import Exhibit
from rollout_audit.audit.causes.kinds import SINGLE_ROWS, UNLIKELY
from rollout_audit.audit.causes.model import Hit
from rollout_audit.audit.causes.sampled import BIG, EDGE
from rollout_audit.audit.causes.storage import is_coarse
from rollout_audit.audit.causes.stretches import Stretches, stretches_of
from rollout_audit.corrections.model import SAFETY_CLAMP
from rollout_audit.dumps.faults import LIKELY_CAUSE
from rollout_audit.errors import amount

__all__ = ["broken_rows", "identical_columns", "mask_too_wide", "placeholder", "synthetic_eos", "top1_recorded"]

IDENTICAL_FROM = 100
TOP1_TOKENS = 8
MINUS_ONES, AT_ODDS = 5, 0.5
"""Tokens, and the least distance of the other side from −1; beyond the clamp it is an extreme ratio of its own"""
ZEROS_FROM = 8
"""Tokens; fewer zeros may be requests that went wrong"""
PADDED_AGAINST_REST = 2.0
"""Factor by which rows repeat their last token oftener than those of their first quarter"""
MINOR = 0.5
"""Of rows that are broken, exchanged, or have one bad stretch the rarer kind is named if it is half as frequent: a few
rows of each look like the other, and exchanged ones that are too short for a partner like both"""


def _faults(exhibit: Exhibit, cause: str) -> tuple[int, str]:
    """How many, and the message of the first."""
    found = [f for f in exhibit.findings if LIKELY_CAUSE.get(f.kind) == cause]
    where = "".join(f" (first: {f.file} row {f.row})" for f in found[:1] if f.row is not None)
    return sum(f.count for f in found), f"{found[0].message}{where}" if found else ""


def placeholder(exhibit: Exhibit) -> Hit | None:
    """Values that stand for 'no log-prob', under a mask of 1."""
    count, first = _faults(exhibit, "placeholder")
    if not count:
        return _minus_ones(exhibit)
    text, confidence = f"{amount(count, 'placeholder')} under mask 1: {first}", 0.95
    if exhibit.count("zero_placeholder") == count and exhibit.kinds.exchanged.any():
        text += "; padded rows that stand in another order end in such zeros too, and some do stand so"
        confidence = 0.5
    return Hit(text, confidence, {"values": count})


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
    appended, rows = exhibit.appended, exhibit.sample
    if not appended.any():
        return _odd_last_tokens(exhibit)
    count, last = int(appended.sum()), rows.last[appended]
    said = "0.0" if not rows.rollout[last].any() else f"{_median(rows.rollout[last]):.2g}"
    text = (
        f"the last scored token has rollout log-prob {said} in {count:,} of {rows.rows:,} rows "
        f"({count / rows.rows:.0%}), where the trainer gives {_median(rows.training[last]):.3g}"
    )
    return Hit(text, 0.95, {"rows": count, "rows_share": count / rows.rows})


def _odd_last_tokens(exhibit: Exhibit) -> Hit | None:
    rows, odd = exhibit.sample, exhibit.odd_last
    if not odd.any():
        return None
    judged = ~exhibit.kinds.flagged
    share, elsewhere = float(odd.sum() / judged.sum()), exhibit.share_before_last(rows.big)
    text = (
        f"|d| of the last token exceeds {BIG:g} in {share:.0%} of the rows (median there "
        f"{_median(np.abs(rows.log_ratio[rows.last[odd]])):.3g}) and in {elsewhere:.2%} of the other tokens"
    )
    return Hit(text, 0.7, {"rows": int(odd.sum()), "rows_share": share, "share_of_other_tokens": elsewhere})


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
    return _wide_rows(exhibit) or _unsampled(exhibit) or _odd_edges(exhibit) or _padding(exhibit)


def _wide_rows(exhibit: Exhibit) -> Hit | None:
    """Where only one side is off, most rows must have it."""
    found, kinds = stretches_of(exhibit), exhibit.kinds
    others = kinds.broken.sum() + kinds.exchanged.sum()
    if found is None or _is_spoilt(found) or found.rows.sum() < MINOR * others:
        return None
    share = float(found.rows.mean())
    figures = {"rows": int(found.rows.sum()), "rows_share": share, "tokens": found.tokens}
    return Hit(found.text, 0.8 if found.side is None else 0.6, figures)


def _is_spoilt(found: Stretches) -> bool:
    """One side went wrong in some of the rows, on tokens that the other one finds ordinary."""
    return found.side is not None and bool(found.rows.mean() <= SINGLE_ROWS)


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


def _odd_edges(exhibit: Exhibit) -> Hit | None:
    """A token or two that the mask takes in at its edge: too few to be a stretch, but in many rows."""
    rows, odd = exhibit.sample, exhibit.odd_edges
    if not odd.any():
        return None
    count = len(np.unique(rows.row[odd]))
    elsewhere = exhibit.share_before_last(rows.big | rows.certain, rows.edges)
    at_start = np.mean(rows.position[odd] < EDGE) > 0.5
    where = "at the start of the response" if at_start else "beside gaps in the mask"
    said = f"; {exhibit.rollout} is 0.0 there" if not rows.rollout[odd].any() else ""
    text = (
        f"{count:,} of {rows.rows:,} rows are off on a token or two {where} (median |d| "
        f"{_median(np.abs(rows.log_ratio[odd])):.3g}{said}), which {elsewhere:.2%} of the other tokens are"
    )
    return Hit(text, 0.75, {"rows": count, "rows_share": count / rows.rows, "tokens": int(odd.sum())})


def _padding(exhibit: Exhibit) -> Hit | None:
    """Unless log-probs take so few values that any two neighbours may be equal, or 0.0 on both sides is a token."""
    rows = exhibit.sample
    padded = exhibit.count("constant_tail") - _rows_that_end_sure(exhibit)
    early = np.flatnonzero(np.arange(rows.tokens) - rows.starts[rows.row] < rows.lengths[rows.row] // 4)
    equal = [side[early] == side[early + 1] for side in (rows.training, rows.rollout)]
    chance = float(np.mean(equal[0] & equal[1])) if len(early) else 0.0
    if padded <= 0 or padded < PADDED_AGAINST_REST * chance * len(exhibit.table["step"]):
        return None
    text = f"no response mask, and constant values in both columns at the end of {amount(padded, 'row')}"
    return Hit(text, 0.6, {"rows": padded})


def _rows_that_end_sure(exhibit: Exhibit) -> int:
    """Rows whose last two tokens are 0.0 on both sides, where such tokens stand before others too: no padding does."""
    rows = exhibit.sample
    sure = (rows.training == 0.0) & (rows.rollout == 0.0)
    inside = sure[:-1] & ~sure[1:] & (np.diff(rows.row) == 0)
    last = rows.last[rows.lengths > 1]
    return int((sure[last] & sure[last - 1]).sum()) if inside.any() else 0


def top1_recorded(exhibit: Exhibit) -> Hit | None:
    """Log-probs of one side never say 'unlikely' where the other's do, and agree where those say 'likely'."""
    hits = [hit for side in ("rollout", "training") if (hit := _top1_of(exhibit, side)) is not None]
    return max(hits, key=lambda hit: hit.figures["tokens"], default=None)


def _top1_of(exhibit: Exhibit, side: str) -> Hit | None:
    rows, top1 = exhibit.sample, exhibit.kinds.top1_of[side]
    (name, told), (other, drawn) = (exhibit.rollout, rows.rollout), (exhibit.training, rows.training)
    if side == "training":
        name, told, other, drawn = other, drawn, name, told
    inside = top1[rows.row]
    hidden = inside & (drawn < UNLIKELY)
    if hidden.sum() < TOP1_TOKENS:
        return None
    floor, reach = float(told[inside].min()), float(drawn[inside].min())
    text = (
        f"in {int(top1.sum()):,} of {rows.rows:,} rows {name} never falls below {floor:.2f} while {other} reaches "
        f"{reach:.2f}: {int(hidden.sum()):,} tokens that {other} finds unlikely were likely to {name}"
    )
    floors = (floor, reach) if side == "rollout" else (reach, floor)
    figures = {"rows": int(top1.sum()), "rollout_floor": floors[0], "training_floor": floors[1]}
    return Hit(text, 0.9, {**figures, "tokens": int(hidden.sum())})


def broken_rows(exhibit: Exhibit) -> Hit | None:
    """NaN, null or constant log-probs; or some rows that are off, wholly or over one stretch on one side."""
    count, first = _faults(exhibit, "broken_rows")
    if count:
        return Hit(f"{amount(count, 'fault')} of whole rows or broken logits: {first}", 0.9, {"values": count})
    return _rows_off(exhibit)


def _rows_off(exhibit: Exhibit) -> Hit | None:
    broken, constant, rows = exhibit.kinds.broken, exhibit.kinds.constant, exhibit.sample
    stretches = stretches_of(exhibit)
    spoilt = stretches.rows if stretches is not None and _is_spoilt(stretches) else np.zeros(rows.rows, dtype=bool)
    off = broken | spoilt
    others = (exhibit.kinds.wide & ~spoilt).sum() + exhibit.kinds.exchanged.sum()
    if not off.any() or (off & ~constant).mean() > SINGLE_ROWS or off.sum() < MINOR * others:
        return None
    texts = []
    if broken.any():
        texts.append(
            f"{int(broken.sum()):,} of {rows.rows:,} rows are wholly off ({_median(rows.share(rows.big)[broken]):.0%} "
            f"of their tokens with |d| above {BIG:g}, {int(constant.sum()):,} of them constant on one side)"
        )
    if stretches is not None and spoilt.any():
        texts.append(stretches.text)
    text = f"{'; '.join(texts)}; first: {exhibit.place(int(np.flatnonzero(off)[0]))}"
    figures = {"rows": int(off.sum()), "rows_share": float(off.mean())}
    return Hit(text, 0.85 if broken.any() else 0.7, figures)


def _median(values: NDArray[np.floating[Any]]) -> float:
    return float(np.median(values))
