"""Typed reading of a trainer's flat settings; every refusal is a ConfigError that names key and value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from rollout_audit.errors import ConfigError, suggest

__all__ = ["Settings", "number", "positive"]

T = TypeVar("T")
YAML_WORDS = "; a bare flag, yes and on are true, no and off are false"


def number(key: str, value: object) -> float:
    """A finite number, or a string that spells one without underscores (`1e-4` in YAML 1.1)."""
    spelled = isinstance(value, str) and "_" not in value
    if isinstance(value, bool):
        raise ConfigError(key, value, f"expected a number{YAML_WORDS}")
    if not (spelled or isinstance(value, int | float)):
        raise ConfigError(key, value, "expected a number")
    try:
        parsed = float(value)  # type: ignore[arg-type]
    except ValueError:
        raise ConfigError(key, value, "expected a number") from None
    if not math.isfinite(parsed):
        raise ConfigError(key, value, "must be finite")
    return parsed


def positive(key: str, value: object) -> float:
    """A number above 0."""
    parsed = number(key, value)
    if not parsed > 0:
        raise ConfigError(key, value, "must be positive")
    return parsed


@dataclass(frozen=True, slots=True)
class Settings:
    """A trainer's settings with its defaults filled in."""

    values: Mapping[str, object]

    @classmethod
    def read(cls, raw: Mapping[str, object], defaults: Mapping[str, object]) -> Settings:
        """`raw` over `defaults`; a key that the trainer does not have is an error with a suggestion."""
        for key, value in raw.items():
            if key not in defaults:
                raise ConfigError(key, value, f"unknown setting{suggest(key, defaults)}")
        return cls({**defaults, **raw})

    def choice(self, key: str, table: Mapping[str | None, T]) -> T:
        """The table's entry for the value of `key`; None stands for null."""
        value = self.values[key]
        if (isinstance(value, str) or value is None) and value in table:
            return table[value]
        allowed = ", ".join("null" if name is None else name for name in table)
        near = suggest(str(value), (name for name in table if name is not None))
        near = YAML_WORDS if isinstance(value, bool) else near
        raise ConfigError(key, value, f"must be one of {allowed}{near}")

    def flag(self, key: str) -> bool:
        """True or false, nothing that is only like it."""
        value = self.values[key]
        if not isinstance(value, bool):
            raise ConfigError(key, value, "must be true or false")
        return value

    def number(self, key: str) -> float:
        """A finite number."""
        return number(key, self.values[key])

    def positive(self, key: str) -> float:
        """A number above 0."""
        return positive(key, self.values[key])

    def not_negative(self, key: str) -> float:
        """A number from 0 upwards."""
        value = self.number(key)
        if value < 0:
            raise ConfigError(key, self.values[key], "must not be negative")
        return value

    def optional_number(self, key: str) -> float | None:
        """A finite number, or null."""
        return None if self.values[key] is None else self.number(key)

    def optional_positive(self, key: str) -> float | None:
        """A number above 0, or null."""
        return None if self.values[key] is None else self.positive(key)

    def open_band(self, lower_key: str, upper_key: str, off: float | None = None) -> tuple[float | None, float | None]:
        """Bounds on a ratio, either of which may be null, or `off`, for none."""
        lower, upper = (
            None if self._is_off(key, off) else self.optional_positive(key) for key in (lower_key, upper_key)
        )
        if lower is not None and upper is not None and lower > upper:
            raise ConfigError(lower_key, self.values[lower_key], f"above {upper_key} = {upper:.12g}")
        return lower, upper

    def _is_off(self, key: str, off: float | None) -> bool:
        value = self.values[key]
        return value == off and not isinstance(value, bool)

    def band(self, lower_key: str, upper_key: str) -> tuple[float, float]:
        """Bounds on a ratio; a lower bound that is not given is the reciprocal of the upper."""
        upper, lower = self.positive(upper_key), self.optional_positive(lower_key)
        if lower is None and upper < 1:
            raise ConfigError(
                upper_key,
                self.values[upper_key],
                f"a lone bound below 1 is the empty band [{1 / upper:.12g}, {upper:.12g}]; give {lower_key}",
            )
        if lower is not None and lower > upper:
            raise ConfigError(lower_key, self.values[lower_key], f"above {upper_key} = {upper:.12g}")
        return (1 / upper if lower is None else lower), upper
