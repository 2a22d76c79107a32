"""Settings in a script in Python: keywords of its calls, and what is set on an object afterwards."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from rollout_audit.trainers.references import OfCode, Remark

__all__ = ["read_code"]

Pair = tuple[str, object]
CONFIGURATIONS = ("Config", "Configuration", "Arguments", "Args")
"""How the classes are called that hold settings"""


def read_code(text: str) -> tuple[list[Pair], tuple[Remark, ...]]:
    """`GRPOConfig(key=value)`, `args.key = value` and `config["a"]["key"] = value`, in the order of the lines.

    A name that is set once, outside branches, stands for its value; an expression is `OfCode`. No code is run.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return [], ()
    script = _Script(text, _constants(tree, text))
    inside = _inside(tree)
    found = (n for n in ast.walk(tree) if isinstance(n, ast.stmt | ast.Call) and id(n) not in inside)
    nodes = sorted(found, key=_place)
    branched = {id(node) for node in _branched(tree)}
    placed = [(id(node) in branched, pair) for node in nodes for pair in script.pairs(node)]
    pairs = [pair for _, pair in placed]
    sections = {key.partition(".")[0] for key, value in pairs if "." in key or isinstance(value, Mapping)}
    remarks = tuple(remark for node in nodes if isinstance(node, ast.Call) for remark in script.remarks(node))
    # an object of the same name as a section, `actor=Actor(config)`
    kept = [(key, value) for key, value in pairs if not (isinstance(value, OfCode) and key in sections)]
    return [*kept, *_doubtful(placed)], remarks


def _doubtful(pairs: list[tuple[bool, Pair]]) -> list[Pair]:
    """What is set in a branch and otherwise elsewhere, as `OfCode` of its values.

    Args:
        pairs: each with whether it is in a branch.
    """
    values: dict[str, list[object]] = {}
    in_branch: set[str] = set()
    for branched, pair in pairs:
        for key, value in _leaves(*pair):
            values.setdefault(key, []).append(value)
            in_branch |= {key} if branched else set()
    several = {key: list(dict.fromkeys(map(str, found))) for key, found in values.items() if key in in_branch}
    return [(key, OfCode(f"{' or '.join(found)}, by a branch")) for key, found in several.items() if len(found) > 1]


def _leaves(key: str, value: object) -> Iterator[Pair]:
    if isinstance(value, Mapping) and value:
        for name, one in value.items():
            yield from _leaves(f"{key}.{name}", one)
    else:
        yield key, value


def _branched(tree: ast.Module) -> Iterator[ast.AST]:
    """All that stands in a branch, and may not run."""
    for node in ast.walk(tree):
        if isinstance(node, BRANCHES) and not _is_main(node):
            parts = node.handlers if isinstance(node, ast.Try) else ast.iter_child_nodes(node)
            yield from (one for part in parts for one in ast.walk(part))


BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)


def _inside(tree: ast.Module) -> set[int]:
    """By identity: the mappings that are a setting of another one, whose keywords are no settings by themselves."""
    given: dict[str, ast.expr] = {}
    roots: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            given |= {one.id: node.value for one in node.targets if isinstance(one, ast.Name)}
            roots += [node.value for one in node.targets if _is_section(_key(one))]
        elif isinstance(node, ast.Call) and (_is_configuration(node) or _name(node.func) == "dict"):
            roots += [one.value for one in node.keywords if one.arg is not None and _is_section(one.arg)]
    return {id(one) for root in roots for one in _mappings(root, given, DEEPEST)}


DEEPEST = 8
"""Names that stand for mappings of names"""


def _mappings(node: ast.expr | None, given: Mapping[str, ast.expr], depth: int) -> Iterator[ast.Call]:
    """Those that a value is made of, through lists and names."""
    parts: list[ast.expr | None] = []
    if isinstance(node, ast.List | ast.Tuple):
        parts += node.elts
    elif isinstance(node, ast.Dict):
        parts += node.values
    elif isinstance(node, ast.Name):
        parts.append(given.get(node.id))
    elif node is not None and _is_mapping(node):
        yield node
        parts += [one.value for one in node.keywords]
    for part in parts if depth else ():
        yield from _mappings(part, given, depth - 1)


def _is_section(key: str) -> bool:
    """Whether what it names is a part of the settings, and not all of them, `args=GRPOConfig(…)`."""
    return bool(key) and not key.lower().endswith(WHOLE)


WHOLE = ("args", "arguments", "config", "configuration", "cfg")
"""How the names end under which a trainer takes all its settings"""


def _is_configuration(call: ast.Call) -> bool:
    return (_name(call.func) or "").endswith(CONFIGURATIONS)


def _place(node: ast.stmt | ast.Call) -> tuple[int, int, int]:
    """What a statement sets after the calls in it."""
    return (node.lineno, isinstance(node, ast.stmt), node.col_offset)


@dataclass(frozen=True, slots=True)
class _Script:
    text: str
    constants: Mapping[str, object]

    def pairs(self, node: ast.stmt | ast.Call) -> Iterator[Pair]:
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                yield from self.keyword(keyword)
            yield from self.attribute(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if key := _key(target):
                    yield key, self.value(node.value)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None and (key := _key(node.target)):
            yield key, self.value(node.value) if isinstance(node, ast.AnnAssign) else OfCode(_source(node, self.text))

    def keyword(self, keyword: ast.keyword) -> Iterator[Pair]:
        if keyword.arg is not None:
            yield keyword.arg, self.value(keyword.value)
        else:
            yield from self.unpacked(keyword.value)

    def unpacked(self, node: ast.expr) -> Iterator[Pair]:
        """`**{"key": value, **more}`, and of a name that stands for a mapping."""
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    yield from self.unpacked(value)
                elif isinstance(key, ast.Constant):
                    yield str(key.value), self.value(value)
        elif isinstance(given := self.value(node), Mapping):
            yield from given.items()

    def attribute(self, call: ast.Call) -> Iterator[Pair]:
        """`setattr(args, "key", value)`."""
        if isinstance(call.func, ast.Name) and call.func.id == "setattr" and len(call.args) == 3:
            key = self.value(call.args[1])
            if not isinstance(key, OfCode):
                yield str(key), self.value(call.args[2])

    def remarks(self, call: ast.Call) -> Iterator[Remark]:
        """Of settings whose names are not there either."""
        if _is_configuration(call):
            for node in (one.value for one in call.keywords if one.arg is None):
                for name in self.unknown(node):
                    yield Remark("", f"**{name} in line {call.lineno}: its settings are not given here; not looked at")

    def unknown(self, node: ast.expr | None) -> Iterator[str]:
        """What is unpacked and is no mapping that stands there."""
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                yield from self.unknown(value) if key is None else self.unknown_key(key)
        elif node is not None and not isinstance(given := self.value(node), Mapping):
            yield str(given)

    def unknown_key(self, key: ast.expr) -> Iterator[str]:
        yield from () if isinstance(key, ast.Constant) else (f"{{{_source(key, self.text)}: …}}",)

    def value(self, node: ast.expr) -> object:
        return _value(node, self.text, self.constants)


def _source(node: ast.AST, text: str) -> str:
    return " ".join((ast.get_source_segment(text, node) or "an expression").split())


def _value(node: ast.expr, text: str, constants: Mapping[str, object]) -> object:
    """What stands there, with bands left as they were written, names filled in; else its text as `OfCode`."""
    source = _source(node, text)
    if isinstance(node, ast.Constant):
        spelled = isinstance(node.value, int | float) and "_" in source
        return source if spelled else node.value
    if isinstance(node, ast.Name) and node.id in constants:
        return constants[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(one, text, constants) for one in node.elts]
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        keys = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
        return {key: _value(one, text, constants) for key, one in zip(keys, node.values, strict=True)}
    if _is_mapping(node):
        return {str(k.arg): _value(k.value, text, constants) for k in node.keywords}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand, text, constants)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return -value if isinstance(node.op, ast.USub) else value
    return OfCode(source)


def _is_mapping(node: ast.expr) -> TypeGuard[ast.Call]:
    """`dict(key=value)`, and the call of a class, `LossConfig(key=value)`."""
    if not isinstance(node, ast.Call) or not (name := _name(node.func)):
        return False
    return (name == "dict" or name[0].isupper()) and not node.args and all(one.arg for one in node.keywords)


def _name(node: ast.expr) -> str | None:
    """The last part of a dotted name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _key(target: ast.expr) -> str:
    """`a.b` of `args.a.b` or `config["a"]["b"]`; empty for a plain name, inside a class, or where a part is no text."""
    parts: list[str] = []
    while not isinstance(target, ast.Name):
        if isinstance(target, ast.Attribute):
            parts.append(target.attr)
            target = target.value
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            parts.append(str(target.slice.value))
            target = target.value
        else:
            return ""
    return "" if target.id in ("self", "cls") else ".".join(reversed(parts))


def _constants(tree: ast.Module, text: str) -> dict[str, object]:
    """The names that are set once, to something that stands there, and not in a branch."""
    times = Counter(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    times.update(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))
    found: dict[str, object] = {}
    for statement in _straight(tree.body):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if isinstance(target, ast.Name) and times[target.id] == 1 and statement.value is not None:
            value = _value(statement.value, text, found)
            if not isinstance(value, OfCode):
                found[target.id] = value
    return found


ALWAYS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.With, ast.AsyncWith)


def _straight(body: list[ast.stmt]) -> Iterator[ast.Assign | ast.AnnAssign]:
    """The assignments that run whenever the lines around them do; those of a function run where it is called."""
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            yield statement
        elif isinstance(statement, ALWAYS) or (isinstance(statement, ast.If) and _is_main(statement)):
            yield from _straight(statement.body)


def _is_main(statement: ast.AST) -> bool:
    """`if __name__ == "__main__":`"""
    return isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test)
