"""Every fault of SPEC 2: kind, severity, file, row, position, count."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_audit.dumps import FaultLog, inspect_dump, open_dump
from rollout_audit.errors import DumpFaultError, NothingToAuditError

NAN, INF = math.nan, math.inf
R = [[-0.5, -0.7, -0.2], [], [-0.5, -0.7, -2.0, -3.0]]
ONES = [[1, 1, 1], [], [1, 1, 1, 1]]

# what, columns that differ from a sound dump, (kind, severity, row, position, count), a piece of the message
CASES: list[tuple[str, dict[str, Any], tuple[str, str, int, int | None, int], str]] = [
    (
        "nan",
        {"rollout_log_probs": [R[0], [], [-0.5, NAN, -2.0, NAN]]},
        ("nan", "error", 2, 1, 2),
        "rollout_log_probs is NaN under mask 1",
    ),
    ("inf", {"old_log_probs": [[-0.5, INF, -0.2], [], R[2]]}, ("infinite", "error", 0, 1, 1), "is inf"),
    ("-inf", {"old_log_probs": [[-0.5, -INF, -0.2], [], R[2]]}, ("infinite", "error", 0, 1, 1), "is -inf"),
    (
        "null element",
        {"rollout_log_probs": [[-0.5, -0.7, None], [], R[2]]},
        ("null", "error", 0, 2, 1),
        "rollout_log_probs is null under mask 1",
    ),
    (
        "null row",
        {"old_log_probs": [R[0], None, R[2]]},
        ("missing_row", "error", 1, None, 1),
        "old_log_probs has no list at all",
    ),
    (
        "null rollout row",
        {"rollout_log_probs": [None, [], R[2]]},
        ("missing_row", "error", 0, None, 1),
        "rollout_log_probs has no list at all",
    ),
    (
        "lengths",
        {"rollout_log_probs": [R[0], [], [*R[2], -0.1]]},
        ("length_mismatch", "error", 2, None, 1),
        "(rollout_log_probs 5, old_log_probs 4, response_mask 4)",
    ),
    (
        "above 0.5",
        {"old_log_probs": [R[0], [], [-0.5, 0.75, 3.0, -3.0]]},
        ("positive_log_prob", "error", 2, 1, 2),
        "old_log_probs is up to 3, above 0.5",
    ),
    (
        "sentinel +1",
        {"rollout_log_probs": [[-0.5, 1.0, 1.0], [], R[2]]},
        ("placeholder", "error", 0, 1, 2),
        "rollout_log_probs is the placeholder 1 under mask 1",
    ),
    (
        "artefact",
        {"old_log_probs": [[-0.5, -0.7, 0.03125], [], [-0.5, -0.7, -2.0, 0.5]]},
        ("slightly_positive", "warning", 0, 2, 2),
        "old_log_probs is up to 0.5, above 0 (a bf16 artefact?)",
    ),
    (
        "mask 2",
        {"response_mask": [[1, 1, 2], [], ONES[2]]},
        ("mask_value", "error", 0, 2, 1),
        "response_mask holds 2 where only 0 and 1 are allowed",
    ),
    (
        "mask 0.5",
        {"response_mask": pa.array([[1.0, 1.0, 1.0], [], [1.0, 0.5, 1.0, 0.0]])},
        ("mask_value", "error", 2, 1, 1),
        "response_mask holds 0.5 where",
    ),
    (
        "mask -1",
        {"response_mask": pa.array([[1, 1, 1], [], [1, 1, -1, -1]], pa.list_(pa.int8()))},
        ("mask_value", "error", 2, 2, 2),
        "response_mask holds -1 where",
    ),
    (
        "mask null",
        {"response_mask": [[1, None, 1], [], ONES[2]]},
        ("mask_value", "error", 0, 1, 1),
        "response_mask holds null where",
    ),
    (
        "-1 run",
        {
            "rollout_log_probs": [R[0], [], [-0.5, -1.0, -1.0, -1.0]],
            "old_log_probs": [R[0], [], [-0.5, -0.3, -2.0, -3.0]],
        },
        ("placeholder", "error", 2, 1, 3),
        "the placeholder -1",
    ),
    (
        "-1 alone at odds",
        {
            "rollout_log_probs": [R[0], [], [-0.51, -0.73, -1.0, -3.1]],
            "old_log_probs": [R[0], [], [-0.5, -0.7, -7.5, -3.0]],
        },
        ("placeholder", "error", 2, 2, 1),
        "the placeholder -1",
    ),
    (
        "0 run",
        {"rollout_log_probs": [R[0], [], [-0.5, -0.7, 0.0, 0.0]]},
        ("zero_placeholder", "error", 2, 2, 2),
        "rollout_log_probs is 0.0 in a run under mask 1 while old_log_probs is below -1",
    ),
    (
        "0 run, other side",
        {"old_log_probs": [R[0], [], [-0.5, -0.7, 0.0, 0.0]]},
        ("zero_placeholder", "error", 2, 2, 2),
        "old_log_probs is 0.0 in a run under mask 1 while rollout_log_probs is below -1",
    ),
    (
        "skipped forward: the whole row is 0",
        {
            "old_log_probs": [R[0], [], [0.0, 0.0, 0.0, 0.0]],
            "rollout_log_probs": [R[0], [], [-0.5, -2.7, -0.2, -3.0]],
        },
        ("constant_trainer", "error", 2, None, 1),
        "old_log_probs is 0.0 over the whole response while rollout_log_probs is not (no forward pass?)",
    ),
    (
        "skipped forward, no token below -1",
        {
            "old_log_probs": [R[0], [], [0.0, 0.0, 0.0, 0.0]],
            "rollout_log_probs": [R[0], [], [-0.5, -0.7, -0.2, -0.3]],
        },
        ("constant_trainer", "error", 2, None, 1),
        "old_log_probs is 0.0 over the whole response",
    ),
    (
        "the engine writes 0 for every token",
        {
            "rollout_log_probs": [R[0], [], [0.0, 0.0, 0.0, 0.0]],
            "old_log_probs": [R[0], [], [-0.01, -0.6, -0.02, -0.01]],
        },
        ("constant_rollout", "error", 2, None, 1),
        "rollout log-prob is 0.0 over the whole response while old_log_probs is not",
    ),
    (
        "the engine writes 0, far from the trainer",
        {
            "rollout_log_probs": [R[0], [], [0.0, -0.0, 0.0, 0.0]],
            "old_log_probs": [R[0], [], [-6.0, -2.0, -0.5, -7.0]],
        },
        ("constant_rollout", "error", 2, None, 1),
        "rollout log-prob is 0.0 over the whole response",
    ),
    (
        "token ids of another length",
        {"token_ids": [[1, 2, 3], [], [1, 2, 3, 4, 5]]},
        ("length_mismatch", "error", 2, None, 1),
        "(rollout_log_probs 4, old_log_probs 4, response_mask 4, token_ids 5)",
    ),
    (
        "advantages of another length",
        {"advantages": [[0.5, 0.5], [], [0.5] * 4]},
        ("length_mismatch", "error", 0, None, 1),
        "(rollout_log_probs 3, old_log_probs 3, response_mask 3, advantages 2)",
    ),
    (
        "mask of another length",
        {"response_mask": [[1, 1, 1], [1], [1] * 4]},
        ("length_mismatch", "error", 1, None, 1),
        "(rollout_log_probs 0, old_log_probs 0, response_mask 1)",
    ),
    *(
        (
            f"placeholder {value:g}",
            {"old_log_probs": [R[0], [], [-0.5, value, -2.0, -3.0]]},
            ("placeholder", "error", 2, 1, 1),
            f"the placeholder {value:.9g}" if abs(value) < 1e6 else "the placeholder -1e+",
        )
        for value in (-9999.0, -99999.0, -1e9, -1e10)
    ),
]


def _sound() -> dict[str, Any]:
    return {"rollout_log_probs": R, "old_log_probs": R, "response_mask": ONES}


@pytest.mark.parametrize(("changes", "expected", "text"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_fault_is_found_with_its_place(write: Any, changes: Any, expected: Any, text: str) -> None:
    dump = open_dump(write(**(_sound() | changes)))
    (finding,) = inspect_dump(dump).findings
    got = (finding.kind, finding.severity, finding.row, finding.position, finding.count)
    assert got == expected
    assert finding.file == "dump.parquet"
    assert text in finding.message
    if finding.severity == "warning":
        assert sum(chunk.rows for chunk in dump.chunks()) == 3
        return
    with pytest.raises(DumpFaultError) as raised:
        list(dump.chunks())
    assert "\n" not in str(raised.value)
    assert text in str(raised.value)
    log = FaultLog()
    rows = [row.row for row in dump.rows(on_fault="drop")]
    assert sum(chunk.rows for chunk in dump.chunks(on_fault="drop", log=log)) == len(rows)
    assert {dropped.row for dropped in log.dropped} == {0, 1, 2} - set(rows)
    assert expected[2] not in rows


@pytest.mark.parametrize("element", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("value", [-9999.0, -1e9, -1.0])
def test_placeholders_in_every_precision(write: Any, element: Any, value: float) -> None:
    lists = pa.array([[-0.5, -0.7, value, value, value]], pa.list_(element))
    path = write(rollout_log_probs=lists, old_log_probs=[[-0.5, -0.7, -2.0, -3.0, -4.0]], response_mask=[[1] * 5])
    errors = [f for f in inspect_dump(open_dump(path)).findings if f.severity == "error"]
    assert [(f.kind, f.row, f.position, f.count) for f in errors] == [
        ("infinite" if value == -1e9 and element == pa.float16() else "placeholder", 0, 2, 3)
    ]


SOUND: dict[str, dict[str, Any]] = {
    "everything under mask 0": {
        "rollout_log_probs": [[-0.5, NAN, None, 1e10, -1e10, 0.0, 0.0]],
        "old_log_probs": [[-0.5, -1.0, -9999.0, -INF, 3.0, -6.0, -8.0]],
        "response_mask": [[1, 0, 0, 0, 0, 0, 0]],
    },
    "genuine zeros": {
        "rollout_log_probs": [[0.0, 0.0, 0.0, -0.2]],
        "old_log_probs": [[-1e-6, -0.14, -0.9, -0.2]],
        "response_mask": [[1, 1, 1, 1]],
    },
    "a lone zero at odds (an appended EOS)": {
        "rollout_log_probs": [[-0.1, 0.0]],
        "old_log_probs": [[-0.1, -4.6]],
        "response_mask": [[1, 1]],
    },
    "genuine -1 in both": {
        "rollout_log_probs": [[-1.0, -1.0, -0.3]],
        "old_log_probs": [[-1.0, -1.03125, -0.3]],
        "response_mask": [[1, 1, 1]],
    },
    "two tokens that are -1 (case 1)": {
        "rollout_log_probs": [[-1.0, -1.0], [-1.0, -1.0]],
        "old_log_probs": [[-2.0, -2.0], [-2.0, -2.0]],
        "response_mask": [[1, 1], [1, 1]],
    },
    "0 over a whole response that both sides are sure of": {
        "rollout_log_probs": [[0.0] * 4, [0.0] * 4, [0.0] * 3, [0.0] * 5],
        "old_log_probs": [[-0.09] * 4, [-0.15, 0.0, 0.0, 0.0], [-0.9] * 3, [-0.9] * 5],
        "response_mask": [[1] * 4, [1] * 4, [1] * 3, [1, 1, 1, 0, 0]],
    },
    "zeros across a row boundary": {
        "rollout_log_probs": [[-0.1, 0.0], [0.0, -0.1]],
        "old_log_probs": [[-0.1, -2.0], [-2.0, -0.1]],
        "response_mask": [[1, 1], [1, 1]],
    },
    "half precision with a far token": {
        "rollout_log_probs": [[-1.0, -0.5, -0.25]],
        "old_log_probs": [[-9.0, -0.5, -0.25]],
        "response_mask": [[1, 1, 1]],
    },
}


@pytest.mark.parametrize("columns", SOUND.values(), ids=SOUND.keys())
def test_sound_values_are_not_flagged(write: Any, columns: Any) -> None:
    assert inspect_dump(open_dump(write(**columns))).findings == ()


def test_nothing_warns_on_the_way(write: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inspect_dump(open_dump(write(**SOUND["everything under mask 0"])))


def test_absent_mask_is_said_once_and_constant_tails_are_warned_of(write: Any, tmp_path: Path) -> None:
    padded = [[-0.5, -0.7, 0.0, 0.0, 0.0], [-0.5, -0.1, -0.2, -0.3, 0.0], [-0.1, -0.2, -0.4, 0.0, 0.0]]
    for step in (1, 2):
        write(f"step_{step}.parquet", rollout_log_probs=padded, old_log_probs=padded)
    findings = inspect_dump(open_dump(tmp_path)).findings
    assert [(f.kind, f.severity, f.file, f.row, f.count) for f in findings] == [
        ("constant_tail", "warning", "step_1.parquet", 0, 2),
        ("constant_tail", "warning", "step_2.parquet", 0, 2),
        ("no_mask", "info", "step_1.parquet", None, 2),
    ]


def test_null_mask_row_counts_as_all_ones(write: Any) -> None:
    path = write(**(_sound() | {"response_mask": [None, [], [0, 0, 1, 1]]}))
    log = FaultLog()
    (chunk,) = open_dump(path).chunks(log=log)
    assert chunk.response_mask.tolist() == [True] * 3 + [False, False, True, True]
    (finding,) = log.findings(["dump.parquet"])
    assert (finding.kind, finding.severity, finding.row, finding.count) == ("mask_missing", "info", 0, 1)


def test_file_without_valid_tokens_is_a_warning(write: Any, tmp_path: Path) -> None:
    write("step_1.parquet", **_sound())
    write("step_2.parquet", **(_sound() | {"response_mask": [[0] * 3, [], [0] * 4]}))
    log = FaultLog()
    list(open_dump(tmp_path).chunks(log=log))
    (finding,) = log.findings(["step_1.parquet", "step_2.parquet"])
    assert (finding.kind, finding.severity, finding.file, finding.count) == (
        "no_valid_token",
        "warning",
        "step_2.parquet",
        3,
    )


def test_no_valid_token_in_the_whole_dump(write: Any) -> None:
    dump = open_dump(write(**(_sound() | {"response_mask": [[0] * 3, [], [0] * 4]})))
    with pytest.raises(NothingToAuditError, match=r"^dump.parquet: no valid token in 3 rows, nothing to audit; is"):
        list(dump.chunks())
    assert inspect_dump(dump).findings[0].kind == "nothing_to_audit"


def test_nothing_left_after_dropping(write: Any) -> None:
    bad = [[NAN, -0.7, -0.2], [], [NAN, -0.7, -2.0, -3.0]]
    dump = open_dump(write(**(_sound() | {"old_log_probs": bad})))
    with pytest.raises(NothingToAuditError, match="no valid token in 3 rows with 2 faulty rows left out"):
        list(dump.chunks(on_fault="drop"))


def test_zero_rows(write: Any) -> None:
    dump = open_dump(write(rollout_log_probs=[], old_log_probs=[], response_mask=[]))
    with pytest.raises(NothingToAuditError, match=r"^dump.parquet: zero rows, nothing to audit; name a dump"):
        list(dump.chunks())
    assert [f.kind for f in inspect_dump(dump).findings] == ["nothing_to_audit"]


def test_dropped_rows_are_named_and_the_rest_is_untouched(write: Any) -> None:
    bad = [[-0.5, NAN, -0.2], [], [-0.5, -0.7, -2.0, -3.0]]
    path = write(**(_sound() | {"rollout_log_probs": bad, "uid": ["a", "b", "c"], "reward": [1.0, None, 0.5]}))
    log = FaultLog()
    (chunk,) = open_dump(path).chunks(on_fault="drop", log=log)
    assert [(d.file, d.row, d.uid, d.kind) for d in log.dropped] == [("dump.parquet", 0, "a", "nan")]
    assert chunk.row_numbers.tolist() == [1, 2]
    assert chunk.offsets.tolist() == [0, 0, 4]
    assert chunk.uids == ("b", "c")
    np.testing.assert_array_equal(chunk.reward, [NAN, 0.5])
    np.testing.assert_array_equal(chunk.rollout_log_probs, np.float32(bad[2]))
    assert (log.rows, log.valid, log.kept) == ({"dump.parquet": 3}, {"dump.parquet": 7}, {"dump.parquet": 4})


def test_refusal_is_one_line_that_says_what_to_do(write: Any) -> None:
    bad = [[-0.5, NAN, NAN], [], [1.0, -0.7, -2.0, -3.0]]
    with pytest.raises(DumpFaultError) as raised:
        list(open_dump(write(**(_sound() | {"rollout_log_probs": bad}))).chunks())
    assert str(raised.value) == (
        "dump.parquet, row 0, position 1: rollout_log_probs is NaN under mask 1 (and 2 more so far); "
        "likely cause: broken_rows; run `rollout-audit inspect` to see all, "
        "or --on-fault drop to leave 2 sequences out so far"
    )


def test_faults_do_not_depend_on_chunking_or_merging(write: Any) -> None:
    rng = np.random.default_rng(0)
    rows = [list(-rng.exponential(1, 9)) for _ in range(60)]
    for row in rng.integers(0, 60, 25):
        rows[row][int(rng.integers(0, 9))] = NAN
    columns = {"rollout_log_probs": rows, "old_log_probs": rows, "response_mask": [[1] * 9] * 60}
    dump = open_dump(write(row_group_size=16, **columns))
    whole, merged = FaultLog(), FaultLog()
    list(dump.chunks(on_fault="drop", log=whole))
    for part in reversed(dump.parts()):
        log = FaultLog()
        list(dump.chunks(on_fault="drop", log=log, parts=[part], chunk_tokens=20))
        merged.merge(log)
    assert merged.findings(["dump.parquet"]) == whole.findings(["dump.parquet"])
    assert sorted(merged.dropped) == sorted(whole.dropped)
    assert merged.kept == whole.kept


def test_third_column_is_checked_too(write: Any) -> None:
    (finding,) = inspect_dump(open_dump(write(**_sound(), log_probs=[[-0.5, -0.7, NAN], [], R[2]]))).findings
    assert (finding.kind, finding.message) == ("nan", "log_probs is NaN under mask 1")


def test_duplicate_uid_is_an_info(write: Any) -> None:
    (finding,) = inspect_dump(open_dump(write(**_sound(), uid=["a", "b", "a"]))).findings
    assert (finding.kind, finding.severity, finding.row, finding.count) == ("duplicate_uid", "info", 2, 1)


def test_lengths_are_checked_of_what_is_read(write: Any) -> None:
    two = [[-0.5, -0.7]]
    path = write(rollout_log_probs=two, old_log_probs=two, response_mask=[[1, 1]], advantages=[[0.1, 0.2, 0.3]])
    dump = open_dump(path)
    assert [chunk.tokens for chunk in dump.chunks(fields=["reward"])] == [2]
    with pytest.raises(DumpFaultError, match=r"row 0: lists of one row differ in length .*advantages 3\)"):
        list(dump.chunks(fields=["advantages"]))


def test_more_ids_than_log_probs_stop_an_audit_that_has_no_use_for_ids(write: Any) -> None:
    """Case 50: one more in every row, on which both sides agree among themselves."""
    two = [[-0.5, -0.7]]
    dump = open_dump(write(rollout_log_probs=two, old_log_probs=two, token_ids=[[1, 2, 3]]))
    with pytest.raises(DumpFaultError, match=r"rollout_log_probs 2, old_log_probs 2, token_ids 3\)"):
        list(dump.chunks(fields=["reward"]))


def test_null_row_empty_list_and_null_element_are_three_things(write: Any) -> None:
    """Case 68."""
    path = write(
        rollout_log_probs=[[-0.1, None, -0.3], None, []],
        old_log_probs=[[-0.1, -0.2, -0.3], [-0.5], []],
        response_mask=[[1, 1, 1], [1], []],
    )
    inspection = inspect_dump(open_dump(path))
    assert [(f.kind, f.row, f.position, f.count) for f in inspection.findings] == [
        ("null", 0, 1, 1),
        ("missing_row", 1, None, 1),
    ]
    assert inspection.empty_rows == 2  # the null row has no token either


def test_constant_rows_of_a_packed_chunk(write: Any) -> None:
    """Rows with masked ends, empty rows between, counts of rows."""
    zeros, far = [[0.0] * 6, [], [0.0] * 6, [-0.5] * 6], [[-0.9] * 6, [], [-0.9] * 6, [-0.5] * 6]
    path = write(rollout_log_probs=zeros, old_log_probs=far, response_mask=[[0, 1, 1, 1, 1, 0], [], [1] * 6, [1] * 6])
    (finding,) = inspect_dump(open_dump(path)).findings
    assert (finding.kind, finding.row, finding.count) == ("constant_rollout", 0, 2)


def test_a_file_that_stands_there_twice_is_said(tmp_path) -> None:
    """As .pt and .safetensors of one batch do, or a copy: every figure would count it double."""
    table = pa.table({"uid": ["a", "b"], "rollout_log_probs": [[-1.0], [-2.0]], "old_log_probs": [[-1.1], [-2.1]]})
    for name in ("step_1_a.parquet", "step_1_b.parquet"):
        pq.write_table(table.append_column("step", pa.array([1, 1])), tmp_path / name)
    found = {f.kind: f for f in inspect_dump(open_dump(tmp_path)).findings}
    assert found["repeated_file"].severity == "warning"
    assert (found["repeated_file"].file, found["repeated_file"].count) == ("step_1_b.parquet", 2)


def test_two_runs_that_number_their_rows_alike_are_no_batch_twice(tmp_path) -> None:
    """Uids and steps agree, lengths do not."""
    for name, length in (("run_1/step_0.parquet", 1), ("run_2/step_0.parquet", 2)):
        (tmp_path / name).parent.mkdir()
        lists = [[-1.0] * length, [-2.0] * length]
        table = pa.table({"uid": ["0", "1"], "rollout_log_probs": lists, "old_log_probs": lists})
        pq.write_table(table, tmp_path / name)
    found = [f.kind for f in inspect_dump(open_dump(tmp_path)).findings]
    assert "repeated_file" not in found
    assert "duplicate_uid" in found


@pytest.mark.parametrize(
    ("places", "other", "faulty"),
    [
        ((1, 4, 9), -0.125, True),  # three of a row, nowhere two together
        ((1, 9), -0.125, False),  # two may be real
        ((1, 4, 9), -0.75, False),  # near the other side
        ((1, 4, 9), -40.0, False),  # ratios beyond the clamp
    ],
)
def test_minus_ones_here_and_there_in_a_row(write: Any, places: tuple[int, ...], other: float, *, faulty: bool) -> None:
    rollout, trainer = ([-0.1 - 0.01 * i + shift for i in range(12)] for shift in (0.0, -0.003))
    for place in places:
        rollout[place], trainer[place] = -1.0, other
    path = write(rollout_log_probs=[rollout], old_log_probs=[trainer])
    found = [
        (f.kind, f.row, f.position, f.count) for f in inspect_dump(open_dump(path)).findings if f.kind != "no_mask"
    ]
    assert found == ([("placeholder", 0, places[0], len(places))] if faulty else [])
