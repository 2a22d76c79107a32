"""The length trap as the report says it."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollout_audit as ra
from rollout_audit.audit.length import length_trap
from rollout_audit.audit.report import LengthTrap
from tests.builders import chunk_of, pass_plan, scope_of

DATA = Path(__file__).parents[1] / "conformance" / "dumps"


def trap_of(rows: list[list[float]]) -> LengthTrap:
    trap = length_trap(scope_of([chunk_of(rows)], pass_plan({})))
    assert trap is not None
    return trap


def test_kl_of_a_thousandth_saturates_at_twenty_thousand_tokens() -> None:
    trap = trap_of([[-(2.0**-10)] * n for n in range(8, 16)])
    assert trap.kl_per_token == 2.0**-10
    assert (trap.clamp_length, trap.typical_clamp_length) == (20_480, 20_480)
    assert trap.ess_length is None
    assert trap.reasons == {"ess_length": "never: the log weights of equally long responses do not differ"}
    assert trap.longest == 15
    assert trap.sentence == (
        "Length trap at k1 0.000977 a token: sequence weights reach the ±20 clamp from 20,480 tokens (a typical "
        "response at 20,480); ess_seq under 0.3: never: the log weights of equally long responses do not differ; the "
        "longest response has 15."
    )


def test_equal_policies_have_no_trap() -> None:
    trap = trap_of([[0.0] * 3] * 9)
    assert trap.kl_per_token == 0.0
    assert not any((trap.clamp_length, trap.typical_clamp_length, trap.ess_length))
    assert len(set(trap.reasons.values())) == 1
    assert trap.sentence == "Length trap: none, the two policies give every token the same log-prob."


def test_one_response_names_the_typical_length_alone() -> None:
    trap = trap_of([[-0.5, -0.5, -1.0]])
    assert trap.typical_clamp_length == 30
    assert trap.clamp_length is None
    assert "fewer than 8" in trap.reasons["clamp_length"]
    assert trap.spread_per_token is None
    assert "a typical sequence weight reaches the ±20 clamp at 30 tokens" in trap.sentence


def test_a_batch_without_a_valid_token_has_none() -> None:
    assert length_trap(scope_of([chunk_of([[0.1]], masks=[[0]])], pass_plan({}))) is None


@pytest.mark.parametrize("name", ["long_sequences", "beyond_safety_bound", "stale_policy"])
def test_sequences_past_the_trap_show_it(name: str) -> None:
    trap = ra.analyze(ra.open_dump(DATA / name), sweep=False).length_trap
    assert trap is not None
    assert trap.ess_length is not None
    assert trap.ess_length < trap.longest
    assert min(band.ess_seq for band in trap.bands) < 0.5
