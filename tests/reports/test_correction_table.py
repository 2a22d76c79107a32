"""Which corrections share a row of the table, and that none is lost."""

from __future__ import annotations

import re

import pytest

from rollout_audit.audit.alike import alike, equals, trainer_of
from rollout_audit.audit.report import CorrectionReport, Report
from rollout_audit.reports.correction_table import MOST_IN_ONE, correction_tables
from tests.reports.plots.conftest import report_of


@pytest.fixture(scope="module")
def stale() -> Report:
    return report_of("stale_policy")


def named(report: Report) -> list[str]:
    """Every name that the tables show, in a row or among those alike."""
    tables = list(correction_tables(report))
    rows = [str(row[0]) for table in tables for row in table.rows]
    tails = [re.search(r"in intervals and every figure: (.*)\.$", table.caption) for table in tables]
    return rows + [n for found in tails if found for group in found[1].split("; ") for n in group.split(" = ")[1:]]


def test_every_correction_is_named_once(stale: Report) -> None:
    assert sorted(named(stale)) == sorted(c.name for c in stale.corrections)


def test_its_own_trainers_first_then_the_others(stale: Report) -> None:
    own, others = correction_tables(stale)
    origin = {c.name: trainer_of(c) for c in stale.corrections}
    assert own.rows[0][0] == stale.settings.reference
    assert {origin[str(row[0])] for row in own.rows} == {"verl"}
    assert "verl" not in {origin[str(row[0])] for row in others.rows}
    assert "mode" in [column.key for column in own.columns]
    assert "mode" in [column.key for column in others.columns]


def test_without_a_column_of_modes_where_there_is_one(stale: Report) -> None:
    of_one_mode = [c for c in stale.corrections if c.mode == stale.settings.mode]
    for table in correction_tables(stale.model_copy(update={"corrections": of_one_mode})):
        assert "mode" not in [column.key for column in table.columns]


def test_tokens_that_icepop_zeroes_are_seen(stale: Report) -> None:
    """Its mask leaves all tokens in: without a column of their own the zeroed ones would not show."""
    table = next(correction_tables(stale))
    at = [column.key for column in table.columns].index("zeroed_fraction")
    (icepop,) = [row for row in table.rows if row[0] == "decoupled_token_icepop"]
    stages = next(c for c in stale.corrections if c.name == "decoupled_token_icepop").stages
    outside = (stages.bounded["capped_fraction"] or 0) + (stages.bounded["below_lower_fraction"] or 0)
    assert icepop[at] == pytest.approx(outside)
    assert icepop[at] > 0
    assert stages.kept["masked_fraction"] == 0


def test_few_stand_in_one_table(stale: Report) -> None:
    few = [c for c in stale.corrections if trainer_of(c) == "nemo-rl"]
    report = stale.model_copy(update={"corrections": few})
    assert len(alike(few)) <= MOST_IN_ONE
    assert [table.title for table in correction_tables(report)] == ["Corrections, whole dump"]


def test_what_differs_in_a_figure_or_in_the_loss_is_not_alike(stale: Report) -> None:
    first = stale.corrections[0]
    twin = first.model_copy(update={"name": "twin"})
    other_loss = first.model_copy(update={"name": "other", "loss": "reinforce"})
    kept = {**first.stages.kept, "ess": 0.123}
    other_figure = first.model_copy(update={"name": "figure", "stages": first.stages.model_copy(update={"kept": kept})})
    groups = alike([first, other_loss, twin, other_figure])
    assert [[c.name for c in group] for group in groups] == [[first.name, "twin"], ["other"], ["figure"]]
    assert equals(groups) == f"{first.name} = twin"


@pytest.mark.parametrize(
    ("origin", "trainer"),
    [("verl 2026-08", "verl"), ("nemo-rl 2026-08, documented", "nemo-rl"), ("here", "here"), ("my lab, notes", "my")],
)
def test_trainer_of_an_origin(stale: Report, origin: str, trainer: str) -> None:
    correction: CorrectionReport = stale.corrections[0].model_copy(update={"origin": origin})
    assert trainer_of(correction) == trainer
