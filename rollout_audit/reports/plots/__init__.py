"""Pictures of a report as PNG: `draw_all` saves them, `FIGURES` makes one at a time.

Importing this package loads no matplotlib; the first figure does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from rollout_audit.reports.plots.backend import without_chosen_backend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rollout_audit.audit.report import Report

__all__ = ["FIGURES", "Draw", "Drawn", "draw_all"]

Draw = Callable[["Report"], "Figure | None"]
_NAMES = (
    "steps", "pairs", "log_ratio", "density", "presets", "sweep", "frontier", "heat_map", "rejection", "length",
    "profiles", "sequences", "logged",
)  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """What `draw_all` left in the folder, and which figures failed and why."""

    written: tuple[str, ...]
    """file names, in the order of `FIGURES`"""
    failures: Mapping[str, str]
    """figure's name → the error in one line"""


def _drawer(name: str) -> Draw:
    def draw(report: Report) -> Figure | None:
        with without_chosen_backend():
            style = import_module(f"{__name__}.style")
            module = import_module(f"{__name__}.{name}")
        with style.look():
            figure: Figure | None = module.draw(report)
        return figure

    draw.__name__ = f"draw_{name}"
    draw.__doc__ = f"The figure `{name}`, or None where the report holds nothing to draw in it."
    return draw


FIGURES: Mapping[str, Draw] = MappingProxyType({name: _drawer(name) for name in _NAMES})
"""name → function from report to matplotlib figure, None = nothing to draw"""


def draw_all(report: Report, folder: str | Path, figures: Mapping[str, Draw] = FIGURES) -> Drawn:
    """Save every figure of a report as `NAME.png`. A figure that fails is noted and costs no other.

    Args:
        report: what `analyze` returned. One read back from JSON lacks arrays, so fewer figures come out.
        folder: made where it is missing.
        figures: name → function, for drawing some of them or others.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written, failures = [], {}
    for name, draw in figures.items():
        try:
            saved = _save(draw(report), target / f"{name}.png")
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            written += [f"{name}.png"] if saved else []
    return Drawn(tuple(written), failures)


def _save(figure: Figure | None, path: Path) -> bool:
    if figure is None:
        return False
    style = import_module(f"{__name__}.style")
    try:
        style.save(figure, path)
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    return True
