"""A correction applied to a dump, written as files beside it, and what it comes to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

import numpy as np

from rollout_audit.audit.apply import applied_chunks
from rollout_audit.audit.plan import Device
from rollout_audit.audit.selection import ConfigSource, as_correction, config_settings
from rollout_audit.corrections.describe import describe
from rollout_audit.corrections.model import Correction
from rollout_audit.corrections.presets import Preset
from rollout_audit.dumps.applied import AppliedChunk, applied_file, suffix_of
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump, OnFault
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.dumps.target import fresh_folder, names_with_suffix
from rollout_audit.engines.upkeep import one_torch_thread

__all__ = ["WrittenCorrection", "write_correction"]


@dataclass(frozen=True, slots=True)
class WrittenCorrection:
    """What was written. Weights are of valid tokens (response mask 1), rejected ones included unless said."""

    folder: str
    files: tuple[str, ...]
    """relative to the folder, in order"""
    formula: str
    """what was applied, in words and numbers"""
    rows: int
    left_out: int
    """rows of these files that the correction was not applied to: faulty ones, those of other steps"""
    tokens: int
    valid_tokens: int
    kept_tokens: int
    masked_fraction: float | None
    zeroed_fraction: float | None
    """valid tokens of weight 0, masked or not"""
    weight_mean: float | None
    weight_min: float | None
    weight_max: float | None
    kept_weight_mean: float | None
    """over the tokens that are kept"""
    rejected_weight_mean: float | None = None
    """over the valid tokens that are not: their weight is still there, the mask alone takes them out"""


def write_correction(
    dump: Dump,
    correction: ConfigSource | Correction | Preset,
    out: str | os.PathLike[str],
    *,
    trainer: str | None = None,
    on_fault: OnFault = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    device: Device = "auto",
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    on_progress: Callable[[int], None] | None = None,
    log: FaultLog | None = None,
) -> WrittenCorrection:
    """Write the weights and masks of `apply_correction`, a file for each file of the dump, row for row.

    A safetensors file becomes one of the same layout (`weights` F32 and `mask` BOOL of the shape of the rollout's
    log-probs, packed ones with the tensor that says where rows end, as it is stored), every other one Parquet with
    `uid` (a whole number where it is one in the source, else text), `step`, `weights` list<float32> and `mask`
    list<bool>. Rows that are left out keep their place: null in Parquet, zeros in safetensors; a file without
    a row in the selection is not written. Metadata `rollout_audit.apply` says what was applied to what.

    Args:
        dump: what `open_dump` returned.
        correction: a preset's name, a Preset, a Correction, or a configuration in the keys of `trainer`.
        out: a folder that is new or empty.
        trainer: whose configuration it is.
        on_fault, steps, limit, workers, device, chunk_tokens, on_progress: as in `analyze`.
        log: gathers what reading the files finds.

    Raises:
        ConfigError: the trainer itself would refuse the configuration.
        DumpError: the dump cannot be read as asked, or the folder cannot be written.
        UsageError: the folder holds something.
    """
    asked = as_correction(correction, trainer)
    about = {**_about(correction, asked, trainer), "on_fault": on_fault, "steps": steps, "limit": limit}
    chunks = applied_chunks(
        dump,
        asked,
        on_fault=on_fault,
        steps=steps,
        limit=limit,
        workers=workers,
        device=device,
        chunk_tokens=chunk_tokens,
        log=log,
    )
    tally = _Tally()
    with fresh_folder(out) as folder, one_torch_thread():
        files = tuple(_write_files(dump, _counted(chunks, tally, on_progress), about, folder))
    left_out = sum(dump.infos[file].rows for file, _ in files) - tally.rows
    return tally.result(os.fspath(out), tuple(name for _, name in files), describe(asked), left_out)


def _about(given: ConfigSource | Correction | Preset, correction: Correction, trainer: str | None) -> dict[str, object]:
    """What was applied, whoever reads the file."""
    named = given.name if isinstance(given, Preset) else given if trainer is None and isinstance(given, str) else None
    return {
        "tool": "rollout-audit",
        "version": version("rollout-audit"),
        "formula": describe(correction),
        "correction": asdict(correction),
        "preset": named,
        "trainer": trainer,
        "config": None
        if trainer is None or isinstance(given, Preset | Correction)
        else config_settings(trainer, given),
    }


def _write_files(
    dump: Dump, chunks: Iterable[AppliedChunk], about: dict[str, object], folder: Path
) -> Iterator[tuple[int, str]]:
    names = names_with_suffix([f.name for f in dump.files], [suffix_of(f.format) for f in dump.files])
    digest = hashlib.sha256("".join(info.digest for info in dump.infos).encode()).hexdigest()
    for file, of_file in groupby(chunks, key=lambda applied: applied.chunk.file):
        path = folder / names[file]
        path.parent.mkdir(parents=True, exist_ok=True)
        source = {"name": dump.files[file].name, "digest": dump.infos[file].digest}
        with applied_file(dump, file, path, {**about, "dump_digest": digest, "input": source}) as writer:
            for applied in of_file:
                writer.write(applied)
        yield file, names[file]


class _Tally:
    """Counts and sums over the rows that were written."""

    def __init__(self) -> None:
        self.rows = self.tokens = self.valid = self.kept = self.zeroed = 0
        self.sum = self.kept_sum = self.rejected_sum = 0.0
        self.least, self.greatest = np.inf, -np.inf

    def add(self, applied: AppliedChunk) -> None:
        valid = applied.chunk.response_mask
        weights = applied.weights[valid].astype(np.float64)
        self.rows += applied.chunk.rows
        self.tokens += applied.chunk.tokens
        self.valid += len(weights)
        self.kept += int(applied.mask.sum())
        self.zeroed += int(np.count_nonzero(weights == 0))
        self.sum += float(weights.sum())
        self.kept_sum += float(applied.weights[applied.mask].sum(dtype=np.float64))
        self.rejected_sum += float(applied.weights[valid & ~applied.mask].sum(dtype=np.float64))
        self.least = min(self.least, float(weights.min(initial=np.inf)))
        self.greatest = max(self.greatest, float(weights.max(initial=-np.inf)))

    def result(self, folder: str, files: tuple[str, ...], formula: str, left_out: int) -> WrittenCorrection:
        some, kept, rejected = self.valid or None, self.kept or None, (self.valid - self.kept) or None
        return WrittenCorrection(
            folder=folder,
            files=files,
            formula=formula,
            rows=self.rows,
            left_out=left_out,
            tokens=self.tokens,
            valid_tokens=self.valid,
            kept_tokens=self.kept,
            masked_fraction=some and 1 - self.kept / some,
            zeroed_fraction=some and self.zeroed / some,
            weight_mean=some and self.sum / some,
            weight_min=some and self.least,
            weight_max=some and self.greatest,
            kept_weight_mean=kept and self.kept_sum / kept,
            rejected_weight_mean=rejected and self.rejected_sum / rejected,
        )


def _counted(
    chunks: Iterable[AppliedChunk], tally: _Tally, on_progress: Callable[[int], None] | None
) -> Iterator[AppliedChunk]:
    for applied in chunks:
        tally.add(applied)
        yield applied
        if on_progress is not None:
            on_progress(applied.chunk.rows)
