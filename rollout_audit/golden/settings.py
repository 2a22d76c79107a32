"""`rollout-audit.toml`, or `[tool.rollout-audit]` in pyproject.toml: tolerances and gates of a project.

The nearest folder upward that holds one of the two counts; where it holds both, rollout-audit.toml does. What else
stands in the file are options of the commands, which `cli.settings` hands to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_audit.dumps.text import decoded, parsed_toml
from rollout_audit.errors import UsageError, suggest

if TYPE_CHECKING:
    from rollout_audit.audit.gates import Gate

__all__ = ["NO_SETTINGS", "Settings", "checked_tolerances", "gates_of", "settings", "tolerances_of"]

OWN_FILE = "rollout-audit.toml"
PROJECT_FILE = "pyproject.toml"
TABLE = "rollout-audit"
GATE_KEYS = ("metric", "op", "value", "severity", "scope", "preset")
SEVERITIES = ("critical", "warn")
TOLERANCE_KEYS = ("atol", "rtol", "direction")


@dataclass(frozen=True)
class Settings:
    """One settings file as it stands there."""

    file: str
    tree: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    def refuse(self, where: str, value: object, reason: str) -> UsageError:
        return UsageError(f"{self.file}: {where} = {value!r}: {reason}")

    def unknown(self, where: str, key: str, known: tuple[str, ...] | list[str]) -> UsageError:
        return UsageError(f"{self.file}: unknown key {where}{key!r}{suggest(key, known)}")


NO_SETTINGS = Settings("")


def settings(start: Path | None = None) -> Settings:
    """The settings of a folder, by default the current one; none where there is no file.

    Raises:
        UsageError: the file cannot be read, or is no TOML.
    """
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        if (file := folder / OWN_FILE).is_file():
            return Settings(_named(file), _toml(file), file)
        if (file := folder / PROJECT_FILE).is_file() and (table := _table(_toml(file))) is not None:
            return Settings(f"{_named(file)} [tool.{TABLE}]", table, file)
    return NO_SETTINGS


def tolerances_of(given: Settings) -> dict[str, Mapping[str, Any]]:
    """metric → atol, rtol and direction, as far as `[check.metrics.METRIC]` says them.

    Raises:
        UsageError: an unknown metric or key, or a value out of range.
    """
    return checked_tolerances(given, _tables(given, given.tree.get("check", {}), "check").get("metrics", {}))


def checked_tolerances(given: Settings, metrics: object) -> dict[str, Mapping[str, Any]]:
    """The same of tables from elsewhere: `given` names what they stand in.

    Raises:
        UsageError: an unknown metric or key, or a value out of range.
    """
    tables = _tables(given, metrics, "check.metrics")
    if not tables:
        return {}
    from rollout_audit.golden.tolerances import METRICS, is_logged

    for metric, table in tables.items():
        if metric not in METRICS and not is_logged(metric):
            raise given.unknown("check.metrics.", metric, METRICS)
        for key, value in _tables(given, table, f"check.metrics.{metric}").items():
            _check_tolerance(given, metric, key, value)
    return dict(tables)


def gates_of(given: Settings) -> list[Gate]:
    """The `[[gate]]` tables.

    Raises:
        UsageError: an unknown key, one that is missing, or a value out of range.
    """
    tables = given.tree.get("gate", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise given.refuse("gate", tables, "expected tables, each under [[gate]]")
    return [_gate(given, table, f"gate[{i}]") for i, table in enumerate(tables)]


def _gate(given: Settings, table: Mapping[str, Any], where: str) -> Gate:
    from rollout_audit.audit.gates import OPERATORS, PER_STEP, SCOPES, Gate, is_step

    for key in table:
        if key not in GATE_KEYS:
            raise given.unknown(f"{where}.", key, GATE_KEYS)
    for key in ("metric", "op", "value"):
        if key not in table:
            raise UsageError(f"{given.file}: {where} has no {key}; a gate needs metric, op and value")
    scope, severity = str(table.get("scope", "pooled")), table.get("severity", "critical")
    _choice(given, f"{where}.op", table["op"], tuple(OPERATORS))
    _choice(given, f"{where}.severity", severity, SEVERITIES)
    if not is_step(scope):
        _choice(given, f"{where}.scope", scope, (*SCOPES, PER_STEP), " (each by itself) or the number of one")
    for key in ("metric", "preset"):
        if not isinstance(table.get(key, ""), str):
            raise given.refuse(f"{where}.{key}", table[key], "expected a name")
    value, preset, metric = _number(given, f"{where}.value", table["value"]), table.get("preset"), table["metric"]
    if preset is None and ":" in metric:  # as in a golden file and with --fail-on
        preset, _, metric = metric.partition(":")
    name = metric if preset is None else f"{preset}:{metric}"
    text = f"{name}@{scope} {table['op']} {value:g}"
    return Gate(text, None, preset, metric, scope, table["op"], value, severity, f"{given.file}: {where}")


def _check_tolerance(given: Settings, metric: str, key: str, value: object) -> None:
    from rollout_audit.golden.tolerances import DIRECTIONS, SPELT

    where = f"check.metrics.{metric}"
    if key not in TOLERANCE_KEYS:
        raise given.unknown(f"{where}.", key, TOLERANCE_KEYS)
    if key == "direction":
        _choice(given, f"{where}.{key}", value, (*DIRECTIONS, *SPELT))
    elif not 0 <= _number(given, f"{where}.{key}", value) < math.inf:
        raise given.refuse(f"{where}.{key}", value, "a tolerance is a number from 0 up, and finite")


def _choice(given: Settings, where: str, value: object, known: tuple[str, ...], else_what: str = "") -> None:
    if value not in known:
        raise given.refuse(where, value, f"expected one of {', '.join(known)}{else_what}{suggest(str(value), known)}")


def _number(given: Settings, where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise given.refuse(where, value, "expected a number")
    try:
        return float(value)
    except OverflowError:
        raise UsageError(f"{given.file}: {where}: expected a number that a float64 can hold") from None


def _tables(given: Settings, value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise given.refuse(where, value, f"expected a table, [{where}]")
    return value


def _table(tree: Mapping[str, Any]) -> Mapping[str, Any] | None:
    tool = tree.get("tool", {})
    table = tool.get(TABLE) if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"pyproject.toml: tool.{TABLE} = {table!r}: expected a table, [tool.{TABLE}]")
    return table


def _toml(file: Path) -> Mapping[str, Any]:
    """Editors of some systems begin a file with a byte order mark."""
    try:
        return parsed_toml(decoded(file.read_bytes()))
    except (OSError, ValueError) as error:
        raise UsageError(f"{_named(file)}: cannot be read as TOML ({' '.join(str(error).split())})") from error


def _named(file: Path) -> str:
    """Relative to the current folder where it lies there: messages and `config show` are the same everywhere."""
    return file.name if file.parent == Path.cwd() else str(file)
