"""Settings of a command line: hydra's `key=value`, flags, and launch scripts that hold either."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from rollout_audit.trainers.markup import read_yaml
from rollout_audit.trainers.references import Behind, Unresolved

__all__ = [
    "FILES",
    "Pair",
    "are_flags",
    "are_pairs",
    "hold_pairs",
    "read_flags",
    "read_pair_lines",
    "read_pairs",
]

Pair = tuple[str, object]
"""A key, dotted where it is nested, and its value; of one key the later counts"""

PATH = r"[A-Za-z][\w.]*(?:\[\d+\][\w.]*)*"
FRAGMENT = re.compile(rf"(?:^|[,\s])\s*(?:--)?\+*(?P<key>{PATH})\s*=")
DOTTED = r"[a-z][a-z0-9_]*(?:\.\w+|\[\d+\])+"
NESTED = rf"\+*{DOTTED}="
PAIR = re.compile(rf"^\+*(?P<key>{DOTTED})=(?P<value>.*)$", re.DOTALL)
"""Of hydra, in a launch script"""
FIRST_FLAG = re.compile(r"--[A-Za-z]")
"""`---` begins a document of YAML"""
FLAG = re.compile(r"(?:^|\s)--(?P<key>[A-Za-z][\w.-]*)(?P<values>(?:[=\s]\s*(?!--)\S+)*)")


def are_flags(text: str) -> bool:
    """Whether the first thing beside comments is a command-line flag."""
    lines = (line.strip() for line in text.splitlines())
    return bool(FIRST_FLAG.match(next((line for line in lines if line and not line.startswith("#")), "")))


def hold_pairs(text: str) -> bool:
    """Whether a pasted command is there, with hydra's settings behind it."""
    return any(PAIR.match(word) for line in text.splitlines() for word in _words(line))


def read_pairs(text: str) -> Iterator[Pair]:
    """`key=value,key=value`; a value may hold commas.

    Raises:
        ValueError: something else stands first, or a value is no YAML.
    """
    if text.lstrip().startswith(("'", '"')):
        text = " ".join(_words(text))
    keys = list(FRAGMENT.finditer(text))
    if not keys or text[: keys[0].start()].strip():
        raise ValueError("expected key=value,key=value")
    ends = [key.start() for key in keys[1:]] + [len(text)]
    for key, end in zip(keys, ends, strict=True):
        value = text[key.end() : end].strip(" ,")
        try:
            yield key["key"], _value(value)
        except ValueError as error:
            raise ValueError(f"{key['key']} = {value!r}: {error}") from None


LINE = re.compile(rf"^\s*(?:-\s+)?(?P<quote>[\"']?)(?P<pair>\+*{PATH}\s*=\s*\S.*?)(?P=quote)\s*$")
"""Of a file of settings, or of the list of them that hydra leaves in overrides.yaml"""


def are_pairs(text: str) -> bool:
    """Whether every line that is neither blank nor a comment is `key=value`."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", "---"))]
    return bool(lines) and all(LINE.match(line) for line in lines)


def read_pair_lines(text: str) -> Iterator[Pair]:
    """`key=value` a line (ValueError: a value is no YAML)."""
    for line in text.splitlines():
        if found := LINE.match(line):
            yield from read_pairs(found["pair"])


def read_flags(text: str) -> Iterator[Pair]:
    """`--key value`, `--key=value`, `--key` (true) and `--key 0.5 5.0` (a list) of a command line or script.

    Of a script also hydra's `section.key=value`, and prime-rl's `@ FILE` as an entry of FILES; variables that are set
    once stand for their values.
    """
    files = 0
    for line in _filled_in(text.replace("\\\n", " ")).splitlines():
        named, words = _files([_closed(word) for word in _command(_words(line))])
        pairs = dict(_pairs(words))
        for pair in pairs.values():
            yield pair["key"], _word(pair["value"])
        for place, file in named:
            yield f"{FILES}.{files}", {"place": place, "file": file}
            files += 1
        for flag in FLAG.finditer(" ".join(words)):
            values = [
                word
                for word in flag["values"].lstrip("=").split()
                if word.strip("()") and not SEVERAL.fullmatch(word) and word not in pairs
            ]
            unknown = Unresolved if flag["values"].startswith("=") else Behind
            yield flag["key"].replace("-", "_"), _one_or_list([_word(word, unknown) for word in values])


def _pairs(words: list[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """hydra's settings by their words: dotted ones, and in its command, behind the program, those of one name."""
    of_hydra = any(PAIR.match(word) or HYDRA.match(word) for word in words)
    program = next((i for i, word in enumerate(words) if not SINGLE.match(word)), len(words))
    for i, word in enumerate(words):
        pair = PAIR.match(word) or (SINGLE.match(word) if of_hydra and i > program else None)
        if pair:
            yield word, pair


HYDRA = re.compile(r"--config[-_](?:name|path|dir)\b")
SINGLE = re.compile(r"^\+*(?P<key>[a-z][a-z0-9_]*)=(?P<value>[^\s,]+)$")


FILES = "@"
"""Under which the files of settings stand that a command line names so"""


FILE = re.compile(r".+\.(?:toml|ya?ml|json)$")


def _files(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Each `@ FILE` with the flag that it stands behind, and the other words."""
    found: list[tuple[str, str]] = []
    rest: list[str] = []
    place, skip = "", False
    for i, word in enumerate(words):
        file = "".join(words[i + 1 : i + 2]) if word == FILES else word.removeprefix(FILES)
        if skip:
            skip = False
        elif word.startswith(FILES) and FILE.match(file):
            if rest and rest[-1].startswith("--") and "=" not in rest[-1]:
                place = rest.pop().removeprefix("--").replace("-", "_")
            found.append((place, file))
            skip = word == FILES
        else:
            place = ""
            rest.append(word)
    return found, rest


OPERATOR = re.compile(r"(?:\d?>{1,2}|&>|\||&&|&|;|<)(?!\()\S*")
"""Of a shell, behind a command"""


def _command(words: Iterable[str]) -> Iterator[str]:
    """The words without what the shell does with the output, `2>&1 | tee run.log`; the next command's are as good."""
    skipping = False
    for word in words:
        if OPERATOR.fullmatch(word):
            skipping = True
        elif not skipping or word.startswith("--") or PAIR.match(word):
            skipping = False
            yield word
        if word.endswith(";"):
            skipping = True


def _closed(word: str) -> str:
    """Without the end of a bash array, `ARGS=(--use-tis --tis-clip 4)`, or of a command."""
    word = word.removesuffix(";")
    surplus = word.count(")") - word.count("(")
    return word[:-surplus] if surplus > 0 and word.endswith(")" * surplus) else word


ASSIGNED = re.compile(
    r"(?:^|;|&&)[ \t]*(?:(?:export|local|readonly)\s+)?(?P<name>[A-Za-z_]\w*)="
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s\"'(;&]+)(?=[ \t]*(?:;|&&|\s\#.*$|$))",
    re.M,
)
VARIABLE = re.compile(r"\$(?:\{(?P<name>[A-Za-z_]\w*)(?::?-(?P<default>[^{}]*))?\}|(?P<bare>[A-Za-z_]\w*))")
"""Of a shell"""
DEEPEST = 3
"""Variables that are set to other variables"""
PIECE = re.compile(rf"\s+(?=--|{NESTED})")
"""Between settings inside one quoted string"""
BEFORE = re.compile(rf"^(?:\w+\+?=\(?|[fr]{{1,2}})?\s*(?=--|{NESTED})")
"""The name of a variable that such a string is given to, the f of Python"""
SEVERAL = re.compile(r"\$(?:[@*]|\{\w+\[[@*]\]\})")
"""A variable that stands for any number of words"""
UNKNOWN = re.compile(r"\$(?:\w|\{[\w!\#]+[^.\w]|\(|[@*])")
"""A variable or command whose value is not here; `${a.b}` is OmegaConf's"""


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


UNSPACED = re.compile(r"(?<=\w):(?=[^\s/])")


def _value(text: str) -> object:
    """As YAML has it, and hydra's `{key:value}`, where YAML wants a blank after the colon."""
    return read_yaml(UNSPACED.sub(": ", text) if "{" in text else text)


def _word(text: str, unknown: type[Unresolved] = Unresolved) -> object:
    """A word of a script, of which most settings are of other things: what is no YAML stays the text it is."""
    if UNKNOWN.search(text):
        return unknown(text)
    try:
        return _value(text)
    except ValueError:
        return text
