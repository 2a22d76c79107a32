"""What a check reads is not written over by it, and names of any bytes get through."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

from tests.cli.conftest import Outcome, shell

Run = Callable[..., Outcome]
NAMES = ["bad [1] é,x:y%.json".encode(), b"b\xff.json"]


@pytest.fixture
def own_dump(dump: Path, tmp_path: Path) -> Path:
    return copytree(dump, tmp_path / "dump")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--export", "gitlab=dump/step_1.parquet"], "dump/step_1.parquet is a part of the dump and would be written"),
        (["--export", "junit=link.xml"], "link.xml is a part of the dump and would be written over"),
        (["--export", "plain=rollout-audit.toml"], "the settings file rollout-audit.toml would be written over"),
        (["--golden", "rollout-audit.toml", "--update"], "the settings file rollout-audit.toml would be written over"),
        (
            ["--export", "json=run.json", "--trainer", "verl", "--config", "run.json"],
            "the configuration run.json would be written over",
        ),
    ],
)
@pytest.mark.parametrize("given", ["dump", "dump/*.parquet", "file://{}/dump", "dump/step_1.parquet"])
def test_what_is_read_is_not_written(
    given: str, options: list[str], message: str, run: Run, own_dump: Path, golden: Path, tmp_path: Path
) -> None:
    Path("rollout-audit.toml").write_text("workers = 1\n")
    Path("run.json").write_text("{}")
    Path("link.xml").symlink_to(own_dump / "step_1.parquet")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = run("check", given.format(tmp_path), "--golden", golden, *options)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("options", [["--export", "json=dump/n.jsonl"], ["--golden", "dump/n.ndjson", "--update"]])
def test_nor_what_would_be_read_the_next_time(options: list[str], run: Run, own_dump: Path, golden: Path) -> None:
    result = run("check", own_dump.name, "--golden", golden, *options)
    assert (result.code, len(list(own_dump.iterdir()))) == (2, 2)
    assert "lies in dump, and would be read as a part of it; name another file" in result.err


def test_a_dump_that_cannot_be_opened_is_not_written_over_by_its_error(run: Run, own_dump: Path, golden: Path) -> None:
    (file := own_dump / "step_1.parquet").write_bytes(b"cut off")
    result = run("check", file, "--golden", golden, "--export", f"json={file}")
    assert (result.code, file.read_bytes()) == (2, b"cut off")


def test_an_export_beside_the_dumps_files_is_written(run: Run, own_dump: Path, golden: Path) -> None:
    for _ in range(2):
        assert run("check", own_dump, "--golden", golden, "--export", f"junit={own_dump}/check.xml").code == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {}])
def test_names_of_any_bytes(name: bytes, locale: dict[str, str], golden: Path, dump: Path) -> None:
    held = os.fsdecode(name)
    os.rename(golden, held)
    for style in ("table", "json", "csv"):
        options = ["--format", style, "--export", f"json={style}.json", "--export", f"gitlab={style}.gl"]
        result = shell("check", dump, "--golden", held, *options, "--fail-on", "kl_k3 > 0", env=locale)
        assert result.returncode == 1, result.stderr
        result.stdout.decode()
        for text in (Path(f"{style}.json").read_text(), *([result.stdout.decode()] if style == "json" else [])):
            assert json.loads(text)["golden"] == held
        assert json.loads(Path(f"{style}.gl").read_text())[0]["location"]["path"] == held
