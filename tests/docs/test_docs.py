"""The documents say what the tool does: generated pages are fresh, every command and every example runs."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import rollout_audit
from rollout_audit.__main__ import main
from rollout_audit.golden.schemas import SCHEMAS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = (
    "README.md",
    "docs/README.md",
    "docs/ci.md",
    "docs/how-it-works.md",
    "docs/recording.md",
    "docs/trainers.md",
    "sample_data/README.md",
    "reports/README.md",
)
MADE = (
    *("README.md", "docs/ci.md", "docs/cli.md", "docs/metrics.md", "docs/trainers.md"),
    *(f"docs/{name}-schema.json" for name in SCHEMAS),
)
LEFT_OUT = "…"
OTHER_TOOLS = ("make", "pip")


@cache
def load_script() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(text: str, *languages: str) -> Iterator[tuple[str, str]]:
    """(language, content) of the fenced blocks, in order."""
    for language, content in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language in languages:
            yield language, content


def transcripts(console: str) -> Iterator[tuple[list[str], list[str]]]:
    """Each command of a console block, and the lines that are shown of its output."""
    for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield shlex.split(command), [squeezed(line) for line in shown if line.strip() not in ("", LEFT_OUT)]


def squeezed(line: str) -> str:
    return " ".join(line.split())


def first_missing(shown: list[str], printed: str) -> str | None:
    """The first line that is not printed after the ones before it; columns may be wider or narrower."""
    lines = iter([squeezed(line) for line in printed.splitlines()])
    return next((line for line in shown if line not in lines), None)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to write in that holds the sample data, and an environment without settings."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", *(n for n in os.environ if n.startswith("ROLLOUT_AUDIT_"))):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@cache
def made_pages() -> dict[str, str]:
    pages: dict[str, str] = load_script().pages()
    return pages


@pytest.mark.parametrize("page", MADE)
def test_generated_pages_are_fresh(page: str) -> None:
    made = made_pages()[page]
    assert (ROOT / page).read_text(encoding="utf-8") == made, "run: python docs/make_reference.py"


@pytest.mark.usefixtures("clone")
@pytest.mark.parametrize(("page", "least"), [("README.md", 5), ("docs/trainers.md", 3)])
def test_pages_run_from_top_to_bottom(page: str, least: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Python blocks share one namespace, and later commands read what earlier blocks wrote."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    commands = 0
    for language, content in blocks((ROOT / page).read_text(encoding="utf-8"), "console", "python"):
        if language == "python":
            exec(compile(content, page, "exec"), namespace)
            continue
        for (program, *arguments), shown in transcripts(content):
            if program in OTHER_TOOLS:
                continue
            assert program == "rollout-audit"
            capfd.readouterr()
            code = main(arguments)
            printed, complaint = capfd.readouterr()
            # `presets NAME --as` ends with 1 where it shows the nearest
            assert code == ("cannot express" in printed), f"rollout-audit {' '.join(arguments)}: {complaint}"
            missing = first_missing(shown, printed)
            assert missing is None, f"rollout-audit {' '.join(arguments)} no longer prints: {missing}"
            commands += 1
    assert commands >= least


def test_examples_of_how_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    examples = "\n\n".join(content for _, content in blocks(text, "pycon"))
    test = doctest.DocTestParser().get_doctest(examples, {}, "how-it-works", "docs/how-it-works.md", 0)
    complaints: list[str] = []
    results = doctest.DocTestRunner().run(test, out=complaints.append)
    assert results.attempted > 20
    assert results.failed == 0, "".join(complaints)


@pytest.mark.parametrize("name", rollout_audit.__all__)
def test_readme_names_every_public_name(name: str) -> None:
    assert re.search(rf"\bra\.{name}\b", README)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_readme_opens_with_the_two_commands(target: str) -> None:
    first = next(content for _, content in blocks(README, "console"))
    assert f"$ make {target}" in first
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in link]
    lost = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    assert not lost
