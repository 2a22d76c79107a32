"""Where a folder of files is written: beside its place under a hidden name, and renamed when it is whole."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from rollout_audit.errors import DumpError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["check_target", "fresh_folder", "names_with_suffix"]


def check_target(out: str | os.PathLike[str]) -> Path:
    """The folder, if it is new or empty.

    Raises:
        UsageError: it is a file, or holds something.
    """
    folder = Path(out)
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
    fresh = target.parent / f".{target.name}-{uuid4().hex[:12]}.tmp"
    try:
        fresh.mkdir(parents=True)
        yield fresh
        _into_place(fresh, target)
    except OSError as error:
        raise DumpError(f"{out}: cannot be written ({error.strerror or error}); give another --out") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def names_with_suffix(files: Sequence[str], suffixes: Sequence[str]) -> list[str]:
    """The names of the files with these suffixes, or with them behind their own where two would be the same."""
    plain = [re.sub(r"[{}]", "", file) for file in files]
    short = [str(Path(name).with_suffix(suffix)) for name, suffix in zip(plain, suffixes, strict=True)]
    count = Counter(short)
    return [
        one if count[one] == 1 else f"{name}{suffix}" for one, name, suffix in zip(short, plain, suffixes, strict=True)
    ]


def _into_place(fresh: Path, target: Path) -> None:
    """By one rename where that can be done; into a folder that cannot be replaced, file by file."""
    try:
        os.replace(fresh, target)
    except OSError:
        for path in sorted(fresh.iterdir()):
            shutil.move(path, target / path.name)
