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
        ("a.jsonl", "[1, 2]\n", "row 0 is a JSON list, not an object"),
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


def test_a_log_is_plain_data() -> None:
    assert Log((), (), {}).notes == ()
