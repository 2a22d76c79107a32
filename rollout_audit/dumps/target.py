"""Where a folder of files is written: beside its place under a hidden name, and renamed when it is whole."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections import Counter
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from rollout_audit.errors import DumpError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["check_target", "fresh_folder", "names_with_suffix", "replacing"]


def check_target(out: str | os.PathLike[str], sources: Sequence[str] = ()) -> Path:
    """The folder, if it is new or empty.

    Raises:
        UsageError: it is a file, or holds something, or lies in a folder of the sources, which are searched.
    """
    folder = Path(out)
    for source in sources:
        if os.path.isdir(source) and folder.resolve().is_relative_to(Path(source).resolve()):
            raise UsageError(f"{folder}: lies in {source}, and would be read as a part of it; give a folder outside")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is not a folder; give another --out")
    if folder.is_dir() and (inside := sorted(folder.iterdir())):
        raise UsageError(f"{folder}: not empty (it holds {inside[0].name}); give a new folder to --out, or clear it")
    return folder


@contextmanager
def fresh_folder(out: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to write in, which takes the place of `out` at the end; on an error nothing is left of it.

    Raises:
        UsageError: `out` holds something.
        DumpError: it cannot be written.
    """
    target = check_target(out).resolve()
    try:
        with replacing(target) as fresh:
            yield fresh
    except OSError as error:
        raise DumpError(f"{out}: cannot be written ({error.strerror or error}); give another --out") from error


@contextmanager
def replacing(target: Path, *, last: str = "") -> Iterator[Path]:
    """A fresh folder that takes the target's place at the end; on an error nothing is left of it.

    `last` is the file that vouches for the rest: where files are moved one by one it goes first and comes last.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    room = target.parent if _can_rename(target) else target
    fresh = room / f".{target.name}-{uuid4().hex[:12]}.tmp"
    fresh.mkdir()
    try:
        yield fresh
        if room is target:
            _move_in(fresh, target, last)
        else:
            _swap(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def names_with_suffix(files: Sequence[str], suffixes: Sequence[str]) -> list[str]:
    """The names of the files with these suffixes, or with them behind their own where two would be the same.

    Each is another one, letter case aside; where even that fails a number tells them apart.
    """
    plain = [re.sub(r"[{}]", "", file) for file in files]
    short = [str(Path(name).with_suffix(suffix)) for name, suffix in zip(plain, suffixes, strict=True)]
    count = Counter(map(str.casefold, short))
    names: list[str] = []
    taken: set[str] = set()
    for one, name, suffix in zip(short, plain, suffixes, strict=True):
        stem = one.removesuffix(suffix) if count[one.casefold()] == 1 else name
        candidates = chain([f"{stem}{suffix}"], (f"{stem}_{number}{suffix}" for number in itertools.count(2)))
        names.append(next(free for free in candidates if free.casefold() not in taken))
        taken.add(names[-1].casefold())
    return names


def _can_rename(target: Path) -> bool:
    """Not so for a mount point, or in a folder that we may not write to."""
    return not target.exists() or (os.access(target.parent, os.W_OK) and not target.is_mount())


def _swap(fresh: Path, target: Path) -> None:
    """Renames only: for a moment between the two there is nothing, at no time half of it."""
    if not target.exists():
        fresh.rename(target)
        return
    old = fresh.with_suffix(".old")
    target.rename(old)
    try:
        fresh.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _move_in(fresh: Path, target: Path, last: str) -> None:
    if last:
        (target / last).unlink(missing_ok=True)
    for path in sorted(fresh.iterdir(), key=lambda path: path.name == last):
        place = target / path.name
        if place.is_dir():
            shutil.rmtree(place)
        path.rename(place)
