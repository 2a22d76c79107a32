from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HEAVY = {"torch", "matplotlib", "pyarrow", "polars", "numpy", "rich"}
COMMANDS = ("analyze", "metrics", "sweep", "merge", "inspect", "presets", "explain", "schema", "doctor")
PROBE = """
import sys
from rollout_audit.__main__ import main
code = main({arguments!r})
print(code, *sorted(set({heavy!r}) & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("argument", ["--help", "-h", "--version", "-V"])
def test_answers_without_loading_anything_heavy(argument: str) -> None:
    code = PROBE.format(arguments=[argument], heavy=sorted(HEAVY))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stderr.strip() == "0"
    assert result.stdout


@pytest.mark.parametrize(
    "command",
    [
        *("analyze", "metrics", "sweep", "merge", "recommend", "inspect", "convert", "presets", "explain", "schema"),
        *("check", "doctor", "config"),
    ],
)
def test_help_of_a_command_is_light_and_begins_with_a_verb(command: str) -> None:
    code = PROBE.format(arguments=[command, "--help"], heavy=sorted(HEAVY))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stderr.strip() == "0"
    first = result.stdout.split("\n\n")[1].strip()
    verbs = {"Audit", "Compute", "Show", "List", "Explain", "Print", "Check", "Try", "Join", "Write", "Rank", "Hold"}
    assert first.split()[0] in verbs


def test_gates_of_a_settings_file_load_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "rollout-audit.toml").write_text("[[gate]]\nmetric = 'kl_k3'\nop = '>'\nvalue = 1\n")
    probe = PROBE.format(arguments=["explain", "ess", "--format", "json"], heavy=["matplotlib", "numba", "torch"])
    result = subprocess.run([sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (result.stderr.strip(), result.stdout[:1]) == ("0", "{")


@pytest.mark.parametrize(
    ("arguments", "code"), [(("--golden", "none.json"), 2), (("--expect-bitwise",), 1), (("--export", "junit"), 2)]
)
def test_check_loads_torch_for_an_audit_alone(arguments: tuple[str, ...], code: int, dump: Path) -> None:
    probe = PROBE.format(arguments=["check", str(dump), *arguments], heavy=["matplotlib", "numba", "torch"])
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert result.stderr.splitlines()[-1].strip() == str(code)


@pytest.mark.parametrize(("arguments", "code"), [(("explain", "ess"), 0), (("explain", "esss"), 2), (("--help",), 0)])
def test_a_process_ends_at_once_with_everything_said(arguments: tuple[str, ...], code: int) -> None:
    """No object is taken apart at the end, what others left to be done at exit is done, nothing printed is lost."""
    script = (
        "import atexit, sys; from rollout_audit.__main__ import process\n"
        "class Slow:\n    def __del__(self): print('taken apart', file=sys.stderr)\n"
        "import builtins; builtins.slow = Slow()\n"
        "import rollout_audit.cli.app as app\n"
        "def late(*_): atexit.register(lambda: print('done at exit'))\n"
        "app.settings = (lambda own: lambda: (late(), own())[1])(app.settings)\n"
        f"sys.argv = ['rollout-audit', *{arguments!r}]; sys.exit(process())"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.returncode == code
    assert "taken apart" not in result.stderr
    assert result.stdout.endswith("done at exit\n") or arguments == ("--help",)
    assert len(result.stdout) > 200 or code == 2
    assert (result.stderr.count("\n") == 1) == (code == 2)


def test_help_states_commands_and_exit_codes(run) -> None:
    text = run("--help").out
    for word in (
        "analyze",
        "metrics",
        "sweep",
        "merge",
        "inspect",
        "presets",
        "explain",
        "schema",
        "doctor",
        "Exit codes",
        "130",
    ):
        assert word in text
    assert "..." not in text.split("Commands:")[1].split("Exit codes")[0]


def test_without_arguments_the_help_goes_to_stderr(run) -> None:
    result = run()
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: rollout-audit [OPTIONS] COMMAND")


def test_version_is_that_of_the_package(run) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert run("--version").out == f"rollout-audit {project['version']}\n"


def test_defaults_and_variables_stand_in_the_help(run) -> None:
    text = " ".join(run("analyze", "--help").out.split())
    assert "default: ./rollout-audit-report" in text
    assert "ROLLOUT_AUDIT_OUT" in text
    assert "--fail-on critical" in text
