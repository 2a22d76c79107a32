"""Files of settings that a run's file or command names, and that its own settings are laid over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollout_audit.trainers.commandline import FILES
from rollout_audit.trainers.references import Note, Remark

__all__ = ["with_bases"]

Tree = Mapping[str, object]
SUFFIXES = (".yaml", ".yml", ".json", ".toml")
DEEPEST = 5
"""Files that name files"""
ITSELF = "_self_"


@dataclass(frozen=True, slots=True)
class _Base:
    """One file that is named."""

    by: str
    """the key that names it, as it is told"""
    name: str
    place: tuple[str, ...] = ()
    """the keys that its settings stand under"""
    over: bool = False
    """whether it overrules the file that names it"""


def with_bases(tree: Tree, folder: Path | None, load: Callable[[Path], Tree]) -> tuple[Tree, tuple[Remark, ...]]:
    """The settings over those of the files that they name, and a line on which were read and which are not here.

    Args:
        tree: of a file or command: `defaults` of NeMo-RL and hydra, `--config FILE`, `--config-name`, `@ FILE`.
        folder: where it lies, which is looked into before the working directory; None for text.
        load: what a file holds by itself.
    """
    found = _Found(load)
    whole = found.whole(tree, folder, DEEPEST)
    return whole, tuple(found.remarks())


class _Found:
    def __init__(self, load: Callable[[Path], Tree]) -> None:
        self.load = load
        self.read: list[str] = []
        self.missing: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        """by what names them, and the keys that their settings would stand under"""

    def remarks(self) -> Iterator[Remark]:
        if self.read:
            names = ", ".join(dict.fromkeys(self.read))
            yield Remark("", Note(f"{names}: read as well, below the settings that name it"))
        for (by, under), missing in self.missing.items():
            text = f"{by} names {', '.join(dict.fromkeys(missing))}: no such file here, its settings are missing"
            yield Remark("", f"{text} and taken for the defaults", under)

    def whole(self, tree: Tree, folder: Path | None, depth: int, under: tuple[str, ...] = ()) -> Tree:
        bases = list(_named(tree))
        if not bases or not depth:
            return tree
        own = {key: value for key, value in tree.items() if key not in ("defaults", FILES)}
        below: Tree = {}
        above: Tree = {}
        for base in bases:
            path = _lying(base.name, folder)
            if path is None:
                self.missing.setdefault((base.by, (*under, *base.place)), []).append(base.name)
                continue
            self.read.append(str(path))
            read = self.whole(self.load(path), path.parent, depth - 1, (*under, *base.place))
            for part in reversed(base.place):
                read = {part: read}
            below, above = (below, laid(above, read)) if base.over else (laid(below, read), above)
        return laid(laid(below, own), above)


def laid(below: Tree, over: Tree) -> dict[str, object]:
    """One tree over another: mappings are joined, all else is replaced."""
    joined = dict(below)
    for key, value in over.items():
        old = joined.get(key)
        joined[key] = laid(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return joined


def _lying(name: str, folder: Path | None) -> Path | None:
    """The file of that name beside the one that names it, or from the working directory."""
    folders = [Path(), *([folder] if folder is not None else [])][::-1]
    names = [name] if Path(name).suffix in SUFFIXES else [f"{name}{suffix}" for suffix in SUFFIXES[:2]]
    names += [Path(one).name for one in names] if folder is not None else []
    for one in names:
        for where in folders:
            try:
                if (where / one).is_file():
                    return where / one
            except (OSError, ValueError):
                continue
    return None


def _named(tree: Tree) -> Iterator[_Base]:
    """In the order in which they are laid over each other."""
    given = tree.get("defaults")
    yield from _of_defaults(given if isinstance(given, list) else [given])
    folder = _texts(tree.get("config_path"))[:1]
    for name in _texts(tree.get("config_name"))[:1]:
        yield _Base("--config-name", "/".join((*folder, name)))
    yield from (_Base("--config", one) for one in _texts(tree.get("config")) if _is_name(one))
    files = tree.get(FILES)
    for entry in files if isinstance(files, list) else ():
        if isinstance(entry, Mapping):
            yield _Base("@", str(entry["file"]), tuple(str(entry["place"]).split(".")) if entry["place"] else ())


def _of_defaults(entries: list[object]) -> Iterator[_Base]:
    """hydra's list, where what stands behind `_self_` overrules the file itself; NeMo-RL names files by their paths."""
    over = False
    for entry in entries:
        if entry == ITSELF:
            over = True
        elif isinstance(entry, str):
            name, _, package = entry.partition("@")
            group = () if _is_name(name) else tuple(name.strip("/").split("/")[:-1])
            yield _Base("defaults", name.lstrip("/"), _package(package, group), over)
        elif isinstance(entry, Mapping) and len(entry) == 1:
            yield from _of_group(entry, over=over)


def _of_group(entry: Tree, *, over: bool) -> Iterator[_Base]:
    """`group@package: option`, one or several."""
    ((key, option),) = entry.items()
    group, _, package = str(key).removeprefix("optional ").removeprefix("override ").partition("@")
    group = group.strip().strip("/")
    if not group.startswith("hydra/"):
        for one in _texts(option):
            yield _Base("defaults", f"{group}/{one}", _package(package, tuple(group.split("/"))), over)


def _package(given: str, group: tuple[str, ...]) -> tuple[str, ...]:
    if not given:
        return tuple(part for part in group if part not in ("", ".", ".."))
    return () if given == "_global_" else tuple(part for part in given.split(".") if part != "_here_")


def _texts(value: object) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]


def _is_name(text: str) -> bool:
    return Path(text).suffix in SUFFIXES
