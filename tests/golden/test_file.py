from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rollout_audit as ra
from rollout_audit.errors import ReportError, UsageError
from rollout_audit.golden.model import GOLDEN_SCHEMA, GOLDEN_VERSION, Golden, read_golden


def test_it_is_sorted_one_figure_a_line_and_comes_back(approved: str, golden: Path) -> None:
    lines = approved.splitlines()
    assert lines[0] == "{"
    assert any(re.fullmatch(r'  "kl_k3@0": [0-9.e-]+,', line) for line in lines)
    assert '  "kl_k3": {"atol": 1e-12, "direction": "higher", "rtol": 1e-06},' in lines
    sections = [line for line in lines if re.match(r' "', line)]
    assert sections == sorted(sections)
    assert read_golden(golden).to_text() == approved


def test_steps_are_sorted_as_numbers(golden: Path) -> None:
    tree = read_golden(golden)
    more = tree.model_copy(update={"figures": {f"kl_k3@{step}": 0.1 for step in (10, 9, 100)}})
    assert re.findall(r"kl_k3@(\d+)", more.to_text()) == ["9", "10", "100"]


def test_digests_are_over_contents(golden: Path, dump: Path) -> None:
    from hashlib import sha256

    contents = {file.name: sha256(file.read_bytes()).hexdigest() for file in dump.iterdir()}
    assert read_golden(golden).digests == contents


def test_nothing_in_it_depends_on_presets_that_come_later(golden: Path) -> None:
    assert read_golden(golden).settings.presets == ["decoupled_token_is"]
    subjects = {key.partition(":")[0] for key in read_golden(golden).figures if ":" in key}
    assert subjects == {"decoupled_token_is", "policy_update", "total"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such golden file; write it with: rollout-audit check 'my dump' --golden .*golden.json --update"),
        ("{", "not a golden file"),
        ("[]", "a JSON list"),
        ('{"schema": {"name": "other", "version": 1}}', "schema 'other', expected"),
        (json.dumps({"schema": {"name": GOLDEN_SCHEMA, "version": GOLDEN_VERSION + 1}}), "upgrade it"),
        (json.dumps({"schema": {"name": GOLDEN_SCHEMA, "version": 0}}), "make it anew with: rollout-audit check 'my d"),
        (json.dumps({"schema": {"name": GOLDEN_SCHEMA, "version": 1}}), "damaged golden file, digest: Field required"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_the_remedy(text: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ReportError, match=message) as error:
        read_golden(file, ["my dump"])
    assert "\n" not in str(error.value)


def test_an_update_replaces_a_file_of_an_older_schema_and_no_other(dump: Path, golden: Path) -> None:
    opened = ra.open_dump(dump)
    golden.write_text(golden.read_text().replace(f'"version": {GOLDEN_VERSION}', '"version": 0'))
    with pytest.raises(ReportError, match="no longer read"):
        ra.check(opened, golden)
    assert ra.check(opened, golden, update=True).rows == []
    assert ra.check(opened, golden).exit_code == 0
    golden.write_text('{"mine": 1}')
    with pytest.raises(ReportError, match="not a golden file"):
        ra.check(opened, golden, update=True)
    assert golden.read_text() == '{"mine": 1}'


def test_an_update_keeps_the_tolerances_of_the_old_file(golden: Path, dump: Path) -> None:
    loose = '"kl_k3": {"atol": 0.5, "direction": "higher", "rtol": 0.0}'
    golden.write_text(re.sub(r'"kl_k3": \{[^}]*\}', loose, golden.read_text()))
    ra.check(ra.open_dump(dump), golden, update=True, tolerances={"kl_k2": {"rtol": 0.25}}, gates=[])
    found = read_golden(golden).tolerances
    assert (found["kl_k3"].atol, found["kl_k2"].rtol, found["kl_k1"].rtol) == (0.5, 0.25, 1e-6)


def test_a_golden_file_that_cannot_be_written(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="cannot write the golden file"):
        ra.check(ra.open_dump(dump), tmp_path / "file" / "golden.json", update=True)


def test_nothing_to_check_against_is_an_error(dump: Path) -> None:
    with pytest.raises(UsageError, match="nothing to check against"):
        ra.check(ra.open_dump(dump))


def test_the_schema_is_that_of_the_model(approved: str) -> None:
    import jsonschema

    jsonschema.validate(json.loads(approved), Golden.json_schema())
