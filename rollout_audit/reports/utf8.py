"""Text with names of files in it, as bytes: the same UTF-8 in every locale, and always valid."""

from __future__ import annotations

__all__ = ["restored", "utf8", "utf8_as_named"]


def utf8(text: str) -> bytes:
    """Bytes of a name that are no text are escapes, which JSON reads as what they were."""
    return restored(text).encode("utf-8", "backslashreplace")


def utf8_as_named(text: str) -> bytes:
    """The bytes of names as the system has them, for digests; escapes for what no system can hold."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte, as an edited file may have
        return text.encode("utf-8", "backslashreplace")


def restored(text: str) -> str:
    """Where the locale is ASCII, Python takes letters of names for bytes that are no text; they are UTF-8 again."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text
