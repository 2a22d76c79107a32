"""The golden file: figures to hold later dumps against, as text that a person can read in a diff.

Every figure stands in a line of its own, sorted; nothing in it depends on the clock, the machine or the paths as typed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from rollout_audit.audit.report import Report
from rollout_audit.dumps.naming import natural_key
from rollout_audit.errors import OldGoldenError, ReportError, suggest
from rollout_audit.golden.compare import Mask
from rollout_audit.golden.figures import FigureKey, figures_of
from rollout_audit.golden.tolerances import METRICS, Tolerance, has_threshold, tolerances_for
from rollout_audit.statistics.metrics import Metrics

__all__ = ["GOLDEN_SCHEMA", "GOLDEN_VERSION", "Golden", "golden_of", "read_golden", "update_command", "write_golden"]

GOLDEN_SCHEMA = "rollout-audit/golden"
GOLDEN_VERSION = 1
OLDEST_READ = 1
"""Older files are refused, with the command that makes them anew"""


NO_REASON = "no value"
MOST = 2**53
"""No count is greater"""


class Readable(BaseModel):
    """Keys that a later tool has added are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class GoldenTag(Readable):
    name: str = GOLDEN_SCHEMA
    version: int = GOLDEN_VERSION


class GoldenSettings(Readable):
    """How the dump was read, as far as figures depend on it."""

    mode: Literal["decoupled", "bypass"]
    training_column: str
    rollout_column: str
    presets: list[str] = Field(description="the corrections that were run; the first is the reference of each step")
    on_fault: Literal["stop", "drop"]
    steps: str | None = None
    limit: int | None = None
    trainer: str | None = Field(default=None, description="whose correction and logged metrics are held, where asked")
    config: dict[str, Any] | None = Field(default=None, description="every setting of it, in the trainer's own keys")


ADDED_SETTINGS = ("trainer", "config")
"""Left out where they are null: files without them stay as they are"""


class GoldenMask(Readable):
    """The tokens that one correction leaves of the dump or of a step."""

    digest: str = Field(description="over what becomes of every position of every response, in the order of the files")
    removed: int = Field(ge=0, le=MOST, description="valid tokens that it takes out")
    edge: int = Field(default=0, ge=0, le=MOST, description="valid tokens within rounding of a threshold")
    other: str | None = Field(default=None, description="the digest with those left open, where there are any")

    @property
    def beside_edge(self) -> str:
        return self.digest if self.other is None else self.other

    @classmethod
    def of(cls, mask: Mask) -> GoldenMask:
        other = mask.beside_edge if mask.edge else None
        return cls(digest=mask.digest, removed=mask.removed, edge=mask.edge, other=other)


ADDED_SECTIONS = ("masks", "nulls")


class Golden(Readable):
    """What a dump gave when it was last approved."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True, strict=True)

    schema_tag: GoldenTag = Field(default_factory=GoldenTag, alias="schema")
    digest: str = Field(description="SHA-256 over the names and digests of all files")
    digests: dict[str, str] = Field(description="file → SHA-256 over its contents")
    settings: GoldenSettings
    figures: dict[str, float | int | None] = Field(
        min_length=1, description="[PAIR, PRESET or TRAINER:]METRIC@pooled or @STEP → value"
    )
    edges: dict[str, Annotated[int, Field(ge=0, le=MOST)]] = Field(
        default_factory=dict, description="figure that counts → how many lie within rounding of its threshold"
    )
    nulls: dict[str, str] = Field(
        default_factory=dict, description="figure that could not be computed → why; a number instead does not pass"
    )
    masks: dict[str, GoldenMask] = Field(
        default_factory=dict, description="PRESET:kept.mask@pooled or @STEP → which tokens it leaves"
    )
    tolerances: dict[str, Tolerance] = Field(description="metric → how far it may move, and which way is worse")

    _remarks: tuple[str, ...] = PrivateAttr(default=())

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was passed over in the part that people edit."""
        return self._remarks

    def to_text(self) -> str:
        """JSON, one figure a line, keys sorted with numbers as numbers."""
        tree = self.model_dump(by_alias=True)
        given = tree["settings"].items()
        tree["settings"] = {name: value for name, value in given if value is not None or name not in ADDED_SETTINGS}
        tree["masks"] = {key: _short(mask) for key, mask in tree["masks"].items()}
        tree = {name: value for name, value in tree.items() if value or name not in ADDED_SECTIONS}
        sections = ",\n".join(f" {json.dumps(name)}: {_section(tree[name])}" for name in sorted(tree))
        return f"{{\n{sections}\n}}\n"

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return cls.model_json_schema(by_alias=True)


def golden_of(
    report: Report,
    recorded: Mapping[str, Tolerance],
    asked: Mapping[str, Mapping[str, object]],
    config: Mapping[str, Any] | None = None,
    logged: Mapping[int, Metrics] | None = None,
    masks: Mapping[FigureKey, Mask] | None = None,
) -> Golden:
    """The golden file of a report whose digests are over contents.

    Args:
        report: made with edges.
        recorded: tolerances of the file that is replaced.
        asked: those of the settings, which come first.
        config: settings of the report's trainer, where it has one.
        logged: step → what that trainer would have logged of it.
        masks: which tokens the corrections leave.
    """
    figures, left = figures_of(report, logged), masks or {}
    measured = {key: figure for key, figure in figures.items() if figure.value is not None}
    digests = {file.name: file.digest for file in report.inputs}
    return Golden(
        digest=_joint_digest(digests),
        digests=digests,
        settings=settings_of(report, config),
        figures={str(key): figure.value for key, figure in measured.items()},
        edges={str(key): figure.edge for key, figure in measured.items() if figure.edge},
        nulls={str(key): figure.reason or NO_REASON for key, figure in figures.items() if figure.value is None},
        masks={str(key): GoldenMask.of(mask) for key, mask in left.items()},
        tolerances=tolerances_for({key.name for key in (*measured, *left)}, recorded, asked),
    )


def settings_of(report: Report, config: Mapping[str, Any] | None = None) -> GoldenSettings:
    """Those settings of a report that a golden file records, with the settings of its trainer."""
    names = GoldenSettings.model_fields.keys() - {*ADDED_SETTINGS}
    trainer = None if report.trainer is None else report.trainer.name
    given = {name: getattr(report.settings, name) for name in names}
    return GoldenSettings(**given, trainer=trainer, config=None if trainer is None else dict(config or {}))


def read_golden(path: str | os.PathLike[str], dumps: Sequence[str] = ("DUMP",)) -> Golden:
    """Read a golden file.

    Args:
        path: the file.
        dumps: what it is of, for the command that an error names.

    Raises:
        OldGoldenError: of a schema that is no longer read.
        ReportError: not there, damaged, or of a newer schema.
    """
    tree = _load(Path(path), update_command(dumps, path))
    tag = tree.get("schema")
    name, version = (tag.get("name"), tag.get("version")) if isinstance(tag, dict) else (None, None)
    if name != GOLDEN_SCHEMA or not isinstance(version, int):
        raise ReportError(f"{path}: not a golden file (schema {name!r}, expected {GOLDEN_SCHEMA!r})")
    if version > GOLDEN_VERSION:
        raise ReportError(f"{path}: golden version {version}, this tool reads up to {GOLDEN_VERSION}; upgrade it")
    if version < OLDEST_READ:
        raise OldGoldenError(
            f"{path}: golden version {version} is no longer read; make it anew with: {update_command(dumps, path)}"
        )
    try:
        golden = Golden.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ReportError(f"{path}: damaged golden file, {where}: {first['msg']}; mend or delete it") from error
    golden._remarks = tuple(_passed_over(tree["tolerances"]))
    for key, edge in golden.edges.items():
        if (name := FigureKey.parse(key).name) in METRICS and not has_threshold(name):
            raise ReportError(
                f"{path}: damaged golden file, edges.{key} = {edge}: {name} has no threshold; delete that line"
            )
    return golden


def write_golden(golden: Golden, path: str | os.PathLike[str]) -> None:
    """Write the file whole or not at all.

    Raises:
        ReportError: it cannot be written.
    """
    target = Path(path)
    fresh = target.with_name(f".{target.name}-{uuid4().hex[:12]}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(golden.to_text(), encoding="utf-8", newline="\n")
        fresh.replace(target)
    except OSError as error:
        raise ReportError(f"{path}: cannot write the golden file ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def update_command(dumps: Sequence[str], path: str | os.PathLike[str], *options: str) -> str:
    """What a person types to write the file."""
    return shlex.join(["rollout-audit", "check", *dumps, "--golden", os.fspath(path), *options, "--update"])


def _passed_over(tolerances: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    known = Tolerance.model_fields
    for metric, table in tolerances.items():
        for key in (key for key in table if key not in known):
            yield f"tolerances.{metric}.{key!r} of the golden file is not known and does nothing{suggest(key, known)}"


def _load(file: Path, command: str) -> dict[str, Any]:
    """Editors of some systems begin a file with a byte order mark."""
    try:
        tree = json.loads(file.read_text(encoding="utf-8-sig"), object_pairs_hook=_each_once)
    except _TwiceError as error:
        raise ReportError(
            f"{file}: damaged golden file, {error.args[0]!r} stands there twice; delete one of the two, "
            f"or write it anew with: {command}"
        ) from None
    except FileNotFoundError:
        raise ReportError(f"{file}: no such golden file; write it with: {command}") from None
    except (OSError, ValueError) as error:
        raise ReportError(f"{file}: not a golden file ({' '.join(str(error).split())})") from error
    if not isinstance(tree, dict):
        raise ReportError(f"{file}: not a golden file (a JSON {type(tree).__name__})")
    return tree


class _TwiceError(Exception):
    """A key that an object holds twice, as after a merge."""


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(key)
        found[key] = value
    return found


def _section(value: object) -> str:
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    keys = sorted(value, key=lambda key: natural_key(str(key)))
    lines = ",\n".join(f"  {_inline(key)}: {_inline(value[key])}" for key in keys)
    return f"{{\n{lines}\n }}"


def _short(mask: Mapping[str, object]) -> Mapping[str, object]:
    """Without what is said of edges where nothing lies at one."""
    return {name: value for name, value in mask.items() if value or name == "removed"}


def _inline(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _joint_digest(digests: Mapping[str, str]) -> str:
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
