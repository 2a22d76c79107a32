"""From folded evidence to the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit import health
from rollout_audit.audit.arrays import arrays
from rollout_audit.audit.best import applied_settings
from rollout_audit.audit.causes import exhibit_of, find_causes
from rollout_audit.audit.edges import correction_edges, native_edges
from rollout_audit.audit.evaluated import Evaluated, Stages
from rollout_audit.audit.findings import findings
from rollout_audit.audit.length import length_trap
from rollout_audit.audit.limits import Limits
from rollout_audit.audit.pairs import Pair
from rollout_audit.audit.passes import EXACT_QUANTILES_UP_TO, PassState
from rollout_audit.audit.plan import Basis
from rollout_audit.audit.report import (
    CauseReport,
    CorrectionReport,
    Counts,
    DroppedSequence,
    Edges,
    InputFile,
    PairReport,
    Report,
    Settings,
    StageReport,
    StepCorrection,
    StepPair,
    StepReport,
    SweepReport,
    ToolTag,
)
from rollout_audit.audit.states import Faults
from rollout_audit.audit.sweep import MOST_ROWS, check_points, sweep_report
from rollout_audit.audit.verdict import headline, past_limit, report_status, step_status
from rollout_audit.audit.worst import worst_sequences, worst_tokens
from rollout_audit.corrections.cuts import is_streamed
from rollout_audit.corrections.describe import describe, effective_intervals
from rollout_audit.corrections.model import Correction
from rollout_audit.corrections.presets import BY_DEFAULT, PRESETS, Preset
from rollout_audit.statistics.grid import QUANTILE_ERROR
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.statistics.native import native_metrics
from rollout_audit.statistics.stages import STAGES
from rollout_audit.statistics.sweep import kept_divergence, rows_kept

__all__ = ["assemble"]

LIBRARIES = ("numpy", "pyarrow", "safetensors", "torch")

_version = cache(version)
Array = NDArray[np.float64]


def assemble(basis: Basis, state: PassState, faults: Faults, created: str) -> Report:
    """Every figure of the report, pooled and per step."""
    return _Assembly(Evaluated(basis, state), faults, created).report()


@dataclass(frozen=True)
class _Assembly:
    found: Evaluated
    faults: Faults
    created: str

    @property
    def basis(self) -> Basis:
        return self.found.basis

    def report(self) -> Report:
        verdicts = health.judge(self._figures(self.basis.options.reference, self.found.native, self.found.stages))
        overall = self.found.native[self.basis.primary]
        steps = [self._step_report(step) for step in self.found.steps]
        status = report_status(verdicts, steps)
        report = Report(
            tool=ToolTag(version=_version("rollout-audit"), libraries={name: _version(name) for name in LIBRARIES}),
            created=self.created,
            inputs=self._inputs(),
            settings=self._settings(),
            counts=self._counts(),
            status=status,
            headline=headline(verdicts, overall, steps),
            health=verdicts,
            causes=self._causes(),
            findings=findings(self.found, self.faults.findings),
            dropped=[DroppedSequence(**asdict(d)) for d in sorted(self.faults.dropped)],
            overall=dict(overall),
            overall_reasons=dict(overall.reasons),
            pairs=[_pair_report(pair, self.found.native[pair]) for pair in self.basis.pairs],
            steps=steps,
            corrections=[self._correction_report(p) for p in self.basis.options.presets],
            sweep=self._sweep_report(steps),
            length_trap=length_trap(self.found.pooled[self.basis.primary]),
            worst_tokens=worst_tokens(self.found.state.pairs[self.basis.primary.name].worst.tokens, self.found.places),
            worst_sequences=worst_sequences(self.found.pooled[self.basis.primary].rows, self.found.places),
            notes=self._notes(),
        )
        self._check_long_form()
        found, corrections = self.found, report.corrections
        report._pictures = cache(lambda: arrays(found, corrections, steps))
        report._edges = self._edges() if self.basis.options.edges else None
        return report

    def _figures(self, name: str, native: Mapping[Pair, Metrics], stages: Mapping[str, Stages]) -> health.Figures:
        """What the health rules look at, of the whole dump or of one step."""
        metrics, own = native[self.basis.pair_of(self.basis.options.corrections[name])], stages[name]
        return health.Figures(metrics, metrics.reasons, own, _stage_reasons(own), name)

    def _inputs(self) -> list[InputFile]:
        return [
            InputFile(
                name=given.name,
                format=given.format,
                size=given.size,
                rows=given.rows,
                digest=given.digest,
            )
            for given in self.basis.inputs
        ]

    def _causes(self) -> list[CauseReport]:
        if self.basis.causes is not None:
            return list(self.basis.causes)
        rows = self.found.evidence[self.basis.primary].rows
        exhibit = exhibit_of(self.basis, rows, self.found.state.sample.columns(), self.faults.findings)
        return [CauseReport(**asdict(cause)) for cause in find_causes(exhibit)]

    def _settings(self) -> Settings:
        options, primary = self.basis.options, self.basis.primary
        return Settings(
            mode=self.basis.mode.value,
            training_column=primary.training,
            rollout_column=primary.rollout,
            presets=[p.name for p in options.presets],
            reference=options.reference,
            trainer=options.trainer,
            on_fault=options.on_fault,
            steps=None if options.steps is None else "{}:{}".format(*("" if s is None else s for s in options.steps)),
            limit=options.limit,
            chunk_tokens=options.chunk_tokens,
        )

    def _counts(self) -> Counts:
        scope = self.found.pooled[self.basis.primary]
        return Counts(
            files=len(np.unique(self.found.common["file"])),
            steps=len(self.found.steps),
            sequences=len(self.found.common["step"]),
            scored_sequences=scope.sequences,
            tokens=self.found.state.tokens,
            valid_tokens=scope.tokens,
            dropped_sequences=len(self.faults.dropped),
        )

    def _step_report(self, step: int) -> StepReport:
        primary = self.basis.primary
        scopes = {pair: of_pair[step] for pair, of_pair in self.found.scopes.items()}
        stages = {name: by_batch[step] for name, by_batch in self.found.stages_by_batch.items()}
        native = {pair: native_metrics(scope) for pair, scope in scopes.items()}
        verdicts = health.judge(self._figures(self.basis.options.reference, native, stages))
        rows = scopes[primary].rows
        tokens = int(rows["valid_tokens"].sum())
        return StepReport(
            step=step,
            sequences=int(np.count_nonzero(self.found.common["step"] == step)),
            scored_sequences=len(rows["step"]),
            valid_tokens=tokens,
            mean_tokens=tokens / len(rows["step"]) if len(rows["step"]) else None,
            policy_age=_mean_of(rows, "policy_age"),
            reward_mean=_mean_of(rows, "reward"),
            status=step_status(verdicts),
            past_limit=past_limit(verdicts),
            metrics=dict(native[primary]),
            reasons=dict(native[primary].reasons),
            pairs={
                pair.name: StepPair(metrics=dict(native[pair]), reasons=dict(native[pair].reasons))
                for pair in self.basis.pairs
                if pair != primary
            },
            corrections={name: _step_correction(s) for name, s in stages.items()},
        )

    def _correction_report(self, preset: Preset) -> CorrectionReport:
        stages, correction = self.found.stages[preset.name], preset.correction
        return CorrectionReport(
            name=preset.name,
            origin=preset.origin,
            use=preset.use,
            mode=correction.mode.value,
            loss=correction.loss.value,
            formula=describe(correction),
            settings=applied_settings(correction),
            keeps=effective_intervals(correction),
            recommended=preset.recommended,
            training_column=self.basis.pair_of(correction).training,
            stages=StageReport(**_plain(stages)),
            reasons=_stage_reasons(stages),
            kept_kl_k3=self._kept_divergence(correction),
            kept_length_mean=self._kept_length(correction),
            status=health.mark(self._figures(preset.name, self.found.native, self.found.stages)),
        )

    def _kept_divergence(self, correction: Correction) -> float | None:
        if not is_streamed(correction):
            return None
        value = kept_divergence(self.found.pooled[self.basis.pair_of(correction)], correction.all_rules)
        return value if math.isfinite(value) else None

    def _kept_length(self, correction: Correction) -> float | None:
        scope, rules = self.found.pooled[self.basis.pair_of(correction)], correction.all_rules
        if not (is_streamed(correction) and all(rule.aggregation.per_row for rule in rules)):
            return None
        lengths = scope.rows["valid_tokens"][rows_kept(scope, rules)]
        return float(lengths.mean()) if len(lengths) else None

    def _sweep_report(self, steps: Sequence[StepReport]) -> SweepReport | None:
        if self.found.sweep is None:
            return None
        return sweep_report(self.found.sweep, self.found.sweep_columns, self._limits(steps), self.basis.options.named)

    def _limits(self, steps: Sequence[StepReport]) -> Limits:
        return Limits().for_steps(self.found.native[self.basis.primary]["kl_k3"], [s.metrics["kl_k3"] for s in steps])

    def _check_long_form(self) -> None:
        if self.found.sweep is not None and self.basis.options.per_step_grid:
            check_points(len(self.found.sweep.corrections) * len(self.found.steps), MOST_ROWS, "--per-step-grid")

    def _notes(self) -> list[str]:
        primary = self.basis.primary
        notes = [f"π is {primary.training}, μ is {primary.rollout}: {primary.meaning}."]
        if not self.found.state.pairs[primary.name].values.complete:
            notes.append(
                f"Token quantiles are read off bins beyond {EXACT_QUANTILES_UP_TO:,} tokens: "
                f"off by at most {QUANTILE_ERROR:.1%} of the log-ratio."
            )
        if self.basis.sample_stride > 1:
            notes.append(f"Pictures by position and probability show one row in {self.basis.sample_stride}.")
        grid, sweep = self.basis.options.sweep, self.found.sweep
        if grid is not None and sweep is not None and len(sweep.corrections) < grid.points:
            notes.append(
                f"The sweep has {len(sweep.corrections):,} of at most {grid.points:,} configurations: thresholds of "
                "sequence rules lie between rows, and these rows have fewer distinct values."
            )
        asked, usual = {p.name for p in self.basis.options.presets}, {p.name for p in BY_DEFAULT}
        unasked = [name for name in PRESETS if name not in asked | usual]
        if unasked and usual <= asked:
            notes.append(f"Evaluated where named, since they take a token by itself: {', '.join(unasked)}.")
        notes.append(
            "Pooled figures treat the dump as one batch; trainers correct each step by itself. "
            "Agreement on sampled tokens does not prove agreement on the whole vocabulary."
        )
        return [*notes, *self.basis.notes]

    def _edges(self) -> Mapping[tuple[int | None, str], Edges]:
        found: dict[tuple[int | None, str], Edges] = {}
        for pair, scopes in self.found.scopes.items():
            found |= {(batch, pair.name): native_edges(scope) for batch, scope in scopes.items()}
        for name, correction in self.basis.options.corrections.items():
            scopes = self.found.scopes[self.basis.pair_of(correction)]
            found |= {(batch, name): correction_edges(scope, correction) for batch, scope in scopes.items()}
        return found


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
    # not validated again: `Metrics` holds finite numbers and nulls alone, and there are thousands of these
    return StepCorrection.model_construct(None, **{**_plain(stages), "reasons": _stage_reasons(stages)})


def _plain(stages: Stages) -> dict[str, dict[str, float | int | None]]:
    return {stage: stages[stage].as_dict() for stage in STAGES}


def _stage_reasons(stages: Stages) -> dict[str, str]:
    return {f"{stage}.{metric}": reason for stage, m in stages.items() for metric, reason in m.reasons.items()}


def _mean_of(rows: Mapping[str, Array], column: str) -> float | None:
    if column not in rows:
        return None
    recorded = rows[column][~np.isnan(rows[column])]
    mean = float(recorded.mean()) if len(recorded) else math.nan
    return mean if math.isfinite(mean) else None
