"""What a finished pass says: every figure of a report, before it is laid out as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rollout_audit.audit.best import Columns
from rollout_audit.audit.pairs import Pair
from rollout_audit.audit.passes import PassState
from rollout_audit.audit.plan import Basis
from rollout_audit.audit.sweep import sweep_columns, sweep_scope
from rollout_audit.audit.worst import Places
from rollout_audit.corrections.model import Correction
from rollout_audit.statistics.batches import Batches
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.statistics.native import native_metrics
from rollout_audit.statistics.scope import Evidence, Scope
from rollout_audit.statistics.stages import NOTHING_TO_WEIGH, Evaluation
from rollout_audit.statistics.sweep_errors import Answered

__all__ = ["Evaluated", "Stages"]

Array = NDArray[np.float64]
Stages = Mapping[str, Metrics]
"""By stage: raw, bounded, normalised, kept"""


@dataclass(frozen=True)
class Evaluated:
    """Each figure is computed when it is first asked for."""

    basis: Basis
    state: PassState

    @cached_property
    def evidence(self) -> Mapping[Pair, Evidence]:
        return self.basis.evidence(self.state)

    @cached_property
    def common(self) -> Mapping[str, Array]:
        return self.evidence[self.basis.primary].common

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
        for name, correction in self.basis.options.corrections.items():
            if correction not in found:
                found[correction] = self._stages_by_batch(name, correction)
        return {name: found[correction] for name, correction in self.basis.options.corrections.items()}

    def _stages_by_batch(self, name: str, correction: Correction) -> Mapping[int | None, Stages]:
        if name in self.state.direct:
            return {batch: self.state.direct[name].stages(correction, batch) for batch in (None, *self.steps)}
        scopes = self.scopes[self.basis.pair_of(correction)]
        scored = [batch for batch, scope in scopes.items() if scope.tokens]
        evaluation = self._evaluations[self.basis.pair_of(correction)]
        found = dict(zip(scored, evaluation.stages(name, correction), strict=True)) if scored else {}
        return {batch: found.get(batch, NOTHING_TO_WEIGH) for batch in scopes}

    @cached_property
    def steps(self) -> list[int]:
        return [int(step) for step in np.unique(self.common["step"])]

    @cached_property
    def scopes(self) -> Mapping[Pair, Mapping[int | None, Scope]]:
        """The whole dump, under None, and each step."""
        return {
            pair: {None: self.pooled[pair], **{step: evidence.scope(step) for step in self.steps}}
            for pair, evidence in self.evidence.items()
        }

    @cached_property
    def _evaluations(self) -> Mapping[Pair, Evaluation]:
        """On those with a valid token."""
        scored = {pair: tuple(s for s in scopes.values() if s.tokens) for pair, scopes in self.scopes.items()}
        return {pair: Evaluation(Batches(scopes)) for pair, scopes in scored.items()}

    @cached_property
    def sweep(self) -> Answered | None:
        grid = self.basis.options.sweep
        return None if grid is None else sweep_scope(self.pooled[self.basis.primary], grid)

    @cached_property
    def sweep_columns(self) -> Columns:
        assert self.sweep is not None
        return sweep_columns(self.sweep)

    @cached_property
    def places(self) -> Places:
        return Places(self.basis.names, self.common, self.state.uids, [len(p["step"]) for p in self.state.common.parts])

    def step_sweeps(self) -> Iterator[tuple[int, Answered]]:
        """The grid on every step by itself."""
        grid = self.basis.options.sweep
        assert grid is not None
        for step in self.steps:
            yield step, sweep_scope(self.scopes[self.basis.primary][step], grid)
