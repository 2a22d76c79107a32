"""A report made again from its saved evidence: with other thresholds, and with more corrections beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rollout_audit.audit.assemble import assemble
from rollout_audit.audit.pairs import Pair
from rollout_audit.audit.plan import Basis
from rollout_audit.audit.report import Report
from rollout_audit.audit.states import QUIRK, Saved
from rollout_audit.audit.sweep import Grid
from rollout_audit.audit.verdict import timestamp
from rollout_audit.corrections.describe import describe
from rollout_audit.corrections.model import Correction, Level
from rollout_audit.corrections.presets import Preset
from rollout_audit.errors import UsageError
from rollout_audit.statistics.plan import PairPlan

__all__ = ["MERGED", "NO_SAMPLE", "UNLOGGED", "report_again"]

NO_SAMPLE = (
    "Made from saved states: pictures by position and probability (density, profiles) need the dump and are left out."
)
MERGED, UNLOGGED = "Merged from", "would have logged takes the dump"
"""What notes of `merge` hold, which a report made of a merged one says again"""


def report_again(
    saved: Saved, grid: Grid | None, *, per_step_grid: bool = False, named: Sequence[Preset] = ()
) -> Report:
    """The report of saved evidence, with another grid of the sweep (None: its own).

    What its trainer would have logged, its quirks, the comparison with a log and the likely causes are of the same
    tokens, and stay as they are.

    Raises:
        UsageError: a named correction that the saved evidence does not tell exactly.
    """
    asked = grid or saved.basis.options.sweep
    answered, note = _answerable(saved, asked) if asked else (None, ())
    added, names = _beside(saved, named)
    options = replace(
        saved.basis.options,
        sweep=answered,
        per_step_grid=per_step_grid,
        presets=(*saved.basis.options.presets, *added),
        named=tuple(dict.fromkeys((*saved.basis.options.named, *names))),
    )
    basis = replace(
        saved.basis,
        options=options,
        plans=_plans_with(saved.basis, added),
        notes=(NO_SAMPLE, *note, *(n for n in saved.report.notes if MERGED in n or UNLOGGED in n)),
        causes=tuple(saved.report.causes),
    )
    report = assemble(basis, saved.state, saved.faults, timestamp())
    quirks = [finding for finding in saved.report.findings if finding.kind.startswith(QUIRK)]
    carried = {"trainer": saved.report.trainer, "log": saved.report.log, "findings": [*report.findings, *quirks]}
    return report.model_copy(update=carried)


def _beside(saved: Saved, named: Sequence[Preset]) -> tuple[list[Preset], list[str]]:
    """What is to be evaluated besides what the report has, and the names of all that was asked for."""
    known = saved.basis.options.corrections
    added: list[Preset] = []
    names: list[str] = []
    for preset in named:
        if known.get(preset.name) != preset.correction:
            _check_told(saved, preset)
            preset = replace(preset, name=_unused(preset.name, known))
            added.append(preset)
        names.append(preset.name)
    return added, names


def _unused(name: str, known: Mapping[str, Correction]) -> str:
    """The name itself, unless the report has another correction under it."""
    names = (name, *(f"{name}~{i}" for i in range(2, len(known) + 3)))
    return next(free for free in names if free not in known)


def _check_told(saved: Saved, preset: Preset) -> None:
    """Its cuts were made, the rows carry its clamps, and its rules are those of a correction that was evaluated."""
    plan = saved.basis.plans[saved.basis.pair_of(preset.correction)]
    more = replace(plan, corrections={**plan.corrections, preset.name: preset.correction})
    kept = all(getattr(more, what) == getattr(plan, what) for what in ("filters", "counters", "clamps"))
    if not kept or more.grid.cuts != plan.grid.cuts or more.segment_corrections != plan.segment_corrections:
        raise UsageError(
            f"{saved.place}: its pass kept nothing that tells {preset.name} exactly ({describe(preset.correction)}); "
            "sweep the dump with it, or try its threshold as part of a grid"
        )


def _plans_with(basis: Basis, added: Sequence[Preset]) -> Mapping[Pair, PairPlan]:
    """The same cuts, classes and sums, and the added corrections among those that are answered."""
    own = {pair: {p.name: p.correction for p in added if basis.pair_of(p.correction) == pair} for pair in basis.pairs}
    return {pair: replace(plan, corrections={**plan.corrections, **own[pair]}) for pair, plan in basis.plans.items()}


def _answerable(saved: Saved, grid: Grid) -> tuple[Grid, tuple[str, ...]]:
    """The grid without token weights under sequence rules at caps whose sums by row were not kept, and a note on it."""
    kept = saved.basis.plans[saved.basis.primary].token_caps
    lost = [cap for cap in grid.token_caps if cap not in kept]
    if not lost:
        return grid, ()
    joint = tuple(w for w in grid.joint if w.level is not Level.TOKEN or w.upper in kept)
    have = ", ".join(f"{cap:g}" for cap in kept) or "none"
    missing = ", ".join(f"{cap:g}" for cap in lost)
    note = (
        f"Token weights under sequence rules are left out at the caps {missing}: they need sums row by row, which the "
        f"report kept for the caps {have}. A sweep of the dump has them."
    )
    return replace(grid, joint=joint), (note,)
