"""Outputs for machines where something stands in the way: CI shows what happened all the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Outcome, table

Run = Callable[..., Outcome]
KINDS = ("junit", "github", "step-summary", "gitlab", "json", "plain", "markdown")


def every_export() -> list[str]:
    return [word for kind in KINDS for word in ("--export", f"{kind}=out/{kind}")]


def nan_dump(folder: Path) -> Path:
    rows = table(4, step=0, drift=0.05).to_pylist()
    rows[2]["old_log_probs"][0] = float("nan")
    (folder / "nan").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "nan" / "step_0.parquet")
    return folder / "nan"


def stopped_by(why: str, dump: Path, golden: Path, tmp_path: Path) -> tuple[list[object], str]:
    """Arguments of a check that cannot be made, and what its error says."""
    match why:
        case "nan":
            return [nan_dump(tmp_path), "--golden", golden], "step_0.parquet, row 2, position 0: old_log_probs is NaN"
        case "no golden file":
            return [dump, "--golden", "none.json"], "none.json: no such golden file; write it with: rollout-audit check"
        case "no dump":
            return ["nowhere", "--golden", golden], "nowhere: no such file or folder"
        case "damaged dump":
            (tmp_path / "broken.parquet").write_bytes(b"PAR1 nothing")
            return ["broken.parquet", "--golden", golden], "broken.parquet"
        case "damaged golden file":
            golden.write_text("{")
            return [dump, "--golden", golden], f"{golden}: not a golden file"
        case "unknown preset":
            return [dump, "--golden", golden, "--presets", "decoupled_token"], "did you mean 'decoupled_token_is'?"
        case "bad steps":
            return [dump, "--golden", golden, "--steps", "3:1"], "--steps '3:1': no step lies between"
    raise AssertionError(why)


STOPS = ("nan", "no golden file", "no dump", "damaged dump", "damaged golden file", "unknown preset", "bad steps")


@pytest.mark.parametrize("why", STOPS)
def test_a_check_that_stops_says_so_in_every_output(
    why: str, run: Run, dump: Path, golden: Path, tmp_path: Path
) -> None:
    arguments, expected = stopped_by(why, dump, golden, tmp_path)
    result = run("check", *arguments, *every_export())
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    message = line.removeprefix("error: ")
    assert expected in message
    out = {kind: Path("out", kind).read_text(encoding="utf-8") for kind in KINDS}
    suite = ET.fromstring(out["junit"])[0]
    assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("1", "1", "0")
    assert suite.find("testcase/error").get("message") == message
    (annotation,) = out["github"].splitlines()
    assert annotation.startswith("::error file=")
    assert annotation.endswith(f"title=nothing was checked::{message.replace('%', '%25')}")
    (issue,) = json.loads(out["gitlab"])
    assert (issue["severity"], issue["description"]) == ("critical", message)
    tree = json.loads(out["json"])
    assert (tree["exit_code"], tree["error"], tree["figures"]) == (2, message, [])
    assert out["plain"].startswith("UNMEASURED  could not tell: ")
    assert "could not tell" in out["step-summary"]


def test_gitlab_names_a_golden_file_by_its_place_in_the_repository(
    run: Run, dump: Path, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = json.loads(golden.read_text())
    tree["figures"]["kl_k3@pooled"] = 0.5
    golden.write_text(json.dumps(tree))
    monkeypatch.chdir(golden.parent)
    run("check", dump, "--golden", golden.absolute(), "--export", "gitlab=q.json")
    assert {issue["location"]["path"] for issue in json.loads(Path("q.json").read_text())} == {golden.name}


def test_an_empty_name_of_a_golden_file_is_one_line(run: Run, dump: Path) -> None:
    result = run("check", dump, "--golden", "")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: --golden '': no file is named")


def test_an_internal_error_is_exported_too(run: Run, dump: Path, golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("rollout_audit.golden.check.check", fails)
    result = run("check", dump, "--golden", golden, "--export", "junit=j.xml")
    assert result.code == 2
    assert result.err.startswith("internal error: ZeroDivisionError: by zero; this is a bug")
    assert "internal error: ZeroDivisionError: by zero" in Path("j.xml").read_text()


def test_annotations_on_stderr_come_before_the_error(run: Run, dump: Path) -> None:
    result = run("check", dump, "--golden", "none.json", "--export", "github")
    first, second = result.err.splitlines()
    assert first.startswith("::error file=none.json,line=1,title=nothing was checked::none.json: no such golden file")
    assert second.startswith("error: none.json: no such golden file")


def test_one_output_that_cannot_be_written_costs_no_other(run: Run, dump: Path, golden: Path) -> None:
    Path("file").write_text("")
    exports = ["--export", "junit=file/j.xml", "--export", "json=out.json", "--export", "gitlab=file/q.json"]
    result = run("check", dump, "--golden", golden, *exports)
    assert result.code == 2
    assert result.out.startswith("OK  ")
    assert json.loads(Path("out.json").read_text())["exit_code"] == 0
    wrote, error = result.err.splitlines()
    assert wrote == "wrote out.json"
    assert error.startswith("error: file/j.xml: cannot write --export junit (")
    assert "; file/q.json: cannot write --export gitlab (" in error


def test_outputs_that_cannot_be_written_do_not_hide_what_stopped_the_check(run: Run, dump: Path) -> None:
    Path("file").write_text("")
    result = run("check", dump, "--golden", "none.json", "--export", "junit=file/j.xml", "--export", "json=o.json")
    first, second = result.err.splitlines()
    assert result.code == 2
    assert first.startswith("error: file/j.xml: cannot write --export junit (")
    assert second.startswith("error: none.json: no such golden file")
    assert json.loads(Path("o.json").read_text())["error"].startswith("none.json: no such golden file")


def test_the_step_summary_is_a_file_like_others(
    run: Run, dump: Path, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    result = run("check", dump, "--golden", golden, "--export", "step-summary", "--export", "markdown=./summary.md")
    assert (result.code, result.out) == (2, "")
    assert "'markdown=./summary.md': --export 'step-summary' is the same file" in result.err


def test_devices_take_more_than_one(run: Run, dump: Path, golden: Path) -> None:
    exports = ["--export", "junit=/dev/null", "--export", "json=/dev/null"]
    assert run("check", dump, "--golden", golden, *exports).code == 0
