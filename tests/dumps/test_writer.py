"""What a training loop writes reads back as what it had, and a mistake never stops the loop."""

from __future__ import annotations

import itertools
import multiprocessing
import subprocess
import sys
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import rollout_audit as ra

MU = torch.tensor([[0.0, -0.5, -0.25, -0.125, 0.0, 0.0], [0.0, 0.0, -1.5, -2.0, -3.0, -0.75]])
PI = torch.tensor([[-9.0, -0.5, -0.5, -0.25, -9.0, -9.0], [-9.0, -9.0, -1.0, -2.5, -3.0, -0.5]])
MASK = torch.tensor([[0, 1, 0, 1, 0, 0], [0, 0, 1, 1, 1, 1]])
ROLLOUT_ROWS = [[-0.5, -0.25, -0.125], [-1.5, -2.0, -3.0, -0.75]]
OLD_ROWS = [[-0.5, -0.5, -0.25], [-1.0, -2.5, -3.0, -0.5]]
MASK_ROWS = [[True, False, True], [True] * 4]


def written(folder: Path, **arguments: Any) -> ra.Dump:
    with ra.DumpWriter(folder, on_error="raise") as writer:
        writer.write(**{"step": 7, **arguments})
    return ra.open_dump(folder)


def test_prompt_and_padding_go_and_masked_tokens_between_stay(tmp_path: Path) -> None:
    dump = written(tmp_path, rollout_log_probs=MU, old_log_probs=PI, response_mask=MASK)
    rows = list(dump.rows())
    assert [row.rollout_log_probs.tolist() for row in rows] == ROLLOUT_ROWS
    assert [row.old_log_probs.tolist() for row in rows] == OLD_ROWS
    assert [row.response_mask.tolist() for row in rows] == MASK_ROWS
    assert [row.step for row in rows] == [7, 7]
    assert [file.name for file in dump.files] == ["step_000007_rank_0.parquet"]


FORMS = {
    "numpy": lambda x: x.numpy(),
    "float64": lambda x: x.double(),
    "with gradient": lambda x: x.clone().requires_grad_() if x.is_floating_point() else x,
    "lists": lambda x: x.tolist(),
    "list of tensors": list,
    "list of arrays": lambda x: [row.numpy() for row in x],
    "ragged": lambda x: [row.tolist()[: 4 + 2 * i] for i, row in enumerate(x)],
    "nested": lambda x: torch.nested.nested_tensor([x[0, :4].clone(), x[1].clone()], layout=torch.jagged),
    "not contiguous": lambda x: x.T.contiguous().T,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_batch(form: str, tmp_path: Path) -> None:
    shape = FORMS[form]
    dump = written(tmp_path, rollout_log_probs=shape(MU), old_log_probs=shape(PI), response_mask=shape(MASK))
    assert [row.rollout_log_probs.tolist() for row in dump.rows()] == ROLLOUT_ROWS
    assert [row.old_log_probs.tolist() for row in dump.rows()] == OLD_ROWS
    assert [row.response_mask.tolist() for row in dump.rows()] == MASK_ROWS


@pytest.mark.gpu
def test_tensors_on_the_device(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    dump = written(tmp_path, rollout_log_probs=MU.cuda(), old_log_probs=PI.cuda().bfloat16(), response_mask=MASK.cuda())
    assert [row.rollout_log_probs.tolist() for row in dump.rows()] == ROLLOUT_ROWS


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_kept_exactly_and_remembered(kind: torch.dtype, tmp_path: Path) -> None:
    values = torch.linspace(-7, -0.01, 40).reshape(4, 10).to(kind)
    dump = written(tmp_path, rollout_log_probs=values, old_log_probs=values.float())
    for row, true in zip(dump.rows(), values, strict=True):
        assert np.array_equal(row.rollout_log_probs, true.float().numpy())
    (note,) = [note for note in dump.notes if note.kind == "half_precision"]
    assert str(kind).removeprefix("torch.") in note.message
    assert pq.read_schema(dump.files[0].path).field("rollout_log_probs").type.value_type == "float"


def test_float32_and_float64_stay_what_they_are(tmp_path: Path) -> None:
    written(tmp_path, rollout_log_probs=MU, old_log_probs=PI.double(), response_mask=MASK)
    schema = pq.read_schema(tmp_path / "step_000007_rank_0.parquet")
    assert [str(schema.field(n).type.value_type) for n in ("rollout_log_probs", "old_log_probs")] == ["float", "double"]


def test_fields_of_rows(tmp_path: Path) -> None:
    dump = written(
        tmp_path,
        rollout_log_probs=MU,
        log_probs=PI,
        response_mask=MASK.bool(),
        token_ids=torch.arange(12).reshape(2, 6),
        advantages=torch.tensor([1.5, -1.5]),
        reward=torch.tensor([1.0, 0.0]),
        uid=["a", 17],
        group_id=np.array([3, 3]),
        policy_version=4,
        trainer_version=torch.tensor([5, 6]),
    )
    one, two = dump.rows()
    assert (one.uid, two.uid, one.group_id, one.reward, two.reward) == ("a", "17", "3", 1.0, 0.0)
    assert (one.policy_version, two.policy_version, one.trainer_version, two.trainer_version) == (4, 4, 5, 6)
    assert (one.token_ids.tolist(), one.advantages.tolist()) == ([1, 2, 3], [1.5] * 3)
    assert one.old_log_probs is None
    assert one.log_probs.tolist() == OLD_ROWS[0]


NAMES = (["p", "q"], ("p", "q"), np.array(["p", "q"]), np.array(["p", "q"], dtype=object))


@pytest.mark.parametrize("names", NAMES, ids=["list", "tuple", "array of text", "array of objects"])
def test_names_in_every_form(names: Any, tmp_path: Path) -> None:
    """verl's `non_tensor_batch` holds its uids as an array of objects."""
    dump = written(
        tmp_path,
        rollout_log_probs=MU,
        old_log_probs=PI,
        response_mask=MASK,
        uid=names,
        group_id=names,
        reward=[True, 0],
    )
    assert [(row.uid, row.group_id, row.reward) for row in dump.rows()] == [("p", "p", 1.0), ("q", "q", 0.0)]


@pytest.mark.parametrize("form", ["numpy", "lists", "ragged"])
def test_policy_versions_of_tokens(form: str, tmp_path: Path) -> None:
    """The prompt has -1, and 9 stands under a mask of 0."""
    shape = FORMS[form]
    versions = torch.tensor([[-1, 4, 9, 5, -1, -1], [-1, -1, 6, 6, 6, 6]])
    batch = {"rollout_log_probs": MU, "old_log_probs": PI, "response_mask": MASK, "policy_version": versions}
    dump = written(tmp_path, **{name: shape(value) for name, value in batch.items()})
    assert pq.read_table(tmp_path)["policy_version"].to_pylist() == [[4, 9, 5], [6] * 4]
    assert [(row.policy_version, row.newest_version) for row in dump.rows()] == [(4, 5), (6, 6)]


def test_advantages_a_token_and_rows_without_a_valid_token(tmp_path: Path) -> None:
    mask = torch.tensor([[0] * 6, [0, 0, 1, 1, 1, 1]])
    dump = written(tmp_path, rollout_log_probs=MU, old_log_probs=PI, response_mask=mask, advantages=MU)
    empty, full = dump.rows()
    assert (len(empty.rollout_log_probs), len(full.rollout_log_probs)) == (0, 4)
    assert full.advantages.tolist() == ROLLOUT_ROWS[1]
    assert ra.analyze(dump, presets=[], sweep=False).overall["kl_k1"] is not None


def test_nothing_but_the_rollout_waits_for_a_join(tmp_path: Path) -> None:
    uid = ["a", "b"]
    rollout = written(tmp_path / "rollout", rollout_log_probs=MU, response_mask=MASK, uid=uid)
    with pytest.raises(ra.DumpError, match="this file was recorded on the rollout's side; add them with --join DUMP"):
        ra.analyze(rollout)
    with ra.DumpWriter(tmp_path / "trainer", on_error="raise") as writer:
        writer.write(step=7, old_log_probs=PI.flip(0), response_mask=MASK.flip(0), uid=uid[::-1])
    dump = ra.open_dump(tmp_path / "rollout", join=tmp_path / "trainer")
    assert [row.old_log_probs.tolist() for row in dump.rows()] == OLD_ROWS


def test_a_folder_of_mixed_steps_is_noticed_once(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    writer = ra.DumpWriter(tmp_path, on_error="raise")
    writer.write(step=1, rollout_log_probs=MU, old_log_probs=PI)
    writer.write(step=2, rollout_log_probs=MU, log_probs=PI)
    assert not recwarn.list
    writer.write(step=3, old_log_probs=PI)
    writer.write(step=4, rollout_log_probs=MU)
    (caught,) = recwarn.list
    assert str(caught.message) == (
        "rollout-audit: step 3 has log-probs of trainer, the one before of rollout and trainer: such files do not make "
        "one dump"
    )
    assert caught.filename == __file__


def test_the_trainer_side_alone_is_a_recording(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    writer = ra.DumpWriter(tmp_path, on_error="raise")
    for step in (1, 2):
        writer.write(step=step, old_log_probs=PI, uid=["a", "b"])
    assert not recwarn.list
    with pytest.raises(ra.DumpError) as raised:
        ra.open_dump(tmp_path)
    assert str(raised.value) == (
        "step_000001_rank_0.parquet: no column for rollout_log_probs; columns are step, old_log_probs, response_mask, "
        "uid; name it with --map rollout_log_probs=COLUMN, or give the dump of the rollout's side and this one as "
        "--join"
    )


@pytest.mark.parametrize(("alone", "named"), [(1, "step_000000_rank_0.parquet"), (5, " and 2 more")])
def test_files_without_a_rollout_side_are_all_named(alone: int, named: str, tmp_path: Path) -> None:
    for step in range(alone):
        ra.DumpWriter(tmp_path, on_error="raise").write(step=step, old_log_probs=PI)
    ra.DumpWriter(tmp_path, on_error="raise").write(step=alone, rollout_log_probs=MU, old_log_probs=PI)
    listed = ", ".join(f"step_{step:06d}_rank_0.parquet" for step in range(min(alone, 3)))
    with pytest.raises(ra.DumpError) as raised:
        ra.open_dump(tmp_path)
    text = str(raised.value)
    assert text.startswith(f"no rollout_log_probs in {alone} of {alone + 1} files, only the trainer's ({listed}")
    assert named in text
    assert text.endswith(
        "leave these files out, or give them as --join to the dump that has their rollout_log_probs under the same uid"
    )


def test_names_tell_ranks_and_calls_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {"rollout_log_probs": MU, "old_log_probs": PI, "response_mask": MASK}
    with ra.DumpWriter(tmp_path, rank=3) as writer:
        first, second = writer.write(step=1, **batch), writer.write(step=1, **batch)
        third = writer.write(step=2, **batch)
    monkeypatch.setenv("RANK", "5")
    fourth = ra.DumpWriter(tmp_path).write(step=2, **batch)
    assert [path.name for path in (first, second, third, fourth) if path] == [
        "step_000001_rank_3.parquet",
        "step_000001_rank_3_part_1.parquet",
        "step_000002_rank_3.parquet",
        "step_000002_rank_5.parquet",
    ]
    assert [row.step for row in ra.open_dump(tmp_path).rows()] == [1] * 4 + [2] * 4


@pytest.mark.parametrize("values", [[["-1", "-2"]], [["a", None]], [[b"x", b"y"]], [np.array(["-1", "-2"])]])
def test_text_is_no_log_prob(values: Any, tmp_path: Path) -> None:
    writer = ra.DumpWriter(tmp_path)
    with pytest.warns(RuntimeWarning, match="is no number"):
        assert writer.write(step=1, rollout_log_probs=values, old_log_probs=[[-9.0, -1.0]]) is None
    assert (writer.not_recorded, list(tmp_path.iterdir())) == (1, [])


NO_STEPS = [True, np.bool_(False), -3, -1, 1.5, float("nan"), float("inf"), 2**63, "x", None, [1], MU]


@pytest.mark.parametrize("step", NO_STEPS, ids=[str(step)[:12] for step in NO_STEPS])
def test_a_step_is_a_whole_number(step: Any, tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning) as caught:
        assert ra.DumpWriter(tmp_path).write(step=step, rollout_log_probs=MU, old_log_probs=PI) is None
    text = str(caught[0].message)
    assert " is no number of a training step: a whole number from 0 on" in text
    assert "\n" not in text
    assert len(text) < 350
    with pytest.raises(ra.UsageError, match="is no number of a training step"):
        ra.DumpWriter(tmp_path, on_error="raise").write(step=step, rollout_log_probs=MU, old_log_probs=PI)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", [7, 7.0, np.int32(7), np.array([7]), torch.tensor(7), torch.tensor([7])])
def test_a_step_in_any_form_of_number(step: Any, tmp_path: Path) -> None:
    dump = written(tmp_path, step=step, rollout_log_probs=MU, old_log_probs=PI, response_mask=MASK)
    assert [row.step for row in dump.rows()] == [7, 7]


@pytest.mark.parametrize("rank", ["0", -1, 1.5, True, "a/b"])
def test_a_rank_is_a_whole_number(rank: Any, tmp_path: Path) -> None:
    with pytest.raises(ra.UsageError, match=f"rank = {rank!r}: expected a whole number from 0 on"):
        ra.DumpWriter(tmp_path, rank=rank)


def test_a_filter_that_makes_errors_of_warnings_does_not_end_the_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ra.DumpWriter(tmp_path).write(step=1, rollout_log_probs=MU, old=PI) is None
    assert "unknown argument 'old'" in capsys.readouterr().err


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "no log-probs given"),
    "shape": (
        {"rollout_log_probs": MU, "old_log_probs": PI[:, :5]},
        "old_log_probs (Tensor [2, 5], 10 values) does not fit rollout_log_probs (Tensor [2, 6], 12 values)",
    ),
    "mask shape": (
        {"rollout_log_probs": MU, "old_log_probs": PI, "response_mask": MASK[:1]},
        "response_mask (Tensor [1, 6], 6 values) does not fit rollout_log_probs (Tensor [2, 6], 12 values)",
    ),
    "mask value": (
        {"rollout_log_probs": MU, "old_log_probs": PI, "response_mask": MASK * 2},
        "response_mask holds 2; only 0 and 1 are allowed",
    ),
    "flat": ({"rollout_log_probs": MU[0], "old_log_probs": PI[0]}, "rollout_log_probs is [6]; expected [B, T]"),
    "rows": ({"rollout_log_probs": MU, "old_log_probs": PI, "reward": [1.0]}, "reward has 1 value for 2 responses"),
    "no batch": ({"rollout_log_probs": 5}, "rollout_log_probs is 5; expected [B, T], or a list of B responses"),
    "text": ({"rollout_log_probs": MU, "reward": "x"}, "reward holds 'x'; expected one number a response"),
    "nested": ({"rollout_log_probs": MU, "reward": [[1.0]] * 2}, "reward holds [1.0]; expected one number a response"),
    "part": ({"rollout_log_probs": MU, "policy_version": [1.5, 2]}, "policy_version holds 1.5; expected one whole num"),
    "huge": ({"rollout_log_probs": MU, "trainer_version": 2**70}, "trainer_version holds 1180591620717411303424; exp"),
    "sparse": ({"rollout_log_probs": MU.to_sparse()}, "rollout_log_probs cannot be taken as numbers (can't convert Sp"),
    "complex": ({"rollout_log_probs": MU * 1j}, "rollout_log_probs holds np.complex64("),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_warnings_unless_asked(case: str, tmp_path: Path) -> None:
    arguments, message = BAD[case]
    with pytest.warns(RuntimeWarning) as caught:
        assert ra.DumpWriter(tmp_path).write(step=3, **arguments) is None
    text = str(caught[0].message)
    assert text.startswith("rollout-audit: step 3 is not recorded: ")
    assert message in text
    assert caught[0].filename == __file__
    with pytest.raises(ra.DumpError) as raised:
        ra.DumpWriter(tmp_path, on_error="raise").write(step=3, **arguments)
    assert message in str(raised.value)
    assert not list(tmp_path.iterdir())


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "unknown": (
        (),
        {"step": 1, "rollout_logprobs": MU},
        "step 1 is not recorded: unknown argument 'rollout_logprobs'; did you mean 'rollout_log_probs'?; known are ",
    ),
    "no step": ((), {"rollout_log_probs": MU}, "step without a number is not recorded: no step given: step=7 says"),
    "step": ((), {"step": "seven"}, "step 'seven' is not recorded: step 'seven' is no number"),
    "no step, None": ((), {"step": None}, "step None is not recorded: step None is no number"),
    "by place": ((1, MU), {}, "step without a number is not recorded: 2 arguments without a name; every one is named"),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call_that_does_not_fit_never_reaches_the_loop(case: str, tmp_path: Path) -> None:
    args, given, message = CALLS[case]
    writer: Any = ra.DumpWriter(tmp_path)
    with pytest.warns(RuntimeWarning) as caught:
        assert writer.write(*args, **given) is None
    assert str(caught[0].message).startswith(f"rollout-audit: {message}")
    assert caught[0].filename == __file__
    assert writer.not_recorded == 1
    with pytest.raises((ra.UsageError, ValueError, TypeError)):
        ra.DumpWriter(tmp_path, on_error="raise").write(*args, **given)


def test_each_kind_of_failure_is_said_once_and_all_are_counted(tmp_path: Path) -> None:
    def loop() -> None:
        with ra.DumpWriter(tmp_path) as writer:
            for step in range(5):
                writer.write(step=step, rollout_log_probs=MU, old_log_probs=PI[:, : 5 - step % 2])
            writer.write(step=5, rollout_log_probs=MU, old_log_probs=PI)
            writer.write(step=6)
            assert writer.not_recorded == 6

    with pytest.warns(RuntimeWarning) as caught:
        loop()
    first, second, total = (str(warning.message) for warning in caught)
    assert first.startswith("rollout-audit: step 0 is not recorded: old_log_probs (Tensor [2, 5], 10 values) does not")
    assert second.startswith("rollout-audit: step 6 is not recorded: no log-probs given")
    assert total == "rollout-audit: 6 of 7 calls of DumpWriter.write recorded nothing"
    assert {warning.filename for warning in caught} == {__file__}


def test_a_disk_that_refuses_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="step 1 is not recorded"):
        assert ra.DumpWriter(tmp_path / "file").write(step=1, rollout_log_probs=MU, old_log_probs=PI) is None
    with pytest.raises(ra.UsageError, match="on_error = 'ignore'"):
        ra.DumpWriter(tmp_path, on_error="ignore")


def test_none_for_a_log_prob_that_the_engine_could_not_give_is_a_fault_later(tmp_path: Path) -> None:
    dump = written(tmp_path, rollout_log_probs=[[-0.5, None]], old_log_probs=[[-0.5, -0.25]])
    with pytest.raises(ra.DumpError, match="position 1: rollout_log_probs is NaN under mask 1"):
        ra.analyze(dump)


def _write_in_process(folder: str, rank: int) -> None:
    ra.DumpWriter(folder, rank=rank, on_error="raise").write(step=1, rollout_log_probs=MU, old_log_probs=PI)


def test_processes_side_by_side(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write_in_process, args=(str(tmp_path), rank)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert ra.open_dump(tmp_path).total_rows == 4
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_lists_are_written_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys, rollout_audit as ra;"
        "assert not {'numpy', 'pyarrow', 'torch'} & set(sys.modules);"
        f"w = ra.DumpWriter({str(tmp_path)!r}, on_error='raise');"
        "assert not {'numpy', 'pyarrow', 'torch'} & set(sys.modules);"
        "w.write(step=1, rollout_log_probs=[[-0.5]], old_log_probs=[[-0.5]]);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert ra.open_dump(tmp_path).total_rows == 1


@pytest.mark.parametrize(
    "names",
    [
        lambda: map(str, (101, 102)),
        lambda: (str(one) for one in (101, 102)),
        lambda: {"101": 1, "102": 2}.keys(),
        lambda: range(101, 103),
        lambda: deque(["101", "102"]),
    ],
)
def test_names_of_any_ordered_collection_go_to_their_rows(names: Any, tmp_path: Path) -> None:
    sides = {"rollout_log_probs": MU, "old_log_probs": PI, "response_mask": MASK}
    dump = written(tmp_path, **sides, uid=names(), group_id=names(), reward=range(2))
    assert [(row.uid, row.group_id, row.reward) for row in dump.rows()] == [("101", "101", 0.0), ("102", "102", 1.0)]


@pytest.mark.parametrize("names", [{"a", "b"}, frozenset("ab"), {"a": 1, "b": 2}])
@pytest.mark.parametrize("argument", ["uid", "advantages", "response_mask"])
def test_collections_without_an_order_are_refused(names: Any, argument: str, tmp_path: Path) -> None:
    with pytest.raises(ra.DumpError, match=rf"{argument} is a {type(names).__name__}, whose order is not that of the"):
        written(tmp_path, **{"rollout_log_probs": MU, "old_log_probs": PI, argument: names})


def test_endless_names_are_an_error_not_an_endless_call(tmp_path: Path) -> None:
    with pytest.raises(ra.DumpError, match="uid has 3 values for 2 responses"):
        written(tmp_path, rollout_log_probs=MU, old_log_probs=PI, uid=itertools.count())


def test_one_advantage_a_response_from_an_iterator(tmp_path: Path) -> None:
    sides = {"rollout_log_probs": MU, "old_log_probs": PI, "response_mask": MASK}
    dump = written(tmp_path, **sides, advantages=map(float, (2, 3)))
    assert [row.advantages.tolist() for row in dump.rows() if row.advantages is not None] == [[2.0] * 3, [3.0] * 4]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_an_empty_response_does_not_widen_the_others(kind: torch.dtype, tmp_path: Path) -> None:
    rows = [MU[0].to(kind), [], MU[1].to(kind)]
    ids = [torch.arange(6), [], torch.arange(6)]
    dump = written(tmp_path, rollout_log_probs=rows, old_log_probs=rows, token_ids=ids)
    stored = pq.read_schema(dump.files[0].path)
    assert [str(stored.field(name).type.value_type) for name in ("rollout_log_probs", "token_ids")] == [
        "float",
        "int64",
    ]
    assert [len(row.rollout_log_probs) for row in dump.rows()] == [6, 0, 6]


@pytest.mark.parametrize(
    "values", [[torch.rand(1, 3)], [[[-0.1, -0.2], [-0.3, -0.4]]], [[[0.0]]], [[np.zeros(2), np.zeros(2)]]]
)
def test_a_response_of_two_dimensions_is_said(values: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ra.DumpError, match=r"rollout_log_probs holds a response of shape \[\d, \d\]; expected one value"
    ):
        written(tmp_path, rollout_log_probs=values, old_log_probs=[[-0.5]])


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("CUDA error")

    __repr__ = __str__


class Broken:
    shape = (2, 4)

    def detach(self) -> None:
        raise Mute


@pytest.mark.parametrize("arguments", [{"step": Mute()}, {"step": 1, "rollout_log_probs": Broken()}])
def test_what_cannot_even_be_said_never_reaches_the_loop(arguments: Any, tmp_path: Path) -> None:
    writer = ra.DumpWriter(tmp_path)
    with pytest.warns(RuntimeWarning, match="is not recorded"):
        assert writer.write(**{"rollout_log_probs": MU, "old_log_probs": PI, **arguments}) is None
    assert writer.not_recorded == 1
