"""The scalars of a TensorBoard event file, without TensorBoard.

A file is a row of records: length (8 bytes), its checksum (4), the message, its checksum (4). Of the message, an
`Event` of protobuf, only what a scalar needs is read: step, and of each value its tag and `simple_value` or a tensor of
one number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Events", "is_event_file", "read_events"]

HEAD, CHECK = 12, 4
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of a field"""
SIZES = {FIXED64: 8, FIXED32: 4}
EVENT_STEP, EVENT_SUMMARY, SUMMARY_VALUE = 2, 5, 1
VALUE_TAG, VALUE_SIMPLE, VALUE_TENSOR = 1, 2, 8
TENSOR_KIND, TENSOR_SHAPE, TENSOR_CONTENT = 1, 2, 4
NUMBERS = {1: ("<f", 5), 2: ("<d", 6)}
"""kind of tensor → its number, and the field that holds it where the content does not: float, double"""

Field = tuple[int, int | bytes]
Scalar = tuple[str, int, float]


@dataclass(frozen=True)
class Events:
    """What stands in one file."""

    scalars: list[Scalar]
    """(tag, step, value) in the order of the file"""
    cut_at: int | None
    """where the last record begins, if the file ends inside it"""


def is_event_file(path: Path) -> bool:
    """Whether it is called as TensorBoard calls its files."""
    return "tfevents" in path.name


def read_events(path: Path) -> Events:
    """Every scalar of the file.

    Raises:
        ValueError: a record before the last that is damaged, or no event file at all.
    """
    data = path.read_bytes()
    scalars: list[Scalar] = []
    place = 0
    while place < len(data):
        if len(data) - place < HEAD:
            return Events(scalars, place)
        head = data[place : place + 8]
        _check(head, data[place + 8 : place + HEAD], place)
        length = int.from_bytes(head, "little")
        message = data[place + HEAD : place + HEAD + length]
        end = place + HEAD + length + CHECK
        if end > len(data):
            return Events(scalars, place)
        found = list(_scalars(message, place))
        if found:
            _check(message, data[end - CHECK : end], place)
        scalars += found
        place = end
    return Events(scalars, None)


def _check(data: bytes, given: bytes, place: int) -> None:
    if _masked_crc(data) != int.from_bytes(given, "little"):
        raise ValueError(f"the record at byte {place:,} is damaged: its checksum is another")


def _scalars(message: bytes, place: int) -> Iterator[Scalar]:
    step, values = 0, []
    try:
        for number, field in _fields(message):
            if number == EVENT_STEP and isinstance(field, int):
                step = field - (1 << 64) if field >> 63 else field
            elif number == EVENT_SUMMARY and isinstance(field, bytes):
                values += [value for n, value in _fields(field) if n == SUMMARY_VALUE and isinstance(value, bytes)]
        for value in values:
            tag, found = _tagged(value)
            if found is not None:
                yield tag, step, found
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"the record at byte {place:,} is damaged: no event") from error


def _tagged(value: bytes) -> tuple[str, float | None]:
    tag, found = "", None
    for number, field in _fields(value):
        if isinstance(field, int):
            continue
        if number == VALUE_TAG:
            tag = field.decode()
        elif number == VALUE_SIMPLE:
            found = struct.unpack("<f", field)[0]
        elif number == VALUE_TENSOR:
            found = _one_number(field)
    return tag, found


def _one_number(tensor: bytes) -> float | None:
    """What a tensor without dimensions holds; None of any other."""
    fields = dict(_fields(tensor))
    form, place = NUMBERS.get(_whole(fields.get(TENSOR_KIND, 0)), ("", 0))
    shape, content = fields.get(TENSOR_SHAPE, b""), fields.get(TENSOR_CONTENT) or fields.get(place)
    if not form or shape or not isinstance(content, bytes) or len(content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, content)[0])


def _whole(field: int | bytes) -> int:
    return field if isinstance(field, int) else 0


def _fields(message: bytes) -> Iterator[Field]:
    """(number, value) of each field: an int, or the bytes of what is not one."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == BYTES:
            size, place = _varint(message, place)
        else:
            size = SIZES.get(kind, len(message))
        if place + size > len(message):
            raise IndexError(place)
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _table() -> tuple[int, ...]:
    """Of CRC-32C, byte by byte."""
    rows = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


CRC = _table()


def _masked_crc(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = CRC[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
