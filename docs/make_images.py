"""Make README's pictures from a real run: `python docs/make_images.py` (a terminal as SVG, a plot as PNG)."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
COMMAND = ("analyze", "sample_data/grpo_run")
COLUMNS = 88
LINES_OF = {"Mismatch": 10, "Corrections": 15}
"""How much of the long tables is shown; what stands before them is shown in full, what follows is left out"""
THEME = TerminalTheme(
    (246, 248, 250),
    (36, 41, 47),
    [(36, 41, 47), (207, 34, 46), (17, 99, 41), (154, 103, 0), (9, 105, 218), (130, 80, 223), (27, 124, 131),
     (110, 119, 129)],
    [(87, 96, 106), (164, 14, 38), (26, 127, 55), (99, 60, 1), (33, 139, 255), (164, 117, 249), (49, 146, 170),
     (140, 149, 159)],
)  # fmt: skip


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        printed = run("--out", f"{folder}/report", "--format", "table")
        shutil.copy(f"{folder}/report/plots/steps.png", IMAGES / "steps.png")
    shown = list(telling(printed.splitlines()))
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="standard")
    for line in (f"\x1b[1m$ rollout-audit {' '.join(COMMAND)} --out report\x1b[0m", *shown):
        console.print(Text.from_ansi(line), soft_wrap=True)
    svg = console.export_svg(title="rollout-audit", theme=THEME, unique_id="rollout-audit")
    (IMAGES / "terminal.svg").write_text(local_fonts(svg), encoding="utf-8", newline="\n")


def local_fonts(svg: str) -> str:
    """A page may not load fonts for its pictures: name those that readers have."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace(
        "font-family: Fira Code", 'font-family: "DejaVu Sans Mono", Menlo, Consolas'
    )


def run(*options: str) -> str:
    """What the command prints on a terminal with colours."""
    settings = {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "rollout_audit", *COMMAND, *options, "--quiet"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **settings}, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


def telling(lines: Sequence[str]) -> Iterator[str]:
    """The lines before the long tables, then the first of each."""
    left, cut = len(lines), False
    for line in lines:
        title = next((name for name in LINES_OF if Text.from_ansi(line).plain.startswith(f"{name},")), None)
        if title:
            left, cut = LINES_OF[title], True
        if left:
            yield line
        elif cut:
            yield "\x1b[2m⋮\x1b[0m\n"
            cut = False
        left = max(0, left - 1)


if __name__ == "__main__":
    main()
