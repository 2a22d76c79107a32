"""A trainer's settings from wherever a run keeps them: dict, JSON, YAML or TOML file, `key=value`, flags.

Bands such as 0.5_2.0 are why this is not a plain loader: YAML 1.1 and TOML read `1_2` as 12 and `0.5_2` as
0.52. Here every number with an underscore stays the string it was, and `1e-4` (a string in YAML 1.1) is a
number.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from rollout_audit.errors import UsageError

__all__ = ["ConfigSource", "Section", "is_flags", "read_config", "read_named"]

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
        if not found[0]:
            self._check_spelling(tree)
        if not any(parts) and (not parts or any(key in known for key in tree)):
            return self._ours(tree, known, flat=True)
        beside = {str(k): v for k, v in tree.items() if k in known} if self._is_fragment(tree, known) else {}
        return beside | {k: v for part in parts for k, v in part.items()}

    def _is_fragment(self, tree: Mapping[str, object], known: Collection[str]) -> bool:
        """Whether nothing but settings of ours and sections stand there: flat and dotted keys beside each other."""
        return all(key in known or isinstance(value, Mapping) for key, value in tree.items())

    def _check_spelling(self, tree: Mapping[str, object]) -> None:
        """Raises UsageError where a section is there under almost its name: its settings would not be looked at."""
        for start in range(len(self.path)):
            node: object = tree
            for key in self.path[start:]:
                if not isinstance(node, Mapping):
                    break
                if key not in node:
                    if near := get_close_matches(key, [str(name) for name in node], n=1, cutoff=NEAR):
                        raise UsageError(f"configuration: unknown section {near[0]!r}; did you mean {key!r}?")
                    break
                node = node[key]

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


def _is_ours(key: str, prefix: str | tuple[str, ...], known: Collection[str]) -> bool:
    if key in known or (prefix and key.startswith(prefix)):
        return True
    return bool(get_close_matches(key, list(known), n=1, cutoff=NEAR))


def _descend(tree: Mapping[str, object], path: tuple[str, ...]) -> tuple[bool, Mapping[str, object]]:
    node: object = tree
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            return False, {}
        node = node[key]
    return (True, node) if isinstance(node, Mapping) else (node is None, {})


def read_config(source: ConfigSource, section: Section = Section(), known: Collection[str] = ()) -> dict[str, object]:
    """The settings that `source` gives, from the trainer's section where it has one.

    Args:
        source: a mapping; a path; or text: a JSON object, the name of a .json, .toml, .sh or YAML file,
            `key=value,key=value` (a value may hold commas; dotted keys are nested, hydra's `+` is dropped), or
            command-line flags (`--tis-clip 2.0 --use-tis`).
        section: where the trainer nests its settings.
        known: the trainer's keys, which tell its settings from others in a shared section.

    Raises:
        UsageError: no such file, or text that cannot be read.
    """
    if not isinstance(source, Mapping | str | PathLike):
        raise UsageError(
            f"configuration {source!r}: a {type(source).__name__}; give a dict, text, or the path of a file"
        )
    return section.of(_nest(_load(source)), known)


def is_flags(source: ConfigSource) -> bool:
    """Whether the settings are those of a command line, pasted or in a script."""
    if isinstance(source, Mapping):
        return False
    text = fspath(source)
    if isinstance(source, str) and _are_flags(text):
        return True
    try:
        return Path(text).suffix.lower() in SCRIPTS or _are_flags(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no file: other text
        return False


def read_named(name: object, source: ConfigSource) -> Mapping[str, object] | None:
    """The settings of a file that a setting names, looked for as it is and beside `source`; None where it is not."""
    beside = [] if isinstance(source, Mapping) else [Path(fspath(source)).parent]
    places = [Path(str(name)), *(folder / part for folder in beside for part in (str(name), Path(str(name)).name))]
    found = next((path for path in places if path.is_file()), None)
    return None if found is None else _nest(_load(found))


def _load(source: ConfigSource) -> Mapping[str, object]:
    if isinstance(source, Mapping):
        return source
    text = fspath(source)
    if not text.strip():
        raise UsageError("configuration '': is empty; give key=value, a JSON object, flags or a file, or {} for none")
    if text.lstrip().startswith("{"):
        return _checked(text, text, json.loads)
    if isinstance(source, str) and _are_flags(text):
        return _checked(text, text, _flags)
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
    except (OSError, ValueError) as error:
        raise UsageError(f"configuration {str(path)!r}: cannot be read ({error})") from error
    load = _flags if _are_flags(text) else LOADERS.get(path.suffix.lower(), _yaml)
    return _checked(str(path), text, load)


def _are_flags(text: str) -> bool:
    """Whether the first thing beside comments is a command-line flag."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "").startswith("--")


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

PAIR = re.compile(r"^\+*(?P<key>[a-z][a-z0-9_]*(?:\.\w+)+)=(?P<value>.*)$")
"""Of hydra, in a launch script"""

FLAG = re.compile(r"(?:^|\s)--(?P<key>[A-Za-z][\w.-]*)(?P<values>(?:[=\s]\s*(?!--)\S+)*)")


def _fragments(text: str) -> Iterator[tuple[str, object]]:
    keys = list(FRAGMENT.finditer(text))
    if not keys or text[: keys[0].start()].strip():
        raise UsageError(f"configuration {text!r}: expected key=value,key=value")
    ends = [key.start() for key in keys[1:]] + [len(text)]
    for key, end in zip(keys, ends, strict=True):
        yield key["key"], _scalar(text[key.end() : end].strip(" ,"))


def _flags(text: str) -> dict[str, object]:
    """`--key value`, `--key=value`, `--key` (true) and `--key 0.5 5.0` (a list) of a command line or script.

    Of a script also hydra's `section.key=value`; variables that are set once stand for their values.
    """
    settings: dict[str, object] = {}
    for line in _filled_in(text.replace("\\\n", " ")).splitlines():
        words = list(_words(line))
        settings |= {pair["key"]: _word(pair["value"]) for word in words if (pair := PAIR.match(word))}
        for flag in FLAG.finditer(" ".join(words)):
            values = [
                _word(word)
                for word in flag["values"].lstrip("=").split()
                if word.strip("()") and not UNKNOWN.fullmatch(word)
            ]
            settings[flag["key"].replace("-", "_")] = _one_or_list(values)
    return settings


ASSIGNED = re.compile(
    r"^\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)=(?P<value>\"[^\"]*\"|'[^']*'|[^\s\"'(]+)\s*(?:#.*)?$", re.M
)
VARIABLE = re.compile(r"\$(?:\{(?P<name>[A-Za-z_]\w*)(?::?-(?P<default>[^{}]*))?\}|(?P<bare>[A-Za-z_]\w*))")
"""Of a shell"""
DEEPEST = 3
"""Variables that are set to other variables"""
PIECE = re.compile(r"\s+(?=--|\+*[a-z][a-z0-9_]*(?:\.\w+)+=)")
"""Between settings inside one quoted string"""
BEFORE = re.compile(r"^(?:\w+\+?=\(?|[fr]{1,2})?\s*(?=--|\+*[a-z][a-z0-9_]*(?:\.\w+)+=)")
"""The name of a variable that such a string is given to, the f of Python"""
UNKNOWN = re.compile(r"\$[\w{}\[\]@*]+")
"""A variable that has no value here, by itself"""


def _filled_in(text: str) -> str:
    """The text with every shell variable that has one value replaced by it; one set twice may be of a branch."""
    given: dict[str, set[str]] = {}
    for line in ASSIGNED.finditer(text):
        value = line["value"].strip("\"'")
        own = VARIABLE.fullmatch(value)
        if own and own["name"] == line["name"]:  # X=${X:-0.2}
            value = own["default"] or ""
        given.setdefault(line["name"], set()).add(value)
    values = {name: found.pop() for name, found in given.items() if len(found) == 1}
    for _ in range(DEEPEST):
        text = VARIABLE.sub(lambda use: _value_of(use, values, set(given)), text)
    return text


def _value_of(use: re.Match[str], values: Mapping[str, str], given: set[str]) -> str:
    name = use["name"] or use["bare"]
    default = None if name in given else use["default"]
    value = values.get(name, default)
    return use.group() if value is None else value.strip("\"'")


def _words(line: str) -> Iterator[str]:
    """The words of a line, with the settings inside quoted strings apart."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quoted string that goes on in the next line
        words = re.sub(r"(?:^|\s)#.*$|[\"']", " ", line).split()
    for word in words:
        yield from (BEFORE.sub("", piece) for piece in PIECE.split(word))


def _one_or_list(values: list[object]) -> object:
    if not values:
        return True
    return values[0] if len(values) == 1 else values


def _scalar(text: str) -> object:
    try:
        return _yaml(text)
    except yaml.YAMLError as error:
        raise UsageError(f"configuration value {text!r}: {' '.join(str(error).split())}") from error


def _word(text: str) -> object:
    """A word of a script, of which most settings are of other things: what is no YAML stays the text it is."""
    try:
        return _yaml(text)
    except yaml.YAMLError:
        return text


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


SCRIPTS = (".sh", ".py")
LOADERS: dict[str, Callable[[str], object]] = {".json": json.loads, ".toml": _toml, ".sh": _flags, ".py": _flags}
