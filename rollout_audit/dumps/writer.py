"""What a trainer calls once a step to leave its log-probs behind."""

from __future__ import annotations

import os
import re
import sys
import warnings
from contextlib import suppress
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec
from uuid import uuid4

from rollout_audit.dumps.placing import SET_ASIDE, left_in, place, set_aside, stem_of
from rollout_audit.dumps.text import on_one_line
from rollout_audit.errors import UsageError, amount, suggest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["DumpWriter"]

OnError = Literal["warn", "raise"]
_BEYOND = 2**63
_BESIDE = "both are kept as parts of one step; give each a rank or a folder of its own where they are not"
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
            self._note_failure(
                on_one_line(_told(repr, given["step"])) if "step" in given else "without a number", error
            )
            return None

    return guarded


def _told(spell: Callable[[Any], str], value: object) -> str:
    """The text of a value, of its type where it has none to give: nothing may go wrong in saying what went wrong."""
    try:
        return spell(value)
    except Exception:
        return type(value).__name__


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
    """Writes one Parquet file a call, `step_000007_rank_0.parquet`, further ones of a step as `…_part_1.parquet`.

    Made for training loops: it copies to the host, drops prompt and padding, and writes; an error becomes a warning,
    given once for each kind, and `not_recorded` counts the calls that left nothing.
    One side alone may be recorded, to be joined with the other; the first step that has other sides than the one before
    is warned of, because such files do not make one dump.

    A writer is one recording, from where it is made on, and no file is ever overwritten or deleted. Files of a step and
    rank that lay there when the writer was made are of a recording before: they give way once the first new file of
    that step is complete, by the suffix `.replaced`, which is not read. Files that appear later are of a writer beside
    this one: both stay, as parts of one step. Either is said once. A file is written under a hidden name and then
    renamed, so a folder may be read while it is written.

    Args:
        folder: where the files go, also after a change of the working directory; made when the first is written.
        rank: part of the name, so that processes keep apart; None: that of `torch.distributed`, else of the
            environment (`RANK`, `SLURM_PROCID`), else 0.
        on_error: `warn` says what was not recorded and goes on; `raise` is for tests and for runs whose point is the
            dump.

    Raises:
        UsageError: `on_error` is neither, or the rank is no whole number from 0 on.
    """

    def __init__(self, folder: str | os.PathLike[str], *, rank: int | None = None, on_error: OnError = "warn") -> None:
        if on_error not in ("warn", "raise"):
            raise UsageError(f"on_error = {on_error!r}: expected 'warn' or 'raise'")
        self.folder = Path(folder).absolute()
        self._rank = None if rank is None else _whole(rank, "rank = {}: expected a whole number from 0 on")
        self._on_error = on_error
        self._before = left_in(self.folder)
        self._next_part: dict[str, int] = {}
        self._written = 0
        self._sides: tuple[str, ...] = ()
        self._told: set[str] = set()
        self._noticed: set[str] = set()
        self.not_recorded = 0
        """calls that failed"""

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Every file is complete once `write` returns; what is left is to say how many calls failed."""
        if self.not_recorded > len(self._told):
            calls = self.not_recorded + self._written
            _say(f"{self.not_recorded} of {calls} calls of DumpWriter.write recorded nothing", stacklevel=3)

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

    def _note_failure(self, step: str, error: Exception) -> None:
        """Count it, and warn where it is the first of its kind: the same words but for their numbers."""
        self.not_recorded += 1
        reason = " ".join(_told(str, error).split()) or type(error).__name__
        kind = re.sub(r"\d+", "#", reason)
        if kind not in self._told:
            self._told.add(kind)
            text = f"step {step} is not recorded: {reason} (said once; DumpWriter.not_recorded counts such calls)"
            _say(text, stacklevel=4)

    def _write(self, step: int, per_token: dict[str, Any], mask: Any, per_row: dict[str, Any]) -> Path:
        from rollout_audit.dumps.recording import recorded, write_recorded

        batch = recorded(step, per_token, mask, per_row)
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = stem_of(step, rank := _rank(self._rank))
        fresh = self.folder / f".{stem}-{uuid4().hex[:12]}.parquet"
        try:
            write_recorded(batch, fresh)
            with set_aside(self.folder, stem, self._before.get(stem, {})) as replaced:
                first = self._next_part.get(stem, 0)
                path, part = place(fresh, stem, first)
        finally:
            fresh.unlink(missing_ok=True)
        self._before.pop(stem, None)
        self._next_part[stem] = part + 1
        self._written += 1
        where = f"step {step} of rank {rank}"
        if replaced:
            gone = f"{amount(replaced, 'file')} set aside as *{SET_ASIDE}, which is not read"
            self._notice("replaced", f"{where} was recorded before this writer was made: {gone}")
        if part > first:
            self._notice("beside", f"{where} is recorded by another writer too: {_BESIDE}")
        self._notice_sides(step, per_token)
        return path

    def _notice(self, kind: str, text: str) -> None:
        """Say what may be wrong with a recording, once for each kind."""
        if kind not in self._noticed:
            self._noticed.add(kind)
            _say(f"{text} (said once)", stacklevel=6)

    def _notice_sides(self, step: int, per_token: dict[str, Any]) -> None:
        """Say that a folder holds steps with one side and steps with both."""
        sides = tuple(dict.fromkeys(side for name, side in _SIDES.items() if per_token[name] is not None))
        if self._sides and sides != self._sides and "sides" not in self._noticed:
            self._noticed.add("sides")
            has, had = (" and ".join(given) for given in (sides, self._sides))
            text = f"step {step} has log-probs of {has}, the one before of {had}: such files do not make one dump"
            _say(text, stacklevel=6)
        self._sides = sides


def _step(given: Any) -> int:
    return _whole(given, "step {} is no number of a training step: a whole number from 0 on")


def _whole(given: Any, problem: str) -> int:
    """A number of Python, NumPy or torch.

    Raises:
        UsageError: it is not whole, below 0, or beyond int64.
    """
    number = given
    if hasattr(given, "item"):
        with suppress(Exception):  # more than one number
            number = given.item()
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < _BEYOND or number % 1:
        raise UsageError(problem.format(on_one_line(repr(given))))
    return int(number)


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
