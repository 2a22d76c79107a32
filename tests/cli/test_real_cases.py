"""Real cases of misleading semantics and of behaviour in CI, as small inputs with their right outcomes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.audit.gates import FAMILIES
from rollout_audit.corrections.presets import PRESETS
from tests.cli.conftest import Outcome, shell
from tests.cli.test_streams import ANSI, POOR, on_terminal

Run = Callable[..., Outcome]
FLOATS = pa.list_(pa.float64())


def written(folder: Path, rows: list[list[float]], rollout: float = -8.0) -> Path:
    """Rows of those log-ratios over one constant rollout log-prob."""
    mu = [[rollout] * len(row) for row in rows]
    pi = [[rollout + d for d in row] for row in rows]
    columns = {"rollout_log_probs": pa.array(mu, FLOATS), "old_log_probs": pa.array(pi, FLOATS)}
    pq.write_table(pa.table(columns), folder / "step_0.parquet")
    return folder / "step_0.parquet"


def kept(dump: Path, rule: ra.Rule) -> list[bool]:
    return [bool(mask.any()) for _, _, mask in ra.apply_correction(ra.open_dump(dump), ra.Correction(rules=(rule,)))]


def test_a_zero_mean_does_not_hide_the_spread(run: Run, tmp_path: Path) -> None:
    """Real case 82: 7.5% of the tokens lie outside [0.9, 1.1] while the mean is about 0."""
    dump = written(tmp_path, [[0.2, -0.2, *[0.0] * 20]] * 4)
    text = run("analyze", dump, "--out", tmp_path / "r", "--no-plots", "--no-sweep").out
    for name in (
        "kl_k1",
        "within_10pct",
        "log_prob_diff_abs_p95",
        "log_prob_diff_abs_p99",
        "log_prob_diff_abs_max",
        "log_prob_diff_std",
    ):
        assert any(line.startswith(name) for line in text.splitlines())
    figures = ra.analyze(ra.open_dump(dump), sweep=False).overall
    assert figures["kl_k1"] == pytest.approx(0.0, abs=1e-15)
    assert figures["within_10pct"] == pytest.approx(20 / 22)


def test_token_geometric_and_product_weights_stand_side_by_side(tmp_path: Path) -> None:
    """Real case 83: the product of a long response is small where its tokens weigh about 1."""
    report = ra.analyze(ra.open_dump(written(tmp_path, [[-0.003] * 1000] * 2)), sweep=False)
    raw = {c.name: c.stages.raw["weight_mean"] for c in report.corrections}
    assert raw["decoupled_token_is"] == pytest.approx(math.exp(-0.003))
    assert raw["decoupled_seq_is"] == pytest.approx(math.exp(-3.0))
    (finding,) = [f for f in report.findings if f.kind == "collapsed_products"]
    assert "(products) average 0.0498 where token weights average 0.997 and geometric ones 0.997" in finding.message
    again = ra.sweep(ra.write_report(report, tmp_path / "saved", plots=False).folder)
    assert [f.model_dump() for f in again.findings] == [f.model_dump() for f in report.findings]
    short = ra.analyze(ra.open_dump(written(tmp_path, [[-0.003] * 10] * 2)), sweep=False)
    assert not [f for f in short.findings if f.kind == "collapsed_products"]


def test_the_low_veto_is_one_sided_and_the_greatest_k2_is_not(tmp_path: Path) -> None:
    """Real case 86: ρ = 1, 1, 5e-5 and 1, 1, 2e4; 1e-4 is ½ · 9.2103² = 42.415 in k2."""
    dump = written(tmp_path, [[0.0, 0.0, math.log(5e-5)], [0.0, 0.0, math.log(2e4)]], rollout=-12.0)
    low = ra.Correction(veto=1e-4)
    assert [bool(m.any()) for _, _, m in ra.apply_correction(ra.open_dump(dump), low)] == [False, True]
    assert math.log(1e-4) ** 2 / 2 == pytest.approx(42.415, abs=1e-3)
    assert kept(dump, ra.Rule(ra.Statistic.K2, ra.Aggregation.SEQ_MAX, upper=42.415)) == [False, False]


def test_touched_and_removed_are_two_numbers(tmp_path: Path) -> None:
    """Real case 88: one token of 1,000 masked in each of four sequences."""
    dump = written(tmp_path, [[1.0, *[0.0] * 999]] * 4)
    report = ra.analyze(ra.open_dump(dump), presets=["token_rs"], sweep=False)
    figures = report.corrections[0].stages.kept
    assert figures["masked_fraction"] == pytest.approx(0.001)
    assert (figures["seq_touched_fraction"], figures["seq_masked_fraction"]) == (1.0, 0.0)


def test_in_bypass_with_a_clip_no_weight_is_applied_twice(run: Run, tmp_path: Path) -> None:
    """Real case 89."""
    assert "bypass, PPO ratio carries the weight" in run("presets", "bypass_ppo_clip").out
    dump = written(tmp_path, [[0.5, -0.5, 0.1]])
    report = ra.analyze(ra.open_dump(dump), presets=["bypass_ppo_clip"], sweep=False)
    assert report.corrections[0].stages.kept["weight_max"] == report.corrections[0].stages.kept["weight_min"] == 1.0


@pytest.mark.parametrize(
    ("lower", "upper", "stays"),
    [(0.999, 1.001, False), (0.9999, 1.0001, False), (0.999, 1.002, True), (0.99, 1.01, True)],
    ids=["verl", "slime", "NeMo-RL", "SkyRL"],
)
def test_geometric_bands_of_each_trainer(lower: float, upper: float, stays: bool, tmp_path: Path) -> None:
    """Real case 91: d = 0.0011 a token is a ratio of 1.0011."""
    rule = ra.Rule(ra.Statistic.RATIO, ra.Aggregation.SEQ_MEAN, lower=lower, upper=upper)
    assert kept(written(tmp_path, [[0.0011] * 50]), rule) == [stays]


@pytest.mark.parametrize(
    ("preset", "line"),
    [
        ("decoupled_geo_rs", f"mean d over the sequence in [{-math.log(1.001):.5g}, {-math.log(0.999):.5g}]"),
        ("decoupled_token_icepop", f"d of the token in [{math.log(0.5):.5g}, {math.log(5):.5g}]"),
        ("decoupled_seq_is", f"sum of d over the sequence ≤ {math.log(2):.5g}"),
    ],
)
def test_bands_are_shown_in_log_units_too(preset: str, line: str, run: Run) -> None:
    """Real case 91: trainers write them as ratios or as logarithms."""
    assert json.loads(run("presets", preset, "--format", "json").out)["keeps_in_log_units"] == [line]
    (shown,) = [text for text in run("presets", preset).out.splitlines() if text.startswith("in log units")]
    assert shown.endswith(f"  {line}")


@pytest.mark.parametrize(
    ("written", "read"),
    [("0.5_2.0", "[0.5, 2]"), ("0.5_2", "[0.5, 2]"), ("1e-1_1e1", "[0.1, 10]")],
)
def test_a_band_in_yaml_is_no_number(written: str, read: str, run: Run, dump: Path, tmp_path: Path) -> None:
    """Real case 109: YAML 1.1 reads 0.5_2 as 0.52; the band is parsed from its text and echoed."""
    (tmp_path / "run.yaml").write_text(f"rollout_rs: token_k1\nrollout_rs_threshold: {written}\n")
    result = run("metrics", dump, "--trainer", "verl", "--config", tmp_path / "run.yaml")
    assert result.code == 0
    assert f"token_k1 keeps ρ in {read}" in result.err


@pytest.mark.parametrize("veto", ["1e-4", "1.0e-4", "0.0001", "'1e-4'"])
def test_a_threshold_in_yaml_is_a_number(veto: str, run: Run, dump: Path, tmp_path: Path) -> None:
    """Real case 109: 1e-4 is a string in YAML 1.1."""
    (tmp_path / "mis.yaml").write_text(f"use_rs: true\nrs_veto_threshold: {veto}\n")
    result = run("metrics", dump, "--trainer", "miles", "--config", tmp_path / "mis.yaml")
    assert result.code == 0
    assert "veto below ρ 0.0001" in result.err


def test_a_bare_number_is_no_band(run: Run, dump: Path, tmp_path: Path) -> None:
    """Real case 109: 12 is what YAML makes of 1_2."""
    (tmp_path / "run.yaml").write_text("rollout_rs: seq_sum_k1\nrollout_rs_threshold: 1_2\n")
    band = run("metrics", dump, "--trainer", "verl", "--config", tmp_path / "run.yaml")
    assert "seq_sum_k1 keeps ρ in [0.5, 1]" in band.err  # verl's k1 bounds swap ends


def test_the_two_factors_of_three_columns_add_up(run: Run, dump: Path, tmp_path: Path) -> None:
    """Real case 92: log-ratios of engine and update sum to the whole; the header names the pair."""
    text = run("analyze", dump, "--out", tmp_path / "r", "--no-plots", "--no-sweep").out
    assert text.splitlines()[1].startswith("π is old_log_probs, μ is rollout_log_probs (decoupled)")
    pairs = {pair.name: pair.metrics["kl_k1"] for pair in ra.read_report(tmp_path / "r").pairs}
    assert pairs["engine"] + pairs["policy_update"] == pytest.approx(pairs["total"], abs=1e-12)


def test_the_report_says_that_sampled_tokens_are_not_the_vocabulary(dump: Path) -> None:
    """Real case 98."""
    notes = ra.analyze(ra.open_dump(dump), presets=["disabled"], sweep=False).notes
    assert any("does not prove agreement on the whole vocabulary" in note for note in notes)


COLOURS = (
    {},
    {"NO_COLOR": "1"},
    {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"},
    {"TERM": "dumb", "GITHUB_ACTIONS": "true"},
)


def test_colour_variables_change_no_byte_for_programs(
    run: Run, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real case 101."""
    monkeypatch.chdir(tmp_path)
    run("check", dump, "--golden", "g.json", "--update")
    found = set()
    for variables in COLOURS:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            styles = ("json", "csv")
            found |= {run("check", dump, "--golden", "g.json", "--all", "--format", style).out for style in styles}
    assert len(found) == 2
    assert not any("\x1b" in text for text in found)


def test_the_verdict_of_a_check_survives_poor_surroundings(dump: Path, tmp_path: Path) -> None:
    """Real cases 110, 113 and 116: an ASCII locale, a notebook's backend, a HOME that is not there; a closed pipe."""
    golden = tmp_path / "g.json"
    ra.check(ra.open_dump(dump), golden, update=True)
    text = golden.read_text()
    golden.write_text(text.replace('"kl_k3@pooled": ', '"kl_k3@pooled": 0.0, "kl_k9@pooled": '))
    env = {**POOR, "MPLBACKEND": "module://matplotlib_inline.backend_inline", "HOME": "/proc/nowhere"}
    result = shell("check", dump, "--golden", golden, "--format", "table", "--export", "github", env=env)
    assert result.returncode == 1
    assert "worse" in result.stdout.decode("ascii")
    assert result.stderr.decode("ascii").startswith("::error file=")


def test_a_narrow_terminal_shows_whole_names(dump: Path, tmp_path: Path) -> None:
    golden = tmp_path / "g.json"
    ra.check(ra.open_dump(dump), golden, update=True)
    golden.write_text(golden.read_text().replace('"kl_k3@pooled": ', '"kl_k3@pooled": 0.0, "kl_k9@pooled": '))
    code, text = on_terminal(40, "check", dump, "--golden", golden, NO_COLOR="1")
    assert code == 1
    assert "kl_k3@pooled" in text
    assert "…" not in text


@pytest.mark.parametrize("width", ["40", "80", "200"])
def test_widths_of_a_pipe(width: str, run: Run, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = tmp_path / "g.json"
    ra.check(ra.open_dump(dump), golden, update=True)
    monkeypatch.setenv("COLUMNS", width)
    lines = run("check", dump, "--golden", golden, "--all").out.splitlines()
    assert any("decoupled_token_is:kept.seq_touched_fraction@pooled" in line for line in lines)
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("width", [40, 80, 160])
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_terminals_of_every_width_show_whole_names(width: int, variables: dict[str, str], tmp_path: Path) -> None:
    """Real cases 100 and 101: brackets in a column's name are no markup; colour only where it is wanted."""
    rows = pa.array([[-1.0, -2.0]], FLOATS)
    columns = {"rollout_log_probs": rows, "old[bold]": rows, "[/red] step": pa.array([3])}
    pq.write_table(pa.table(columns), tmp_path / "a [step_3] b.parquet")
    line = ("inspect", tmp_path / "a [step_3] b.parquet", "--map", "old_log_probs=old[bold]")
    code, text = on_terminal(width, *line, **variables)
    plain = ANSI.sub("", text)
    assert code == 0
    assert bool(ANSI.search(text)) == (not variables)
    assert "…" not in plain
    assert {"old[bold]", "[/red]"} <= {word.strip(",.") for word in plain.split()}
    assert "a [step_3] b.parquet" in " ".join(plain.split())


def test_pictures_are_the_same_in_every_run(run: Run, dump: Path, tmp_path: Path) -> None:
    """Real case 115: PNG alone, without a time or an id in it."""
    for name in ("a", "b"):
        assert run("analyze", dump, "--out", tmp_path / name, "--no-sweep", "--quiet").code == 0
    drawn = sorted(path.name for path in (tmp_path / "a" / "plots").iterdir())
    assert {Path(name).suffix for name in drawn} == {".png"}
    assert len(drawn) > 5
    for name in drawn:
        assert (tmp_path / "a" / "plots" / name).read_bytes() == (tmp_path / "b" / "plots" / name).read_bytes(), name


@pytest.mark.parametrize("steps", [("--steps", "-5:2"), ("--steps=-5:2",)])
def test_negative_values_of_options(steps: tuple[str, ...], run: Run, dump: Path, tmp_path: Path) -> None:
    """Real case 112."""
    common = ("analyze", dump, "--out", tmp_path / "r", "--no-plots", "--no-sweep", "--format", "json")
    report = json.loads(run(*common, *steps).out)
    assert [step["step"] for step in report["steps"]] == [0, 1]
    assert run(*common, "--fail-on", "kl_k1 < -0.5", "--fail-on=kl_k1<-0.25").code == 0


def test_a_dump_that_is_still_being_written_is_named_so(run: Run, tmp_path: Path) -> None:
    """Real case 118."""
    file = written(tmp_path, [[0.1]])
    file.write_bytes(file.read_bytes()[:-30])
    result = run("check", file, "--expect-bitwise")
    assert (result.code, result.out) == (2, "")
    assert "truncated or still being written" in result.err


def test_the_page_shows_the_limits_of_each_family() -> None:
    page = (Path(ra.__file__).parents[1] / "docs" / "ci.md").read_text(encoding="utf-8")
    for family, gates in FAMILIES.items():
        for gate, origin in gates.items():
            assert f"| `{family}` | `{gate}` | {origin.replace('|', chr(92) + '|')} |" in page


@pytest.mark.parametrize(
    ("size", "dense", "moe"),
    [(0.012, 0, 0), (0.139, 1, 0), (0.369, 1, 0), (0.45, 1, 1)],
    ids=["healthy bf16", "MoE with replayed experts", "MoE with natural routing", "broken"],
)
def test_limits_of_a_model_family(size: float, dense: int, moe: int, run: Run, tmp_path: Path) -> None:
    """Real case 97: mean |d| of published runs, dense and MoE, against the limits of either."""
    dump = written(tmp_path, [[size, -size] * 50] * 2)
    for family, code in {"dense": dense, "moe": moe}.items():
        common = ("analyze", dump, "--out", tmp_path / "r", "--no-plots", "--no-sweep", "--quiet")
        assert run(*common, "--fail-on", family).code == code
        held = run("check", dump, "--fail-on", family)
        assert held.code == code
        shown = [line.partition(": ")[2] for line in held.out.splitlines() if line.startswith("gate ")]
        assert [text.partition(":")[0] for text in shown] == list(FAMILIES[family])


def test_rejected_tokens_are_said_to_keep_their_weight(run: Run, tmp_path: Path) -> None:
    """Real case 85: a rule takes the middle token out by its mask, and its weight of 3 is still there."""
    dump = written(tmp_path, [[0.0, math.log(3.0), 0.0, 0.0]])
    config = json.dumps(
        {"rollout_is": "token", "rollout_is_threshold": 5.0, "rollout_rs": "token_k1", "rollout_rs_threshold": 2.0}
    )
    line = ("apply", dump, "--trainer", "verl", "--config", config, "--out", tmp_path / "w", "--format", "json")
    applied = json.loads(run(*line).out)
    assert (applied["kept_tokens"], applied["kept_weight_mean"]) == (3, 1.0)
    assert applied["rejected_weight_mean"] == pytest.approx(3.0)
    (weights,) = pq.read_table(tmp_path / "w")["weights"].to_pylist()
    assert weights == pytest.approx([1.0, 3.0, 1.0, 1.0])
    text = run("analyze", dump, "--out", tmp_path / "r", "--no-plots", "--no-sweep", "--quiet").out
    assert "rejected ones keep their weight, only the mask takes them out" in " ".join(text.split())
    assert "rejected tokens keep their weight: only the mask takes them out" in run("presets", "token_is_rs").out
    assert "rejected tokens keep their weight of 1" in run("presets", "seq_rs").out
    assert "have weight 0 and stay in the mask" in run("presets", "decoupled_token_icepop").out
    assert "takes out" not in run("presets", "decoupled_token_is").out


def test_a_second_trainer_pass_is_the_noise_floor(run: Run, tmp_path: Path) -> None:
    """Real case 82: of the trainer against itself 8% of the tokens lie outside [0.9, 1.1], the mean is 0."""
    mu = np.full(100, -8.0)
    old = mu + np.where(np.arange(100) % 2, 0.03, -0.03)
    again = old + np.where(np.arange(100) < 8, 0.2, 0.0) * np.where(np.arange(100) % 2, 1, -1)
    columns = {
        name: pa.array([values.tolist()], FLOATS)
        for name, values in {"rollout_log_probs": mu, "old_log_probs": old, "second_pass": again}.items()
    }
    pq.write_table(pa.table(columns), tmp_path / "step_0.parquet")
    line = ("analyze", tmp_path / "step_0.parquet", "--map", "log_probs=second_pass", "--out", tmp_path / "r")
    text = run(*line, "--no-plots", "--no-sweep").out
    pairs = {pair.name: pair.metrics for pair in ra.read_report(tmp_path / "r").pairs}
    assert pairs["policy_update"]["within_10pct"] == pytest.approx(0.92)
    assert pairs["policy_update"]["log_prob_diff_std"] == pytest.approx(0.2 * math.sqrt(0.08))
    assert pairs["policy_update"]["kl_k1"] == pytest.approx(0.0, abs=1e-12)
    assert pairs["engine"]["log_prob_diff_std"] == pytest.approx(0.03)
    assert "makes the policy update its noise floor" in " ".join(text.split())


@pytest.mark.parametrize(("ratios", "expected"), [([0.3] * 7, 0.0), ([0.1, 0.5], 0.2), ([0.1], None)])
def test_spread_of_log_ratios(ratios: list[float], expected: float | None, tmp_path: Path) -> None:
    """Real cases 23 and 82: 0 of a constant, nothing of one token."""
    report = ra.analyze(ra.open_dump(written(tmp_path, [ratios])), sweep=False, presets=["disabled"])
    assert report.overall["log_prob_diff_std"] == (None if expected is None else pytest.approx(expected))
    assert report.pairs[0].reasons.get("log_prob_diff_std") == ("n < 2" if expected is None else None)


def test_what_has_no_marker_beside_it_is_left_out_and_said(run: Run, tmp_path: Path) -> None:
    """Real case 118: a step that is still being written, its last file without a footer."""
    for step, ratio in enumerate([0.1, 0.2]):
        (folder := tmp_path / "dumps" / f"step_{step}").mkdir(parents=True)
        written(folder, [[ratio] * 4])
    (tmp_path / "dumps/step_0/_SUCCESS").touch()
    half = tmp_path / "dumps/step_1/step_0.parquet"
    half.write_bytes(half.read_bytes()[:-30])
    dump, marker = tmp_path / "dumps", ("--require-marker", "_SUCCESS")
    assert run("inspect", dump).code == 2
    figures = run("analyze", dump, *marker, "--out", tmp_path / "r", "--no-plots", "--no-sweep", "--format", "json")
    report = json.loads(figures.out)
    assert (figures.code, report["overall"]["kl_k1"]) == (0, pytest.approx(-0.1))
    (finding,) = [f for f in report["findings"] if f["kind"] == "file_left_out"]
    assert (finding["severity"], finding["count"], finding["file"]) == ("warning", 1, "step_0.parquet")
    assert finding["message"] == "1 file left out, without _SUCCESS beside them: still being written?"
    (tmp_path / "dumps/step_0/_SUCCESS").unlink()
    none = run("inspect", dump, *marker)
    assert (none.code, none.out, none.err.count("\n")) == (2, "", 1)
    assert "no _SUCCESS beside it: still being written?" in none.err
    for name in ("a/b", ""):
        assert "expected the name of a file" in run("inspect", dump, "--require-marker", name).err


def test_every_preset_may_be_checked(run: Run, dump: Path, tmp_path: Path) -> None:
    options = ("check", dump, "--golden", tmp_path / "g.json", "--presets", ",".join(PRESETS))
    assert run(*options, "--update").code == 0
    assert run(*options).code == 0
    assert np.isfinite(list(json.loads((tmp_path / "g.json").read_text())["figures"].values())).all()
