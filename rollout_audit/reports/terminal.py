"""A document in every format: for a terminal, a pipe, a README and a program."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TextIO

from rich.console import Console
from rich.text import Text

from rollout_audit.reports.layout import STATUS_STYLES, Line, Span, lay_out, wrap
from rollout_audit.reports.tables import Block, Document, Note, Table, Verdict, shown
from rollout_audit.reports.utf8 import utf8

__all__ = ["Format", "emit", "markdown", "plain", "to_csv", "to_json_lines"]

Format = Literal["table", "plain", "json", "jsonl", "csv", "markdown"]

STATUS_WORDS = {
    "ok": "OK",
    "warn": "WARN",
    "critical": "CRITICAL",
    "error": "ERROR",
    "unmeasured": "UNMEASURED",
}
ASCII = {
    "ρ": "rho", "μ": "mu", "π": "pi", "χ²": "chi2", "Π": "prod ", "Σ": "sum ", "²": "^2", "‖": "||", "≈": "~",
    "≤": "<=", "≥": ">=", "−": "-", "–": "-", "—": "-", "→": "->", "·": "*", "×": "x", "─": "-", "∞": "inf",
    "∈": "in", "…": "...", "√": "sqrt", "σ": "sigma", "≠": "!=", "κ": "k", "ε": "eps",
}  # fmt: skip


def emit(document: Document, style: Format | None, stream: TextIO | None = None) -> None:
    """Write the document to stdout in that format; by default a table on a terminal, plain in a pipe.

    A reader that closes the pipe early has seen what it wanted: the rest is not written, nothing is raised.
    """
    out = stream or sys.stdout
    chosen = style or ("table" if out.isatty() else "plain")
    try:
        _WRITERS[chosen](document, out)
        out.flush()
    except BrokenPipeError:
        # What is still in the buffer would raise again when the interpreter closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def plain(document: Document, width: int | None = None) -> str:
    """Aligned text without colour; a width of None keeps one line a row."""
    lines = ("".join(span.text for span in line).rstrip() for line in _lines(document.blocks, width))
    return "\n".join(lines) + "\n"


def markdown(document: Document) -> str:
    """GitHub-flavoured tables."""
    return "\n".join(part for block in document.blocks for part in _MARKDOWN[type(block)](block)) + "\n"


def to_csv(document: Document) -> str:
    """The document's records, full precision; an empty field is null."""
    records = document.records()
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(records[0]) if records else [], lineterminator="\n")
    if records:
        writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def to_json_lines(document: Document) -> str:
    """One object a line."""
    lines = (document.lines or document.records)()
    return "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)


def _write_table(document: Document, out: TextIO) -> None:
    plain_letters = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    console = Console(file=out, highlight=False, soft_wrap=True, color_system=None if plain_letters else "auto")
    spell = _speller(out)
    for line in _lines(_spelled(document.blocks, spell), console.width):
        # Text takes strings as they are: brackets in file names are not markup
        console.print(Text.assemble(*((spell(span.text), span.style) for span in line)))


def _write_plain(document: Document, out: TextIO) -> None:
    spell = _speller(out)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) else None
    spelled = Document(tuple(_spelled(document.blocks, spell)), document.json, document.records)
    out.write(spell(plain(spelled, width)))


def _write_bytes(text: Callable[[Document], str]) -> Callable[[Document, TextIO], None]:
    """For programs: the same UTF-8 bytes whatever the terminal and the locale."""

    def write(document: Document, out: TextIO) -> None:
        out.flush()
        out.buffer.write(utf8(text(document)))

    return write


_WRITERS: Mapping[Format, Callable[[Document, TextIO], None]] = {
    "table": _write_table,
    "plain": _write_plain,
    "json": _write_bytes(lambda document: document.json()),
    "jsonl": _write_bytes(to_json_lines),
    "csv": _write_bytes(to_csv),
    "markdown": _write_bytes(markdown),
}


def _speller(out: TextIO) -> Callable[[str], str]:
    """What makes text printable there: nothing for Unicode; letters and escapes where only ASCII is left."""
    encoding = out.encoding or "ascii"
    try:
        "".join(ASCII).encode(encoding)
    except UnicodeEncodeError:
        return lambda text: _transliterated(text).encode(encoding, "backslashreplace").decode(encoding)
    return lambda text: text.encode(encoding, "backslashreplace").decode(encoding)


def _transliterated(text: str) -> str:
    for letter, spelling in ASCII.items():
        text = text.replace(letter, spelling)
    return text


def _spelled(blocks: Sequence[Block], spell: Callable[[str], str]) -> Iterator[Block]:
    """Before the layout, which counts letters."""
    for block in blocks:
        match block:
            case Verdict(status, text):
                yield Verdict(status, spell(text))
            case Note(text, quiet):
                yield Note(spell(text), quiet)
            case Table(title, columns, rows, caption):
                headers = tuple(replace(column, header=spell(column.header)) for column in columns)
                cells = [[spell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
                yield Table(spell(title), headers, cells, spell(caption))


def _lines(blocks: Sequence[Block] | Iterator[Block], width: int | None) -> Iterator[Line]:
    for index, block in enumerate(blocks):
        if index and isinstance(block, Table):
            yield ()
        yield from _block_lines(block, width)


def _block_lines(block: Block, width: int | None) -> Iterator[Line]:
    match block:
        case Verdict(status, text):
            word = STATUS_WORDS.get(status, status)
            margin = len(word) + 2
            for index, line in enumerate(wrap(text, width and width - margin)):
                head = "" if index else word
                yield (Span(head.ljust(margin), STATUS_STYLES.get(status, "bold")), Span(line, "bold"))
        case Note(text, quiet):
            yield from ((Span(line, "dim" if quiet else ""),) for line in wrap(text, width, "  "))
        case Table(title, _, _, caption):
            yield (Span(title, "bold"),)
            yield from lay_out(block, width)
            yield from ((Span(line, "dim"),) for line in wrap(caption, width, "  ") if caption)


def _markdown_table(table: Table) -> Iterator[str]:
    yield from ("", f"### {_cell(table.title)}", "")
    yield _row(" ".join(column.header.split("\n")) for column in table.columns)
    yield _row("---:" if column.numeric else "---" for column in table.columns)
    yield from map(_row, shown(table))
    if table.caption:
        yield from ("", _cell(table.caption))


def _row(cells: Iterator[str] | Sequence[str]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _markdown_verdict(verdict: Verdict) -> Iterator[str]:
    yield f"**{STATUS_WORDS.get(verdict.status, verdict.status)}** {_cell(verdict.text)}"


def _markdown_note(note: Note) -> Iterator[str]:
    yield from ("", _cell(note.text))


_MARKDOWN: Mapping[type[Block], Callable[..., Iterator[str]]] = {
    Verdict: _markdown_verdict,
    Note: _markdown_note,
    Table: _markdown_table,
}
