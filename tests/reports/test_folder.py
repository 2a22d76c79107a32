from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollout_audit.audit.report import SCHEMA_NAME, SCHEMA_VERSION, Report
from rollout_audit.dumps import target as target_module
from rollout_audit.errors import ReportError
from rollout_audit.reports import folder as folder_module
from rollout_audit.reports.folder import read_report, write_report

NEWER = json.dumps({"schema": {"name": SCHEMA_NAME, "version": SCHEMA_VERSION + 1}})
FILES = ("report.json", "sequences.parquet", "states.safetensors", "steps.parquet", "sweep.parquet")


def test_a_report_comes_back_as_it_went(report: Report, tmp_path: Path) -> None:
    written = write_report(report, tmp_path / "a" / "b", plots=False)
    assert written.files == FILES
    assert read_report(written.folder).to_json() == report.to_json()
    assert read_report(written.folder / "report.json").to_json() == report.to_json()


def test_nothing_else_is_left_beside_it(report: Report, tmp_path: Path) -> None:
    for _ in range(2):
        write_report(report, tmp_path / "r", plots=False)
    assert [p.name for p in tmp_path.iterdir()] == ["r"]
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "r").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_empty_folder_and_a_link_are_written_to(report: Report, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    write_report(report, tmp_path / "link", plots=False)
    assert (tmp_path / "link").is_symlink()
    assert sorted(p.name for p in (tmp_path / "disk").iterdir()) == list(FILES)


def test_a_mount_point_is_filled_in_place(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "_can_rename", lambda target: False)
    (out := tmp_path / "mount").mkdir()
    for _ in range(2):
        write_report(report, out, plots=False)
        assert sorted(p.name for p in out.iterdir()) == list(FILES)


def test_a_failed_write_leaves_the_old_report(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(report, tmp_path / "r", plots=False)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module, "write_steps", full)
    with pytest.raises(ReportError, match="cannot write the report \\(No space left on device\\); give another --out"):
        write_report(report, tmp_path / "r", plots=False)
    assert read_report(tmp_path / "r").to_json() == report.to_json()
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


@pytest.mark.parametrize("content", ["file", "folder", "foreign json"])
def test_what_is_not_ours_is_never_overwritten(content: str, report: Report, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if content == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / ("report.json" if content == "foreign json" else "mine.txt")).write_text("{}")
    with pytest.raises(ReportError, match="give another --out"):
        write_report(report, out, plots=False)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("failing", ["module", "picture"])
def test_a_picture_that_fails_never_costs_the_figures(
    failing: str, report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw_all(*_: object) -> SimpleNamespace:
        if failing == "module":
            raise ImportError("no backend\nhere")
        return SimpleNamespace(failures={"density.png": "no tokens"})

    monkeypatch.setattr(folder_module, "import_module", lambda name: SimpleNamespace(draw_all=draw_all))
    written = write_report(report, tmp_path / "r")
    expected = {"plots": "ImportError: no backend here"} if failing == "module" else {"density.png": "no tokens"}
    assert written.failures == expected
    assert (tmp_path / "r" / "report.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NEWER, "upgrade rollout-audit"),
        ('{"schema": {"name": "other", "version": 1}}', "not a report of rollout-audit"),
        ('{"schema": {"name": "rollout-audit/report", "version": 1}}', "damaged report"),
        ("{", "not a report of rollout-audit"),
        ("[]", "a JSON list"),
        (None, "no such report"),
    ],
)
def test_what_cannot_be_read_is_one_line(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with pytest.raises(ReportError, match=message) as error:
        read_report(tmp_path)
    assert "\n" not in str(error.value)


def test_json_is_strict_and_ends_with_a_newline(report: Report) -> None:
    text = report.to_json()
    assert text.endswith("}\n")
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
