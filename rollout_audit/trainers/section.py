"""Where a trainer's configuration keeps its settings, and what of a run's file was meant to be there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from rollout_audit.dumps.text import twice
from rollout_audit.errors import UsageError
from rollout_audit.trainers.references import OfCode, check_resolved

__all__ = ["Section"]


NOWHERE: Mapping[str, tuple[str, ...]] = {}


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
    older: bool = False
    """whether it was the place of an older version, which counts where the others hold nothing"""

    def of(
        self, tree: Mapping[str, object], known: Collection[str] = (), homes: Mapping[str, tuple[str, ...]] = NOWHERE
    ) -> dict[str, object]:
        """The settings in `tree`, as a flat dict.

        Args:
            tree: all that a source holds.
            known: the trainer's keys, of older versions too.
            homes: the path of the one place where a key of today counts.
        """
        for place in (self, *self.also):
            place._check_spelling(tree, known)
        self._check_holds_settings(tree)
        found = self._parts(tree, known, homes)
        parts = [part for _, part in found]
        if self._is_flat(tree, known, parts):
            return self._ours(tree, known, flat=True)
        beside = {str(k): v for k, v in tree.items() if k in known} if self._is_fragment(tree, known) else {}
        nested = {k: v for part in parts for k, v in part.items()}
        for key in beside.keys() & nested.keys():
            if repr(beside[key]) != repr(nested[key]):
                both = f"as {beside[key]!r} by itself and {nested[key]!r} in its section"
                raise UsageError(f"configuration: {twice(key, both)}")
        return beside | nested

    def _is_flat(self, tree: Mapping[str, object], known: Collection[str], parts: list[dict[str, object]]) -> bool:
        return not any(parts) and (not parts or any(key in known for key in tree))

    def _parts(
        self, tree: Mapping[str, object], known: Collection[str], homes: Mapping[str, tuple[str, ...]]
    ) -> list[tuple[Mapping[str, object], dict[str, object]]]:
        """Of each place that is there: what stands in it, and the settings among that which count."""
        found: list[tuple[Mapping[str, object], dict[str, object]]] = []
        for place in (self, *self.also):
            here = place._found(tree, known)
            if here is None or (place.older and any(part for _, part in found)):
                continue
            node, part = here
            if not place.older:
                part = {key: value for key, value in part.items() if homes.get(key, place.path) == place.path}
            found.append((node, part))
        return found

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
            if (start == 0 or len(key) >= TELLING) and not isinstance(below, Mapping | OfCode | None):
                name = ".".join(self.path[start:])
                raise UsageError(f"configuration: {name} holds {below!r}, not settings by name")
        for place in (self, *self.also):
            place._check_is_given(tree)

    def _check_is_given(self, tree: Mapping[str, object]) -> None:
        """Raises ConfigError where the section, or what it stands in, is an expression.

        By itself a short name, and one that sections stand below, may be that of an object.
        """
        for start in range(len(self.path)):
            node: object = tree
            for depth, key in enumerate(self.path[start:]):
                node = node.get(key) if isinstance(node, Mapping) else None
                last = start + depth == len(self.path) - 1
                if isinstance(node, OfCode) and (depth or (last and len(key) >= TELLING)):
                    check_resolved({".".join(self.path[start : start + depth + 1]): node})

    def may_be_under(self, above: tuple[str, ...]) -> bool:
        """Whether settings of ours may stand below these keys."""
        tails = [place.path[i:] for place in (self, *self.also) for i in range(len(place.path) or 1)]
        return any(all(one == other for one, other in zip(above, tail, strict=False)) for tail in tails)

    def strays(
        self,
        tree: Mapping[str, object],
        given: Collection[str],
        known: Collection[str],
        homes: Mapping[str, tuple[str, ...]] = NOWHERE,
    ) -> Iterator[tuple[str, object]]:
        """The dotted place and value of each setting of ours that stands where it does not count.

        Left out is what other parts of a run may have under the same name: short keys, and those that are `given`,
        which `of` has found.
        """
        parts = self._parts(tree, known, homes)
        counting = {(id(node), key) for node, part in parts for key in part}
        if self._is_flat(tree, known, [part for _, part in parts]) or self._is_fragment(tree, known):
            counting |= {(id(tree), str(key)) for key in tree}
        places = [_descend(tree, place.path[i:])[1] for place in (self, *self.also) for i in range(len(place.path))]
        looked_at = {id(node) for node in places}
        for above, node, key, value in _all_keys(tree, ()):
            elsewhere = id(node) not in looked_at and (key in given or len(key) < TELLING)
            if key in known and not elsewhere and (id(node), key) not in counting:
                yield ".".join((*above, key)), value

    def passed_over(self, tree: Mapping[str, object], known: Collection[str]) -> Iterator[str]:
        """Sections beside ours, dotted, whose name is made of the words of ours or of a setting: no known place."""
        own = {*known, *(key for place in (self, *self.also) for key in place.path)}
        levels = [self.path[:depth] for depth in range(len(self.path))] or [()]
        for above in levels:
            found, node = _descend(tree, above)
            for name, below in node.items() if found else ():
                if isinstance(below, Mapping) and name not in own and _is_made_of(str(name), own):
                    yield ".".join((*above, str(name)))

    def _found(
        self, tree: Mapping[str, object], known: Collection[str]
    ) -> tuple[Mapping[str, object], dict[str, object]] | None:
        """What the place holds, and the settings in it."""
        if not self.path:
            ours = self._ours(tree, known) if self.shared else {}
            return (tree, ours) if ours else None
        for start in range(len(self.path)):
            found, below = _descend(tree, self.path[start:])
            if found:
                return below, self._ours(below, known)
        return None

    def _ours(self, below: Mapping[str, object], known: Collection[str], *, flat: bool = False) -> dict[str, object]:
        settings = {str(key): value for key, value in below.items()}
        if self.prefix or self.shared:
            return {k: v for k, v in settings.items() if _is_ours(k, self.prefix, known)}
        sections = flat and self.path and any(isinstance(v, Mapping) for v in settings.values())
        return {k: v for k, v in settings.items() if _is_ours(k, "", known)} if sections else settings


NEAR = 0.9
"""Likeness at which an unknown key beside other settings counts as a misspelt one of ours"""
NEARER = 0.75
"""Of a section that holds settings of ours"""
DEEPEST = 6
"""Levels of nesting that are searched: a mapping may hold itself"""
TELLING = 8
"""Letters of a key that is no word of many trainers"""
SEVERAL = 2
"""Words, between underscores, that are no coincidence"""


def _all_keys(
    node: Mapping[str, object], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, object], str, object]]:
    for key, value in node.items():
        yield above, node, str(key), value
        if isinstance(value, Mapping) and len(above) < DEEPEST:
            yield from _all_keys(value, (*above, str(key)))


def _is_made_of(name: str, own: Collection[str]) -> bool:
    """Whether it begins with two words of one of these, or holds all of its several words in a row."""
    words = name.lower().replace("-", "_").split("_")
    others = [parts for key in own if len(parts := key.split("_")) >= SEVERAL]
    rows = {tuple(words[i : i + len(parts)]) for parts in others for i in range(len(words))}
    return any(words[:SEVERAL] == parts[:SEVERAL] or tuple(parts) in rows for parts in others)


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
