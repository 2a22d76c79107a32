"""slime, August 2026: `--use-tis` and what may stand in its place, logged as `train/…` (here without that prefix).

Every figure is the mean over valid tokens of each row, then the mean over all rows, where a row without a valid token
counts as 0. Source: reference/trainers.md 2, conformance/MORE.md (slime/backends/megatron_utils/loss.py, mis.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollout_audit.corrections.cuts import weight_interval
from rollout_audit.corrections.direct import kept_tokens
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Mode,
    Rule,
    Sign,
    Statistic,
    Weight,
)
from rollout_audit.corrections.tokens import Tokens, row_sum
from rollout_audit.errors import ConfigError, suggest
from rollout_audit.statistics.metrics import Absent, Figure, Metrics
from rollout_audit.trainers import mis
from rollout_audit.trainers.base import Columns, Counterpart, OrderStatistics, Quirk, Renamed, Trainer
from rollout_audit.trainers.expression import Axis, Options, lower, or_else, rule_bound, rule_lower, rule_upper, upper
from rollout_audit.trainers.mis import FUNCTION
from rollout_audit.trainers.otherwise import reweighed
from rollout_audit.trainers.reductions import NEEDS_ADVANTAGES, sample_mean, summarise
from rollout_audit.trainers.section import Section
from rollout_audit.trainers.settings import Settings
from rollout_audit.trainers.thresholds import band_without_one

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "BY_FLAGS",
    "CONFIG_FILE",
    "COUNTERPARTS",
    "DEFAULTS",
    "FILE_KEYS",
    "FLAGS",
    "FUNCTION",
    "ICEPOP",
    "QUIRKS",
    "RENAMED",
    "SECTION",
    "TRAINER",
    "SlimeConfig",
    "as_if_named",
    "correction",
    "figures",
    "flags",
    "parse",
    "row_columns",
    "warnings",
]

DEFAULTS: dict[str, object] = {
    "use_tis": False,
    "tis_clip": 2.0,
    "tis_clip_low": 0.0,
    FUNCTION: None,
    "get_mismatch_metrics": False,
    "use_opsm": False,
    "opsm_delta": 1e-4,
    "use_rollout_logprobs": False,
    **{key: value for key, value in mis.DEFAULTS.items() if key != "use_tis"},
}
FILE_KEYS = frozenset(mis.DEFAULTS) - {"use_tis"}
"""What stands in the file of --custom-config-path alone"""
FLAGS = frozenset(DEFAULTS) - mis.DEFAULTS.keys()
BY_FLAGS: dict[str, object] = {FUNCTION: None}
"""So that a lone --use-tis is told from a lone `use_tis: true` of mis.py's file"""
CONFIG_FILE = "custom_config_path"
SECTION = Section(shared=True, prefix=("tis_", "rs_"))
RENAMED = (
    Renamed(
        "use_rollout_correction",
        "of a README, no flag of the trainer; use_tis switches the correction on",
        lambda _value, _settings: {},
    ),
)
VANILLA, ICEPOP, MIS = "vanilla_tis_function", "icepop_function", mis.COMPUTE
FUNCTIONS = {VANILLA: VANILLA, ICEPOP: ICEPOP, MIS: MIS, "compute_mis_weights_fsdp": MIS}
BOUNDS = {VANILLA: Bound.CLIP, ICEPOP: Bound.MASK}
ONE_POLICY = Absent(
    "needs advantages, and log_probs beside old_log_probs: without use_rollout_logprobs OPSM compares these two"
)

QUIRKS = (
    Quirk(
        "raw_tis",
        "tis and tis_abs are of the raw ratio, not of the weight that multiplies the loss.",
        "conformance/MORE.md, slime",
    ),
    Quirk(
        "icepop_without_floor",
        "icepop_function takes the bounds of TIS: with the default tis_clip_low 0 it has no lower bound.",
        "reference/trainers.md 2A",
        instead=lambda config: _with_a_floor(config),
    ),
    Quirk(
        "unclamped_ratio",
        "The built-in functions exponentiate the log-ratio unclamped; only mis.py clamps it to ±20.",
        "reference/trainers.md 2A",
        when=lambda config: config.weight is not None,
    ),
    Quirk(
        "opsm_counts_masked_tokens",
        "opsm_clipfrac divides a count that holds masked tokens by valid tokens and can exceed the share of dropped "
        "sequences; per-token advantages are taken to be alike under mask 0 and 1.",
        "conformance/MORE.md, correction 4",
    ),
    Quirk(
        "diff_of_kept_tokens",
        "With mis.py, rejected tokens leave the numerator of train_rollout_logprob_abs_diff and stay in its "
        "denominator: rejecting lowers it.",
        "conformance/MORE.md, correction 5",
    ),
    *mis.QUIRKS,
)

OPSM = {"use_opsm": True, "opsm_delta": rule_bound(Statistic.K1, Aggregation.SEQ_MEAN)}


def flags(icepop: str) -> Options:
    """What the flags alone can set, where `icepop` is the path of that function."""
    weights: Axis = (
        {"use_tis": True, "tis_clip": upper, "tis_clip_low": or_else(lower, 0.0)},
        {
            "use_tis": True,
            FUNCTION: icepop,
            "tis_clip": rule_upper(Aggregation.TOKEN),
            "tis_clip_low": or_else(rule_lower(Aggregation.TOKEN), 0.0),
        },
    )
    return ((({"use_rollout_logprobs": True}, {"use_rollout_logprobs": True, **OPSM}),), (weights,))


OPTIONS: Options = (
    (({},),),
    *flags(f"slime.backends.megatron_utils.loss.{ICEPOP}"),
    *mis.options("examples.train_infer_mismatch_helper"),
)
COUNTERPARTS = {
    **mis.COUNTERPARTS,
    "train_rollout_logprob_abs_diff": Counterpart(
        "overall.log_prob_diff_abs_mean", "mean_of_means", rejecting="diff_of_kept_tokens"
    ),
    "tis": Counterpart("bounded.weight_mean", "raw_tis"),
    "opsm_clipfrac": Counterpart("kept.seq_masked_fraction", "opsm_counts_masked_tokens"),
}


@dataclass(frozen=True, slots=True)
class SlimeConfig:
    """Parsed flags; `mis` stands in the place of `weight` where mis.py is the function."""

    weight: Weight | None
    mis: mis.MisConfig | None
    opsm_delta: float | None
    bypass: bool
    remarks: tuple[str, ...] = ()


def parse(raw: Mapping[str, object], trainer: str = "slime") -> SlimeConfig:
    """Flat settings → configuration (ConfigError where slime's own checks refuse, SPEC 3 beside them).

    Settings of mis.py alone, without a flag that says otherwise, are read as what its file holds.
    """
    settings = Settings.read(raw, DEFAULTS)
    use_tis, bypass = settings.flag("use_tis"), settings.flag("use_rollout_logprobs")
    if use_tis and bypass:
        raise ConfigError("use_rollout_logprobs", bypass, f"{trainer} refuses it together with use_tis")
    of_mis = sorted(FILE_KEYS & raw.keys())
    alone = bool(of_mis) and not FLAGS & raw.keys()
    function = MIS if alone else _function(settings, trainer)
    uses_mis = function == MIS and (use_tis or settings.flag("get_mismatch_metrics"))
    return SlimeConfig(
        weight=_weight(settings, BOUNDS[function]) if use_tis and function != MIS else None,
        mis=_mis(settings) if uses_mis else None,
        opsm_delta=settings.number("opsm_delta") if settings.flag("use_opsm") else None,
        bypass=bypass,
        remarks=_of_mis_alone(of_mis, settings) if alone else _not_looked_at(of_mis, raw, function),
    )


def _of_mis_alone(keys: Sequence[str], settings: Settings) -> tuple[str, ...]:
    off = "" if settings.flag("use_tis") else ", but without use_tis: true it does nothing"
    return (f"{as_if_named(keys)}{off}",)


def as_if_named(keys: Sequence[str]) -> str:
    """Where no flag stands beside the settings of mis.py."""
    return f"{', '.join(keys)}: of mis.py, which runs where {FUNCTION} names it; read as if it did"


def _not_looked_at(keys: Sequence[str], raw: Mapping[str, object], function: str) -> tuple[str, ...]:
    set_apart = [key for key in keys if raw[key] != DEFAULTS[key]]
    return (f"{', '.join(set_apart)}: of mis.py, not looked at by {function}",) if set_apart and function != MIS else ()


def _function(settings: Settings, trainer: str) -> str:
    """The last part of the path names the function; null is the built-in one."""
    path = settings.values[FUNCTION]
    if path is None:
        if settings.flag("get_mismatch_metrics"):
            raise ConfigError("get_mismatch_metrics", value=True, reason=f"{trainer} wants {FUNCTION} with it")
        return VANILLA
    name = str(path).replace(":", ".").rpartition(".")[2]
    if name not in FUNCTIONS:
        near = suggest(name, FUNCTIONS) or f"; known are {', '.join((*BOUNDS, MIS))}"
        raise ConfigError(FUNCTION, path, f"what {name!r} does is not known here{near}")
    return FUNCTIONS[name]


def _weight(settings: Settings, bound: Bound) -> Weight:
    settings.positive("tis_clip")
    lower, upper = settings.open_band("tis_clip_low", "tis_clip", off=0.0)
    return Weight(Level.TOKEN, bound, lower, upper, clamp=None)


def _mis(settings: Settings) -> mis.MisConfig:
    return mis.parse({key: settings.values[key] for key in mis.DEFAULTS})


def correction(config: SlimeConfig) -> Correction:
    """What the flags do, in the tool's vocabulary; OPSM where the rollout policy is its anchor."""
    if config.mis is not None and config.mis.enabled:
        return mis.correction(config.mis)
    return Correction(
        weight=config.weight or Weight(),
        rules=_opsm_rules(config),
        denominator=Denominator.ORIGINAL,
        mode=Mode.BYPASS if config.bypass else Mode.DECOUPLED,
    )


def _with_a_floor(config: SlimeConfig) -> Correction | None:
    """IcePop with the reciprocal as its lower bound."""
    weight = config.weight
    if weight is None or weight.bound is not Bound.MASK or weight.lower is not None or (weight.upper or 0.0) <= 1:
        return None
    return reweighed(correction(config), lower=1.0 / (weight.upper or 1.0))


def _opsm_rules(config: SlimeConfig) -> tuple[Rule, ...]:
    """Drop tokens of A < 0 in responses whose mean log-ratio to the rollout policy is below −delta."""
    if config.opsm_delta is None or not config.bypass:
        return ()
    return (Rule(Statistic.K1, Aggregation.SEQ_MEAN, None, config.opsm_delta, clamp=None, sign=Sign.NEGATIVE),)


def warnings(config: SlimeConfig) -> tuple[str, ...]:
    """A cap below 1, IcePop without a lower bound, OPSM."""
    found = list(mis.warnings(config.mis)) if config.mis else []
    weight = config.weight
    if weight is not None and weight.bound is Bound.MASK:
        found += band_without_one("tis_clip_low and tis_clip", weight.lower, weight.upper)
    elif weight is not None and weight.upper is not None and weight.upper < 1:
        found.append(f"tis_clip = {weight.upper:.12g}: a cap below 1 shrinks weights where the policies agree")
    if weight is not None and weight.bound is Bound.MASK and weight.lower is None:
        found.append("tis_clip_low = 0: icepop_function has no lower bound and drops large ratios only")
    if config.opsm_delta is not None and not config.bypass:
        found.append("use_opsm = True: compares two policies of the trainer; not in the correction that is weighed")
    return (*found, *config.remarks)


def row_columns(tokens: Tokens, config: SlimeConfig) -> dict[str, Tensor]:
    """float64 [rows] columns of one chunk."""
    d, lengths = tokens.log_ratio, tokens.lengths
    kept = d.abs() * kept_tokens(mis.correction(config.mis), tokens) if config.mis else d.abs()
    columns = {"tokens": lengths.to(torch.float64), "abs_diff": row_sum(kept, lengths)}
    if config.weight is not None:
        columns |= _tis_columns(tokens, config.weight)
    if config.mis is not None:
        columns |= mis.row_columns(tokens, config.mis)
    if config.opsm_delta is not None:
        columns["opsm"] = _opsm_column(tokens, config.opsm_delta)
    return columns


def _tis_columns(tokens: Tokens, weight: Weight) -> dict[str, Tensor]:
    d, inside = tokens.log_ratio, weight_interval(weight)
    per_token = {
        "tis": d.exp(),
        "tis_abs": d.expm1().abs(),
        "tis_clipped": ((d < inside.lower) | (d > inside.upper)).double(),
    }
    return {name: row_sum(values, tokens.lengths) for name, values in per_token.items()}


def _opsm_column(tokens: Tokens, delta: float) -> Tensor:
    """float64 [rows] tokens dropped, masked ones counted; NaN without advantages."""
    if tokens.advantages is None or tokens.response_lengths is None:
        return torch.full((tokens.rows,), torch.nan, dtype=torch.float64)
    drift = -row_sum(tokens.log_ratio, tokens.lengths) / tokens.lengths.clamp(min=1)
    negative = row_sum((tokens.advantages < 0).double(), tokens.lengths) / tokens.lengths.clamp(min=1)
    unknown = row_sum(tokens.advantages.isnan().double(), tokens.lengths) > 0
    dropped = torch.where(drift > delta, negative * tokens.response_lengths, 0.0)
    return torch.where(unknown, torch.nan, dropped)


def metrics(rows: Columns, config: SlimeConfig, order: OrderStatistics) -> Metrics:  # noqa: ARG001 - no percentile
    """The values of one batch."""
    return summarise(rows, lambda: figures(rows, config), "")


def figures(rows: Columns, config: SlimeConfig) -> dict[str, Figure]:
    """Name → value, for a batch with a valid token."""
    values: dict[str, Figure] = {"train_rollout_logprob_abs_diff": sample_mean(rows["abs_diff"], rows)}
    if config.weight is not None:
        names = {"tis": "tis", "tis_abs": "tis_abs", "tis_clipfrac": "tis_clipped"}
        values |= {name: sample_mean(rows[column], rows) for name, column in names.items()}
    if config.mis is not None:
        values |= mis.figures(rows, config.mis)
    if config.opsm_delta is not None:
        values["opsm_clipfrac"] = _opsm(rows) if config.bypass else ONE_POLICY
    return values


def _opsm(rows: Columns) -> Figure:
    dropped = sample_mean(rows["opsm"], rows)
    return NEEDS_ADVANTAGES if math.isnan(dropped) else dropped


TRAINER: Trainer[SlimeConfig] = Trainer(
    name="slime",
    version="2026-08",
    defaults=DEFAULTS,
    section=SECTION,
    parse=parse,
    correction=correction,
    warnings=warnings,
    row_columns=row_columns,
    metrics=metrics,
    quirks=QUIRKS,
    options=OPTIONS,
    counterparts=COUNTERPARTS,
    syntax="dashed flags",
    file_keys=FILE_KEYS,
    by_flags=BY_FLAGS,
    file_setting=CONFIG_FILE,
    renamed=RENAMED,
)
