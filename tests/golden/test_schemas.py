"""Published schemas are those of the models, and what was written before goes on loading."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.golden.schemas import SCHEMAS
from rollout_audit.reports.folder import write_report

ROOT = Path(__file__).parents[2]
PAST = sorted((ROOT / "tests" / "reports" / "past").glob("report_*.json"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_published_schema_is_that_of_the_model(name: str, run) -> None:
    published = json.loads((ROOT / "docs" / f"{name}-schema.json").read_text(encoding="utf-8"))
    assert published == SCHEMAS[name](), "run: python docs/make_reference.py"
    assert json.loads(run("schema", name).out) == published
    jsonschema.validators.validator_for(published).check_schema(published)


def test_rows_of_the_sweep_follow_their_schema(dump: Path, tmp_path: Path) -> None:
    write_report(ra.analyze(ra.open_dump(dump)), tmp_path / "r", plots=False)
    rows = pq.read_table(tmp_path / "r" / "sweep.parquet")
    schema = SCHEMAS["sweep"]()
    always = [name for name in schema["properties"] if not name.endswith("_error")]
    assert sorted(rows.column_names) == sorted(always)
    for row in rows.slice(0, 2500).to_pylist()[::50]:
        jsonschema.validate(row, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**rows.slice(0, 1).to_pylist()[0], "ess": "much"}, schema)


@pytest.mark.parametrize("file", PAST, ids=lambda file: file.stem)
def test_a_past_report_goes_on_loading(file: Path) -> None:
    report = ra.read_report(file)
    assert report.schema_tag.version == 1
    assert report.overall["kl_k3"] > 0
    assert [step.step for step in report.steps] == [0, 1]
    tree, back = json.loads(file.read_text(encoding="utf-8")), json.loads(report.to_json())
    assert_held(tree, back)


def assert_held(old: object, new: object, where: str = "") -> None:
    """Whatever the old file said is said still; the new one may say more."""
    if isinstance(old, dict):
        assert isinstance(new, dict)
        for name, value in old.items():
            assert_held(value, new[name], f"{where}.{name}")
    elif isinstance(old, list):
        assert isinstance(new, list)
        assert len(old) == len(new), where
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            assert_held(a, b, f"{where}[{i}]")
    else:
        assert old == new, where


def test_there_are_past_reports() -> None:
    assert len(PAST) >= 2
