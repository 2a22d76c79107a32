"""Which tokens each correction leaves, as digests: whether two audits keep the same tokens without storing the masks.

A digest runs over every position of every response in the order of the files, and over the lengths of the responses:
neither workers nor the order of the arguments nor the size of chunks change it. Tokens within rounding of a threshold
are told apart in a second digest, which another machine gives too where nothing but those differs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollout_audit.audit.batches import batch_cuts
from rollout_audit.audit.edges import ROUNDING_OF_SUMS, slack_of_cut
from rollout_audit.audit.pairs import pair_for, pairs_in
from rollout_audit.audit.reading import Reading
from rollout_audit.corrections.cuts import Interval, has_interval, token_interval, weight_interval
from rollout_audit.corrections.direct import Applied, aggregated, apply, statistic_bounds, token_statistic
from rollout_audit.corrections.model import Aggregation, Bound, Correction, Level, Over, Rule, Weight
from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.tokens import Tokens, row_sum, spread
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump, OnFault
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.engines.threads import default_workers
from rollout_audit.engines.upkeep import one_torch_thread
from rollout_audit.statistics.batch_cuts import Cuts, decide

__all__ = ["MaskDigest", "mask_digests"]

MU = "rollout_log_probs"
CPU = torch.device("cpu")
ONE = torch.tensor(1.0, dtype=torch.float64)
KEPT, REMOVED, AT_AN_EDGE = 1, 2, 4
"""What a digest is over: 0 under a response mask of 0; the last one is added to the others"""
LETTERS = 32
OF_SUMS = (Aggregation.SEQ_SUM, Aggregation.SEQ_MEAN, Aggregation.SEGMENT_MEAN)
OF_MEANS = (Aggregation.SEQ_MEAN, Aggregation.SEGMENT_MEAN)

Codes = NDArray[np.uint8]
Scope = int | None


@dataclass(frozen=True, slots=True)
class MaskDigest:
    """The tokens that one correction leaves of one batch."""

    digest: str
    removed: int
    """valid tokens that a rule, the veto or a weight bound of mode `mask` takes out"""
    edge: int
    """valid tokens whose fate lies within rounding of a threshold"""
    beside_edge: str
    """the digest with those left open; the same as `digest` where there are none"""


def mask_digests(
    dump: Dump,
    corrections: Mapping[str, Correction],
    *,
    per_step: Collection[str] = (),
    on_fault: OnFault = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
) -> dict[tuple[Scope, str], MaskDigest]:
    """(step or None for the whole dump, correction) → what it leaves; one pass, two where a rule needs whole batches.

    Args:
        dump: what `open_dump` returned.
        corrections: name → correction; those that look at advantages are left out where none are recorded.
        per_step: names of those that are wanted step by step too.
        on_fault, steps, limit, workers, chunk_tokens: as in `analyze`.

    Raises:
        DumpError: as `Dump.chunks`.
    """
    pairs, threads, signed = pairs_in(dump), workers or default_workers(), dump.has("advantages")
    corrections = {name: c for name, c in corrections.items() if signed or not c.needs_advantages}
    training = {name: pair_for(correction.mode, pairs).training for name, correction in corrections.items()}
    more = {"advantages"} if any(c.needs_advantages for c in corrections.values()) else set()
    reading = Reading(dump, {*training.values(), *more}, chunk_tokens, on_fault, steps, limit)
    masks = [
        _Mask(name, c, training[name], batch_cuts(reading, training[name], MU, c.batch_rules, CPU, threads))
        for name, c in corrections.items()
    ]
    found: dict[tuple[Scope, str], _Digests] = {}
    with one_torch_thread():
        coded = reading.map(lambda chunk: _coded(chunk, masks, per_step), threads, FaultLog())
        for lengths, step_of_row, codes in coded:
            for (name, pooled), marks in codes.items():
                for scope in [None] if pooled else np.unique(step_of_row).tolist():
                    rows = np.ones(len(lengths), dtype=bool) if pooled else step_of_row == scope
                    found.setdefault((scope, name), _Digests()).add(lengths[rows], marks[np.repeat(rows, lengths)])
    return {key: digests.result() for key, digests in found.items()}


@dataclass(frozen=True, slots=True)
class _Mask:
    """One correction on the pair of policies that it compares."""

    name: str
    correction: Correction
    training: str
    cuts: Cuts

    def codes(self, packed: Packed, *, pooled: bool) -> Codes:
        """[positions of the chunk]"""
        tokens = packed.tokens(self.training)
        tokens = decide(self.correction.batch_rules, self.cuts, packed, tokens, pooled=pooled)
        applied = apply(self.correction, tokens, ONE)
        left = applied.kept
        if self.correction.applied_weight.bound is Bound.MASK:
            left = left & (applied.bounded != 0)
        codes = np.zeros(packed.chunk.tokens, dtype=np.uint8)
        near = _near(self.correction, tokens, applied)
        codes[packed.flat] = (torch.where(left, KEPT, REMOVED) + AT_AN_EDGE * near).numpy().astype(np.uint8)
        return codes


def _coded(
    chunk: Chunk, masks: Sequence[_Mask], per_step: Collection[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Mapping[tuple[str, bool], Codes]]:
    """Lengths and steps of the rows; (correction, whether the dump is one batch) → codes."""
    packed, codes = Packed(chunk, CPU), {}
    for mask in masks:
        whole = codes[mask.name, True] = mask.codes(packed, pooled=True)
        if mask.name in per_step:
            codes[mask.name, False] = mask.codes(packed, pooled=False) if mask.correction.batch_rules else whole
    return np.diff(chunk.offsets), chunk.steps, codes


@dataclass
class _Digests:
    """Running digests of one batch."""

    lengths: hashlib._Hash = field(default_factory=hashlib.sha256)
    marks: hashlib._Hash = field(default_factory=hashlib.sha256)
    beside_edge: hashlib._Hash = field(default_factory=hashlib.sha256)
    removed: int = 0
    edge: int = 0

    def add(self, lengths: NDArray[np.int64], codes: Codes) -> None:
        near = codes >= AT_AN_EDGE
        marks = codes & (KEPT | REMOVED)
        self.lengths.update(lengths.astype("<i8").tobytes())
        self.marks.update(marks.tobytes())
        self.beside_edge.update(np.where(near, np.uint8(AT_AN_EDGE), marks).tobytes())
        self.removed += int(np.count_nonzero(marks == REMOVED))
        self.edge += int(np.count_nonzero(near))

    def result(self) -> MaskDigest:
        return MaskDigest(self._joint(self.marks), self.removed, self.edge, self._joint(self.beside_edge))

    def _joint(self, marks: hashlib._Hash) -> str:
        return hashlib.sha256(self.lengths.digest() + marks.digest()).hexdigest()[:LETTERS]


def _near(correction: Correction, tokens: Tokens, applied: Applied) -> Tensor:
    """[tokens] bool: whether the rounding of a sum or a cut may decide otherwise; tokens of a row share its fate.

    Rules by the order of a batch, and signs of advantages, leave none open.
    """
    near = torch.zeros_like(applied.kept)
    for rule in correction.all_rules:
        near |= _near_rule(rule, tokens, applied.remaining)
    return near | _near_bounds(correction.applied_weight, tokens, applied.log_ratio)


def _near_rule(rule: Rule, tokens: Tokens, remaining: Tensor) -> Tensor:
    if rule.by_batch:
        return torch.zeros_like(remaining)
    if has_interval(rule):
        return _near_ends(tokens.log_ratio, token_interval(rule))
    if rule.aggregation is Aggregation.TOKEN:
        return _near_ends(token_statistic(rule, tokens), statistic_bounds(rule))
    part = tokens if rule.over is Over.EVERY else tokens.only(remaining)
    by_segment = rule.aggregation is Aggregation.SEGMENT_MEAN
    of, units = (part.segment_lengths, tokens.segment_lengths) if by_segment else (part.lengths, tokens.lengths)
    slack = _slack(token_statistic(rule, part), of, mean=rule.aggregation in OF_MEANS)
    values = aggregated(rule, part)
    return spread(_near_ends(values, statistic_bounds(rule), slack if rule.aggregation in OF_SUMS else 0.0), units)


def _near_bounds(weight: Weight, tokens: Tokens, log_ratio: Tensor) -> Tensor:
    """Of weights that are set to 0 outside their bounds; others take no token out."""
    if weight.bound is not Bound.MASK:
        return torch.zeros_like(log_ratio, dtype=torch.bool)
    if weight.level not in (Level.SEQUENCE, Level.GEOMETRIC, Level.SEGMENT):
        return _near_ends(log_ratio, weight_interval(weight))
    units = tokens.segment_lengths if weight.level is Level.SEGMENT else tokens.lengths
    slack = spread(_slack(tokens.log_ratio, units, mean=weight.level is not Level.SEQUENCE), units)
    return _near_ends(log_ratio, weight_interval(weight), slack)


def _slack(terms: Tensor, units: Tensor, *, mean: bool) -> Tensor:
    """[rows] or [segments] how far rounding moves their sum or mean."""
    return ROUNDING_OF_SUMS * row_sum(terms.abs(), units) / (units.clamp(min=1) if mean else 1)


def _near_ends(values: Tensor, ends: Interval, slack: Tensor | float = 0.0) -> Tensor:
    near = torch.zeros_like(values, dtype=torch.bool)
    for end in ends:
        if math.isfinite(end):
            near |= (values - end).abs() <= slack + slack_of_cut(end)
    return near
