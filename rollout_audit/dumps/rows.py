"""The responses of a chunk, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_audit.dumps.chunk import Chunk, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["row_uid", "rows_of_chunk"]


def row_uid(chunk: Chunk, index: int, file: str) -> str:
    """The row's uid, else `file#row`."""
    uid = chunk.uids[index] if chunk.uids else ""
    return uid or f"{file}#{chunk.row_numbers[index]}"


def rows_of_chunk(chunk: Chunk, file: str) -> Iterator[Row]:
    for index in range(chunk.rows):
        yield _row(chunk, index, file)


def _row(chunk: Chunk, index: int, file: str) -> Row:
    span = slice(int(chunk.offsets[index]), int(chunk.offsets[index + 1]))

    def tokens(values: NDArray[Any] | None) -> Any:
        return None if values is None else values[span]

    reward = None if chunk.reward is None else float(chunk.reward[index])
    return Row(
        file=file,
        row=int(chunk.row_numbers[index]),
        uid=row_uid(chunk, index, file),
        step=int(chunk.steps[index]),
        rollout_log_probs=chunk.rollout_log_probs[span],
        old_log_probs=tokens(chunk.old_log_probs),
        log_probs=tokens(chunk.log_probs),
        response_mask=chunk.response_mask[span],
        advantages=tokens(chunk.advantages),
        reward=None if reward != reward else reward,
        token_ids=tokens(chunk.token_ids),
        group_id=None if chunk.group_ids is None else chunk.group_ids[index],
        policy_version=_version(chunk.policy_versions, index),
        newest_version=_version(chunk.newest_versions, index),
        trainer_version=_version(chunk.trainer_versions, index),
    )


def _version(values: NDArray[Any] | None, index: int) -> int | None:
    return None if values is None or values[index] < 0 else int(values[index])
