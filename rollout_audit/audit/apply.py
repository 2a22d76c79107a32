"""The weights and masks themselves, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollout_audit.audit.pairs import pair_for, pairs_in
from rollout_audit.audit.selection import ConfigSource, as_correction
from rollout_audit.corrections.direct import Applied, apply, bounded_weight, level_log_ratio
from rollout_audit.corrections.model import Correction, Level, Rows, Weight
from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.presets import Preset
from rollout_audit.corrections.tokens import row_mean, row_sum, spread
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.dumps.dump import Dump

__all__ = ["apply_correction"]

AppliedRow = tuple[str, NDArray[np.float32], NDArray[np.bool_]]
CPU = torch.device("cpu")


def apply_correction(
    dump: Dump,
    correction: ConfigSource | Correction | Preset,
    *,
    trainer: str | None = None,
    on_fault: Literal["stop", "drop"] = "stop",
) -> Iterator[AppliedRow]:
    """Stream (uid, weights float32, mask bool) of each row, both of the row's full length.

    Weights are after batch normalisation (each step is one batch) and 0 under a response mask of 0. Rejected tokens
    keep their weight: only the mask shows that they were removed.

    Args:
        dump: what `open_dump` returned.
        correction: a preset's name, a Preset, a Correction, or a configuration in the keys of `trainer`.
        trainer: whose configuration it is.
        on_fault: as in `analyze`.

    Raises:
        ConfigError: the trainer itself would refuse the configuration.
        DumpError: the dump cannot be read as asked.
    """
    return _apply(dump, as_correction(correction, trainer), on_fault)


def _apply(dump: Dump, correction: Correction, on_fault: Literal["stop", "drop"]) -> Iterator[AppliedRow]:
    training = pair_for(correction.mode, pairs_in(dump)).training
    reader = _Reader(dump, training, on_fault)
    factors = _factors(reader, correction) if correction.applied_weight.normalise else None
    for packed in reader.packed():
        tokens = packed.tokens(training)
        factor = None if factors is None else spread(_factor_of_rows(packed, factors), tokens.lengths)
        yield from _rows(packed, apply(correction, tokens, factor), dump)


@dataclass(frozen=True)
class _Reader:
    dump: Dump
    training: str
    on_fault: Literal["stop", "drop"]

    def packed(self) -> Iterator[Packed]:
        fields = ("uid", self.training)
        for chunk in self.dump.chunks(fields=fields, on_fault=self.on_fault):
            yield Packed(chunk, CPU)


def _factors(reader: _Reader, correction: Correction) -> dict[int, float]:
    """step → mean bounded weight of the step, over tokens or over sequences; 1 where it is ≤ 1e-8."""
    weight = correction.applied_weight
    by_sequence = weight.level in (Level.SEQUENCE, Level.GEOMETRIC)
    sums: dict[int, list[float]] = {}
    for packed in reader.packed():
        tokens = packed.tokens(reader.training)
        bounded = bounded_weight(weight, level_log_ratio(weight.level, tokens))
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


def _rows(packed: Packed, applied: Applied, dump: Dump) -> Iterator[AppliedRow]:
    """Full rows again: masked tokens have weight 0 and are not kept."""
    chunk = packed.chunk
    weights = np.zeros(chunk.tokens, dtype=np.float32)
    mask = np.zeros(chunk.tokens, dtype=bool)
    weights[packed.flat] = applied.normalised.to(torch.float32).numpy()
    mask[packed.flat] = applied.kept.numpy()
    for i in range(chunk.rows):
        part = slice(int(chunk.offsets[i]), int(chunk.offsets[i + 1]))
        yield _name(chunk, i, dump), weights[part], mask[part]


def _name(chunk: Chunk, i: int, dump: Dump) -> str:
    return chunk.uids[i] if chunk.uids is not None else dump.row_name(chunk.file, int(chunk.row_numbers[i]))
