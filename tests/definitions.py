"""The metrics of SPEC 4 written out on whole arrays: what the streamed results are tested against."""

from __future__ import annotations

import numpy as np
import torch

from rollout_audit.corrections.cuts import weight_interval
from rollout_audit.corrections.direct import apply
from rollout_audit.corrections.model import Bound, Correction, Level
from rollout_audit.corrections.tokens import Tokens, row_sum


def stage_metrics(correction: Correction, tokens: Tokens) -> dict[str, dict[str, float]]:
    """Stage → metric → value, for batches with at least one valid token."""
    applied = apply(correction, tokens)
    row = np.repeat(np.arange(tokens.rows), tokens.lengths.numpy())
    kept = applied.kept.numpy()
    every = np.ones_like(kept)
    stages = {
        "raw": weights_of(applied.raw.numpy(), every, row, correction),
        "bounded": weights_of(applied.bounded.numpy(), every, row, correction),
        "normalised": weights_of(applied.normalised.numpy(), every, row, correction),
        "kept": weights_of(applied.normalised.numpy(), kept, row, correction),
    }
    stages["bounded"] |= bounding(correction, applied.log_ratio.numpy(), applied.bounded.numpy())
    stages["kept"] |= rejection(applied.normalised.numpy(), kept, tokens)
    return stages


def weights_of(weights, chosen, row, correction) -> dict[str, float]:
    w = weights[chosen]
    if not len(w):
        return {}
    found = {
        "weight_mean": w.mean(),
        "weight_min": w.min(),
        "weight_max": w.max(),
        "ess": ess(w),
        **{f"weight_p{q:02d}": np.quantile(w, q / 100) for q in (1, 25, 50, 75, 95, 99)},
    }
    if len(w) > 1:
        found["weight_std"] = w.std()
    if correction.applied_weight.level in (Level.SEQUENCE, Level.GEOMETRIC):
        found["ess_seq"] = ess(w[np.unique(row[chosen], return_index=True)[1]])
    return found


def ess(w) -> float:
    return 0.0 if not w.any() else w.sum() ** 2 / (len(w) * (w**2).sum())


def bounding(correction: Correction, x, bounded) -> dict[str, float]:
    """`x` is the log-ratio at the weight's level."""
    weight = correction.applied_weight
    inside = weight_interval(weight)
    ratio = np.exp(x)
    return {
        "capped_fraction": (x > inside.upper).mean(),
        "below_lower_fraction": (x < inside.lower).mean(),
        "zeroed_fraction": (bounded == 0).mean() if weight.bound is Bound.MASK or weight.overflow else 0.0,
        "mass_lost": np.maximum(ratio - bounded, 0).sum() / ratio.sum(),
    }


def rejection(weights, kept, tokens: Tokens) -> dict[str, float]:
    per_row = row_sum(torch.from_numpy(kept.astype(float)), tokens.lengths).numpy()
    n = tokens.lengths.numpy()
    scored = n > 0
    applied = weights[kept].sum()
    return {
        "masked_fraction": 1 - kept.mean(),
        "seq_masked_fraction": (per_row[scored] == 0).mean(),
        "seq_touched_fraction": (per_row[scored] < n[scored]).mean(),
        "gradient_scale_original": applied / len(kept),
        **({"gradient_scale_kept": applied / kept.sum()} if kept.any() else {}),
    }


def left_after(correction: Correction, tokens: Tokens) -> dict[str, float]:
    """Of what rejection keeps: mean length of the responses with a kept token, mean k3 of the kept tokens."""
    kept = apply(correction, tokens).kept.numpy()
    d, n = tokens.log_ratio.numpy()[kept], tokens.lengths.numpy()
    per_row = row_sum(torch.from_numpy(kept.astype(float)), tokens.lengths).numpy()
    if not kept.any():
        return {}
    return {"kept_length_mean": n[per_row > 0].mean(), "kept_kl_k3": (np.expm1(d) - d).mean()}
