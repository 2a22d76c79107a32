"""One batch that was saved in two formats side by side: `step_1.pt` beside `step_1.safetensors`."""

from __future__ import annotations

from posixpath import splitext
from typing import TYPE_CHECKING

import numpy as np

from rollout_audit.dumps.chunk import Finding
from rollout_audit.dumps.columns import Ragged
from rollout_audit.dumps.formats.table import FORMATS
from rollout_audit.dumps.sources import open_source
from rollout_audit.errors import amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from rollout_audit.dumps.opening import FileInfo

__all__ = ["without_twins"]

_COMPARED = ("rollout_log_probs", "old_log_probs", "log_probs", "response_mask")
_CHUNK = 2**16
_FORMATS = list(FORMATS)


def without_twins(infos: Sequence[FileInfo], layout: str | None) -> tuple[list[FileInfo], list[Finding]]:
    """The files without those that hold, under the same name with another suffix, the very rows of another one.

    Only files of one name are compared, all their log-probs and masks. Of two formats the first in the table stays.
    """
    by_stem: dict[str, list[FileInfo]] = {}
    for info in infos:
        by_stem.setdefault(splitext(info.file.path)[0], []).append(info)
    twins: list[tuple[FileInfo, FileInfo]] = []
    for group in by_stem.values():
        first, *others = sorted(group, key=lambda info: _FORMATS.index(info.file.format))
        twins += [(info, first) for info in others if _same(info, first, layout)]
    left_out = {info.file.path for info, _ in twins}
    return [info for info in infos if info.file.path not in left_out], list(_said(twins))


def _said(twins: Sequence[tuple[FileInfo, FileInfo]]) -> Iterator[Finding]:
    if twins:
        info, kept = twins[0]
        text = (
            f"{amount(len(twins), 'file')} left out, the same rows as beside it in another format "
            f"({amount(info.rows, 'row')} of {kept.file.name})"
        )
        yield Finding("file_left_out", "warning", text, info.file.name, count=len(twins))


def _same(one: FileInfo, two: FileInfo, layout: str | None) -> bool:
    names, others = ([name for name in _COMPARED if name in info.fields] for info in (one, two))
    if one.rows != two.rows or one.step != two.step or names != others:
        return False
    rows = (_rows(info, names, layout) for info in (one, two))
    return all(_equal(a, b) for a, b in zip(*rows, strict=True))


def _equal(one: Sequence[NDArray[np.float64]], two: Sequence[NDArray[np.float64]]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, two, strict=True))


def _rows(info: FileInfo, names: Iterable[str], layout: str | None) -> Iterator[list[NDArray[np.float64]]]:
    columns = [info.fields[name].column for name in names]
    groups = range(len(info.row_groups))
    source = open_source(info.file, layout, info.own_map)
    for batch in source.batches(set(columns), size_by=info.lead, chunk_tokens=_CHUNK, row_groups=groups):
        lists = [column for name in columns if isinstance(column := batch.columns[name], Ragged)]
        for row in range(batch.rows):
            yield [c.values[c.offsets[row] : c.offsets[row + 1]].astype(np.float64) for c in lists]
