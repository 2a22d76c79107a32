"""The same dump gives the same bytes, whatever computes it and wherever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import rollout_audit as ra
from rollout_audit.corrections.presets import BY_DEFAULT
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS
from rollout_audit.golden.figures import FigureKey
from rollout_audit.golden.model import golden_of
from rollout_audit.golden.tolerances import is_counted

SAME = "the same bytes"
EPOCH = {"SOURCE_DATE_EPOCH": "1764374400"}


def texts(paths: list[Path], workers: int | None = None, chunk_tokens: int = DEFAULT_CHUNK_TOKENS) -> tuple[str, str]:
    """report.json and golden file."""
    from rollout_audit.audit.masks import mask_digests
    from rollout_audit.dumps.digest import with_content_digests

    dump = with_content_digests(ra.open_dump(paths))
    report = ra.analyze(dump, workers=workers, chunk_tokens=chunk_tokens, edges=True)
    corrections = {preset.name: preset.correction for preset in BY_DEFAULT}
    found = mask_digests(dump, corrections, per_step=list(corrections), workers=workers, chunk_tokens=chunk_tokens)
    masks = {FigureKey(name, "kept.mask", str(step)): mask for (step, name), mask in found.items()}
    assert len(masks) == len(BY_DEFAULT) * 3
    assert len({mask.digest for mask in masks.values()}) > 10
    return report.to_json(), golden_of(report, {}, {}, masks=masks).to_text()


@pytest.fixture
def reference(dump: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setenv(*next(iter(EPOCH.items())))
    return texts([dump], workers=1)


def page_rows() -> Iterator[tuple[str, str, str]]:
    """The table of the page that tells what may differ between runs."""
    text = (Path(ra.__file__).parents[1] / "docs" / "ci.md").read_text(encoding="utf-8")
    section = text.partition("## The same bytes\n")[2].partition("\n## ")[0]
    for line in [line for line in section.splitlines() if line.startswith("| ")][2:]:
        what, report, golden = (cell.strip() for cell in line.strip("|").split(" | "))
        yield what, report, golden


Way = Callable[[Path], tuple[str, str]]
WAYS: Mapping[str, Way] = {
    "a second run": lambda dump: texts([dump], 1),
    "`--workers 2`": lambda dump: texts([dump], 2),
    "`--workers 4`": lambda dump: texts([dump], 4),
    "files in another order": lambda dump: texts(sorted(dump.iterdir(), reverse=True)),
    "`PYTHONHASHSEED=1`, ASCII locale, time zone of Tokyo": lambda dump: elsewhere(
        dump, {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONUTF8": "0"}
    ),
    "`PYTHONHASHSEED=2`, UTF-8 locale, time zone of New York": lambda dump: elsewhere(
        dump, {"PYTHONHASHSEED": "2", "TZ": "America/New_York", "LC_ALL": "C.UTF-8"}
    ),
    "`--chunk-tokens 50`": lambda dump: texts([dump], chunk_tokens=50),
}


@pytest.mark.parametrize(("what", "report", "golden"), list(page_rows()), ids=[row[0] for row in page_rows()])
def test_the_page_tells_what_differs(
    what: str, report: str, golden: str, reference: tuple[str, str], dump: Path
) -> None:
    found = WAYS[what](dump)
    for told, was, now in zip((report, golden), reference, found, strict=True):
        assert outcome(was, now) in (told, SAME)  # a small dump need not show what is allowed


def test_the_page_tells_every_way() -> None:
    assert [what for what, *_ in page_rows()] == list(WAYS)


def test_without_a_number_of_workers(reference: tuple[str, str], dump: Path) -> None:
    assert texts([dump], None) == reference


def elsewhere(dump: Path, place: Mapping[str, str]) -> tuple[str, str]:
    """The commands themselves, in a process of its own."""
    files = list(map(str, sorted(dump.iterdir())))
    analyze = ["analyze", *files, "--out", "r", "--digest", "full", "--no-plots", "--workers", "2"]
    check = ["check", *files, "--golden", "g.json", "--update", "--workers", "4"]
    code = f"from rollout_audit.__main__ import main; print(main({analyze!r}), main({check!r}))"
    env = {**os.environ, **EPOCH, **place, "PYTHONPATH": str(Path(ra.__file__).parents[1])}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, timeout=120)
    assert result.stdout.endswith(b"0 0\n"), result.stderr
    ra.check(ra.open_dump(dump), "own.json", update=True)
    own, golden = Path("own.json").read_text(encoding="utf-8"), Path("g.json").read_text(encoding="utf-8")
    # `check` runs one correction and `texts` all: equal to what `check` writes here is equal to the reference
    return Path("r/report.json").read_text(encoding="utf-8"), texts([dump], 1)[1] if own == golden else golden


def outcome(reference: str, found: str) -> str:
    if found == reference:
        return SAME
    pairs = list(zip(numbers(json.loads(reference)), numbers(json.loads(found)), strict=True))
    moved = [(where, was, now) for (where, was), (_, now) in pairs if was != now and where != "chunk_tokens"]
    counted = [where for where, was, now in moved if isinstance(was, int) or is_counted(where)]
    far = [(where, was, now) for where, was, now in moved if not abs(now - was) <= 1e-12 * max(1.0, abs(was))]
    return f"differs: {counted or far}" if counted or far else "floats within 1e-12, counts the same"


def numbers(tree: object, where: str = "") -> Iterator[tuple[str, float | int]]:
    """Every number with the metric that it is of."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from numbers(value, str(key).rpartition("@")[0].rpartition(".")[2].rpartition(":")[2] or str(key))
    elif isinstance(tree, list):
        for value in tree:
            yield from numbers(value, where)
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield where, tree
