"""The main job: one pass over a dump, then every figure of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from rollout_audit.audit.assemble import assemble
from rollout_audit.audit.dialect import trainer_evidence
from rollout_audit.audit.plan import Audit, Device, Options
from rollout_audit.audit.quirks import with_trainer
from rollout_audit.audit.report import Report
from rollout_audit.audit.selection import ConfigSource, config_text, configure, named_presets
from rollout_audit.audit.states import Faults
from rollout_audit.audit.sweep import Grid, default_grid
from rollout_audit.audit.verdict import timestamp
from rollout_audit.corrections.model import Mode
from rollout_audit.corrections.presets import BY_DEFAULT, REFERENCE_PRESET, Preset, as_presets, preset
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.engines.upkeep import no_collection, one_torch_thread
from rollout_audit.errors import UsageError

__all__ = ["analyze"]


def analyze(
    dump: Dump,
    *,
    presets: Literal["all"] | Sequence[str | Preset] = "all",
    reference: str | None = None,
    trainer: str | None = None,
    config: ConfigSource | None = None,
    named: Sequence[str | Preset] = (),
    sweep: bool | Grid = True,
    per_step_grid: bool = False,
    edges: bool = False,
    logged_steps: bool = False,
    mode: Literal["decoupled", "bypass"] | None = None,
    on_fault: Literal["stop", "drop"] = "stop",
    steps: tuple[int | None, int | None] | None = None,
    limit: int | None = None,
    device: Device = "auto",
    workers: int | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Audit a dump: how far the two policies are apart and what each correction would do. Draws and writes nothing.

    Args:
        dump: what `open_dump` returned.
        presets: corrections to evaluate, by name or as data; "all" takes every preset that one
            pass answers; those that look at signs of advantages or at the order of a batch are evaluated where named.
        reference: the preset that health rules look at; `decoupled_token_is` by default, or the first of `presets`.
        trainer: a name of `trainers.registry.TRAINERS`: its correction comes first and is the reference, what it would
            have logged is in the report, its quirks that matter on this dump are findings. Reads the dump twice.
        config: that trainer's own keys, a file of them, or a preset of its own; its defaults where not given.
        named: presets besides `presets` that the sweep shows beside its grid, and its pictures mark; so it does what
            `reference` or `trainer` asks for.
        sweep: whether to try some 2,700 thresholds as well, pooled over the dump; or the grid to try.
        per_step_grid: whether every step is tried by itself too.
        edges: whether to count the tokens and sequences that lie within rounding of a threshold (`Report.edges`).
        logged_steps: whether to keep what the trainer would have logged of each step too (`Report.logged_steps`).
        mode: which training policy the report is about; decoupled where `old_log_probs` is recorded.
        on_fault: "stop" raises at the first faulty value, "drop" leaves faulty sequences out and lists them.
        steps: first step and the one after the last.
        limit: number of rows from the start of the dump.
        device: where the arithmetic runs; "auto" takes CUDA where there is one.
        workers: threads that compute.
        chunk_tokens: tokens that one unit of work holds; bounds the memory.
        on_progress: told the number of rows of each chunk done.

    Raises:
        DumpError: the dump cannot be audited as asked (see `rollout_audit.errors`).
        UsageError: an unknown preset, trainer or device; `config` without `trainer`, or beside `reference`.
        ConfigError: the trainer itself would refuse the configuration.
    """
    if trainer is not None and reference is not None:
        raise UsageError("a trainer's configuration and a preset both name the reference correction; give one of them")
    chosen = BY_DEFAULT if presets == "all" else as_presets(presets)
    own = {p.name: p for p in chosen}
    first = () if reference is None else (own.get(str(reference), reference),)
    asked = named_presets([*first, *as_presets(named)], trainer, config)
    usual = REFERENCE_PRESET if presets == "all" or not chosen else chosen[0].name
    name = usual if trainer is None and reference is None else asked[0].name
    chosen = _with_asked(chosen, asked, name)
    options = Options(
        mode=None if mode is None else Mode(mode),
        presets=chosen,
        reference=name,
        on_fault=on_fault,
        steps=steps,
        limit=limit,
        workers=workers,
        device=device,
        chunk_tokens=chunk_tokens,
        sweep=default_grid() if sweep is True else sweep or None,
        per_step_grid=per_step_grid,
        edges=edges,
        trainer=trainer,
        named=tuple(p.name for p in asked),
    )
    audit, created, log = Audit(dump, options), timestamp(), FaultLog()
    state = audit.run(log, on_progress)
    faults = Faults(log.findings(audit.basis.names), tuple(log.dropped))
    with one_torch_thread(), no_collection():
        report = assemble(audit.basis, state, faults, created)
    if trainer is None:
        return report
    source = {} if config is None else config
    dialect, settings = configure(trainer, source)
    logged = trainer_evidence(
        dump,
        trainer,
        source,
        by_step=logged_steps,
        on_fault=on_fault,
        steps=steps,
        limit=limit,
        workers=workers,
        chunk_tokens=chunk_tokens,
    )
    reads = config_text(trainer, source)
    found = with_trainer(report, dialect, dialect.correction(settings), logged, reads, settings)
    found._logged_steps = logged.by_step
    return found


def _with_asked(chosen: Sequence[Preset], asked: Sequence[Preset], reference: str) -> tuple[Preset, ...]:
    """What is not there yet: the reference before all others, the rest after them."""
    known = {p.name for p in chosen}
    missing = [p for p in asked if p.name not in known]
    if reference not in {*known, *(p.name for p in missing)}:
        missing = [*missing, preset(reference)]
    first = [p for p in missing if p.name == reference]
    return (*first, *chosen, *(p for p in missing if p.name != reference))
