"""What a command shows, as plain data: a document of sentences and tables, before any of them has a shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rollout_audit.reports import figures

__all__ = ["Block", "Cell", "Column", "Document", "Kind", "Note", "Table", "Verdict", "shown"]

Cell: TypeAlias = str | int | float | None
Kind = Literal["label", "text", "prose", "status", "number", "figure", "count", "index", "percent"]
"""`prose`: a last column whose text may wrap. `number`: aligned down the column; `figure`: each by itself,
where units mix; `index`: a step or a row, which is no amount"""
NUMERIC: frozenset[Kind] = frozenset({"number", "figure", "count", "index", "percent"})


@dataclass(frozen=True, slots=True)
class Column:
    """`key` is its name in CSV and JSON; `header` may break into lines; `decimals` where they are fixed."""

    key: str
    header: str
    kind: Kind = "text"
    decimals: int | None = None

    @property
    def numeric(self) -> bool:
        return self.kind in NUMERIC


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of raw values: they are rounded where they are shown, and nowhere else."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""

    def records(self) -> list[dict[str, Cell]]:
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first line: a status word and a sentence."""

    status: str
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph; `quiet` ones are dimmed."""

    text: str
    quiet: bool = False


Block: TypeAlias = Verdict | Note | Table


@dataclass(frozen=True)
class Document:
    """One command's answer. `blocks` are for people; `json`, `records` and `lines` for programs.

    `json` is the whole answer. `records` is one flat table, for CSV; `lines` (else `records`) for JSON lines.
    """

    blocks: tuple[Block, ...]
    json: Callable[[], str]
    records: Callable[[], Sequence[Mapping[str, object]]]
    lines: Callable[[], Sequence[Mapping[str, object]]] | None = field(default=None)


_SHOWN: Mapping[Kind, Callable[[list[float | int | None]], list[str]]] = {
    "number": figures.column_of,
    "figure": lambda values: [figures.number(v) for v in values],
    "count": lambda values: [figures.count(v) for v in values],
    "index": lambda values: [figures.ABSENT if v is None else f"{v:.0f}" for v in values],
    "percent": lambda values: [figures.percent(v) for v in values],
}


def shown(table: Table) -> list[list[str]]:
    """The cells as text, row by row."""
    columns = [_column_shown(column, [row[i] for row in table.rows]) for i, column in enumerate(table.columns)]
    return [list(row) for row in zip(*columns, strict=True)]


def printable(text: str) -> str:
    """Control characters spelt out: a name from a dump must not move the cursor or break a row."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _column_shown(column: Column, cells: Sequence[Cell]) -> list[str]:
    if not column.numeric:
        return [figures.ABSENT if cell is None else printable(str(cell)) for cell in cells]
    values = [_numeric(cell) for cell in cells]
    if column.decimals is not None:
        return [figures.fixed(v, column.decimals) for v in values]
    return _SHOWN[column.kind](values)


def _numeric(cell: Cell) -> float | int | None:
    if isinstance(cell, str):
        raise TypeError(f"text {cell!r} in a column of numbers")
    return cell
