"""From folded evidence to the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from importlib.metadata import version
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit import health
from rollout_audit.audit.best import Columns, applied_settings
from rollout_audit.audit.causes import exhibit_of, find_causes
from rollout_audit.audit.edges import correction_edges, native_edges
from rollout_audit.audit.length import length_trap
from rollout_audit.audit.limits import Limits
from rollout_audit.audit.pairs import Pair
from rollout_audit.audit.passes import EXACT_QUANTILES_UP_TO, PassState
from rollout_audit.audit.pictures import Histogram, Pictures
from rollout_audit.audit.plan import Basis
from rollout_audit.audit.points import Points, grid_points, long_form, named_points
from rollout_audit.audit.report import (
    CauseReport,
    CorrectionReport,
    Counts,
    DroppedSequence,
    Edges,
    FindingReport,
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
from rollout_audit.audit.states import Faults, pack, row_columns_of
from rollout_audit.audit.sweep import MOST_ROWS, check_points, sweep_columns, sweep_report, sweep_scope
from rollout_audit.audit.units import collapsed_products
from rollout_audit.audit.verdict import headline, past_limit, report_status, step_status
from rollout_audit.audit.worst import Places, worst_sequences, worst_tokens
from rollout_audit.corrections.cuts import is_streamed
from rollout_audit.corrections.describe import describe, effective_intervals
from rollout_audit.corrections.model import Correction
from rollout_audit.corrections.presets import BY_DEFAULT, PRESETS, Preset
from rollout_audit.statistics.batches import Batches
from rollout_audit.statistics.grid import QUANTILE_ERROR
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.statistics.native import native_metrics
from rollout_audit.statistics.scope import Evidence, Scope
from rollout_audit.statistics.stages import NOTHING_TO_WEIGH, STAGES, Evaluation
from rollout_audit.statistics.sweep import kept_divergence, rows_kept
from rollout_audit.statistics.sweep_errors import Answered

__all__ = ["assemble"]

IDENTICAL_FROM = 100
LIBRARIES = ("numpy", "pyarrow", "safetensors", "torch")

_version = cache(version)
Array = NDArray[np.float64]
Stages = Mapping[str, Metrics]
T = TypeVar("T")


def assemble(basis: Basis, state: PassState, faults: Faults, created: str) -> Report:
    """Every figure of the report, pooled and per step."""
    return _Assembly(basis, state, faults, created).report()


@dataclass(frozen=True)
class _Assembly:
    audit: Basis
    state: PassState
    faults: Faults
    created: str

    def report(self) -> Report:
        verdicts = health.judge(self._figures(self.audit.options.reference, self.native, self.stages))
        overall = self.native[self.audit.primary]
        steps = [self._step_report(step) for step in self.steps]
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
            findings=self._findings(),
            dropped=[DroppedSequence(**asdict(d)) for d in sorted(self.faults.dropped)],
            overall=dict(overall),
            overall_reasons=dict(overall.reasons),
            pairs=[_pair_report(pair, self.native[pair]) for pair in self.audit.pairs],
            steps=steps,
            corrections=[self._correction_report(p) for p in self.audit.options.presets],
            sweep=self._sweep_report(steps),
            length_trap=length_trap(self.pooled[self.audit.primary]),
            worst_tokens=worst_tokens(self.state.pairs[self.audit.primary.name].worst.tokens, self.places),
            worst_sequences=worst_sequences(self.pooled[self.audit.primary].rows, self.places),
            notes=self._notes(),
        )
        self._check_long_form()
        corrections = report.corrections
        report._pictures = cache(lambda: self._pictures(corrections, steps))
        report._edges = self._edges() if self.audit.options.edges else None
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
        return {name: stages[None] for name, stages in self.stages_by_batch.items()}

    @cached_property
    def stages_by_batch(self) -> Mapping[str, Mapping[int | None, Stages]]:
        """Every correction on the whole dump (under None) and on every step, all of them at once.

        Presets of several trainers may be the same correction: evaluated once.
        """
        found: dict[Correction, Mapping[int | None, Stages]] = {}
        for name, correction in self.audit.options.corrections.items():
            if correction not in found:
                found[correction] = self._stages_by_batch(name, correction)
        return {name: found[correction] for name, correction in self.audit.options.corrections.items()}

    def _stages_by_batch(self, name: str, correction: Correction) -> Mapping[int | None, Stages]:
        if name in self.state.direct:
            return {batch: self.state.direct[name].stages(correction, batch) for batch in (None, *self.steps)}
        scopes = self._scopes[self.audit.pair_of(correction)]
        scored = [batch for batch, scope in scopes.items() if scope.tokens]
        evaluation = self._evaluations[self.audit.pair_of(correction)]
        found = dict(zip(scored, evaluation.stages(name, correction), strict=True)) if scored else {}
        return {batch: found.get(batch, NOTHING_TO_WEIGH) for batch in scopes}

    @cached_property
    def steps(self) -> list[int]:
        return sorted({int(step) for step in self.common["step"]})

    @cached_property
    def step_scopes(self) -> Mapping[int, Mapping[Pair, Scope]]:
        return {step: {pair: e.scope(step) for pair, e in self.evidence.items()} for step in self.steps}

    @cached_property
    def _scopes(self) -> Mapping[Pair, Mapping[int | None, Scope]]:
        """The whole dump, under None, and each step."""
        batches: list[tuple[int | None, Mapping[Pair, Scope]]] = [(None, self.pooled), *self.step_scopes.items()]
        return {pair: {batch: of_pair[pair] for batch, of_pair in batches} for pair in self.audit.pairs}

    @cached_property
    def _evaluations(self) -> Mapping[Pair, Evaluation]:
        """On those with a valid token."""
        scored = {pair: tuple(s for s in scopes.values() if s.tokens) for pair, scopes in self._scopes.items()}
        return {pair: Evaluation(Batches(scopes)) for pair, scopes in scored.items()}

    def _figures(self, name: str, native: Mapping[Pair, Metrics], stages: Mapping[str, Stages]) -> health.Figures:
        """What the health rules look at, of the whole dump or of one step."""
        metrics, own = native[self.audit.pair_of(self.audit.options.corrections[name])], stages[name]
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
            for given in self.audit.inputs
        ]

    def _causes(self) -> list[CauseReport]:
        if self.audit.causes is not None:
            return list(self.audit.causes)
        rows = self.evidence[self.audit.primary].rows
        exhibit = exhibit_of(self.audit, rows, self.state.sample.columns(), self.faults.findings)
        return [CauseReport(**asdict(cause)) for cause in find_causes(exhibit)]

    def _findings(self) -> list[FindingReport]:
        own = [*self._identical_columns(), *self._unusable_rewards(), *self._configuration()]
        own += collapsed_products(self.pooled[self.audit.primary])
        return [*own, *(FindingReport(**asdict(finding)) for finding in self.faults.findings)]

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

    def _configuration(self) -> list[FindingReport]:
        return [
            FindingReport(kind="configuration", severity="warning", message=f"{preset.name}: {text}")
            for preset in self.audit.options.presets
            for text in preset.warnings
        ]

    def _unusable_rewards(self) -> list[FindingReport]:
        if "reward" not in self.common:
            return []
        at = np.flatnonzero(~np.isfinite(self.common["reward"]))
        if not len(at):
            return []
        first = self.places.named(int(at[0]))
        text = f"{len(at)} of {len(self.common['reward'])} rewards are missing or not finite: means leave them out"
        return [
            FindingReport(
                kind="reward_value",
                severity="warning",
                message=text,
                file=str(first["file"]),
                row=int(first["row"]),
                count=len(at),
            )
        ]

    def _settings(self) -> Settings:
        options, primary = self.audit.options, self.audit.primary
        return Settings(
            mode=self.audit.mode.value,
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
        scope = self.pooled[self.audit.primary]
        return Counts(
            files=len(np.unique(self.common["file"])),
            steps=len(self.steps),
            sequences=len(self.common["step"]),
            scored_sequences=scope.sequences,
            tokens=self.state.tokens,
            valid_tokens=scope.tokens,
            dropped_sequences=len(self.faults.dropped),
        )

    def _step_report(self, step: int) -> StepReport:
        primary = self.audit.primary
        scopes = self.step_scopes[step]
        stages = {name: by_batch[step] for name, by_batch in self.stages_by_batch.items()}
        native = {pair: native_metrics(scope) for pair, scope in scopes.items()}
        verdicts = health.judge(self._figures(self.audit.options.reference, native, stages))
        rows = scopes[primary].rows
        tokens = int(rows["valid_tokens"].sum())
        return StepReport(
            step=step,
            sequences=int(np.count_nonzero(self.common["step"] == step)),
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
            settings=applied_settings(correction),
            keeps=effective_intervals(correction),
            recommended=preset.recommended,
            training_column=self.audit.pair_of(correction).training,
            stages=StageReport(**_plain(stages)),
            reasons=_stage_reasons(stages),
            kept_kl_k3=self._kept_divergence(correction),
            kept_length_mean=self._kept_length(correction),
            status=health.mark(self._figures(preset.name, self.native, self.stages)),
        )

    def _kept_divergence(self, correction: Correction) -> float | None:
        if not is_streamed(correction):
            return None
        value = kept_divergence(self.pooled[self.audit.pair_of(correction)], correction.all_rules)
        return value if math.isfinite(value) else None

    def _kept_length(self, correction: Correction) -> float | None:
        scope, rules = self.pooled[self.audit.pair_of(correction)], correction.all_rules
        if not (is_streamed(correction) and all(rule.aggregation.per_row for rule in rules)):
            return None
        lengths = scope.rows["valid_tokens"][rows_kept(scope, rules)]
        return float(lengths.mean()) if len(lengths) else None

    def _sweep_report(self, steps: Sequence[StepReport]) -> SweepReport | None:
        if self.sweep is None:
            return None
        return sweep_report(self.sweep, self.sweep_columns, self._limits(steps), self.audit.options.named)

    def _limits(self, steps: Sequence[StepReport]) -> Limits:
        return Limits().for_steps(self.native[self.audit.primary]["kl_k3"], [s.metrics["kl_k3"] for s in steps])

    @cached_property
    def sweep(self) -> Answered | None:
        grid = self.audit.options.sweep
        return None if grid is None else sweep_scope(self.pooled[self.audit.primary], grid)

    @cached_property
    def sweep_columns(self) -> Columns:
        assert self.sweep is not None
        return sweep_columns(self.sweep)

    def _check_long_form(self) -> None:
        if self.sweep is not None and self.audit.options.per_step_grid:
            check_points(len(self.sweep.corrections) * len(self.steps), MOST_ROWS, "--per-step-grid")

    @cached_property
    def places(self) -> Places:
        return Places(self.audit.names, self.common, self.state.uids, [len(p["step"]) for p in self.state.common.parts])

    def _notes(self) -> list[str]:
        primary = self.audit.primary
        notes = [f"π is {primary.training}, μ is {primary.rollout}: {primary.meaning}."]
        if not self.state.pairs[primary.name].values.complete:
            notes.append(
                f"Token quantiles are read off bins beyond {EXACT_QUANTILES_UP_TO:,} tokens: "
                f"off by at most {QUANTILE_ERROR:.1%} of the log-ratio."
            )
        if self.audit.sample_stride > 1:
            notes.append(f"Pictures by position and probability show one row in {self.audit.sample_stride}.")
        asked, usual = {p.name for p in self.audit.options.presets}, {p.name for p in BY_DEFAULT}
        unasked = [name for name in PRESETS if name not in asked | usual]
        if unasked and usual <= asked:
            notes.append(f"Evaluated where named, since they take a token by itself: {', '.join(unasked)}.")
        notes.append(
            "Pooled figures treat the dump as one batch; trainers correct each step by itself. "
            "Agreement on sampled tokens does not prove agreement on the whole vocabulary."
        )
        return [*notes, *self.audit.notes]

    def _pictures(self, whole: Sequence[CorrectionReport], steps: Sequence[StepReport]) -> Pictures:
        primary = self.audit.primary
        return Pictures(
            histogram=_histogram(self.pooled[primary]),
            sample=self.state.token_sample(self.audit.sample_stride),
            sequences=row_columns_of(self.audit, self.state, self.places.uids),
            states=pack(self.audit, self.state),
            sweep=None if self.sweep is None else self.sweep_columns,
            points=None if self.sweep is None else long_form(self._points(whole, steps)),
        )

    def _points(self, whole: Sequence[CorrectionReport], steps: Sequence[StepReport]) -> Iterator[Points]:
        """The grid over the whole dump, presets over the whole dump and by step, and the grid by step where asked."""
        assert self.sweep is not None
        corrections = self.audit.options.corrections
        yield grid_points(self.sweep, self.sweep_columns)
        yield named_points(corrections, {c.name: c.stages for c in whole}, None, _left(whole))
        for step in steps:
            yield named_points(corrections, step.corrections, step.step)
        if self.audit.options.per_step_grid:
            yield from (grid_points(sweep, sweep_columns(sweep), step) for step, sweep in self._step_sweeps())

    def _step_sweeps(self) -> Iterator[tuple[int, Answered]]:
        grid = self.audit.options.sweep
        assert grid is not None
        for step in self.steps:
            yield step, sweep_scope(self.evidence[self.audit.primary].scope(step), grid)

    def _edges(self) -> Mapping[tuple[int | None, str], Edges]:
        found: dict[tuple[int | None, str], Edges] = {}
        for pair, scopes in self._scopes.items():
            found |= {(batch, pair.name): native_edges(scope) for batch, scope in scopes.items()}
        for name, correction in self.audit.options.corrections.items():
            scopes = self._scopes[self.audit.pair_of(correction)]
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


def _left(corrections: Sequence[CorrectionReport]) -> Mapping[str, Mapping[str, float | int | None]]:
    """What of each correction is said of the tokens that it keeps, besides its stages."""
    return {c.name: {"kept_kl_k3": c.kept_kl_k3, "kept_length_mean": c.kept_length_mean} for c in corrections}


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
