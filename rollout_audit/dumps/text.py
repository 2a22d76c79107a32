"""Text files as people save them: UTF-8, or with the byte order mark of another encoding."""

from __future__ import annotations

import codecs

__all__ = ["as_utf8", "decoded"]

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
