"""One pass for the whole sweep against the same configurations one after another on padded tensors, as trainers do.

Twenty configurations are timed, spread evenly over the default grid, and multiplied; each is held against the figures
of the sweep, so that both did the same work.

python bench/one_by_one.py /tmp/dump10 --measured 20
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace
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
    reward: Tensor
    """[rows, 1]"""


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
        found = figures(off_ties(sweep.corrections[i]), batches)
        worst = max(worst, *(apart(found[name], sweep.figures[name][i]) for name in EXACT))
    each = (time.perf_counter() - start) / len(chosen)
    total = each * len(sweep.corrections)
    print(f"B, audit with {len(sweep.corrections):,} configurations   {audit_time:.2f} s")
    print(f"one configuration on padded tensors   {each:.2f} s; {len(EXACT)} figures differ by at most {worst:.1e}")
    print(f"C, all of them                        {total:,.0f} s")
    print(f"C / B                                 {total / audit_time:,.0f}")


def swept(folder: Path):
    audit = Audit(ra.open_dump(folder), Options(sweep=default_grid()))
    return sweep_scope(audit.evidence(audit.run(FaultLog()))[audit.primary].scope(), audit.options.sweep)


def padded(folder: Path) -> list[Padded]:
    steps: dict[int, list[tuple[np.ndarray, np.ndarray, float]]] = {}
    for row in ra.open_dump(folder).rows():
        d = np.asarray(row.old_log_probs, np.float64) - np.asarray(row.rollout_log_probs, np.float64)
        steps.setdefault(row.step, []).append((d, row.response_mask, row.reward))
    return [_pad(rows) for rows in steps.values()]


def _pad(rows: list[tuple[np.ndarray, np.ndarray, float]]) -> Padded:
    longest = max(len(mask) for _, mask, _ in rows)
    d, mask = torch.zeros(len(rows), longest, dtype=torch.float64), torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, (values, valid, _) in enumerate(rows):
        d[i, : len(values)], mask[i, : len(valid)] = torch.from_numpy(values), torch.from_numpy(valid.copy())
    return Padded(d, mask, torch.tensor([[reward] for _, _, reward in rows], dtype=torch.float64))


EXACT = (
    *("ess", "ess_seq", "weight_mean", "weight_std", "capped_fraction", "below_lower_fraction", "zeroed_fraction"),
    *("mass_lost", "masked_fraction", "seq_masked_fraction", "seq_touched_fraction", "kept_reward_mean"),
    *("kept_length_mean", "gradient_scale_kept", "gradient_scale_original"),
)
"""Of what every point carries; beside them the largest weight and k3 of the kept tokens, which cells give within 1%"""


def figures(correction: Correction, batches: list[Padded]) -> dict[str, float]:
    """Sums over the steps, as a trainer takes them batch by batch, then the figures of the whole."""
    parts = [_sums(correction, batch) for batch in batches]
    total = {name: sum(float(part[name]) for part in parts) for name in parts[0]}
    kept, first, second, tokens = (total[name] for name in ("kept", "weight", "square", "tokens"))
    mean = first / kept if kept else math.nan
    of_rows = correction.weight.level in (Level.SEQUENCE, Level.GEOMETRIC) and total["row_square"]
    return {
        "ess": first**2 / (kept * second) if second else math.nan,
        "ess_seq": total["row_weight"] ** 2 / (total["rows_kept"] * total["row_square"]) if of_rows else math.nan,
        "weight_mean": mean,
        "weight_std": math.sqrt(max(second / kept - mean**2, 0.0)) if kept > 1 else math.nan,
        "weight_max": max(float(part["greatest"]) for part in parts),
        **{f"{name}_fraction": total[name] / tokens for name in ("capped", "below_lower", "zeroed")},
        "mass_lost": total["lost"] / total["mass"],
        "masked_fraction": 1 - kept / tokens,
        "seq_masked_fraction": 1 - total["rows_kept"] / total["rows"],
        "seq_touched_fraction": total["rows_touched"] / total["rows"],
        "kept_reward_mean": total["reward"] / total["rows_kept"] if total["rows_kept"] else math.nan,
        "kept_length_mean": total["length"] / total["rows_kept"] if total["rows_kept"] else math.nan,
        "kept_kl_k3": total["k3"] / kept if kept else math.nan,
        "gradient_scale_kept": mean,
        "gradient_scale_original": first / tokens,
    }


def off_ties(correction: Correction) -> Correction:
    """Fitted thresholds are some row's own statistic, which another order of summation may put past them."""
    rules = (replace(r, lower=_outwards(r.lower), upper=_outwards(r.upper)) for r in correction.rules)
    return replace(correction, rules=tuple(rules))


def _outwards(bound: float | None) -> float | None:
    return None if bound is None else bound * (1.0 + 1e-11)


def apart(one: float, other: float) -> float:
    return 0.0 if math.isnan(one) and math.isnan(other) else abs(one - other) / max(1.0, abs(other))


def _sums(correction: Correction, batch: Padded) -> dict[str, Tensor]:
    bound, mask = correction.weight, batch.mask
    weight, raw = _weight(bound, batch), _log_ratio(bound.level, batch).exp()
    kept = mask.clone()
    for rule in correction.all_rules:
        kept &= _keeps(rule, batch)
    ratio = raw.clamp(math.exp(-20.0), math.exp(20.0))
    above = mask & (ratio > (math.inf if bound.upper is None else bound.upper))
    below = mask & (ratio < (bound.lower or 0.0))
    applied, lengths, left = weight * kept, mask.sum(dim=1, keepdim=True), kept.any(dim=1, keepdim=True)
    d = batch.log_ratio
    own = weight[:, :1] * left
    return {
        "kept": kept.sum(),
        "weight": applied.sum(),
        "square": (applied**2).sum(),
        "greatest": applied.max(),
        "tokens": mask.sum(),
        "capped": above.sum(),
        "below_lower": below.sum(),
        "zeroed": (above | below).sum() if bound.bound is Bound.MASK else torch.zeros(()),
        "mass": (raw * mask).sum(),
        "lost": ((raw - weight).clamp(min=0) * mask).sum(),
        "rows": (lengths > 0).sum(),
        "rows_kept": left.sum(),
        "rows_touched": ((kept.sum(dim=1, keepdim=True) < lengths) & (lengths > 0)).sum(),
        "row_weight": own.sum(),
        "row_square": (own**2).sum(),
        "reward": (batch.reward * left).sum(),
        "length": (lengths * left).sum(),
        "k3": ((d.expm1() - d) * kept).sum(),
    }


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
