"""Published schemas are those of the models, and what was written before goes on loading."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from safetensors.numpy import save

import rollout_audit as ra
from rollout_audit.golden.schemas import SCHEMAS
from rollout_audit.reports.folder import SEQUENCES, STATES, STATES_KEY, write_report

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


@pytest.mark.parametrize("file", PAST, ids=lambda file: file.stem)
def test_what_a_later_tool_adds_to_a_report_is_passed_over(file: Path, tmp_path: Path) -> None:
    tree = json.loads(file.read_text(encoding="utf-8"))
    later = {**tree, "later": {"a": [1]}, "counts": {**tree["counts"], "later": 1}}
    later["steps"] = [{**step, "later": None} for step in tree["steps"]]
    later["findings"] = [{**finding, "later": "x"} for finding in tree["findings"]]
    later["corrections"] = [{**one, "later": []} for one in tree["corrections"]]
    later["settings"] = {**tree["settings"], "later": True}
    (tmp_path / "report.json").write_text(json.dumps(later))
    assert ra.read_report(tmp_path).to_json() == ra.read_report(file).to_json()
    jsonschema.validate(later, SCHEMAS["report"]())


def test_what_a_later_tool_adds_to_a_golden_file_is_passed_over(approved: str, golden: Path, dump: Path) -> None:
    tree = json.loads(approved)
    tree |= {"later": {"a": [1]}, "settings": {**tree["settings"], "later": 1}}
    tree["schema"] |= {"later": 1}
    tree["masks"] = {key: {**mask, "later": 1} for key, mask in tree["masks"].items()}
    golden.write_text(json.dumps(tree))
    result = ra.check(ra.open_dump(dump), golden)
    assert (result.exit_code, result.notes) == (0, [])
    jsonschema.validate(tree, SCHEMAS["golden"]())


def test_what_a_later_tool_adds_to_saved_states_is_passed_over(dump: Path, tmp_path: Path) -> None:
    folder = write_report(ra.analyze(ra.open_dump(dump)), tmp_path / "r", plots=False).folder
    before = ra.sweep(folder).to_json()
    with safe_open(folder / STATES, framework="numpy") as opened:
        header = json.loads(opened.metadata()[STATES_KEY])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    header |= {"later": 1, "pairs": [{**pair, "later": 2} for pair in header["pairs"]]}
    header["presets"] = [{**preset, "later": 3} for preset in header["presets"]]
    more = {**tensors, "engine/later": np.zeros(3)}
    (folder / STATES).write_bytes(save(more, metadata={STATES_KEY: json.dumps(header)}))
    rows = pq.read_table(folder / SEQUENCES)
    pq.write_table(rows.append_column("later", rows["valid_tokens"]), folder / SEQUENCES)
    after = ra.sweep(folder).to_json()
    assert {**json.loads(after), "created": ""} == {**json.loads(before), "created": ""}


def test_a_byte_order_mark_before_a_report_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(b"\xef\xbb\xbf" + PAST[0].read_bytes())
    assert ra.read_report(tmp_path).to_json() == ra.read_report(PAST[0]).to_json()


def test_a_newer_version_is_refused_in_a_line(golden: Path, tmp_path: Path) -> None:
    report = json.loads(PAST[0].read_text(encoding="utf-8"))
    report["schema"]["version"] = 2
    (tmp_path / "report.json").write_text(json.dumps(report))
    with pytest.raises(ra.ReportError, match="report version 2, this tool reads up to 1; upgrade"):
        ra.read_report(tmp_path)


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
