"""Which of the files found are the dump: what each is, ranks that belong together, and what is left out."""

from __future__ import annotations

import re
from dataclasses import replace
from posixpath import basename, dirname
from typing import TYPE_CHECKING

from rollout_audit.dumps.chunk import Finding, Severity
from rollout_audit.dumps.discovery import DumpFile, named_container, sibling_exists
from rollout_audit.dumps.formats.prime_rl import MARKER
from rollout_audit.dumps.formats.table import FORMATS, Container, recognise
from rollout_audit.dumps.ranks import merged
from rollout_audit.errors import NothingToAuditError, UnreadableFileError, amount

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rollout_audit.dumps.opening import FileInfo

__all__ = ["audited", "identify", "without_marker"]

_SPELT: Mapping[Container, str] = {
    "parquet": "Parquet",
    "safetensors": "safetensors",
    "jsonl": "JSON Lines",
    "torch": "torch.save",
    "npz": ".npz",
}
_BARE = {"jsonl", "torch"}
"""Formats of whatever is in no other: such a file may well be no dump at all."""
_ROLLOUT_FORMATS = {"slime-rollout", "miles-dashboard", "open-instruct"}
_INCOMPLETE = ("bare", "untrained", "rollout", "evaluation")
_NOTHING = "nothing at all"
_OBJECTS = "objects that are not tensors"
_EVALUATION = re.compile(r"(?:^|_)eval_")
_REASONS: Mapping[str, tuple[Severity, str]] = {
    "unfinished": ("warning", "without STABLE beside them: still being written? --input-format prime-rl reads them"),
    "empty": ("info", "without a line: cut off, or of an idle rank?"),
    "text": ("info", "without a column of rollout log-probs"),
    "objects": ("warning", "with more than tensors, which are not opened (checkpoints?)"),
    "rollout": ("info", "with rollout log-probs alone, beside files that hold the trainer's too"),
    "untrained": (
        "warning",
        "with rollout log-probs alone: the trainer's are missing, no file here has them; slime and miles write "
        "train_data with --dump-details DIR, else give a dump that has them as --join",
    ),
    "bare": ("warning", "in which nothing is the trainer's, though their format has a place for it"),
    "evaluation": ("info", "of evaluations, which nothing was trained on"),
}


def identify(
    files: Sequence[DumpFile], wanted: Collection[str], *, forced: bool
) -> tuple[list[DumpFile], list[Finding]]:
    """The files of a dump with the format of each, the files of all ranks of a miles rollout as one.

    Files of other things (text logs, metadata, steps that are still being written) are left out, and said.

    Args:
        files: as discovery found them.
        wanted: columns of which a file must have one to be a dump at all.
        forced: the format was given, so nothing is to be recognised and a missing marker does not count.

    Raises:
        UnreadableFileError: every file is still being written, or one is not at all what its name says.
        NothingToAuditError: no file has a line in it.
    """
    if forced:
        return merged(files), []
    groups: dict[str, list[DumpFile]] = {reason: [] for reason in ("", *_REASONS)}
    for file in files:
        names = _names(file)
        known = file if names is None else replace(file, format=recognise(file.format, names))
        why = _no_part(known, names or set(), frozenset(wanted))
        if why in ("text", "objects") and (promised := _misnamed(known)):
            raise UnreadableFileError(f"{file.path}: not a {_SPELT[promised]} file, and no dump of another kind either")
        groups[why].append(known)
    if groups[""]:
        others = [finding for reason in _REASONS for finding in _left_out(reason, groups[reason])]
        return merged(groups[""]), [*_misnamed_files(groups[""]), *others]
    if unfinished := groups["unfinished"]:
        raise UnreadableFileError(
            f"{unfinished[0].path}: no {MARKER} beside it, so prime-rl has not finished this step; "
            "--input-format prime-rl reads it all the same"
        )
    if (empty := groups["empty"]) and not (groups["objects"] or groups["text"]):
        more = f", nor in {amount(len(empty) - 1, 'file')} beside it" if empty[1:] else ""
        raise NothingToAuditError(
            f"{empty[0].path}: no line in it{more}: nothing to audit; cut off, or still being written?"
        )
    return [*groups["objects"], *groups["text"]], []  # the reader says what is wrong with them


def _misnamed(file: DumpFile) -> Container | None:
    """The kind that the name promises and the content is not."""
    promised = named_container(file.path)
    return promised if promised and promised != FORMATS[file.format].container else None


def _misnamed_files(files: Sequence[DumpFile]) -> list[Finding]:
    odd = [file for file in files if _misnamed(file)]
    if not odd:
        return []
    kind = _SPELT[FORMATS[odd[0].format].container]
    text = f"{amount(len(odd), 'file')} read as what the content is, not as the name says (here {kind})"
    return [Finding("misnamed_file", "info", text, odd[0].name, count=len(odd))]


def without_marker(files: Sequence[str], marker: str | None) -> list[Finding]:
    """That files were left out for want of the marker that was asked for."""
    return _said(files, "warning", f"without {marker} beside them: still being written?")


def _no_part(file: DumpFile, names: set[str], wanted: frozenset[str]) -> str:
    """Why a file is no part of the dump, empty where it is."""
    if _OBJECTS in names:
        return "objects"
    if _NOTHING in names:
        return "empty"
    if file.format in _BARE and not wanted & names:
        return "text"
    return "unfinished" if file.format == "prime-rl" and not sibling_exists(file.path, MARKER) else ""


def _names(file: DumpFile) -> set[str] | None:
    """What tells the format apart from others of its kind, None where the kind says all (or the columns will)."""
    if file.format == "jsonl":
        from rollout_audit.dumps.jsonl import first_line, first_object

        line = first_line(file.path)
        return set(first_object(line) or ()) if line else {_NOTHING}
    if file.format == "torch":
        from rollout_audit.dumps.torch_files import ForeignObjectsError, load_tensors

        try:
            content = load_tensors(file)
        except ForeignObjectsError:
            return {_OBJECTS}
        first = content[0] if isinstance(content, list) and content else content
        return set(first) if isinstance(first, dict) else set()
    return None


def _left_out(why: str, files: Sequence[DumpFile]) -> list[Finding]:
    """One finding for the files that are left out for this reason."""
    return _said([file.name for file in files], *_REASONS[why])


def _said(files: Sequence[str], severity: Severity, text: str) -> list[Finding]:
    if not files:
        return []
    text = f"{amount(len(files), 'file')} left out, {text}"
    return [Finding("file_left_out", severity, text, files[0], count=len(files))]


def audited(infos: Sequence[FileInfo]) -> tuple[list[FileInfo], list[Finding]]:
    """Files with both sides; those of the rollout alone only where there is no other, evaluations least of all."""
    trained = {_rollout(info) for info in infos if not info.lacks_training}
    kinds = [_kind(info, trained) for info in infos]
    best = next(kind for kind in ("whole", *_INCOMPLETE) if kind in kinds)
    groups = {kind: [info for info, its in zip(infos, kinds, strict=True) if its == kind] for kind in kinds}
    others = [kind for kind in _INCOMPLETE if kind in groups and kind != best]
    return groups[best], [f for kind in others for f in _left_out(kind, [info.file for info in groups[kind]])]


def _kind(info: FileInfo, trained: Collection[tuple[str, int]]) -> str:
    if not info.lacks_training:
        return "whole"
    if _EVALUATION.search(basename(info.file.path)):
        return "evaluation"
    if info.file.format not in _ROLLOUT_FORMATS:
        return "bare"
    return "rollout" if _rollout(info) in trained else "untrained"


def _rollout(info: FileInfo) -> tuple[str, int]:
    """The run and the rollout of it that a file tells of: slime and miles keep each kind in a folder of the run."""
    return dirname(dirname(info.file.path)), info.step
