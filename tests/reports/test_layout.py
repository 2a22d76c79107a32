from __future__ import annotations

import csv
import io
import json

import pytest

from rollout_audit.audit.report import Report
from rollout_audit.reports.explanations import catalogue_document
from rollout_audit.reports.summary import report_document
from rollout_audit.reports.tables import Column, Document, Note, Table, Verdict
from rollout_audit.reports.terminal import markdown, plain, to_csv, to_json_lines

NAMES = ["a_metric_of_some_length", "[red]brackets[/red]", "b|ar"]
TABLE = Table(
    "A title",
    (
        Column("name", "name", "label"),
        Column("value", "the\nvalue", "number"),
        Column("share", "share", "percent"),
        Column("status", "mark", "status"),
    ),
    [[NAMES[0], 1.25, 0.5, "ok"], [NAMES[1], None, 1.0, "critical"], [NAMES[2], 0.001, 0.0, "warn"]],
)
DOCUMENT = Document((Verdict("ok", "Fine."), Note("A note."), TABLE), lambda: "{}\n", TABLE.records)


def test_plain_text_is_aligned() -> None:
    assert plain(DOCUMENT) == (
        "OK  Fine.\n"
        "A note.\n"
        "\n"
        "A title\n"
        "                            the\n"
        "name                      value  share  mark\n"
        "────────────────────────────────────────────────\n"
        "a_metric_of_some_length  1.2500  50.0%  ok\n"
        "[red]brackets[/red]           –   100%  critical\n"
        "b|ar                     0.0010     0%  warn\n"
    )


@pytest.mark.parametrize("width", [20, 30, 44, 46])
def test_a_narrow_table_changes_shape_and_cuts_nothing(width: int) -> None:
    text = plain(Document((TABLE,), str, list), width)
    assert all(name in text for name in NAMES)
    assert all(len(line) <= max(width, max(map(len, NAMES))) for line in text.splitlines())


def test_parts_of_a_cell_stand_below_one_another_where_few_rows_have_several() -> None:
    columns = (Column("name", "name", "label"), Column("keeps", "in full where"), Column("ess", "ess", "number"))
    rows = [["both", "ρ ≤ 2; ρ in [0.5, 2]", 0.5], ["one", "ρ ≤ 3", 1.0]]
    document = Document((Table("", columns, rows), Note("")), str, list)
    assert plain(document, 29).splitlines()[1:] == [
        "name  in full where    ess",
        "──────────────────────────",
        "both  ρ ≤ 2;         0.500",
        "      ρ in [0.5, 2]",
        "one   ρ ≤ 3          1.000",
        "",
    ]
    assert "both  ρ ≤ 2; ρ in [0.5, 2]  0.500" in plain(document, 40)


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_a_report_fits_every_width_with_whole_names(width: int, report: Report) -> None:
    text = plain(report_document(report), width)
    assert max(map(len, text.splitlines())) <= width
    for name in (*report.overall, *(c.name for c in report.corrections), *(t.uid for t in report.worst_tokens[:8])):
        assert name in text


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_the_catalogue_fits_every_width(width: int) -> None:
    text = plain(catalogue_document(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "log_prob_diff_abs_mean" in text


def test_the_verdict_comes_first_then_what_is_wrong(report: Report) -> None:
    broken = report.model_copy(
        update={"health": [v.model_copy(update={"status": "critical"}) for v in report.health], "status": "critical"}
    )
    text = plain(report_document(broken))
    assert text.startswith("CRITICAL  ")
    assert text.index("Health") < text.index("Steps") < text.index("Mismatch") < text.index("Corrections")


def test_prose_wraps_in_its_own_column() -> None:
    table = Table("", (Column("a", "a", "label"), Column("b", "what", "prose")), [["name", "word " * 20]])
    lines = plain(Document((table,), str, list), 40).splitlines()
    assert lines[3].startswith("name  word")
    assert all(line.startswith("      word") for line in lines[4:])


def test_prose_below_its_row_where_there_is_no_room() -> None:
    table = Table("", (Column("a", "a", "label"), Column("b", "what", "prose")), [["n" * 30, "word " * 20]])
    lines = plain(Document((table,), str, list), 40).splitlines()
    assert lines[3] == "n" * 30
    assert all(line.startswith("    word") for line in lines[4:])


def test_markdown_escapes_what_would_break_a_table() -> None:
    lines = markdown(DOCUMENT).splitlines()
    assert lines[0] == "**OK** Fine."
    assert "| b\\|ar | 0.0010 | 0% | warn |" in lines
    assert "| --- | ---: | ---: | --- |" in lines


def test_csv_and_json_lines_keep_full_precision_and_null() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(DOCUMENT))))
    assert rows[1] == {"name": NAMES[1], "value": "", "share": "1.0", "status": "critical"}
    assert [json.loads(line) for line in to_json_lines(DOCUMENT).splitlines()] == TABLE.records()


def test_no_records_is_an_empty_csv() -> None:
    assert to_csv(Document((), str, list)) == ""


def test_text_in_a_column_of_numbers_is_a_mistake() -> None:
    table = Table("", (Column("x", "x", "number"),), [["five"]])
    with pytest.raises(TypeError, match="'five' in a column of numbers"):
        plain(Document((table,), str, list))
