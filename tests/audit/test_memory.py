from __future__ import annotations

import gc
from pathlib import Path

import pytest

import rollout_audit as ra
from rollout_audit.statistics.batches import Batches
from rollout_audit.statistics.scope import Scope


@pytest.mark.parametrize("enabled", [True, False])
def test_a_report_is_freed_when_it_is_dropped(tmp_path: Path, enabled: bool) -> None:
    """Evidence of a large dump takes hundreds of megabytes: it must not wait for the search for garbage."""
    with ra.DumpWriter(tmp_path / "dump") as writer:
        writer.write(step=1, rollout_log_probs=[[-0.5, -0.7]], old_log_probs=[[-0.6, -0.7]])
    (gc.enable if enabled else gc.disable)()
    before = _scopes()
    try:
        report = ra.analyze(ra.open_dump(tmp_path / "dump"))
        assert gc.isenabled() is enabled
        gc.disable()
        assert _scopes() > before
        del report
        assert _scopes() == before
    finally:
        gc.enable()


def _scopes() -> int:
    return sum(type(held) in (Scope, Batches) for held in gc.get_objects())
