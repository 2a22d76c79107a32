"""Text files as people save them: UTF-8, or with the byte order mark of another encoding; TOML that names a fault."""

from __future__ import annotations

import codecs
import re
import tomllib
from collections import Counter
from collections.abc import Collection
from typing import Any

__all__ = ["TwiceError", "as_utf8", "decoded", "each_once", "in_lines", "on_one_line", "parsed_toml", "twice"]

_WIDEST = 80

MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""UTF-32 before UTF-16: the mark of the one begins with that of the other"""


def decoded(data: bytes) -> str:
    """The text, without its byte order mark and with line breaks as they are.

    Raises:
        ValueError: bytes that are no text.
    """
    mark, encoding = _marked(data)
    try:
        text = data.removeprefix(mark).decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"not text: no UTF-8 at byte {error.start:,}") from None
    if "\0" in text:
        raise ValueError(f"not text: a zero byte at character {text.index(chr(0)):,}")
    return text


def as_utf8(data: bytes) -> bytes:
    """The same text in UTF-8 without a mark; what of it is no text stays what it is, or becomes U+FFFD."""
    mark, encoding = _marked(data)
    rest = data.removeprefix(mark)
    return rest if encoding == "utf-8" else rest.decode(encoding, "replace").encode()


def _marked(data: bytes) -> tuple[bytes, str]:
    return next((known for known in MARKS if data.startswith(known[0])), (b"", "utf-8"))


OVERWRITTEN = re.compile(r"overwrite a value \(at line (\d+)")


def parsed_toml(text: str) -> dict[str, Any]:
    """The tables of a file (ValueError: no TOML; where a key stands twice, with its name and both lines)."""
    try:
        return tomllib.loads(f"{text}\n")  # else a fault of the last line is "at end of document"
    except tomllib.TOMLDecodeError as error:
        found = OVERWRITTEN.search(str(error))
        raise ValueError(_repeated(text.splitlines(), int(found[1])) if found else str(error)) from error


def _repeated(lines: list[str], line: int) -> str:
    keys = [one.partition("=")[0].strip() for one in lines[:line]]
    before = [i for i, key in enumerate(keys[:-1], 1) if key == keys[-1]]
    return twice(keys[-1], in_lines(before[-1] if before else None, line))


def twice(key: str, how: str, *, what: str = "key") -> str:
    """The one wording for what stands somewhere more than once; `how`: in which lines, or with which values."""
    return f"{what} {key!r} stands there twice, {how}; keep one"


class TwiceError(ValueError):
    """A key that a JSON object holds twice, of which parsers silently take the last value."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def each_once(pairs: list[tuple[str, Any]], among: Collection[str] | None = None) -> dict[str, Any]:
    """The object of these pairs (TwiceError: a key stands there twice, one of `among` where that is given)."""
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(key for key, _ in pairs)
        repeated = [key for key, count in times.items() if count > 1 and (among is None or key in among)]
        if repeated:
            raise TwiceError(min(repeated))
    return found


def in_lines(first: int | None, line: int) -> str:
    """`first` where it is known."""
    return f"line {line}" if first in (None, line) else f"lines {first} and {line}"


def on_one_line(text: str) -> str:
    """A text for a message: blanks and line breaks as one blank, and not too long."""
    words = " ".join(text.split())
    return words if len(words) <= _WIDEST else f"{words[:_WIDEST]}…"
