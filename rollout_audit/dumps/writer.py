"""What a trainer calls once a step to leave its log-probs behind."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import Counter
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec

from rollout_audit.errors import UsageError, amount, suggest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["DumpWriter"]

OnError = Literal["warn", "raise"]
_SIDES = {"rollout_log_probs": "rollout", "old_log_probs": "trainer", "log_probs": "trainer"}
Given = ParamSpec("Given")


def _kept_out_of_the_loop(
    write: Callable[Concatenate[DumpWriter, Given], Path | None],
) -> Callable[Concatenate[DumpWriter, Given], Path | None]:
    """Whatever goes wrong in the call, its arguments included, becomes a warning unless errors are asked for."""

    @wraps(write)
    def guarded(self: DumpWriter, /, *args: Given.args, **given: Given.kwargs) -> Path | None:
        try:
            _check_arguments(write, args, given)
            return write(self, *args, **given)
        except Exception as error:
            if self._on_error == "raise":
                raise
            self._note_failure(given.get("step", "without a number"), error)
            return None

    return guarded


def _check_arguments(write: Callable[..., Any], args: tuple[object, ...], given: dict[str, object]) -> None:
    """Raises UsageError for arguments that the call does not take, or that are missing."""
    known = list(signature(write).parameters)[1:]
    if args:
        raise UsageError(f"{amount(len(args), 'argument')} without a name; every one is named: {', '.join(known)}")
    for name in given:
        if name not in known:
            raise UsageError(f"unknown argument {name!r}{suggest(name, known)}; known are {', '.join(known)}")
    if "step" not in given:
        raise UsageError("no step given: step=7 says which training step this is")


class DumpWriter:
    """Writes one Parquet file a call, `step_000007_rank_0.parquet`, under a hidden name that is renamed at the end.

    Made for training loops: it copies to the host, drops prompt and padding, and writes; an error becomes a warning,
    given once for each kind, and `not_recorded` counts the calls that left nothing.
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
        self._told: set[str] = set()
        self.not_recorded = 0
        """calls that failed"""

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Every file is complete once `write` returns; what is left is to say how many calls failed."""
        if self.not_recorded > len(self._told):
            calls = self.not_recorded + self._written.total()
            text = f"rollout-audit: {self.not_recorded} of {calls} calls of DumpWriter.write recorded nothing"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    @_kept_out_of_the_loop
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
            UsageError: with `on_error="raise"`, an argument that is not known, or no step.
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
        return self._write(int(step), per_token, response_mask, per_row)

    def _note_failure(self, step: object, error: Exception) -> None:
        """Count it, and warn where it is the first of its kind: the same words but for their numbers."""
        self.not_recorded += 1
        reason = " ".join(str(error).split()) or type(error).__name__
        kind = re.sub(r"\d+", "#", reason)
        if kind not in self._told:
            self._told.add(kind)
            text = f"step {step} is not recorded: {reason} (said once; DumpWriter.not_recorded counts such calls)"
            warnings.warn(f"rollout-audit: {text}", RuntimeWarning, stacklevel=3)

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
            warnings.warn(f"rollout-audit: {text}", RuntimeWarning, stacklevel=5)
        self._sides = sides


def _rank(given: int | None) -> int:
    """Asked at the first write: a process group may begin after the writer was made."""
    if given is not None:
        return given
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return next((int(text) for name in ("RANK", "SLURM_PROCID") if (text := os.environ.get(name, "")).isdigit()), 0)
