"""The report as plain data: what `report.json` holds, and beside it the arrays that pictures and tables are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from rollout_audit.audit.pictures import Pictures
from rollout_audit.statistics.metrics import Metrics

__all__ = [
    "SCHEMA_NAME",
    "SCHEMA_VERSION",
    "BestPoint",
    "CauseReport",
    "CorrectionReport",
    "CounterpartReport",
    "Counts",
    "Edges",
    "FindingReport",
    "HealthVerdict",
    "InputFile",
    "LengthBandReport",
    "LengthTrap",
    "LogReport",
    "LoggedMetric",
    "PairReport",
    "Report",
    "Settings",
    "StepReport",
    "SweepFamily",
    "SweepReport",
    "TrainerReport",
    "WorstSequence",
    "WorstTokenReport",
]

SCHEMA_NAME = "rollout-audit/report"
SCHEMA_VERSION = 1

Number = float | int | None
Figures = Annotated[dict[str, Number], Field(description="metric name → value; null where it cannot be computed")]
Reasons = Annotated[dict[str, str], Field(description="metric name → why its value is null (or 0)")]
Edges = Mapping[str, int]
"""counting metric → tokens or sequences within rounding of its threshold; zeros are left out"""
Status = Literal["ok", "warn", "critical", "unmeasured"]


class Strict(BaseModel):
    """Read from JSON, keys that a later tool has added are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class SchemaTag(Strict):
    name: str = SCHEMA_NAME
    version: int = SCHEMA_VERSION


class ToolTag(Strict):
    name: str = "rollout-audit"
    version: str
    libraries: dict[str, str]


class InputFile(Strict):
    name: str
    format: str
    size: int = Field(description="bytes")
    rows: int
    digest: str = Field(
        description="SHA-256 over size and Parquet footer or safetensors header; over all contents with --digest full"
    )


class Settings(Strict):
    mode: Literal["decoupled", "bypass"]
    training_column: str = Field(description="the column that stands for the training policy π")
    rollout_column: str
    presets: list[str]
    reference: str = Field(description="the correction that the health rules look at")
    trainer: str | None = Field(default=None, description="whose configuration the reference is")
    on_fault: Literal["stop", "drop"]
    steps: str | None = None
    limit: int | None = None
    chunk_tokens: int


class Counts(Strict):
    files: int
    steps: int
    sequences: int = Field(description="all rows read")
    scored_sequences: int = Field(description="rows with at least one valid token; all metrics are over these")
    tokens: int = Field(description="all response tokens, masked ones included")
    valid_tokens: int
    dropped_sequences: int = Field(description="left out by --on-fault drop")


class FindingReport(Strict):
    kind: str
    severity: Literal["error", "warning", "info"]
    message: str
    file: str | None = None
    row: int | None = None
    position: int | None = None
    count: int = 1


class DroppedSequence(Strict):
    file: str
    row: int
    uid: str
    kind: str


class HealthVerdict(Strict):
    """One health rule held against the data."""

    metric: str
    status: Status
    value: Number
    comparison: str = Field(description="what the rule objects to, e.g. '<' or 'outside'")
    limit: str
    subject: str = Field(description="'mismatch' for raw metrics, else the correction's name")
    advice: str


class CauseReport(Strict):
    """A likely cause of the mismatch."""

    cause: str = Field(description="its stable name, e.g. shift_by_one")
    severity: Literal["error", "warning", "info"] = Field(description="info for what is normal")
    confidence: float = Field(description="in (0, 1]")
    evidence: str = Field(description="what was measured, in words and numbers")
    figures: dict[str, float | int] = Field(description="the numbers of the evidence by name")
    alternative: str = Field(description="what it would look like if it were something else")
    advice: str


class PairReport(Strict):
    """Native metrics of one training policy against one rollout policy."""

    name: Literal["engine", "policy_update", "total"]
    training_column: str
    rollout_column: str
    meaning: str
    metrics: Figures
    reasons: Reasons


class StageReport(Strict):
    raw: Figures
    bounded: Figures
    normalised: Figures
    kept: Figures


class CorrectionReport(Strict):
    """One correction over the whole dump."""

    name: str
    origin: str
    use: str
    mode: Literal["decoupled", "bypass"]
    loss: str
    formula: str = Field(description="what it does, in words and numbers")
    settings: dict[str, str | float | None] = Field(
        default_factory=dict,
        description="level, bound, lower and upper of the applied weight; the first rule and its bounds",
    )
    keeps: list[str] = Field(description="effective interval of each bound and rule")
    recommended: str | None
    training_column: str
    stages: StageReport
    reasons: Reasons = Field(description="'stage.metric' → why its value is null (or 0)")
    kept_kl_k3: Number = Field(
        default=None,
        description="k3 of the tokens that its rules keep, before weights: what is left uncorrected where none apply",
    )
    kept_length_mean: Number = Field(
        default=None, description="valid tokens of the responses that its rules keep; null where rules take tokens"
    )
    status: Status = Field(description="a mark, not a verdict: how its kept stage stands against the health limits")


class StepPair(Strict):
    metrics: Figures
    reasons: Reasons


class StepCorrection(StageReport):
    """One correction on one step, normalised by the step's own factor."""

    reasons: Reasons = Field(description="'stage.metric' → why its value is null (or 0)")


class StepReport(Strict):
    step: int
    sequences: int = Field(description="all rows of the step")
    scored_sequences: int = Field(description="rows with at least one valid token")
    valid_tokens: int
    mean_tokens: Number = Field(description="valid tokens of a sequence, mean")
    policy_age: Number = Field(description="trainer_version − policy_version, mean; null where not recorded")
    reward_mean: Number
    status: Status = Field(description="how the health rules stand on this step taken as a batch")
    past_limit: list[str] = Field(description="metrics whose health rule is broken in this step, worst first")
    metrics: Figures
    reasons: Reasons
    pairs: dict[str, StepPair] = Field(description="the other pairs of policies, by name")
    corrections: dict[str, StepCorrection] = Field(
        description="by name: every correction after an audit, the reference alone in report.json"
    )

    def with_correction(self, name: str) -> StepReport:
        return self.model_copy(update={"corrections": {name: self.corrections[name]}})


class LengthBandReport(Strict):
    """Responses of similar length: what the fit expects beside what they show. Few responses flatter themselves."""

    shortest: int
    longest: int
    sequences: int
    mean_length: float
    ess_seq: float = Field(description="of their raw product ratios")
    expected: float = Field(description="ess_seq of very many responses of the mean length")


class LengthTrap(Strict):
    """At which response length sequence weights stop working, at the mismatch measured per token."""

    kl_per_token: float = Field(description="κ = mean −d (k1): a response of n tokens has log weight −κn on average")
    kl_k3: Number = Field(description="the same divergence as k3 estimates it")
    spread_per_token: Number = Field(
        description="a of Var Σd = a·n + b·n², tokens that err independently; fitted over the responses"
    )
    spread_per_token_squared: Number = Field(description="b of Var Σd = a·n + b·n², errors that a response shares")
    unevenness: Number = Field(description="log(1 + chi2_rel_token) / Var d: −log ess_seq per unit of Var Σd")
    typical_clamp_length: int | None = Field(description="tokens at which |mean Σd| reaches 20: 20 / |κ|")
    clamp_length: int | None = Field(
        description="tokens at which |mean Σd| + 2 standard deviations reach 20: one response in 40 is at the clamp"
    )
    ess_length: int | None = Field(description="tokens at which the expected ess_seq of responses that long is 0.3")
    mean_length: float
    longest: int = Field(description="valid tokens of the longest response")
    bands: list[LengthBandReport] = Field(description="responses in order of length, about as many in each band")
    reasons: Reasons
    sentence: str


class WorstTokenReport(Strict):
    file: str
    row: int
    position: int
    uid: str
    step: int
    training_log_prob: float
    rollout_log_prob: float
    log_ratio: float


class WorstSequence(Strict):
    file: str
    row: int
    uid: str
    step: int
    valid_tokens: int
    log_ratio_mean: float
    log_ratio_sum: float
    k3_mean: Number = Field(description="null past the largest float64")
    log_ratio_max_abs: float


class SweepFamily(Strict):
    """Points that differ in their thresholds alone."""

    family: str
    points: int
    within: int = Field(description="how many of them keep the limits")
    formula: str | None = Field(description="the strictest of those: largest ess, of equals the one that masks most")
    figures: Figures


class BestPoint(Strict):
    """The point of the sweep that one criterion picks."""

    criterion: str
    sentence: str = Field(description="what is picked, of which points, within which limits")
    family: str | None = Field(description="null where no point is within the limits")
    formula: str | None
    settings: dict[str, str | float | None] = Field(description="level, bound, lower, upper, rule and its bounds")
    distance: Number = Field(
        description="from doing nothing: masked_fraction + bounded_fraction + mass_lost + (1 − ess)"
    )
    figures: Figures


class SweepReport(Strict):
    """What the sweep found; every point stands in sweep.parquet."""

    points: int
    inexact: int = Field(
        default=0, description="points whose threshold divides a cell: sweep.parquet states how far each may be off"
    )
    min_ess: float
    max_masked: float
    max_mass_lost: float
    max_bounded: float | None = Field(
        default=None, description="share of the weights that bounds replaced; families are not held to it"
    )
    max_kl: float | None = Field(
        default=None,
        description="k3 of what is kept without weights, lowered by as much as the worst step is above the pooled k3",
    )
    named: list[str] = Field(
        default_factory=list,
        description="corrections that were asked for by name and stand beside the grid, the run's own first",
    )
    best: list[BestPoint] = Field(default_factory=list, description="one for each criterion")
    families: list[SweepFamily] = Field(description="in the order of the grid")


class LoggedMetric(Strict):
    """One metric of the trainer: logged and recomputed, at the steps where both have a value."""

    metric: str
    key: str = Field(description="what the log calls it")
    matched: Literal["exact", "prefix", "file name"] = Field(
        description="by its very name, up to known prefixes, or by the name of its file, which spells / as _"
    )
    steps: list[int] = Field(description="of the dump, ascending")
    logged: list[Number] = Field(description="null where NaN or an infinity was logged")
    recomputed: list[float]
    departing: int = Field(description="steps at which the two are further apart than the tolerance")
    first_step: int | None = Field(description="the first of them; null where there is none")
    worst_step: int | None = Field(description="where they are the most tolerances apart")
    worst_difference: Number = Field(description="logged − recomputed there")
    note: str | None = Field(description="why the logged figure may be another: padding, micro-batches")


class LogReport(Strict):
    """The audit of the trainer itself: its log beside what the dump gives under its configuration."""

    trainer: str
    files: list[str]
    step_keys: list[str] = Field(description="what the log's steps were read from")
    offset: int = Field(description="step in the log minus step in the dump, as asked for")
    better_offset: int | None = Field(description="another at which they would agree; nothing is shifted unasked")
    relative_tolerance: float
    absolute_tolerance: float = Field(description="the wider of the two counts")
    status: Literal["agrees", "departs", "nothing compared"]
    sentence: str
    compared: int = Field(description="values, over all metrics and steps")
    departing: int
    first_step: int | None
    first_metric: str | None = Field(description="the metric furthest off at the first departing step")
    metrics: list[LoggedMetric] = Field(description="earliest departure first")
    unmatched_keys: list[str] = Field(description="numbers of the log that are no metric of this configuration")
    unlogged_metrics: list[str]
    steps_in_log_alone: int
    steps_in_dump_alone: int
    notes: list[str]


class CounterpartReport(Strict):
    """A figure of the trainer beside the native one that it is named like."""

    metric: str = Field(description="the trainer's name")
    value: float
    native: str = Field(
        description="'overall' or the stage of the correction, then the native metric; 'removed.RULE': the share of "
        "tokens that a rule removes by itself; after '1 − ' what is left of it"
    )
    native_value: float
    departs: bool = Field(description="whether they differ by more than 5 %")
    quirk: str = Field(description="why they would: where they do, a finding 'quirk:NAME' has the sentence")


class TrainerReport(Strict):
    """What a trainer would have logged with the run's own configuration, the whole dump as one batch."""

    name: str
    version: str
    reads: str = Field(description="what its configuration was read as")
    metrics: Figures
    reasons: Reasons
    beside: list[CounterpartReport] = Field(description="those that have a native figure to be held against")


class Report(Strict):
    """Everything one audit found. Every number is finite or null with a reason."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, populate_by_name=True)

    schema_tag: SchemaTag = Field(default_factory=SchemaTag, alias="schema")
    tool: ToolTag
    created: str = Field(description="UTC; the one field that differs between two runs (SOURCE_DATE_EPOCH is honoured)")
    inputs: list[InputFile]
    settings: Settings
    counts: Counts
    status: Status
    headline: str
    health: list[HealthVerdict] = Field(description="worst first")
    causes: list[CauseReport] = Field(
        default_factory=list, description="likely causes of the mismatch, gravest first; empty: nothing can be said"
    )
    findings: list[FindingReport]
    dropped: list[DroppedSequence]
    overall: Figures
    overall_reasons: Reasons
    pairs: list[PairReport]
    steps: list[StepReport]
    corrections: list[CorrectionReport]
    sweep: SweepReport | None = Field(default=None, description="null where the sweep was left out")
    length_trap: LengthTrap | None = Field(default=None, description="null where there is no valid token")
    log: LogReport | None = Field(default=None, description="null where no log was given to compare with")
    worst_tokens: list[WorstTokenReport]
    worst_sequences: list[WorstSequence]
    trainer: TrainerReport | None = Field(default=None, description="null where no trainer was named")
    notes: list[str] = Field(
        description="what the figures are and are not: error of quantiles, sampling, limits of the method"
    )

    _pictures: Callable[[], Pictures] | None = PrivateAttr(default=None)
    _edges: Mapping[tuple[int | None, str], Edges] | None = PrivateAttr(default=None)
    _logged_steps: Mapping[int, Metrics] | None = PrivateAttr(default=None)

    @property
    def pictures(self) -> Pictures:
        """Arrays for plots and Parquet tables; there after an audit, not in a report read back from JSON.

        Raises:
            ValueError: the report was read from JSON.
        """
        if self._pictures is None:
            raise ValueError("this report was read from JSON: its arrays were not kept")
        return self._pictures()

    @property
    def edges(self) -> Mapping[tuple[int | None, str], Edges]:
        """(step or None for the whole dump, pair or correction) → its counts at the edge of a threshold.

        Raises:
            ValueError: the audit was not asked for them, or the report was read from JSON.
        """
        if self._edges is None:
            raise ValueError("this report was made without edges: analyze(…, edges=True) counts them")
        return self._edges

    @property
    def logged_steps(self) -> Mapping[int, Metrics]:
        """step → what the trainer would have logged of it.

        Raises:
            ValueError: the audit had no trainer or was not asked for them, or the report was read from JSON.
        """
        if self._logged_steps is None:
            raise ValueError(
                "this report was made without them: analyze(…, trainer=NAME, logged_steps=True) keeps them"
            )
        return self._logged_steps

    @property
    def logged_steps_kept(self) -> Mapping[int, Metrics]:
        """The same, empty where they were not kept."""
        return self._logged_steps or {}

    def with_log(self, log: LogReport) -> Report:
        """The same report with a log compared (`compare_log`)."""
        return self.model_copy(update={"log": log})

    def to_json(self) -> str:
        """Strict JSON, two spaces deep, with a newline at the end.

        Of each step it holds the reference correction alone: `steps.parquet` has them all, at a fiftieth of the size.
        """
        steps = [step.with_correction(self.settings.reference) for step in self.steps]
        return self.model_copy(update={"steps": steps}).model_dump_json(by_alias=True, indent=2) + "\n"

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return cls.model_json_schema(by_alias=True)
