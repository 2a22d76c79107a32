"""A flat set of figures, each a finite number or null with a reason."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

__all__ = ["OVERFLOW", "UNDERFLOW", "Absent", "Figure", "Metrics", "Noted", "figure"]


class Absent(str):
    """Why a figure has no value: stands where the number would."""

    __slots__ = ()


class Noted(float):
    """A number with a remark: 0 where every weight is 0."""

    reason: str

    def __new__(cls, value: float, reason: str) -> Noted:
        self = super().__new__(cls, value)
        self.reason = reason
        return self


OVERFLOW = Absent("overflow: past the largest float64")
UNDERFLOW = Absent("underflow: below the least float64")

Figure = float | int | Absent


class Metrics(Mapping[str, float | int | None]):
    """Immutable mapping of metric name to number or None; `reasons` says why each None is None (and a 0 is 0)."""

    __slots__ = ("_values", "reasons")

    reasons: Mapping[str, str]

    def __init__(self, figures: Mapping[str, Figure]) -> None:
        values: dict[str, float | int | None] = {}
        reasons: dict[str, str] = {}
        for name, value in figures.items():
            if type(value) is float and math.isfinite(value):
                values[name] = value
                continue
            checked = figure(value)
            values[name] = _number(checked)
            if remark := _remark(checked):
                reasons[name] = remark
        self._values = values
        self.reasons = MappingProxyType(reasons)

    @classmethod
    def of_finite(cls, values: Mapping[str, float], instead: Mapping[str, Figure] = MappingProxyType({})) -> Metrics:
        """Finite numbers, which are not checked again, but for those figures that stand instead of some."""
        self, checked = cls.__new__(cls), {name: figure(value) for name, value in instead.items()}
        self._values = {**values, **{name: _number(value) for name, value in checked.items()}}
        self.reasons = MappingProxyType({name: remark for name, f in checked.items() if (remark := _remark(f))})
        return self

    def as_dict(self) -> dict[str, float | int | None]:
        """The values alone."""
        return dict(self._values)

    def __getitem__(self, name: str) -> float | int | None:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metrics({self._values!r})"


def figure(value: Figure) -> Figure:
    """The value as a plain Python number; infinities and NaN become absent, with a reason."""
    if isinstance(value, Absent | Noted | int):
        return value
    number = float(value)
    if math.isnan(number):
        return Absent("undefined: 0/0")
    return number if math.isfinite(number) else OVERFLOW


def _number(value: Figure) -> float | int | None:
    if isinstance(value, Absent):
        return None
    return float(value) if isinstance(value, Noted) else value


def _remark(value: Figure) -> str:
    if isinstance(value, Absent):
        return str(value)
    return value.reason if isinstance(value, Noted) else ""
