"""JSON Lines, .npz and .pt with this tool's columns say the same as Parquet; what is wrong with them is one line."""

from __future__ import annotations

import json
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

import rollout_audit as ra
from rollout_audit.dumps import inspect_dump, jsonl
from rollout_audit.errors import DumpFaultError, MissingFieldError, UnreadableFileError, UsageError

ROLLOUT = [[-0.5, -1.25, -0.75], [], [-2.0, -0.125]]
OLD = [[-0.5, -1.5, -0.5], [], [-1.75, -0.25]]
MASK = [[1, 0, 1], [], [1, 1]]
ROWS = [
    {"uid": f"r{i}", "step": 7, "rollout_log_probs": r, "old_log_probs": o, "response_mask": m, "reward": float(i)}
    for i, (r, o, m) in enumerate(zip(ROLLOUT, OLD, MASK, strict=True))
]


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def told(dump: ra.Dump) -> list[Any]:
    return [
        (
            row.uid,
            row.step,
            row.reward,
            row.rollout_log_probs.tolist(),
            None if row.old_log_probs is None else row.old_log_probs.tolist(),
            row.response_mask.tolist(),
        )
        for row in dump.rows()
    ]


EXPECTED = [
    (f"r{i}", 7, float(i), r, o, [bool(x) for x in m])
    for i, (r, o, m) in enumerate(zip(ROLLOUT, OLD, MASK, strict=True))
]


def packed() -> dict[str, Any]:
    return {
        "rollout_log_probs": np.concatenate(ROLLOUT).astype(np.float32),
        "old_log_probs": np.concatenate(OLD),
        "response_mask": np.concatenate(MASK).astype(np.int8),
        "cu_seqlens": np.array([0, 3, 3, 5]),
        "reward": np.array([0.0, 1.0, 2.0]),
        "uid": np.array(["r0", "r1", "r2"]),
        "step": np.array(7),
    }


def as_torch(arrays: dict[str, Any]) -> dict[str, Any]:
    return {n: a.tolist() if a.dtype.kind == "U" else torch.from_numpy(np.asarray(a)) for n, a in arrays.items()}


def tensor_rows() -> list[dict[str, Any]]:
    lists = ("rollout_log_probs", "old_log_probs", "response_mask")
    return [{n: torch.tensor(v) if n in lists else v for n, v in row.items()} for row in ROWS]


def test_every_container_says_the_same(tmp_path: Path) -> None:
    paths = [lines(tmp_path / "a.jsonl", *ROWS), tmp_path / "b.npz", tmp_path / "c.pt", tmp_path / "d.pt"]
    np.savez(paths[1], **packed())
    torch.save(as_torch(packed()), paths[2])
    torch.save(tensor_rows(), paths[3])
    columns = {name: [row[name] for row in tensor_rows()] for name in ROWS[0]}
    torch.save(columns, tmp_path / "e.pt")
    np.savez_compressed(tmp_path / "f.npz", **packed())
    for path in [*paths, tmp_path / "e.pt", tmp_path / "f.npz"]:
        dump = ra.open_dump(path)
        assert told(dump) == EXPECTED, path
        assert (dump.total_rows, dump.total_values, dump.infos[0].step) in [(3, 5, 7), (3, 5, 0)]
    assert [file.format for file in ra.open_dump(tmp_path).files] == ["jsonl", "npz", "torch", "torch", "torch", "npz"]


def test_padded_npz_and_half_precision(tmp_path: Path) -> None:
    width = np.full((2, 3), -0.5, np.float16)
    np.savez(tmp_path / "h.npz", rollout_log_probs=width, old_log_probs=width, response_mask=np.array([[1, 1, 0]] * 2))
    torch.save(
        {"rollout_log_probs": torch.full((2, 3), -0.3, dtype=torch.bfloat16), "old_log_probs": torch.zeros(2, 3) - 0.3},
        tmp_path / "b.pt",
    )
    half = ra.open_dump(tmp_path / "h.npz")
    assert [row.rollout_log_probs.dtype for row in half.rows()] == [np.float32] * 2
    assert {note.kind for note in half.notes} == {"half_precision"}
    brain = ra.open_dump(tmp_path / "b.pt")
    assert next(brain.rows()).rollout_log_probs[0] == np.float32(torch.tensor(-0.3).bfloat16().item())
    assert "bfloat16" in " ".join(note.message for note in brain.notes)


def test_json_lines_are_streamed_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{**ROWS[0], "uid": str(i)} for i in range(1000)]
    path = lines(tmp_path / "a.jsonl", *rows[:500], "\n", "  \n", *rows[500:])
    monkeypatch.setattr(jsonl, "BLOCK", 10_000)
    dump = ra.open_dump(path)
    assert len(dump.parts()) > 10
    assert dump.total_rows == sum(part.rows for part in dump.parts()) == 1000
    assert dump.total_values == 3000
    assert [row.uid for row in dump.rows()] == [str(i) for i in range(1000)]
    assert [row.row for row in dump.rows()] == list(range(1000))
    last = list(dump.chunks(parts=dump.parts()[-1:]))
    assert last[-1].row_numbers[-1] == 999
    assert max(chunk.tokens for chunk in dump.chunks(chunk_tokens=30)) == 30


def test_null_rows_and_elements_are_faults_not_zeros(tmp_path: Path) -> None:
    null = {"rollout_log_probs": [-0.1, None, -0.3], "old_log_probs": [-0.1, -0.2, -0.3]}
    with pytest.raises(DumpFaultError, match="row 0, position 1: rollout_log_probs is null under mask 1"):
        list(ra.open_dump(lines(tmp_path / "a.jsonl", null)).chunks())
    gone = {"rollout_log_probs": None, "old_log_probs": [-0.1]}
    with pytest.raises(DumpFaultError, match="row 1: rollout_log_probs has no list at all"):
        list(ra.open_dump(lines(tmp_path / "b.jsonl", ROWS[0], gone)).chunks())
    bare = '{"rollout_log_probs": [NaN, -0.5], "old_log_probs": [-0.5, -Infinity]}\n'
    kinds = {f.kind for f in inspect_dump(ra.open_dump(lines(tmp_path / "c.jsonl", bare))).findings}
    assert {"nan", "infinite"} <= kinds
    ragged = {"token_ids": [1, 2, 3, 4, 5], "rollout_log_probs": [-0.5] * 6, "old_log_probs": [-0.4] * 5}
    with pytest.raises(DumpFaultError, match=r"row 0: .*\(rollout_log_probs 6, old_log_probs 5, token_ids 5\)"):
        list(ra.open_dump(lines(tmp_path / "d.jsonl", ragged)).chunks())


@pytest.mark.parametrize("mask", [[True, False], [1, 0], [1.0, 0.0]])
def test_masks_of_every_type(tmp_path: Path, mask: list[Any]) -> None:
    row = {"rollout_log_probs": [-1, -0.5], "old_log_probs": [-0.5, -2], "response_mask": mask}
    (read,) = ra.open_dump(lines(tmp_path / "a.jsonl", row)).rows()
    assert read.response_mask.tolist() == [True, False]
    assert read.rollout_log_probs.tolist() == [-1.0, -0.5]


LP = {"rollout_log_probs": [-0.5], "old_log_probs": [-0.5]}
BAD_LINES: list[tuple[list[Any], type[Exception], str]] = [
    ([ROWS[0], "{not json}\n"], UnreadableFileError, "a.jsonl, row 1: not JSON"),
    ([ROWS[0], '{"rollout_log_probs": [-0.5'], UnreadableFileError, "row 1: not JSON .*, or still being written"),
    ([ROWS[0], "[1]\n"], UnreadableFileError, "row 1: a JSON list, not an object"),
    (
        [LP, {**LP, "rollout_log_probs": ["x"]}],
        UnreadableFileError,
        "row 1, column 'rollout_log_probs': not of the",
    ),
    (
        [LP, {**LP, "old_log_probs": -0.5}],
        UnreadableFileError,
        "row 1: 'old_log_probs' is a single value, in",
    ),
    ([{"text": "hello"}], MissingFieldError, "no column for rollout_log_probs; columns are text; name it with --map"),
    (
        [*[LP] * 100, {**LP, "response_mask": [0]}],
        UnreadableFileError,
        "row 100: has 'response_mask', which no row",
    ),
    ([{"rollout_log_probs": "x", "old_log_probs": [1]}], UnreadableFileError, "holds text, expected a list of numbers"),
]


@pytest.mark.parametrize(("rows", "kind", "message"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_bad_lines(tmp_path: Path, rows: list[Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as raised:
        list(ra.open_dump(lines(tmp_path / "a.jsonl", *rows)).chunks())
    assert "\n" not in str(raised.value)


def test_text_logs_in_the_folder_are_left_out(tmp_path: Path) -> None:
    lines(tmp_path / "step_7.jsonl", *ROWS)
    lines(tmp_path / "val_data_step7.jsonl", {"content": ["x"], "rewards": [0.0]})
    (tmp_path / "rank_3.jsonl").touch()
    torch.save({"model": torch.zeros(3)}, tmp_path / "checkpoint.pt")
    dump = ra.open_dump(tmp_path)
    assert [file.name for file in dump.files] == ["step_7.jsonl"]
    assert [(one.kind, one.severity, one.message) for one in dump.left_out] == [
        (
            "file_left_out",
            "info",
            "1 file left out, without a line: cut off, or of an idle rank?",
        ),
        ("file_left_out", "info", "2 files left out, without a column of rollout log-probs"),
    ]
    assert told(ra.open_dump(tmp_path, field_map={"reward": "reward"})) == EXPECTED


PLAIN = {"rollout_log_probs": [-0.1], "old_log_probs": [-0.2]}
ODD_VALUES = {
    "a name twice": (
        [json.dumps(PLAIN)[:-1] + ', "old_log_probs": [-0.3]}\n'],
        "row 0: two values are named 'old_log_probs'",
    ),
    "reward": ([PLAIN | {"reward": 1}, PLAIN | {"reward": "x"}], "row 1: reward is 'x', which is no number"),
    "advantages": ([PLAIN | {"advantages": 1}, PLAIN | {"advantages": "x"}], "row 1: advantages is 'x', which is no"),
    "beyond 64 bits": ([PLAIN | {"reward": 2**70}], "row 0, column 'reward': holds a number beyond 64 bits"),
}


@pytest.mark.parametrize("case", ODD_VALUES)
def test_values_that_no_column_can_hold(case: str, tmp_path: Path) -> None:
    rows, message = ODD_VALUES[case]
    path = lines(tmp_path / "a.jsonl", *rows)
    for read in (lambda: list(ra.open_dump(path).rows()), lambda: inspect_dump(ra.open_dump(path))):
        with pytest.raises(UnreadableFileError) as raised:
            read()
        assert message in str(raised.value)


def test_a_name_that_nobody_reads_may_stand_twice(tmp_path: Path) -> None:
    text = json.dumps(PLAIN)[:-1] + ', "note": 1, "note": 2, "info": {"a": 1, "a": 2}}\n'
    path = lines(tmp_path / "a.jsonl", text)
    assert [row.old_log_probs.tolist() for row in ra.open_dump(path).rows()] == [[-0.2]]


def test_responses_may_be_empty_in_the_first_hundred_rows(tmp_path: Path) -> None:
    empty = {"rollout_log_probs": [], "old_log_probs": [], "response_mask": []}
    path = lines(tmp_path / "a.jsonl", *[empty] * 150, PLAIN | {"response_mask": [1]})
    rows = list(ra.open_dump(path).rows())
    assert [len(row.rollout_log_probs) for row in rows] == [0] * 150 + [1]
    assert rows[-1].old_log_probs.tolist() == [-0.2]


EMPTIES = {
    "no bytes": ["a.jsonl"],
    "blank lines": ["a.jsonl"],
    "several": ["a.jsonl", "b.jsonl", "c.ndjson"],
}


@pytest.mark.parametrize("case", EMPTIES)
def test_lines_that_are_not_there(case: str, tmp_path: Path) -> None:
    """Alone they are refused by name, beside others they are left out."""
    for name in EMPTIES[case]:
        (tmp_path / name).write_text("\n \n" if case == "blank lines" else "")
    more = ", nor in 2 files beside it" if case == "several" else ""
    with pytest.raises(ra.DumpError) as raised:
        ra.open_dump(tmp_path)
    text = f"{tmp_path}/a.jsonl: no line in it{more}: nothing to audit; cut off, or still being written?"
    assert (type(raised.value).__name__, str(raised.value)) == ("NothingToAuditError", text)
    lines(tmp_path / "z.jsonl", *ROWS)
    dump = ra.open_dump(tmp_path)
    assert [file.name for file in dump.files] == ["z.jsonl"]
    assert told(ra.open_dump(tmp_path, field_map={"reward": "reward"})) == EXPECTED
    (finding,) = dump.left_out
    assert (finding.count, finding.file) == (len(EMPTIES[case]), "a.jsonl")


@pytest.mark.parametrize("content", [[], {"rollout_log_probs": [], "old_log_probs": []}])
def test_pt_without_a_row(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(ra.DumpError, match=r"^a\.pt: zero rows, nothing to audit; name a dump that has some$"):
        ra.open_dump(tmp_path)


def test_an_object_over_several_lines_is_told_how_to_be_put_on_one(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS[0], indent=1))
    with pytest.raises(ra.DumpError, match=r"a\.json, row 0: not JSON .*object over several lines\? jq -c \. FILE"):
        ra.open_dump(tmp_path / "a.json")


def test_pickles_are_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "step_7.pkl").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UnreadableFileError, match=r"step_7.pkl: a pickle; .*safetensors.torch.save_file\("):
        ra.open_dump(tmp_path / "step_7.pkl")
    with pytest.raises(ra.DumpError, match=r"found 1 × .pkl\); a pickle can run any code"):
        ra.open_dump(tmp_path)


class Batch:
    """What a trainer's own class would be."""


def test_pt_with_objects_and_objects_in_npz_are_refused(tmp_path: Path) -> None:
    torch.save({"rollout_log_probs": torch.zeros(2, 2), "batch": Batch()}, tmp_path / "a.pt")
    with pytest.raises(UnreadableFileError, match=r"a.pt: holds more than tensors \(.*Batch\); a pickle can run any"):
        ra.open_dump(tmp_path / "a.pt")
    np.savez(tmp_path / "b.npz", rollout_log_probs=np.array([{}], dtype=object))
    with pytest.raises(UnreadableFileError, match=r"b.npz: holds Python objects; a pickle"):
        ra.open_dump(tmp_path / "b.npz")


def test_checkpoints_in_the_folder_are_left_out(tmp_path: Path) -> None:
    torch.save({"optimizer": Batch()}, tmp_path / "optimizer.pt")
    with pytest.raises(UnreadableFileError, match="holds more than tensors"):
        ra.open_dump(tmp_path)
    lines(tmp_path / "step_7.jsonl", *ROWS)
    dump = ra.open_dump(tmp_path)
    assert told(dump) == EXPECTED
    (finding,) = dump.left_out
    assert (finding.severity, finding.file) == ("warning", "optimizer.pt")
    assert told(pickle.loads(pickle.dumps(dump))) == EXPECTED


@pytest.mark.parametrize("name", ["a.pt", "a.npz"])
def test_archives_cut_short(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("pt"):
        torch.save(as_torch(packed()), path)
    else:
        np.savez(path, **packed())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UnreadableFileError, match="zip archive without its directory, truncated or still being"):
        ra.open_dump(path)


def test_input_format_forces_and_is_checked(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.txt", *ROWS)
    assert told(ra.open_dump(path, input_format="jsonl")) == EXPECTED
    with pytest.raises(UsageError, match=r"input format 'jsnl': expected one of .*; did you mean 'jsonl'\?"):
        ra.open_dump(path, input_format="jsnl")
    with pytest.raises(UnreadableFileError, match=r"row 0: not as nemo-rl writes it \(KeyError: 'token_loss_mask'\)"):
        ra.open_dump(path, input_format="nemo-rl")
    with pytest.raises(UnreadableFileError, match="damaged Parquet"):
        ra.open_dump(path, input_format="parquet")


def test_other_file_systems(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    lines(tmp_path / "a.jsonl", *ROWS)
    np.savez(tmp_path / "b.npz", **packed())
    torch.save(as_torch(packed()), tmp_path / "c.pt")
    for path in tmp_path.iterdir():
        fs.pipe_file(f"/plain/{path.name}", path.read_bytes())
    dump = ra.open_dump("memory://plain")
    assert told(dump) == EXPECTED * 3
    assert [info.digest for info in dump.infos] == [info.digest for info in ra.open_dump(tmp_path).infos]


def test_digest_follows_the_contents(tmp_path: Path) -> None:
    digests = set()
    for value in (-0.5, -0.25):
        row = {"rollout_log_probs": [value], "old_log_probs": [-0.5]}
        digests.add(ra.open_dump(lines(tmp_path / "a.jsonl", row)).infos[0].digest)
        tensors = {name: torch.tensor([values]) for name, values in row.items()}
        torch.save(tensors, tmp_path / "b.pt")
        digests.add(ra.open_dump(tmp_path / "b.pt").infos[0].digest)
        np.savez(tmp_path / "c.npz", **{name: np.array([values]) for name, values in row.items()})
        digests.add(ra.open_dump(tmp_path / "c.npz").infos[0].digest)
    assert len(digests) == 6


def test_prime_rl_nulls_stand_for_values_that_are_not_finite(tmp_path: Path) -> None:
    row = {
        "step": 3,
        "micro_step": 0,
        "loss_mask": [False, True, True],
        "inference_logprobs": [0.0, -0.5, -0.25],
        "trainer_logprobs": [-10.8, -0.5, None],
    }
    (tmp_path / "STABLE").touch()
    dump = ra.open_dump(lines(tmp_path / "rank_0.jsonl", row))
    with pytest.raises(DumpFaultError, match=r"rank_0.jsonl, row 0, position 1: log_probs is null under mask 1"):
        list(dump.chunks())


def test_slime_mask_of_none_is_all_ones_and_removed_samples_count_for_nothing(tmp_path: Path) -> None:
    sample = {"index": 0, "response_length": 2, "tokens": [1, 2, 3], "rollout_log_probs": [-0.5, -0.25]}
    samples = [{**sample, "loss_mask": None}, {**sample, "index": 1, "loss_mask": [1, 1], "remove_sample": True}]
    torch.save({"rollout_id": 4, "samples": samples}, tmp_path / "4.pt")
    first, second = ra.open_dump(tmp_path).rows()
    assert (first.step, first.response_mask.tolist(), first.token_ids.tolist()) == (4, [True, True], [2, 3])
    assert second.response_mask.tolist() == [False, False]


def test_float32_written_as_text_keeps_its_bits(tmp_path: Path) -> None:
    values = np.random.default_rng(0).uniform(-9, 0, 500).astype(np.float32)
    row = {"rollout_log_probs": values.tolist(), "old_log_probs": values.tolist()}
    (read,) = ra.open_dump(lines(tmp_path / "a.jsonl", row)).rows()
    assert np.array_equal(read.rollout_log_probs.astype(np.float32), values)
    assert math.isclose(float(read.rollout_log_probs.sum()), float(values.astype(np.float64).sum()))


UNEVEN = [torch.tensor(row) for row in ([-0.5, -1.25, -0.75], [-0.25, -0.125, -1.0], [-2.0])]


def test_a_tensor_beside_lists_of_rows_gives_each_row_its_own(tmp_path: Path) -> None:
    columns = {
        "rollout_log_probs": UNEVEN,
        "old_log_probs": UNEVEN,
        "uid": torch.tensor([10, 11, 12]),
        "reward": torch.tensor([1.0, 0.0, 5.0]),
        "advantages": torch.tensor([0.5, -0.5, 2.0]),
        "policy_version": torch.tensor([4, 5, 6]),
        "group_id": "of all",
        "step": torch.tensor([3]),
    }
    torch.save(columns, tmp_path / "a.pt")
    rows = list(ra.open_dump(tmp_path).rows())
    assert [(r.uid, r.reward, r.policy_version, r.group_id, r.step) for r in rows] == [
        ("10", 1.0, 4, "of all", 3),
        ("11", 0.0, 5, "of all", 3),
        ("12", 5.0, 6, "of all", 3),
    ]
    assert [r.advantages.tolist() for r in rows] == [[0.5] * 3, [-0.5] * 3, [2.0]]
    assert [r.rollout_log_probs.tolist() for r in rows] == [row.tolist() for row in UNEVEN]


def test_log_probs_of_one_side_may_be_a_tensor(tmp_path: Path) -> None:
    even = [UNEVEN[0], UNEVEN[1]]
    torch.save({"rollout_log_probs": even, "old_log_probs": torch.stack(even) - 1}, tmp_path / "a.pt")
    assert [r.old_log_probs.tolist() for r in ra.open_dump(tmp_path).rows()] == [(row - 1).tolist() for row in even]


def test_one_row_of_one_token(tmp_path: Path) -> None:
    columns = {"rollout_log_probs": [torch.tensor([-0.5])], "old_log_probs": torch.tensor([[-0.25]])}
    torch.save({**columns, "reward": torch.tensor([2.0])}, tmp_path / "a.pt")
    (row,) = ra.open_dump(tmp_path).rows()
    assert (row.rollout_log_probs.tolist(), row.old_log_probs.tolist(), row.reward) == ([-0.5], [-0.25], 2.0)


def test_a_tensor_of_other_rows_is_refused(tmp_path: Path) -> None:
    columns = {"rollout_log_probs": UNEVEN, "old_log_probs": UNEVEN, "reward": torch.tensor([1.0, 0.0])}
    torch.save(columns, tmp_path / "a.pt")
    with pytest.raises(UnreadableFileError, match=r"different numbers of rows \(rollout_log_probs 3, .*, reward 2\)$"):
        ra.open_dump(tmp_path)


@pytest.mark.parametrize("names", [("rollout_log_probs", "old_log_probs"), ("ours", "theirs")])
def test_tensors_of_no_field_do_not_say_how_many_rows_there_are(names: tuple[str, str], tmp_path: Path) -> None:
    others = {
        "cu_seqlens": torch.tensor([0, 3, 6, 7]),
        "loss_curve": torch.arange(100.0),
        "ema": torch.zeros(0),
        "names": ["a", "b"],
        "config": {"lr": 1.0},
    }
    field_map = dict(zip(("rollout_log_probs", "old_log_probs"), names, strict=True))
    torch.save({**others, **dict.fromkeys(names, UNEVEN)}, tmp_path / "a.pt")
    rows = list(ra.open_dump(tmp_path, field_map=field_map).rows())
    assert [r.rollout_log_probs.tolist() for r in rows] == [row.tolist() for row in UNEVEN]
    with pytest.raises(UnreadableFileError, match=r"different numbers of rows .*loss_curve 100"):
        ra.open_dump(tmp_path, field_map=field_map | {"advantages": "loss_curve"})


@pytest.mark.parametrize("names", [("rollout_log_probs", "old_log_probs"), ("ours", "theirs")])
@pytest.mark.parametrize("form", ["padded", "packed"])
def test_a_batch_of_tensors_stays_one_beside_uneven_lists(form: str, names: tuple[str, str], tmp_path: Path) -> None:
    flat = torch.arange(6) * -0.125
    shaped = flat.reshape(2, 3) if form == "padded" else flat
    ends = {} if form == "padded" else {"cu_seqlens": torch.tensor([0, 3, 6])}
    both = {name: shaped - place for place, name in enumerate(names)}
    lists = {"prompt_ids": [[1, 2], [3]], "reward": [torch.tensor(1.0), torch.tensor(0.5)]}
    torch.save({**both, **ends, **lists}, tmp_path / "a.pt")
    field_map = dict(zip(("rollout_log_probs", "old_log_probs"), names, strict=True))
    rows = list(ra.open_dump(tmp_path, field_map=field_map).rows())
    assert [r.rollout_log_probs.tolist() for r in rows] == flat.reshape(2, 3).tolist()
    assert [r.old_log_probs.tolist() for r in rows] == (flat.reshape(2, 3) - 1).tolist()
    assert [r.reward for r in rows] == [1.0, 0.5]


def test_an_uneven_mask_beside_tensors_is_refused(tmp_path: Path) -> None:
    pair = {"rollout_log_probs": torch.zeros(2, 3) - 1, "old_log_probs": torch.zeros(2, 3) - 1}
    torch.save({**pair, "response_mask": [[1, 1, 1], [1]]}, tmp_path / "a.pt")
    with pytest.raises(UnreadableFileError, match="response_mask is a list of rows of uneven length, beside log-probs"):
        ra.open_dump(tmp_path)


def _pair(value: Any) -> dict[str, Any]:
    return {"rollout_log_probs": value, "old_log_probs": value}


EVEN = torch.tensor([[-0.5, -1.25], [-0.25, -2.0]])
READ_AS_EVEN = {
    "a gradient": _pair(EVEN.clone().requires_grad_()),
    "a gradient and half precision": _pair((EVEN.clone().requires_grad_() * 1).bfloat16()),
    "rows with a gradient": [_pair(row.clone().requires_grad_() * 1) for row in EVEN],
    "a nested tensor": _pair(torch.nested.nested_tensor(list(EVEN), layout=torch.jagged)),
    "a key that is no text": {**_pair(EVEN), 1: EVEN},
    "a sparse tensor beside": {**_pair(EVEN), "other": EVEN.to_sparse()},
}


@pytest.mark.parametrize("form", READ_AS_EVEN)
def test_tensors_as_a_trainer_may_save_them(form: str, tmp_path: Path) -> None:
    torch.save(READ_AS_EVEN[form], tmp_path / "a.pt")
    for row, values in zip(ra.open_dump(tmp_path).rows(), EVEN.tolist(), strict=True):
        assert row.rollout_log_probs.tolist() == values
        assert row.old_log_probs is not None
        assert row.old_log_probs.tolist() == values


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_pair(EVEN.to_sparse()), r"rollout_log_probs' \(rollout_log_probs\) holds sparse\[2, 2\], which is not read"),
        (_pair(torch.empty(2, 2, device="meta")), r"holds meta\[2, 2\], which is not read"),
        ([_pair(EVEN[0].to_sparse())], r"holds list<other>, which is not read"),
        (
            [_pair(EVEN[0]), _pair(EVEN[1:])],
            r"row 1: 'rollout_log_probs' is \[1, 2\], expected one value a token",
        ),
        ({1: EVEN}, "no tensor of log-probs"),
    ],
)
def test_tensors_without_a_number_a_token_are_one_line(content: Any, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(UnreadableFileError, match=message):
        list(ra.open_dump(tmp_path, input_format="torch").rows())


def test_names_as_bytes_and_other_things_in_an_npz(tmp_path: Path) -> None:
    both = _pair(EVEN.numpy())
    np.savez(tmp_path / "a.npz", uid=np.array([b"one", "zw\u00f6lf".encode()]), **both)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("readme.txt", "of a run")
    assert [row.uid for row in ra.open_dump(tmp_path).rows()] == ["one", "zw\u00f6lf"]


def test_a_pt_file_forced_to_be_npz_is_refused(tmp_path: Path) -> None:
    torch.save(_pair(EVEN), tmp_path / "a.pt")
    with pytest.raises(UnreadableFileError, match=r"a\.pt: a zip archive without an array of NumPy in it, so no \.npz"):
        ra.open_dump(tmp_path / "a.pt", input_format="npz")


def test_lists_nested_without_end_are_one_line(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    lines(tmp_path / "a.jsonl", ROWS[0], f'{{"rollout_log_probs": {deep}}}\n')
    with pytest.raises(UnreadableFileError, match=r"a\.jsonl, row 1: lists in lists too deep to read"):
        ra.open_dump(tmp_path)
    lines(tmp_path / "a.jsonl", f'{{"rollout_log_probs": {deep}}}\n')
    with pytest.raises(UnreadableFileError, match=r"a\.jsonl, row 0: lists in lists too deep to read"):
        ra.open_dump(tmp_path)
