"""YAML, JSON and TOML as trainers' configuration files need them read.

Bands such as 0.5_2.0 are why these are no plain loaders: YAML 1.1 and TOML read `1_2` as 12 and `0.5_2` as 0.52.
Here every number with an underscore stays the string it was, and `1e-4` (a string in YAML 1.1) is a number. A key that
stands twice in one mapping is an error: plain loaders let the later one win without a word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from rollout_audit.dumps.text import in_lines, parsed_toml, twice

__all__ = ["read_any", "read_json", "read_toml", "read_yaml"]


class _Loader(yaml.SafeLoader):
    """SafeLoader with the numbers of YAML 1.2: 1e-4 is one, 1_2, 0.5_2 and 1:30 are not."""


INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
MERGE = "tag:yaml.org,2002:merge"
NUMBERS = {
    INT: re.compile(r"^[-+]?[0-9]+$"),
    FLOAT: re.compile(
        r"^[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF|nan|NaN|NAN))$"
    ),
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))
_Loader.add_constructor(INT, lambda _, node: int(node.value))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Iterator[dict[Any, Any]]:
    """What `<<` brings in may stand again, which is its purpose."""
    seen: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
            line = key.start_mark.line + 1
            if (name := (key.tag, key.value)) in seen:
                raise ValueError(twice(key.value, in_lines(seen[name], line)))
            seen[name] = line
    tree: dict[Any, Any] = {}
    yield tree  # a mapping may hold itself
    tree.update(loader.construct_mapping(node))


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def read_yaml(text: str) -> object:
    """One document (ValueError: no YAML, or a key twice)."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        found = ", ".join(part for part in (error.context, error.problem) if part)
        raise ValueError(f"{where}{found}{HINTS.get(str(error.problem), '')}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


HINTS = {
    "found character '\\t' that cannot start any token": "; YAML is indented with blanks",
    "but found another document": "; give one of them",
}


def read_json(text: str) -> object:
    """One value (ValueError: no JSON, or a key twice)."""
    tree = json.loads(text)
    _check_keys(text)
    return tree


PIECES = re.compile(r'(?P<key>"(?:[^"\\]|\\.)*")\s*:|"(?:[^"\\]|\\.)*"|(?P<open>\{)|(?P<close>\})', re.DOTALL)


def _check_keys(text: str) -> None:
    """Of text that is JSON: json itself says nothing of lines."""
    open_objects: list[dict[str, int]] = []
    for piece in PIECES.finditer(text):
        if piece["open"]:
            open_objects.append({})
        elif piece["close"]:
            open_objects.pop()
        elif piece["key"]:
            key, line = json.loads(piece["key"]), text.count("\n", 0, piece.start()) + 1
            if key in open_objects[-1]:
                raise ValueError(twice(key, in_lines(open_objects[-1][key], line)))
            open_objects[-1][key] = line


BAND = r"(?<![\w.+-])[-+]?[0-9][0-9.]*(?:[eE][-+]?[0-9]+)?_[0-9._eE+-]*(?![\w.])"
TOML_PIECES = re.compile(
    r"""(?P<text>\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}.*?'{3}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*)"""
    r"|(?P<header>^[ \t]*\[{1,2}[^\[\]\n=,]*\]{1,2}[ \t]*(?=\#|$))"
    rf"|(?P<bracket>[\[\]{{}}])|(?P<band>{BAND}(?!\s*=))",
    re.DOTALL | re.MULTILINE,
)


def read_toml(text: str) -> object:
    """A file's tables (ValueError: no TOML, or a key twice)."""
    depth = 0

    def quoted(piece: re.Match[str]) -> str:
        nonlocal depth
        found = piece.group()
        in_array = bool(piece["header"] and depth)  # a line of its own there
        if piece["bracket"] or in_array:
            depth += sum(found.count(mark) for mark in "[{") - sum(found.count(mark) for mark in "]}")
        return re.sub(BAND, r'"\g<0>"', found) if piece["band"] or in_array else found

    # tomllib has a hook for floats but none for integers, so 1_2 must be quoted before it is read
    return parsed_toml(TOML_PIECES.sub(quoted, text))


def read_any(text: str) -> object:
    """YAML, or TOML where it is none: a pipe has no suffix (ValueError: neither, in the words of YAML)."""
    try:
        tree = read_yaml(text)
    except ValueError:
        if not TABLE.search(text):
            raise
    else:
        if not isinstance(tree, str | list):
            return tree
    try:
        return read_toml(text)
    except ValueError:
        return read_yaml(text)


TABLE = re.compile(r"(?m)^\s*(?:\[[^\n]*\]\s*(?:\#.*)?$|[\w.\"'-]+\s*=)")
