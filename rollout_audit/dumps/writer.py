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
from weakref import WeakSet

from rollout_audit.errors import UsageError, amount, suggest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["DumpWriter"]

OnError = Literal["warn", "raise"]
_LIVE: WeakSet[DumpWriter] = WeakSet()
"""Writers of this process that may still write: two of one folder and rank do not take each other's names"""
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
        _LIVE.add(self)

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Every file is complete once `write` returns; what is left is to say how many calls failed."""
        if self.not_recorded > len(self._told):
            calls = self.not_recorded + self._written.total()
            _say(f"{self.not_recorded} of {calls} calls of DumpWriter.write recorded nothing", stacklevel=3)
        _LIVE.discard(self)

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
        return self._write(_step(step), per_token, response_mask, per_row)

    def _note_failure(self, step: object, error: Exception) -> None:
        """Count it, and warn where it is the first of its kind: the same words but for their numbers."""
        self.not_recorded += 1
        reason = " ".join(str(error).split()) or type(error).__name__
        kind = re.sub(r"\d+", "#", reason)
        if kind not in self._told:
            self._told.add(kind)
            text = f"step {step} is not recorded: {reason} (said once; DumpWriter.not_recorded counts such calls)"
            _say(text, stacklevel=4)

    def _write(self, step: int, per_token: dict[str, Any], mask: Any, per_row: dict[str, Any]) -> Path:
        from rollout_audit.dumps.recording import recorded, write_recorded

        batch = recorded(step, per_token, mask, per_row)
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = f"step_{step:06d}_rank_{_rank(self._rank)}"
        if written := sum(writer._written[step] for writer in _LIVE if self._is_beside(writer)):
            path = self.folder / f"{stem}_part_{written}.parquet"
        else:
            self._clear_away(step, stem)
            path = self.folder / f"{stem}.parquet"
        write_recorded(batch, path)
        self._written[step] += 1
        self._notice_sides(step, per_token)
        return path

    def _is_beside(self, other: DumpWriter) -> bool:
        """Whether it writes the same names, as this one does itself."""
        return other.folder.absolute() == self.folder.absolute() and _rank(other._rank) == _rank(self._rank)

    def _clear_away(self, step: int, stem: str) -> None:
        """A run that was begun again writes its steps anew: what it left of this one before must not stay beside it."""
        left = sorted(self.folder.glob(f"{stem}_part_*.parquet"))
        for path in left:
            path.unlink()
        if left:
            _say(f"step {step} is written anew: removed {amount(len(left), 'file')} of it from before", stacklevel=7)

    def _notice_sides(self, step: int, per_token: dict[str, Any]) -> None:
        """Say once that a folder holds steps with one side and steps with both."""
        sides = tuple(dict.fromkeys(side for name, side in _SIDES.items() if per_token[name] is not None))
        if self._sides and sides != self._sides and not self._mixed:
            self._mixed = True
            has, had = (" and ".join(given) for given in (sides, self._sides))
            text = f"step {step} has log-probs of {has}, the one before of {had}: such files do not make one dump"
            _say(text, stacklevel=6)
        self._sides = sides


def _step(given: Any) -> int:
    if isinstance(given, bool) or int(given) != given or int(given) < 0:
        raise UsageError(f"step {given!r} is no number of a training step: a whole number from 0 on")
    return int(given)


def _say(text: str, *, stacklevel: int) -> None:
    """A warning that stays one where a filter makes errors of them: it may be said inside a training loop."""
    try:
        warnings.warn(f"rollout-audit: {text}", RuntimeWarning, stacklevel=stacklevel)
    except RuntimeWarning:
        print(f"rollout-audit: {text}", file=sys.stderr)


def _rank(given: int | None) -> int:
    """Asked at the first write: a process group may begin after the writer was made."""
    if given is not None:
        return given
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return next((int(text) for name in ("RANK", "SLURM_PROCID") if (text := os.environ.get(name, "")).isdigit()), 0)
