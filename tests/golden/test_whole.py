"""No expectation disappears from a golden file unseen; tolerances may be edited."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import rollout_audit as ra
from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]
MASK, NULL = "decoupled_token_is:kept.mask@pooled", "decoupled_token_is:kept.ess_seq@pooled"
STEP, ALONE = "kl_k3@1", "steps@pooled"


def without(section: str, *keys: str) -> Callable[[dict[str, Any]], None]:
    def plant(tree: dict[str, Any]) -> None:
        for key in keys:
            del tree[section][key]

    return plant


def without_a_figure_and_its_tolerance(tree: dict[str, Any]) -> None:
    without("figures", ALONE)(tree)
    without("tolerances", "steps")(tree)


def without_all(section: str) -> Callable[[dict[str, Any]], None]:
    return lambda tree: tree.pop(section)


def without_a_preset(tree: dict[str, Any]) -> None:
    """Every line of it: nothing that is run today is lacking."""
    for section in ("figures", "masks", "nulls"):
        tree[section] = {key: value for key, value in tree[section].items() if not key.startswith("token_rs:")}
    tree["settings"]["presets"].remove("token_rs")


@pytest.fixture
def held(dump: Path) -> Path:
    ra.check(ra.open_dump(dump), "golden.json", update=True, presets=["decoupled_token_is", "token_rs"])
    return Path("golden.json")


def changed(golden: Path, plant: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(golden.read_text())
    plant(tree)
    golden.write_text(json.dumps(tree))
    return tree


@pytest.mark.parametrize(
    ("plant", "gap", "named"),
    [
        (without("figures", STEP), "figures: ", STEP),
        (without("figures", ALONE), "figures: ", ALONE),
        (without_a_figure_and_its_tolerance, "figures: ", ALONE),
        (without("masks", MASK), "masks: ", MASK),
        (without_all("masks"), "masks: 0 of 4 lines", MASK),
        (without("nulls", NULL), "nulls: ", NULL),
        (without_all("nulls"), "nulls: 0 of ", NULL),
        (without_a_preset, "figures: ", None),
    ],
)
def test_what_was_deleted_does_not_pass(
    plant: Callable[[dict[str, Any]], object], gap: str, named: str | None, run: Run, dump: Path, held: Path
) -> None:
    exports = ("--export", "junit=j.xml", "--export", "gitlab=q.json", "--export", "json=c.json")
    before = held.read_text()
    changed(held, plant)
    result = run("check", dump, "--golden", held, *exports)
    assert result.code == 2
    first = result.out.splitlines()[0]
    assert first.startswith(f"UNMEASURED  damaged golden file, {gap}")
    assert first.endswith("lines: restore it, or write it anew with --update")
    tree = json.loads(Path("c.json").read_text())
    assert tree["gaps"][0].startswith(gap)
    lacking = {row["figure"]: row["note"] for row in tree["figures"] if row["verdict"] == "unmeasured"}
    assert named is None or lacking[named] == "not in the golden file"
    (case,) = [case for case in ET.parse("j.xml").iter("testcase") if case.get("name") == "holds what was approved"]
    assert case.find("error").get("message").startswith(gap)
    assert any(entry["description"].startswith(gap) for entry in json.loads(Path("q.json").read_text()))
    presets = ("--presets", "decoupled_token_is,token_rs")
    again = run("check", dump, "--golden", held, "--update", *presets)
    assert (again.code, "damaged" in again.out) == (0, False)
    assert held.read_text() == before


@pytest.mark.parametrize("left", [(), ("masks",)])
def test_a_file_that_lost_its_counts_too(left: tuple[str, ...], run: Run, dump: Path, held: Path) -> None:
    def plant(tree: dict[str, Any]) -> None:
        without_a_preset(tree)
        tree["holds"] = {name: len(tree[name]) for name in left}

    changed(held, plant)
    result = run("check", dump, "--golden", held)
    assert result.out.startswith("WARN  the golden file does not say how many lines it was written with")
    added = run("check", dump, "--golden", held, "--presets", "decoupled_token_is,token_rs")
    assert added.code == 2
    assert "unmeasured  token_rs:kept.mask@pooled" in added.out


def test_what_the_tool_did_not_know_when_the_file_was_written_is_new(run: Run, dump: Path, held: Path) -> None:
    """A later version measures more; the file holds all that was approved."""

    def plant(tree: dict[str, Any]) -> None:
        later = [key for key in tree["figures"] if key.partition("@")[0] == "kl_k2"]
        without("figures", *later)(tree)
        without("tolerances", "kl_k2")(tree)
        without("nulls", NULL, *(f"decoupled_token_is:kept.ess_seq@{step}" for step in (0, 1)))(tree)
        tree["holds"]["figures"] -= len(later)
        tree["holds"]["nulls"] -= 3

    changed(held, plant)
    result = run("check", dump, "--golden", held)
    assert result.code == 0
    assert "3 new" in result.out
    assert NULL not in result.out


def test_tolerances_may_be_edited(run: Run, dump: Path, held: Path) -> None:
    def plant(tree: dict[str, Any]) -> None:
        tree["tolerances"]["kl_k3"] = {"atol": 0.5}
        del tree["tolerances"]["kl_k2"]

    changed(held, plant)
    result = run("check", dump, "--golden", held)
    assert (result.code, len(result.out.splitlines())) == (0, 1)


def test_a_tolerance_of_a_metric_that_is_not_known_is_said(run: Run, dump: Path, held: Path) -> None:
    changed(held, lambda tree: tree["tolerances"].update(kl_k33={"atol": 0.5}))
    result = run("check", dump, "--golden", held)
    assert result.code == 0
    assert result.out.splitlines()[0] == (
        "WARN  tolerances.'kl_k33' of the golden file is not known and does nothing; did you mean 'kl_k3'?"
    )


def test_an_update_of_nothing_is_an_error(run: Run, dump: Path) -> None:
    result = run("check", dump, "--expect-bitwise", "--update")
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: nothing to update: name the golden file, --golden FILE\n"


def test_a_count_of_removed_tokens_that_its_digest_denies(run: Run, dump: Path, held: Path) -> None:
    was = changed(held, lambda tree: tree["masks"][MASK].update(removed=7))
    (there,) = {mask["removed"] for key, mask in json.loads(held.read_text())["masks"].items() if key == MASK}
    assert (there, was["masks"][MASK]["removed"]) == (7, 7)
    result = run("check", dump, "--golden", held, "--format", "json")
    (row,) = json.loads(result.out)["figures"]
    assert (result.code, row["figure"], row["verdict"]) == (2, MASK, "unmeasured")
    assert (row["expected"], row["got"]) == (7, 0)
    assert row["note"] == "damaged golden file: the mask of that digest removes 0"


@pytest.mark.parametrize("kind", ["edited", "deleted"])
def test_a_digest_of_the_dump_that_was_edited(kind: str, run: Run, dump: Path, held: Path) -> None:
    changed(
        held, lambda tree: tree["digests"].update({"step_0.parquet": "0" * 64} if kind == "edited" else {"x": "0" * 64})
    )
    result = run("check", dump, "--golden", held)
    assert result.code == 2
    gap, note = result.out.splitlines()[:2]
    assert gap.startswith("UNMEASURED  damaged golden file, digest is not that of digests: ")
    told = {"edited": "step_0.parquet changed", "deleted": "x missing"}[kind]
    assert note == f"WARN  not the dump that the golden file was made of: {told}"


def test_an_update_writes_through_a_link_and_keeps_who_may_read(dump: Path, tmp_path: Path) -> None:
    (place := tmp_path / "shared").mkdir()
    link = tmp_path / "golden.json"
    link.symlink_to("shared/g.json")
    ra.check(ra.open_dump(dump), link, update=True)
    assert link.is_symlink()
    (place / "g.json").chmod(0o640)
    text = (place / "g.json").read_text()
    (place / "g.json").write_text(text.replace('"steps@pooled": 2', '"steps@pooled": 3'))
    ra.check(ra.open_dump(dump), link, update=True)
    assert link.is_symlink()
    assert (place / "g.json").read_text() == text
    assert (place / "g.json").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in place.iterdir()] == ["g.json"]


@pytest.mark.parametrize("update", [(), ("--update",)])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "golden.json: not a golden file (it is empty); name another, or delete this one and write it with: roll"),
        ("\n", "golden.json: not a golden file (it is empty); name another, or delete this one and write it with: ro"),
        ("hello", "golden.json: not a golden file (Expecting value: line 1 column 1 (char 0)); name another, or delet"),
        (
            '{"version": 3}',
            "(schema None, expected 'rollout-audit/golden'); name another, or delete this one and write",
        ),
        ("[" * 100_000, "golden.json: not a golden file ("),
        (None, "golden.json: cannot read the golden file (Is a directory); name another"),
    ],
)
def test_what_is_no_golden_file_is_one_line_with_what_to_do(
    text: str | None, message: str, update: tuple[str, ...], run: Run, dump: Path
) -> None:
    file = Path("golden.json")
    if text is None:
        file.mkdir()
    else:
        file.write_text(text)
    result = run("check", dump, "--golden", file, *update)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err
    if text is not None:
        assert file.read_text() == text
