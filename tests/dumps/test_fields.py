"""Columns → fields, by name, by the alias of every trainer, by --map."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_audit.dumps import inspect_dump, open_dump
from rollout_audit.dumps.fields import FIELDS, Mapped, resolve_fields
from rollout_audit.errors import MissingFieldError, UnreadableFileError, UsageError

LP = [[-0.5, -0.2]]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["generation_logprobs", "prev_logprobs", "token_loss_mask", "rewards"], ["NeMo", "old_log_probs"]),
        (["inference_logprobs", "trainer_logprobs", "loss_mask"], ["prime", "log_probs"]),
        (["sampling_per_token_logps", "old_per_token_logps", "completion_mask"], ["TRL", "old_log_probs"]),
        (["rollout_logprobs", "action_log_probs", "loss_mask"], ["SkyRL", "old_log_probs"]),
        (["infer_logprobs", "old_log_probs", "response_mask"], ["ROLL", "old_log_probs"]),
        (["logprobs", "prox_logp", "loss_mask"], ["AReaL", "old_log_probs"]),
        (["rollout_log_probs", "train_log_probs", "loss_masks"], ["miles", "log_probs"]),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_names_of_trainers(columns: list[str], expected: list[str]) -> None:
    mapping = resolve_fields(columns)
    assert mapping["rollout_log_probs"].column == columns[0]
    assert mapping[expected[1]].column == columns[1]
    assert mapping["response_mask"].column == columns[2]


def test_no_alias_belongs_to_two_fields() -> None:
    names = [name for field in FIELDS for name in (field.name, *field.aliases)]
    assert len(names) == len(set(names))


def test_exact_name_wins_over_aliases_and_map_over_both() -> None:
    columns = ["rollout_log_probs", "rollout_logprobs", "old_log_probs", "mine"]
    assert resolve_fields(columns)["rollout_log_probs"] == Mapped("rollout_log_probs", "exact")
    mapped = resolve_fields(columns, {"rollout_log_probs": "mine", "log_probs": "rollout_logprobs"})
    assert mapped["rollout_log_probs"] == Mapped("mine", "map")
    assert mapped["log_probs"] == Mapped("rollout_logprobs", "map")


def test_mapped_column_is_not_taken_twice() -> None:
    mapping = resolve_fields(["a", "prev_logprobs"], {"rollout_log_probs": "prev_logprobs", "log_probs": "a"})
    assert "old_log_probs" not in mapping


ERRORS: list[tuple[list[str], dict[str, str], type[Exception], str]] = [
    (
        ["old_log_probs", "roll_log_probs"],
        {},
        MissingFieldError,
        "f: no column for rollout_log_probs; did you mean 'roll_log_probs'? columns are old_log_probs, "
        "roll_log_probs; name it with --map rollout_log_probs=COLUMN",
    ),
    (
        ["rollout_log_probs", "x"],
        {},
        MissingFieldError,
        "f: no column for old_log_probs (or log_probs); columns are rollout_log_probs, x; "
        "name it with --map old_log_probs=COLUMN",
    ),
    (
        ["rollout_log_probs", "prev_logprobs", "prox_logp"],
        {},
        UsageError,
        "f: both 'prev_logprobs' and 'prox_logp' could be old_log_probs; choose with --map old_log_probs=COLUMN",
    ),
    (
        ["rollout_log_probs", "old_log_probs"],
        {"old_logprob": "x"},
        UsageError,
        "--map old_logprob=x: no field is named 'old_logprob'; did you mean 'old_log_probs'? fields are "
        "rollout_log_probs, old_log_probs, log_probs, response_mask, advantages, reward, token_ids, uid, "
        "group_id, policy_version, trainer_version, step",
    ),
    (
        ["rollout_log_probs", "old_log_probs"],
        {"log_probs": "old_log_prob"},
        MissingFieldError,
        "f: --map log_probs=old_log_prob: no column is named 'old_log_prob'; did you mean 'old_log_probs'? "
        "columns are rollout_log_probs, old_log_probs",
    ),
    (["a", "b", "a"], {}, UnreadableFileError, "f: two columns are named 'a'; rename one"),
]


@pytest.mark.parametrize(("columns", "field_map", "error", "message"), ERRORS)
def test_errors_are_one_line(columns: Any, field_map: Any, error: Any, message: str) -> None:
    with pytest.raises(error) as raised:
        resolve_fields(columns, field_map, where="f")
    assert str(raised.value) == message


def test_many_columns_are_cut_short() -> None:
    with pytest.raises(MissingFieldError, match=r"c19, … \(40 in all\)"):
        resolve_fields([f"c{i}" for i in range(40)])


def test_ambiguous_row_field_takes_the_first_of_the_table() -> None:
    columns = ["rollout_log_probs", "old_log_probs", "raw_reward", "rewards"]
    assert resolve_fields(columns)["reward"] == Mapped("rewards", "alias")


def test_map_reaches_the_reader(write: Any) -> None:
    path = write(mine_log_probs=LP, yours_log_probs=[[-0.4, -0.1]])
    dump = open_dump(path, field_map={"rollout_log_probs": "mine_log_probs", "old_log_probs": "yours_log_probs"})
    assert dump.columns_read == ("mine_log_probs", "yours_log_probs")
    (row,) = dump.rows()
    assert row.old_log_probs is not None
    assert row.old_log_probs.tolist() == pytest.approx([-0.4, -0.1])
    fields = inspect_dump(dump).files[0].fields
    assert [(f.field, f.column, f.origin, f.type) for f in fields] == [
        ("rollout_log_probs", "mine_log_probs", "map", "list<element: float>"),
        ("old_log_probs", "yours_log_probs", "map", "list<element: float>"),
    ]


@pytest.mark.parametrize("text", [["a", "b b"], [["a"], ["b", "b"]]])
def test_text_of_the_responses_is_not_taken_for_ids(write: Any, text: list[Any]) -> None:
    two = [[-0.5, -0.7], [-0.1]]
    path = write(rollout_log_probs=two, old_log_probs=two, response_mask=[[1, 1], [1]], responses=text)
    dump = open_dump(path)
    assert "token_ids" not in dump.infos[0].fields
    (finding,) = dump.notes
    assert (finding.kind, finding.severity) == ("no_token_ids", "info")
    with pytest.raises(UnreadableFileError, match="'responses' \\(token_ids\\) holds"):
        open_dump(path, field_map={"token_ids": "responses"})


def test_two_masks_are_said(write: Any) -> None:
    path = write(rollout_log_probs=LP, old_log_probs=LP, response_mask=[[1, 1]], loss_mask=[[1, 0]])
    (finding,) = inspect_dump(open_dump(path)).findings
    assert (finding.kind, finding.severity) == ("two_masks", "info")
    (row,) = open_dump(path, field_map={"response_mask": "loss_mask"}).rows()
    assert row.response_mask.tolist() == [True, False]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([0.5], "holds double, expected a list of numbers a row (of the shape of the rollout's log-probs)"),
        ([["a", "b"]], "holds list<element: string>, which is not read; store integers, float64,"),
        ([[[-0.5], [-0.2]]], "holds list<element: list<element: double>>, which is not read;"),
    ],
)
def test_columns_of_the_wrong_type(write: Any, column: Any, message: str) -> None:
    import pyarrow as pa

    path = write(rollout_log_probs=LP, old_log_probs=pa.array(column))
    with pytest.raises(UnreadableFileError) as raised:
        open_dump(path)
    assert str(raised.value).startswith(f"dump.parquet: column 'old_log_probs' (old_log_probs) {message}")


def test_layout_is_one_of_the_table(write: Any) -> None:
    with pytest.raises(UsageError, match=r"layout = 'paded': expected one of padded, .*; did you mean 'padded'\?"):
        open_dump(write(rollout_log_probs=LP, old_log_probs=LP), layout="paded")
