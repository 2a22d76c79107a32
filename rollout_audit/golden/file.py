"""Reading and writing golden files."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import ValidationError

from rollout_audit.dumps.text import TwiceError, each_once
from rollout_audit.errors import OldGoldenError, ReportError, suggest
from rollout_audit.golden.figures import FigureKey
from rollout_audit.golden.model import GOLDEN_SCHEMA, GOLDEN_VERSION, Golden
from rollout_audit.golden.tolerances import METRICS, Tolerance, has_threshold, is_logged
from rollout_audit.reports.utf8 import utf8

__all__ = ["read_golden", "update_command", "write_golden"]

OLDEST_READ = 1
"""Older files are refused, with the command that makes them anew"""
REMADE: Mapping[str, Callable[[Any], str]] = {
    "presets": lambda names: ",".join(n for n in _listed(names) if not n.endswith("-config")),
    "trainer": str,
    "config": json.dumps,
    "mode": str,
    "steps": str,
    "limit": str,
    "on_fault": str,
}
"""Setting of a golden file → the value of the option of that name; a run's own correction comes with its trainer"""
DOES_NOTHING = "not known and does nothing"


def read_golden(path: str | os.PathLike[str], dumps: Sequence[str] = ("DUMP",)) -> Golden:
    """Read a golden file.

    Args:
        path: the file.
        dumps: what it is of, for the command that an error names.

    Raises:
        OldGoldenError: of a schema that is no longer read.
        ReportError: not there, damaged, or of a newer schema.
    """
    command = update_command(dumps, path)
    tree = _load(Path(path), command)
    tag = tree.get("schema")
    name, version = (tag.get("name"), tag.get("version")) if isinstance(tag, dict) else (None, None)
    if name != GOLDEN_SCHEMA:
        raise _foreign(path, f"schema {name!r}, expected {GOLDEN_SCHEMA!r}", command)
    if not isinstance(version, int) or isinstance(version, bool):
        raise _foreign(path, f"golden version {version!r}, expected a whole number", command)
    if version > GOLDEN_VERSION:
        raise ReportError(f"{path}: golden version {version}, this tool reads up to {GOLDEN_VERSION}; upgrade it")
    if version < OLDEST_READ:
        raise OldGoldenError(_too_old(path, version, tree, dumps))
    try:
        golden = Golden.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ReportError(f"{path}: damaged golden file, {where}: {first['msg']}; mend or delete it") from error
    golden._remarks = tuple(_passed_over(tree["tolerances"]))
    for key, edge in golden.edges.items():
        if (name := FigureKey.parse(key).name) in METRICS and not has_threshold(name):
            raise ReportError(
                f"{path}: damaged golden file, edges.{key} = {edge}: {name} has no threshold; delete that line"
            )
    return golden


def write_golden(golden: Golden, path: str | os.PathLike[str]) -> None:
    """Write the file whole or not at all; one that is there keeps its place behind links, and who may read it.

    Raises:
        ReportError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    fresh = target.with_name(f".{target.name}-{uuid4().hex[:12]}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(utf8(golden.to_text()))
        if target.exists():
            shutil.copymode(target, fresh)
        fresh.replace(target)
    except OSError as error:
        raise ReportError(f"{path}: cannot write the golden file ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def update_command(dumps: Sequence[str], path: str | os.PathLike[str], *options: str) -> str:
    """What a person types to write the file."""
    golden = os.fspath(path)
    named = [f"--golden={golden}"] if golden.startswith("-") else ["--golden", golden]
    if any(dump.startswith("-") for dump in dumps):
        return shlex.join(["rollout-audit", "check", *named, *options, "--update", "--", *dumps])
    return shlex.join(["rollout-audit", "check", *dumps, *named, *options, "--update"])


def _listed(names: object) -> list[str]:
    return [str(name) for name in names] if isinstance(names, list) else []


def _too_old(path: str | os.PathLike[str], version: int, tree: Mapping[str, Any], dumps: Sequence[str]) -> str:
    """The command reads the dump as the old file was made, as far as that still says it."""
    made, given = tree.get("settings"), []
    for name, form in REMADE.items():
        value = made.get(name) if isinstance(made, dict) else None
        if value is not None and (text := form(value)):
            given += [f"--{name.replace('_', '-')}", text]
    lost = "; tolerances that were edited in it are not taken over: set them in [check.metrics] of rollout-audit.toml"
    command = update_command(dumps, path, *given)
    edited = lost if tree.get("tolerances") else ""
    return f"{path}: golden version {version} is no longer read{edited}; make it anew with: {command}"


def _passed_over(tolerances: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    known = Tolerance.model_fields
    for metric, table in tolerances.items():
        if metric not in METRICS and not is_logged(metric):
            yield f"tolerances.{metric!r} of the golden file is {DOES_NOTHING}{suggest(metric, METRICS)}"
        for key in (key for key in table if key not in known):
            yield f"tolerances.{metric}.{key!r} of the golden file is {DOES_NOTHING}{suggest(key, known)}"


def _load(file: Path, command: str) -> dict[str, Any]:
    """Editors of some systems begin a file with a byte order mark."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        if not text.strip():
            raise _foreign(file, "it is empty", command)
        tree = json.loads(text, object_pairs_hook=each_once)
    except TwiceError as error:
        raise ReportError(
            f"{file}: damaged golden file, {error.key!r} stands there twice; delete one of the two, "
            f"or write it anew with: {command}"
        ) from None
    except FileNotFoundError:
        raise ReportError(f"{file}: no such golden file; write it with: {command}") from None
    except OSError as error:
        raise ReportError(f"{file}: cannot read the golden file ({error.strerror or error}); name another") from error
    except (ValueError, RecursionError) as error:
        raise _foreign(file, " ".join(str(error).split()), command) from error
    if not isinstance(tree, dict):
        raise _foreign(file, f"a JSON {type(tree).__name__}", command)
    return tree


def _foreign(file: str | os.PathLike[str], what: str, command: str) -> ReportError:
    """Nothing of it is overwritten unasked: it may be somebody else's."""
    return ReportError(
        f"{file}: not a golden file ({what}); name another, or delete this one and write it with: {command}"
    )
