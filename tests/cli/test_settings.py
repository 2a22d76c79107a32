"""Flag, then environment, then file, then default; and every name that is not known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import rollout_audit as ra
from rollout_audit.corrections.presets import BY_DEFAULT
from rollout_audit.engines.threads import map_in_order
from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]
FILE = """
workers = 2
presets = ["decoupled_token_is", "decoupled_k3_rs"]
chunk-tokens = 1000

[map]
old_log_probs = "log_probs"

[analyze]
workers = 3
no_plots = true
no_sweep = true

[check.metrics.kl_k3]
atol = 0.5
direction = "higher"

[[gate]]
metric = "kl_k3"
op = ">"
value = 1e-9
severity = "warn"
scope = "any-step"
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def origins(run: Run, *line: str) -> dict[str, tuple[str, str]]:
    result = run("config", "show", "--format", "json", "--", *line)
    assert result.code == 0, result.err
    return {s["key"]: (s["value"], s["origin"]) for s in json.loads(result.out)["settings"]}


def test_each_value_is_shown_with_its_origin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("rollout-audit.toml").write_text(FILE)
    monkeypatch.setenv("ROLLOUT_AUDIT_LIMIT", "7")
    monkeypatch.setenv("ROLLOUT_AUDIT_CHUNK_TOKENS", "2000")
    monkeypatch.setenv("ROLLOUT_AUDIT_EXPORT", "junit=a;json=b")
    check = origins(run, "check", "dump", "--limit", "9", "--golden=g.json")
    file = "rollout-audit.toml"
    assert check["limit"] == ("9", "flag")
    assert check["golden"] == ("g.json", "flag")
    assert check["chunk_tokens"] == ("2000", "ROLLOUT_AUDIT_CHUNK_TOKENS")
    assert check["export"] == ("junit=a;json=b", "ROLLOUT_AUDIT_EXPORT")
    assert check["workers"] == ("2", file)
    assert check["presets"] == ("decoupled_token_is,decoupled_k3_rs", file)
    assert check["map"] == ("old_log_probs=log_probs", file)
    assert check["device"] == ("auto", "default")
    assert check["check.metrics.kl_k3.atol"] == ("0.5", file)
    assert check["gate[0]"] == ("kl_k3@any-step > 1e-09", file)
    assert origins(run, "analyze")["workers"] == ("3", file)


def test_without_a_command_all_of_them_are_shown(run: Run) -> None:
    text = run("config", "show").out
    assert text.startswith("No rollout-audit.toml, no [tool.rollout-audit].\n")
    line = next(line for line in text.splitlines() if line.startswith("chunk_tokens"))
    assert "analyze, metrics, sweep, recommend, inspect, convert, apply, check" in line


def test_what_the_file_says_is_what_happens(run: Run, dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("pyproject.toml").write_text("[tool.rollout-audit]\nlimit = 3\nmap = {old_log_probs = 'log_probs'}\n")
    arguments = ("analyze", dump, "--out", "r", "--no-plots", "--no-sweep", "--format", "json")
    report = json.loads(run(*arguments).out)
    assert report["counts"]["sequences"] == 3
    assert report["settings"]["training_column"] == "old_log_probs"
    fields = {
        f["field"]: f["column"] for f in json.loads(run("inspect", dump, "--format", "json").out)["files"][0]["fields"]
    }
    assert fields["old_log_probs"] == "log_probs"
    monkeypatch.setenv("ROLLOUT_AUDIT_LIMIT", "4")
    monkeypatch.setenv("ROLLOUT_AUDIT_MAP", "old_log_probs=old_log_probs")
    assert json.loads(run(*arguments).out)["counts"]["sequences"] == 4
    fields = {
        f["field"]: f["column"] for f in json.loads(run("inspect", dump, "--format", "json").out)["files"][0]["fields"]
    }
    assert fields["old_log_probs"] == "old_log_probs"
    assert json.loads(run(*arguments, "--limit", "5").out)["counts"]["sequences"] == 5


@pytest.mark.parametrize("command", ["analyze", "check"])
def test_presets_of_the_file_are_run_by_every_command_that_takes_them(
    command: str, run: Run, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flag, environment, file, default; what is run is what `config show` says."""
    arguments: dict[str, tuple[object, ...]] = {
        "analyze": (dump, "--out", "r", "--no-plots", "--no-sweep", "--quiet"),
        "check": (dump, "--golden", "g.json", "--update", "--quiet"),
    }

    def presets_run(*options: str) -> list[str]:
        Path("g.json").unlink(missing_ok=True)
        assert run(command, *arguments[command], *options).code == 0
        written = json.loads(Path({"analyze": "r/report.json", "check": "g.json"}[command]).read_text())
        named: list[str] = written["settings"]["presets"]
        return named

    default = presets_run()
    assert default == {"analyze": [p.name for p in BY_DEFAULT], "check": ["decoupled_token_is"]}[command]
    Path("rollout-audit.toml").write_text('presets = ["seq_rs", "decoupled_token_is"]\n')
    assert set(presets_run()) == {"seq_rs", "decoupled_token_is"}
    assert origins(run, command)["presets"] == ("seq_rs,decoupled_token_is", "rollout-audit.toml")
    monkeypatch.setenv("ROLLOUT_AUDIT_PRESETS", "decoupled_token_is,token_rs")
    assert set(presets_run()) == {"decoupled_token_is", "token_rs"}
    assert origins(run, command)["presets"] == ("decoupled_token_is,token_rs", "ROLLOUT_AUDIT_PRESETS")
    assert presets_run("--presets", "decoupled_token_is") == ["decoupled_token_is"]
    assert set(presets_run("--presets", "all")) == {p.name for p in BY_DEFAULT}
    assert origins(run, command, "--presets", "all")["presets"] == ("all", "flag")


def test_the_first_preset_is_the_reference_of_an_audit(run: Run, dump: Path) -> None:
    common = ("analyze", dump, "--out", "r", "--no-plots", "--no-sweep", "--format", "json")
    asked = ("--presets", "decoupled_k3_rs,token_rs", "--fail-on", "token_rs:masked_fraction > 2")
    report = json.loads(run(*common, *asked).out)
    assert (report["settings"]["reference"], [c["name"] for c in report["corrections"]]) == (
        "decoupled_k3_rs",
        ["decoupled_k3_rs", "token_rs"],
    )
    assert json.loads(run(*common, *asked, "--preset", "token_rs").out)["settings"]["reference"] == "token_rs"
    with_trainer = json.loads(run(*common, *asked, "--trainer", "verl").out)["settings"]
    assert (with_trainer["reference"], with_trainer["presets"]) == (
        "verl-config",
        ["verl-config", "decoupled_k3_rs", "token_rs"],
    )
    refused = run(*common, "--presets", "decoupled_token", "--quiet")
    assert (refused.code, refused.out) == (2, "")
    assert "did you mean 'decoupled_token_is'?" in refused.err
    lost = run(*common, "--presets", "token_rs", "--fail-on", "seq_rs:ess < 0")
    assert lost.code == 2
    assert "no preset 'seq_rs' in the report" in lost.err


def test_one_preset_alone_is_drawn_too(run: Run, dump: Path) -> None:
    result = run("analyze", dump, "--out", "r", "--presets", "seq_rs")
    assert result.code == 0
    assert "was not drawn" not in result.err
    assert Path("r/plots/presets.png").is_file()


@pytest.mark.parametrize("command", ["analyze", "apply"])
def test_a_flag_comes_before_its_rival_in_the_file(
    command: str, run: Run, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preset and a trainer's configuration both name the correction: the one said more directly counts."""
    options: dict[str, tuple[str, ...]] = {"analyze": ("--no-plots", "--no-sweep"), "apply": ()}
    Path("rollout-audit.toml").write_text('trainer = "verl"\nconfig = \'{"rollout_is": "token"}\'\n')

    def said(*more: str) -> str:
        result = run(command, dump, "--out", f"out{len(list(Path().iterdir()))}", *options[command], *more)
        assert result.code == 0, result.err
        return result.err

    assert "verl 2026-08 reads: token weight capped at 2" in said()
    assert "verl" not in said("--preset", "seq_rs")
    monkeypatch.setenv("ROLLOUT_AUDIT_PRESET", "seq_rs")
    assert "verl" not in said()
    assert "slime 2026-08 reads" in said("--trainer", "slime", "--config", "{}")
    both = run(command, dump, "--out", "other", "--preset", "seq_rs", "--trainer", "verl")
    assert (both.code, both.err) == (
        2,
        "error: --preset and --trainer both name the correction; give one of them\n",
    )


@pytest.mark.parametrize("command", ["sweep", "recommend"])
def test_a_report_needs_nothing_of_what_the_file_says_about_dumps(command: str, run: Run, dump: Path) -> None:
    assert run("analyze", dump, "--out", "r", "--no-plots").code == 0
    Path("rollout-audit.toml").write_text(
        'mode = "decoupled"\nlimit = 3\nsteps = "0:1"\n[map]\nold_log_probs = "log_probs"\n'
    )
    options: dict[str, tuple[str, ...]] = {"sweep": ("--out", "s", "--no-plots"), "recommend": ()}
    result = run(command, "--from", "r", *options[command], "--format", "json")
    assert result.code in (0, 1), result.err
    assert json.loads(result.out)
    refused = run(command, "--from", "r", *options[command], "--limit", "3")
    assert (refused.code, refused.err) == (2, "error: --limit reads a dump; with --from the report has settled it\n")
    Path("rollout-audit.toml").write_text('from = "r"\n')
    assert run(command, dump, *options[command]).code in (0, 1)
    assert run(command, *options[command]).code in (0, 1)


def test_quiet_and_workers_of_the_file_are_obeyed_by_metrics(
    run: Run, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr("rollout_audit.audit.reading.map_in_order", recording(asked))
    Path("rollout-audit.toml").write_text("workers = 1\nquiet = true\n")
    result = run("metrics", dump, "--trainer", "verl", "--format", "json")
    assert (result.code, result.err, set(asked)) == (0, "", {1})
    asked.clear()
    assert run("analyze", dump, "--out", "r", "--no-plots", "--no-sweep", "--trainer", "verl").err == ""
    assert set(asked) == {1}
    assert run("convert", dump, "--out", "c").err == ""


def recording(asked: list[int]) -> Callable[..., object]:
    def spy(function: Callable[..., object], items: Iterable[object], workers: int) -> Iterator[object]:
        asked.append(workers)
        return map_in_order(function, items, workers)

    return spy


def test_the_nearest_file_upward_counts_and_the_own_file_before_the_projects(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("rollout-audit.toml").write_text("workers = 1\n")
    Path("pyproject.toml").write_text("[tool.rollout-audit]\nworkers = 2\n")
    Path("inner").mkdir()
    Path("inner/pyproject.toml").write_text("[tool.other]\nx = 1\n")
    monkeypatch.chdir("inner")
    value, origin = origins(run, "analyze")["workers"]
    assert value == "1"
    assert origin.endswith("rollout-audit.toml")


def test_tolerances_and_gates_of_the_file_rule_a_check(run: Run, dump: Path) -> None:
    run("check", dump, "--golden", "g.json", "--update")
    text = Path("g.json").read_text()
    value = next(line for line in text.splitlines() if '"kl_k3@pooled"' in line)
    Path("g.json").write_text(text.replace(value, '  "kl_k3@pooled": 1e-9,'))
    assert run("check", dump, "--golden", "g.json").code == 1
    Path("rollout-audit.toml").write_text("[check.metrics.kl_k3]\natol = 0.5\n")
    assert run("check", dump, "--golden", "g.json").code == 0
    gate = '[[gate]]\nmetric = "kl_k3"\nop = ">"\nvalue = 1e-9\nscope = "step"\nseverity = "{}"\n'
    Path("rollout-audit.toml").write_text(gate.format("critical"))
    result = run("check", dump)
    assert (result.code, result.out.count("gate failed: kl_k3@")) == (1, 3)
    assert run("analyze", dump, "--out", "r", "--no-plots", "--no-sweep").code == 1
    Path("rollout-audit.toml").write_text(gate.format("warn"))
    result = run("check", dump)
    assert (result.code, result.out.count("gate warning: kl_k3@")) == (0, 3)


@pytest.mark.parametrize("scope", ["pooled", "median", "any-step", "step", "1"])
def test_scopes_of_a_gate(scope: str, run: Run, dump: Path) -> None:
    Path("rollout-audit.toml").write_text(
        f'[[gate]]\nmetric="kept.ess"\nop="<"\nvalue=2\nscope="{scope}"\npreset="decoupled_token_is"\n'
    )
    assert run("check", dump).code == 1


def test_a_gate_calls_a_figure_as_a_golden_file_does(run: Run, dump: Path) -> None:
    Path("rollout-audit.toml").write_text('[[gate]]\nmetric = "decoupled_token_is:kept.ess"\nop = "<"\nvalue = 2\n')
    result = run("check", dump)
    assert (result.code, "gate failed: decoupled_token_is:kept.ess@pooled < 2" in result.out) == (1, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker = 2", "rollout-audit.toml: unknown key 'worker'; did you mean 'workers'?"),
        ("[analyse]\nworkers = 2", "unknown key 'analyse'; did you mean 'analyze'?"),
        ("[analyze]\ngolden = 'x'", "unknown key analyze.'golden'"),
        ("[check]\nmetric = 1", "unknown key check.'metric'; did you mean 'metrics'?"),
        ("workers = 'two'", "workers = 'two': "),
        ("workers = 0", "workers = 0: "),
        ("workers = true", "workers = True: expected what --workers takes"),
        ("device = 'gpu'", "device = 'gpu': "),
        ("[check.metrics.kl_k33]\natol = 1", "unknown key check.metrics.'kl_k33'; did you mean 'kl_k3'?"),
        ("[check.metrics.kl_k3]\natoll = 1", "unknown key check.metrics.kl_k3.'atoll'; did you mean 'atol'?"),
        ("[check.metrics.kl_k3]\natol = -1", "check.metrics.kl_k3.atol = -1: a tolerance is a number from 0 up"),
        ("[check.metrics.kl_k3]\ndirection = 'wide'", "direction = 'wide': expected one of higher, lower"),
        ("[check.metrics]\nkl_k3 = 1", "check.metrics.kl_k3 = 1: expected a table, [check.metrics.kl_k3]"),
        ("[check]\nmetrics = []", "check.metrics = []: expected a table, [check.metrics]"),
        ("[check]\nmetrics = ''", "check.metrics = '': expected a table, [check.metrics]"),
        ("[check]\nmetrics = 0", "check.metrics = 0: expected a table, [check.metrics]"),
        (f"[check.metrics.kl_k3]\natol = 1{'0' * 400}", "check.metrics.kl_k3.atol: expected a number that a float64"),
        ("[[gate]]\nmetric = 'kl_k3'\nop = '>'", "gate[0] has no value; a gate needs metric, op and value"),
        ("[[gate]]\nmetric = 'kl_k3'\nop = '=>'\nvalue = 1", "gate[0].op = '=>': expected one of <=, >=, =="),
        ("[[gate]]\nmetric = 'kl_k3'\nop = '>'\nvalue = nan", "gate[0].value = nan: expected a number"),
        ("[[gate]]\nmetric = 3\nop = '>'\nvalue = 1", "gate[0].metric = 3: expected a name"),
        ("[check.metrics.kl_k3]\natol = inf", "check.metrics.kl_k3.atol = inf: a tolerance is a number from 0 up"),
        (
            "[[gate]]\nmetric = 'kl_k3'\nop = '>'\nvalue = 1\nscop = 1",
            "unknown key gate[0].'scop'; did you mean 'scope'?",
        ),
        (
            "[[gate]]\nmetric = 'kl_k3'\nop = '>'\nvalue = 1\nscope = 'all'",
            "gate[0].scope = 'all': expected one of pooled",
        ),
        ("[gate]\nmetric = 'kl_k3'", "gate = {'metric': 'kl_k3'}: expected tables, each under [[gate]]"),
        ("workers = ", "rollout-audit.toml: cannot be read as TOML"),
        (
            "workers = 1\n[check]\nworkers = 1\nworkers = 2",
            "(key 'workers' stands there twice, lines 3 and 4; keep one)",
        ),
        ("chunk-tokens = 1\nchunk_tokens = 2", "chunk-tokens and chunk_tokens are one option; keep one"),
        ("[apply]\nchunk_tokens = 1\nchunk-tokens = 2", "apply.chunk-tokens and apply.chunk_tokens are one option"),
    ],
)
def test_a_bad_file_is_one_line_and_exit_2(text: str, message: str, run: Run) -> None:
    Path("rollout-audit.toml").write_text(text)
    result = run("presets")
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1


def test_a_byte_order_mark_is_no_part_of_the_settings(run: Run) -> None:
    Path("rollout-audit.toml").write_text("\ufeffworkers = 3\n", encoding="utf-8")
    assert '"rollout-audit.toml"' in run("config", "show", "--format", "json").out


def test_a_gate_on_what_no_report_has_names_the_file(run: Run, dump: Path) -> None:
    Path("rollout-audit.toml").write_text("[[gate]]\nmetric = 'kl_k33'\nop = '>'\nvalue = 1\n")
    result = run("check", dump)
    assert result.code == 2
    assert "rollout-audit.toml: gate[0] 'kl_k33@pooled > 1': no metric 'kl_k33'; did you mean 'kl_k3'?" in result.err


def test_the_example_of_the_documentation_is_understood(run: Run) -> None:
    page = (Path(ra.__file__).parents[1] / "docs" / "ci.md").read_text(encoding="utf-8")
    Path("rollout-audit.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    found = origins(run, "check")
    assert found["gate[0]"][0] == "kl_k3@any-step > 0.05"
    assert found["check.metrics.kl_k3.rtol"] == ("0.1", "rollout-audit.toml")
    assert found["workers"] == ("2", "rollout-audit.toml")


def test_an_unknown_variable_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_AUDIT_WORKER", "2")
    result = run("presets")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "error: unknown variable ROLLOUT_AUDIT_WORKER; did you mean 'ROLLOUT_AUDIT_WORKERS'?; unset it\n"
    )


def test_python_takes_the_settings_of_the_folder(dump: Path) -> None:
    Path("rollout-audit.toml").write_text("[[gate]]\nmetric = 'kl_k3'\nop = '>'\nvalue = 1e-9\n")
    result = ra.check(ra.open_dump(dump))
    assert (result.exit_code, result.gates[0].verdict) == (1, "failed")


def test_a_table_of_the_project_that_is_none_is_refused(run: Run, dump: Path) -> None:
    Path("pyproject.toml").write_text('[tool]\nrollout-audit = "x"\n')
    result = run("inspect", dump)
    assert result.code == 2
    assert result.err.startswith(
        "error: pyproject.toml: tool.rollout-audit = 'x': expected a table, [tool.rollout-audit]"
    )


GATE = "[[gate]]\nmetric = 'kl_k3'\nop = '>'\nvalue = 1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "presets = ['nope']",
            "no preset 'nope'; see `rollout-audit presets` (presets = 'nope' in rollout-audit.toml)",
        ),
        ("[check]\npresets = 'token_rs, nope'", "(presets = 'token_rs, nope' in rollout-audit.toml)"),
        ("steps = '5:1'", "(B is the one after the last) (steps = '5:1' in rollout-audit.toml)"),
        ("steps = '99:'", "shows which there are (steps = '99:' in rollout-audit.toml)"),
        ("map = ['a']", "(map = ['a'] in rollout-audit.toml)"),
        ("map = {nofield = 'x'}", "(map = ['nofield=x'] in rollout-audit.toml)"),
        ("trainer = 'verll'", "no trainer 'verll'; did you mean 'verl'? (trainer = 'verll' in rollout-audit.toml)"),
        ("trainer = 'verl'\nconfig = 'no.yaml'", "(config = 'no.yaml' in rollout-audit.toml)"),
        ("trainer = 'verl'\nconfig = 'rollout_is=tokens'", "(config = 'rollout_is=tokens' in rollout-audit.toml)"),
        ("config = '{}'", "--config needs --trainer: whose keys are these? (config = '{}' in rollout-audit.toml)"),
        ("export = ['junitt=x']", "(export = ['junitt=x'] in rollout-audit.toml)"),
        ("fail_on = ['kl_k3 > 1', 'kl_k33 > 1']", "(fail_on = ['kl_k3 > 1', 'kl_k33 > 1'] in rollout-audit.toml)"),
        ("golden = 'none.json'", "(golden = 'none.json' in rollout-audit.toml)"),
        ("layout = 'what'", "(layout = 'what' in rollout-audit.toml)"),
        ("input_format = 'what'", "(input_format = 'what' in rollout-audit.toml)"),
        ("join = 'what'", "what: no such file or folder (join = 'what' in rollout-audit.toml)"),
        ("require_marker = 'OK'", "(require_marker = 'OK' in rollout-audit.toml)"),
        (
            f"{GATE}scope = 'poled'",
            "rollout-audit.toml: gate[0].scope = 'poled': expected one of pooled, any-step, median, step (each by "
            "itself) or the number of one; did you mean 'pooled'?\n",
        ),
        (f"{GATE}scope = '³'", "rollout-audit.toml: gate[0].scope = '³': expected one of pooled"),
        (f"{GATE}scope = '7'", "rollout-audit.toml: gate[0] 'kl_k3@7 > 1': no step 7 in the dump; steps are 0, 1, 2\n"),
        (f"{GATE}preset = 'nope'", "rollout-audit.toml: gate[0] 'nope:kl_k3@pooled > 1': no preset 'nope' in the rep"),
    ],
)
def test_every_bad_value_names_the_file_and_the_key(text: str, message: str, run: Run, dump: Path) -> None:
    Path("rollout-audit.toml").write_text(text, encoding="utf-8")
    result = run("check", dump, "--expect-bitwise")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err
    assert result.err.count("rollout-audit.toml") == 1


def test_what_was_typed_is_not_put_on_the_file(run: Run, dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the message names the value of the file, as its proposal or by chance."""
    Path("rollout-audit.toml").write_text("presets = ['token_rs']\nsteps = '1:2'\nformat = 'table'\n")
    typed = run("check", dump, "--expect-bitwise", "--presets", "token_rz")
    assert typed.err == "error: no preset 'token_rz'; did you mean 'token_rs'?; see `rollout-audit presets`\n"
    typed = run("check", dump, "--expect-bitwise", "--steps=2:1")
    assert "rollout-audit.toml" not in typed.err
    monkeypatch.setenv("ROLLOUT_AUDIT_STEPS", "3:1")
    of_variable = run("analyze", dump, "--out", "r")
    assert of_variable.err.endswith(" (steps = '3:1' in ROLLOUT_AUDIT_STEPS)\n")
