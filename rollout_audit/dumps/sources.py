"""The reader of each format."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rollout_audit.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollout_audit.dumps.columns import Source
    from rollout_audit.dumps.discovery import DumpFile
    from rollout_audit.dumps.records import Record

__all__ = ["open_source"]


def open_source(file: DumpFile, layout: str | None = None, field_map: Mapping[str, str] | None = None) -> Source:
    """Open one file; reads its footer or header where the format has one, else as much as says what rows there are.

    Args:
        field_map: field → column, as `--map` gives it: which column the layout of rows goes by.

    Raises:
        UnreadableFileError: damaged, or not of the format it is taken for.
        UsageError: the layout of tensors cannot be told, or is not the one asked for.
    """
    return _READERS[file.format](file, layout, field_map or {})


def _parquet(file: DumpFile, layout: str | None, field_map: Mapping[str, str]) -> Source:
    from rollout_audit.dumps.parquet import ParquetSource
    from rollout_audit.dumps.row_layouts import laid_out

    return laid_out(ParquetSource(file), layout, file.name, field_map)


def _safetensors(file: DumpFile, layout: str | None, _field_map: Mapping[str, str]) -> Source:
    from rollout_audit.dumps.tensors import TensorSource

    return TensorSource.of(file, layout)


def _npz(file: DumpFile, layout: str | None, _field_map: Mapping[str, str]) -> Source:
    from rollout_audit.dumps.stores import npz_store
    from rollout_audit.dumps.tensors import TensorSource

    return TensorSource(file, npz_store(file), layout)


def _torch(file: DumpFile, layout: str | None, field_map: Mapping[str, str]) -> Source:
    from rollout_audit.dumps.formats.plain import source_of
    from rollout_audit.dumps.torch_files import load_tensors

    return source_of(file, load_tensors(file), layout, field_map)


def _plain_jsonl(file: DumpFile, layout: str | None, field_map: Mapping[str, str]) -> Source:
    from rollout_audit.dumps.row_layouts import laid_out

    return laid_out(_jsonl("plain", file, None, {}), layout, file.name, field_map)


def _jsonl(module: str, file: DumpFile, _layout: str | None, _field_map: Mapping[str, str]) -> Source:
    from importlib import import_module

    from rollout_audit.dumps.jsonl import JsonlSource

    dialect = import_module(f"rollout_audit.dumps.formats.{module}")
    return JsonlSource(file, dialect.unpack, dialect.FIELDS)


def _slime(file: DumpFile, _layout: str | None, _field_map: Mapping[str, str]) -> Source:
    from rollout_audit.dumps.formats.slime import TRAIN_FIELDS, train_rows

    return _rows_of(file, lambda contents: train_rows(contents[0][1]), TRAIN_FIELDS)


def _slime_rollout(file: DumpFile, _layout: str | None, _field_map: Mapping[str, str]) -> Source:
    from rollout_audit.dumps.formats.slime import ROLLOUT_FIELDS, rollout_rows

    return _rows_of(file, lambda contents: rollout_rows(contents[0][1]), ROLLOUT_FIELDS)


def _miles(file: DumpFile, _layout: str | None, _field_map: Mapping[str, str]) -> Source:
    from rollout_audit.dumps.formats.miles import FIELDS, merged_rows

    return _rows_of(file, merged_rows, FIELDS)


def _rows_of(
    file: DumpFile, rows: Callable[[Sequence[tuple[str, Any]]], list[Record]], fields: Mapping[str, str]
) -> Source:
    """Rows of one `.pt` file, or of the files of all ranks."""
    from rollout_audit.dumps.naming import report_names, whole_number
    from rollout_audit.dumps.records import RecordSource
    from rollout_audit.dumps.torch_files import load_tensors, zip_footer

    paths = file.parts or (file.path,)
    contents = [(name, load_tensors(file, path)) for name, path in zip(report_names(list(paths)), paths, strict=True)]
    try:
        records = rows(contents)
        step = whole_number(str(contents[0][1].get("rollout_id")))
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise UnreadableFileError(f"{file.name}: not as {file.format} writes it ({reason})") from error
    footer = b"".join(map(zip_footer, paths))
    return RecordSource(records, where=file.name, footer=footer, step=step, fields=fields)


_READERS: Mapping[str, Callable[[DumpFile, str | None, Mapping[str, str]], Source]] = {
    "parquet": _parquet,
    "miles-dashboard": _parquet,
    "safetensors": _safetensors,
    "npz": _npz,
    "torch": _torch,
    "jsonl": _plain_jsonl,
    "nemo-rl": partial(_jsonl, "nemo_rl"),
    "prime-rl": partial(_jsonl, "prime_rl"),
    "open-instruct": partial(_jsonl, "open_instruct"),
    "slime": _slime,
    "slime-rollout": _slime_rollout,
    "miles": _miles,
}
