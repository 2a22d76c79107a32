"""A table as lines of text that fit a width. Names are never cut: a table that is too wide changes its shape.

Shapes, in order of preference: one line a row; the same with prose wrapped in its column, or below
the row; the same, parts of a cell below one another; columns closer; two lines a row, words above and
numbers below; a block a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest

from rich.cells import cell_len

from rollout_audit.reports.tables import Column, Table, shown

__all__ = ["Line", "Span", "lay_out", "wrap"]

GAP = "  "
LEAST_PROSE = 28
WORDS_IN_TIGHT = 2
"""Columns of numbers stand well one space apart; of words, only a few"""
INDENT = "    "
PART = "; "
"""Between the parts of a cell that may stand on lines of their own"""
STATUS_STYLES = {
    "critical": "bold red",
    "error": "bold red",
    "failed": "bold red",
    "warn": "yellow",
    "warning": "yellow",
    "worse": "bold red",
    "better": "green",
    "new": "cyan",
    "ok": "green",
    "passed": "green",
    "unmeasured": "magenta",
}


@dataclass(frozen=True, slots=True)
class Span:
    text: str
    style: str = ""


Line = tuple[Span, ...]


def lay_out(table: Table, width: int | None) -> list[Line]:
    """The table's header and rows; a width of None is endless."""
    sheet = _Sheet(table.columns, shown(table))
    if width is None or sheet.total(sheet.every) <= width:
        return list(sheet.one_line_rows())
    if sheet.room_for_prose(width) >= LEAST_PROSE:
        return list(sheet.wrapped_rows(width))
    if sheet.room_for_prose(width) >= 0 and sheet.columns[-1].kind == "prose":
        return list(sheet.rows_over_prose(width))
    parted = _Sheet(table.columns, [row for rows in map(_parts, sheet.rows) for row in rows])
    if len(parted.rows) < 2 * len(sheet.rows) and parted.total(parted.every) <= width:
        return list(parted.one_line_rows())
    tight = replace(sheet, gap=" ")
    if len(sheet.words) <= WORDS_IN_TIGHT and tight.total(sheet.every) <= width:
        return list(tight.one_line_rows())
    if sheet.numbers and sheet.words and len(INDENT) + sheet.total(sheet.numbers) <= width:
        return list(sheet.two_line_rows(width))
    return list(sheet.blocks(width))


def wrap(text: str, width: int | None, hanging: str = "") -> list[str]:
    """Words in lines of that width; a word that is longer stands alone and whole."""
    if width is None or cell_len(text) <= width:
        return [text]
    start = text[: len(text) - len(text.lstrip(" "))]
    first, *words = text.split()
    return _flow([start + first, *words], " ", width, hanging)


def _flow(pieces: Sequence[str], gap: str, width: int, hanging: str) -> list[str]:
    lines: list[str] = []
    line = ""
    for piece in pieces:
        longer = f"{line}{gap}{piece}" if line.strip() else f"{line}{piece}"
        if line.strip() and cell_len(longer) > width:
            lines.append(line)
            longer = hanging + piece
        line = longer
    return [*lines, line]


def _parts(row: Sequence[str]) -> list[tuple[str, ...]]:
    """The row as lines: a cell's first part, then the others below it."""
    cells = [[part + PART.strip() for part in cell.split(PART)] for cell in row]
    lines = zip_longest(*([*parts[:-1], parts[-1].removesuffix(PART.strip())] for parts in cells), fillvalue="")
    return list(lines)


@dataclass(frozen=True)
class _Sheet:
    """Columns and their cells as text."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    gap: str = GAP

    @property
    def every(self) -> list[int]:
        return list(range(len(self.columns)))

    @property
    def numbers(self) -> list[int]:
        return [i for i in self.every if self.columns[i].numeric]

    @property
    def words(self) -> list[int]:
        return [i for i in self.every if not self.columns[i].numeric]

    @cached_property
    def widths(self) -> list[int]:
        return [max(map(cell_len, (*self._header(i), *(row[i] for row in self.rows)))) for i in self.every]

    def total(self, chosen: Sequence[int]) -> int:
        return sum(self.widths[i] for i in chosen) + len(self.gap) * (len(chosen) - 1)

    def room_for_prose(self, width: int) -> int:
        """What is left for the last column, if it is prose."""
        return width - self.total(self.every[:-1]) - len(self.gap) if self.columns[-1].kind == "prose" else 0

    def one_line_rows(self) -> Iterator[Line]:
        yield from self._head(self.every, self.total(self.every))
        for row in self.rows:
            yield self._aligned(row, self.every)

    def wrapped_rows(self, width: int) -> Iterator[Line]:
        yield from self._head(self.every, width)
        room = self.room_for_prose(width)
        for row in self.rows:
            first, *rest = wrap(row[-1], room)
            yield self._aligned((*row[:-1], first), self.every)
            yield from ((Span(" " * (width - room) + line),) for line in rest)

    def rows_over_prose(self, width: int) -> Iterator[Line]:
        yield from self._head(self.every[:-1], width)
        for row in self.rows:
            yield self._aligned(row, self.every[:-1])
            yield from ((Span(line),) for line in wrap(INDENT + row[-1], width, INDENT))

    def two_line_rows(self, width: int) -> Iterator[Line]:
        if self.total(self.words) <= width:
            yield from self._headers(self.words)
        else:
            yield (Span(GAP.join(" ".join(self._header(i)) for i in self.words), "bold"),)
        for line in self._headers(self.numbers):
            yield (Span(INDENT), *line)
        yield (Span("─" * max(min(width, self.total(self.words)), len(INDENT) + self.total(self.numbers)), "dim"),)
        for row in self.rows:
            yield from self._worded(row, width)
            yield (Span(INDENT), *self._aligned(row, self.numbers))

    def blocks(self, width: int) -> Iterator[Line]:
        for index, row in enumerate(self.rows):
            if index:
                yield ()
            first, *others = self.every
            yield (Span(row[first], self._style(first, row[first]) or "bold"),)
            pairs = [f"{' '.join(self._header(i))} {row[i]}" for i in others if row[i]]
            for line in self._pairs(pairs, width):
                yield (Span(line),)

    def _pairs(self, pairs: Sequence[str], width: int) -> Iterator[str]:
        """Short ones side by side, long ones wrapped by themselves."""
        long = [pair for pair in pairs if cell_len(INDENT + pair) > width]
        short = [pair for pair in pairs if pair not in long]
        if short:
            yield from _flow([INDENT + short[0], *short[1:]], GAP, width, INDENT)
        for pair in long:
            yield from wrap(INDENT + pair, width, INDENT * 2)

    def _worded(self, row: Sequence[str], width: int) -> Iterator[Line]:
        if self.total(self.words) <= width:
            yield self._aligned(row, self.words)
            return
        first, *others = [i for i in self.words if row[i]]
        first_line, *rest = _flow([row[i] for i in (first, *others)], GAP, width, INDENT)
        yield (Span(row[first], self._style(first, row[first])), Span(first_line.removeprefix(row[first])))
        for line in rest:
            yield from ((Span(part),) for part in wrap(line, width, INDENT))

    def _head(self, chosen: Sequence[int], width: int) -> Iterator[Line]:
        """Column headers over a rule; nothing where no column has one."""
        if any(self.columns[i].header for i in chosen):
            yield from self._headers(chosen)
            yield (Span("─" * width, "dim"),)

    def _headers(self, chosen: Sequence[int]) -> Iterator[Line]:
        depth = max(len(self._header(i)) for i in chosen)
        padded = {i: [""] * (depth - len(self._header(i))) + self._header(i) for i in chosen}
        for level in range(depth):
            cells = [self._pad(padded[i][level], i) for i in chosen]
            yield (Span(self.gap.join(cells).rstrip(), "bold"),)

    def _aligned(self, row: Sequence[str], chosen: Sequence[int]) -> Line:
        last = chosen[-1]
        cells = [Span(self._pad(row[i], i), self._style(i, row[i])) for i in chosen[:-1]]
        end = self._pad(row[last], last) if self.columns[last].numeric else row[last]
        gaps = [Span(cell.text + self.gap, cell.style) for cell in cells]
        return (*gaps, Span(end, self._style(last, row[last])))

    def _header(self, i: int) -> list[str]:
        return self.columns[i].header.split("\n")

    def _pad(self, text: str, i: int) -> str:
        space = " " * (self.widths[i] - cell_len(text))
        return space + text if self.columns[i].numeric else text + space

    def _style(self, i: int, text: str) -> str:
        if self.columns[i].kind == "status":
            return STATUS_STYLES.get(text.partition(" ")[0], "")
        return "cyan" if self.columns[i].kind == "label" else ""
