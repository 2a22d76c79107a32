"""Settings that stand for a value elsewhere: OmegaConf's `${…}`, a shell's variables, the expressions of a script.

What is in the source itself is filled in; the rest is marked, so that a setting of ours is refused with its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollout_audit.errors import ConfigError
from rollout_audit.trainers.markup import read_yaml

__all__ = ["Behind", "Note", "OfCode", "Remark", "Unresolved", "check_resolved", "resolved", "settled"]


class Unresolved(str):
    """Text that stands for a value which is not in the source."""

    __slots__ = ()


class Note(str):
    """A line on a configuration that tells what was done, and warns of nothing."""

    __slots__ = ()


class OfCode(Unresolved):
    """An expression in Python."""

    __slots__ = ()


class Behind(Unresolved):
    """A shell's variable behind a flag: its value, or more flags."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to say of what a source holds."""

    key: str
    """dotted; empty where it is of the whole source"""
    text: str
    under: tuple[str, ...] = ()
    """the keys that the settings stand under of which it tells; none where it may be of any"""

    def __str__(self) -> str:
        return self.text


REFERENCE = re.compile(r"\$\{(?P<inside>[^${}]*)\}")
"""The innermost"""
FROM_ENVIRONMENT = re.compile(r"oc\.env:\s*(?P<name>\w+)\s*(?:,(?P<default>.*))?$", re.DOTALL)
PATH = re.compile(r"(?P<up>\.*)(?P<path>[\w\-]+(?:[.\[\]][\w\-\[\]]*)*)$")
PARTS = re.compile(r"[^.\[\]]+")
DEEPEST = 8
"""References to references, which may name each other"""


def resolved(tree: Mapping[str, object]) -> tuple[Mapping[str, object], tuple[Remark, ...]]:
    """The tree with what it says of itself filled in: `${a.b}`, `${.b}` and the defaults of `${oc.env:NAME,default}`.

    The environment is not looked at: it is today's, not the run's.
    """
    filling = _Filling(tree)
    filled = filling.node(tree, ())
    return (filled if isinstance(filled, Mapping) else tree), tuple(filling.remarks)


@dataclass(slots=True)
class _Filling:
    tree: Mapping[str, object]
    remarks: list[Remark] = field(default_factory=list)
    done: dict[int, object] = field(default_factory=dict)
    """by identity: YAML's anchors share nodes, and a node may hold itself"""

    def node(self, value: object, path: tuple[str, ...]) -> object:
        if isinstance(value, str):
            return self.text(value, path, DEEPEST)
        if not isinstance(value, Mapping | list):
            return value
        if id(value) not in self.done:
            self.done[id(value)] = value
            if isinstance(value, Mapping):
                self.done[id(value)] = {key: self.node(one, (*path, str(key))) for key, one in value.items()}
            else:
                self.done[id(value)] = [self.node(one, (*path, str(i))) for i, one in enumerate(value)]
        return self.done[id(value)]

    def text(self, text: str, path: tuple[str, ...], depth: int) -> object:
        if isinstance(text, Unresolved) or "${" not in text:
            return text
        rest = text
        while found := REFERENCE.search(rest):
            try:
                value = self.value(found["inside"], path, depth)
            except LookupError:
                return Unresolved(text)
            if found.group() == rest:
                return value
            if not isinstance(value, str | int | float) or isinstance(value, Unresolved):
                return Unresolved(text)
            rest = rest[: found.start()] + str(value) + rest[found.end() :]
        return Unresolved(text) if "${" in rest else rest

    def value(self, inside: str, path: tuple[str, ...], depth: int) -> object:
        """LookupError: not in the tree."""
        if (environment := FROM_ENVIRONMENT.match(inside)) and environment["default"] is not None:
            value = read_yaml(environment["default"])
            text = f"${{{inside}}}: read as its default {value!r}; {environment['name']} of the run is not known here"
            self.remarks.append(Remark(".".join(path), f"{path[-1]} = {text}"))
            return value
        named = PATH.match(inside.strip())
        if not depth or not named:
            raise LookupError(inside)
        above = path[: -len(named["up"])] if named["up"] else ()
        place = (*above, *PARTS.findall(named["path"]))
        found = self.at(place)
        return self.text(found, place, depth - 1) if isinstance(found, str) else self.node(found, place)

    def at(self, place: tuple[str, ...]) -> object:
        node: object = self.tree
        for part in place:
            if isinstance(node, Mapping):
                node = node[part]
            elif isinstance(node, list) and part.isdecimal():
                node = node[int(part)]
            else:
                raise LookupError(part)
        return node


def settled(value: object, default: object) -> object:
    """A flag's value without what a shell's variable adds behind it: more flags, or what is given to a bare flag."""
    if isinstance(default, bool) and isinstance(value, Behind):
        return True
    if isinstance(value, list) and not isinstance(default, list):
        given = [one for one in value if not isinstance(one, Behind)]
        return given[0] if len(given) == 1 and given[0] is value[0] and len(value) > 1 else value
    return value


def check_resolved(settings: Mapping[str, object]) -> None:
    """Raises ConfigError where a setting, or a part of it, stands for a value that is not in the source."""
    for key, value in settings.items():
        if (text := _unresolved(value, DEEPEST)) is not None:
            raise ConfigError(key, text, "stands for a value that is not given here; put the value in its place")


def _unresolved(value: object, depth: int) -> str | None:
    if isinstance(value, Unresolved):
        return str(value)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    found = (_unresolved(one, depth - 1) for one in parts if depth)
    return next((text for text in found if text is not None), None)
