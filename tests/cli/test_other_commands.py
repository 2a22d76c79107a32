from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rollout_audit.corrections.presets import PRESETS
from rollout_audit.dumps.formats.table import FORMATS
from rollout_audit.reports.catalogue import CATALOGUE
from rollout_audit.trainers.registry import get_trainer


def test_inspect_shows_files_fields_and_ranges(run, dump: Path) -> None:
    result = run("inspect", dump)
    assert result.code == 0
    assert result.out.splitlines()[0] == "OK  No fault found."
    for text in ("step_000001[red].parquet", "Fields of all files", "rollout_log_probs", "Values under mask 1"):
        assert text in result.out


def test_inspect_as_json_holds_everything(run, dump: Path) -> None:
    tree = json.loads(run("inspect", dump, "--format", "json").out)
    assert [file["rows"] for file in tree["files"]] == [16, 16, 16]
    assert {r["field"] for r in tree["ranges"]} == {"rollout_log_probs", "old_log_probs", "log_probs"}
    assert tree["findings"] == []


@pytest.mark.parametrize(
    ("options", "files", "rows", "steps"),
    [
        ((), 3, [16, 16, 16], [0, 1, 2]),
        (("--steps", "1:"), 2, [16, 16], [1, 2]),
        (("--limit", "20"), 2, [16, 4], [0, 1]),
        (("--steps", "1:2", "--limit", "5"), 1, [5], [1]),
        (("--steps", "1", "--workers", "2", "--chunk-tokens", "40"), 1, [16], [1]),
    ],
)
def test_inspect_looks_at_the_rows_asked_for(
    options: tuple[str, ...], files: int, rows: list[int], steps: list[int], run, dump: Path
) -> None:
    tree = json.loads(run("inspect", dump, "--format", "json", *options).out)
    assert [file["rows"] for file in tree["files"]] == rows
    assert [file["first_step"] for file in tree["files"]] == [file["last_step"] for file in tree["files"]] == steps
    names = sorted(dump.iterdir())
    lengths = [
        sum(map(sum, pq.read_table(names[step])["response_mask"].slice(0, count).to_pylist()))
        for step, count in zip(steps, rows, strict=True)
    ]
    assert [file["valid_tokens"] for file in tree["files"]] == lengths
    assert tree["ranges"][0]["tokens"] == sum(lengths)
    assert len(tree["files"]) == files
    text = run("inspect", dump, *options).out
    assert f"{'1 file' if files == 1 else f'{files} files'}, {sum(rows)} rows" in text


def test_inspect_finds_faults_only_in_the_rows_asked_for(run, dump: Path, tmp_path: Path) -> None:
    """The causes too: in the first step the sampler is as old as the trainer."""
    rows = pq.read_table(sorted(dump.iterdir())[0]).to_pylist()
    rows[9]["old_log_probs"][0] = float("nan")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "step_0.parquet")
    assert run("inspect", tmp_path).code == 1
    assert run("inspect", tmp_path, "--limit", "9").code == 0


WRITING = ("--out", "out", "--no-plots")
COMMANDS: dict[str, tuple[str, ...]] = {
    "analyze": WRITING,
    "metrics": ("--trainer", "verl"),
    "sweep": WRITING,
    "recommend": (),
    "inspect": (),
    "convert": ("--out", "out"),
    "apply": ("--preset", "token_rs", "--out", "out"),
    "check": ("--golden", "g.json", "--update"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("why", ["steps", "zero rows", "masked"])
def test_nothing_to_audit_is_exit_2_of_every_command(
    command: str, why: str, run, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real cases 56 and 67. What is there and masked can be converted."""
    monkeypatch.chdir(tmp_path)
    rows = pq.read_table(sorted(dump.iterdir())[0])
    masks = pa.array([[0] * len(mask) for mask in rows["response_mask"].to_pylist()], pa.list_(pa.uint8()))
    at = rows.column_names.index("response_mask")
    pq.write_table(rows.set_column(at, "response_mask", masks) if why == "masked" else rows.slice(0, 0), "some.parquet")
    asked = (dump, "--steps", "7:") if why == "steps" else ("some.parquet",)
    message = {"steps": "no row is in the steps asked for", "zero rows": "zero rows", "masked": "no valid token in 16"}
    result = run(command, *asked, *COMMANDS[command], *(["--quiet"] if command not in ("inspect", "metrics") else []))
    if (command, why) == ("convert", "masked"):
        assert result.code == 0
        return
    assert result.code == 2
    assert message[why] in (result.out if command == "inspect" else result.err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some.parquet"]


def test_inspect_shows_fields_once_however_wide_tensors_are(run) -> None:
    out = run("inspect", Path(__file__).parents[1] / "formats" / "skyrl").out
    assert out.count("Fields of ") == 1
    lines = {line.split()[0]: line.split(maxsplit=3)[3] for line in out.splitlines() if " alias " in line}
    assert lines == {"rollout_log_probs": "F32[16, 71] …", "old_log_probs": "F32[16, 71] …"}


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        (
            "open_instruct",
            "No audit can be made: no log-probs of the trainer in 2 of 2 files, open-instruct writes the engine's "
            "log-probs alone, and no mask of tool tokens; --join DUMP adds them by uid.",
        ),
        (
            "nemo_rl_faulty",
            "No audit can be made: no log-probs of the trainer in 1 of 1 files, prev_logprobs is 0.0 throughout: NeMo-"
            "RL skipped the trainer's forward pass (force_on_policy_ratio); --join DUMP adds them by uid.",
        ),
    ],
)
def test_inspect_says_first_that_a_side_is_missing(name: str, verdict: str, run) -> None:
    result = run("inspect", Path(__file__).parents[1] / "formats" / name)
    assert (result.code, result.out.splitlines()[0]) == (1, f"ERROR  {verdict}")


def test_inspect_follows_a_map(run, dump: Path) -> None:
    result = run("inspect", dump, "--map", "old_log_probs=log_probs", "--format", "json")
    fields = {f["field"]: f["column"] for f in json.loads(result.out)["files"][0]["fields"]}
    assert fields["old_log_probs"] == "log_probs"


def test_metrics_is_one_flat_dictionary(run, dump: Path) -> None:
    arguments = ("metrics", dump, "--trainer", "verl", "--config", "decoupled_seq_is_rs")
    flat = json.loads(run(*arguments, "--format", "json").out)
    assert all(name.startswith("rollout_corr/") for name in flat)
    assert json.loads(run(*arguments, "--format", "jsonl").out) == flat
    rows = list(csv.DictReader(io.StringIO(run(*arguments, "--format", "csv").out)))
    assert [row["metric"] for row in rows] == list(flat)
    assert run(*arguments).out.startswith("verl, whole dump as one batch\n")


def test_metrics_per_step(run, dump: Path) -> None:
    arguments = ("metrics", dump, "--trainer", "verl", "--config", '{"rollout_is": "token"}', "--per-step")
    by_step = json.loads(run(*arguments, "--format", "json").out)
    assert list(by_step) == ["0", "1", "2"]
    lines = [json.loads(line) for line in run(*arguments, "--format", "jsonl").out.splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert "step 2" in run(*arguments).out


def test_metrics_refuses_what_the_trainer_refuses(run, dump: Path) -> None:
    result = run("metrics", dump, "--trainer", "verl", "--config", '{"rollout_is": "tokens"}')
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: rollout_is = 'tokens'")


def test_presets_lists_all_of_them(run) -> None:
    text = run("presets").out
    assert all(f"\n{name} " in text for name in PRESETS)
    assert [p["name"] for p in json.loads(run("presets", "--format", "json").out)] == list(PRESETS)


def test_a_preset_is_pasted_where_its_trainer_looks(run) -> None:
    assert "--algo.advantage.is_correction_type tis" in run("presets", "openrlhf_tis").out
    assert "\ngrpo:\n  seq_logprob_error_threshold: 2.0\n" in run("presets", "nemo_rl_seq_error_mask").out


def test_effective_intervals_are_shown(run) -> None:
    assert "geometric ratio of the sequence in [0.999001, 1.001]" in run("presets", "decoupled_geo_rs").out


def test_explain_gives_formula_range_direction_limits_and_source(run) -> None:
    text = run("explain", "kl_k3").out
    for words in ("mean expm1(d) − d", "[0, ∞)", "higher", "critical above 0.1", "warn above 0.01", "Schulman"):
        assert words in text
    assert run("explain", "decoupled_seq_is:ess_seq").out.startswith("ess_seq\n")


def test_explain_finds_the_names_that_trainers_log(run) -> None:
    """With the reduction, the native figure and the quirk between them."""
    text = run("explain", "rollout_corr/rollout_is_eff_sample_size").out
    assert "rollout_corr/rollout_is_eff_sample_size, verl 2026-08" in text
    assert "1 / E[(x / E[x])²] over all valid tokens of the batch, x the bounded weight" in " ".join(text.split())
    assert "ess_after_bounding: The effective sample size is of bounded weights" in " ".join(text.split())
    found = json.loads(run("explain", "vllm_kl", "--format", "json").out)
    assert [(one["trainer"], one["native"], one["quirk"]) for one in found] == [("openrlhf", "kl_k1", "signed_kl")]
    missing = run("explain", "rollout_corr/kll")
    assert (missing.code, missing.out) == (2, "")
    assert "did you mean 'rollout_corr/kl'?" in missing.err


def test_explain_lists_all_metrics(run) -> None:
    assert [m["name"] for m in json.loads(run("explain", "--format", "json").out)] == list(CATALOGUE)


def test_doctor_names_versions_and_formats(run) -> None:
    facts = {f["subject"]: f["value"] for f in json.loads(run("doctor", "--format", "json").out)}
    assert facts["formats"] == ", ".join(FORMATS)
    assert {"python", "torch", "pyarrow", "workers", "temporary folder"} <= set(facts)


@pytest.mark.parametrize("command", [["presets"], ["explain"], ["explain", "ess"], ["presets", "seq_rs"]])
def test_every_listing_speaks_every_format(command: list[str], run) -> None:
    for style in ("table", "plain", "json", "jsonl", "csv", "markdown"):
        result = run(*command, "--format", style)
        assert result.code == 0
        assert result.out
        assert result.err == ""


def test_bounds_that_are_probably_not_meant_are_warned_of(run, dump: Path, tmp_path: Path) -> None:
    """Real case 8: verl's "0.5_5.0" keeps ρ in [0.2, 2]; and a cap below 1."""
    config = (
        '{"rollout_is":"token","rollout_is_threshold":0.5,"rollout_rs":"token_k1","rollout_rs_threshold":"0.5_5.0"}'
    )
    result = run("metrics", dump, "--trainer", "verl", "--config", config)
    assert result.code == 0
    assert "0.2" in result.err
    echo, *warnings = result.err.splitlines()
    assert echo == (
        "verl 2026-08 reads: token weight capped at 0.5; token_k1 keeps ρ in [0.2, 2] "
        "(lets through ρ of the token ≤ 0.5 in full; ρ of the token in [0.2, 2])"
    )
    assert all(line.startswith("warning: ") for line in warnings)
    out = tmp_path / "r"
    analysed = run("analyze", dump, "--trainer", "verl", "--config", config, "--out", out, "--no-plots", "--no-sweep")
    assert analysed.err.splitlines()[:3] == [echo, *warnings]
    findings = json.loads((out / "report.json").read_text())["findings"]
    texts = [f["message"] for f in findings if f["kind"] == "configuration"]
    assert [f"warning: {text.removeprefix('verl-config: ')}" for text in texts] == warnings
    assert len(texts) == 2


def test_a_preset_in_another_trainers_keys_is_its_file(run, tmp_path: Path) -> None:
    """What is printed goes straight into a file."""
    result = run("presets", "decoupled_token_icepop", "--as", "openrlhf")
    assert result.code == 0
    assert result.out.startswith("# decoupled_token_icepop for openrlhf 2026-08: token weight 0 outside [0.5, 5]\n")
    file = tmp_path / "run.sh"
    file.write_text(result.out)
    trainer = get_trainer("openrlhf")
    correction = trainer.correction(trainer.configure(file))
    weight = correction.weight
    assert (weight.bound, weight.lower, weight.upper) == ("mask", 0.5, 5.0)
    told = run(
        "metrics", Path(__file__).parents[2] / "sample_data" / "grpo_run", "--trainer", "openrlhf", "--config", file
    )
    assert told.code == 0


def test_what_a_trainer_cannot_express_is_said_with_the_nearest(run) -> None:
    result = run("presets", "decoupled_k3_rs_token_tis", "--as", "trl")
    assert result.code == 1
    first, *rest = result.out.splitlines()
    assert first == (
        '# trl 2026-07 cannot express decoupled_k3_rs_token_tis; nearest is "token weight capped at 2" instead of '
        '"token weight capped at 2; seq_mean_k3 ≤ 0.01", different in what is rejected:'
    )
    assert 'vllm_importance_sampling_mode: "token_truncate"' in rest
    tree = json.loads(run("presets", "decoupled_k3_rs_token_tis", "--as", "trl", "--format", "json").out)
    assert tree["expressible"] is False
    assert tree["config"] == yaml.safe_load("\n".join(rest))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--as", "trl"), "--as needs a preset"),
        (("decoupled_token_is", "--as", "trll"), "no trainer 'trll'; did you mean 'trl'?"),
        (("decoupled_tokn_is", "--as", "trl"), "no preset 'decoupled_tokn_is'"),
    ],
)
def test_a_translation_needs_both_names(arguments: tuple[str, ...], complaint: str, run) -> None:
    result = run("presets", *arguments)
    assert (result.code, result.out) == (2, "")
    assert complaint in result.err


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("prime_rl_ipo", ["[trainer.loss]", 'type = "ipo"']),
        ("slime_tis", ["--use-tis \\", "  --tis-clip 2.0 \\", "  --tis-clip-low 0.0"]),
        (
            "miles_mis_default",
            [
                'custom_tis_function_path: "examples.infra_features.train_infer_mismatch_helper.mis.'
                'compute_mis_weights_with_cp"',
                "use_tis: true",
                'tis_level: "token"',
                "tis_batch_normalize: false",
                "use_rs: false",
            ],
        ),
        ("slime_default", ["# nothing to set: the defaults do it"]),
    ],
)
def test_a_preset_is_pasted_as_its_trainer_takes_it(run, name: str, lines: list[str]) -> None:
    out = run("presets", name).out
    assert [line for line in out.split("to paste:\n")[1].splitlines() if line.strip()] == lines


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_preset_prints_reads_as_itself(run, tmp_path: Path, name: str) -> None:
    trainer = get_trainer(PRESETS[name].origin.split()[0])
    path = tmp_path / {"toml": "run.toml"}.get(trainer.syntax, "run.yaml")
    path.write_text(run("presets", name).out.split("to paste:\n")[1])
    assert trainer.correction(trainer.configure(path)) == PRESETS[name].correction


def test_inspect_does_not_say_ok_above_a_likely_cause(run) -> None:
    result = run("inspect", Path(__file__).parents[2] / "sample_data" / "temperature_raw")
    assert result.code == 0
    assert result.out.splitlines()[0].startswith(
        "WARN  No value is at fault, but what the mismatch looks like is: temp"
    )
