"""pytest plugin: `rollout_audit_check(dump, golden)` and `--rollout-audit-update`. Loads nothing heavy by itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rollout_audit.golden.result import CheckResult

__all__ = ["pytest_addoption", "rollout_audit_check"]

UPDATE = "--rollout-audit-update"
SHOWN = 20
OPENING = ("field_map", "layout", "input_format", "join", "require_marker")
"""Options that say how the dump is opened"""
FROM_SETTINGS = (
    *("expect_bitwise", "trainer", "config", "mode", "limit", "on_fault"),
    *("workers", "device", "chunk_tokens"),
)
OWN = {"dump", "golden", "dumps", "reading"}
"""Parameters of a check that the fixture fills itself"""
Path = str | os.PathLike[str]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rollout-audit")
    group.addoption(UPDATE, action="store_true", help="write the golden files that rollout_audit_check is given")


@pytest.fixture
def rollout_audit_check(request: pytest.FixtureRequest) -> Callable[..., CheckResult]:
    """A function `(dump, golden, **options)` that fails the test where a figure got worse or could not be compared.

    `dump` is a path, text or `Path`, or several of them: files, folders, globs or URIs as on the command line.

    Options are those of `rollout_audit.check` and of `rollout_audit.open_dump`; those that are not given, tolerances
    and gates come from the environment and the project's settings file, as for `rollout-audit check`.
    """
    update = bool(request.config.getoption(UPDATE))

    def _check(dump: Path | Sequence[Path], golden: Path, **options: Any) -> CheckResult:
        __tracebackhide__ = True
        result = _held(dump, golden, {"update": update, **options})
        if result.exit_code:
            pytest.fail(_complaint(result), pytrace=False)
        return result

    return _check


def _held(dump: Path | Sequence[Path], golden: Path, options: dict[str, Any]) -> CheckResult:
    from rollout_audit.dumps.dump import open_dump
    from rollout_audit.errors import RolloutAuditError, suggest
    from rollout_audit.golden.check import Reading, check

    known = [*OPENING, *(set(signature(check).parameters) - OWN), *Reading.__annotations__]
    for name in options:
        if name not in known:
            pytest.fail(f"rollout_audit_check: no option {name!r}{suggest(name, known)}", pytrace=False)
    paths = [dump] if isinstance(dump, str | os.PathLike) else list(dump)
    try:
        options = {**_in_force(options), **options}
        reading = {name: options.pop(name) for name in OPENING if name in options}
        return check(open_dump(paths, **reading), golden, dumps=[os.fspath(path) for path in paths], **options)
    except RolloutAuditError as error:
        pytest.fail(f"{error}\nor run pytest with {UPDATE}" if _is_missing(golden) else str(error), pytrace=False)


def _in_force(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the command would read from elsewhere; the settings of a trainer are not those of another that is given."""
    from rollout_audit.cli.gates import asked_gates
    from rollout_audit.cli.parsing import parse_maps, parse_presets, parse_steps
    from rollout_audit.cli.settings import in_force

    found = {name: getattr(value, "value", value) for name, value in in_force("check").items()}
    read = {name: found[name] for name in (*OPENING, *FROM_SETTINGS) if found.get(name) is not None}
    read |= {"field_map": parse_maps(found["field_map"]), "gates": asked_gates(found["fail_on"])}
    read |= {"presets": parse_presets(found["presets"]), "steps": parse_steps(found["steps"])}
    return {name: value for name, value in read.items() if name != "config" or "trainer" not in given}


def _is_missing(golden: Path) -> bool:
    return isinstance(golden, str | os.PathLike) and not os.path.exists(golden)


def _complaint(result: CheckResult) -> str:
    from rollout_audit.golden.document import check_headline
    from rollout_audit.golden.sentences import remarks

    told = [remark.text for remark in remarks(result) if remark.kind == "error"]
    more = [f"and {len(told) - SHOWN} more"] if len(told) > SHOWN else []
    return "\n".join([f"{result.golden}: {check_headline(result)}", *result.notes, *told[:SHOWN], *more])
