"""`recommend` on the command line: formats, exit codes, --from, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.audit.limits import Limits
from rollout_audit.cli import recommend as command
from rollout_audit.trainers.registry import TRAINERS, get_trainer

ROOT = Path(__file__).parents[2]
RUN = ROOT / "sample_data" / "grpo_run"
DUMPS = ROOT / "tests" / "conformance" / "dumps"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reports") / "report"
    ra.write_report(ra.analyze(ra.open_dump(RUN)), out, plots=False)
    return out


def test_defaults_are_those_of_the_function() -> None:
    own = (command.MIN_ESS, command.MAX_MASKED, command.MAX_MASS_LOST, command.MAX_BOUNDED, command.MAX_KL)
    assert Limits(*own) == Limits()


def test_a_report_folder_answers_as_its_dump_does(run, folder: Path) -> None:
    of_dump, of_report = (
        run("recommend", RUN, "--format", "json"),
        run("recommend", "--from", folder, "--format", "json"),
    )
    assert (of_dump.code, of_report.code) == (0, 0)
    assert json.loads(of_dump.out) == json.loads(of_report.out)
    assert ra.recommend(folder) == ra.recommend(str(folder / "report.json"))
    assert json.loads(of_dump.out)["mildest_preset"]["settings"]["level"] == "token"


def test_rows_of_single_steps_and_of_presets_are_no_points(folder: Path, tmp_path: Path) -> None:
    """Without them, and with more of them, the answer is the same."""
    table = pq.read_table(folder / "sweep.parquet")
    pooled = table.filter(pc.and_(pc.is_null(table["name"]), pc.is_null(table["step"])))
    assert len(pooled) < len(table)
    of_step = pooled.set_column(pooled.column_names.index("step"), "step", pa.array([3] * len(pooled), pa.int64()))
    for name, rows in {
        "bare": pooled,
        "more": pa.concat_tables([of_step, table], promote_options="permissive"),
    }.items():
        out = tmp_path / name
        out.mkdir()
        (out / "report.json").write_bytes((folder / "report.json").read_bytes())
        pq.write_table(rows, out / "sweep.parquet")
        assert ra.recommend(out) == ra.recommend(folder)


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ((RUN,), 0, "OK"),
        ((ROOT / "sample_data" / "llamacpp_q4",), 0, "OK  None needed"),
        ((RUN, "--min-ess", "0.9999", "--max-masked", "0"), 1, "CRITICAL"),
        ((DUMPS / "identical",), 2, "UNMEASURED"),
    ],
)
def test_exit_code_and_first_line(run, arguments: tuple, code: int, word: str) -> None:
    result = run("recommend", *arguments)
    assert result.code == code
    assert result.out.startswith(word)


def test_limits_stand_at_the_top_with_their_reasons(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("recommend", RUN, "--max-masked", "0.3").out.splitlines()
    at = lines.index("Limits")
    assert at < 8
    assert any("--max-masked" in line and "masked_fraction ≤ 0.3" in line for line in lines[at:])
    assert all(len(line) <= 80 for line in lines)
    assert "Mildest first" in lines
    assert "Presets that do not keep the limits" in lines


@pytest.mark.parametrize("style", ["table", "plain", "json", "jsonl", "csv", "markdown"])
def test_every_format(run, folder: Path, style: str) -> None:
    result = run("recommend", "--from", folder, "--format", style)
    assert result.code == 0
    assert "decoupled_token_is" in result.out
    assert result.err == ""


def test_csv_has_one_row_a_candidate(run, folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run("recommend", "--from", folder, "--format", "csv").out)))
    found = ra.recommend(folder)
    assert [row["name"] for row in rows] == [c.name for c in (*found.ranked, *found.failing)]
    assert {row["meets"] for row in rows} == {"True", "False"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give either DUMP... or --from REPORT"),
        ((RUN, "--from", "somewhere"), "give either DUMP... or --from REPORT"),
        (("--from", "nowhere"), "nowhere: no such report"),
        (("--from", "nowhere", "--steps", "3"), "--steps reads a dump; with --from the report has settled it"),
        ((RUN, "--max-masked", "7"), "--max-masked 7: expected a share between 0 and 1"),
    ],
)
def test_one_line_says_what_is_wrong(run, arguments: tuple, text: str) -> None:
    result = run("recommend", *arguments)
    assert (result.code, result.out) == (2, "")
    assert text in result.err
    assert result.err.count("\n") == 1


def test_a_damaged_or_older_sweep_is_said(run, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "older"
    out.mkdir()
    (out / "report.json").write_bytes((folder / "report.json").read_bytes())
    pq.write_table(pq.read_table(folder / "sweep.parquet").drop_columns(["kept_kl_k3"]), out / "sweep.parquet")
    result = run("recommend", "--from", out)
    assert result.code == 2
    assert "has no column 'kept_kl_k3', another version wrote it; run analyze again" in result.err
    (out / "sweep.parquet").write_bytes(b"PAR1 no more")
    assert "sweep.parquet: cannot be read" in run("recommend", "--from", out).err
    (out / "sweep.parquet").unlink()
    assert run("recommend", "--from", out).code == 0


def test_analyze_prints_the_best_points_and_the_length_trap(run, tmp_path: Path) -> None:
    result = run("analyze", RUN, "--out", tmp_path / "r", "--no-plots", "-q")
    assert "Length trap at k1 0.0116 a token" in result.out
    assert "Best of " in result.out
    saved = json.loads((tmp_path / "r" / "report.json").read_text())
    assert saved["sweep"]["best"][0]["criterion"] == "mildest"
    assert saved["length_trap"]["ess_length"] == 47


def test_for_a_trainer_only_what_it_can_express_is_ranked(run, folder: Path) -> None:
    every = json.loads(run("recommend", "--from", folder, "--format", "json").out)
    tree = json.loads(run("recommend", "--from", folder, "--for", "trl", "--format", "json").out)
    names, of_all = (
        {(c["source"], name) for c in found["ranked"] + found["failing"] for name in (c["name"], *c["alike"])}
        for found in (tree, every)
    )
    assert names < of_all
    assert ("preset", "decoupled_k3_rs") not in names
    lost = len(of_all) - len(names)
    assert tree["inexpressible"] == lost > 0
    assert f"{lost} presets and families of the sweep are left out: trl has no settings for them." in tree["notes"]
    trainer = get_trainer("trl")
    for candidate in tree["ranked"]:
        weight = trainer.correction(trainer.configure(candidate["config"])).weight
        assert (weight.level, weight.upper) == (candidate["settings"]["level"], candidate["settings"]["upper"]) or (
            candidate["settings"]["rule"]
        )


def test_for_a_trainer_the_configuration_is_printed(run, folder: Path, tmp_path: Path) -> None:
    lines = run("recommend", "--from", folder, "--for", "skyrl").out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.endswith(" for skyrl, to paste:"))
    block = lines[start + 1 : lines.index("", start)]
    file = tmp_path / "run.yaml"
    file.write_text("\n".join(block))
    trainer = get_trainer("skyrl")
    assert (
        trainer.correction(trainer.configure(file)).weight.upper == 3.0
    )  # trl_token_truncate is the mildest that is needed
    assert block[0] == "trainer:"


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_trainer_can_be_recommended_for(run, folder: Path, trainer: str) -> None:
    result = run("recommend", "--from", folder, "--for", trainer, "--format", "json")
    tree = json.loads(result.out)
    assert result.code in (0, 1)
    assert tree["trainer"] == trainer
    assert all(candidate["config"] is not None for candidate in tree["ranked"])


def test_an_unknown_trainer_is_refused_before_the_work(run) -> None:
    result = run("recommend", RUN, "--for", "skyrll")
    assert (result.code, result.out) == (2, "")
    assert "no trainer 'skyrll'; did you mean 'skyrl'?" in result.err


def test_a_trainer_that_can_express_nothing_that_is_ranked_is_named(run, folder: Path) -> None:
    """prime-rl corrects in bypass mode alone."""
    told = run("recommend", "--from", folder, "--for", "prime-rl")
    assert "nothing meets the limits: prime-rl has settings for none of them." in told.out
