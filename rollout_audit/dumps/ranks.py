"""Files of one rollout that several ranks wrote, found by what they hold and read as one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from os.path import commonprefix
from posixpath import dirname
from typing import TYPE_CHECKING, TypeAlias

from rollout_audit.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollout_audit.dumps.discovery import DumpFile

__all__ = ["merged"]

_DIGITS = "0123456789"


@dataclass(frozen=True, slots=True)
class _Held:
    """What one file says of itself."""

    file: DumpFile
    rollout: str
    rank: str


_Group: TypeAlias = "list[_Held]"


def merged(files: Sequence[DumpFile]) -> list[DumpFile]:
    """The files of all ranks of a miles rollout as one; every other file as it is.

    Rollout and rank are those that a file holds, whatever it is called. Files of one folder belong together, and
    folders do where no rank is in two of them: else they are of several runs.
    """
    of_ranks = [_held(file) for file in files if file.format == "miles"]
    rollouts: dict[str, _Group] = {}
    for one in of_ranks:
        rollouts.setdefault(one.rollout, []).append(one)
    whole = {group[0].file.path: group for all_of in rollouts.values() for group in _runs(all_of)}
    parts = {one.file.path for group in whole.values() for one in group}
    return [
        _as_one([one.file for one in whole[file.path]]) if file.path in whole else file
        for file in files
        if file.path in whole or file.path not in parts
    ]


def _held(file: DumpFile) -> _Held:
    from rollout_audit.dumps.torch_files import load_tensors

    content = load_tensors(file)
    if not isinstance(content, dict):
        raise UnreadableFileError(f"{file.path}: holds a {type(content).__name__}, not what miles writes")
    return _Held(file, str(content.get("rollout_id")), str(content.get("rank")))


def _runs(files: Sequence[_Held]) -> list[_Group]:
    """The files of one rollout, run by run: folders are taken together from the innermost outwards."""
    groups: dict[str, list[_Group]] = {}
    for one in files:
        groups.setdefault(dirname(one.file.path), [[]])[0].append(one)
    while len(groups) > 1:
        deepest = max(groups, key=lambda folder: (folder.count("/"), folder))
        parent = dirname(deepest)
        if parent == deepest:
            break
        inside = [folder for folder in groups if dirname(folder) == parent and folder != parent]
        found = [group for folder in inside for group in groups.pop(folder)]
        groups[parent] = _together([*groups.pop(parent, []), *found])
    return [group for found in groups.values() for group in found]


def _together(groups: list[_Group]) -> list[_Group]:
    """As one where no rank is in two of them."""
    seen = Counter(rank for group in groups for rank in {one.rank for one in group})
    return [_in_order(one for group in groups for one in group)] if max(seen.values()) == 1 else groups


def _in_order(files: Iterable[_Held]) -> _Group:
    from rollout_audit.dumps.naming import natural_key

    return sorted(files, key=lambda one: natural_key(one.file.path))


def _as_one(ranks: Sequence[DumpFile]) -> DumpFile:
    if len(ranks) == 1:
        return ranks[0]
    size = sum(file.size for file in ranks)
    return replace(ranks[0], name=_name([file.name for file in ranks]), size=size, parts=tuple(f.path for f in ranks))


def _name(names: Sequence[str]) -> str:
    """`0_{0,1}.pt`: what they share, and in braces what tells them apart."""
    head = commonprefix(names).rstrip(_DIGITS)  # noqa: RUF071 - character by character
    tail = commonprefix([name[len(head) :][::-1] for name in names])[::-1].lstrip(_DIGITS)  # noqa: RUF071
    apart = ",".join(name[len(head) : len(name) - len(tail)] for name in names)
    return f"{head}{{{apart.replace('/', '-')}}}{tail}"
