"""A trainer's settings from wherever a run keeps them: dict, JSON, YAML or TOML file, `key=value`, flags."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import TypeAlias

from rollout_audit.dumps.text import decoded
from rollout_audit.errors import UsageError
from rollout_audit.trainers.commandline import (
    Pair,
    are_flags,
    are_pairs,
    hold_pairs,
    read_flags,
    read_pair_lines,
    read_pairs,
    read_script,
)
from rollout_audit.trainers.markup import read_json, read_toml, read_yaml

__all__ = ["ConfigSource", "Loaded", "Repeated", "Section", "load_config", "read_named"]

ConfigSource: TypeAlias = Mapping[str, object] | str | PathLike[str]


@dataclass(frozen=True, slots=True)
class Section:
    """Where a trainer's configuration keeps the settings: `path` of nested keys, or any tail of it, or flat.

    `prefix` or `shared`: other settings stand there too. Ours are the known ones, those that begin with the prefix,
    and those spelled almost like a known one; the rest is not looked at. `also`: further places of some settings.
    """

    path: tuple[str, ...] = ()
    prefix: str | tuple[str, ...] = ""
    shared: bool = False
    also: tuple[Section, ...] = ()

    def of(self, tree: Mapping[str, object], known: Collection[str] = ()) -> dict[str, object]:
        """The settings in `tree`, as a flat dict; `known` are the trainer's keys."""
        found = [place._found(tree, known) for place in (self, *self.also)]
        parts = [part for part in found if part is not None]
        for place in (self, *self.also):
            place._check_spelling(tree, known)
        self._check_holds_settings(tree)
        if not any(parts) and (not parts or any(key in known for key in tree)):
            return self._ours(tree, known, flat=True)
        beside = {str(k): v for k, v in tree.items() if k in known} if self._is_fragment(tree, known) else {}
        nested = {k: v for part in parts for k, v in part.items()}
        for key in beside.keys() & nested.keys():
            if beside[key] != nested[key]:
                both = f"{beside[key]!r} by itself and {nested[key]!r} in its section"
                raise UsageError(f"configuration: {key!r} stands there twice, as {both}; keep one")
        return beside | nested

    def _is_fragment(self, tree: Mapping[str, object], known: Collection[str]) -> bool:
        """Whether nothing but settings of ours and sections stand there: flat and dotted keys beside each other."""
        return all(key in known or isinstance(value, Mapping) for key, value in tree.items())

    def _check_spelling(self, tree: Mapping[str, object], known: Collection[str]) -> None:
        """Raises UsageError where a section is there under almost its name: its settings would not be looked at."""
        for start in range(len(self.path)):
            node: object = tree
            for key in self.path[start:]:
                if not isinstance(node, Mapping):
                    break
                for name, below in node.items():
                    if _is_slip(str(name), key, below, known, alone=key not in node):
                        beside = (
                            f" beside {key!r}; put its settings there" if key in node else f"; did you mean {key!r}?"
                        )
                        raise UsageError(f"configuration: unknown section {name!r}{beside}")
                if key not in node:
                    break
                node = node[key]

    def _check_holds_settings(self, tree: Mapping[str, object]) -> None:
        """Raises UsageError where the section is something else, such as a reference that was not resolved."""
        for start, key in enumerate(self.path):
            below = _at(tree, self.path[start:])
            if (start == 0 or len(key) >= TELLING) and not isinstance(below, Mapping | None):
                name = ".".join(self.path[start:])
                raise UsageError(f"configuration: {name} holds {below!r}, not settings by name")

    def stray(self, tree: Mapping[str, object], known: Collection[str]) -> str:
        """The dotted place of a setting of ours that stands where it is not looked for; empty where there is none."""
        paths = (place.path[start:] for place in (self, *self.also) for start in range(len(place.path)))
        looked_at = {id(below) for found, below in (_descend(tree, path) for path in paths) if found}
        return _stray(tree, known, looked_at, ())

    def _found(self, tree: Mapping[str, object], known: Collection[str]) -> dict[str, object] | None:
        for start in range(len(self.path)):
            found, below = _descend(tree, self.path[start:])
            if found:
                return self._ours(below, known)
        return None

    def _ours(self, below: Mapping[str, object], known: Collection[str], *, flat: bool = False) -> dict[str, object]:
        settings = {str(key): value for key, value in below.items()}
        if self.prefix or self.shared:
            return {k: v for k, v in settings.items() if _is_ours(k, self.prefix, known)}
        sections = flat and self.path and any(isinstance(v, Mapping) for v in settings.values())
        return {k: v for k, v in settings.items() if k in known} if sections else settings


NEAR = 0.9
"""Likeness at which an unknown key beside other settings counts as a misspelt one of ours"""
NEARER = 0.75
"""Of a section that holds settings of ours"""
DEEPEST = 6
"""Levels of nesting that are searched: a mapping may hold itself"""
TELLING = 8
"""Letters of a key that is no word of many trainers"""


def _stray(tree: Mapping[str, object], known: Collection[str], looked_at: set[int], above: tuple[str, ...]) -> str:
    for key, value in tree.items():
        if isinstance(value, Mapping) and len(above) < DEEPEST:
            own = next((str(k) for k in value if k in known and len(str(k)) >= TELLING), None)
            if own and id(value) not in looked_at:
                return ".".join((*above, str(key), own))
            if below := _stray(value, known, looked_at, (*above, str(key))):
                return below
    return ""


def _is_ours(key: str, prefix: str | tuple[str, ...], known: Collection[str]) -> bool:
    if key in known or (prefix and key.startswith(prefix)) or key.isdecimal():  # what `{upper: 1,5}` comes to
        return True
    return any(_alike(key, own, NEAR) for own in known)


def _is_slip(name: str, key: str, below: object, known: Collection[str], *, alone: bool) -> bool:
    """Whether it is a section that was meant to be called `key`; where there is one, it must hold settings of ours."""
    if name == key or not isinstance(below, Mapping):
        return False
    ours = _holds(below, known)
    return (ours or alone) and _alike(name, key, NEARER if ours else NEAR)


def _holds(tree: Mapping[str, object], known: Collection[str]) -> bool:
    """Itself or one level below, where a nested section may be."""
    inside = [one for one in tree.values() if isinstance(one, Mapping)]
    return any(key in known for part in (tree, *inside) for key in part)


def _alike(name: str, other: str, likeness: float) -> bool:
    """But for case and hyphens the same, a slip of one letter apart, or as like as that."""
    one, two = (text.lower().replace("-", "_") for text in (name, other))
    if one == two or (min(len(one), len(two)) >= TELLING - 2 and _one_slip(one, two)):
        return True
    match = SequenceMatcher(None, one, two)
    return match.real_quick_ratio() >= likeness and match.quick_ratio() >= likeness and match.ratio() >= likeness


def _one_slip(one: str, two: str) -> bool:
    """A letter too many, one too few, another one, or two that changed places."""
    short, long = sorted((one, two), key=len)
    if len(long) - len(short) == 1:
        return any(long[:i] + long[i + 1 :] == short for i in range(len(long)))
    apart = [i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b] if len(short) == len(long) else []
    swapped = (
        len(apart) == 2
        and apart[1] == apart[0] + 1
        and one[apart[0]] == two[apart[1]]
        and one[apart[1]] == two[apart[0]]
    )
    return len(apart) == 1 or swapped


def _at(tree: Mapping[str, object], path: tuple[str, ...]) -> object:
    node: object = tree
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _descend(tree: Mapping[str, object], path: tuple[str, ...]) -> tuple[bool, Mapping[str, object]]:
    node: object = tree
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            return False, {}
        node = node[key]
    return (True, node) if isinstance(node, Mapping) else (node is None, {})


@dataclass(frozen=True, slots=True)
class Repeated:
    """A setting that a command line gives twice with different values, of which the later counts."""

    key: str
    """dotted"""
    first: object
    later: object

    def __str__(self) -> str:
        return f"{self.key} = {self.first!r} and then {self.later!r}: given twice, the later counts"


@dataclass(frozen=True, slots=True)
class Loaded:
    """All that a source holds, nested."""

    tree: Mapping[str, object]
    repeated: tuple[Repeated, ...] = ()
    by_flags: bool = False
    """whether the settings are those of a command line, as flags or in a script"""


def load_config(source: ConfigSource) -> Loaded:
    """What a source holds, whosever settings they are.

    Args:
        source: a mapping; a path; or text: a JSON object, the name of a .json, .toml, .sh or YAML file,
            `key=value,key=value` (a value may hold commas; dotted keys are nested, `filters.0.x` and `filters[0].x`
            are of a list, hydra's `+` is dropped), or command-line flags (`--tis-clip 2.0 --use-tis`).

    Raises:
        UsageError: no such file, text that cannot be read, or in a file or mapping a key twice.
    """
    if isinstance(source, Mapping):
        return _of_file("", source.items())
    if not isinstance(source, str | PathLike):
        raise UsageError(
            f"configuration {source!r}: a {type(source).__name__}; give a dict, text, or the path of a file"
        )
    text = fspath(source)
    if not text.strip():
        raise UsageError(f"configuration {text!r}: nothing in it; give {KINDS}")
    if text.lstrip().startswith("{"):
        return _of_file(f" {text!r}", _tree(text, text, read_json).items())
    if isinstance(source, str) and are_flags(text):
        return _of_command(text, text, read_flags, by_flags=True)
    if isinstance(source, str) and "=" in text and not Path(text).is_file() and Path(text).suffix not in SUFFIXES:
        by_words = FIRST_WORD.match(text) and hold_pairs(text)
        return _of_command(text, text, read_flags if by_words else read_pairs)
    if isinstance(source, str) and INLINE.match(text) and not Path(text).is_file():
        return _of_file(f" {text!r}", _tree(text, text, read_yaml).items())
    return _from_file(Path(text))


INLINE = re.compile(r"\s*[\w.]+:\s")
"""YAML that is no file"""
KINDS = "a YAML, JSON or TOML file, a JSON object or key=value,key=value"
FIRST_WORD = re.compile(r"\s*[^\s=,]+\s")
"""Of a pasted command"""
TYPES = {list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}


def read_named(name: object, source: ConfigSource) -> Mapping[str, object] | None:
    """The settings of a file that a setting names, looked for as it is and beside `source`; None where it is not."""
    beside = [] if isinstance(source, Mapping) else [Path(fspath(source)).parent]
    places = [Path(str(name)), *(folder / part for folder in beside for part in (str(name), Path(str(name)).name))]
    found = next((path for path in places if path.is_file()), None)
    return None if found is None else load_config(found).tree


def _from_file(path: Path) -> Loaded:
    name = str(path)
    try:
        text = _text_of(path)
    except FileNotFoundError:
        raise UsageError(f"configuration {name!r}: no such file; give {KINDS}") from None
    except IsADirectoryError:
        raise UsageError(f"configuration {name!r}: a folder; give the file in it that the run used") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"configuration {name!r}: cannot be read ({reason}); give {KINDS}") from error
    kind = path.suffix.lower()
    if are_flags(text) or kind in SCRIPTS:
        return _of_command(name, text, read_script if kind == ".py" else read_flags, by_flags=True)
    if kind not in LOADERS and are_pairs(text):
        return _of_command(name, text, read_pair_lines)
    return _of_file(f" {name!r}", _unwrapped(_tree(name, text, LOADERS.get(kind, read_yaml))).items())


def _unwrapped(tree: Mapping[str, object]) -> Mapping[str, object]:
    """W&B's config.yaml keeps each setting under `value`."""
    values = {key: one for key, one in tree.items() if key not in OF_WANDB}
    wrapped = [one for one in values.values() if isinstance(one, Mapping) and "value" in one and one.keys() <= WRAPPING]
    if not values or len(wrapped) < len(values):
        return tree
    return {key: one["value"] for key, one in zip(values, wrapped, strict=True)}


OF_WANDB = ("_wandb", "wandb_version")
WRAPPING = {"value", "desc"}


def _text_of(path: Path) -> str:
    """Of a pipe what came out of it the first time."""
    data = path.read_bytes() if path.is_file() or path.is_dir() or not path.exists() else _drained(path)
    return decoded(data).replace("\r\n", "\n")


@lru_cache
def _drained(path: Path) -> bytes:
    return path.read_bytes()


def _tree(name: str, text: str, load: Callable[[str], object]) -> Mapping[str, object]:
    try:
        tree = load(text) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"configuration {name!r}: {' '.join(str(error).split())}") from error
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        found = TYPES.get(type(tree), f"a {type(tree).__name__}")
        raise UsageError(f"configuration {name!r}: holds {found}, not settings by name")
    return tree


def _of_command(name: str, text: str, read: Callable[[str], Iterable[Pair]], *, by_flags: bool = False) -> Loaded:
    try:
        return Loaded(*_nest(read(text)), by_flags)
    except ValueError as error:
        raise UsageError(f"configuration {name!r}: {' '.join(str(error).split())}") from error


def _of_file(name: str, pairs: Iterable[Pair]) -> Loaded:
    try:
        tree, repeated = _nest(pairs)
    except ValueError as error:
        raise UsageError(f"configuration{name}: {error}") from error
    if repeated:
        key, first, later = repeated[0].key, repeated[0].first, repeated[0].later
        raise UsageError(f"configuration{name}: key {key!r} stands there twice, as {first!r} and {later!r}; keep one")
    return Loaded(tree)


PARTS = re.compile(r"[^.\[\]]+")


def _nest(pairs: Iterable[Pair]) -> tuple[dict[str, object], tuple[Repeated, ...]]:
    """Dotted keys as nested dicts, numbers among them as places of a list; what is nested already as it is."""
    tree: dict[str, object] = {}
    repeated: list[Repeated] = []
    for dotted, value in pairs:
        _put(tree, PARTS.findall(str(dotted)) or [str(dotted)], value, repeated, ())
    return tree, tuple(repeated)


def _put(
    node: dict[str, object], parts: list[str], value: object, repeated: list[Repeated], above: tuple[str, ...]
) -> None:
    """Set one value, below lists and mappings that may be there already."""
    key, *below = parts
    here, old = (*above, key), node.get(key)
    if below and below[0].isdecimal():
        node[key] = _with_item(list(old) if isinstance(old, list) else [], below, value, repeated, here)
    elif below or (isinstance(value, Mapping) and isinstance(old, Mapping)):
        if not isinstance(old, Mapping | None):
            repeated.append(Repeated(".".join(here), old, value))
        node[key] = child = dict(old) if isinstance(old, Mapping) else {}
        rest = [(below, value)] if below else [([str(k)], v) for k, v in value.items()]  # type: ignore[attr-defined]
        for path, one in rest:
            _put(child, path, one, repeated, here)
    else:
        if key in node and repr(old) != repr(value):
            repeated.append(Repeated(".".join(here), old, value))
        node[key] = value


def _with_item(
    items: list[object], parts: list[str], value: object, repeated: list[Repeated], above: tuple[str, ...]
) -> list[object]:
    place = int(parts[0])
    if place > len(items):
        name = ".".join(above)
        raise ValueError(f"{name}.{place} without {name}.{len(items)}; give the entries of the list in order, from 0")
    known: dict[str, object] = {parts[0]: items[place]} if place < len(items) else {}
    _put(known, parts, value, repeated, above)
    return [*items[:place], known[parts[0]], *items[place + 1 :]]


SCRIPTS = (".sh", ".py")
LOADERS: dict[str, Callable[[str], object]] = {".json": read_json, ".toml": read_toml}
SUFFIXES = (*LOADERS, *SCRIPTS, ".yaml", ".yml")
