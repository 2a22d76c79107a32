"""Write docs/causes.md, the table of causes and how often each was named: `python docs/make_detections.py`.

Every fault of tests/faults.py is put into three sound recordings with five seeds, which takes over a minute; `--check`
only compares.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

import rollout_audit as ra  # noqa: E402
from rollout_audit.audit.causes import DETECTORS, causes_of_dump  # noqa: E402
from tests.detections import Detection, detections, trial  # noqa: E402
from tests.faults import SOUND, sound  # noqa: E402

PAGE = ROOT / "docs" / "causes.md"
SEEDS = range(5)
SUBSETS = 100
OPENING = """\
# Likely causes

<!-- made by docs/make_detections.py: do not edit -->

`analyze` and `inspect` name what most likely made the two policies differ, with the numbers that speak for it, what it
would look like if it were something else, and what to do. `--format json` lists them as `causes`: `cause` (a stable
name), `severity`, `confidence` in (0, 1], `evidence` (a sentence), `figures` (its numbers), `alternative`, `advice`.
`info` is what is normal, and what passes no health limit; an empty list says that nothing stands out. Nothing is
repaired: `--on-fault drop` leaves faulty rows out and counts them.

Dumps of up to 200,000 tokens are looked at whole; of larger ones, blocks of eight rows spread over the dump, while sums
per row (age, versions, steps, limits) are of all rows.

## What it takes

No threshold was fitted to one file; each stands where sound recordings do not come near it.

"""
TABLE = """
## How often it is named

Each fault of [tests/faults.py](../tests/faults.py) in three sound recordings of
[sample_data](../sample_data/README.md) with five seeds. *Named*: the right cause stands first, as a warning or an
error. *Past a limit*: a health limit is passed, pooled or in a step, or the data have faults at error
level. *Missed*: past a limit, and another cause or none stands first.

"""


def page(seeds: Sequence[int]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        rows = list(detections(Path(folder), seeds))
        alarms, tried = false_alarms(Path(folder))
    lines = [*rule_lines(), TABLE, *detection_lines(rows), "", *recorded_lines()]
    closing = (
        f"False alarms: {alarms} in {tried} subsets of the sound recordings (1 to 40 rows, cut to 5 to 10,000 tokens, "
        "in one to four steps)."
    )
    return OPENING + "\n".join([*lines, "", closing]) + "\n"


def rule_lines() -> Iterator[str]:
    yield "| cause | severity | named when | if it were something else | what to do |"
    yield "| --- | --- | --- | --- | --- |"
    for d in DETECTORS:
        cells = (f"`{d.cause}`", d.severity, d.rule, d.alternative, d.advice)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def detection_lines(rows: Sequence[Detection]) -> Iterator[str]:
    yield "| fault | cause | strength | named | past a limit | missed | also named |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        of = len(row.trials)
        strength = f"{row.strength:g} ({row.fault.unit})"
        also = ", ".join(f"`{name}`" for name in row.also) or "–"
        yield (
            f"| {row.fault.name} | `{row.fault.cause}` | {strength} | {row.named}/{of} | {row.past}/{of} "
            f"| {row.missed} | {also} |"
        )


def recorded_lines() -> Iterator[str]:
    yield "## Recordings with a label\n"
    yield "| recording | label | named | confidence |"
    yield "| --- | --- | --- | --- |"
    for label in sorted((ROOT / "sample_data").glob("*/LABEL")):
        first = causes_of_dump(ra.open_dump(label.parent), (), workers=1)[0]
        named = f"`{first.cause}` ({first.severity})"
        yield f"| `{label.parent.name}` | {label.read_text().strip()} | {named} | {first.confidence:g} |"


def false_alarms(folder: Path) -> tuple[int, int]:
    """Alarms among random parts of sound recordings, and how many parts were tried."""
    parts = [sound(name).part(np.random.default_rng(seed)) for name in SOUND for seed in range(SUBSETS)]
    return sum(bool(trial(part, folder).alarms) for part in parts), len(parts)


def main(arguments: Sequence[str]) -> int:
    text = page(SEEDS)
    if "--check" in arguments:
        fresh = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        print("docs/causes.md is up to date" if fresh else "stale: run python docs/make_detections.py")
        return 0 if fresh else 1
    PAGE.write_text(text, encoding="utf-8", newline="\n")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
