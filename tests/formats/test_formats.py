"""Files written by the frameworks' own code: `open_dump` yields exactly what was recorded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

import rollout_audit as ra
from rollout_audit.dumps import inspect_dump

HERE = Path(__file__).parent
TOKEN_FIELDS = ("rollout_log_probs", "old_log_probs", "log_probs", "response_mask", "token_ids", "advantages")
CASES = {
    "nemo_rl": ("nemo-rl", None, 56, 2049, 0.069695),
    "prime_rl": ("prime-rl", None, 48, 1230, 0.090655),
    "slime": ("slime", None, 60, 2697, 0.068157),
    "miles": ("miles", None, 48, 1230, 0.077798),
    "miles_cp2": ("miles", None, 12, 1575, 0.059936),
    "skyrl": ("safetensors", None, 48, 1230, 0.077798),
    "roll": ("safetensors", "roll", 24, 2782, 0.059920),
    "trl": ("safetensors", None, 32, 3659, 0.059229),
    "areal": ("safetensors", "areal", 24, 2782, 0.059920),
    "verl": ("safetensors", None, 24, 2782, 0.059920),
    "open_instruct": ("open-instruct", None, 48, 1198, None),
}
"""folder → format, layout, rows, valid tokens, mean |d| over them; None: one side alone"""
NOT_IN_FILE = {("open_instruct", "response_mask"), ("verl", "token_ids"), ("skyrl", "advantages")}
"""What the truth has and the file does not, or, at SkyRL's tool tokens, otherwise"""


def truth_of(name: str) -> list[dict[str, Any]]:
    rows = pq.read_table(HERE / "truth" / f"{name}.parquet").to_pylist()
    # the files of TRL are read in the order of their names, its truth lists the batch with tools first
    return sorted(rows, key=lambda row: "tools" in row["key"]) if name == "trl" else rows


def as_array(values: list[Any]) -> Any:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_that_were_recorded(name: str, tmp_path: Path, *, converted: bool) -> None:
    file_format, layout, rows, _, _ = CASES[name]
    dump = ra.open_dump(HERE / name, layout=layout)
    assert {file.format for file in dump.files} == {file_format}
    if converted:
        ra.convert_dump(dump, tmp_path / "native")
        dump = ra.open_dump(tmp_path / "native")
    read, truth = list(dump.rows()), truth_of(name)
    assert len(read) == len(truth) == rows == dump.total_rows
    for row, true in zip(read, truth, strict=True):
        assert row.step == true["step"], true["key"]
        for field in TOKEN_FIELDS:
            if field in true and (name, field) not in NOT_IN_FILE:
                values = np.asarray(getattr(row, field), np.float64)
                np.testing.assert_array_equal(values, as_array(true[field]), f"{true['key']} {field}")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[4] is not None])
def test_mean_difference_is_the_known_one(name: str) -> None:
    _, layout, _, tokens, mean = CASES[name]
    report = ra.analyze(ra.open_dump(HERE / name, layout=layout), presets=[], sweep=False)
    assert report.overall["log_prob_diff_abs_mean"] == pytest.approx(mean, abs=1e-6)
    inspection = inspect_dump(ra.open_dump(HERE / name, layout=layout))
    assert (inspection.valid_tokens, inspection.has_errors) == (tokens, False)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_either_file_of_verl_is_the_batch(suffix: str) -> None:
    dump = ra.open_dump(HERE / f"verl/batch_step_1.{suffix}")
    for row, true in zip(dump.rows(), truth_of("verl"), strict=True):
        for field in ("rollout_log_probs", "old_log_probs", "response_mask"):
            np.testing.assert_array_equal(getattr(row, field), as_array(true[field]).astype(np.float32))


@pytest.mark.parametrize("suffix", ["npz", "jsonl"])
def test_the_batch_of_verl_in_plain_files(suffix: str) -> None:
    dump = ra.open_dump(HERE / f"plain/batch_step_1.{suffix}")
    assert dump.files[0].format == suffix
    for row, true in zip(dump.rows(), truth_of("verl"), strict=True):
        assert row.step == true["step"]
        for field in ("rollout_log_probs", "old_log_probs", "response_mask"):
            np.testing.assert_array_equal(getattr(row, field), as_array(true[field]))


def test_verl_folder_is_read_once() -> None:
    """It holds one batch in two formats."""
    (finding,) = ra.open_dump(HERE / "verl").left_out
    assert (finding.kind, finding.severity, finding.file) == ("file_left_out", "warning", "batch_step_1.pt")
    assert "24 rows of batch_step_1.safetensors" in finding.message


def test_areal_has_a_version_a_token() -> None:
    """All tokens of the file come from version 0, its prompts have -1."""
    rows = list(ra.open_dump(HERE / "areal", layout="areal").rows())
    assert {(row.policy_version, row.newest_version) for row in rows} == {(0, 0)}


def padded_areal(*, advantages_computed: bool) -> dict[str, torch.Tensor]:
    """The sequences of `areal` as the trainer holds them in memory: [B, T], right padded, prompt and response."""
    truth = truth_of("areal")
    shape = len(truth), max(one["prompt_length"] + len(one["token_ids"]) for one in truth)
    names = {"input_ids": torch.int64, "versions": torch.int32, "attention_mask": torch.bool, "loss_mask": torch.int32}
    batch = {name: torch.zeros(shape, dtype=kind) for name, kind in names.items()}
    batch |= {name: torch.zeros(shape) for name in ("logprobs", "prox_logp")}
    for i, one in enumerate(truth):
        first, end = one["prompt_length"], one["prompt_length"] + len(one["token_ids"])
        batch["attention_mask"][i, :end] = True
        batch["input_ids"][i, :end] = torch.tensor([*range(1, first + 1), *one["token_ids"]])
        batch["versions"][i, :first] = -1
        batch["logprobs"][i, first:end] = torch.tensor(one["rollout_log_probs"])
        batch["loss_mask"][i, first:end] = torch.tensor(one["response_mask"], dtype=torch.int32)
        # the engine scores the next token, and at the end of a row something of no meaning
        batch["prox_logp"][i, : end - 1] = torch.tensor([-0.3] * (first - 1) + one["old_log_probs"])
        batch["prox_logp"][i, end - 1 :] = -9.75
    if advantages_computed:
        batch["loss_mask"] = torch.roll(batch["loss_mask"].float(), shifts=-1, dims=-1)
        batch["logprobs"] = torch.roll(batch["logprobs"], shifts=-1, dims=-1) * batch["loss_mask"]
    return batch


def packed(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    real = batch["attention_mask"]
    ends = torch.cat([torch.zeros(1, dtype=torch.int32), real.sum(-1).cumsum(0).int()])
    return {name: t[real] for name, t in batch.items() if name != "attention_mask"} | {"cu_seqlens": ends}


@pytest.mark.parametrize("form", ["padded", "packed", "padded without attention_mask"])
@pytest.mark.parametrize(("layout", "advantages_computed"), [("areal", True), ("areal-rollout", False)])
@pytest.mark.parametrize("suffix", ["pt", "safetensors", "npz"])
def test_areal_batch_before_and_after_advantages(
    suffix: str, layout: str, advantages_computed: bool, form: str, tmp_path: Path
) -> None:
    batch = padded_areal(advantages_computed=advantages_computed)
    if form == "packed":
        batch = packed(batch)
    elif "without" in form:
        del batch["attention_mask"]
    path = tmp_path / f"batch.{suffix}"
    if suffix == "npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in batch.items()})
    else:
        (torch.save if suffix == "pt" else save_file)(batch, path)
    with pytest.raises(ra.UsageError, match="--layout areal if so, --layout areal-rollout if not yet"):
        ra.open_dump(path)
    for chunk in ra.open_dump(path, layout=layout).chunks(chunk_tokens=700):
        assert {*chunk.policy_versions.tolist(), *chunk.newest_versions.tolist()} == {0}
    for row, true in zip(ra.open_dump(path, layout=layout).rows(), truth_of("areal"), strict=True):
        # where nothing says how long a row is it ends with the mask, before tool tokens that nothing follows
        end = len(true["token_ids"]) if "without" not in form else 1 + int(np.flatnonzero(true["response_mask"])[-1])
        for field in ("rollout_log_probs", "old_log_probs", "response_mask", "token_ids"):
            values = np.asarray(getattr(row, field), np.float64)
            np.testing.assert_array_equal(values, as_array(true[field][:end]).astype(np.float32), field)


def test_prox_logp_of_a_response_without_a_prompt_is_missing_not_zero(tmp_path: Path) -> None:
    """Nobody scored its first token."""
    batch = {
        "logprobs": torch.tensor([[-0.5, -0.25, -1.0]]),
        "prox_logp": torch.tensor([[-0.25, -1.0, -9.75]]),
        "loss_mask": torch.tensor([[1, 1, 1]]),
    }
    save_file(batch, tmp_path / "batch.safetensors")
    (finding,) = inspect_dump(ra.open_dump(tmp_path, layout="areal-rollout")).findings
    assert (finding.kind, finding.row, finding.position) == ("nan", 0, 0)


def test_slime_and_miles_have_a_version_a_turn() -> None:
    for path in ("slime/grpo_run/rollout_data/2.pt", "miles/grpo_run/rollout_data/2.pt"):
        assert {(row.policy_version, row.newest_version) for row in ra.open_dump(HERE / path).rows()} == {(0, 0)}


def test_uids_are_the_trainers_own_numbers() -> None:
    for name in ("slime", "miles"):
        keys = [row["key"].rpartition("/")[2] for row in truth_of(name)]
        assert [row.uid for row in ra.open_dump(HERE / name).rows()] == keys


def test_skipped_forward_pass_of_nemo_rl_is_no_trainer() -> None:
    dump = ra.open_dump(HERE / "nemo_rl_faulty")
    with pytest.raises(ra.DumpError, match=r"no log-probs of the trainer, prev_logprobs is 0.0 throughout"):
        ra.analyze(dump)
    with pytest.raises(ra.DumpError, match="force_on_policy_ratio"):
        ra.trainer_metrics(dump, "verl", {})
    (finding,) = [f for f in inspect_dump(dump).findings if f.severity == "error"]
    assert finding.kind == "rollout_only"
    assert all(row.old_log_probs is None for row in dump.rows())


def test_one_skipped_step_among_others_is_named() -> None:
    dump = ra.open_dump([HERE / "nemo_rl", HERE / "nemo_rl_faulty"])
    assert len(dump.files) == 4
    (finding,) = dump.left_out
    assert (finding.severity, finding.count) == ("warning", 1)
    assert "nothing is the trainer's" in finding.message
    assert finding.file is not None
    assert "nemo_rl_faulty" in finding.file


def test_unfinished_step_of_prime_rl_is_left_out_or_refused(tmp_path: Path) -> None:
    dump = ra.open_dump(HERE / "prime_rl")
    (finding,) = dump.left_out
    assert (finding.severity, finding.count) == ("warning", 2)
    assert "step_3" in str(finding.file)
    alone = HERE / "prime_rl/token_exports/step_3"
    with pytest.raises(ra.DumpError, match="no STABLE beside it"):
        ra.open_dump(alone)
    forced = ra.open_dump(alone, input_format="prime-rl")
    assert {row.step for row in forced.rows()} == {3}
    shutil.copytree(alone, tmp_path / "step_3")
    (tmp_path / "step_3" / "STABLE").touch()
    assert ra.open_dump(tmp_path).total_rows == forced.total_rows > 0


@pytest.mark.parametrize("version", [1, 3])
def test_other_versions_of_slime_are_refused(version: int, tmp_path: Path) -> None:
    content = torch.load(HERE / "slime/grpo_run/train_data/1.pt", weights_only=True)
    content["format_version"] = version
    torch.save(content, tmp_path / "1.pt")
    with pytest.raises(ra.DumpError) as raised:
        ra.open_dump(tmp_path)
    assert str(raised.value) == (
        f"1.pt: not as slime writes it (format_version is {version}, and 2 is the one that is known: save its tensors "
        "as safetensors or JSON Lines under this tool's names)"
    )


def test_another_schema_of_prime_rl_is_refused(tmp_path: Path) -> None:
    lines = (HERE / "prime_rl/token_exports/step_1/rank_0.jsonl").read_text()
    (tmp_path / "rank_0.jsonl").write_text(lines.replace('"schema_version":1', '"schema_version":2'))
    (tmp_path / "STABLE").touch()
    with pytest.raises(
        ra.DumpError, match=r"rank_0.jsonl, row 0: not as prime-rl writes it \(schema_version is 2, and 1"
    ):
        ra.open_dump(tmp_path)


def test_rollout_files_are_read_but_not_compared() -> None:
    dump = ra.open_dump(HERE / "open_instruct")
    truth = truth_of("open_instruct")
    for row, true in zip(dump.rows(), truth, strict=True):
        assert (row.uid, row.step) == ("/".join(true["key"].split("/")[1:]), true["step"])
        np.testing.assert_array_equal(row.rollout_log_probs, as_array(true["rollout_log_probs"]))
        assert row.response_mask.all() == (len(true["response_mask"]) > 1)  # the failed request has no valid token
    assert {finding.kind for finding in dump.notes} == {"rollout_only", "file_left_out"}
    assert [file.name.rpartition("_")[2] for file in dump.files] == ["000000.jsonl", "000001.jsonl"]
    with pytest.raises(ra.DumpError, match=r"open-instruct writes the engine's log-probs alone.*--join DUMP"):
        ra.analyze(dump)


@pytest.mark.parametrize(
    ("path", "file_format", "rows"),
    [
        ("slime/grpo_run/rollout_data", "slime-rollout", 48),
        ("slime/llamacpp_q4/rollout_data/eval_0.pt", "slime-rollout", 2),
        ("miles/grpo_run/rollout_data/1.pt", "slime-rollout", 16),
        ("miles/grpo_run/dashboard_columns", "miles-dashboard", 48),
    ],
)
def test_rollout_only_dumps_say_what_is_missing(path: str, file_format: str, rows: int) -> None:
    dump = ra.open_dump(HERE / path)
    assert {file.format for file in dump.files} == {file_format}
    assert sum(1 for _ in dump.rows()) == rows
    with pytest.raises(ra.DumpError, match=r"no log-probs of the trainer, .*; add them with --join DUMP"):
        ra.analyze(dump)


@pytest.mark.parametrize("trainer", ["slime", "miles"])
def test_rollouts_that_nobody_wrote_the_training_of_are_said_apart(trainer: str, tmp_path: Path) -> None:
    """One run without any train file, and one without that of its second rollout, beside each other."""
    for run in ("bare", "part"):
        shutil.copytree(HERE / trainer / "grpo_run", tmp_path / run)
    shutil.rmtree(tmp_path / "bare/train_data")
    for path in (tmp_path / "part/train_data").glob("1*"):
        path.unlink()
    for path in tmp_path.rglob("*eval*"):
        path.unlink()
    dump = ra.open_dump(tmp_path)
    assert sorted({row.step for row in dump.rows()}) == [0, 2]
    missing, paired = dump.left_out
    each = 1 if trainer == "slime" else 2
    assert (missing.severity, missing.count) == ("warning", 4 * each)
    assert "the trainer's are missing" in missing.message
    assert "slime and miles write train_data with --dump-details DIR, else give a dump that has" in missing.message
    assert (paired.severity, paired.count) == ("info", 2 * each)
    assert "beside files that hold the trainer's too" in paired.message


def test_dashboards_agree_with_the_train_files() -> None:
    train = {(row.step, row.uid): row for row in ra.open_dump(HERE / "miles").rows()}
    for row in ra.open_dump(HERE / "miles/grpo_run/dashboard_columns").rows():
        whole = train[row.step, row.uid]
        np.testing.assert_array_equal(row.rollout_log_probs, whole.rollout_log_probs)
        np.testing.assert_array_equal(row.response_mask, whole.response_mask)


def test_context_parallel_slices_need_every_rank(tmp_path: Path) -> None:
    shutil.copy(HERE / "miles_cp2/llamacpp_q4/train_data/0_1.pt", tmp_path / "0_1.pt")
    with pytest.raises(ra.DumpError, match=r"0_1.pt: .* over 2 context-parallel ranks and that of cp_rank 0 is not"):
        ra.open_dump(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("roll", r"response_mask \[24, 288\] is one wider than infer_logprobs \[24, 287\].*--layout roll"),
        (
            "areal",
            r"nothing in the file says whether they were: --layout areal if so, --layout areal-rollout if not yet",
        ),
    ],
)
def test_layout_that_content_cannot_tell_is_asked_for(name: str, message: str) -> None:
    with pytest.raises(ra.UsageError, match=message):
        ra.open_dump(HERE / name)


@pytest.mark.parametrize("name", ["completion_mask", "tool_mask"])
def test_a_mask_of_another_shape_is_refused(name: str, tmp_path: Path) -> None:
    batch = load_file(HERE / "trl/generation_batch_tools.safetensors")
    batch[name] = batch[name][:-1].clone()
    save_file(batch, tmp_path / "x.safetensors")
    with pytest.raises(ra.DumpError) as raised:
        ra.open_dump(tmp_path)
    assert str(raised.value) == (
        f"x.safetensors: {name} [23, 220] does not fit sampling_per_token_logps [24, 220]: the layout trl needs one "
        "value a token"
    )


@pytest.mark.parametrize("broken", [torch.zeros(0), torch.zeros(3), None, "2", [2]])
def test_a_version_that_is_no_number_is_refused(broken: Any, tmp_path: Path) -> None:
    content = torch.load(HERE / "slime/grpo_run/train_data/0.pt", weights_only=True)
    torch.save(content | {"format_version": broken}, tmp_path / "0.pt")
    with pytest.raises(ra.DumpError, match=r"^0\.pt: not as slime writes it \(.*\)$") as raised:
        ra.open_dump(tmp_path)
    assert "\n" not in str(raised.value)


def test_layout_asked_for_must_fit() -> None:
    with pytest.raises(ra.UsageError, match="layout roll needs the tensor 'attention_mask'; there are old_log_probs, "):
        ra.open_dump(HERE / "verl/batch_step_1.pt", layout="roll")


def test_chunk_size_and_parts_do_not_matter() -> None:
    for name, (_, layout, *_, mean) in CASES.items():
        if mean is None:
            continue
        dump = ra.open_dump(HERE / name, layout=layout)
        whole = [row.rollout_log_probs.tolist() for row in dump.rows()]
        small = [
            chunk.rollout_log_probs[chunk.offsets[i] : chunk.offsets[i + 1]].tolist()
            for part in dump.parts()
            for chunk in dump.chunks(chunk_tokens=64, parts=[part])
            for i in range(chunk.rows)
        ]
        assert small == whole, name
