"""A trainer's settings from wherever a run keeps them: dict, JSON, YAML or TOML file, `key=value` fragments.

Bands such as 0.5_2.0 are why this is not a plain loader: YAML 1.1 and TOML read `1_2` as 12 and `0.5_2` as
0.52. Here every number with an underscore stays the string it was, and `1e-4` (a string in YAML 1.1) is a
number.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from rollout_audit.errors import UsageError

__all__ = ["ConfigSource", "Section", "read_config"]

ConfigSource: TypeAlias = Mapping[str, object] | str | PathLike[str]


@dataclass(frozen=True, slots=True)
class Section:
    """Where a trainer's configuration keeps the settings: `path` of nested keys, or any tail of it, or flat.

    `prefix`: in a section shared with other settings, only keys that begin so are ours.
    """

    path: tuple[str, ...] = ()
    prefix: str = ""

    def of(self, tree: Mapping[str, object]) -> dict[str, object]:
        """The settings in `tree`, as a flat dict."""
        for start in range(len(self.path)):
            found, below = _descend(tree, self.path[start:])
            if found:
                return {str(key): value for key, value in below.items() if str(key).startswith(self.prefix)}
        return dict(tree)


def _descend(tree: Mapping[str, object], path: tuple[str, ...]) -> tuple[bool, Mapping[str, object]]:
    node: object = tree
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            return False, {}
        node = node[key]
    return (True, node) if isinstance(node, Mapping) else (node is None, {})


def read_config(source: ConfigSource, section: Section = Section()) -> dict[str, object]:
    """The settings that `source` gives, from the trainer's section where it has one.

    Args:
        source: a mapping; a path; or text: a JSON object, the name of a .json, .toml or YAML file, or
            `key=value,key=value` (a value may hold commas; dotted keys are nested, hydra's `+` is dropped).
        section: where the trainer nests its settings.

    Raises:
        UsageError: no such file, or text that cannot be read.
    """
    return section.of(_nest(_load(source)))


def _load(source: ConfigSource) -> Mapping[str, object]:
    if isinstance(source, Mapping):
        return source
    text = fspath(source)
    if text.lstrip().startswith("{"):
        return _checked(text, text, json.loads)
    if isinstance(source, str) and "=" in text and not Path(text).is_file():
        return dict(_fragments(text))
    return _from_file(Path(text))


def _from_file(path: Path) -> Mapping[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"configuration {str(path)!r}: no such file; give a YAML, JSON or TOML file, a JSON object or "
            "key=value,key=value"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"configuration {str(path)!r}: cannot be read ({error})") from error
    return _checked(str(path), text, LOADERS.get(path.suffix.lower(), _yaml))


def _checked(name: str, text: str, load: Callable[[str], object]) -> Mapping[str, object]:
    try:
        tree = load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise UsageError(f"configuration {name!r}: {' '.join(str(error).split())}") from error
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise UsageError(f"configuration {name!r}: holds a {type(tree).__name__}, not settings by name")
    return tree


def _nest(flat: Mapping[str, object]) -> dict[str, object]:
    """Dotted keys as nested dicts; nested ones as they are."""
    tree: dict[str, object] = {}
    for dotted, value in flat.items():
        *parents, leaf = str(dotted).split(".")
        node: dict[str, Any] = tree
        for parent in parents:
            below = node.get(parent)
            node[parent] = dict(below) if isinstance(below, Mapping) else {}
            node = node[parent]
        node[leaf] = value
    return tree


FRAGMENT = re.compile(r"(?:^|[,\s])\s*(?:--)?\+*(?P<key>[A-Za-z][\w.]*)=")


def _fragments(text: str) -> Iterator[tuple[str, object]]:
    keys = list(FRAGMENT.finditer(text))
    if not keys or text[: keys[0].start()].strip():
        raise UsageError(f"configuration {text!r}: expected key=value,key=value")
    ends = [key.start() for key in keys[1:]] + [len(text)]
    for key, end in zip(keys, ends, strict=True):
        yield key["key"], _scalar(text[key.end() : end].strip(" ,"))


def _scalar(text: str) -> object:
    try:
        return _yaml(text)
    except yaml.YAMLError as error:
        raise UsageError(f"configuration value {text!r}: {' '.join(str(error).split())}") from error


class _Loader(yaml.SafeLoader):
    """SafeLoader with the numbers of YAML 1.2: 1e-4 is one, 1_2, 0.5_2 and 1:30 are not."""


INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
NUMBERS = {
    INT: re.compile(r"^[-+]?[0-9]+$"),
    FLOAT: re.compile(r"^[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$"),
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))
_Loader.add_constructor(INT, lambda _, node: int(node.value))


def _yaml(text: str) -> object:
    return yaml.load(text, Loader=_Loader)


UNDERSCORED = re.compile(r"(?m)^(\s*[\w.\"'-]+\s*=\s*)([-+]?[0-9.]+_[0-9._]+)(?=\s*(?:#.*)?$)")


def _toml(text: str) -> object:
    # tomllib has a hook for floats but none for integers, so 1_2 must be quoted before it is read
    return tomllib.loads(UNDERSCORED.sub(r'\1"\2"', text))


LOADERS: dict[str, Callable[[str], object]] = {".json": json.loads, ".toml": _toml}
