"""The same evidence on a CUDA device. `ROLLOUT_AUDIT_REQUIRE_GPU=1` turns the skip into a failure."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from rollout_audit.corrections.packing import Packed
from rollout_audit.corrections.presets import BY_DEFAULT
from rollout_audit.statistics.native import NATIVE_CUTS
from rollout_audit.statistics.pair import pair_state
from rollout_audit.statistics.plan import PairPlan
from tests.builders import CPU, chunk_of

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        if os.environ.get("ROLLOUT_AUDIT_REQUIRE_GPU"):
            pytest.fail("ROLLOUT_AUDIT_REQUIRE_GPU is set and torch sees no CUDA device")
        pytest.skip("no CUDA device")
    return torch.device("cuda")


def test_integers_are_equal_and_floats_close(cuda: torch.device) -> None:
    rng = np.random.default_rng(0)
    chunk = chunk_of([rng.standard_t(3, n).tolist() for n in rng.integers(0, 400, 200)], rollout=-0.5)
    plan = PairPlan({p.name: p.correction for p in BY_DEFAULT}, NATIVE_CUTS)
    host, device = (
        pair_state(Packed(chunk, where), "old_log_probs", "rollout_log_probs", plan) for where in (CPU, cuda)
    )
    for key, cells in host.cells.parts.items():
        np.testing.assert_array_equal(device.cells.parts[key].index, cells.index)
        np.testing.assert_array_equal(device.cells.parts[key].counts, cells.counts)
    for name, column in host.rows.columns().items():
        np.testing.assert_allclose(device.rows.columns()[name], column, rtol=1e-9, atol=1e-12, err_msg=name)
    assert [t[1:4] for t in device.worst.tokens] == [t[1:4] for t in host.worst.tokens]
