"""Which part of a dump a check reads: as the golden file was made, and said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from tests.cli.conftest import Outcome, table

Run = Callable[..., Outcome]
NAN = float("nan")


def equal(*log_probs: list[float], file: str = "equal.parquet") -> Path:
    """Rows on which trainer and engine agree bit for bit, a NaN of the trainer aside."""
    floats = pa.list_(pa.float32())
    columns = {
        "old_log_probs": pa.array(log_probs, floats),
        "rollout_log_probs": pa.array([[-0.5 if x != x else x for x in row] for row in log_probs], floats),
        "step": pa.array(range(len(log_probs)), pa.int32()),
    }
    pq.write_table(pa.table(columns), file)
    return Path(file)


def test_a_row_that_is_left_out_is_not_bitwise_equal(run: Run) -> None:
    """It was not compared: exit 2, in every output."""
    dump = equal([-1.0, -2.0], [-1.0, NAN], [-3.0])
    exports = ("--export", "junit=j.xml", "--export", "github=a.txt", "--export", "json=c.json")
    result = run("check", dump, "--expect-bitwise", "--on-fault", "drop", *exports)
    text = "bitwise equal: old_log_probs and rollout_log_probs on 3 tokens, but 1 faulty row left out, not compared"
    assert (result.code, result.out) == (2, f"UNMEASURED  {text}.\n")
    (case,) = ET.parse("j.xml").iter("testcase")
    assert case.find("error").get("message") == text
    assert Path("a.txt").read_text() == f"::error title=not compared bit for bit::{text}\n"
    tree = json.loads(Path("c.json").read_text())
    assert (tree["exit_code"], tree["bitwise"]["outcome"]) == (2, text)
    differs = run("check", dump, _unequal(), "--expect-bitwise", "--on-fault", "drop")
    assert differs.code == 1


def _unequal() -> Path:
    rows = pq.read_table("equal.parquet").slice(2)
    other = rows.set_column(0, "old_log_probs", pa.array([[-3.5]], pa.list_(pa.float32())))
    pq.write_table(other, "unequal.parquet")
    return Path("unequal.parquet")


@pytest.mark.parametrize(
    ("options", "tokens", "said"),
    [
        ((), "6 tokens", ""),
        (("--limit", "1"), "1 token", " (the first 1 row)"),
        (("--steps", "1:"), "5 tokens", " (steps from 1)"),
        (("--steps", "1:2"), "2 tokens", " (steps from 1 and before 2)"),
        (("--steps", ":2", "--limit", "9"), "3 tokens", " (steps before 2, the first 9 rows)"),
    ],
)
def test_what_was_compared_bit_for_bit_is_said(options: tuple[str, ...], tokens: str, said: str, run: Run) -> None:
    dump = equal([-1.0], [-1.0, -2.0], [-3.0, -0.5, -0.25])
    result = run("check", dump, "--expect-bitwise", *options)
    pair = "old_log_probs and rollout_log_probs"
    assert (result.code, result.out) == (0, f"OK  bitwise equal: {pair} on {tokens}{said}.\n")


def test_the_other_pair_is_named_too(run: Run, dump: Path) -> None:
    result = run("check", dump, "--expect-bitwise", "--mode", "bypass")
    assert (result.code, result.out.splitlines()[0]) == (
        1,
        "CRITICAL  not bitwise equal: log_probs and rollout_log_probs.",
    )


def faulty(folder: Path) -> Path:
    (folder / "faulty").mkdir()
    for step in range(3):
        rows = table(8, step=step, drift=0.05).to_pylist()
        rows[2]["old_log_probs"][0] = NAN
        pq.write_table(pa.Table.from_pylist(rows), folder / "faulty" / f"step_{step}.parquet")
    return folder / "faulty"


MADE = {
    "mode": ("bypass", "decoupled"),
    "steps": ("1:", "0:2"),
    "limit": ("13", "12"),
    "on-fault": ("drop", None),
}


def test_a_golden_file_is_held_against_what_it_was_made_of(run: Run, tmp_path: Path) -> None:
    """Without options; with others they are said first."""
    dump = faulty(tmp_path)
    options = [word for name, (value, _) in MADE.items() for word in (f"--{name}", value)]
    run("check", dump, "--golden", "g.json", "--update", *options)
    held = json.loads(Path("g.json").read_text())
    names = ("mode", "steps", "limit", "on_fault")
    assert [held["settings"][name] for name in names] == ["bypass", "1:", 13, "drop"]
    result = run("check", dump, "--golden", "g.json")
    assert result.code == 0
    (line,) = result.out.splitlines()
    assert line.startswith("OK  ")
    assert line.endswith("(steps from 1, the first 13 rows, 2 faulty rows left out).")
    assert "new" not in line
    assert run("check", dump, "--golden", "g.json", "--update").code == 0
    assert json.loads(Path("g.json").read_text()) == held
    for name, (value, other) in MADE.items():
        if other is not None:
            changed = run("check", dump, "--golden", "g.json", f"--{name}", other)
            was, now = (value, other) if value.isdecimal() else (repr(value), repr(other))
            assert f"WARN  {name} is {now}, in the golden file {was}\n" in changed.out
            assert changed.code in (1, 2)
    stopped = run("check", dump, "--golden", "g.json", "--on-fault", "stop")
    assert (stopped.code, "old_log_probs is NaN" in stopped.err) == (2, True)


def test_bitwise_agreement_is_held_on_the_same_rows(run: Run) -> None:
    dump = equal([-1.0], [-1.0, -2.0])
    run("check", dump, "--golden", "g.json", "--update", "--limit", "1")
    result = run("check", dump, "--golden", "g.json", "--expect-bitwise")
    assert result.code == 0
    assert "bitwise equal: old_log_probs and rollout_log_probs on 1 token (the first 1 row)." in result.out


def test_python_takes_them_from_the_file_too(dump: Path) -> None:
    ra.check(ra.open_dump(dump), "g.json", update=True, limit=9, steps=(0, 1))
    result = ra.check(ra.open_dump(dump), "g.json")
    assert (result.exit_code, result.notes, result.reading) == (0, [], "steps from 0 and before 1, the first 9 rows")
    assert ra.check(ra.open_dump(dump), "g.json", limit=8).notes == ["limit is 8, in the golden file 9"]


@pytest.mark.parametrize(("mode", "other"), [("decoupled", "bypass"), ("bypass", "decoupled")])
def test_a_dump_without_the_column_that_the_file_was_made_of(mode: str, other: str, run: Run, dump: Path) -> None:
    """Another pair of policies is not taken in its place unasked."""
    column = {"decoupled": "old_log_probs", "bypass": "log_probs"}[mode]
    run("check", dump, "--golden", "g.json", "--mode", mode, "--update")
    for file in dump.iterdir():
        pq.write_table(pq.read_table(file).drop_columns([column]), file.name)
    files = sorted(Path().glob("*.parquet"))
    result = run("check", *files, "--golden", "g.json")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert f"g.json: made of {column}, which this dump does not have; name the column with --map {column}" in result.err
    asked = run("check", *files, "--golden", "g.json", "--mode", other)
    assert f"WARN  mode is {other!r}, in the golden file {mode!r}" in asked.out


def test_rows_that_gates_did_not_see_are_said(run: Run, tmp_path: Path) -> None:
    result = run("check", faulty(tmp_path), "--fail-on", "kl_k3 > 9", "--on-fault", "drop")
    assert result.out.startswith("OK  1 gate passed (3 faulty rows left out).\n")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": "3"}, "damaged golden file, settings.steps: String should match pattern"),
        ({"limit": 0}, "damaged golden file, settings.limit: Input should be greater than or equal to 1"),
    ],
)
def test_what_cannot_have_been_written_there_is_refused(
    settings: dict[str, object], message: str, run: Run, dump: Path, golden: Path
) -> None:
    tree = json.loads(golden.read_text())
    golden.write_text(json.dumps(tree | {"settings": tree["settings"] | settings}))
    result = run("check", dump, "--golden", golden)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err
