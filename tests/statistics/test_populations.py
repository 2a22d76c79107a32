from __future__ import annotations

import math

import pytest

from rollout_audit.corrections.cuts import at_most
from rollout_audit.corrections.model import Bound, Correction, Level, Weight
from rollout_audit.statistics.populations import Piece, pieces
from rollout_audit.statistics.stages import correction_stages
from tests.builders import chunk_of, pass_plan, scope_of


def test_a_cap_below_every_clamped_ratio_takes_from_large_ratios_alone() -> None:
    """d clamped to ±10 is never as small as log 1e-5, so every weight is the cap, also where ρ itself is smaller."""
    weight = Weight(Level.TOKEN, Bound.TRUNCATE, upper=1e-5, clamp=10.0)
    assert pieces(weight) == (Piece(at_most(1e-5), 1e-5), Piece(math.inf, 1e-5))
    correction = Correction(weight)
    scope = scope_of([chunk_of([[-14.0, 0.0, -11.0]], rollout=0.0)], pass_plan({"it": correction}))
    bounded = correction_stages(scope, "it", correction)["bounded"]
    ratios = [math.exp(-14.0), 1.0, math.exp(-11.0)]
    lost = sum(max(ratio - 1e-5, 0.0) for ratio in ratios)
    assert bounded["mass_lost"] == pytest.approx(lost / sum(ratios), rel=1e-12)
    assert (bounded["weight_min"], bounded["weight_max"]) == (1e-5, 1e-5)
