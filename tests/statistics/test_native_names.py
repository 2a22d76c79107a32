from rollout_audit.corrections.model import Correction, Level, Weight
from rollout_audit.statistics.native import NATIVE_CUTS, NATIVE_METRICS, native_metrics
from rollout_audit.statistics.stages import METRICS_OF_STAGE, correction_stages
from tests.builders import chunk_of, pass_plan, scope_of


def test_the_names_are_those_that_come_out() -> None:
    """Gates are checked against these before a pass."""
    correction = Correction(Weight(Level.TOKEN, normalise=True))
    scope = scope_of([chunk_of([[0.1, -0.2]])], pass_plan({"it": correction}, NATIVE_CUTS))
    assert tuple(native_metrics(scope)) == NATIVE_METRICS
    assert {s: tuple(m) for s, m in correction_stages(scope, "it", correction).items()} == METRICS_OF_STAGE
