"""The weights and masks themselves, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollout_audit.audit.batches import batch_cuts
from rollout_audit.audit.pairs import pair_for, pairs_in
from rollout_audit.audit.plan import Device, choose_device
from rollout_audit.audit.reading import Reading
from rollout_audit.audit.selection import ConfigSource, as_correction
from rollout_audit.corrections.direct import Applied, apply
from rollout_audit.corrections.model import Correction, Level, Rows, Weight
from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.presets import Preset
from rollout_audit.corrections.tokens import Tokens, row_mean, row_sum, spread
from rollout_audit.dumps.applied import AppliedChunk
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump, OnFault
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.dumps.rows import row_uid
from rollout_audit.engines.threads import default_workers, map_in_order
from rollout_audit.errors import MissingFieldError
from rollout_audit.statistics.batch_cuts import Cuts, decide

__all__ = ["applied_chunks", "apply_correction"]

AppliedRow = tuple[str, NDArray[np.float32], NDArray[np.bool_]]
Result = TypeVar("Result")


def apply_correction(
    dump: Dump,
    correction: ConfigSource | Correction | Preset,
    *,
    trainer: str | None = None,
    on_fault: OnFault = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    device: Device = "auto",
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
) -> Iterator[AppliedRow]:
    """Stream (uid, weights float32, mask bool) of each row, both of the row's full length.

    Weights are after batch normalisation (each step is one batch) and 0 under a response mask of 0. Rejected tokens
    keep their weight: only the mask shows that they were removed.

    Args:
        dump: what `open_dump` returned.
        correction: a preset's name, a Preset, a Correction, or a configuration in the keys of `trainer`.
        trainer: whose configuration it is.
        on_fault, steps, limit, workers, device, chunk_tokens: as in `analyze`.

    Raises:
        ConfigError: the trainer itself would refuse the configuration.
        DumpError: the dump cannot be read as asked.
    """
    chunks = applied_chunks(
        dump,
        as_correction(correction, trainer),
        on_fault=on_fault,
        steps=steps,
        limit=limit,
        workers=workers,
        device=device,
        chunk_tokens=chunk_tokens,
    )
    return (row for applied in chunks for row in _rows(applied, dump))


def applied_chunks(
    dump: Dump,
    correction: Correction,
    *,
    on_fault: OnFault = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    device: Device = "auto",
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
    engine = _Engine(choose_device(device), workers or default_workers())
    return _apply(_Reader(reading, correction, pair.training, pair.rollout, engine), log)


def _apply(reader: _Reader, log: FaultLog | None) -> Iterator[AppliedChunk]:
    correction, engine = reader.correction, reader.engine
    cuts = batch_cuts(
        reader.reading, reader.training, reader.rollout, correction.batch_rules, engine.device, engine.workers, log
    )
    factors = _factors(reader, cuts) if correction.applied_weight.normalise else None

    def applied(packed: Packed, tokens: Tokens) -> AppliedChunk:
        factor = None if factors is None else spread(_factor_of_rows(packed, factors), tokens.lengths)
        return _unpacked(packed, apply(correction, tokens, factor))

    yield from reader.map(applied, cuts, log)


@dataclass(frozen=True)
class _Engine:
    device: torch.device
    workers: int


@dataclass(frozen=True)
class _Reader:
    reading: Reading
    correction: Correction
    training: str
    rollout: str
    engine: _Engine

    def map(
        self, function: Callable[[Packed, Tokens], Result], cuts: Cuts, log: FaultLog | None = None
    ) -> Iterator[Result]:
        """`function` of each chunk, in order, with what the rules over a whole batch leave of it; a step is a batch.

        One thread reads while others compute: a chunk is the unit, so that no more than a few wait in memory.
        """

        def of_chunk(chunk: Chunk) -> Result:
            packed = Packed(chunk, self.engine.device)
            return function(packed, decide(self.correction.batch_rules, cuts, packed, packed.tokens(self.training)))

        return map_in_order(of_chunk, self.reading.chunks(log), self.engine.workers)


def _factors(reader: _Reader, cuts: Cuts) -> dict[int, float]:
    """step → mean bounded weight of the step, over tokens or over sequences; 1 where it is ≤ 1e-8."""
    sums: dict[int, list[float]] = {}
    for rows in reader.map(partial(_weight_sums, reader.correction), cuts):
        for step, part, size in rows:
            mine = sums.setdefault(step, [0.0, 0.0])
            mine[0] += part
            mine[1] += size
    means = {step: part / size if size else 0.0 for step, (part, size) in sums.items()}
    return {step: mean if mean > 1e-8 else 1.0 for step, mean in means.items()}


def _weight_sums(correction: Correction, packed: Packed, tokens: Tokens) -> list[tuple[int, float, int]]:
    """Of each row its step, and the sum and the count that its bounded weights add to the mean."""
    weight = correction.applied_weight
    by_sequence = weight.level in (Level.SEQUENCE, Level.GEOMETRIC)
    one = torch.tensor(1.0, dtype=torch.float64, device=packed.device)
    bounded = apply(correction, tokens, one).bounded
    total = row_mean(bounded, tokens.lengths) if by_sequence else row_sum(bounded, tokens.lengths)
    count = _counted_rows(weight, tokens.lengths) if by_sequence else tokens.lengths
    return list(zip(packed.chunk.steps.tolist(), total.tolist(), count.tolist(), strict=True))


def _counted_rows(weight: Weight, lengths: Tensor) -> Tensor:
    """int64 [rows] 1 where the row is in the mean."""
    return torch.ones_like(lengths) if weight.mean_over is Rows.ALL else (lengths > 0).to(torch.int64)


def _factor_of_rows(packed: Packed, factors: dict[int, float]) -> Tensor:
    of_rows = [factors[step] for step in packed.chunk.steps.tolist()]
    return torch.tensor(of_rows, dtype=torch.float64, device=packed.device)


def _unpacked(packed: Packed, applied: Applied) -> AppliedChunk:
    """Full rows again: masked tokens have weight 0 and are not kept."""
    chunk = packed.chunk
    weights = np.zeros(chunk.tokens, dtype=np.float32)
    mask = np.zeros(chunk.tokens, dtype=bool)
    weights[packed.flat] = applied.normalised.to(torch.float32).cpu().numpy()
    mask[packed.flat] = applied.kept.cpu().numpy()
    return AppliedChunk(chunk, weights, mask)


def _rows(applied: AppliedChunk, dump: Dump) -> Iterator[AppliedRow]:
    chunk = applied.chunk
    file = dump.files[chunk.file].name
    for i in range(chunk.rows):
        part = slice(int(chunk.offsets[i]), int(chunk.offsets[i + 1]))
        yield row_uid(chunk, i, file), applied.weights[part], applied.mask[part]
