from __future__ import annotations

import pytest

from rollout_audit.audit.health import RULES
from rollout_audit.audit.report import Report
from rollout_audit.errors import UsageError
from rollout_audit.reports.catalogue import CATALOGUE, explanation, limits_text

WITH_NORMALISATION = {"batch_norm_factor"}
"""In the report of a correction that normalises: no preset does"""


def test_covers_exactly_what_a_report_holds(report: Report) -> None:
    native = {name for pair in report.pairs for name in pair.metrics}
    stages = {
        name for c in report.corrections for stage in c.stages.model_dump().values() for name in stage
    } | WITH_NORMALISATION
    assert {n for n, e in CATALOGUE.items() if e.family == "mismatch"} == native == set(report.overall)
    assert {n for n, e in CATALOGUE.items() if e.family == "correction"} == stages


def test_every_health_rule_is_about_a_metric_that_is_explained() -> None:
    assert {rule.metric for rule in RULES} <= set(CATALOGUE)
    assert all(limits_text(rule) for rule in RULES)
    assert [limits_text(rule) for rule in explanation("ppl_ratio").rules] == ["warn outside [0.95, 1.05]"]


@pytest.mark.parametrize("name", ["ess", "kept.ess", "decoupled_seq_is:ess", "token_rs:kept.ess"])
def test_names_with_a_preset_or_a_stage_are_found(name: str) -> None:
    assert explanation(name).name == "ess"


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="no metric 'kl_k33'; did you mean 'kl_k3'"):
        explanation("kl_k33")
