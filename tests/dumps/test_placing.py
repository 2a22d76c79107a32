"""Writers of one folder: no row is lost, and none of another recording stays among those of a step."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import rollout_audit as ra

if TYPE_CHECKING:
    from collections.abc import Callable

Recorded = list[tuple[int, str]]
REPLACED = "was recorded before this writer was made"
BESIDE = "is recorded by another writer too"
pytestmark = pytest.mark.filterwarnings("ignore:rollout-audit:RuntimeWarning")


def batch(name: str, step: int = 7) -> dict[str, Any]:
    return {"step": step, "rollout_log_probs": [[-0.5]], "old_log_probs": [[-0.25]], "uid": [name]}


def read(folder: Path) -> Recorded:
    """(step, uid) of all rows that a reader finds."""
    return sorted((row.step, str(row.uid)) for row in ra.open_dump(folder).rows())


def table(path: Path) -> Any:
    return pq.read_table(BytesIO(path.read_bytes()))


def kept_aside(folder: Path) -> list[str]:
    """uids of all rows that were set aside."""
    files = [path for path in folder.iterdir() if ".replaced" in path.name]
    return sorted(uid for path in files for uid in table(path)["uid"].to_pylist())


def record(folder: Path, *names: str, step: int = 7, **options: Any) -> ra.DumpWriter:
    writer = ra.DumpWriter(folder, on_error="raise", **options)
    for name in names:
        writer.write(**batch(name, step))
    return writer


def said(caught: pytest.WarningsRecorder) -> list[str]:
    return [str(warning.message) for warning in caught]


def in_another_process(target: Callable[..., object], *args: Any) -> None:
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)
    process.start()
    process.join()
    assert process.exitcode == 0


def _die_at_step_8(folder: Path) -> None:
    writer = record(folder, "a", "b")
    writer.write(**batch("c", step=8))
    os._exit(0)


def test_a_run_that_goes_on_after_a_crash_writes_its_steps_anew(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    in_another_process(_die_at_step_8, tmp_path)
    record(tmp_path, "d")
    assert read(tmp_path) == [(7, "d"), (8, "c")]
    assert kept_aside(tmp_path) == ["a", "b"]
    assert said(recwarn) == [
        f"rollout-audit: step 7 of rank 0 {REPLACED}: 2 files set aside as *.replaced, which is not read (said once)"
    ]
    assert recwarn.list[0].filename == __file__


@pytest.mark.parametrize("closed", [True, False])
def test_a_run_begun_again_in_one_process_does_not_mix_with_the_first(closed: bool, tmp_path: Path) -> None:
    first = record(tmp_path, "a", "b", "c")
    first.write(**batch("d", step=8))
    if closed:
        first.__exit__(None, None, None)
    second = record(tmp_path, "e", "f")
    second.write(**batch("g", step=8))
    assert read(tmp_path) == [(7, "e"), (7, "f"), (8, "g")]
    assert kept_aside(tmp_path) == ["a", "b", "c", "d"]


def test_begun_again_a_second_time(tmp_path: Path) -> None:
    for name in "abc":
        record(tmp_path, name)
    assert read(tmp_path) == [(7, "c")]
    assert kept_aside(tmp_path) == ["a", "b"]


def test_it_is_said_once_for_all_steps(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    for name in "ab":
        writer = ra.DumpWriter(tmp_path)
        for step in range(3):
            writer.write(**batch(name, step))
    assert read(tmp_path) == [(0, "b"), (1, "b"), (2, "b")]
    assert len(said(recwarn)) == 1


def test_writers_at_once_keep_all_rows_and_it_is_said(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Both were made before either wrote: ranks that were not told apart, or one writer too many."""
    one, two = ra.DumpWriter(tmp_path), ra.DumpWriter(tmp_path)
    for writer, name in ((one, "a"), (two, "b"), (one, "c"), (two, "d")):
        writer.write(**batch(name))
    assert read(tmp_path) == [(7, "a"), (7, "b"), (7, "c"), (7, "d")]
    assert kept_aside(tmp_path) == []
    text = (
        f"rollout-audit: step 7 of rank 0 {BESIDE}: both are kept as parts of one step; give each a rank or a folder "
        "of its own where they are not (said once)"
    )
    assert set(said(recwarn)) == {text}


def _hold(folder: Path, made: Any, go: Any, name: str) -> None:
    writer = ra.DumpWriter(folder, on_error="raise")
    made.wait()
    go.wait()
    for step in (7, 8):
        writer.write(**batch(name, step))


def test_processes_of_one_rank_that_go_on_at_once(tmp_path: Path) -> None:
    """Three processes that all take themselves for rank 0 go on in a folder of before: that gives way, theirs stay."""
    record(tmp_path, "old", "older")
    context = multiprocessing.get_context("spawn")
    made, go = context.Barrier(4), context.Event()
    names = ["a", "b", "c"]
    processes = [context.Process(target=_hold, args=(tmp_path, made, go, name)) for name in names]
    for process in processes:
        process.start()
    made.wait(60)
    go.set()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert read(tmp_path) == [(step, name) for step in (7, 8) for name in names]
    assert set(kept_aside(tmp_path)) == {"old", "older"}


def test_other_ranks_and_steps_stay_as_they_are(tmp_path: Path) -> None:
    for rank in (0, 1, 10):
        for step in (7, 8, 77):
            record(tmp_path, f"rank {rank}", step=step, rank=rank)
    record(tmp_path, "new", rank=1)
    assert read(tmp_path) == sorted(
        (step, "new" if (step, rank) == (7, 1) else f"rank {rank}") for rank in (0, 1, 10) for step in (7, 8, 77)
    )
    assert kept_aside(tmp_path) == ["rank 1"]


def fail(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("broken", ["pyarrow.parquet.ParquetWriter.write_table", "rollout_audit.dumps.writer.place"])
def test_a_write_that_fails_leaves_what_was_there(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, "a", "b", "c")
    writer = ra.DumpWriter(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(broken, fail)
        with pytest.warns(RuntimeWarning, match="step 7 is not recorded: .*No space left on device"):
            assert writer.write(**batch("d")) is None
    assert read(tmp_path) == [(7, "a"), (7, "b"), (7, "c")]
    assert len(list(tmp_path.iterdir())) == 3
    writer.write(**batch("e"))
    assert read(tmp_path) == [(7, "e")]
    assert kept_aside(tmp_path) == ["a", "b", "c"]


def test_a_file_that_cannot_be_set_aside_brings_the_others_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, "a", "b", "c")
    rename = os.link

    def refuse_the_last(source: Any, target: Any) -> None:
        if "part_2" in str(source):
            fail()
        rename(source, target)

    monkeypatch.setattr(os, "link", refuse_the_last)
    monkeypatch.setattr(os, "rename", fail)
    with pytest.warns(RuntimeWarning, match="step 7 is not recorded"):
        assert ra.DumpWriter(tmp_path).write(**batch("d")) is None
    assert read(tmp_path) == [(7, "a"), (7, "b"), (7, "c")]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda *_: fail())
    record(tmp_path, "a", "b")
    one, two = ra.DumpWriter(tmp_path), ra.DumpWriter(tmp_path)
    for writer, name in ((one, "c"), (two, "d"), (one, "e")):
        writer.write(**batch(name))
    assert read(tmp_path) == [(7, "c"), (7, "d"), (7, "e")]
    assert kept_aside(tmp_path) == ["a", "b"]


def test_a_reader_never_finds_rows_of_two_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every rename, the rows in sight are those of before, none, or the new ones."""
    record(tmp_path, "a", "b")
    seen: list[list[str]] = []
    rename = os.link

    def watched(source: Any, target: Any) -> None:
        seen.append(sorted(uid for path in tmp_path.glob("[!.]*.parquet") for uid in uids(path)))
        rename(source, target)

    def uids(path: Path) -> list[str]:
        return table(path)["uid"].to_pylist()

    monkeypatch.setattr(os, "link", watched)
    record(tmp_path, "c")
    assert seen == [["a", "b"], ["b"], []]
    assert read(tmp_path) == [(7, "c")]


def test_a_change_of_the_working_directory_does_not_split_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    writer = record(Path("run/dumps"), "a")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert writer.write(**batch("b")) == tmp_path / "run/dumps/step_000007_rank_0_part_1.parquet"
    assert read(tmp_path) == [(7, "a"), (7, "b")]


def test_a_writer_that_was_sent_to_another_process_stays_one_recording(tmp_path: Path) -> None:
    """As a trainer object is that Ray pickles, from before or after the first step."""
    writer = record(tmp_path, "a")
    pickle.loads(pickle.dumps(writer)).write(**batch("b"))
    assert read(tmp_path) == [(7, "a"), (7, "b")]
    assert kept_aside(tmp_path) == []


def test_a_file_that_was_taken_away_meanwhile(tmp_path: Path) -> None:
    record(tmp_path, "a", "b")
    writer = ra.DumpWriter(tmp_path, on_error="raise")
    (tmp_path / "step_000007_rank_0.parquet").unlink()
    writer.write(**batch("c"))
    assert (read(tmp_path), kept_aside(tmp_path)) == ([(7, "c")], ["b"])
