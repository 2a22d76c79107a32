"""Saving: what is written, what a failure costs, and that the environment cannot change it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib

from rollout_audit.audit.report import Report
from rollout_audit.reports.plots import FIGURES, draw_all

Audited = Callable[[str], Report]


def test_two_saves_are_equal_byte_for_byte(ageing: Report, tmp_path: Path) -> None:
    drawn = draw_all(ageing, tmp_path / "a")
    assert drawn.written == tuple(f"{name}.png" for name in FIGURES)
    assert not drawn.failures
    again = draw_all(ageing, tmp_path / "b", {n: FIGURES[n] for n in ("steps", "density", "presets", "sequences")})
    for name in again.written:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert b"matplotlib" not in (tmp_path / "a" / name).read_bytes()


def test_a_failing_figure_costs_no_other(audited: Audited, tmp_path: Path) -> None:
    def fails(report: Report) -> None:
        raise RuntimeError("no ink\nleft")

    drawn = draw_all(audited("one_token"), tmp_path, {"bad": fails, "density": FIGURES["density"]})
    assert drawn.written == ("density.png",)
    assert drawn.failures == {"bad": "RuntimeError: no ink"}
    assert [p.name for p in tmp_path.iterdir()] == ["density.png"]


def test_a_figure_that_fails_while_saved_leaves_no_file(audited: Audited, tmp_path: Path) -> None:
    def half(report: Report) -> object:
        figure = FIGURES["density"](report)
        assert figure is not None
        figure.set_size_inches(1e5, 1e5)
        return figure

    drawn = draw_all(audited("one_token"), tmp_path, {"huge": half})  # type: ignore[dict-item]
    assert "huge" in drawn.failures
    assert list(tmp_path.iterdir()) == []


def test_a_report_from_json_has_the_pictures_that_need_no_arrays(ageing: Report, tmp_path: Path) -> None:
    report = Report.model_validate_json(ageing.to_json())
    assert [name for name, draw in FIGURES.items() if draw(report) is not None] == [
        "steps", "pairs", "presets", "logged",
    ]  # fmt: skip
    assert draw_all(report, tmp_path, {"density": FIGURES["density"]}).written == ()


def test_settings_of_the_user_are_neither_used_nor_changed(audited: Audited, tmp_path: Path) -> None:
    draw_all(audited("one_token"), tmp_path / "a", {"density": FIGURES["density"]})
    with matplotlib.rc_context({"text.color": "red", "axes.facecolor": "black", "font.size": 30}):
        draw_all(audited("one_token"), tmp_path / "b", {"density": FIGURES["density"]})
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "a/density.png").read_bytes() == (tmp_path / "b/density.png").read_bytes()


def test_a_strange_backend_in_the_environment_does_no_harm(audited: Audited, tmp_path: Path) -> None:
    source = tmp_path / "report.json"
    source.write_text(audited("one_token").to_json())
    program = (
        "import sys, os\n"
        "from rollout_audit.audit.report import Report\n"
        "from rollout_audit.reports.plots import draw_all\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"report = Report.model_validate_json(open({str(source)!r}).read())\n"
        f"print(draw_all(report, {str(tmp_path / 'out')!r}))\n"
        "assert os.environ['MPLBACKEND']\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
    )
    environment = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.not_there"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "failures={}" in done.stdout
    assert (tmp_path / "out" / "steps.png").stat().st_size > 10_000
