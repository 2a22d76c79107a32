"""The report folder: written beside its place and renamed, so that it is there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors.numpy import save

from rollout_audit.audit.report import SCHEMA_NAME, SCHEMA_VERSION, Report
from rollout_audit.dumps.target import replacing
from rollout_audit.errors import ReportError
from rollout_audit.reports.frames import write_columns, write_steps
from rollout_audit.reports.records import step_records

__all__ = ["Written", "check_output", "read_report", "report_folder", "write_report"]

REPORT_FILE = "report.json"
PLOTS = "plots"
SEQUENCES, STATES, SWEEP = "sequences.parquet", "states.safetensors", "sweep.parquet"
OWN_FILES = frozenset({REPORT_FILE, SEQUENCES, STATES, SWEEP, "steps.parquet"})
STATES_KEY = "states"
"""Metadata of `states.safetensors`: one key, since the library keeps several in no order"""


@dataclass(frozen=True, slots=True)
class Written:
    """What a report folder holds, and what could not be made."""

    folder: Path
    files: tuple[str, ...]
    """relative to the folder, in order"""
    failures: Mapping[str, str]
    """picture → why it is missing"""


def write_report(report: Report, out: str | os.PathLike[str], *, plots: bool = True) -> Written:
    """Write report.json, the Parquet tables and plots/*.png; an older report there is replaced.

    A picture that fails costs nothing but itself.

    Raises:
        ReportError: the folder holds something else, or cannot be written.
    """
    target = check_output(out).resolve()
    try:
        with replacing(target, last=REPORT_FILE) as folder:
            (folder / REPORT_FILE).write_text(report.to_json(), encoding="utf-8", newline="\n")
            write_columns(report.pictures.sequences, folder / SEQUENCES)
            if (states := report.pictures.states) is not None:
                (folder / STATES).write_bytes(save(dict(states.tensors), metadata={STATES_KEY: states.header}))
            write_steps(step_records(report), folder / "steps.parquet")
            if report.pictures.points is not None:
                write_columns(report.pictures.points, folder / SWEEP)
            failures = _draw(report, folder) if plots else {}
            files = tuple(sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()))
    except OSError as error:
        raise ReportError(f"{out}: cannot write the report ({error.strerror or error}); give another --out") from error
    return Written(Path(out), files, failures)


def check_output(out: str | os.PathLike[str]) -> Path:
    """The folder, if a report may be written there: new, empty, or an older report of ours.

    Raises:
        ReportError: it is a file, or holds something that is not ours.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ReportError(f"{folder}: is not a folder; give another --out")
    if not folder.is_dir() or not any(folder.iterdir()):
        return folder
    if not _is_ours(folder):
        raise ReportError(
            f"{folder}: not empty and no report of rollout-audit, so it is left alone; give another --out"
        )
    if foreign := _foreign(folder):
        raise ReportError(f"{folder}: beside a report it holds {foreign}, which would be lost; give another --out")
    return folder


def _foreign(folder: Path) -> str:
    """The first thing in a report folder that no report put there."""
    strange = [path for path in folder.iterdir() if path.name not in OWN_FILES and path.name != PLOTS]
    strange += [path for path in (folder / PLOTS).rglob("*") if path.suffix != ".png"]
    return min((path.relative_to(folder).as_posix() for path in strange), default="")


def report_folder(path: str | os.PathLike[str]) -> Path:
    """The folder of a report that is named by itself or by its report.json."""
    return Path(path) if Path(path).is_dir() else Path(path).parent


def read_report(path: str | os.PathLike[str]) -> Report:
    """A report read back from its folder or its report.json; its pictures were not kept.

    Raises:
        ReportError: not there, not a report, or of a newer version than this tool knows.
    """
    file = Path(path)
    file = file / REPORT_FILE if file.is_dir() else file
    tree = _load(file)
    tag = tree.get("schema")
    name, version = (tag.get("name"), tag.get("version")) if isinstance(tag, dict) else (None, None)
    if name != SCHEMA_NAME or not isinstance(version, int):
        raise ReportError(f"{file}: not a report of rollout-audit (schema {name!r}, expected {SCHEMA_NAME!r})")
    if version > SCHEMA_VERSION:
        raise ReportError(
            f"{file}: report version {version}, this tool reads up to {SCHEMA_VERSION}; upgrade rollout-audit"
        )
    try:
        return Report.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ReportError(f"{file}: damaged report, {where}: {first['msg']}") from error


def _load(file: Path) -> dict[str, Any]:
    try:
        tree = json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ReportError(f"{file}: no such report") from None
    except (OSError, ValueError) as error:
        raise ReportError(f"{file}: not a report of rollout-audit ({' '.join(str(error).split())})") from error
    if not isinstance(tree, dict):
        raise ReportError(f"{file}: not a report of rollout-audit (a JSON {type(tree).__name__})")
    return tree


def _is_ours(folder: Path) -> bool:
    with suppress(ReportError):
        tag = _load(folder / REPORT_FILE).get("schema")
        return isinstance(tag, dict) and tag.get("name") == SCHEMA_NAME
    return False


def _draw(report: Report, folder: Path) -> Mapping[str, str]:
    """Failures by picture; matplotlib itself may be what fails (a backend that is not there)."""
    try:
        drawn = import_module("rollout_audit.reports.plots").draw_all(report, folder / PLOTS)
    except Exception as error:  # a picture never costs the figures
        return {"plots": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    return dict(drawn.failures)
