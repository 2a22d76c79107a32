"""Which tokens a correction leaves, token by token: the same number of others does not pass."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.audit.masks import MaskDigest, mask_digests
from rollout_audit.corrections.cuts import token_interval, weight_interval
from rollout_audit.corrections.presets import BY_DEFAULT, PRESETS
from rollout_audit.golden.compare import compare_masks
from rollout_audit.golden.figures import FigureKey
from rollout_audit.golden.tolerances import Tolerance
from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]
FLOATS = pa.list_(pa.float64())
RULE = ra.Correction(rules=(ra.Rule(ra.Statistic.RATIO, ra.Aggregation.TOKEN, upper=2.0),))
KEY = FigureKey("token_rs", "kept.mask", "pooled")


def written(
    folder: Path,
    rows: list[list[float]],
    masks: list[list[int]] | None = None,
    steps: list[int] | None = None,
    more: dict[str, pa.Array] | None = None,
) -> ra.Dump:
    """Rows of those log-ratios; log μ is 0 wherever that keeps d as it is."""
    columns = {
        "rollout_log_probs": pa.array([[min(0.0, -x) for x in row] for row in rows], FLOATS),
        "old_log_probs": pa.array([[min(0.0, x) for x in row] for row in rows], FLOATS),
        "response_mask": pa.array(masks or [[1] * len(row) for row in rows], pa.list_(pa.int8())),
        "step": pa.array(steps or [0] * len(rows), pa.int32()),
    }
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns | (more or {})), folder / "part.parquet")
    return ra.open_dump(folder)


def digest_of(rows: list[bytes]) -> str:
    """0 masked, 1 kept, 2 removed, 4 at an edge: as the page says it."""
    lengths = hashlib.sha256(b"".join(struct.pack("<q", len(row)) for row in rows)).digest()
    return hashlib.sha256(lengths + hashlib.sha256(b"".join(rows)).digest()).hexdigest()[:32]


def test_every_position_of_every_response_counts(tmp_path: Path) -> None:
    rows = [[0.1, 0.9, -0.3], [0.9], [], [0.2, 0.9]]
    dump = written(tmp_path / "a", rows, [[1, 1, 0], [1], [], [1, 0]], [4, 5, 5, 4])
    found = mask_digests(dump, {"mine": RULE}, per_step=["mine"])
    codes = [b"\1\2\0", b"\2", b"", b"\1\0"]
    expected = {None: codes, 4: [codes[0], codes[3]], 5: codes[1:3]}
    removed = {None: 2, 4: 1, 5: 1}
    for step, its in expected.items():
        assert found[step, "mine"] == MaskDigest(digest_of(its), removed[step], 0, digest_of(its))


def test_weights_of_zero_and_rules_by_row_remove_tokens_too(tmp_path: Path) -> None:
    rows = [[0.1, 1.0, -1.0], [0.6, 0.6]]
    dump = written(tmp_path / "a", rows)
    icepop = ra.Correction(ra.Weight(ra.Level.TOKEN, ra.Bound.MASK, lower=0.5, upper=2.0))
    capped = ra.Correction(ra.Weight(ra.Level.TOKEN, ra.Bound.TRUNCATE, upper=2.0))
    product = ra.Correction(rules=(ra.Rule(ra.Statistic.RATIO, ra.Aggregation.SEQ_SUM, lower=0.5, upper=2.0),))
    low = ra.Correction(veto=0.5)
    found = mask_digests(dump, {"icepop": icepop, "capped": capped, "product": product, "veto": low})
    codes = {"icepop": [b"\1\2\2", b"\1\1"], "capped": [b"\1\1\1", b"\1\1"]}
    codes |= {"product": [b"\1\1\1", b"\2\2"], "veto": [b"\2\2\2", b"\1\1"]}
    assert {name: mask.digest for (_, name), mask in found.items()} == {n: digest_of(c) for n, c in codes.items()}


def test_a_rule_over_a_batch_takes_the_dump_or_each_step_as_one(tmp_path: Path) -> None:
    """Squares of 0.3 average 0.09, past 0.04: one token stays of the step, and all stay of the whole dump."""
    dump = written(tmp_path / "a", [[0.3] * 4, [0.0] * 20], steps=[0, 1])
    correction = next(p.correction for p in PRESETS.values() if p.correction.batch_rules)
    found = mask_digests(dump, {"m2po": correction}, per_step=["m2po"])
    assert {step: mask.removed for (step, _), mask in found.items()} == {None: 0, 0: 3, 1: 0}


def test_without_advantages_there_is_no_mask_by_their_sign(dump: Path) -> None:
    signed = {name: preset.correction for name, preset in PRESETS.items() if preset.correction.needs_advantages}
    assert signed
    found = mask_digests(ra.open_dump(dump), {**signed, "mine": RULE})
    assert list(found) == [(None, "mine")]


@pytest.mark.parametrize("options", [{"chunk_tokens": 40}, {"chunk_tokens": 7, "workers": 4}, {"workers": 1}])
def test_neither_chunks_nor_workers_change_it(options: dict[str, int], dump: Path) -> None:
    corrections = {preset.name: preset.correction for preset in BY_DEFAULT}
    whole = mask_digests(ra.open_dump(dump), corrections, per_step=list(corrections))
    files = sorted(dump.iterdir(), reverse=True)
    assert mask_digests(ra.open_dump(files), corrections, per_step=list(corrections), **options) == whole


def check(run: Run, dump: Path, *options: str, preset: str = "token_rs") -> tuple[int, dict[str, dict[str, object]]]:
    """Exit code and the figures that are not simply the same."""
    golden = ("check", dump, "--golden", "g.json", "--presets", preset, "--format", "json")
    result = run(*golden, *options)
    return result.code, {row["figure"]: row for row in json.loads(result.out)["figures"]}


def test_as_many_but_other_tokens_do_not_pass(run: Run, tmp_path: Path) -> None:
    """Every figure is the same: the two tokens stand in another order."""
    written(tmp_path / "a", [[0.1, 0.9, -0.3]])
    written(tmp_path / "b", [[0.9, 0.1, -0.3]])
    check(run, tmp_path / "a", "--update")
    assert check(run, tmp_path / "a") == (0, {})
    code, moved = check(run, tmp_path / "b")
    assert (code, list(moved)) == (1, ["token_rs:kept.mask@pooled"])
    (row,) = moved.values()
    assert (row["verdict"], row["expected"], row["got"]) == ("worse", 1, 1)
    assert row["note"] == "as many, but other tokens"


def test_what_a_trainer_masks_is_held_too(run: Run, tmp_path: Path) -> None:
    written(tmp_path / "a", [[0.1, 0.2, 0.1]], [[1, 1, 0]])
    written(tmp_path / "b", [[0.1, 0.2, 0.1]], [[0, 1, 1]])
    check(run, tmp_path / "a", "--update")
    code, moved = check(run, tmp_path / "b")
    assert (code, list(moved)) == (1, ["token_rs:kept.mask@pooled"])
    assert moved["token_rs:kept.mask@pooled"]["note"] == "none either, but the responses or their masks are others"


def test_a_token_within_rounding_of_the_threshold_is_named(run: Run, tmp_path: Path) -> None:
    """Real case 106: another machine's exp moves the cut by a unit in the last place; here the token moves."""
    edge = token_interval(PRESETS["token_rs"].correction.rules[0]).upper
    written(tmp_path / "a", [[edge, 0.9, -0.3]])
    written(tmp_path / "b", [[math.nextafter(edge, 1.0), 0.9, -0.3]])
    written(tmp_path / "c", [[math.nextafter(edge, 1.0), -0.3, 0.9]])
    check(run, tmp_path / "a", "--update")
    line = next(line for line in Path("g.json").read_text().splitlines() if "kept.mask@pooled" in line)
    held = json.loads(line.strip().partition(": ")[2])
    assert held == {
        "digest": digest_of([b"\1\2\1"]),
        "edge": 1,
        "other": digest_of([b"\4\2\1"]),
        "removed": 1,
    }
    _, moved = check(run, tmp_path / "b")
    assert moved["token_rs:kept.masked_fraction@pooled"]["note"].startswith("edge-sensitive: 1 of 1 within rounding")
    row = moved["token_rs:kept.mask@pooled"]
    assert (row["verdict"], row["expected"], row["got"]) == ("same", 1, 2)
    assert row["note"] == "edge-sensitive: other tokens only among 1 within rounding of a threshold"
    code, moved = check(run, tmp_path / "c")
    assert (code, moved["token_rs:kept.mask@pooled"]["verdict"]) == (1, "worse")


@pytest.mark.parametrize("preset", ["token_rs", "decoupled_token_icepop"])
def test_figures_of_what_is_left_follow_a_mask_that_differs_at_an_edge(preset: str, run: Run, tmp_path: Path) -> None:
    """Whether the token is in decides the mean reward and every quantile of what is left; not those of all tokens."""
    correction, rewards = PRESETS[preset].correction, {"reward": pa.array([1.0, 0.0, 3.0], pa.float64())}
    edge = (token_interval(correction.rules[0]) if correction.rules else weight_interval(correction.weight)).upper
    for name, d in (("in", math.nextafter(edge, 0.0)), ("out", math.nextafter(edge, 9.0))):
        written(tmp_path / name, [[d], [0.03, -0.04, -0.01], [2.9]], more=rewards)
    check(run, tmp_path / "in", "--update", preset=preset)
    code, moved = check(run, tmp_path / "out", preset=preset)
    assert (code, {row["verdict"] for row in moved.values()}) == (0, {"same"})
    note = "edge-sensitive: follows kept.mask, other only within rounding of a threshold"
    if preset == "token_rs":
        row = moved["token_rs:kept.kept_reward_mean@pooled"]
        assert (row["expected"], row["got"], row["note"]) == (0.5, 0.0, note)
    else:
        assert moved[f"{preset}:kept.weight_mean@pooled"]["note"] == note
    worse = {"kl_k3@pooled": 0.001} | ({f"{preset}:raw.ess@pooled": 0.99999} if preset != "token_rs" else {})
    golden = json.loads(Path("g.json").read_text())
    Path("g.json").write_text(json.dumps(golden | {"figures": golden["figures"] | worse}))
    code, moved = check(run, tmp_path / "out", preset=preset)
    assert code == 1
    assert {key for key, row in moved.items() if row["verdict"] == "worse"} == {*worse}


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        (ra.Rule(ra.Statistic.RATIO, ra.Aggregation.SEQ_SUM, upper=2.0), [[math.log(2.0) / 3] * 3, [0.1]]),
        (ra.Rule(ra.Statistic.RATIO, ra.Aggregation.SEQ_MEAN, upper=2.0), [[math.log(2.0)] * 3, [0.1]]),
        (ra.Rule(ra.Statistic.K3, ra.Aggregation.SEQ_MAX, upper=math.expm1(0.5) - 0.5), [[0.5, 0.0, 0.1], [0.1]]),
        (ra.Rule(ra.Statistic.RATIO, ra.Aggregation.SEGMENT_MEAN, upper=2.0), [[math.log(2.0)] * 3, [0.1]]),
    ],
)
def test_all_tokens_of_a_row_at_a_bound_are_at_the_edge(rule: ra.Rule, rows: list[list[float]], tmp_path: Path) -> None:
    found = mask_digests(written(tmp_path / "a", rows), {"mine": ra.Correction(rules=(rule,))})[None, "mine"]
    assert (found.edge, found.beside_edge) == (3, digest_of([b"\4\4\4", b"\1"]))


def test_a_weight_of_zero_at_its_bound(tmp_path: Path) -> None:
    weight = ra.Weight(ra.Level.SEQUENCE, ra.Bound.MASK, lower=0.5, upper=2.0)
    dump = written(tmp_path / "a", [[math.log(2.0) / 4] * 4, [0.1], [1.0]])
    found = mask_digests(dump, {"mine": ra.Correction(weight)})[None, "mine"]
    assert (found.edge, found.beside_edge) == (4, digest_of([b"\4\4\4\4", b"\1", b"\2"]))


def verdict(was: MaskDigest, now: MaskDigest, tolerance: Tolerance | None = None) -> str:
    (row,) = compare_masks({KEY: was}, {KEY: now}, {} if tolerance is None else {"mask": tolerance})
    return row.verdict


@pytest.mark.parametrize(
    ("removed", "digest", "atol", "expected"),
    [
        (5, "a", 0, "same"),
        (5, "b", 0, "worse"),
        (6, "b", 0, "worse"),
        (4, "b", 0, "better"),
        (5, "b", 2, "same"),
        (7, "b", 2, "same"),
        (8, "b", 2, "worse"),
        (2, "b", 2, "better"),
    ],
)
def test_verdicts(removed: int, digest: str, atol: float, expected: str) -> None:
    """Fewer removed tokens are better; a tolerance looks at their number."""
    tolerance = Tolerance(atol=atol, rtol=0, direction="higher")
    assert verdict(MaskDigest("a", 5, 0, "a"), MaskDigest(digest, removed, 0, digest), tolerance) == expected
    if not atol:
        assert verdict(MaskDigest("a", 5, 0, "a"), MaskDigest(digest, removed, 0, digest)) == expected


def test_a_mask_that_one_side_lacks() -> None:
    mask, step = MaskDigest("a", 5, 0, "a"), FigureKey("token_rs", "kept.mask", "3")
    other = FigureKey("seq_rs", "kept.mask", "pooled")
    rows = compare_masks({KEY: mask}, {step: mask, other: mask}, {})
    assert {str(row.key): (row.verdict, row.note) for row in rows} == {
        "token_rs:kept.mask@pooled": ("unmeasured", "now: null (no longer there)"),
        "token_rs:kept.mask@3": ("unmeasured", "not in the golden file"),
        "seq_rs:kept.mask@pooled": ("new", ""),
    }
    assert [row.verdict for row in compare_masks({}, {KEY: mask}, {})] == ["new"]


def test_settings_may_give_a_tolerance(run: Run, tmp_path: Path) -> None:
    written(tmp_path / "a", [[0.1, 0.9, -0.3]])
    written(tmp_path / "b", [[0.9, 0.1, -0.3]])
    check(run, tmp_path / "a", "--update")
    Path("rollout-audit.toml").write_text("[check.metrics.mask]\natol = 1\n")
    assert check(run, tmp_path / "b") == (0, {})
