"""What to audit and how: the options, the pairs that are compared, what the pass must keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from rollout_audit.audit.batches import batch_cuts
from rollout_audit.audit.edges import edge_cuts
from rollout_audit.audit.pairs import Pair, pair_for, pairs_in, primary_mode
from rollout_audit.audit.passes import PassPlan, PassState, keeps_values, pays_to_compile, run_pass
from rollout_audit.audit.reading import Reading
from rollout_audit.audit.report import CauseReport
from rollout_audit.audit.sweep import Grid
from rollout_audit.corrections.cuts import is_streamed
from rollout_audit.corrections.model import SAFETY_CLAMP, Correction, Mode
from rollout_audit.corrections.presets import BY_DEFAULT, REFERENCE_PRESET, Preset
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.engines.threads import default_workers
from rollout_audit.errors import UsageError
from rollout_audit.statistics.direct_stages import DirectPlan
from rollout_audit.statistics.native import NATIVE_CUTS
from rollout_audit.statistics.plan import PairPlan
from rollout_audit.statistics.scope import Evidence

__all__ = ["Audit", "Basis", "Device", "Input", "Options", "choose_device"]

SAMPLED_TOKENS = 200_000
"""The sample for pictures holds at least so many tokens, masked ones counted, or all"""
DISPLAY_CUTS: tuple[float, ...] = (-20.0, 20.0)

Device = Literal["auto", "cpu", "cuda", "mps"]


@dataclass(frozen=True)
class Options:
    """How to audit. Figures depend on none of `workers`, `device`; on `chunk_tokens` only in the last digits."""

    mode: Mode | None = None
    presets: tuple[Preset, ...] = BY_DEFAULT
    reference: str = REFERENCE_PRESET
    on_fault: Literal["stop", "drop"] = "stop"
    steps: tuple[int | None, int | None] | None = None
    limit: int | None = None
    workers: int | None = None
    device: Device = "auto"
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS
    sweep: Grid | None = None
    per_step_grid: bool = False
    """whether the sweep's grid is answered for every step besides the whole dump"""
    edges: bool = False
    """whether what lies within rounding of a threshold is counted"""
    trainer: str | None = None
    """whose configuration the reference is"""
    named: tuple[str, ...] = ()
    """presets that were asked for by name, which a sweep shows beside its grid: the run's own first"""

    @property
    def corrections(self) -> Mapping[str, Correction]:
        return {p.name: p.correction for p in self.presets}


@dataclass(frozen=True, slots=True)
class Input:
    """One file that was read."""

    name: str
    format: str
    size: int
    """bytes"""
    rows: int
    digest: str
    values: int
    """tokens, masked ones included, from metadata"""


@dataclass(frozen=True)
class Basis:
    """What a report is made from besides the evidence, whether that was read just now or saved with a report."""

    options: Options
    inputs: tuple[Input, ...]
    pairs: tuple[Pair, ...]
    mode: Mode
    plans: Mapping[Pair, PairPlan]
    sample_stride: int = 1
    notes: tuple[str, ...] = ()
    """what to say of this report besides what is said of all"""
    causes: tuple[CauseReport, ...] | None = None
    """likely causes as they were found, where the evidence on them was not kept"""

    @property
    def primary(self) -> Pair:
        return pair_for(self.mode, self.pairs)

    def pair_of(self, correction: Correction) -> Pair:
        return pair_for(correction.mode, self.pairs)

    @cached_property
    def names(self) -> list[str]:
        """Of the files, by their number in the evidence."""
        return [given.name for given in self.inputs]

    def evidence(self, state: PassState) -> Mapping[Pair, Evidence]:
        common = state.common.columns()
        return {pair: Evidence(state.pairs[pair.name], self.plans[pair], common) for pair in self.pairs}


@dataclass(frozen=True)
class Audit:
    """A dump and how to audit it: what will be compared, and what the pass must keep."""

    dump: Dump
    options: Options

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        return pairs_in(self.dump)

    @cached_property
    def mode(self) -> Mode:
        return primary_mode(self.options.mode, self.pairs)

    @cached_property
    def primary(self) -> Pair:
        return pair_for(self.mode, self.pairs)

    def pair_of(self, correction: Correction) -> Pair:
        return pair_for(correction.mode, self.pairs)

    @cached_property
    def plans(self) -> Mapping[Pair, PairPlan]:
        return {pair: self._plan_of(pair) for pair in self.pairs}

    def _plan_of(self, pair: Pair) -> PairPlan:
        grid = self.options.sweep if pair == self.primary else None
        corrections = self._corrections_on(pair)
        edges = edge_cuts(corrections.values()) if self.options.edges else ()
        return PairPlan(
            corrections={n: c for n, c in corrections.items() if is_streamed(c)},
            extra_cuts=(*NATIVE_CUTS, *DISPLAY_CUTS, *edges, *(() if grid is None else grid.cuts)),
            extra_clamps=(SAFETY_CLAMP,) if pair == self.primary else (),
            token_caps=grid.token_caps if grid else (),
            keep_values=keeps_values(self.dump),
            compiled=pays_to_compile(self.dump),
        )

    def _corrections_on(self, pair: Pair) -> Mapping[str, Correction]:
        return {n: c for n, c in self.options.corrections.items() if self.pair_of(c) == pair}

    @cached_property
    def sample_stride(self) -> int:
        return max(1, self.dump.total_values // SAMPLED_TOKENS)

    def run(self, log: FaultLog, on_progress: Callable[[int], None] | None = None) -> PassState:
        """The one pass."""
        options = self.options
        reading = Reading(
            self.dump,
            fields=(
                "old_log_probs",
                "log_probs",
                "advantages",
                "reward",
                "uid",
                "policy_version",
                "trainer_version",
            ),
            chunk_tokens=options.chunk_tokens,
            on_fault=options.on_fault,
            steps=options.steps,
            limit=options.limit,
        )
        workers = options.workers or default_workers()
        return run_pass(reading, self._pass_plan(self._direct_plans(reading, workers, log)), workers, log, on_progress)

    def _direct_plans(self, reading: Reading, workers: int, log: FaultLog) -> Mapping[Pair, DirectPlan]:
        """What is evaluated token by token; a pass comes first where a rule needs the order of a batch."""
        device, plans = choose_device(self.options.device), {}
        for pair in self.pairs:
            direct = {n: c for n, c in self._corrections_on(pair).items() if not is_streamed(c)}
            rules = tuple(dict.fromkeys(rule for c in direct.values() for rule in c.batch_rules))
            if direct:
                cuts = batch_cuts(reading, pair.training, pair.rollout, rules, device, workers, log)
                plans[pair] = DirectPlan(direct, cuts, keeps_values(self.dump))
        return plans

    def _pass_plan(self, direct: Mapping[Pair, DirectPlan]) -> PassPlan:
        first, starts = 0, []
        for info in self.dump.infos:
            starts.append(first)
            first += info.rows
        device = choose_device(self.options.device)
        return PassPlan(self.plans, self.primary, self.sample_stride, starts, device, direct)

    @cached_property
    def basis(self) -> Basis:
        inputs = (
            Input(info.file.name, info.file.format, info.file.size, info.rows, info.digest, info.values)
            for info in self.dump.infos
        )
        return Basis(self.options, tuple(inputs), self.pairs, self.mode, self.plans, self.sample_stride)

    def evidence(self, state: PassState) -> Mapping[Pair, Evidence]:
        return self.basis.evidence(state)


def choose_device(name: Device) -> torch.device:
    """The device of that name.

    Raises:
        UsageError: it is not there, or has no float64.
    """
    if name == "mps":
        raise UsageError("--device mps: Apple's GPU has no float64, which every sum here needs; use --device cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no CUDA device; use --device cpu or auto")
    wanted = name if name != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(wanted)
