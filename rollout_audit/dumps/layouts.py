"""How trainers lay out tensors: where the response of a row lies, and which of its tokens the loss counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_audit.errors import UsageError, suggest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from rollout_audit.dumps.stores import Tensor

__all__ = [
    "LAYOUTS",
    "MASKS",
    "Layout",
    "areal_doubt",
    "check_layout",
    "layout_of",
    "mask_column",
    "moved",
    "needs",
    "response_places",
    "roll_doubt",
    "told_by_names",
]

MASKS = ("response_mask", "action_mask", "loss_mask")
"""Masks that may be one wider than log-probs that are shifted"""


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to lay out a batch of responses as tensors."""

    name: str
    what: str
    signature: frozenset[str] = frozenset()
    """tensors whose names tell the layout by themselves; empty: it must be asked for"""
    packed: bool | None = None
    """None: content tells"""
    start: str | None = None
    """the tensor whose first 1 begins the response; None: a row is all response"""
    stop: str | None = None
    """the tensor whose last 1 ends it in padded rows"""
    stop_optional: bool = False
    """without `stop` padded rows end with the last 1 of `start`"""
    prompts: bool = False
    """a row begins with its prompt, which is no part of the response: lists are cut there as tensors are"""
    masks: tuple[str, ...] = ()
    """tensors whose product is the response mask"""
    right_aligned: bool = False
    """wider tensors end with the log-probs: their first columns are prompt"""
    unrolled: tuple[str, ...] = ()
    """tensors that were not rolled along: what belongs to a log-prob stands one place later"""
    rolled: tuple[str, ...] = ()
    """tensors that alone were rolled: what belongs to a log-prob stands one place earlier"""
    fields: Mapping[str, str] = field(default_factory=dict)


LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("padded", "[B, T], a row is a response and its padding, where the mask is 0", packed=False),
        Layout("packed", "[N], rows end to end, cut by cu_seqlens or lengths", packed=True),
        Layout(
            "trl",
            "TRL: [B, T] right padded; the mask is completion_mask × tool_mask",
            signature=frozenset({"sampling_per_token_logps", "completion_mask"}),
            packed=False,
            start="completion_mask",
            stop="completion_mask",
            masks=("completion_mask", "tool_mask"),
        ),
        Layout(
            "skyrl",
            "SkyRL: [B, R], the response at the right end of the row; the mask is loss_mask",
            signature=frozenset({"rollout_logprobs", "response_mask", "loss_mask"}),
            packed=False,
            start="response_mask",
            stop="response_mask",
            masks=("loss_mask",),
            right_aligned=True,
            fields={"token_ids": "sequences"},
        ),
        Layout(
            "roll",
            "ROLL: log-probs [B, L − 1] of tokens 1 …, mask and ids [B, L] of tokens 0 …",
            packed=False,
            start="response_mask",
            stop="attention_mask",
            prompts=True,
            masks=("response_mask",),
            right_aligned=True,
            fields={"token_ids": "input_ids"},
        ),
        Layout(
            "areal",
            "AReaL after advantages are computed, [B, T] or packed: log-probs and mask stand at the token before",
            start="loss_mask",
            stop="attention_mask",
            prompts=True,
            stop_optional=True,
            masks=("loss_mask",),
            unrolled=("input_ids", "versions", "attention_mask"),
            fields={"token_ids": "input_ids"},
        ),
        Layout(
            "areal-rollout",
            "AReaL before that, [B, T] or packed: only prox_logp stands at the token before",
            start="loss_mask",
            stop="attention_mask",
            prompts=True,
            stop_optional=True,
            masks=("loss_mask",),
            rolled=("prox_logp",),
            fields={"token_ids": "input_ids"},
        ),
    )
}
"""What `--layout` may name."""


def check_layout(layout: str | None) -> None:
    """Raises UsageError for a tensor layout that nobody knows."""
    if layout is not None and layout not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise UsageError(f"layout = {layout!r}: expected one of {known}{suggest(layout, LAYOUTS)}")


def layout_of(tensors: Mapping[str, Tensor], lead: Tensor, asked: str | None, where: str) -> Layout | None:
    """The layout asked for, else the one whose names are there, else None: plain rows.

    Raises:
        UsageError: a tensor the asked layout needs is missing, or content leaves two readings.
    """
    if asked is not None:
        return _complete(LAYOUTS[asked], tensors, where)
    told = told_by_names(tensors)
    if told is None and (doubt := _doubt(tensors, lead)):
        raise UsageError(f"{where}: {doubt}")
    return told


def told_by_names(names: Collection[str]) -> Layout | None:
    """The layout that the names of tensors or columns tell by themselves."""
    return next((one for one in LAYOUTS.values() if one.signature and one.signature <= set(names)), None)


def needs(layout: Layout) -> list[str]:
    """Names without which the layout says nothing."""
    return [name for name in (layout.start, None if layout.stop_optional else layout.stop) if name]


def _complete(layout: Layout, tensors: Mapping[str, Tensor], where: str) -> Layout:
    missing = [name for name in needs(layout) if name not in tensors]
    if missing:
        raise UsageError(
            f"{where}: layout {layout.name} needs the tensor {missing[0]!r}; there are {', '.join(sorted(tensors))}"
        )
    return layout


def _doubt(tensors: Mapping[str, Tensor], lead: Tensor) -> str | None:
    """Why only a person can say where a token's values stand."""
    if text := areal_doubt(tensors):
        return text
    if "response_mask" in tensors and tensors["response_mask"].shape == lead.shape:
        return None
    masks = [tensors[name] for name in MASKS if name in tensors]
    wider = next((t for t in masks if len(lead.shape) == 2 and t.shape == (lead.shape[0], lead.shape[1] + 1)), None)
    return roll_doubt(f"{wider.name} {list(wider.shape)}", f"{lead.name} {list(lead.shape)}") if wider else None


def areal_doubt(names: Collection[str]) -> str | None:
    if not {"logprobs", "prox_logp"} <= set(names):
        return None
    return (
        "AReaL's tensors, whose log-probs and mask are rolled by one place once advantages are computed, and "
        "nothing in the file says whether they were: --layout areal if so, --layout areal-rollout if not yet"
    )


def roll_doubt(mask: str, log_probs: str) -> str:
    return (
        f"{mask} is one wider than {log_probs}: shifted by one, so that column j is token j + 1? Then --layout roll; "
        "else cut the mask to the same width"
    )


def mask_column(layout: Layout | None, tensors: Collection[str]) -> str | None:
    """What the response mask of a layout is called: its tensor, or the product of those that are there."""
    names = [name for name in layout.masks if name in tensors] if layout else []
    return " × ".join(names) or None


def moved(values: NDArray[Any], offsets: NDArray[np.int64], places: int) -> NDArray[Any]:
    """Values of packed rows one place later (1) or earlier (−1); NaN or 0 where a row then has none.

    Args:
        offsets: [rows + 1]
    """
    shifted = np.roll(values, places)
    rows = offsets[1:] > offsets[:-1]
    shifted[(offsets[:-1] if places > 0 else offsets[1:] - 1)[rows]] = np.nan if values.dtype.kind == "f" else 0
    return shifted


def response_places(
    begins: NDArray[np.bool_], ends: NDArray[np.bool_] | None, offsets: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which places belong to a response.

    Args:
        begins: [places], 1 from where the response may begin; a row without a 1 is kept whole.
        ends: [places], its last 1 ends the response, a row without one is empty; None: the last place of a row is
            not its own.
        offsets: [rows + 1]
    """
    place = np.arange(len(begins)) - np.repeat(offsets[:-1], np.diff(offsets))
    lengths = np.diff(offsets)
    first, last = _first_one(begins, offsets), lengths - 2
    if ends is not None:
        last = lengths - 1 - _first_one(ends[::-1], len(ends) - offsets[::-1])[::-1]
    first = np.where(first < lengths, first, 0)
    return (place >= np.repeat(first, lengths)) & (place <= np.repeat(last, lengths))


def _first_one(flags: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """[rows] place in its row of the first 1, the row's length where there is none."""
    ones = np.flatnonzero(flags)
    found = np.searchsorted(ones, offsets[:-1])
    padded = np.concatenate((ones, [np.iinfo(np.int64).max]))[found]
    return np.minimum(padded, offsets[1:]) - offsets[:-1]
