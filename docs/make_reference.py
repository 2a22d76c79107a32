"""Write the pages that are made from the code: `python docs/make_reference.py`; `--check` only compares.

docs/metrics.md, docs/cli.md and the JSON Schemas are written whole; between markers tables of README.md and of
docs/trainers.md and the planted regressions of docs/ci.md.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import pyarrow.parquet as pq
import trainer_tables

import rollout_audit as ra
from rollout_audit.__main__ import main as command_line
from rollout_audit.audit.best import CRITERIA
from rollout_audit.audit.health import RULES
from rollout_audit.audit.limits import LIMITS
from rollout_audit.audit.report import LengthTrap
from rollout_audit.cli.app import COMMANDS
from rollout_audit.dumps import inspect_dump
from rollout_audit.dumps.fields import FIELDS, Field
from rollout_audit.dumps.formats.table import FORMATS, SUFFIXES
from rollout_audit.dumps.layouts import LAYOUTS
from rollout_audit.golden.schemas import SCHEMAS
from rollout_audit.reports.catalogue import CATALOGUE, MetricEntry, limits_text

ROOT = Path(__file__).resolve().parents[1]
MADE = "<!-- made by docs/make_reference.py: do not edit -->"
HELP_WIDTH = "88"
AVERAGED = {"token": "tokens", "sequence": "sequences", "token or sequence": "tokens or sequences"}
LENGTH_TRAP = (
    "The log weight of a response of n tokens is S = Σd. Its mean is −κn, κ = k1; its spread is fitted to the",
    "responses as Var S = a·n + b·n² (a: tokens that err independently, b: what a response shares; least squares on",
    "the squared residuals, weights 1/n², at least eight responses). Expected ess_seq of responses of n tokens is",
    "exp(−log(1 + chi2_rel_token) · (a·n + b·n²) / Var d): for independent tokens the token ess to the power of n, for",
    "normal d the lognormal exp(−Var S). What a handful of responses shows is evener than that of very many.",
)
CHOOSING = (
    "`recommend` and the best points of the sweep hold corrections against limits. The ess is that of the weights",
    "which are applied to the kept tokens; the raw one stands beside it. Weights of 1 always have an ess of 1: what",
    "carries no token or sequence weight is held to the k3 of the tokens that it keeps, over the dump lowered by as",
    "much as the worst step is above the pooled k3. A drift of all tokens (k1, ppl_ratio, raw ess past the limit)",
    "takes weights; where errors cancel, not those of the product ratio. Weights must average within [0.5, 2]. Mildest",
    "is the least distance from doing nothing: masked_fraction + bounded_fraction + mass_lost + (1 − ess), where",
    "bounded_fraction is the share of the weights that a bound replaced, capped_fraction + below_lower_fraction.",
)
EXPRESSIBLE = ("trainer", "weights", "rejection", "loss divides by", "veto", "batch norm", "policies")
OF_ROW, OF_TOKEN = "one value a row", "a list a row"
TYPES = {
    "rollout_log_probs": "list of float, **required**",
    "old_log_probs": "list of float, this or `log_probs` **required**",
    "log_probs": "list of float",
    "response_mask": "list of bool, int or float, 0 or 1; absent: all 1",
    "advantages": "list of float, or one float a row",
    "policy_version": "one value a row, or a list of one a token or a turn",
    "step": "int; absent: from the file's name",
}


TRIED_ON: dict[str, list[tuple[str, str | None]]] = {
    "miles-dashboard": [("tests/formats/miles/grpo_run/dashboard_columns", None)],
    "parquet": [(f"sample_data/{name}", None) for name in ("grpo_run", "llamacpp_q4")],
    "safetensors": [
        (f"tests/formats/{name}", layout)
        for name, layout in {"skyrl": None, "roll": "roll", "trl": None, "areal": "areal", "verl": None}.items()
    ],
    "nemo-rl": [("tests/formats/nemo_rl", None)],
    "prime-rl": [("tests/formats/prime_rl", None)],
    "open-instruct": [("tests/formats/open_instruct", None)],
    "jsonl": [("tests/formats/plain/batch_step_1.jsonl", None)],
    "slime": [("tests/formats/slime", None)],
    "slime-rollout": [(f"tests/formats/{name}/grpo_run/rollout_data", None) for name in ("slime", "miles")],
    "miles": [("tests/formats/miles", None), ("tests/formats/miles_cp2", None)],
    "torch": [("tests/formats/verl/batch_step_1.pt", None)],
    "npz": [("tests/formats/plain/batch_step_1.npz", None)],
}
"""Files and layout; what is under tests/formats was written by the frameworks' own code, but for `plain`"""


def pages() -> dict[str, str]:
    """Path below the root → the text that belongs there."""
    readme, trainers = ((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/trainers.md"))
    return {
        "docs/metrics.md": metrics_page(),
        "docs/cli.md": cli_page(),
        **{f"docs/{name}-schema.json": printed("schema", name) for name in SCHEMAS},
        "docs/ci.md": between((ROOT / "docs" / "ci.md").read_text(encoding="utf-8"), "planted regressions", planted()),
        "docs/trainers.md": filled(trainers, trainer_parts()),
        "README.md": filled(readme, readme_parts()),
    }


def readme_parts() -> dict[str, Iterator[str]]:
    return {
        "fields": field_table(),
        "formats": format_table(),
        "layouts": layout_table(),
        "health rules": rule_table(),
    }


def trainer_parts() -> dict[str, Iterator[str]]:
    return {
        "what trainers express": rows_under(EXPRESSIBLE, trainer_tables.expressible()),
        "agreement": rows_under(("trainer", "`expected.parquet`", "`expected_more.parquet`"),
                                trainer_tables.agreement()),
        "quirks": rows_under(("trainer", "quirk", "what it does"), trainer_tables.quirks()),
    }  # fmt: skip


def filled(page: str, tables: dict[str, Iterator[str]]) -> str:
    for name, table in tables.items():
        page = between(page, name, table)
    return page


def rows_under(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from header(*names)
    yield from (row(*cells) for cells in rows)


def metrics_page() -> str:
    families = (
        ("mismatch", "Before any correction; in the report `overall`, `steps[].metrics`, `pairs[].metrics`."),
        ("correction", "Of the weights w, raw, bounded, normalised and kept; in the report `corrections[].stages`."),
    )
    parts = [
        f"# Metrics\n\n{MADE}\n",
        "d = log π − log μ of a token, ρ = exp d, w the applied weight; π is the trainer, μ the rollout engine. Token",
        "metrics are means over the valid tokens of all sequences, sequence metrics over sequences with at least one",
        "valid token. A value that cannot be computed is null, with a reason beside it. `rollout-audit explain METRIC`",
        "shows one metric. What the trainers' own names mean is theirs to define: see `rollout-audit metrics`.",
    ]
    for family, where in families:
        entries = [entry for entry in CATALOGUE.values() if entry.family == family]
        parts += [f"\n## {family.capitalize()}\n\n{where}\n", *metric_table(entries)]
    parts += ["\n## Health rules\n", *rule_table()]
    parts += ["\n## Length trap\n", *LENGTH_TRAP, "", *length_table()]
    parts += ["\n## Choosing a correction\n", *CHOOSING, "", *limit_table(), "", *criterion_table()]
    return "\n".join(parts) + "\n"


def metric_table(entries: Sequence[MetricEntry]) -> Iterator[str]:
    yield from header("metric", "over", "formula", "range", "worse", "what it says", "source")
    for e in entries:
        over = AVERAGED.get(e.unit, e.unit)
        yield row(f"`{e.name}`", over, e.formula, e.range, e.worse, e.meaning, e.source)


def rule_table() -> Iterator[str]:
    """The rules of one metric in one row; `looks at` says which figures."""
    looks_at = {"mismatch": "mismatch", "correction": "reference correction", "both": "smaller of raw and kept"}
    yield from header("metric", "looks at", "limits", "what to try")
    for metric in dict.fromkeys(rule.metric for rule in RULES):
        rules = [rule for rule in RULES if rule.metric == metric]
        limits = "; ".join(map(limits_text, rules))
        advice = "; ".join(dict.fromkeys(rule.advice for rule in rules))
        yield row(f"`{metric}`", looks_at[rules[0].source], limits, advice)


def length_table() -> Iterator[str]:
    yield from header("field of `length_trap`", "what it holds")
    for name, field in LengthTrap.model_fields.items():
        if field.description:
            yield row(f"`{name}`", field.description)


def limit_table() -> Iterator[str]:
    yield from header("option of `recommend`", "limit", "why")
    for limit in LIMITS:
        yield row(f"`{limit.option}`", f"`{limit.key}` {limit.comparison} {limit.default:g}", limit.reason)


def criterion_table() -> Iterator[str]:
    yield from header("criterion of `sweep.best`", "what it picks")
    for criterion in CRITERIA:
        yield row(f"`{criterion.name}`", criterion.sentence)


def field_table() -> Iterator[str]:
    yield from header("field", "what it holds", "columns also read as this field")
    for field in FIELDS:
        yield row(f"`{field.name}`", holding(field), ", ".join(f"`{alias}`" for alias in field.aliases) or "–")


def format_table() -> Iterator[str]:
    yield from header("format", "written by", "files", "known by", "tried on")
    for one in FORMATS.values():
        suffixes = ", ".join(f"`{suffix}`" for suffix, kind in SUFFIXES.items() if kind == one.container)
        known = ", ".join(f"`{name}`" for name in sorted(one.signature)) or "its kind of file alone"
        yield row(f"`{one.name}`", one.written_by, suffixes, known, tried_on(one.name))


def tried_on(name: str) -> str:
    """Rows and valid tokens of the files that the tests hold a format against."""
    dumps = [ra.open_dump(ROOT / path, layout=layout) for path, layout in TRIED_ON[name]]
    assert {file.format for dump in dumps for file in dump.files} == {name}
    found = [inspect_dump(dump) for dump in dumps]
    rows, tokens = sum(dump.total_rows for dump in dumps), sum(one.valid_tokens for one in found)
    return f"{rows:,} rows, {tokens:,} tokens"


def layout_table() -> Iterator[str]:
    yield from header("layout", "what it is", "known by")
    for layout in LAYOUTS.values():
        names = ", ".join(f"`{name}`" for name in sorted(layout.signature))
        told = names or ("shapes" if layout.start is None else "asked for: `--layout`")
        yield row(f"`{layout.name}`", layout.what, told)


def holding(field: Field) -> str:
    return TYPES.get(field.name, OF_ROW if field.kind == "row" else OF_TOKEN)


def cli_page() -> str:
    parts = [f"# Commands\n\n{MADE}\n", "## rollout-audit\n", *quoted(printed("--help"))]
    for function, _, _ in COMMANDS:
        parts += [f"\n## {function.__name__}\n", *quoted(printed(function.__name__, "--help"))]
    parts += ["\n## config show\n", *quoted(printed("config", "show", "--help"))]
    return "\n".join(parts) + "\n"


def planted() -> Iterator[str]:
    """A regression of each kind in a copy of a sample's golden file, and what `check` prints of it."""
    quiet = contextlib.redirect_stderr(io.StringIO())
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), quiet:
        for title, plant, exports in PLANTED:
            shutil.copytree(SAMPLE, "dump", dirs_exist_ok=True)
            shutil.copy(ROOT / "sample_data" / "golden" / f"{SAMPLE.name}.json", "golden.json")
            yield from (f"**{title}**", "")
            yield from console("check", "dump", "--golden", "golden.json", *plant(), *exports)
            for export in exports:
                kind, _, file = export.removeprefix("--export=").partition("=")
                content = Path(file).read_text(encoding="utf-8").rstrip("\n")
                yield from (f"`{file}`:", "", f"```{LANGUAGES[kind]}", content, "```", "")


def console(*arguments: str) -> Iterator[str]:
    """A command, the first lines of what it prints, and its exit code."""
    text, code = answered(*arguments, columns="140")
    lines = text.splitlines()
    shown = [*lines[:SHOWN], "…"] if len(lines) > SHOWN else lines
    yield from ("```console", f"$ rollout-audit {' '.join(arguments)}", *shown, "$ echo $?", str(code), "```", "")


def expecting(value: str, name: str = "kl_k3@pooled") -> Callable[[], list[str]]:
    """Another expectation of kl_k3 in the golden file, or another name for it."""

    def plant() -> list[str]:
        text = Path("golden.json").read_text(encoding="utf-8")
        Path("golden.json").write_text(re.sub(r'"kl_k3@pooled": [^,]+', f'"{name}": {value}', text), encoding="utf-8")
        return []

    return plant


def shortened() -> list[str]:
    """The dump loses its last rows."""
    for file in Path("dump").glob("*.parquet"):
        table = pq.read_table(file)
        pq.write_table(table.slice(0, table.num_rows - 5), file)
    return []


SHOWN = 12
SAMPLE = ROOT / "sample_data" / "temperature_raw"
LANGUAGES = {"github": "text", "gitlab": "json", "step-summary": "markdown"}
EXPORTS = ("--export=github=annotations.txt", "--export=gitlab=quality.json", "--export=step-summary=summary.md")
PLANTED: tuple[tuple[str, Callable[[], list[str]], tuple[str, ...]], ...] = (
    ("Nothing changed", list, ()),
    ("A metric got worse", expecting("0.05"), EXPORTS),
    ("A metric got better", expecting("0.5"), ()),
    ("A metric is no longer there", expecting("0.05", "kl_k9@pooled"), ()),
    ("NaN", expecting("NaN"), ()),
    ("An added preset", lambda: ["--presets", "decoupled_token_is,decoupled_k3_rs"], ()),
    ("Another dump", shortened, ()),
)


def quoted(text: str) -> list[str]:
    return ["```text", text.strip("\n"), "```"]


def printed(*arguments: str) -> str:
    """What the command prints, at a fixed width and untouched by the caller's settings."""
    text, code = answered(*arguments)
    if code:
        raise SystemExit(f"rollout-audit {' '.join(arguments)} ended with {code}")
    return text


def answered(*arguments: str, columns: str = HELP_WIDTH) -> tuple[str, int]:
    """The same, and the exit code."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOUT_AUDIT_")}
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    with patch.dict(os.environ, {**kept, "COLUMNS": columns}, clear=True), contextlib.redirect_stdout(out):
        code = command_line(list(arguments))
    out.flush()
    return "\n".join(line.rstrip() for line in out.buffer.getvalue().decode().splitlines()) + "\n", code


def between(text: str, name: str, lines: Iterator[str]) -> str:
    """The text with what stands between the markers of that name replaced."""
    start, end = f"<!-- {name}: made by docs/make_reference.py -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    table = "\n".join(lines)
    return pattern.sub(lambda _: f"{start}\n\n{table}\n\n{end}", text)


def header(*names: str) -> Iterator[str]:
    yield row(*names)
    yield row(*("---" for _ in names))


def row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('<', '&lt;') for cell in cells)} |"


def stale(made: dict[str, str]) -> list[str]:
    return [
        path
        for path, text in made.items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text
    ]


def main(arguments: Sequence[str]) -> int:
    made = pages()
    old = stale(made)
    if "--check" in arguments:
        print(f"stale: {', '.join(old)}; run python docs/make_reference.py" if old else "all pages are up to date")
        return 1 if old else 0
    for path in old:
        (ROOT / path).write_text(made[path], encoding="utf-8", newline="\n")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
