"""Every fault that passes a health limit is named for what it is, and nothing sound raises an alarm."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.audit.causes import DETECTORS, Cause, causes_of_dump
from tests.detections import detections, trial
from tests.faults import FAULTS, SOUND, Fault, sound, write

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "causes.md"
NAMES = {
    "shift_by_one",
    "temperature",
    "truncated_sampling",
    "placeholder",
    "synthetic_eos",
    "identical_columns",
    "mask_too_wide",
    "misordered_rows",
    "top1_recorded",
    "low_precision_storage",
    "stale_weights",
    "mixed_versions",
    "broken_rows",
    "heavy_tail",
    "precision_noise",
    "cancellation",
}
CONFORMANCE = {
    "all_rejected": ["truncated_sampling"],
    "beyond_safety_bound": ["heavy_tail", "cancellation"],
    "bfloat16_values": ["low_precision_storage"],
    "catastrophic_tokens": ["heavy_tail"],
    "identical": ["identical_columns"],
    "stale_policy": ["stale_weights"],
}
"""What is named as a fault, of the dumps in which something is wrong: tests/conformance/index.json says what"""
WITHIN_LIMITS = {"bypass dump", "bfloat16 storage", "float16 storage"}
"""Faults that move no metric past a limit"""


def causes(folder: Path) -> list[Cause]:
    return causes_of_dump(ra.open_dump(folder), (), workers=1)


def faults(found: list[Cause]) -> list[str]:
    return [cause.cause for cause in found if cause.severity != "info"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_past_a_limit_is_named(fault: Fault, tmp_path: Path) -> None:
    """All rows of the table in docs/causes.md, counted anew."""
    made, page = script(), PAGE.read_text(encoding="utf-8")
    rows = list(detections(tmp_path, made.SEEDS, [fault]))
    assert [row.missed for row in rows] == [0] * len(rows)
    assert (rows[0].past == len(SOUND) * len(made.SEEDS)) != (fault.name in WITHIN_LIMITS)
    if fault.name != "float16 storage":
        assert rows[0].named == len(rows[0].trials)
    missing = set(made.detection_lines(rows)) - set(page.splitlines())
    assert not missing, "run: python docs/make_detections.py"
    assert page.count(f"| {fault.name} | `{fault.cause}` |") == len(fault.strengths)


@pytest.mark.parametrize("strength", [32, 4])
def test_zeros_over_prompt_and_tools_are_called_a_mask_too_wide_as_well(strength: float, tmp_path: Path) -> None:
    """Where rows are left to audit, and where not a single one is."""
    fault = next(fault for fault in FAULTS if fault.name == "zeros on prompt and tools")
    for name in SOUND:
        found = trial(fault.inject(sound(name), strength, np.random.default_rng(11)), tmp_path)
        rows = [row for row in sound(name).rollout if len(row) >= strength][::2]
        wide = next(cause for cause in found.causes if cause.cause == "mask_too_wide")
        assert found.alarms[0] == "placeholder"
        assert wide.figures["tokens"] == strength * len(rows)


def test_every_cause_but_noise_is_put_into_sound_data() -> None:
    assert {detector.cause for detector in DETECTORS} == NAMES
    assert {fault.cause for fault in FAULTS} == NAMES - {"precision_noise"}


@pytest.mark.parametrize("name", SOUND)
def test_parts_of_sound_recordings_raise_no_alarm(name: str, tmp_path: Path) -> None:
    for seed in range(1000, 1020):
        found = trial(sound(name).part(np.random.default_rng(seed)), tmp_path)
        assert not found.alarms, (seed, found.causes)


@pytest.mark.parametrize("label", sorted((ROOT / "sample_data").glob("*/LABEL")), ids=lambda path: path.parent.name)
def test_recordings_are_named_by_their_label(label: Path) -> None:
    found = causes(label.parent)
    expected = label.read_text(encoding="utf-8").strip()
    assert faults(found) == ([] if expected == "sound" else [expected])
    if expected == "sound":
        assert found[0].cause == "precision_noise"


def test_the_temperature_is_estimated() -> None:
    """Recorded at 0.7."""
    found = causes(ROOT / "sample_data" / "temperature_raw")[0]
    assert found.figures["temperature"] == pytest.approx(0.7, abs=0.01)


def test_the_kept_mass_is_estimated() -> None:
    """Recorded with a top-p of 0.9."""
    found = causes(ROOT / "sample_data" / "top_p_one_side")[0]
    assert found.figures["kept_mass"] == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("folder", sorted((ROOT / "tests/conformance/dumps").iterdir()), ids=lambda path: path.name)
def test_conformance_dumps(folder: Path) -> None:
    assert faults(causes(folder)) == CONFORMANCE.get(folder.name, [])


def test_a_heavy_tail_within_the_limits_is_no_alarm() -> None:
    found = causes(ROOT / "tests/conformance/dumps/heavy_tail")
    assert [(cause.cause, cause.severity) for cause in found] == [("heavy_tail", "info")]


def test_float16_is_named_but_hardly_matters(tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "float16 storage")
    found = trial(fault.inject(sound("llamacpp_q4"), 2, np.random.default_rng(0)), tmp_path).causes
    assert ("low_precision_storage", "info") in [(cause.cause, cause.severity) for cause in found]


def test_chunks_do_not_matter() -> None:
    dump = ra.open_dump(ROOT / "sample_data" / "grpo_run")
    whole, parts = (causes_of_dump(dump, (), chunk_tokens=n, workers=2) for n in (1 << 20, 200))
    assert [cause.cause for cause in whole] == [cause.cause for cause in parts]
    for one, two in zip(whole, parts, strict=True):
        assert one.figures == pytest.approx(two.figures, rel=1e-9)


def test_every_text_is_there() -> None:
    for detector in DETECTORS:
        assert min(map(len, (detector.rule, detector.alternative, detector.advice))) > 20
        assert not detector.advice.endswith(".")


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_detections", ROOT / "docs" / "make_detections.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_fresh() -> None:
    """All of it but the trials."""
    made, page = script(), PAGE.read_text(encoding="utf-8")
    lines = [*made.OPENING.splitlines(), *made.rule_lines(), *made.recorded_lines()]
    missing = [line for line in lines if line.strip() not in map(str.strip, page.splitlines())]
    assert not missing, "run: python docs/make_detections.py"
    trials = [line for line in page.splitlines() if line.startswith("| ") and "/15 |" in line]
    assert len(trials) == sum(len(fault.strengths) for fault in FAULTS)


def with_versions(folder: Path, drift: float, versions: Callable[[int, int], list[int]]) -> Path:
    """`versions(old, tokens)` of every row; each third is `old`, and its policy has moved on by `drift`."""
    fault = next(fault for fault in FAULTS if fault.name == "mixed versions")
    recording = fault.inject(sound("temperature_both"), drift, np.random.default_rng(0))
    path = write(recording, folder) / "dump.parquet"
    table = pq.read_table(path)
    lists = [versions(i % 3 == 0, len(row)) for i, row in enumerate(recording.rollout)]
    at = table.column_names.index("policy_version")
    pq.write_table(table.set_column(at, "policy_version", pa.array(lists)), path)
    return folder


def test_rows_that_hold_tokens_of_several_versions_are_counted(tmp_path: Path) -> None:
    rows = sound("temperature_both").rows
    found = causes(with_versions(tmp_path, 1.0, lambda old, n: [3] * (n // 2) + [7] * (n - n // 2) if old else [7] * n))
    mixed = next(cause for cause in found if cause.cause == "mixed_versions")
    assert (mixed.severity, mixed.figures["rows_of_several"]) == ("warning", -(-rows // 3))
    assert mixed.evidence.startswith(
        f"1 of 1 steps hold rows of several policy versions (first: step 0); {-(-rows // 3)} of {rows} rows hold "
        "tokens of several policy versions, up to 4 apart (first: step 0); rows of the oldest are ×"
    )


def test_rows_that_all_begin_with_one_version_have_nothing_to_be_held_against(tmp_path: Path) -> None:
    found = causes(with_versions(tmp_path, 0.0, lambda old, n: [6, 7] if old else [6, 6]))
    mixed = next(cause for cause in found if cause.cause == "mixed_versions")
    assert (mixed.severity, mixed.confidence) == ("info", 0.6)
    assert mixed.evidence.endswith("; no rows of an older version to hold against newer ones")


def test_rows_of_one_version_each_are_not_mixed(tmp_path: Path) -> None:
    found = causes(with_versions(tmp_path, 0.0, lambda _, n: [7] * n))
    assert [cause.cause for cause in found] == ["precision_noise"]


def test_report_json_lists_causes() -> None:
    report = ra.analyze(ra.open_dump(ROOT / "sample_data" / "temperature_raw"), presets=[], sweep=False)
    [cause] = json.loads(report.to_json())["causes"]
    assert list(cause) == ["cause", "severity", "confidence", "evidence", "figures", "alternative", "advice"]
    assert (cause["cause"], cause["severity"]) == ("temperature", "warning")
    assert 0 < cause["confidence"] <= 1
