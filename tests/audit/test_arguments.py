"""What the functions take for a configuration, a trainer or a preset: anything else is one line, never a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import rollout_audit as ra

RUN = Path(__file__).parents[2] / "sample_data" / "grpo_run"
Call = Callable[[ra.Dump, object], object]

CONFIGS: dict[str, Call] = {
    "trainer_metrics": lambda dump, c: ra.trainer_metrics(dump, "verl", c),  # type: ignore[call-overload]
    "apply_correction": lambda dump, c: next(iter(ra.apply_correction(dump, c, trainer="verl"))),  # type: ignore[arg-type]
    "analyze": lambda dump, c: ra.analyze(dump, presets=[], trainer="verl", config=c, sweep=False, limit=2),  # type: ignore[arg-type]
}
NAMES: dict[str, Call] = {
    "trainer_metrics": lambda dump, n: ra.trainer_metrics(dump, n, {}),  # type: ignore[call-overload]
    "apply_correction": lambda dump, n: next(iter(ra.apply_correction(dump, {}, trainer=n))),  # type: ignore[arg-type]
    "analyze": lambda dump, n: ra.analyze(dump, presets=[], trainer=n, sweep=False, limit=2),  # type: ignore[arg-type]
}
PRESETS: dict[str, Call] = {
    "presets": lambda dump, p: ra.analyze(dump, presets=p, sweep=False, limit=2),  # type: ignore[arg-type]
    "named": lambda dump, p: ra.analyze(dump, presets=[], named=p, sweep=False, limit=2),  # type: ignore[arg-type]
    "reference": lambda dump, p: ra.analyze(dump, presets=[], reference=p, sweep=False, limit=2),  # type: ignore[arg-type]
}


def refused(call: Call, given: object) -> str:
    with pytest.raises(ra.UsageError) as caught:
        call(ra.open_dump(RUN), given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("given", [["a"], ("a",), 3, 0.5, True, b"x", set(), []], ids=repr)
def test_what_is_no_configuration(name: str, given: object) -> None:
    kind = type(given).__name__
    wanted = f"configuration {given!r}: a {kind}; give a dict, text, or the path of a file"
    assert refused(CONFIGS[name], given) == wanted


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("given", "text"), [("", "configuration '': nothing in it"), ("\0", "cannot be read")])
def test_text_that_is_none(name: str, given: str, text: str) -> None:
    assert text in refused(CONFIGS[name], given)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", [["verl"], 3, {"verl": 1}, Path("verl")], ids=repr)
def test_what_is_no_trainer(name: str, given: object) -> None:
    assert refused(NAMES[name], given) == f"no trainer {given!r}: expected a name, as 'verl'"


@pytest.mark.parametrize(
    ("name", "given"), [("presets", 3), ("presets", "seq_rs"), ("named", None), ("named", "seq_rs")]
)
def test_what_is_no_list_of_presets(name: str, given: object) -> None:
    assert refused(PRESETS[name], given) == f"presets {given!r}: expected a list of names or Presets"


@pytest.mark.parametrize(
    ("name", "given"), [("presets", [3]), ("named", [b"x"]), ("reference", 3), ("reference", ["a"])]
)
def test_what_is_no_preset(name: str, given: object) -> None:
    one = given[0] if isinstance(given, list) and name != "reference" else given
    assert refused(PRESETS[name], given) == f"no preset {one!r}: expected a name or a Preset"
