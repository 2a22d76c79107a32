"""From folded evidence to the report."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit import health
from rollout_audit.audit.pairs import Pair
from rollout_audit.audit.passes import EXACT_QUANTILES_UP_TO, PassState
from rollout_audit.audit.pictures import Histogram, Pictures
from rollout_audit.audit.report import (
    CorrectionReport,
    Counts,
    DroppedSequence,
    FindingReport,
    HealthVerdict,
    InputFile,
    PairReport,
    Report,
    Settings,
    StageReport,
    Status,
    StepCorrection,
    StepPair,
    StepReport,
    ToolTag,
    WorstSequence,
    WorstTokenReport,
)
from rollout_audit.corrections.describe import describe, effective_intervals
from rollout_audit.corrections.presets import Preset
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.errors import UsageError
from rollout_audit.statistics.grid import QUANTILE_ERROR
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.statistics.native import native_metrics
from rollout_audit.statistics.scope import Evidence, Scope
from rollout_audit.statistics.stages import STAGES, correction_stages

if TYPE_CHECKING:
    from rollout_audit.audit.analyze import Audit

__all__ = ["assemble", "timestamp"]

WORST_LISTED = 20
STEPS_NAMED = 6
IDENTICAL_FROM = 100
LIBRARIES = ("numpy", "pyarrow", "safetensors", "torch")

Array = NDArray[np.float64]
Stages = Mapping[str, Metrics]


def assemble(audit: Audit, state: PassState, log: FaultLog, created: str) -> Report:
    """Every figure of the report, pooled and per step."""
    return _Assembly(audit, state, log, created).report()


def timestamp() -> str:
    """Now, or SOURCE_DATE_EPOCH, in UTC.

    Raises:
        UsageError: SOURCE_DATE_EPOCH is no integer.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        moment = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"SOURCE_DATE_EPOCH={epoch!r}: expected seconds since 1970 as an integer") from None
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class _Assembly:
    audit: Audit
    state: PassState
    log: FaultLog
    created: str

    def report(self) -> Report:
        verdicts = health.judge(self._figures(self.audit.options.reference, self.native, self.stages))
        overall = self.native[self.audit.primary]
        steps = [self._step_report(step) for step in self.steps]
        status = _status(verdicts, steps)
        report = Report(
            tool=ToolTag(version=version("rollout-audit"), libraries={name: version(name) for name in LIBRARIES}),
            created=self.created,
            inputs=self._inputs(),
            settings=self._settings(),
            counts=self._counts(),
            status=status,
            headline=_headline(verdicts, overall, steps),
            health=verdicts,
            findings=self._findings(),
            dropped=[DroppedSequence(**asdict(d)) for d in sorted(self.log.dropped)],
            overall=dict(overall),
            overall_reasons=dict(overall.reasons),
            pairs=[_pair_report(pair, self.native[pair]) for pair in self.audit.pairs],
            steps=steps,
            corrections=[self._correction_report(p) for p in self.audit.options.presets],
            worst_tokens=self._worst_tokens(),
            worst_sequences=self._worst_sequences(),
            notes=self._notes(),
        )
        report._pictures = self._pictures()
        return report

    @cached_property
    def evidence(self) -> Mapping[Pair, Evidence]:
        return self.audit.evidence(self.state)

    @cached_property
    def common(self) -> Mapping[str, Array]:
        return self.state.common.columns()

    @cached_property
    def pooled(self) -> Mapping[Pair, Scope]:
        return {pair: evidence.scope() for pair, evidence in self.evidence.items()}

    @cached_property
    def native(self) -> Mapping[Pair, Metrics]:
        return {pair: native_metrics(scope) for pair, scope in self.pooled.items()}

    @cached_property
    def stages(self) -> Mapping[str, Stages]:
        return self._stages_in(self.pooled)

    @cached_property
    def steps(self) -> list[int]:
        return sorted({int(step) for step in self.common["step"]})

    @cached_property
    def by_step(self) -> Mapping[int, tuple[Mapping[Pair, Metrics], Mapping[str, Stages]]]:
        """step → native metrics of each pair, and stages of each correction."""
        found = {}
        for step in self.steps:
            scopes = {pair: evidence.scope(step) for pair, evidence in self.evidence.items()}
            found[step] = ({p: native_metrics(s) for p, s in scopes.items()}, self._stages_in(scopes))
        return found

    def _stages_in(self, scopes: Mapping[Pair, Scope]) -> Mapping[str, Stages]:
        corrections = self.audit.options.corrections
        return {n: correction_stages(scopes[self.audit.pair_of(c)], n, c) for n, c in corrections.items()}

    def _figures(self, name: str, native: Mapping[Pair, Metrics], stages: Mapping[str, Stages]) -> health.Figures:
        """What the health rules look at, of the whole dump or of one step."""
        metrics, own = native[self.audit.pair_of(self.audit.options.corrections[name])], stages[name]
        return health.Figures(metrics, metrics.reasons, own, _stage_reasons(own), name)

    def _inputs(self) -> list[InputFile]:
        return [
            InputFile(
                name=info.file.name,
                format=info.file.format,
                size=info.file.size,
                rows=info.rows,
                digest=info.digest,
            )
            for info in self.audit.dump.infos
        ]

    def _findings(self) -> list[FindingReport]:
        found = self.log.findings([file.name for file in self.audit.dump.files])
        return [*self._identical_columns(), *(FindingReport(**asdict(finding)) for finding in found)]

    def _identical_columns(self) -> list[FindingReport]:
        """Agreement bit for bit is hardly ever genuine: more often one column stands for both."""
        primary = self.audit.primary
        scope = self.pooled[primary]
        if scope.tokens < IDENTICAL_FROM or self.native[primary]["log_prob_diff_abs_max"] != 0.0:
            return []
        text = (
            f"{primary.training} and {primary.rollout} are bit-identical over {scope.tokens:,} tokens: a bypass dump, "
            "one column mapped twice, or genuine bitwise parity; a KL of 0 is no evidence of health"
        )
        return [FindingReport(kind="identical_columns", severity="warning", message=text, count=scope.tokens)]

    def _settings(self) -> Settings:
        options, primary = self.audit.options, self.audit.primary
        return Settings(
            mode=self.audit.mode.value,
            training_column=primary.training,
            rollout_column=primary.rollout,
            presets=[p.name for p in options.presets],
            reference=options.reference,
            on_fault=options.on_fault,
            steps=None if options.steps is None else "{}:{}".format(*("" if s is None else s for s in options.steps)),
            limit=options.limit,
            chunk_tokens=options.chunk_tokens,
        )

    def _counts(self) -> Counts:
        scope = self.pooled[self.audit.primary]
        return Counts(
            files=len(np.unique(self.common["file"])),
            steps=len(self.steps),
            sequences=len(self.common["step"]),
            scored_sequences=scope.sequences,
            tokens=self.state.tokens,
            valid_tokens=scope.tokens,
            dropped_sequences=len(self.log.dropped),
        )

    def _step_report(self, step: int) -> StepReport:
        native, stages = self.by_step[step]
        primary = self.audit.primary
        verdicts = health.judge(self._figures(self.audit.options.reference, native, stages))
        rows = self.evidence[primary].scope(step).rows
        tokens = int(rows["valid_tokens"].sum())
        return StepReport(
            step=step,
            sequences=int(np.count_nonzero(self.common["step"] == step)),
            scored_sequences=len(rows["step"]),
            valid_tokens=tokens,
            mean_tokens=tokens / len(rows["step"]) if len(rows["step"]) else None,
            policy_age=_mean_of(rows, "policy_age"),
            reward_mean=_mean_of(rows, "reward"),
            status=_step_status(verdicts),
            past_limit=_past_limit(verdicts),
            metrics=dict(native[primary]),
            reasons=dict(native[primary].reasons),
            pairs={
                pair.name: StepPair(metrics=dict(native[pair]), reasons=dict(native[pair].reasons))
                for pair in self.audit.pairs
                if pair != primary
            },
            corrections={name: _step_correction(s) for name, s in stages.items()},
        )

    def _correction_report(self, preset: Preset) -> CorrectionReport:
        stages, correction = self.stages[preset.name], preset.correction
        return CorrectionReport(
            name=preset.name,
            origin=preset.origin,
            use=preset.use,
            mode=correction.mode.value,
            loss=correction.loss.value,
            formula=describe(correction),
            keeps=effective_intervals(correction),
            recommended=preset.recommended,
            training_column=self.audit.pair_of(correction).training,
            stages=StageReport(**{stage: dict(stages[stage]) for stage in STAGES}),
            reasons=_stage_reasons(stages),
            status=health.mark(self._figures(preset.name, self.native, self.stages)),
        )

    def _worst_tokens(self) -> list[WorstTokenReport]:
        uids = self._uid_of
        return [
            WorstTokenReport(
                file=self.audit.dump.files[t.file].name,
                row=t.row,
                position=t.position,
                uid=uids[t.file, t.row],
                step=self._step_of[t.file, t.row],
                training_log_prob=t.training_log_prob,
                rollout_log_prob=t.rollout_log_prob,
                log_ratio=t.training_log_prob - t.rollout_log_prob,
            )
            for t in self.state.pairs[self.audit.primary.name].worst.tokens[:WORST_LISTED]
        ]

    def _worst_sequences(self) -> list[WorstSequence]:
        """By mean k3, in which errors cannot cancel; ties by place."""
        rows = self.pooled[self.audit.primary].rows
        k3_mean = rows["sum_k3"] / rows["valid_tokens"]
        order = np.argsort(-k3_mean, kind="stable")[:WORST_LISTED]
        return [self._worst_sequence(rows, int(i), float(k3_mean[i])) for i in order if k3_mean[i] > 0]

    def _worst_sequence(self, rows: Mapping[str, Array], i: int, k3_mean: float) -> WorstSequence:
        place = int(rows["file"][i]), int(rows["row"][i])
        return WorstSequence(
            file=self.audit.dump.files[place[0]].name,
            row=place[1],
            uid=self._uid_of[place],
            step=int(rows["step"][i]),
            valid_tokens=int(rows["valid_tokens"][i]),
            log_ratio_mean=float(rows["sum_d"][i] / rows["valid_tokens"][i]),
            log_ratio_sum=float(rows["sum_d"][i]),
            k3_mean=k3_mean if math.isfinite(k3_mean) else None,
            log_ratio_max_abs=float(max(abs(rows["min_d"][i]), abs(rows["max_d"][i]))),
        )

    @cached_property
    def _uids(self) -> list[str]:
        places = zip(self.common["file"].astype(int), self.common["row"].astype(int), strict=True)
        names = iter(places)
        uids: list[str] = []
        for part, columns in zip(self.state.uids, self.state.common.parts, strict=True):
            numbered = [next(names) for _ in range(len(columns["step"]))]
            uids += part if part is not None else [self.audit.dump.row_name(f, r) for f, r in numbered]
        return uids

    @cached_property
    def _uid_of(self) -> Mapping[tuple[int, int], str]:
        places = zip(self.common["file"].astype(int), self.common["row"].astype(int), strict=True)
        return dict(zip(((int(f), int(r)) for f, r in places), self._uids, strict=True))

    @cached_property
    def _step_of(self) -> Mapping[tuple[int, int], int]:
        columns = (self.common[name].astype(int).tolist() for name in ("file", "row", "step"))
        return {(file, row): step for file, row, step in zip(*columns, strict=True)}

    def _notes(self) -> list[str]:
        primary = self.audit.primary
        notes = [f"π is {primary.training}, μ is {primary.rollout}: {primary.meaning}."]
        if not self.state.pairs[primary.name].values.complete:
            notes.append(
                f"Token quantiles are read off bins beyond {EXACT_QUANTILES_UP_TO:,} tokens: "
                f"off by at most {QUANTILE_ERROR:.1%} of the log-ratio."
            )
        if self.audit.sample_stride > 1:
            notes.append(f"Pictures by position and probability show every {self.audit.sample_stride}th row.")
        notes.append(
            "Pooled figures treat the dump as one batch; trainers correct each step by itself. "
            "Agreement on sampled tokens does not prove agreement on the whole vocabulary."
        )
        return notes

    def _pictures(self) -> Pictures:
        primary = self.audit.primary
        return Pictures(
            histogram=_histogram(self.pooled[primary]),
            sample=self.state.token_sample(self.audit.sample_stride),
            sequences=self._sequence_columns(),
        )

    def _sequence_columns(self) -> Mapping[str, Sequence[object] | Array]:
        rows = self.evidence[self.audit.primary].rows
        names = [file.name for file in self.audit.dump.files]
        integers: dict[str, Sequence[object] | Array] = {
            name: rows[name].astype(int).tolist() for name in ("row", "step", "tokens", "valid_tokens")
        }
        statistics = {n: column for n, column in rows.items() if n not in (*integers, "file")}
        return {"uid": self._uids, "file": [names[int(i)] for i in rows["file"]], **integers, **statistics}


def _step_status(verdicts: Sequence[HealthVerdict]) -> Status:
    measured: list[Status] = [v.status for v in verdicts if v.status != "unmeasured"]
    return health.worst_status(measured) if measured else "unmeasured"


def _status(verdicts: Sequence[HealthVerdict], steps: Sequence[StepReport]) -> Status:
    """The worst pooled verdict; a step past a limit that pooling hides weighs as a warning."""
    pooled = health.worst_status([v.status for v in verdicts])
    hidden = pooled in ("ok", "unmeasured") and any(step.past_limit for step in steps)
    return "warn" if hidden else pooled


def _headline(verdicts: Sequence[HealthVerdict], overall: Metrics, steps: Sequence[StepReport]) -> str:
    broken = _past_limit(verdicts)
    by_step = "" if len(steps) < 2 else _broken_in(steps, broken)
    k3, ratio = overall["kl_k3"], overall["ppl_ratio"]
    size = f" (k3 {k3:.2g}, ppl ratio {ratio:.4g})" if k3 is not None and ratio is not None else ""
    if broken:
        return f"{', '.join(broken)} past the limit{size}{'; ' + by_step if by_step else ''}."
    if by_step:
        return f"Pooled over all steps the policies agree within all limits{size}, but {by_step}."
    return f"The two policies agree within all health limits{size}."


def _broken_in(steps: Sequence[StepReport], already_said: Sequence[str]) -> str:
    """The steps that break a rule which the pooled figures keep: pooling hides them."""
    found = [step for step in steps if set(step.past_limit) - set(already_said)]
    if not found:
        return ""
    metrics = dict.fromkeys(m for step in found for m in step.past_limit if m not in already_said)
    numbers = ", ".join(str(step.step) for step in found[:STEPS_NAMED])
    more = f" and {len(found) - STEPS_NAMED} more" if len(found) > STEPS_NAMED else ""
    return f"{', '.join(metrics)} past the limit in step{'' if len(found) == 1 else 's'} {numbers}{more}"


def _past_limit(verdicts: Sequence[HealthVerdict]) -> list[str]:
    return list(dict.fromkeys(v.metric for v in verdicts if v.status in ("critical", "warn")))


def _pair_report(pair: Pair, metrics: Metrics) -> PairReport:
    return PairReport(
        name=pair.name,
        training_column=pair.training,
        rollout_column=pair.rollout,
        meaning=pair.meaning,
        metrics=dict(metrics),
        reasons=dict(metrics.reasons),
    )


def _step_correction(stages: Stages) -> StepCorrection:
    return StepCorrection(**{stage: dict(stages[stage]) for stage in STAGES}, reasons=_stage_reasons(stages))


def _stage_reasons(stages: Stages) -> dict[str, str]:
    return {f"{stage}.{metric}": reason for stage, m in stages.items() for metric, reason in m.reasons.items()}


def _mean_of(rows: Mapping[str, Array], column: str) -> float | None:
    if column not in rows:
        return None
    recorded = rows[column][~np.isnan(rows[column])]
    mean = float(recorded.mean()) if len(recorded) else math.nan
    return mean if math.isfinite(mean) else None


def _histogram(scope: Scope) -> Histogram:
    """The occupied span of the grid, cells of the fine bins and cuts as they are."""
    cells = scope.token_cells()
    if not len(cells.edges):
        return Histogram(np.zeros(1), np.empty(0, dtype=np.int64))
    grid = scope.grid.edges
    place = np.searchsorted(grid, cells.edges)
    first, last = int(place[0]), int(place[-1])
    counts = np.zeros(last - first + 1, dtype=np.int64)
    counts[place - first] = cells.counts
    low = grid[first - 1] if first else min(float(scope.rows["min_d"].min()), grid[0]) - 1.0
    edges = np.concatenate([[low], grid[first : last + 1]])
    edges[-1] = min(edges[-1], max(float(scope.rows["max_d"].max()), edges[-2]))
    return Histogram(edges, counts)
