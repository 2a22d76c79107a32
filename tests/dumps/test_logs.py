"""Logs in the shapes that W&B, TensorBoard and trainers export."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_audit.dumps.logs import Log, read_log
from rollout_audit.errors import DumpNotFoundError, UnreadableFileError

SERIES = {"actor/kl": {1: 0.5, 2: 0.25}, "loss": {2: 3.0}}


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def wandb_history_csv(folder: Path) -> Path:
    return put(folder / "h.csv", '"_step","_timestamp","actor/kl","loss"\n1,,0.5,\n"2",,"0.25",NaN\n2,,,3\n')


def wandb_history_jsonl(folder: Path) -> Path:
    rows = [{"_step": 7, "train/global_step": 1, "actor": {"kl": 0.5}}, {"train/global_step": 2, "actor/kl": 0.25}]
    rows += [{"train/global_step": 2, "loss": 3, "flag": True, "text": "x", "none": None, "table": {"_type": "t"}}]
    return put(folder / "h.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")


def wandb_history_parquet(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    columns = {"_step": [1, 2], "actor": [{"kl": 0.5}, {"kl": 0.25}], "loss": [float("nan"), 3.0]}
    pq.write_table(pa.table(columns), folder / "h.parquet")
    return folder / "h.parquet"


def wandb_chart_csv(folder: Path) -> Path:
    head = '"Step","a - b - actor/kl","a - b - actor/kl__MIN","a - b - actor/kl__MAX","a - b - loss"\n'
    return put(folder / "chart.csv", head + '"1","0.5","0.5","0.5",""\n"2","0.25","0.25","0.25","3"\n')


def tensorboard_long_csv(folder: Path) -> Path:
    return put(folder / "t.csv", "run,tag,step,wall_time,value\nr,actor/kl,1,9,0.5\nr,actor/kl,2,9,.25\nr,loss,2,9,3\n")


def trainer_jsonl(folder: Path) -> Path:
    rows = [{"step": 1, "actor": {"kl": 0.5}}, {"step": 2.0, "actor/kl": 0.25, "loss": 3}]
    return put(folder / "t.ndjson", "\n".join(map(json.dumps, rows)))


def trainer_state(folder: Path) -> Path:
    rows = [{"step": 1, "actor/kl": 0.5}, {"step": 2, "actor/kl": 0.25, "loss": 3}]
    return put(folder / "trainer_state.json", json.dumps({"epoch": 1, "log_history": rows}))


@pytest.mark.parametrize(
    ("make", "step_key"),
    [
        (wandb_history_csv, "_step"),
        (wandb_history_jsonl, "train/global_step"),
        (wandb_history_parquet, "_step"),
        (wandb_chart_csv, "Step"),
        (tensorboard_long_csv, "step"),
        (trainer_jsonl, "step"),
        (trainer_state, "step"),
    ],
)
def test_each_shape_gives_the_same_series(make, step_key: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    log = read_log(make(tmp_path))
    assert {key: values for key, values in log.series.items() if not key.startswith("_")} == SERIES
    assert (log.step_keys, log.of_file_names, log.notes) == ((step_key,), frozenset(), ())


def test_tensorboard_files_of_one_tag(tmp_path: Path) -> None:
    put(tmp_path / "run-r_1-tag-actor_kl.csv", "Wall time,Step,Value\n9.5,1,0.5\n9.6,2,0.25\n")
    put(tmp_path / "sub" / "loss.json", "[[9.5, 2, 3.0]]")
    log = read_log(tmp_path)
    assert log.series == {"actor_kl": {1: 0.5, 2: 0.25}, "loss": {2: 3.0}}
    assert log.of_file_names == {"actor_kl", "loss"}
    assert log.files == ("run-r_1-tag-actor_kl.csv", "loss.json")


def test_a_second_download_of_a_tag_is_that_tag(tmp_path: Path) -> None:
    put(tmp_path / "run-x-tag-rollout_corr_kl (1).csv", "Wall time,Step,Value\n9.5,1,0.5\n")
    assert read_log(tmp_path).series == {"rollout_corr_kl": {1: 0.5}}


def test_nan_in_json_was_logged_and_the_last_of_two_counts(tmp_path: Path) -> None:
    lines = '{"step": 1, "a": NaN}\n{"step": 2, "a": "Infinity"}\n{"step": 2, "a": 4}\n{"step": 2.5, "a": 1}\n{"a": 1}'
    log = read_log(put(tmp_path / "l.jsonl", lines))
    assert repr(log.series) == "{'a': {1: nan, 2: 4.0}}"
    assert log.notes == (
        "rows of the log without a whole number for their step, left out: 2",
        "values logged again at the same step, of which the last counts: 1",
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "epoch,loss\n1,2\n", "no step in it; one of global_step"),
        ("a.csv", "step,loss\n1,\n", "no number at any step"),
        ("a.csv", "Step,r - loss,s - loss\n1,2,3\n", r"holds 2 runs \(r, s\); export one"),
        ("a.csv", "run,tag,step,value\nr,a,1,2\ns,a,1,2\n", r"holds 2 runs \(r, s\)"),
        ("a.jsonl", "[1, 2]\n", "line 1: a JSON list, not an object"),
        ("a.jsonl", '{"step": 1\n', "cannot be read as .jsonl"),
        ("a.json", "3", "a JSON int, not a list of rows"),
        ("a.parquet", "no parquet", "cannot be read as .parquet"),
        ("a.txt", "step 1", "of no known kind; give .jsonl"),
    ],
)
def test_what_is_no_log_is_one_line(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match=message) as error:
        read_log(put(tmp_path / name, text))
    assert "\n" not in str(error.value)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DumpNotFoundError, match="no such file"):
        read_log(tmp_path / "none.csv")
    with pytest.raises(DumpNotFoundError, match=r"holds none of \.jsonl"):
        read_log(tmp_path)


UNFINISHED = "unfinished, left out: the run still writes it or was killed"
ROWS = '{"step": 1, "a": 0.5}\n\n{"step": 2, "a": "ü"}\n'


@pytest.mark.parametrize("cut", ['{"step": 3', '{"step": 3, "a": "b', '{"step": 3, "a": {"b": 1}', "{", '{"step": 3\n'])
def test_a_line_that_is_still_being_written_is_left_out_and_said(cut: str, tmp_path: Path) -> None:
    log = read_log(put(tmp_path / "l.jsonl", ROWS + cut))
    assert log.series == {"a": {1: 0.5}}
    assert log.notes == (f"l.jsonl, line 4: {UNFINISHED}",)


def test_a_character_that_is_cut_in_two_is_of_the_last_line_alone(tmp_path: Path) -> None:
    rows = ROWS.encode() + '{"step": 3, "a": "ü'.encode()[:-1]
    (tmp_path / "l.jsonl").write_bytes(rows)
    assert read_log(tmp_path / "l.jsonl").notes == (f"l.jsonl, line 4: {UNFINISHED}",)
    (tmp_path / "l.csv").write_bytes(b"step,a,b\n1,2,x\n2,3," + "ü".encode()[:-1])
    assert read_log(tmp_path / "l.csv").series == {"a": {1: 2.0, 2: 3.0}}
    (tmp_path / "l.jsonl").write_bytes(rows + b"\n" + ROWS.encode())
    with pytest.raises(UnreadableFileError, match="line 4: not text: no UTF-8 at byte 18"):
        read_log(tmp_path / "l.jsonl")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "l.jsonl",
            ROWS + '{"step": 3\n{"step": 4, "a": 1}\n',
            "line 4: not JSON: Expecting ',' delimiter at column 11",
        ),
        ("l.jsonl", ROWS + "killed\n", "line 4: not JSON: Expecting value at column 1"),
        ("l.jsonl", ROWS + "[" * 100_000 + "\n", "lists in lists too deep to read"),
        ("l.json", "[" * 100_000, "lists in lists too deep to read"),
        ("l.jsonl", '{"step": 1, "a": 1, "a": 2}', "line 1: key 'a' stands there twice, as 1 and 2"),
        ("l.json", '[{"step": 1},\n {"step" 2}]', "line 2: Expecting ':' delimiter at column 10"),
        ("l.json", '[{"step": 1},\n {"step": 2', "no number at any step"),
        ("l.json", '[{"step"', "line 1: Expecting ':' delimiter at column 9"),
        ("l.json", '[{"step": 1}, 2]', "row 1: a JSON int, not an object"),
        ("l.csv", "step,a,b\n1,2,3\n2,3\n3,4,5\n", "line 3: 2 cells under 3 columns"),
        ("l.csv", "step,a\n1,2\n2,3,4\n", "line 3: 3 cells under 2 columns"),
        ("l.csv", 'step,a\n1,2\n"2,3\n3,4\n', "line 3: unexpected end of data"),
        ("l.csv", "step,a,a\n1,2,3\n", "column 'a' stands there twice"),
    ],
)
def test_a_broken_line_before_the_last_is_an_error_with_its_number(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnreadableFileError) as error:
        read_log(put(tmp_path / name, text))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[{"step": 1, "a": 2.0},\n{"step": 2, "a": 3.0},\n{"step": 3, "a', 3),
        ('[{"step": 1, "a": 2.0},\n{"step": 2, "a": 3.0}', 2),
        ('{"best": {"x": [1]},\n"log_history": [{"step": 1, "a": 2.0},\n{"step": 2, "a": 3.0},\n{"step": 3, ', 4),
        ('{"log_history": [{"step": 1, "a": 2.0}, {"step": 2, "a": 3.0}],\n"epoch": ', 2),
    ],
)
def test_a_list_that_breaks_off_has_its_whole_rows(text: str, line: int, tmp_path: Path) -> None:
    log = read_log(put(tmp_path / "l.json", text))
    assert log.series == {"a": {1: 2.0, 2: 3.0}}
    assert log.notes == (f"l.json, line {line}: {UNFINISHED}",)


@pytest.mark.parametrize(
    ("text", "series", "notes"),
    [
        ("step,a,b\n1,2,3\n2,3", {"a": {1: 2.0}, "b": {1: 3.0}}, (f"l.csv, line 3: {UNFINISHED}",)),
        ('step,a\n1,2\n"2","3', {"a": {1: 2.0}}, (f"l.csv, line 3: {UNFINISHED}",)),
        ('step,a\r\n1,"x\r\ny"\r\n2,', {}, ()),
        ('step,a\n1,2\n"2","3"', {"a": {1: 2.0, 2: 3.0}}, ()),
        (
            "step,a\n1,2\n2,3",
            {"a": {1: 2.0, 2: 3.0}},
            ("l.csv, line 3: no line break ends it, so its last value may be cut short",),
        ),
        ("step;a\n1;2\n", {"a": {1: 2.0}}, ()),
        ("step\ta\n1\t2\n", {"a": {1: 2.0}}, ()),
    ],
)
def test_the_last_row_of_a_table(text: str, series: dict[str, object], notes: tuple[str, ...], tmp_path: Path) -> None:
    put(tmp_path / "l.csv", text)
    if not series:
        with pytest.raises(UnreadableFileError, match="no number at any step"):
            read_log(tmp_path / "l.csv")
        return
    log = read_log(tmp_path / "l.csv")
    assert (log.series, log.notes) == (series, notes)


def test_a_value_logged_again_unchanged_is_no_news(tmp_path: Path) -> None:
    assert read_log(put(tmp_path / "l.csv", "step,a\n1,2\n1,2.0\n")).notes == ()


def test_ms_swift_counts_steps_of_all(tmp_path: Path) -> None:
    rows = '{"a": 1, "global_step/max_steps": "3/20"}\n{"a": 2, "global_step/max_steps": "4/20"}\n'
    log = read_log(put(tmp_path / "logging.jsonl", rows))
    assert (log.series["a"], log.step_keys) == ({3: 1.0, 4: 2.0}, ("global_step/max_steps",))


def test_wandb_writes_nested_dicts_with_dots(tmp_path: Path) -> None:
    rows = '{"_step": 9, "train.global_step": 1, "actor.kl": 0.5}\n'
    log = read_log(put(tmp_path / "l.jsonl", rows))
    assert (log.series, log.step_keys) == ({"actor.kl": {1: 0.5}}, ("train.global_step",))


def test_utf_16_of_a_windows_shell(tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").write_bytes(ROWS.encode("utf-16"))
    (tmp_path / "l.csv").write_bytes("step,a\r\n1,0.5\r\n".encode("utf-16"))
    for name in ("l.jsonl", "l.csv"):
        assert read_log(tmp_path / name).series == {"a": {1: 0.5}}


EVENTS = [
    bytes.fromhex(record)
    for record in (
        "4800000000000000fe92489d096ba047893bc3da411a0d627261696e2e4576656e743a32522e0a2c74656e736f72626f6172642e73756d6d"
        "6172792e7772697465722e6576656e745f66696c655f77726974657299f3dd2b",
        "1e00000000000000d9dc123209d0a747893bc3da412a130a110a0a747261696e2f6c6f73731500000000ff66090b",
        "2e00000000000000c5cb57fa0976a847893bc3da412a230a210a086163746f722f6b6c420808012a04000040c04a0b0a090a077363616c61"
        "727364cd2d34",
        "2c00000000000000f4aecc4509dba847893bc3da412a210a1f0a026464420c080232089a9999999999b93f4a0b0a090a077363616c617273"
        "44c8de3b",
        "200000000000000029eda950091ca947893bc3da4110012a130a110a0a747261696e2f6c6f7373150000c03f6896d583",
    )
]
"""Of torch's SummaryWriter: the version; train/loss 0.0; actor/kl −3.0, a tensor; dd 0.1, float64; train/loss 1.5"""


def test_an_event_file_of_tensorboard(tmp_path: Path) -> None:
    file = tmp_path / "events.out.tfevents.1796009509.vm.9872.0"
    file.write_bytes(b"".join(EVENTS))
    for log in (read_log(file), read_log(tmp_path)):
        assert log.series == {"train/loss": {0: 0.0, 1: 1.5}, "actor/kl": {0: -3.0}, "dd": {0: 0.1}}
        assert (log.step_keys, log.notes) == (("step",), ())


@pytest.mark.parametrize("left", [1, 11, 20, 47])
def test_the_last_event_may_be_cut_off(left: int, tmp_path: Path) -> None:
    file = tmp_path / "events.out.tfevents.1"
    file.write_bytes(b"".join(EVENTS)[:256] + EVENTS[4][:left])
    log = read_log(file)
    assert log.series == {"train/loss": {0: 0.0}, "actor/kl": {0: -3.0}, "dd": {0: 0.1}}
    assert log.notes == (f"events.out.tfevents.1, byte 256: {UNFINISHED}",)


def test_a_damaged_event_is_an_error(tmp_path: Path) -> None:
    data = bytearray(b"".join(EVENTS))
    data[88 + 36] ^= 1
    (tmp_path / "tfevents").write_bytes(data)
    with pytest.raises(UnreadableFileError, match=r"an event file .*at byte 88 is damaged: its checksum"):
        read_log(tmp_path / "tfevents")
    (tmp_path / "tfevents").write_bytes(b"step,a\n1,2\n2,3\n")
    with pytest.raises(UnreadableFileError, match="the record at byte 0 is damaged"):
        read_log(tmp_path / "tfevents")


def test_event_files_of_two_runs(tmp_path: Path) -> None:
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "events.out.tfevents.1").write_bytes(b"".join(EVENTS))
    with pytest.raises(UnreadableFileError, match=r"holds 2 runs \(a, b\); export one"):
        read_log(tmp_path)


def test_a_folder_may_hold_other_things(tmp_path: Path) -> None:
    trainer_state(tmp_path)
    put(tmp_path / "config.json", '{"hidden_size": 64}')
    put(tmp_path / "tokenizer.json", '{"model": {"vocab": {"a": 1}}}')
    log = read_log(tmp_path)
    assert (log.series, log.files) == (SERIES, ("trainer_state.json",))
    assert log.notes == ("files of the folder without a step, left out: config.json, tokenizer.json",)
    with pytest.raises(UnreadableFileError, match=r"config\.json: no step in it"):
        read_log([tmp_path / "trainer_state.json", tmp_path / "config.json"])
    (tmp_path / "trainer_state.json").unlink()
    with pytest.raises(UnreadableFileError, match=r"config\.json: no step in it"):
        read_log(tmp_path)


def test_a_log_is_plain_data() -> None:
    assert Log((), (), {}).notes == ()
