"""A regression of each kind is planted; exit code and every output are read."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Outcome, table

Run = Callable[..., Outcome]
KEY = "kl_k3@pooled"


def planted(golden: Path, value: str) -> None:
    """Another expectation of kl_k3, as text."""
    text, count = re.subn(rf'"{KEY}": [^,]+,', f'"{KEY}": {value},', golden.read_text())
    assert count == 1
    golden.write_text(text)


def outputs(run: Run, dump: Path, golden: Path, *options: str) -> tuple[Outcome, dict[str, str]]:
    """One run with every export."""
    kinds = ("junit", "github", "step-summary", "gitlab", "json", "plain", "markdown")
    exports = [word for kind in kinds for word in ("--export", f"{kind}=out/{kind}")]
    result = run("check", dump, "--golden", golden, *exports, *options)
    return result, {kind: Path("out", kind).read_text() for kind in kinds}


def cases(junit: str) -> dict[str, str]:
    """case → what stands in it."""
    suite = ET.fromstring(junit)[0]
    found = {f"{c.get('classname')}.{c.get('name')}": ",".join(x.tag for x in c) for c in suite.iter("testcase")}
    assert int(suite.get("tests", 0)) == len(found)
    assert int(suite.get("failures", 0)) == sum("failure" in kind for kind in found.values())
    assert int(suite.get("errors", 0)) == sum("error" in kind for kind in found.values())
    return found


CASE = "rollout-audit check.mismatch@pooled.kl_k3"


def test_nothing_changed(run: Run, dump: Path, golden: Path) -> None:
    result, out = outputs(run, dump, golden)
    assert result.code == 0
    assert re.fullmatch(r"OK  \d+ same, 7 of them null as approved\.\n", result.out)
    assert (out["github"], json.loads(out["gitlab"])) == ("", [])
    assert set(cases(out["junit"]).values()) == {""}
    tree = json.loads(out["json"])
    assert (tree["exit_code"], len(tree["figures"])) == (0, tree["counts"]["same"])
    assert out["plain"] == result.out


def test_unchanged_figures_are_shown_with_all(run: Run, dump: Path, golden: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run("check", dump, "--golden", golden, "--all", "--format", "csv").out)))
    assert {row["verdict"] for row in rows} == {"same"}
    assert {"0", "1", "pooled"} == {row["scope"] for row in rows}
    assert run("check", dump, "--golden", golden, "--format", "csv").out == ""


@pytest.mark.parametrize(
    ("value", "code", "verdict", "case", "kind", "severity"),
    [
        ("1e-9", 1, "worse", "failure", "error", "critical"),
        ("9.0", 0, "better", "system-out", "notice", "info"),
        ("NaN", 2, "unmeasured", "error", "error", "critical"),
        ("null", 2, "unmeasured", "error", "error", "critical"),
    ],
)
def test_one_figure(
    value: str, code: int, verdict: str, case: str, kind: str, severity: str, run: Run, dump: Path, golden: Path
) -> None:
    planted(golden, value)
    result, out = outputs(run, dump, golden)
    assert result.code == code
    assert f"1 {verdict}, " in result.out.splitlines()[0]
    row = next(line for line in result.out.splitlines() if KEY in line)
    assert row.startswith(verdict)
    assert "up is worse" in row
    assert cases(out["junit"])[CASE] == case
    (annotation,) = out["github"].splitlines()
    line = next(i for i, text in enumerate(golden.read_text().splitlines(), 1) if f'"{KEY}"' in text)
    assert annotation.startswith(f"::{kind} file={golden},line={line},title={KEY} {verdict}::{KEY} {verdict}")
    (issue,) = json.loads(out["gitlab"])
    assert issue["severity"] == severity
    assert issue["location"] == {"path": golden.name, "lines": {"begin": line}}
    assert f"| {verdict} | {KEY} |" in out["step-summary"]
    figures = {row["figure"]: row for row in json.loads(out["json"])["figures"]}
    assert figures[KEY]["verdict"] == verdict


def test_a_figure_that_is_no_longer_there(run: Run, dump: Path, golden: Path) -> None:
    golden.write_text(golden.read_text().replace(f'"{KEY}"', '"kl_k9@pooled"'))
    result, out = outputs(run, dump, golden)
    assert result.code == 2
    assert "2 unmeasured" in result.out  # the one that is gone, and the one that the file lacks
    assert "no longer there" in result.out
    assert cases(out["junit"])["rollout-audit check.mismatch@pooled.kl_k9"] == "error"


def test_an_added_preset_is_new_and_fails_nothing(run: Run, dump: Path, golden: Path) -> None:
    result, out = outputs(run, dump, golden, "--presets", "decoupled_k3_rs,decoupled_token_is")
    assert result.code == 0
    first, second = result.out.splitlines()[:2]
    assert first.startswith("WARN  presets is ['decoupled_token_is', 'decoupled_k3_rs']")
    assert re.fullmatch(r"OK  \d+ new, \d+ same, 7 of them null as approved\.", second)
    assert "decoupled_k3_rs:kept.masked_fraction@pooled" in result.out
    kinds = set(cases(out["junit"]).values())
    assert kinds == {"", "system-out"}


def test_a_preset_that_is_no_longer_run_cannot_be_compared(run: Run, dump: Path, golden: Path) -> None:
    result = run("check", dump, "--golden", golden, "--presets", "decoupled_k3_rs")
    assert result.code == 2
    assert "decoupled_token_is:kept.ess@1" in result.out


@pytest.fixture
def other_dump(dump: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "other"
    shutil.copytree(dump, folder)
    pq.write_table(table(10, step=1, drift=0.09), folder / "step_1.parquet")
    return folder


def test_a_changed_dump_is_said_first(run: Run, other_dump: Path, golden: Path) -> None:
    result, out = outputs(run, other_dump, golden)
    assert result.code == 1
    text = "not the dump that the golden file was made of: step_1.parquet changed"
    assert result.out.splitlines()[0] == f"WARN  {text}"
    assert re.match(r"CRITICAL  \d+ worse, ", result.out.splitlines()[1])
    assert f"::{text}" in next(line for line in out["github"].splitlines() if line.startswith("::warning"))
    kinds = [line.split(" ")[0] for line in out["github"].splitlines()]
    assert max(kinds.count(kind) for kind in set(kinds)) == 10
    assert re.search(r"::notice title=rollout-audit check::and \d+ more, in the step summary", out["github"])
    assert text in ET.fromstring(out["junit"]).findtext("./testsuite/system-out", "")
    assert len(json.loads(out["gitlab"])) > 10
    assert len({issue["fingerprint"] for issue in json.loads(out["gitlab"])}) == len(json.loads(out["gitlab"]))
    figures = [row for row in json.loads(out["json"])["figures"] if row["scope"] == "0"]
    assert {row["verdict"] for row in figures} == {"same"}


def test_the_same_data_in_other_bytes_passes_with_a_word(run: Run, dump: Path, golden: Path, tmp_path: Path) -> None:
    for file in dump.iterdir():
        pq.write_table(pq.read_table(file), tmp_path / file.name, compression="gzip")
    result = run("check", *sorted(tmp_path.glob("*.parquet")), "--golden", golden)
    assert result.code == 0
    assert result.out.startswith(
        "WARN  not the dump that the golden file was made of: step_0.parquet, step_1.parquet ch"
    )


def test_an_update_writes_the_file_and_says_what_changed(run: Run, other_dump: Path, golden: Path) -> None:
    result, out = outputs(run, other_dump, golden, "--update")
    assert result.code == 0
    assert set(cases(out["junit"]).values()) == {"", "system-out"}
    assert "::error" not in out["github"]
    assert re.search(r"\d+ worse, .*; golden file written\.", result.out)
    assert f"\nwrote {golden}\n" in result.err
    assert "no value, held as null: decoupled_token_is:kept.ess_seq@pooled and 2 more (no one weight" in result.err
    again = run("check", other_dump, "--golden", golden)
    assert (again.code, len(again.out.splitlines())) == (0, 1)


@pytest.mark.parametrize(("gate", "code"), [("kl_k3 > 1e-9", 1), ("kl_k3@any-step > 9", 0), ("kept.ess_seq < 0.5", 2)])
def test_gates_stand_beside_the_golden_file(gate: str, code: int, run: Run, dump: Path, golden: Path) -> None:
    result, out = outputs(run, dump, golden, "--fail-on", gate)
    assert result.code == code
    word = {0: "passed", 1: "failed", 2: "unmeasured"}[code]
    assert f"gate {word}: {gate}" in result.out
    assert {0: "", 1: "failure", 2: "error"}[code] == cases(out["junit"])[f"rollout-audit check.gates.{gate}"]
    assert json.loads(out["json"])["gates"][0]["verdict"] == word


def test_a_missing_golden_file_fails_and_prints_the_command(run: Run, dump: Path) -> None:
    result = run("check", dump, "--golden", "none.json")
    assert (result.code, result.out) == (2, "")
    command = f"rollout-audit check '{dump}' --golden none.json --update"
    assert result.err == f"error: none.json: no such golden file; write it with: {command}\n"


def test_bitwise_agreement(run: Run, dump: Path, tmp_path: Path) -> None:
    """Real case 95: the first d ≠ 0 fails, with its file, row and position."""
    result = run("check", dump, "--expect-bitwise", "--export", "junit=j.xml", "--export", "github")
    assert result.code == 1
    first = result.out.splitlines()[1]
    assert first.startswith("first d ≠ 0: step_0.parquet row 0 position 0 (step 0): log π -")
    assert "<failure" in Path("j.xml").read_text()
    assert result.err.startswith("::error title=not bitwise equal::first d ≠ 0: step_0.parquet row 0")
    equal = pq.read_table(dump / "step_0.parquet")
    equal = equal.drop_columns(["log_probs"]).set_column(2, "old_log_probs", equal["rollout_log_probs"])
    pq.write_table(equal, tmp_path / "equal.parquet")
    result = run("check", tmp_path / "equal.parquet", "--expect-bitwise")
    tokens = sum(sum(mask) for mask in equal["response_mask"].to_pylist())
    assert (result.code, result.out) == (
        0,
        f"OK  bitwise equal: old_log_probs and rollout_log_probs on {tokens} tokens.\n",
    )


def test_a_token_under_the_mask_does_not_break_bitwise_agreement(run: Run, dump: Path, tmp_path: Path) -> None:
    rows = pq.read_table(dump / "step_0.parquet").drop_columns(["log_probs"]).to_pylist()
    for row in rows:
        row["old_log_probs"] = [
            r if m else -9.0 for r, m in zip(row["rollout_log_probs"], row["response_mask"], strict=True)
        ]
    rows[3]["old_log_probs"][2] -= 0.125
    import pyarrow as pa

    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "step_4.parquet")
    result = run("check", tmp_path / "step_4.parquet", "--expect-bitwise")
    assert result.code == 1
    assert "step_4.parquet row 3 position 2 (step 0)" in result.out
    assert "d = -0.125" in result.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--export", "junitt=x"], "--export 'junitt=x': no kind 'junitt'; did you mean 'junit'?"),
        (["--export", "junit"], "--export 'junit': needs a file, --export junit=FILE"),
        (["--export", "step-summary"], "$GITHUB_STEP_SUMMARY is not set"),
        (["--presets", "decoupled_token"], "did you mean 'decoupled_token_is'?"),
        (["--export", "junit=-"], "--export 'junit=-': stdout carries the result; give --export junit=FILE"),
        (
            ["--export", "json=-"],
            "--export 'json=-': stdout carries the result, and --format json prints it in that form",
        ),
        (["--export", "github=-"], "stdout carries the result, and annotations without a file go to stderr"),
        (
            ["--export", "junit=out/x", "--export", "json=out/../out/x"],
            "--export 'json=out/../out/x': --export 'junit=out/x' is the same file; give each a file of its own",
        ),
        (["--export", "json=golden.json"], "--export 'json=golden.json': the golden file "),
    ],
)
def test_bad_options_are_one_line(options: list[str], message: str, run: Run, dump: Path, golden: Path) -> None:
    result = run("check", dump, "--golden", golden, *options)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_a_step_summary_is_added_to_what_is_there(
    run: Run, dump: Path, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("summary.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    run("check", dump, "--golden", golden, "--export", "step-summary")
    assert Path("summary.md").read_text().startswith("before\n## rollout-audit check\n\n**OK** ")


def test_names_are_escaped_everywhere(run: Run, dump: Path, golden: Path, tmp_path: Path) -> None:
    """Real case 100: brackets in file names, and what each format takes for its own."""
    strange = tmp_path / "a,b:c%d <e> [red]&.json"
    golden.rename(strange)
    planted(strange, "1e-9")
    _, out = outputs(run, dump, strange)
    assert "file=" + str(strange).replace("%", "%25").replace(":", "%3A").replace(",", "%2C") in out["github"]
    assert json.loads(out["gitlab"])[0]["location"]["path"] == strange.name
    assert cases(out["junit"])[CASE] == "failure"
