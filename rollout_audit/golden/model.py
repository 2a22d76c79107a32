"""What a golden file holds: figures to hold later dumps against, as text that a person can read in a diff.

Every figure stands in a line of its own, sorted; nothing in it depends on the clock, the machine or the paths as typed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from rollout_audit.audit.report import Report
from rollout_audit.dumps.naming import natural_key
from rollout_audit.golden.compare import Mask
from rollout_audit.golden.figures import FigureKey, figures_of
from rollout_audit.golden.tolerances import Tolerance, is_held, tolerances_for
from rollout_audit.reports.utf8 import utf8_as_named
from rollout_audit.statistics.metrics import Metrics

__all__ = ["GOLDEN_SCHEMA", "GOLDEN_VERSION", "Golden", "golden_of"]

GOLDEN_SCHEMA = "rollout-audit/golden"
GOLDEN_VERSION = 1
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
    steps: str | None = Field(
        default=None, pattern=r"^(-?\d+)?:(-?\d+)?$", description="the first: the one after the last"
    )
    limit: int | None = Field(default=None, ge=1)
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


ADDED_SECTIONS = ("holds", "masks", "nulls")
COUNTED = ("figures", "masks", "nulls")
"""Sections in which a line that is missing is an expectation that is missing"""


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
    holds: dict[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict, description="section → how many lines were written, so that one that is lost is noticed"
    )

    _remarks: tuple[str, ...] = PrivateAttr(default=())

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was passed over in the part that people edit."""
        return self._remarks

    @property
    def is_counted(self) -> bool:
        """Whether it says of every section how many lines were written."""
        return all(section in self.holds for section in COUNTED)

    @property
    def is_whole(self) -> bool:
        """Whether every line that was approved is known to be there: else what is not there may have been deleted."""
        return self.is_counted and not self._lost

    @property
    def _lost(self) -> list[str]:
        counts = {name: (len(getattr(self, name)), self.holds[name]) for name in COUNTED if name in self.holds}
        return [f"{name}: {there} of {was} lines" for name, (there, was) in counts.items() if there != was]

    @property
    def gaps(self) -> list[str]:
        """What does not fit together, as where lines were deleted or lost in a merge; tolerances may be edited."""
        digest = ["digest is not that of digests"] if self.digest != _joint_digest(self.digests) else []
        masks = [f"masks.{key}: edge without other" for key, m in self.masks.items() if (m.edge > 0) != bool(m.other)]
        return [*self._lost, *digest, *masks[:1]]

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
    every, left = figures_of(report, logged), masks or {}
    figures = {key: figure for key, figure in every.items() if is_held(key.name, recorded, asked)}
    measured = {key: figure for key, figure in figures.items() if figure.value is not None}
    digests = {file.name: file.digest for file in report.inputs}
    nulls = {str(key): figure.reason for key, figure in figures.items() if figure.value is None}
    return Golden(
        digest=_joint_digest(digests),
        digests=digests,
        settings=settings_of(report, config),
        figures={str(key): figure.value for key, figure in measured.items()},
        nulls=nulls,
        masks={str(key): GoldenMask.of(mask) for key, mask in left.items()},
        edges={str(key): figure.edge for key, figure in measured.items() if figure.edge},
        tolerances=tolerances_for({key.name for key in (*measured, *left)}, recorded, asked),
        holds={"figures": len(measured), "masks": len(left), "nulls": len(nulls)},
    )


def settings_of(report: Report, config: Mapping[str, Any] | None = None) -> GoldenSettings:
    """Those settings of a report that a golden file records, with the settings of its trainer."""
    names = GoldenSettings.model_fields.keys() - {*ADDED_SETTINGS}
    trainer = None if report.trainer is None else report.trainer.name
    given = {name: getattr(report.settings, name) for name in names}
    return GoldenSettings(**given, trainer=trainer, config=None if trainer is None else dict(config or {}))


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
    return hashlib.sha256(utf8_as_named(lines)).hexdigest()
