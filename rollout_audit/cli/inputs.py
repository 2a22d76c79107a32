"""What a run reads is never written over by it: neither the dump nor the settings can be had again."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rollout_audit.errors import RolloutAuditError, UsageError
from rollout_audit.golden.settings import settings

__all__ = ["refuse_inputs"]

REMEDY = "name another file"


def refuse_inputs(
    written: Sequence[tuple[str, str]],
    dumps: Sequence[str],
    config: str | None = None,
    input_format: str | None = None,
) -> None:
    """Refuse outputs that are inputs, or that would be read as a part of the dump the next time.

    Args:
        written: (option as typed, the file that it writes).
        dumps: files, folders, globs or URIs.
        config: the trainer's configuration, a file or JSON.
        input_format: as in `open_dump`.

    Raises:
        UsageError: one of them.
    """
    if not written:
        return
    others = {os.path.realpath(file): what for file, what in _single_files(config)}
    for option, file in written:
        place = os.path.realpath(file)
        if place in others:
            raise UsageError(f"{option}: {others[place]} would be written over; {REMEDY}")
        if os.path.exists(place) and place in _files_of(dumps, input_format):
            raise UsageError(f"{option}: {file} is a part of the dump and would be written over; {REMEDY}")
        if (folder := _searched(file, dumps)) is not None:
            raise UsageError(f"{option}: lies in {folder}, and would be read as a part of it; {REMEDY}")


def _single_files(config: str | None) -> Iterator[tuple[str, str]]:
    own = settings().path
    if own is not None:
        yield str(own), f"the settings file {own.name}"
    if config is not None and not config.lstrip().startswith("{"):
        yield config, f"the configuration {config}"


def _files_of(dumps: Sequence[str], input_format: str | None) -> set[str]:
    """Where the dump cannot be opened, what its arguments name."""
    from rollout_audit.dumps.discovery import discover

    named = [path for dump in dumps for path in ([dump] if os.path.isfile(dump) else glob.glob(dump, recursive=True))]
    try:
        found = [path for file in discover(dumps, input_format) for path in (file.path, *file.parts)]
    except RolloutAuditError:
        found = []
    return {os.path.realpath(path) for path in (*named, *found) if "://" not in path}


def _searched(file: str, dumps: Sequence[str]) -> str | None:
    """The folder of the dump in which a file of that name is looked for."""
    from rollout_audit.dumps.formats.table import SUFFIXES

    if Path(file).suffix.lower() not in SUFFIXES or os.path.basename(file).startswith("."):
        return None
    place = Path(os.path.realpath(file))
    folders = (dump for dump in dumps if os.path.isdir(dump))
    return next((folder for folder in folders if place.is_relative_to(os.path.realpath(folder))), None)
