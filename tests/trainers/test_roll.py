"""ROLL's recompute of log-probs before the update, on which the denominator of its loss hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_audit.corrections.model import Denominator
from rollout_audit.corrections.presets import PRESETS
from rollout_audit.reports.pasting import pasted
from rollout_audit.trainers.expression import Expression
from rollout_audit.trainers.references import Note
from rollout_audit.trainers.registry import get_trainer

ROLL = get_trainer("roll")
FILTER = {"train_infer_correction": {"filters": [{"enabled": True}]}}
KEPT, ORIGINAL = Denominator.KEPT, Denominator.ORIGINAL


@pytest.mark.parametrize(
    ("config", "denominator"),
    [
        (FILTER, ORIGINAL),
        ({"enable_old_logprobs_recompute": True, **FILTER}, KEPT),
        ({"enable_old_logprobs_recompute": False, **FILTER}, ORIGINAL),
        ({"enable_old_logprobs_recompute": True, "force_disable_old_logprobs_recompute": True, **FILTER}, ORIGINAL),
        ({"adv_estimator": "gigpo", **FILTER}, KEPT),
        ({"adv_estimator": "grpo", **FILTER}, ORIGINAL),
        ({"enable_old_logprobs_recompute": True, "train_infer_correction": {"filters": []}}, ORIGINAL),
    ],
)
@pytest.mark.parametrize("beside", [{}, {"seed": 42, "actor_train": {"training_args": {"learning_rate": 1e-6}}}])
def test_masks_edited_before_the_count_shrink_the_denominator(
    config: dict[str, object], denominator: Denominator, beside: dict[str, object]
) -> None:
    assert ROLL.correction(ROLL.configure({**beside, **config})).denominator is denominator


def test_the_key_stands_beside_the_section_in_what_is_pasted(tmp_path: Path) -> None:
    found = ROLL.express(PRESETS["decoupled_geo_rs"].correction)
    assert isinstance(found, Expression)
    text = pasted(ROLL.nested(found.settings), ROLL.syntax_of(found.settings))
    assert "\nenable_old_logprobs_recompute: true" in text
    (tmp_path / "run.yaml").write_text(text)
    assert ROLL.correction(ROLL.configure(tmp_path / "run.yaml")) == found.correction
    assert found.correction.denominator is KEPT


def test_what_divides_by_all_tokens_leaves_the_default() -> None:
    found = ROLL.express(PRESETS["roll_token_filter"].correction)
    assert isinstance(found, Expression)
    assert "enable_old_logprobs_recompute" not in found.settings


def test_what_roll_may_decide_otherwise_is_a_note() -> None:
    (text,) = ROLL.warnings(ROLL.configure(FILTER))
    assert isinstance(text, Note)
    assert text.startswith("enable_old_logprobs_recompute = False: ")
