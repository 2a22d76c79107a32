"""The project's own golden dumps: what `make test` and CI hold the code against."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollout_audit as ra

SAMPLES = Path(__file__).parents[2] / "sample_data"
DUMPS = sorted(path.name for path in SAMPLES.iterdir() if (path / "LABEL").is_file())


@pytest.mark.parametrize("name", DUMPS)
def test_figures_are_those_that_were_approved(name: str) -> None:
    result = ra.check(ra.open_dump(SAMPLES / name), SAMPLES / "golden" / f"{name}.json", tolerances={}, gates=[])
    assert result.exit_code == 0
    assert not result.notes
    assert {row.verdict for row in result.rows} <= {"same", "new"}
    assert not [row.note for row in result.rows if row.note and not row.is_null]
    assert len(result.rows) > 70


def test_every_sample_has_a_golden_file() -> None:
    assert [path.stem for path in sorted((SAMPLES / "golden").iterdir())] == DUMPS
