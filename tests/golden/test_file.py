from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import rollout_audit as ra
from rollout_audit.__main__ import main
from rollout_audit.errors import ReportError, UsageError
from rollout_audit.golden.file import read_golden, update_command
from rollout_audit.golden.model import GOLDEN_SCHEMA, GOLDEN_VERSION, Golden


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
    ("dumps", "golden", "arguments"),
    [
        (["a b"], "g.json", ["check", "a b", "--golden", "g.json", "--update"]),
        (["-a"], "-g.json", ["check", "--golden=-g.json", "--update", "--", "-a"]),
    ],
)
def test_the_command_that_is_printed_names_files_whatever_they_begin_with(
    dumps: list[str], golden: str, arguments: list[str]
) -> None:
    assert shlex.split(update_command(dumps, golden)) == ["rollout-audit", *arguments]


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


def line_of(key: str, text: str) -> str:
    return next(line for line in text.splitlines() if f'"{key}":' in line)


def test_a_line_that_stands_twice_is_refused(golden: Path) -> None:
    """As after a merge of two branches that both approved."""
    text = golden.read_text()
    line = line_of("kl_k3@pooled", text)
    golden.write_text(text.replace(line, f'{line}\n  "kl_k3@pooled": 99.0,'))
    with pytest.raises(
        ReportError, match="'kl_k3@pooled' stands there twice; delete one of the two, or write it anew with: rollout-a"
    ) as error:
        read_golden(golden, ["d"])
    assert "\n" not in str(error.value)


def test_a_byte_order_mark_is_passed_over(golden: Path, dump: Path) -> None:
    golden.write_text("\ufeff" + golden.read_text(), encoding="utf-8")
    result = ra.check(ra.open_dump(dump), golden)
    assert result.exit_code == 0
    assert result.golden_lines["kl_k3@0"] > 1


@pytest.mark.parametrize(
    ("key", "edge", "message"),
    [
        ("sequences@pooled", 5, r"edges.sequences@pooled = 5: sequences has no threshold; delete that line"),
        ("kl_k3@0", 1, r"edges.kl_k3@0 = 1: kl_k3 has no threshold"),
        ("within_1pct@0", -1, r"edges.within_1pct@0: Input should be greater than or equal to 0"),
        ("within_1pct@0", 10**400, r"edges.within_1pct@0: Input should be"),
    ],
)
def test_an_edge_needs_a_threshold(key: str, edge: int, message: str, golden: Path) -> None:
    tree = json.loads(golden.read_text())
    golden.write_text(json.dumps(tree | {"edges": {key: edge}}))
    with pytest.raises(ReportError, match=message):
        read_golden(golden)


def test_every_figure_that_may_lie_at_an_edge_has_a_threshold() -> None:
    """All that an audit counts there is read back."""
    from rollout_audit.audit.edges import correction_edges, native_edges
    from rollout_audit.golden.tolerances import has_threshold

    source = "".join(Path(f.__code__.co_filename).read_text() for f in (native_edges, correction_edges))
    named = set(re.findall(r'"(?:bounded\.|kept\.)?(\w+_fraction|\w+_past_clamp)"', source))
    assert {"capped_fraction", "veto_fraction", "tokens_past_clamp", "seq_touched_fraction"} <= named
    assert all(map(has_threshold, named | {"within_1pct", "within_5pct", "within_10pct"}))


def test_an_edge_of_a_figure_that_a_later_version_has(golden: Path, dump: Path) -> None:
    tree = json.loads(golden.read_text())
    golden.write_text(json.dumps(tree | {"edges": {"later_fraction@pooled": 3}}))
    assert ra.check(ra.open_dump(dump), golden).exit_code == 0


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-1" + "0" * 400])
def test_a_number_past_all_floats_cannot_be_compared(number: str, golden: Path, dump: Path) -> None:
    text = golden.read_text()
    golden.write_text(text.replace(line_of("kl_k3@0", text), f'  "kl_k3@0": {number},'))
    result = ra.check(ra.open_dump(dump), golden)
    (row,) = [row for row in result.rows if row.verdict != "same"]
    assert (str(row.key), row.verdict, result.exit_code) == ("kl_k3@0", "unmeasured", 2)
    assert row.note == "in the golden file: past the largest float64"


def test_differences_stay_finite(golden: Path, dump: Path, run) -> None:
    text = golden.read_text()
    golden.write_text(text.replace(line_of("kl_k3@0", text), '  "kl_k3@0": -1.7976931348623157e308,'))
    result = run("check", dump, "--golden", golden, "--format", "json")
    assert result.code == 1
    assert json.loads(result.out)["counts"]["worse"] == 1


def test_a_preset_that_is_gone_names_the_file_and_the_remedy(golden: Path, dump: Path, run) -> None:
    golden.write_text(golden.read_text().replace('["decoupled_token_is"]', '["decoupled_token_is", "gone"]'))
    result = run("check", dump, "--golden", golden)
    assert (result.code, result.out) == (2, "")
    command = f"rollout-audit check '{dump}' --golden {golden} --presets decoupled_token_is --update"
    assert result.err == f"error: {golden}: its preset 'gone' is not known; write the file anew with: {command}\n"
    assert run(*shlex.split(command)[1:]).code == 0
    assert read_golden(golden).settings.presets == ["decoupled_token_is"]


NULL = "decoupled_token_is:kept.ess_seq@pooled"
REASON = "no one weight a sequence at token level"


def test_what_has_no_value_is_held_as_null_with_its_reason(golden: Path, dump: Path) -> None:
    assert read_golden(golden).nulls[NULL] == REASON
    result = ra.check(ra.open_dump(dump), golden)
    held = {str(row.key): row for row in result.rows if row.expected is None}
    assert (held[NULL].verdict, held[NULL].note, held[NULL].changed) == ("same", REASON, False)
    assert result.nulls_as_approved == len(held) == len(read_golden(golden).nulls)
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("change", "verdict", "code", "note"),
    [
        ({"kl_k3@0": "needs rewards"}, "unmeasured", 2, "in the golden file: null (needs rewards)"),
        (
            {NULL: "no rewards"},
            "unmeasured",
            2,
            f"in the golden file: null (no rewards); now: null ({REASON})",
        ),
        ({NULL: ""}, "unmeasured", 2, f"in the golden file: null; now: null ({REASON})"),
        (
            {"gone@0": "needs rewards"},
            "unmeasured",
            2,
            "in the golden file: null (needs rewards); now: null (no longer there)",
        ),
    ],
)
def test_a_null_on_one_side_does_not_pass(
    change: dict[str, str], verdict: str, code: int, note: str, golden: Path, dump: Path
) -> None:
    tree = json.loads(golden.read_text())
    figures = {key: value for key, value in tree["figures"].items() if key not in change}
    golden.write_text(json.dumps(tree | {"figures": figures, "nulls": tree["nulls"] | change}))
    result = ra.check(ra.open_dump(dump), golden)
    (row,) = [row for row in result.rows if row.changed]
    assert (str(row.key), row.verdict, row.note, result.exit_code) == (*change, verdict, note, code)


def test_a_number_that_has_become_null_does_not_pass(golden: Path, dump: Path) -> None:
    """It is null in the golden file's figures by hand, or a number: neither was approved as null."""
    tree = json.loads(golden.read_text())
    for value in (0.5, None):
        figures, nulls = tree["figures"] | {NULL: value}, {k: v for k, v in tree["nulls"].items() if k != NULL}
        golden.write_text(json.dumps(tree | {"figures": figures, "nulls": nulls}))
        result = ra.check(ra.open_dump(dump), golden)
        (row,) = [row for row in result.rows if row.changed]
        assert (str(row.key), row.verdict, result.exit_code) == (NULL, "unmeasured", 2)


def test_files_of_earlier_versions_are_read_but_what_they_lack_does_not_pass(golden: Path, dump: Path) -> None:
    """Without counts, nulls and masks, as the first version wrote them."""
    tree = json.loads(golden.read_text())
    later = ("holds", "masks", "nulls")
    golden.write_text(json.dumps({name: value for name, value in tree.items() if name not in later}))
    result = ra.check(ra.open_dump(dump), golden)
    assert (result.exit_code, result.gaps) == (2, [])
    assert [note.partition(",")[0] for note in result.notes] == [
        "the golden file does not say how many lines it was written with"
    ]
    lacking = {str(row.key) for row in result.rows if row.verdict == "unmeasured"}
    assert lacking == tree["masks"].keys() | tree["nulls"].keys()
    assert ra.check(ra.open_dump(dump), golden, update=True).notes == []
    assert json.loads(golden.read_text()) == tree
    past = Path(__file__).parent / "past" / "golden_v1_uncounted.json"
    whole = ra.check(ra.open_dump(Path(__file__).parents[2] / "sample_data" / "temperature_raw"), past)
    assert (whole.exit_code, {row.verdict for row in whole.rows}, len(whole.notes)) == (0, {"same"}, 1)


def test_a_misspelt_tolerance_in_the_file_is_said(golden: Path, dump: Path) -> None:
    golden.write_text(re.sub(r'("kl_k3": \{)"atol"', r'\1"attol": 0.5, "atol"', golden.read_text()))
    result = ra.check(ra.open_dump(dump), golden)
    assert result.exit_code == 0
    assert result.notes == [
        "tolerances.kl_k3.'attol' of the golden file is not known and does nothing; did you mean 'atol'?"
    ]


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


def test_the_command_for_an_older_file_reads_the_dump_as_it_did(dump: Path, golden: Path) -> None:
    made = ra.open_dump(dump)
    golden.unlink()
    ra.check(made, golden, update=True, presets=["token_rs", "seq_rs"], limit=3, gates=[], tolerances={})
    text = golden.read_text()
    golden.write_text(text.replace(f'"version": {GOLDEN_VERSION}', '"version": 0'))
    with pytest.raises(ReportError) as error:
        ra.check(made, golden, dumps=[str(dump)])
    assert "tolerances that were edited in it are not taken over: set them in [check.metrics]" in str(error.value)
    command = shlex.split(str(error.value).partition("make it anew with: ")[2])
    assert main(command[1:]) == 0
    assert golden.read_text() == text


@pytest.mark.parametrize(("version", "said"), [("true", "True"), ('"1"', "'1'"), ("null", "None"), ("1.0", "1.0")])
def test_a_version_that_is_no_whole_number(version: str, said: str, golden: Path) -> None:
    golden.write_text(golden.read_text().replace(f'"version": {GOLDEN_VERSION}', f'"version": {version}'))
    with pytest.raises(ReportError, match=f"golden version {said}, expected a whole number"):
        read_golden(golden)


@pytest.mark.parametrize("direction", ["[]", "{}", "3", '"sideways"'])
def test_a_direction_that_is_none(direction: str, golden: Path) -> None:
    golden.write_text(golden.read_text().replace('"direction": "away from 0"', f'"direction": {direction}', 1))
    with pytest.raises(ReportError, match=r"damaged golden file, tolerances\.\w+\.direction: "):
        read_golden(golden)


def test_a_mask_with_half_of_its_edge(dump: Path, golden: Path) -> None:
    tree = json.loads(golden.read_text())
    key = next(iter(tree["masks"]))
    tree["masks"][key]["edge"] = 5
    golden.write_text(json.dumps(tree))
    result = ra.check(ra.open_dump(dump), golden)
    assert (result.exit_code, result.gaps) == (2, [f"masks.{key}: edge without other"])


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tolerances": {"kl_k33": {"atol": 1.0}}},
            "tolerances: unknown key check.metrics.'kl_k33'; did you mean 'kl_k3'?",
        ),
        ({"tolerances": {"kl_k3": {"atoll": 1}}}, "unknown key check.metrics.kl_k3.'atoll'; did you mean 'atol'?"),
        (
            {"tolerances": {"kl_k3": {"atol": -1}}},
            "tolerances: check.metrics.kl_k3.atol = -1: a tolerance is a number from 0",
        ),
        ({"tolerances": {"kl_k3": {"atol": "x"}}}, "tolerances: check.metrics.kl_k3.atol = 'x': expected a number"),
        ({"tolerances": {"kl_k3": 1}}, "tolerances: check.metrics.kl_k3 = 1: expected a table"),
        ({"gates": "kl_k33 > 0.01"}, "gates 'kl_k33 > 0.01': no metric 'kl_k33'; did you mean 'kl_k3'?"),
        ({"gates": ["kl_k3 >"]}, "gates 'kl_k3 >': write "),
        ({"gates": ["kl_k3 > x"]}, "gates 'kl_k3 > x': 'x' is no number"),
        ({"presets": "token_rss"}, "'token_rss'"),
        ({"golden": 3}, "golden = 3: expected the path of a file"),
    ],
)
def test_from_python_bad_options_are_one_line(
    options: dict[str, object], message: str, dump: Path, golden: Path
) -> None:
    with pytest.raises(UsageError) as error:
        ra.check(ra.open_dump(dump), **{"golden": golden, **options})
    assert message in str(error.value)


def test_from_python_gates_and_presets_may_be_text(dump: Path, golden: Path) -> None:
    opened = ra.open_dump(dump)
    gates = ["kl_k3 > 0", "moe"]
    result = ra.check(opened, golden, gates=gates, presets="decoupled_token_is, token_rs")
    assert next(gate.verdict for gate in result.gates) == "failed"
    assert len(result.gates) == 4
    assert result.count("new") > 0
    assert ra.check(opened, golden, gates="kl_k3 > 1e9").exit_code == 0
