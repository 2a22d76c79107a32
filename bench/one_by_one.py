"""One pass for the whole sweep against the same configurations one after another on padded tensors, as trainers do.

Twenty configurations are timed, spread evenly over the default grid, and multiplied; each is held against the figures
of the sweep, so that both did the same work.

python bench/one_by_one.py /tmp/dump10 --measured 20
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import rollout_audit as ra
from rollout_audit.audit.plan import Audit, Options
from rollout_audit.audit.sweep import default_grid, sweep_scope
from rollout_audit.corrections.model import Aggregation, Bound, Correction, Level, Rule, Statistic, Weight
from rollout_audit.dumps.fault_log import FaultLog


@dataclass
class Padded:
    """[rows, longest] of one step."""

    log_ratio: Tensor
    mask: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--measured", type=int, default=20)
    options = parser.parse_args()
    ra.analyze(ra.open_dump(options.folder))
    start = time.perf_counter()
    ra.analyze(ra.open_dump(options.folder))
    audit_time = time.perf_counter() - start
    sweep = swept(options.folder)
    batches = padded(options.folder)
    chosen = np.linspace(0, len(sweep.corrections) - 1, options.measured).astype(int)
    start, worst = time.perf_counter(), 0.0
    for i in chosen:
        ess = figures(sweep.corrections[i], batches)["ess"]
        worst = max(worst, abs(ess - sweep.figures["ess"][i]))
    each = (time.perf_counter() - start) / len(chosen)
    total = each * len(sweep.corrections)
    print(f"B, audit with {len(sweep.corrections):,} configurations   {audit_time:.2f} s")
    print(f"one configuration on padded tensors   {each:.2f} s; ess differs by at most {worst:.1e}")
    print(f"C, all of them                        {total:,.0f} s")
    print(f"C / B                                 {total / audit_time:,.0f}")


def swept(folder: Path):
    audit = Audit(ra.open_dump(folder), Options(sweep=default_grid()))
    return sweep_scope(audit.evidence(audit.run(FaultLog()))[audit.primary].scope(), audit.options.sweep)


def padded(folder: Path) -> list[Padded]:
    steps: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for row in ra.open_dump(folder).rows():
        d = np.asarray(row.old_log_probs, np.float64) - np.asarray(row.rollout_log_probs, np.float64)
        steps.setdefault(row.step, []).append((d, row.response_mask))
    return [_pad(rows) for rows in steps.values()]


def _pad(rows: list[tuple[np.ndarray, np.ndarray]]) -> Padded:
    longest = max(len(mask) for _, mask in rows)
    d, mask = torch.zeros(len(rows), longest, dtype=torch.float64), torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, (values, valid) in enumerate(rows):
        d[i, : len(values)], mask[i, : len(valid)] = torch.from_numpy(values), torch.from_numpy(valid.copy())
    return Padded(d, mask)


def figures(correction: Correction, batches: list[Padded]) -> dict[str, float]:
    """Sums over the steps, as a trainer takes them batch by batch, then the figures of the whole."""
    sums = torch.stack([_sums(correction, batch) for batch in batches]).sum(dim=0)
    kept, first, second, tokens, mass, lost = sums.tolist()
    return {
        "ess": first**2 / (kept * second) if second else 0.0,
        "weight_mean": first / kept if kept else 0.0,
        "masked_fraction": 1 - kept / tokens,
        "mass_lost": lost / mass,
    }


def _sums(correction: Correction, batch: Padded) -> Tensor:
    weight, mask = _weight(correction.weight, batch), batch.mask
    kept = mask.clone()
    for rule in correction.all_rules:
        kept &= _keeps(rule, batch)
    raw = _log_ratio(correction.weight.level, batch).exp()
    applied = weight * kept
    lost = ((raw - weight).clamp(min=0) * mask).sum()
    parts = (kept.sum(), applied.sum(), (applied**2).sum(), mask.sum(), (raw * mask).sum(), lost)
    return torch.stack([part.double() for part in parts])


def _log_ratio(level: Level, batch: Padded) -> Tensor:
    d = batch.log_ratio * batch.mask
    match level:
        case Level.TOKEN:
            return d
        case Level.SEQUENCE:
            return d.sum(dim=1, keepdim=True).expand_as(d)
        case Level.GEOMETRIC:
            return (d.sum(dim=1, keepdim=True) / batch.mask.sum(dim=1, keepdim=True).clamp(min=1)).expand_as(d)
        case _:
            return torch.zeros_like(d)


def _weight(weight: Weight, batch: Padded) -> Tensor:
    ratio = _log_ratio(weight.level, batch).clamp(-20.0, 20.0).exp()
    match weight.bound:
        case Bound.TRUNCATE:
            return ratio.clamp(max=weight.upper)
        case Bound.CLIP:
            return ratio.clamp(weight.lower, weight.upper)
        case Bound.MASK:
            return ratio * ((ratio >= weight.lower) & (ratio <= weight.upper))
        case _:
            return ratio


def _keeps(rule: Rule, batch: Padded) -> Tensor:
    d = batch.log_ratio if rule.clamp is None else batch.log_ratio.clamp(-rule.clamp, rule.clamp)
    values = {Statistic.K1: lambda: -d, Statistic.K2: lambda: d**2 / 2, Statistic.K3: lambda: d.expm1() - d}[
        rule.statistic
    ]()
    values = _aggregated(rule.aggregation, values, batch.mask)
    lower = -torch.inf if rule.lower is None else rule.lower
    upper = torch.inf if rule.upper is None else rule.upper
    return ((values >= lower) & (values <= upper)).expand_as(batch.mask)


def _aggregated(aggregation: Aggregation, values: Tensor, mask: Tensor) -> Tensor:
    match aggregation:
        case Aggregation.SEQ_SUM:
            return (values * mask).sum(dim=1, keepdim=True)
        case Aggregation.SEQ_MEAN:
            return (values * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        case Aggregation.SEQ_MAX:
            return values.masked_fill(~mask, -torch.inf).amax(dim=1, keepdim=True)
        case _:
            return values


if __name__ == "__main__":
    main()
