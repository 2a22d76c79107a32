"""The counts of docs/trainers.md are those of the values that the tests beside this one compare."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl

from rollout_audit.trainers.registry import TRAINERS
from tests.conformance import test_more
from tests.conformance.test_trainers import CASES, EXPECTED, TOOL_NAMES

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"


def documented() -> dict[str, tuple[int, int]]:
    """Trainer → values of each file, as the table says it."""
    table = PAGE.read_text().split("<!-- agreement:")[1].split("<!-- end of agreement -->")[0]
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines() if "`" in line]
    first, second = ({name: count(values[i]) for name, *values in cells[1:]} for i in (0, 1))
    return {name: (first[name], second[name]) for name in first}


def count(text: str) -> int:
    return 0 if text == "–" else int(text.replace(",", ""))


def compared() -> dict[str, tuple[int, int]]:
    """The same as the tests go through them: case by case, each name of a configuration once."""
    first, second = Counter[str](), Counter[str]()
    for case in CASES:
        of_case = EXPECTED.filter(case=case).group_by("trainer", "config").agg(pl.col("metric").n_unique())
        for trainer, _, metrics in of_case.iter_rows():
            first[TOOL_NAMES.get(trainer, trainer)] += metrics
        for trainer in test_more.TRAINERS:
            second[trainer] += sum(len(values) for _, values in test_more.configurations(case, trainer))
    return {name: (first[name], second[name]) for name in TRAINERS}


def test_the_page_counts_what_is_compared() -> None:
    assert documented() == compared()


def test_every_trainer_has_values_that_its_own_code_gave() -> None:
    assert {name for name, both in compared().items() if not sum(both)} == {"verl-2025-11"}  # between two that have


def test_no_value_is_left_out() -> None:
    sums = [sum(one) for one in zip(*compared().values(), strict=True)]
    assert sums == [EXPECTED.height, test_more.MORE.height]
