"""The weights and masks themselves, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollout_audit.audit.batches import batch_cuts
from rollout_audit.audit.pairs import pair_for, pairs_in
from rollout_audit.audit.reading import Reading
from rollout_audit.audit.selection import ConfigSource, as_correction
from rollout_audit.corrections.direct import Applied, apply
from rollout_audit.corrections.model import Correction, Level, Rows, Weight
from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.presets import Preset
from rollout_audit.corrections.tokens import Tokens, row_mean, row_sum, spread
from rollout_audit.dumps.applied import AppliedChunk
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump, OnFault
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.dumps.rows import row_uid
from rollout_audit.engines.threads import default_workers
from rollout_audit.errors import MissingFieldError
from rollout_audit.statistics.batch_cuts import Cuts, decide

__all__ = ["applied_chunks", "apply_correction"]

AppliedRow = tuple[str, NDArray[np.float32], NDArray[np.bool_]]
CPU = torch.device("cpu")
ONE = torch.tensor(1.0, dtype=torch.float64)


def apply_correction(
    dump: Dump,
    correction: ConfigSource | Correction | Preset,
    *,
    trainer: str | None = None,
    on_fault: OnFault = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
) -> Iterator[AppliedRow]:
    """Stream (uid, weights float32, mask bool) of each row, both of the row's full length.

    Weights are after batch normalisation (each step is one batch) and 0 under a response mask of 0. Rejected tokens
    keep their weight: only the mask shows that they were removed.

    Args:
        dump: what `open_dump` returned.
        correction: a preset's name, a Preset, a Correction, or a configuration in the keys of `trainer`.
        trainer: whose configuration it is.
        on_fault, steps, limit, chunk_tokens: as in `analyze`.

    Raises:
        ConfigError: the trainer itself would refuse the configuration.
        DumpError: the dump cannot be read as asked.
    """
    asked = as_correction(correction, trainer)
    chunks = applied_chunks(dump, asked, on_fault=on_fault, steps=steps, limit=limit, chunk_tokens=chunk_tokens)
    return (row for applied in chunks for row in _rows(applied, dump))


def applied_chunks(
    dump: Dump,
    correction: Correction,
    *,
    on_fault: OnFault = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    log: FaultLog | None = None,
) -> Iterator[AppliedChunk]:
    """As `apply_correction`, chunk by chunk."""
    if correction.needs_advantages and not dump.has("advantages"):
        raise MissingFieldError(
            "advantages: this correction looks at their sign and the dump does not record them; "
            "name the column with --map advantages=COLUMN"
        )
    pair = pair_for(correction.mode, pairs_in(dump))
    fields = ("uid", pair.training, *(("advantages",) if correction.needs_advantages else ()))
    reading = Reading(dump, fields, chunk_tokens, on_fault, steps, limit)
    return _apply(_Reader(reading, correction, pair.training, pair.rollout), log)


def _apply(reader: _Reader, log: FaultLog | None) -> Iterator[AppliedChunk]:
    correction = reader.correction
    cuts = batch_cuts(
        reader.reading, reader.training, reader.rollout, correction.batch_rules, CPU, default_workers(), log
    )
    factors = _factors(reader, cuts) if correction.applied_weight.normalise else None
    for packed, tokens in reader.batches(cuts, log):
        factor = None if factors is None else spread(_factor_of_rows(packed, factors), tokens.lengths)
        yield _unpacked(packed, apply(correction, tokens, factor))


@dataclass(frozen=True)
class _Reader:
    reading: Reading
    correction: Correction
    training: str
    rollout: str

    def batches(self, cuts: Cuts, log: FaultLog | None = None) -> Iterator[tuple[Packed, Tokens]]:
        """The chunks with what the rules over a whole batch leave of them, one batch a step."""
        for chunk in self.reading.chunks(log):
            packed = Packed(chunk, CPU)
            yield packed, decide(self.correction.batch_rules, cuts, packed, packed.tokens(self.training))


def _factors(reader: _Reader, cuts: Cuts) -> dict[int, float]:
    """step → mean bounded weight of the step, over tokens or over sequences; 1 where it is ≤ 1e-8."""
    correction = reader.correction
    weight = correction.applied_weight
    by_sequence = weight.level in (Level.SEQUENCE, Level.GEOMETRIC)
    sums: dict[int, list[float]] = {}
    for packed, tokens in reader.batches(cuts):
        bounded = apply(correction, tokens, ONE).bounded
        total = row_mean(bounded, tokens.lengths) if by_sequence else row_sum(bounded, tokens.lengths)
        count = _counted_rows(weight, tokens.lengths) if by_sequence else tokens.lengths
        for step, part, size in zip(packed.chunk.steps.tolist(), total.tolist(), count.tolist(), strict=True):
            mine = sums.setdefault(step, [0.0, 0.0])
            mine[0] += part
            mine[1] += size
    means = {step: part / size if size else 0.0 for step, (part, size) in sums.items()}
    return {step: mean if mean > 1e-8 else 1.0 for step, mean in means.items()}


def _counted_rows(weight: Weight, lengths: Tensor) -> Tensor:
    """int64 [rows] 1 where the row is in the mean."""
    return torch.ones_like(lengths) if weight.mean_over is Rows.ALL else (lengths > 0).to(torch.int64)


def _factor_of_rows(packed: Packed, factors: dict[int, float]) -> Tensor:
    return torch.tensor([factors[step] for step in packed.chunk.steps.tolist()], dtype=torch.float64)


def _unpacked(packed: Packed, applied: Applied) -> AppliedChunk:
    """Full rows again: masked tokens have weight 0 and are not kept."""
    chunk = packed.chunk
    weights = np.zeros(chunk.tokens, dtype=np.float32)
    mask = np.zeros(chunk.tokens, dtype=bool)
    weights[packed.flat] = applied.normalised.to(torch.float32).numpy()
    mask[packed.flat] = applied.kept.numpy()
    return AppliedChunk(chunk, weights, mask)


def _rows(applied: AppliedChunk, dump: Dump) -> Iterator[AppliedRow]:
    chunk = applied.chunk
    file = dump.files[chunk.file].name
    for i in range(chunk.rows):
        part = slice(int(chunk.offsets[i]), int(chunk.offsets[i + 1]))
        yield row_uid(chunk, i, file), applied.weights[part], applied.mask[part]
