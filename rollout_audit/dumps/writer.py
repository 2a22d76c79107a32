"""What a trainer calls once a step to leave its log-probs behind."""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollout_audit.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["DumpWriter"]

OnError = Literal["warn", "raise"]
_SIDES = {"rollout_log_probs": "rollout", "old_log_probs": "trainer", "log_probs": "trainer"}


class DumpWriter:
    """Writes one Parquet file a call, `step_000007_rank_0.parquet`, under a hidden name that is renamed at the end.

    Made for training loops: it copies to the host, drops prompt and padding, and writes; an error becomes a warning.
    One side alone may be recorded, to be joined with the other; the first step that has other sides than the one before
    is warned of, because such files do not make one dump.

    Args:
        folder: where the files go; made when the first is written.
        rank: part of the name, so that processes do not write over each other; None: that of `torch.distributed`,
            else of the environment (`RANK`, `SLURM_PROCID`), else 0.
        on_error: `warn` says what was not recorded and goes on; `raise` is for tests and for runs whose point is the
            dump.

    Raises:
        UsageError: `on_error` is neither.
    """

    def __init__(self, folder: str | os.PathLike[str], *, rank: int | None = None, on_error: OnError = "warn") -> None:
        if on_error not in ("warn", "raise"):
            raise UsageError(f"on_error = {on_error!r}: expected 'warn' or 'raise'")
        self.folder = Path(folder)
        self._rank = rank
        self._on_error = on_error
        self._written: Counter[int] = Counter()
        self._sides: tuple[str, ...] = ()
        self._mixed = False

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Every file is complete once `write` returns: nothing is left to do."""

    def write(
        self,
        *,
        step: int,
        rollout_log_probs: Any = None,
        old_log_probs: Any = None,
        log_probs: Any = None,
        response_mask: Any = None,
        advantages: Any = None,
        token_ids: Any = None,
        reward: Any = None,
        uid: Any = None,
        group_id: Any = None,
        policy_version: Any = None,
        trainer_version: Any = None,
    ) -> Path | None:
        """Write the responses of one step; a second call with the same step writes a second file.

        Of each response what lies from the first to the last 1 of the mask is kept, tokens under a 0 between them
        included. A response without a 1 stays in as an empty one.

        Args:
            step: the training step.
            rollout_log_probs: of the inference engine. This and every per-token argument: [B, T] tensor of any device
                or type, NumPy array, nested tensor, or a list of B lists, arrays or tensors of uneven length; all of
                the same shape, index t of each for the same token.
            old_log_probs: of the trainer, recomputed before the update.
            log_probs: of the policy when the loss was computed.
            response_mask: 1 where the policy sampled the token and the loss counts it; None: everywhere.
            advantages: per token, or [B].
            token_ids: of the response.
            policy_version: of the weights that sampled it: per token, [B], or one value for all.
            reward, uid, group_id, trainer_version: [B], or one value for all.

        Returns:
            The file, None where it could not be written.

        Raises:
            DumpError: with `on_error="raise"`, arguments that do not fit each other.
            OSError: with `on_error="raise"`, the file cannot be written.
        """
        per_token = {
            "rollout_log_probs": rollout_log_probs,
            "old_log_probs": old_log_probs,
            "log_probs": log_probs,
            "advantages": advantages,
            "token_ids": token_ids,
            "policy_version": policy_version,
        }
        per_row = {
            "reward": reward,
            "uid": uid,
            "group_id": group_id,
            "trainer_version": trainer_version,
        }
        try:
            return self._write(int(step), per_token, response_mask, per_row)
        except Exception as error:
            if self._on_error == "raise":
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(f"rollout-audit: step {step} is not recorded: {reason}", RuntimeWarning, stacklevel=2)
            return None

    def _write(self, step: int, per_token: dict[str, Any], mask: Any, per_row: dict[str, Any]) -> Path:
        from rollout_audit.dumps.recording import recorded, write_recorded

        batch = recorded(step, per_token, mask, per_row)
        self.folder.mkdir(parents=True, exist_ok=True)
        part = f"_part_{self._written[step]}" if self._written[step] else ""
        path = self.folder / f"step_{step:06d}_rank_{_rank(self._rank)}{part}.parquet"
        write_recorded(batch, path)
        self._written[step] += 1
        self._notice_sides(step, per_token)
        return path

    def _notice_sides(self, step: int, per_token: dict[str, Any]) -> None:
        """Say once that a folder holds steps with one side and steps with both."""
        sides = tuple(dict.fromkeys(side for name, side in _SIDES.items() if per_token[name] is not None))
        if self._sides and sides != self._sides and not self._mixed:
            self._mixed = True
            has, had = (" and ".join(given) for given in (sides, self._sides))
            text = f"step {step} has log-probs of {has}, the one before of {had}: such files do not make one dump"
            warnings.warn(f"rollout-audit: {text}", RuntimeWarning, stacklevel=4)
        self._sides = sides


def _rank(given: int | None) -> int:
    """Asked at the first write: a process group may begin after the writer was made."""
    if given is not None:
        return given
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return next((int(text) for name in ("RANK", "SLURM_PROCID") if (text := os.environ.get(name, "")).isdigit()), 0)
