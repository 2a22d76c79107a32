"""Under which name a file of a recording comes to lie, and how what it replaces is set aside."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["SET_ASIDE", "left_in", "place", "set_aside", "stem_of"]

SET_ASIDE = ".replaced"
"""suffix under which no reader looks"""
_RECORDED = re.compile(r"(step_\d+_rank_\d+)(?:_part_\d+)?\.parquet")


def stem_of(step: int, rank: int) -> str:
    """What the names of all files of a step and rank begin with."""
    return f"step_{step:06d}_rank_{rank}"


def left_in(folder: Path) -> dict[str, dict[str, int]]:
    """Files of recordings that lie in a folder: stem → name → inode. Nothing where it cannot be listed."""
    found: dict[str, dict[str, int]] = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if parts := _RECORDED.fullmatch(entry.name):
                found.setdefault(parts[1], {})[entry.name] = entry.inode()
    return found


@contextmanager
def set_aside(folder: Path, stem: str, names: Mapping[str, int]) -> Iterator[int]:
    """Rename those files that are still the same ones, back again where the block fails; yields how many they are."""
    now = left_in(folder).get(stem, {}) if names else {}
    moved: list[tuple[Path, Path]] = []
    try:
        for path in (folder / name for name in sorted(names) if now.get(name) == names[name]):
            with suppress(FileNotFoundError):  # another process was here first
                moved.append((path, _moved(path, _aside(path))))
        yield len(moved)
    except BaseException:
        for path, aside in reversed(moved):
            _renamed(aside, path)
        raise


def place(fresh: Path, stem: str, first: int) -> tuple[Path, int]:
    """Give a complete file the next name of its stem that is free; the path, and the number of its part."""
    for part in count(first):
        path = fresh.with_name(f"{stem}_part_{part}.parquet" if part else f"{stem}.parquet")
        if _renamed(fresh, path):
            return path, part
    raise AssertionError


def _aside(path: Path) -> Iterator[Path]:
    return (path.with_name(f"{path.name}{SET_ASIDE}{f'_{again}' if again else ''}") for again in count())


def _moved(source: Path, targets: Iterable[Path]) -> Path:
    return next(target for target in targets if _renamed(source, target))


def _renamed(source: Path, target: Path) -> bool:
    """Rename unless the name is taken, so that of two processes at once only one gets it."""
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if target.exists():
            return False
        os.rename(source, target)
        return True
    source.unlink(missing_ok=True)
    return True
