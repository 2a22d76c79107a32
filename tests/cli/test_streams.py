"""What reaches stdout and stderr on terminals, pipes and poor locales; the real command in a process of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import FLOATS, RESETS, shell

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(width: int, *arguments: object, **variables: str) -> tuple[int, str]:
    """Exit code and everything that a terminal of that width was sent."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in RESETS}
    command = [sys.executable, "-m", "rollout_audit", *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env={**env, "TERM": "xterm-256color", **variables}
    ) as process:
        os.close(follower)
        sent = b""
        try:
            while part := os.read(leader, 65536):
                sent += part
        except OSError:  # Linux reports the end of a terminal so
            pass
        code = process.wait()
    os.close(leader)
    return code, sent.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colour_a_bar_and_whole_names(dump: Path, tmp_path: Path) -> None:
    code, text = on_terminal(80, "analyze", dump, "--out", tmp_path / "r", "--no-plots")
    assert code == 0
    assert "\x1b[" in text
    assert "Reading" in text
    lines = ANSI.sub("", text).splitlines()
    assert any("bypass_pg_geo_rs_token_tis" in line for line in lines)
    assert any("[red].parquet" in line for line in lines)
    assert "…" not in text


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_refused(variables: dict[str, str]) -> None:
    code, text = on_terminal(80, "explain", "kl_k3", **variables)
    assert code == 0
    assert not ANSI.search(text)


POOR = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_programs_get_the_same_bytes_everywhere() -> None:
    environments: list[dict[str, str]] = [
        {},
        {"FORCE_COLOR": "1", "GITHUB_ACTIONS": "true", "CLICOLOR_FORCE": "1"},
        {**POOR, "TERM": "dumb", "NO_COLOR": "1"},
    ]
    outputs = {shell("presets", "--format", "json", env=env).stdout for env in environments}
    assert len(outputs) == 1
    assert "ρ".encode() in outputs.pop()


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """A dump for which `inspect` exits with 1."""
    nan = pa.array([[-1.0, float("nan")]], FLOATS)
    pq.write_table(pa.table({"rollout_log_probs": nan, "old_log_probs": nan}), tmp_path / "mu.parquet")
    return tmp_path / "mu.parquet"


def test_an_ascii_locale_keeps_the_verdict(faulty: Path) -> None:
    result = shell("inspect", faulty, env=POOR)
    assert result.returncode == 1
    assert "mu.parquet row 0 position 1" in result.stdout.decode("ascii")
    assert result.stderr == b""


@pytest.mark.parametrize("style", ["table", "plain"])
def test_an_ascii_locale_spells_letters_out(style: str) -> None:
    result = shell("explain", "kl_k3", "--format", style, env=POOR)
    assert result.returncode == 0
    assert "mean expm1(d) - d" in result.stdout.decode("ascii")


def test_a_closed_pipe_is_quiet_and_keeps_the_verdict(faulty: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "rollout_audit", "inspect", str(faulty)]
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=120)
    os.close(write)
    assert (result.returncode, result.stderr) == (1, b"")


@pytest.mark.parametrize(("closed", "said"), [(">&-", b""), ("2>&-", b"mu.parquet"), (">&- 2>&-", b"")])
def test_closed_streams_keep_the_verdict(closed: str, said: bytes, faulty: Path) -> None:
    line = f"{sys.executable} -m rollout_audit inspect '{faulty}' {closed}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, timeout=60)
    assert (result.returncode, result.stderr) == (1, b"")
    assert said in result.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_line(faulty: Path) -> None:
    line = f"{sys.executable} -m rollout_audit inspect '{faulty}' > /dev/full"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "No space left on device; make room, or write elsewhere" in result.stderr


def test_head_is_quiet() -> None:
    line = f"{sys.executable} -m rollout_audit schema | head -1"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"{\n", b"")


def test_columns_are_obeyed_in_a_pipe() -> None:
    lines = shell("presets", env={"COLUMNS": "60"}).stdout.decode().splitlines()
    assert max(map(len, lines)) <= 60
    assert any(line.startswith("decoupled_geo_rs_token_tis") for line in lines)


def test_a_container_without_a_home_and_with_a_notebooks_backend(dump: Path, tmp_path: Path) -> None:
    poor = {
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "HOME": "/proc/nowhere",
        "MPLCONFIGDIR": "/proc/nowhere",
    }
    result = shell("analyze", dump, "--out", tmp_path / "r", "--format", "json", env=poor)
    assert result.returncode == 0, result.stderr
    assert result.stdout == (tmp_path / "r" / "report.json").read_bytes()
    assert b"was not drawn" not in result.stderr
    assert list((tmp_path / "r" / "plots").glob("*.png"))
