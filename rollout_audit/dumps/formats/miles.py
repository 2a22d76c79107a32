"""miles' `train_data/{rollout_id}_{rank}.pt`: one file a rank, columns of lists, one entry a sample.

Samples are dealt over data-parallel ranks; under context parallelism every rank of a sample holds two pieces of its
per-token columns, while mask and tokens are whole. All ranks of a rollout are read as one and put in the order of the
samples. Source: `train_dump_utils.py`, `cp_utils.py`, radixark/miles 31f1ca9.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rollout_audit.dumps.values import on_host
from rollout_audit.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rollout_audit.dumps.records import Record

__all__ = ["FIELDS", "merged_rows"]

FIELDS = {"old_log_probs": "log_probs", "response_mask": "loss_masks", "uid": "sample_index"}
_SLICED = ("rollout_log_probs", "log_probs", "advantages")
_Key: TypeAlias = tuple[int, bytes, int]
"""sample, digest of what every rank holds whole, and which of those that are equal in both, in its file"""
_WHOLE = ("tokens", "loss_masks", "response_lengths", "total_lengths")


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one rank holds of one sample."""

    rank_file: str
    cp_rank: int
    cp_size: int
    contiguous: bool
    columns: Mapping[str, Any]


def merged_rows(contents: Sequence[tuple[str, dict[str, Any]]]) -> list[Record]:
    """One row a sample from the files of all ranks, more where a sample was trained on in several pieces.

    Tensor and pipeline ranks hold the same piece, some without the results: of copies the fullest is read. What
    differs is no copy.

    Args:
        contents: (name of the file, what it holds).

    Raises:
        UnreadableFileError: a context-parallel piece is missing or of another length than its rank owns, or there
            are two that differ.
    """
    rows: list[tuple[int, Mapping[int, _Piece]]] = []
    for (index, *_), ranks in _samples(contents).items():
        if all(piece.cp_size == 1 for pieces in ranks.values() for piece in pieces):
            rows += [(index, {piece.cp_rank: piece}) for pieces in ranks.values() for piece in pieces]
            continue
        for cp_rank, pieces in ranks.items():
            if len(pieces) > 1:
                raise UnreadableFileError(
                    f"{pieces[1].rank_file}: sample {index} differs from that in {pieces[0].rank_file}, and both are "
                    f"of context-parallel rank {cp_rank}: which pieces belong together? Give the files of one run alone"
                )
        rows.append((index, {cp_rank: pieces[0] for cp_rank, pieces in ranks.items()}))
    return [_row(index, pieces) for index, pieces in sorted(rows, key=lambda row: row[0])]


def _samples(contents: Sequence[tuple[str, dict[str, Any]]]) -> dict[_Key, dict[int, list[_Piece]]]:
    """Context-parallel rank → its pieces of a sample, without copies that other files have."""
    found: dict[_Key, dict[int, list[_Piece]]] = {}
    for name, content in contents:
        before: Counter[tuple[int, bytes]] = Counter()
        for index, piece in _pieces(name, content):
            same = index, _digest(piece)
            pieces = found.setdefault((*same, before[same]), {}).setdefault(piece.cp_rank, [])
            before[same] += 1
            known = next((place for place, other in enumerate(pieces) if _is_copy(piece, other)), None)
            if known is None:
                pieces.append(piece)
            else:
                pieces[known] = max(pieces[known], piece, key=_computed)
    return found


def _digest(piece: _Piece) -> bytes:
    """Of what every rank holds whole."""
    digest = hashlib.sha256()
    for name in _WHOLE:
        value = piece.columns.get(name)
        digest.update(b"none" if value is None else _numbers(value).tobytes())
    return digest.digest()


def _numbers(value: Any) -> NDArray[Any]:
    return on_host(value) if hasattr(value, "dtype") else np.asarray(value)


def _is_copy(one: _Piece, two: _Piece) -> bool:
    """Whether all that both hold is the same, number by number."""
    held = [(one.columns.get(name), two.columns.get(name)) for name in _SLICED]
    pairs = [(_numbers(a), _numbers(b)) for a, b in held if a is not None and b is not None]
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def _computed(piece: _Piece) -> int:
    return sum(piece.columns.get(name) is not None for name in _SLICED)


def _pieces(name: str, content: dict[str, Any]) -> Iterator[tuple[int, _Piece]]:
    data = content["rollout_data"]
    indices = [int(index) for index in data["sample_indices"]]
    cp_rank, cp_size = int(content.get("cp_rank") or 0), int(content.get("cp_size") or 1)
    contiguous = content.get("qkv_format", "thd") == "thd"
    lists = {
        column: values
        for column, values in data.items()
        if isinstance(values, list) and len(values) == len(indices) and column not in ("raw_reward", "rewards")
    }
    for place, index in enumerate(indices):
        columns = {column: values[place] for column, values in lists.items()}
        yield index, _Piece(name, cp_rank, cp_size, contiguous, columns)


def _row(index: int, pieces: Mapping[int, _Piece]) -> Record:
    first = next(iter(pieces.values()))
    columns = first.columns
    row: dict[str, Any] = {"sample_index": index}
    row |= {name: columns[name] for name in ("loss_masks", "weight_versions", "truncated") if name in columns}
    length = int(columns["response_lengths"])
    if "tokens" in columns:
        row["token_ids"] = columns["tokens"][len(columns["tokens"]) - length :]
    for name in _SLICED:
        if first.cp_size == 1 and name in columns:
            row[name] = columns[name]
        elif name in columns:
            row[name] = _joined(name, index, pieces)
    return row


def _joined(name: str, index: int, pieces: Mapping[int, _Piece]) -> NDArray[Any]:
    """The pieces of all context-parallel ranks, each put where its rank stands in the response."""
    first = next(iter(pieces.values()))
    missing = sorted(set(range(first.cp_size)) - {rank for rank, piece in pieces.items() if name in piece.columns})
    if missing:
        raise UnreadableFileError(
            f"{first.rank_file}: {name} of sample {index} is cut over {first.cp_size} context-parallel ranks and that "
            f"of cp_rank {missing[0]} is not there; give the files of all ranks"
        )
    if not first.contiguous:
        raise UnreadableFileError(
            f"{first.rank_file}: {name} is cut over {first.cp_size} context-parallel ranks by padded length "
            "(qkv_format other than thd), which is not put together; dump with thd, or with one context-parallel rank"
        )
    total, length = int(first.columns["total_lengths"]), int(first.columns["response_lengths"])
    whole = np.full(length, np.nan)
    for rank, piece in pieces.items():
        places = _owned(rank, piece.cp_size, total, length)
        values = piece.columns[name]
        if len(values) != len(places):
            raise UnreadableFileError(
                f"{piece.rank_file}: {name} of sample {index} has {len(values)} values, cp_rank {rank} of "
                f"{piece.cp_size} owns {len(places)} of {length} response tokens: cut in a way that is not known here"
            )
        array = on_host(values)
        whole = whole.astype(array.dtype, copy=False) if rank == next(iter(pieces)) else whole
        whole[places] = array
    return whole


def _owned(rank: int, size: int, total: int, length: int) -> NDArray[np.int64]:
    """Response tokens that a rank owns, in the order of its slice.

    Prompt and response are cut into 2·size chunks of equal length; rank r predicts from chunks r and 2·size − 1 − r,
    and response token t is predicted at place prompt − 1 + t.
    """
    chunk = -(-total // (2 * size))
    places = np.arange(length) + total - length - 1
    of_chunk = places // chunk
    return np.flatnonzero((of_chunk == rank) | (of_chunk == 2 * size - 1 - rank))
