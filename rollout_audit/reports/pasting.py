"""A trainer's settings as text to paste: YAML, TOML or flags, as that trainer takes them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping

__all__ = ["NOTHING_TO_SET", "pasted"]

NOTHING_TO_SET = "# nothing to set: the defaults do it"

Tree = Mapping[str, object]


def pasted(tree: Tree, syntax: str) -> str:
    """Nested settings in the syntax of `trainers.base.Syntax`.

    Scalars are written as in JSON: a bare band, 0.5_2, reads as 0.52 in YAML and TOML.
    """
    if not tree:
        return NOTHING_TO_SET
    if syntax == "yaml":
        return "\n".join(_yaml(tree, 0))
    return "\n".join(_toml(tree, ())) if syntax == "toml" else " \\\n  ".join(_flags(tree, "", syntax))


def _yaml(tree: Tree, depth: int) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield f"{'  ' * depth}{key}:"
            yield from _yaml(value, depth + 1)
        else:
            yield f"{'  ' * depth}{key}: {json.dumps(value)}"


def _toml(tree: Tree, path: tuple[str, ...]) -> Iterator[str]:
    values = {key: value for key, value in tree.items() if not isinstance(value, Mapping)}
    if values and path:
        yield f"[{'.'.join(path)}]"
    yield from (f"{key} = {json.dumps(value)}" for key, value in values.items())
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _toml(value, (*path, key))


def _flags(tree: Tree, prefix: str, syntax: str) -> Iterator[str]:
    for key, value in tree.items():
        name = f"{prefix}{key.replace('_', '-') if syntax == 'dashed flags' else key}"
        if isinstance(value, Mapping):
            yield from _flags(value, f"{name}.", syntax)
        elif value is True:
            yield f"--{name}"
        else:
            given = value if isinstance(value, list) else [value]
            yield f"--{name} {' '.join(map(_word, given))}"


def _word(value: object) -> str:
    return shlex.quote(value) if isinstance(value, str) else json.dumps(value)
