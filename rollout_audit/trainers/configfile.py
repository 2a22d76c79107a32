"""A trainer's settings from wherever a run keeps them: dict, JSON, YAML or TOML file, `key=value`, flags."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import TypeAlias

from rollout_audit.dumps.text import decoded, twice
from rollout_audit.errors import UsageError
from rollout_audit.trainers.bases import with_bases
from rollout_audit.trainers.commandline import (
    Pair,
    are_flags,
    are_pairs,
    hold_pairs,
    read_flags,
    read_pair_lines,
    read_pairs,
)
from rollout_audit.trainers.markup import read_any, read_json, read_toml, read_yaml
from rollout_audit.trainers.pythonscript import read_code
from rollout_audit.trainers.references import Remark, resolved

__all__ = ["ConfigSource", "Loaded", "Repeated", "load_config", "read_named"]

ConfigSource: TypeAlias = Mapping[str, object] | str | PathLike[str]


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
    remarks: tuple[Remark, ...] = ()


def load_config(source: ConfigSource) -> Loaded:
    """What a source holds, whosever settings they are.

    Args:
        source: a mapping; a path; or text: a JSON object, the name of a .json, .toml, .sh or YAML file,
            `key=value,key=value` (a value may hold commas; dotted keys are nested, `filters.0.x` and `filters[0].x`
            are of a list, hydra's `+` is dropped), or command-line flags (`--tis-clip 2.0 --use-tis`).

    Files of settings that it names are read where they lie beside it, and references to its own settings filled in.

    Raises:
        UsageError: no such file, text that cannot be read, or in a file or mapping a key twice.
    """
    loaded = _by_itself(source)
    folder = Path(fspath(source)).parent if not isinstance(source, Mapping) and _is_file(fspath(source)) else None
    whole, of_files = with_bases(loaded.tree, folder, lambda path: _from_file(path).tree)
    tree, of_references = resolved(whole)
    return replace(loaded, tree=tree, remarks=(*loaded.remarks, *of_files, *of_references))


def _by_itself(source: ConfigSource) -> Loaded:
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
    if isinstance(source, str) and (are_flags(text) or (COMMAND.match(text) and not _is_file(text))):
        return _of_command(text, text, read_flags, by_flags=True)
    if isinstance(source, str) and "=" in text and not _is_file(text) and Path(text).suffix not in SUFFIXES:
        by_words = FIRST_WORD.match(text) and hold_pairs(text)
        return _of_command(text, text, read_flags if by_words else read_pairs)
    if isinstance(source, str) and INLINE.match(text) and not _is_file(text):
        return _of_file(f" {text!r}", _tree(text, text, read_yaml).items())
    return _from_file(Path(text))


def _is_file(path: str | Path) -> bool:
    """A whole command is longer than any file's name may be, which the system says as an error."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


INLINE = re.compile(r"\s*[\w.]+:\s")
"""YAML that is no file"""
KINDS = "a YAML, JSON or TOML file, a JSON object or key=value,key=value"
FIRST_WORD = re.compile(r"\s*[^\s=,]+\s")
"""Of a pasted command"""
COMMAND = re.compile(r"\s*[^\s=,:{]+\s(?:.*\s)?--[A-Za-z]", re.DOTALL)
"""Pasted, with flags"""
TYPES = {list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}


def read_named(name: object, source: ConfigSource) -> Mapping[str, object] | None:
    """The settings of a file that a setting names, looked for as it is and beside `source`; None where it is not."""
    beside = [] if isinstance(source, Mapping) else [Path(fspath(source)).parent]
    places = [Path(str(name)), *(folder / part for folder in beside for part in (str(name), Path(str(name)).name))]
    found = next((path for path in places if _is_file(path)), None)
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
    if kind == ".py":
        code, remarks = read_code(text)
        by_name = _of_command(name, text, lambda text: [*read_flags(text), *code], by_flags=True)
        return replace(by_name, remarks=remarks)
    if are_flags(text) or kind in SCRIPTS:
        return _of_command(name, text, read_flags, by_flags=True)
    if kind not in LOADERS and are_pairs(text):
        return _of_command(name, text, read_pair_lines)
    return _of_file(f" {name!r}", _unwrapped(_tree(name, text, LOADERS.get(kind, read_any))).items())


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
        one = repeated[0]
        raise UsageError(f"configuration{name}: {twice(one.key, f'as {one.first!r} and {one.later!r}')}")
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
