from __future__ import annotations

import math
import sys

import pytest

from rollout_audit.golden.compare import VERDICTS, compare
from rollout_audit.golden.figures import Figure, FigureKey
from rollout_audit.golden.tolerances import METRICS, Tolerance, default_tolerance, is_counted, tolerances_for
from rollout_audit.reports.catalogue import CATALOGUE

EDGE_NOTE = "edge-sensitive: 1 of 1 within rounding of the threshold"
KL = FigureKey("", "kl_k3", "pooled")


def verdict_of(key: str, was: float | None, now: float | None, **kwargs: int) -> str:
    expected, got = Figure(was), Figure(now, **kwargs)
    (row,) = compare({FigureKey.parse(key): expected}, {FigureKey.parse(key): got}, {})
    return row.verdict


@pytest.mark.parametrize(
    ("key", "was", "now", "verdict"),
    [
        ("kl_k3@pooled", 0.01, 0.011, "worse"),
        ("kl_k3@pooled", 0.01, 0.009, "better"),
        ("kl_k3@pooled", 0.01, 0.01 * (1 + 9e-7), "same"),
        ("kl_k3@pooled", 0.01, 0.01 * (1 + 2e-6), "worse"),
        ("kl_k3@pooled", 0.0, 1e-13, "same"),
        ("kl_k3@pooled", 0.0, 1e-11, "worse"),
        ("p:kept.ess@3", 0.9, 0.8, "worse"),
        ("p:kept.ess@3", 0.8, 0.9, "better"),
        ("kl_k1@pooled", -0.01, -0.02, "worse"),
        ("kl_k1@pooled", -0.02, 0.01, "better"),
        ("kl_k1@pooled", -0.02, 0.02, "worse"),
        ("ppl_ratio@pooled", 1.1, 0.95, "better"),
        ("ppl_ratio@pooled", 1.1, 0.85, "worse"),
        ("training_ppl@pooled", 2.0, 1.9, "worse"),
        ("training_ppl@pooled", 2.0, 2.1, "worse"),
        ("chi2_seq@pooled", 0.13, 0.0, "better"),
        ("chi2_seq@pooled", -0.13, -0.45, "same"),
        ("chi2_seq@pooled", -0.13, 0.2, "worse"),
        ("p:raw.weight_p25@pooled", 0.8, 1.0, "better"),
        ("p:raw.weight_max@pooled", 0.8, 0.7, "worse"),
        ("valid_tokens@pooled", 100, 101, "worse"),
        ("valid_tokens@pooled", 100, 100, "same"),
    ],
)
def test_direction_and_tolerance(key: str, was: float, now: float, verdict: str) -> None:
    """Real cases 106 and 107."""
    assert verdict_of(key, was, now) == verdict


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
@pytest.mark.parametrize("side", ["expected", "got", "both"])
def test_what_has_no_value_is_unmeasured(value: float | None, side: str) -> None:
    was = value if side in ("expected", "both") else 0.01
    now = value if side in ("got", "both") else 0.01
    assert verdict_of("kl_k3@pooled", was, now) == "unmeasured"


def test_of_a_file_that_is_not_whole_what_it_lacks_was_deleted() -> None:
    """A preset that was added cannot be told from one whose lines were lost."""
    preset, void = FigureKey("seq_rs", "kept.ess", "pooled"), FigureKey("seq_rs", "kept.ess_seq", "pooled")
    got = {KL: Figure(0.1), preset: Figure(0.2), void: Figure(None, "overflow")}
    for whole, verdict in ((True, "new"), (False, "unmeasured")):
        rows = compare({KL: Figure(0.1)}, got, {}, whole=whole)
        nothing = {} if whole else {void: verdict}
        assert {row.key: row.verdict for row in rows} == {KL: "same", preset: verdict} | nothing
        assert {row.note for row in rows if row.key != KL} == {"" if whole else "not in the golden file"}


def test_missing_figures_are_unmeasured_and_added_ones_are_new() -> None:
    other, void = FigureKey("", "kl_k2", "pooled"), FigureKey("", "chi2_seq", "pooled")
    rows = compare({KL: Figure(0.1)}, {other: Figure(0.2), void: Figure(None, "overflow")}, {})
    assert [(row.key, row.verdict) for row in rows] == [(KL, "unmeasured"), (other, "new")]
    assert rows[0].note == "now: null (no longer there)"


@pytest.mark.parametrize(
    ("was", "now", "verdict", "note"),
    [
        ("needs rewards", "needs rewards", "same", "needs rewards"),
        ("needs rewards", "overflow", "unmeasured", "in the golden file: null (needs rewards); now: null (overflow)"),
        ("needs rewards", "", "unmeasured", "in the golden file: null (needs rewards); now: null"),
        ("", "", "unmeasured", "in the golden file: null; now: null"),
    ],
)
def test_a_null_passes_for_the_reason_that_it_was_approved_with(was: str, now: str, verdict: str, note: str) -> None:
    (row,) = compare({KL: Figure(None, was)}, {KL: Figure(None, now)}, {})
    assert (row.verdict, row.note, row.changed) == (verdict, note, verdict != "same")


@pytest.mark.parametrize(("edge", "verdict"), [(0, "worse"), (1, "worse"), (2, "same"), (5, "same")])
def test_counts_are_exact_but_for_those_at_the_edge(edge: int, verdict: str) -> None:
    key = FigureKey("p", "kept.masked_fraction", "pooled")
    (row,) = compare({key: Figure(0.10)}, {key: Figure(0.12, size=100, edge=edge)}, {})
    assert row.verdict == verdict
    assert row.note.startswith("edge-sensitive: 2 of") == (verdict == "same")
    assert row.changed


def test_edges_are_counted_from_the_data() -> None:
    """A golden file may be edited: what it says of edges lets nothing pass."""
    key = FigureKey("", "within_1pct", "3")
    for edge, verdict in ((0, "worse"), (1, "same")):
        (row,) = compare({key: Figure(0.50, edge=100)}, {key: Figure(0.49, size=100, edge=edge)}, {})
        assert (row.verdict, row.note) == (verdict, EDGE_NOTE if edge else "")


def test_a_tolerance_of_any_size_is_a_number() -> None:
    tolerances = {"kl_k3": Tolerance(rtol=1e300, direction="higher"), "mask": Tolerance(atol=1e300, rtol=1e300)}
    (row,) = compare({KL: Figure(1e200)}, {KL: Figure(2e200)}, tolerances)
    assert (row.verdict, row.tolerance) == ("same", sys.float_info.max)


def test_a_share_is_compared_as_its_count() -> None:
    tokens = 10_000_000
    assert verdict_of("within_1pct@pooled", 0.5, 0.5 + 1 / tokens, size=tokens) == "better"
    assert verdict_of("within_1pct@pooled", 1 / 3, 1 / 3 * (1 + 1e-16), size=tokens) == "same"


def test_a_count_may_be_given_a_tolerance() -> None:
    key = FigureKey("", "within_1pct", "pooled")
    loose = {"within_1pct": Tolerance(atol=0.05, direction="lower")}
    assert compare({key: Figure(0.5)}, {key: Figure(0.46, size=100)}, loose)[0].verdict == "same"
    assert compare({key: Figure(0.5)}, {key: Figure(0.44, size=100)}, loose)[0].verdict == "worse"


def test_the_worst_comes_first() -> None:
    names = ("kl_k2", "kl_k3", "mult_prob_error", "chi2_token", "chi2_seq")
    keys = [FigureKey("", name, "pooled") for name in names]
    expected = {key: Figure(1.0) for key in keys[:4]}
    got = dict(zip(keys, map(Figure, (1.1, 1.5, 0.9, 1.0, 2.0)), strict=True))
    rows = compare(expected | {FigureKey("", "kl_k1", "pooled"): Figure(1.0)}, got, {})
    assert [row.key.metric for row in rows] == ["kl_k3", "kl_k2", "kl_k1", "mult_prob_error", "chi2_seq", "chi2_token"]
    assert [VERDICTS.index(row.verdict) for row in rows] == [0, 0, 1, 2, 3, 4]


def test_settings_outrank_the_golden_file_which_outranks_the_default() -> None:
    recorded = {"kl_k3": Tolerance(atol=1.0, rtol=0.5, direction="lower")}
    found = tolerances_for(["kl_k3", "kl_k2"], recorded, {"kl_k3": {"rtol": 0.1}})
    assert found["kl_k3"] == Tolerance(atol=1.0, rtol=0.1, direction="lower")
    assert found["kl_k2"] == default_tolerance("kl_k2")


def test_directions_are_those_that_explain_shows() -> None:
    assert {m: default_tolerance(m).direction for m in CATALOGUE} == {m: e.worse for m, e in CATALOGUE.items()}
    assert all(default_tolerance(m).atol == 0 for m in METRICS if is_counted(m))


@pytest.mark.parametrize("text", ["kl_k3@pooled", "decoupled_token_is:kept.ess@-3", "total:kl_k1@12", "steps@pooled"])
def test_keys_come_back(text: str) -> None:
    assert str(FigureKey.parse(text)) == text


def test_a_figure_that_is_missing_from_the_golden_file_does_not_pass() -> None:
    """Its metric stands there in another scope; a metric that is nowhere in it was added later."""
    key, other, added = (FigureKey.parse(text) for text in ("kl_k3@pooled", "kl_k3@3", "kl_k9@pooled"))
    rows = compare({other: Figure(0.1)}, {key: Figure(0.1), other: Figure(0.1), added: Figure(0.1)}, {})
    assert {str(row.key): row.verdict for row in rows} == {
        "kl_k3@pooled": "unmeasured",
        "kl_k3@3": "same",
        "kl_k9@pooled": "new",
    }
