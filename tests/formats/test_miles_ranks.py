"""The files of miles' ranks are put together by what they hold, not by what they are called."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import rollout_audit as ra

HERE = Path(__file__).parent
DP = HERE / "miles/grpo_run/train_data"
CP = HERE / "miles_cp2/llamacpp_q4/train_data"


def truth(name: str) -> list[tuple[Any, ...]]:
    rows = pq.read_table(HERE / "truth" / f"{name}.parquet").to_pylist()
    return [
        (row["step"], row["key"].rpartition("/")[2], row["rollout_log_probs"], row["old_log_probs"]) for row in rows
    ]


def told(dump: ra.Dump) -> list[tuple[Any, ...]]:
    rows = []
    for row in dump.rows():
        assert row.old_log_probs is not None
        rows.append((row.step, row.uid, row.rollout_log_probs.tolist(), row.old_log_probs.tolist()))
    return rows


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def save(content: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)


NAMES = [
    "rank_{rank}/rollout_{rollout}.pt",
    "rank{rank}_{rollout}.pt",
    "n{rank}/{rollout}_{rank}.pt",
    "{rank}-{rollout}.pt",
]


@pytest.mark.parametrize("name", NAMES)
def test_steps_come_from_the_rollout_inside(name: str, tmp_path: Path) -> None:
    for rank in (0, 1):
        for rollout in (0, 1, 2):
            save(load(DP / f"{rollout}_{rank}.pt"), tmp_path / name.format(rank=rank, rollout=rollout))
    dump = ra.open_dump(tmp_path)
    assert len(dump.files) == 3
    assert told(dump) == truth("miles")


@pytest.mark.parametrize("names", [("rank0.pt", "rank1.pt"), ("node0/0_0.pt", "node1/0_1.pt"), ("b.pt", "a.pt")])
def test_context_parallel_pieces_are_found_under_any_name(names: tuple[str, str], tmp_path: Path) -> None:
    for rank, name in enumerate(names):
        save(load(CP / f"0_{rank}.pt"), tmp_path / name)
    assert told(ra.open_dump(tmp_path)) == truth("miles_cp2")


@pytest.mark.parametrize("names", [("0_0.pt", "0_1.pt"), ("a.pt", "b.pt"), ("n0/x.pt", "n1/x.pt")])
@pytest.mark.parametrize("computed", [True, False])
def test_copies_of_tensor_and_pipeline_ranks_count_once(names: tuple[str, str], computed: bool, tmp_path: Path) -> None:
    content = load(DP / "0_0.pt")
    save(content, tmp_path / names[0])
    other = copy.deepcopy(content) | {"rank": 1}
    if not computed:
        for column in ("log_probs", "advantages", "returns"):
            del other["rollout_data"][column]
    save(other, tmp_path / names[1])
    kept = {str(index) for index in content["rollout_data"]["sample_indices"]}
    assert told(ra.open_dump(tmp_path)) == [row for row in truth("miles") if row[0] == 0 and row[1] in kept]


def test_pieces_of_one_sample_on_two_ranks_are_all_kept(tmp_path: Path) -> None:
    """A sample that was trained on in several pieces may be dealt over data-parallel ranks."""
    first, second = load(DP / "0_0.pt"), load(DP / "0_1.pt")
    known = {row[1]: row for row in truth("miles") if row[0] == 0}
    moved = str(second["rollout_data"]["sample_indices"][0])
    shared = first["rollout_data"]["sample_indices"][0]
    second["rollout_data"]["sample_indices"][0] = shared
    save(first, tmp_path / "0_0.pt")
    save(second, tmp_path / "0_1.pt")
    rows = told(ra.open_dump(tmp_path))
    assert len(rows) == 16
    assert [row[2:] for row in rows if row[1] == str(shared)] == [known[str(shared)][2:], known[moved][2:]]


def test_one_sample_scored_in_two_ways_is_two_rows(tmp_path: Path) -> None:
    first = load(DP / "0_0.pt")
    second = copy.deepcopy(first) | {"rank": 1}
    second["rollout_data"]["log_probs"] = [values - 0.5 for values in first["rollout_data"]["log_probs"]]
    save(first, tmp_path / "0_0.pt")
    save(second, tmp_path / "0_1.pt")
    rows = list(ra.open_dump(tmp_path).rows())
    assert len(rows) == 16
    for one, two in zip(rows[::2], rows[1::2], strict=True):
        assert one.old_log_probs is not None
        assert two.old_log_probs is not None
        np.testing.assert_allclose(one.old_log_probs - 0.5, two.old_log_probs, rtol=1e-6)


def test_context_parallel_pieces_that_differ_are_refused(tmp_path: Path) -> None:
    for rank in (0, 1):
        save(load(CP / f"0_{rank}.pt"), tmp_path / f"0_{rank}.pt")
    other = load(CP / "0_1.pt") | {"rank": 2}
    other["rollout_data"]["log_probs"] = [values - 0.5 for values in other["rollout_data"]["log_probs"]]
    save(other, tmp_path / "0_2.pt")
    with pytest.raises(
        ra.DumpError, match=r"^0_2\.pt: sample 0 differs from that in 0_1\.pt, and both are of context-"
    ):
        ra.open_dump(tmp_path)


def test_runs_beside_each_other_stay_apart(tmp_path: Path) -> None:
    for run in ("one", "two"):
        for rank in (0, 1):
            for rollout in (0, 1, 2):
                save(load(DP / f"{rollout}_{rank}.pt"), tmp_path / run / f"rank_{rank}/{rollout}.pt")
    dump = ra.open_dump(tmp_path)
    assert told(dump) == 2 * truth("miles")
    assert [file.name for file in dump.files][:2] == ["one/rank_{0,1}/0.pt", "one/rank_{0,1}/1.pt"]
