"""One pass over the dump: every chunk becomes evidence on a thread, evidence is folded in the order of the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from rollout_audit.audit.pairs import Pair
from rollout_audit.audit.pictures import TokenSample
from rollout_audit.audit.reading import Reading
from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.tokens import row_sum
from rollout_audit.dumps.chunk import Chunk
from rollout_audit.dumps.dump import Dump
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.engines.upkeep import one_torch_thread
from rollout_audit.statistics.direct_stages import DirectPlan, DirectState, direct_states
from rollout_audit.statistics.pair import PairState, RowTable, pair_state
from rollout_audit.statistics.plan import PairPlan

__all__ = [
    "EXACT_QUANTILES_UP_TO",
    "PassPlan",
    "PassState",
    "chunk_state",
    "keeps_values",
    "pays_to_compile",
    "run_pass",
]


EXACT_QUANTILES_UP_TO = 1 << 20
"""Tokens of a dump, masked ones included, up to which quantiles are exact; beyond it they are read off the cells"""
SAMPLED_BLOCK = 8
"""Rows that are sampled together"""

COMPILE_FROM = 1 << 20
"""Tokens of a dump, masked ones included, from which on compiled loops pay"""


@dataclass(frozen=True)
class PassPlan:
    """What the pass keeps: one plan a pair, and the rows whose tokens are sampled for pictures."""

    pairs: Mapping[Pair, PairPlan]
    primary: Pair
    sample_stride: int
    first_row_of_file: Sequence[int]
    """number of rows in all files before each file"""
    device: torch.device
    direct: Mapping[Pair, DirectPlan] = field(default_factory=dict)
    """corrections that are evaluated token by token"""


@dataclass
class PassState:
    """Mergeable evidence of a run of chunks. The identity is a fresh instance; `absorb` leaves its argument alone."""

    pairs: dict[str, PairState] = field(default_factory=dict)
    common: RowTable = field(default_factory=RowTable)
    uids: list[tuple[str, ...] | None] = field(default_factory=list)
    sample: RowTable = field(default_factory=RowTable)
    tokens: int = 0
    direct: dict[str, DirectState] = field(default_factory=dict)
    """by the name of the correction"""

    def absorb(self, other: PassState) -> None:
        for name, state in other.pairs.items():
            self.pairs.setdefault(name, PairState()).absorb(state)
        self.common.absorb(other.common)
        self.uids.extend(other.uids)
        self.sample.absorb(other.sample)
        self.tokens += other.tokens
        for name, evaluated in other.direct.items():
            self.direct.setdefault(name, DirectState()).absorb(evaluated)

    def token_sample(self, stride: int) -> TokenSample:
        columns = self.sample.columns()
        return TokenSample(
            stride=stride,
            training_log_probs=columns["training"],
            rollout_log_probs=columns["rollout"],
            positions=columns["position"].astype(np.int64),
            row_lengths=columns["row_length"].astype(np.int64),
        )


def run_pass(
    reading: Reading,
    plan: PassPlan,
    workers: int,
    log: FaultLog,
    on_progress: Callable[[int], None] | None = None,
) -> PassState:
    """Fold all chunks; `on_progress` is told the number of rows of each chunk done."""
    total = PassState()
    with one_torch_thread():
        for state in reading.map(lambda chunk: chunk_state(chunk, plan), workers, log):
            total.absorb(state)
            if on_progress is not None:
                on_progress(len(state.common.parts[0]["step"]))
    return total


def keeps_values(dump: Dump) -> bool:
    """Whether a dump is small enough to keep every log-ratio: told by its metadata, whatever the chunking."""
    return dump.total_values <= EXACT_QUANTILES_UP_TO


def pays_to_compile(dump: Dump) -> bool:
    """Loading the compiled loops costs a second, compiling them once some twenty: a small dump is done before that."""
    return dump.total_values > COMPILE_FROM


def chunk_state(chunk: Chunk, plan: PassPlan) -> PassState:
    """The evidence of one chunk by itself."""
    packed = Packed(chunk, plan.device)
    return PassState(
        pairs={p.name: pair_state(packed, p.training, p.rollout, its) for p, its in plan.pairs.items()},
        common=RowTable([_common_columns(packed)]),
        uids=[chunk.uids],
        sample=RowTable([_sample(chunk, plan)]),
        tokens=chunk.tokens,
        direct=_direct(packed, plan),
    )


def _direct(packed: Packed, plan: PassPlan) -> dict[str, DirectState]:
    found: dict[str, DirectState] = {}
    for pair, its in plan.direct.items():
        found |= direct_states(packed, pair.training, pair.rollout, its)
    return found


def _common_columns(packed: Packed) -> dict[str, NDArray[np.float64]]:
    chunk = packed.chunk
    columns = {
        "file": np.full(chunk.rows, chunk.file, dtype=np.float64),
        "row": chunk.row_numbers.astype(np.float64),
        "step": chunk.steps.astype(np.float64),
        "tokens": np.diff(chunk.offsets).astype(np.float64),
    }
    if chunk.reward is not None:
        columns["reward"] = chunk.reward
    if chunk.advantages is not None:
        columns["advantage"] = _row_means(chunk.advantages[packed.flat], packed.lengths)
    versions = {"policy_version": chunk.policy_versions, "newest_version": chunk.newest_versions}
    columns |= {name: _known(values) for name, values in versions.items() if values is not None}
    if chunk.policy_versions is not None and chunk.trainer_versions is not None:
        columns["policy_age"] = _known(chunk.trainer_versions) - _known(chunk.policy_versions)
    return columns


def _known(versions: NDArray[np.int64]) -> NDArray[np.float64]:
    """NaN for a row without a version."""
    return np.where(versions < 0, np.nan, versions)


def _row_means(values: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """NaN for a row without valid tokens."""
    sums = row_sum(torch.from_numpy(values), torch.from_numpy(lengths))
    with np.errstate(invalid="ignore"):
        return np.asarray(sums.numpy() / lengths)


def _sample(chunk: Chunk, plan: PassPlan) -> dict[str, NDArray[np.float64]]:
    """Valid tokens of every stride-th block of rows by their numbers in the dump, so that chunking does not matter.

    Rows of one prompt lie together: in blocks, a row that was exchanged for a neighbour is there with it.
    """
    number = chunk.row_numbers + plan.first_row_of_file[chunk.file]
    chosen = np.flatnonzero(number // SAMPLED_BLOCK % plan.sample_stride == 0)
    spans = [np.arange(chunk.offsets[row], chunk.offsets[row + 1]) for row in chosen]
    valid = [span[chunk.response_mask[span]] for span in spans]
    flat = np.concatenate([*valid, np.empty(0, dtype=np.int64)])
    lengths = np.array([len(part) for part in valid], dtype=np.int64)
    return {
        "training": getattr(chunk, plan.primary.training)[flat].astype(np.float64),
        "rollout": getattr(chunk, plan.primary.rollout)[flat].astype(np.float64),
        "position": (flat - np.repeat(chunk.offsets[chosen], lengths)).astype(np.float64),
        "row_length": np.repeat(lengths, lengths).astype(np.float64),
        "file": np.full(len(flat), chunk.file, dtype=np.float64),
        "row": np.repeat(chunk.row_numbers[chosen], lengths).astype(np.float64),
        "step": np.repeat(chunk.steps[chosen], lengths).astype(np.float64),
    }
