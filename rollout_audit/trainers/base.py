"""The shape that every trainer module has.

A trainer logs reductions over rows of per-row quantities, so a dialect is two pure functions: `row_columns`
turns one chunk of packed tokens into per-row float64 columns, and `metrics` turns the columns of the whole
batch, laid end to end, into the trainer's own names. Any chunking gives the same columns, hence the same
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollout_audit.errors import ConfigError, suggest
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers.configfile import ConfigSource, Repeated, load_config, read_named
from rollout_audit.trainers.expression import Expression, Options, Unexpressible, express, expressed
from rollout_audit.trainers.references import Remark, check_resolved, settled
from rollout_audit.trainers.section import Section

if TYPE_CHECKING:
    from torch import Tensor

    from rollout_audit.corrections.model import Correction
    from rollout_audit.corrections.tokens import Tokens

__all__ = [
    "Columns",
    "Counterpart",
    "OrderStatistics",
    "Quirk",
    "Renamed",
    "Syntax",
    "Trainer",
    "read_by",
    "replaced_by",
    "sorted_order",
    "weighs",
]

Columns: TypeAlias = Mapping[str, NDArray[np.float64]]
"""name → float64 [rows], in the order of the dump"""

OrderStatistics: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""ranks, counted from 0 → that many smallest token log-ratio d of the batch (rank 0 the least)"""

C = TypeVar("C")


def always(_: object) -> bool:
    """Whatever the correction or the configuration."""
    return True


@dataclass(frozen=True, slots=True)
class Quirk:
    """Something a trainer does that its names or its documentation would not lead one to expect."""

    name: str
    sentence: str
    source: str
    instead: Callable[[Any], Correction | None] | None = None
    """configuration → the correction that one would expect; None where the configuration does not have the quirk"""
    told_by: str = ""
    """the check or quirk whose finding tells this one as well"""
    when: Callable[[Any], bool] = always
    """the configurations that have the quirk"""
    untold: str = ""
    """why no dump shows it, of what is documentation only"""


Settings: TypeAlias = Mapping[str, object]

Syntax: TypeAlias = Literal["yaml", "flags", "dashed flags", "toml"]
"""How a trainer takes its settings; dashed flags have - for _"""


def weighs(correction: Correction) -> bool:
    """Whether weights multiply the loss: native weights are 1 otherwise, whatever the trainer logs."""
    return correction.applied_weight.level != "none"


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The native figure that a trainer's own stands beside, and the quirk that makes it another number."""

    native: str
    """`overall.METRIC`, `STAGE.METRIC` of the correction (raw, bounded, normalised and kept are stages), or
    `removed.RULE`: the share of the valid tokens that its last rule of that name removes by itself"""
    quirk: str
    """name in `quirks`"""
    of: Literal["value", "complement"] = "value"
    """whether the trainer's figure is x or 1 − x of it"""
    when: Callable[[Correction], bool] = always
    """the corrections for which the two are the same thing"""
    rejecting: str = ""
    """the quirk in the place of `quirk` where tokens were rejected"""

    native_by: Callable[[Any], str] | None = None
    """`native` by the trainer's configuration, where that says which figure it is"""

    def configured(self, config: object) -> Counterpart:
        """The same under a configuration (None: not known)."""
        if self.native_by is None or config is None:
            return self
        return replace(self, native=self.native_by(config))

    @property
    def metric(self) -> str:
        """The native metric, by its name in the catalogue; what one rule removes is a masked fraction."""
        where, _, metric = self.native.partition(".")
        return "masked_fraction" if where == "removed" else metric

    @property
    def label(self) -> str:
        """What stands beside the trainer's figure."""
        return self.native if self.of == "value" else f"1 − {self.native}"


@dataclass(frozen=True, slots=True)
class Renamed:
    """A key of an older version that is still understood, and what stands in its place."""

    key: str
    now: str
    """what replaced it, in the words of a warning"""
    translate: Callable[[object, Settings], Settings]
    """its value and all other settings → the settings of today"""
    values: frozenset[object] | None = None
    """the values that are of the older version, where the key itself is still in use"""
    yields_to: tuple[str, ...] = ()
    """keys of today; where one of them is given it counts, and this one is not looked at"""

    def applies(self, settings: Settings) -> bool:
        if self.key not in settings:
            return False
        value = settings[self.key]
        return self.values is None or (isinstance(value, Hashable) and value in self.values)


def replaced_by(old: str, new: str) -> Renamed:
    """A key that only changed its name; where both are given the new one counts."""
    return Renamed(old, f"now {new}", lambda value, settings: {new: settings.get(new, value)}, yields_to=(new,))


def read_by(key: str, whose: str, trainer: str, values: frozenset[object] | None = None) -> Renamed:
    """A key, or values of one, that mean something in another version only: refused with the name of its dialect."""

    def refuse(value: object, _settings: Settings) -> Settings:
        if value is None or value == {}:
            return {}
        raise ConfigError(key, value, f"{whose}; --trainer {trainer} reads it")

    return Renamed(key, f"{whose}; not looked at", refuse, values)


def every(settings: Settings) -> Settings:
    """Most trainers keep nothing else in the keys of a correction."""
    return settings


def no_quantiles(config: object) -> tuple[float, ...]:  # noqa: ARG001 - one signature for every trainer
    """Most trainers log no percentile."""
    return ()


@dataclass(frozen=True, slots=True)
class Trainer(Generic[C]):
    """One trainer's dialect; `C` is its frozen configuration.

    Use: `config = trainer.configure(source)`; over each chunk `trainer.row_columns(tokens, config)`; lay the
    columns of one batch end to end; `trainer.metrics(columns, config, order)`. Where `quantiles(config)` is
    not empty, `order` must answer for the token log-ratios of that batch; else it is never called.
    """

    name: str
    version: str
    """month of the public code that the dialect follows"""
    defaults: Mapping[str, object]
    """the trainer's keys with its own defaults"""
    section: Section
    """where the trainer's configuration file keeps these keys"""
    parse: Callable[[Mapping[str, object]], C]
    """flat settings → configuration; ConfigError where the trainer itself would refuse"""
    correction: Callable[[C], Correction]
    warnings: Callable[[C], tuple[str, ...]]
    """legal settings that are probably not meant, one line each"""
    row_columns: Callable[[Tokens, C], dict[str, Tensor]]
    metrics: Callable[[Columns, C, OrderStatistics], Metrics]
    quirks: tuple[Quirk, ...]
    options: Options
    """every way to set a correction, from which `express` chooses"""
    counterparts: Mapping[str, Counterpart]
    """logged name → the native figure that it is, or ought to be"""
    syntax: Syntax = "yaml"
    """how the settings are pasted"""
    file_keys: frozenset[str] = frozenset()
    """keys that no flag gives: with one of them all settings stand in a YAML file"""
    by_flags: Settings = field(default_factory=dict)
    """settings that hold on a command line which does not give them"""
    file_setting: str = ""
    """the setting that names a file of further settings, which overrule the command line"""
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """keys that stand in another section than the others → the path of that"""
    quantiles: Callable[[C], tuple[float, ...]] = no_quantiles
    """levels in [0, 1] of token quantiles that `metrics` will ask `order` about"""
    renamed: tuple[Renamed, ...] = ()
    """keys of older versions"""
    relevant: Callable[[Settings], Settings] = every
    """the settings that say something about a correction beside the others given"""
    optional: frozenset[str] = frozenset()
    """further keys, whose absence is not the same as any value"""
    padded: tuple[str, ...] = ()
    """how the names end of what runs over all positions of the padded batch: it depends on the longest row"""
    counts_masked: bool = False
    """whether `row_columns` wants the positions under a mask of 0 as well (`tokens.masked`)"""

    def configure(self, source: ConfigSource) -> C:
        """Settings from a dict, JSON, a file, `key=value,…` or flags, parsed (ConfigError, UsageError)."""
        return self.parse(self.settings(source)[0])

    def settings(self, source: ConfigSource) -> tuple[Settings, tuple[str, ...]]:
        """The trainer's settings of today in `source`, and a line for each that an older key gave."""
        asked, notes = self._read(source)
        settings = asked
        for old in self.renamed:
            if old.applies(settings):
                value, rest = settings[old.key], {key: value for key, value in settings.items() if key != old.key}
                newer = next((key for key in old.yields_to if key in asked), None)
                today = {} if newer else old.translate(value, rest)
                if value is not None or today:  # null was off, and is
                    off = not (newer or today) and isinstance(value, bool | int | float) and value <= 0
                    beside = "; off then, and read as off" if off else ""
                    beside = f"; {newer} = {asked[newer]!r} is given beside it and counts" if newer else beside
                    notes.append(f"{old.key} = {value!r}: {old.now}{beside}")
                settings = {**rest, **today}
        return settings, tuple(notes)

    def _read(self, source: ConfigSource) -> tuple[Settings, list[str]]:
        """The settings as they are spelled in `source`, and in the file that they name."""
        known = {*self.defaults, *self.optional, *(old.key for old in self.renamed), self.file_setting} - {""}
        loaded = load_config(source)
        tree = self._affirmed(loaded.tree) if loaded.by_flags else loaded.tree
        homes = {key: self.elsewhere.get(key, self.section.path) for key in (*self.defaults, *self.optional)}
        found = self.section.of(tree, known, homes)
        given = dict(self.relevant(found))
        for key in (key for key in given if key not in known):
            raise ConfigError(key, given[key], f"unknown setting{suggest(key, sorted(known))}")
        strays = [
            (name, homes.get(name.rpartition(".")[2]))
            for name, value in self.section.strays(tree, found, known, homes)
            if (key := name.rpartition(".")[2]) in self.relevant({**found, key: value})
        ]
        misplaced = [self._stray(name, home) for name, home in strays]
        notes = misplaced if given or source in ({}, "{}") else self._nothing_given(loaded.tree, misplaced)
        notes += [self._passed_over(name) for name in self.section.passed_over(loaded.tree, known) if given]
        remarks: tuple[Repeated | Remark, ...] = (*loaded.repeated, *loaded.remarks)
        remarks = tuple(one for one in remarks if isinstance(one, Repeated) or self.section.may_be_under(one.under))
        notes += [str(one) for one in remarks if not one.key or known.intersection(one.key.split("."))]
        if given and loaded.by_flags:
            given = {**self.by_flags, **given}
        named = given.pop(self.file_setting, None)
        given = {key: settled(value, self.defaults.get(key)) for key, value in given.items()}
        check_resolved(given)
        if named is None:
            return given, notes
        further = read_named(named, source)
        if further is None:
            notes.append(f"{self.file_setting} = {named!r}: no such file here, its settings are taken for the defaults")
        return given | self.section.of(further or {}, known), notes

    def _affirmed(self, tree: Settings) -> Settings:
        """`--no_x`, which transformers' parser makes for what is true by default, as x that is false."""
        negated = {f"no_{key}": key for key, value in self.defaults.items() if value is True}
        return {negated.get(key, key): False if key in negated else value for key, value in tree.items()}

    def _nothing_given(self, tree: Settings, misplaced: list[str]) -> list[str]:
        place = ".".join(self.section.path)
        text = f"no setting of {self.name} is given: its defaults"
        if misplaced:
            return [f"{text}; {misplaced[0]}", *misplaced[1:]]
        if not tree or (place and self.section.path[0] in tree):
            return [text]
        more = f" and {len(tree) - NAMED} more" if len(tree) > NAMED else ""
        looked_for = f", where its settings would stand under {place}" if place else ""
        return [f"{text}; there are {', '.join(map(str, [*tree][:NAMED]))}{more}{looked_for}"]

    def _stray(self, name: str, home: tuple[str, ...] | None) -> str:
        place = ".".join(self.section.path if home is None else home)
        return f"{name} is not where it looks{f', which is under {place}' if place else ''}"

    def _passed_over(self, name: str) -> str:
        place = ".".join(self.section.path)
        return (
            f"{name}: not looked at; the settings of {self.name} stand {f'under {place}' if place else 'by themselves'}"
        )

    def express(self, wanted: Correction) -> Expression | Unexpressible:
        """The settings that this trainer reads as the correction, or the nearest and what is different about it."""
        return express(self.options, lambda settings: self.correction(self.configure(settings)), wanted)

    def expressed(self, wanted: Correction) -> Expression | None:
        """The same where only the correction itself will do (None: it has no settings for it)."""
        return expressed(self.options, lambda settings: self.correction(self.configure(settings)), wanted)

    def syntax_of(self, settings: Settings) -> Syntax:
        """How these settings are pasted."""
        return "yaml" if self.file_keys & settings.keys() else self.syntax

    def nested(self, settings: Settings) -> dict[str, object]:
        """Settings where the trainer's configuration keeps them; as flags without what is off unless said."""
        tree: dict[str, object] = {}
        by_flag = "flags" in self.syntax_of(settings)
        for dotted, value in settings.items():
            if by_flag and not value and self.defaults.get(dotted, 0) is value:
                continue
            *parents, leaf = (*self.elsewhere.get(dotted, self.section.path), *dotted.split("."))
            node: dict[str, Any] = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = value
        return tree

    def quirk(self, name: str) -> Quirk:
        """The quirk of that name (KeyError: it has none)."""
        return {quirk.name: quirk for quirk in self.quirks}[name]


NAMED = 3
"""Keys of a file that holds nothing of ours, which the warning names"""


def sorted_order(log_ratio: NDArray[np.float64]) -> OrderStatistics:
    """Exact order statistics of token log-ratios that are all at hand, [tokens] in any order."""
    ascending = np.sort(log_ratio)
    return lambda ranks: ascending[ranks]
