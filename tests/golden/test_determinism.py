"""The same dump gives the same bytes, whatever computes it and wherever."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import rollout_audit as ra
from rollout_audit.golden.figures import figures_of
from rollout_audit.golden.model import golden_of
from rollout_audit.golden.tolerances import is_counted

EPOCH = {"SOURCE_DATE_EPOCH": "1764374400"}
PLACES: Mapping[str, Mapping[str, str]] = {
    "one hash seed, Tokyo, C": {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONUTF8": "0"},
    "another, New York, UTF-8": {"PYTHONHASHSEED": "2", "TZ": "America/New_York", "LC_ALL": "C.UTF-8"},
}


def texts(paths: list[Path], workers: int | None = None) -> tuple[str, str]:
    """report.json and golden file."""
    from rollout_audit.dumps.digest import with_content_digests

    report = ra.analyze(with_content_digests(ra.open_dump(paths)), workers=workers, edges=True)
    return report.to_json(), golden_of(report, {}, {})[0].to_text()


@pytest.fixture
def reference(dump: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setenv(*next(iter(EPOCH.items())))
    return texts([dump], workers=1)


@pytest.mark.parametrize("workers", [1, 2, 4, None])
def test_workers(workers: int | None, reference: tuple[str, str], dump: Path) -> None:
    assert texts([dump], workers) == reference


def test_order_of_the_arguments(reference: tuple[str, str], dump: Path) -> None:
    files = sorted(dump.iterdir())
    assert texts(files) == texts(files[::-1]) == reference


@pytest.mark.parametrize("place", PLACES)
def test_hash_seed_time_zone_and_locale(place: str, reference: tuple[str, str], dump: Path) -> None:
    files = list(map(str, sorted(dump.iterdir(), reverse=place.startswith("another"))))
    analyze = ["analyze", *files, "--out", "r", "--digest", "full", "--no-plots", "--workers", "2"]
    check = ["check", *files, "--golden", "g.json", "--update", "--workers", "4"]
    code = f"from rollout_audit.__main__ import main; print(main({analyze!r}), main({check!r}))"
    env = {**os.environ, **EPOCH, **PLACES[place], "PYTHONPATH": str(Path(ra.__file__).parents[1])}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, timeout=120)
    assert result.stdout.endswith(b"0 0\n"), result.stderr
    ra.check(ra.open_dump(dump), "own.json", update=True)
    assert Path("r/report.json").read_text(encoding="utf-8") == reference[0]
    assert Path("g.json").read_bytes() == Path("own.json").read_bytes()


def figures(dump: Path, chunk_tokens: int) -> Iterator[tuple[str, float | int | None]]:
    report = ra.analyze(ra.open_dump(dump), sweep=False, edges=True, chunk_tokens=chunk_tokens)
    yield from ((str(key), figure.value) for key, figure in figures_of(report).items())


def test_another_chunk_size_moves_floats_in_the_last_digits_and_no_count(dump: Path) -> None:
    whole, small = dict(figures(dump, 2**19)), dict(figures(dump, 50))
    assert whole.keys() == small.keys()
    for key, value in whole.items():
        other = small[key]
        if value is None or other is None or is_counted(key.rpartition("@")[0].rpartition(".")[2].rpartition(":")[2]):
            assert value == other, key
        else:
            assert abs(value - other) <= 1e-12 * max(1.0, abs(value)), key
