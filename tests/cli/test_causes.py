"""Causes on the command line: at the top, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Outcome
from tests.faults import FAULTS, sound, write

SAMPLES = Path(__file__).parents[2] / "sample_data"
FIELDS = {"cause", "severity", "confidence", "evidence", "advice"}


@pytest.mark.parametrize("command", ["analyze", "inspect"])
def test_a_cause_stands_at_the_top(run: Callable[..., Outcome], command: str, tmp_path: Path) -> None:
    options = ("--out", tmp_path / "out", "--no-plots", "--no-sweep") if command == "analyze" else ()
    lines = run(command, SAMPLES / "temperature_raw", *options).out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Likely cause: temperature (warning, high"))
    assert at < 6
    assert "T ≈ 0.70" in " ".join(lines[at : at + 8])
    assert "What to do" in " ".join(lines[at : at + 8])


def test_a_sound_recording_is_said_to_be_sound(run: Callable[..., Outcome]) -> None:
    out = run("inspect", SAMPLES / "llamacpp_q4").out
    assert "No fault of the plumbing shows (precision_noise" in out
    assert "Likely cause" not in out


@pytest.mark.parametrize("command", ["analyze", "inspect"])
def test_json_lists_causes(run: Callable[..., Outcome], command: str, tmp_path: Path) -> None:
    options = ("--out", tmp_path / "out", "--no-plots", "--no-sweep") if command == "analyze" else ()
    found = json.loads(run(command, SAMPLES / "top_p_one_side", "--format", "json", *options).out)["causes"]
    assert [(cause["cause"], cause["severity"]) for cause in found] == [("truncated_sampling", "warning")]
    assert set(found[0]) >= FIELDS


def test_a_fault_that_stops_the_audit_is_named(run: Callable[..., Outcome], tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.cause == "placeholder")
    folder = write(fault.inject(sound("llamacpp_q4"), 0.2, np.random.default_rng(0)), tmp_path / "dump")
    stopped = run("analyze", folder, "--out", tmp_path / "out")
    assert (stopped.code, stopped.out) == (2, "")
    assert "likely cause: placeholder" in stopped.err
    inspected = run("inspect", folder, "--format", "json")
    assert inspected.code == 1
    assert json.loads(inspected.out)["causes"][0]["cause"] == "placeholder"
