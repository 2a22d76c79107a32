"""verl's loss modes: DPPO as a correction, with numbers by hand, and a line on every other."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rollout_audit as ra
from rollout_audit.audit.selection import config_warnings
from rollout_audit.corrections.direct import apply, kept_tokens
from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Loss,
    Mode,
    Rule,
    Sign,
    Statistic,
    Weight,
)
from rollout_audit.corrections.presets import PRESETS
from rollout_audit.corrections.tokens import Tokens, signed_binary_kl
from rollout_audit.errors import ConfigError, MissingFieldError, UsageError
from rollout_audit.reports.pasting import pasted
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers.base import sorted_order
from rollout_audit.trainers.expression import Expression, Unexpressible
from rollout_audit.trainers.registry import get_trainer

VERL = get_trainer("verl")
DPPO = {"loss_mode": "dppo_tv", "bypass_mode": True, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
RECIPE = """\
loss_mode=dppo_kl
python3 -m verl.trainer.main_ppo \\
    algorithm.rollout_correction.bypass_mode=True \\
    actor_rollout_ref.actor.clip_ratio=0.05 \\
    actor_rollout_ref.actor.clip_ratio_low=0.04 \\
    actor_rollout_ref.actor.clip_ratio_high=0.06 \\
    actor_rollout_ref.actor.clip_ratio_c=10000.0 \\
    actor_rollout_ref.actor.policy_loss.loss_mode=dppo_kl
"""


def tokens_of(pairs: list[tuple[float, float]], advantages: list[float] | None) -> Tokens:
    """One response: (μ, π) of each token, as probabilities."""
    mu, pi = (torch.tensor([pair[i] for pair in pairs], dtype=torch.float64).log() for i in (0, 1))
    lengths = torch.tensor([len(pairs)])
    values = None if advantages is None else torch.tensor(advantages, dtype=torch.float64)
    return Tokens(lengths, pi, mu, segment_lengths=lengths, advantages=values, response_lengths=lengths)


def metrics_of(config: dict[str, object], tokens: Tokens) -> Metrics:
    parsed = VERL.configure(config)
    rows = {name: column.numpy() for name, column in VERL.row_columns(tokens, parsed).items()}
    return VERL.metrics(rows, parsed, sorted_order(tokens.log_ratio.numpy()))


def by_sign(statistic: Statistic, low: float, high: float, cap: float) -> Correction:
    return Correction(
        Weight(Level.TOKEN, Bound.TRUNCATE, upper=cap),
        (
            Rule(statistic, Aggregation.TOKEN, None, high, sign=Sign.POSITIVE),
            Rule(statistic, Aggregation.TOKEN, -low, None, sign=Sign.NOT_POSITIVE),
        ),
        denominator=Denominator.ORIGINAL,
        mode=Mode.BYPASS,
        loss=Loss.REINFORCE,
    )


def test_divergence_of_a_token_and_all_others_by_hand() -> None:
    """KL(½‖0.8) = ½ ln(0.5/0.8) + ½ ln(0.5/0.2) = ½ ln 1.5625; KL(0.9‖0.6) = 0.9 ln 1.5 + 0.1 ln ¼, downwards."""
    tokens = tokens_of([(0.5, 0.8), (0.9, 0.6), (0.3, 0.3)], None)
    expected = [0.5 * math.log(1.5625), -(0.9 * math.log(1.5) + 0.1 * math.log(0.25)), 0.0]
    assert signed_binary_kl(tokens).tolist() == pytest.approx(expected, rel=1e-6)


def test_a_trainer_that_is_certain_leaves_a_finite_divergence() -> None:
    """0.9 ln 0.9 + 0.1 ln(0.1/1e-8): verl adds 1e-8 to the probability of the rest."""
    found = signed_binary_kl(tokens_of([(0.9, 1.0), (1.0, 1.0)], None)).tolist()
    assert found == pytest.approx([0.9 * math.log(0.9) + 0.1 * math.log((0.1 + 1e-8) / 1e-8), 0.0], rel=1e-6)


def test_the_recipe_reads_as_mask_and_capped_weight(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(RECIPE)
    assert VERL.correction(VERL.configure(script)) == by_sign(Statistic.BINARY_KL, 0.04, 0.06, 1e4)
    assert config_warnings("verl", script) == ()


def test_a_file_nests_the_loss_elsewhere_than_the_correction(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "algorithm: {gamma: 1.0, rollout_correction: {bypass_mode: true}}\n"
        "actor_rollout_ref: {actor: {clip_ratio: 0.1, clip_ratio_low: null, clip_ratio_high: 0.3, "
        "policy_loss: {loss_mode: dppo_tv, kl_cov_ratio: 0.0002}}}\n"
    )
    assert VERL.correction(VERL.configure(path)) == by_sign(Statistic.PROB_DIFF, 0.1, 0.3, 3.0)


def test_flat_and_dotted_keys_stand_beside_each_other() -> None:
    text = "rollout_is=token,rollout_is_threshold=3,actor_rollout_ref.actor.policy_loss.loss_mode=gspo"
    assert VERL.settings(text)[0] == {"rollout_is": "token", "rollout_is_threshold": 3, "loss_mode": "gspo"}


@pytest.mark.parametrize(("mode", "limit"), [("dppo_tv", 0.2), ("dppo_kl", 0.2)])
def test_what_is_masked(mode: str, limit: float) -> None:
    """0.5 → 0.75 moves by +0.25, KL 0.144; 0.5 → 0.25 the same down; 0.5 → 0.85 by +0.35, KL 0.337."""
    pairs = [(0.5, 0.75), (0.5, 0.25), (0.5, 0.85), (0.5, 0.15)] * 3
    tokens = tokens_of(pairs, [1.0] * 4 + [-1.0] * 4 + [0.0] * 4)
    config = {**DPPO, "loss_mode": mode, "clip_ratio_low": limit, "clip_ratio_high": limit}
    kept = kept_tokens(VERL.correction(VERL.configure(config)), tokens).int().tolist()
    if mode == "dppo_tv":
        assert kept == [0, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1, 0]
    else:
        assert kept == [1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 0]


def test_what_the_loss_logs() -> None:
    """Of four tokens one is masked (+0.35), one kept has ρ = 4 above the cap of 3; −d averages −¼ ln(1.7 · 4 · 0.5)."""
    tokens = tokens_of([(0.5, 0.85), (0.05, 0.2), (0.5, 0.25), (0.5, 0.5)], [1.0, 1.0, 1.0, -1.0])
    got = metrics_of(DPPO, tokens)
    expected = {"actor/pg_clipfrac": 0.25, "actor/pg_clipfrac_lower": 0.25, "actor/ppo_kl": -math.log(3.4) / 4}
    assert {name: got[name] for name in expected} == pytest.approx(expected, rel=1e-7)
    assert not [name for name in got if "rollout_is" in name or "rollout_rs" in name]


def test_the_mask_needs_advantages() -> None:
    tokens = tokens_of([(0.5, 0.8)], None)
    got = metrics_of(DPPO, tokens)
    assert got["actor/pg_clipfrac"] is None
    assert got.reasons["actor/pg_clipfrac"] == "needs advantages"
    assert got["actor/ppo_kl"] == pytest.approx(-math.log(1.6))
    with pytest.raises(MissingFieldError, match="needs advantages"):
        kept_tokens(VERL.correction(VERL.configure(DPPO)), tokens)


def test_without_bypass_dppo_masks_by_the_update() -> None:
    config = {"rollout_is": "token", "loss_mode": "dppo_tv"}
    plain = VERL.correction(VERL.configure({"rollout_is": "token"}))
    assert VERL.correction(VERL.configure(config)) == plain
    (line,) = config_warnings("verl", config)
    assert line.startswith("loss_mode = 'dppo_tv': without bypass_mode it masks by the update")


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            {**DPPO, "rollout_is": "token", "rollout_rs": "token_k1", "rollout_rs_threshold": 2.0},
            "rollout_is and rollout_rs: not computed with loss_mode 'dppo_tv' in bypass_mode",
        ),
        (
            {"loss_mode": "dppo_kl", "bypass_mode": True, "clip_ratio": 0.05},
            "clip_ratio = 0.05: not looked at, clip_ratio_high and clip_ratio_low are 0.2 by default",
        ),
        ({**DPPO, "clip_ratio_high": 1.5}, "clip_ratio_high = 1.5: no two probabilities differ by so much"),
    ],
)
def test_settings_that_do_nothing_beside_dppo_are_said(config: dict[str, object], line: str) -> None:
    assert line in config_warnings("verl", config)


@pytest.mark.parametrize("name", ["verl", "verl-2026-01", "verl-2025-10"])
@pytest.mark.parametrize("mode", ["gspo", "sapo", "cispo", "gpg", "dro", "clip_cov", "kl_cov"])
def test_every_other_loss_mode_is_said_in_a_line_and_changes_nothing(name: str, mode: str) -> None:
    trainer = get_trainer(name)
    weighs = {"rollout_is": True, "rollout_is_threshold": 2.0} if name == "verl-2025-10" else {"rollout_is": "token"}
    config = {**weighs, "loss_mode": mode}
    assert trainer.correction(trainer.configure(config)) == trainer.correction(trainer.configure(weighs))
    (line,) = trainer.warnings(trainer.configure(config))
    assert line.startswith(f"loss_mode = {mode!r}: ")


VERLS = ["verl", "verl-2026-01", "verl-2025-11", "verl-2025-10"]


@pytest.mark.parametrize("name", VERLS)
class TestGeoMean:
    """A response has the geometric mean of its weights; figures by hand."""

    def weighing(self, name: str, **more: object) -> dict[str, object]:
        on = {"rollout_is": True} if name == "verl-2025-10" else {"rollout_is": "token"}
        return {**on, "rollout_is_threshold": 2.0, "loss_mode": "geo_mean", **more}

    def correction(self, name: str, **more: object) -> Correction:
        trainer = get_trainer(name)
        return trainer.correction(trainer.configure(self.weighing(name, **more)))

    def test_the_mean_of_capped_weights(self, name: str) -> None:
        """Ratios 8 and 1/2: capped at 2, the geometric mean of 2 and 1/2 is 1."""
        applied = apply(self.correction(name), tokens_of([(0.1, 0.8), (0.8, 0.4)], None))
        assert applied.normalised.tolist() == pytest.approx([1.0, 1.0])

    def test_it_is_found_again_and_said(self, name: str) -> None:
        trainer, wanted = get_trainer(name), self.correction(name)
        found = trainer.express(wanted)
        assert isinstance(found, Expression)
        assert found.correction == wanted
        assert found.settings["loss_mode"] == "geo_mean"
        (line,) = trainer.warnings(trainer.configure(self.weighing(name)))
        assert "geometric mean" in line


def test_one_zeroed_token_takes_its_response_along() -> None:
    """IcePop zeroes 8 of two tokens: √(1e-10 · 1/2), where each counts + 1e-10."""
    config = {"rollout_is": "token", "rollout_is_threshold": "0.4_2.0", "loss_mode": "geo_mean"}
    correction = VERL.correction(VERL.configure(config))
    applied = apply(correction, tokens_of([(0.1, 0.8), (0.8, 0.4)], None))
    assert applied.normalised.tolist() == pytest.approx([math.sqrt(1e-10 * 0.5)] * 2)


def test_the_geometric_mean_is_over_the_tokens_that_rejection_leaves() -> None:
    """token_k1 drops the ratio of 8; what is left is 1/2."""
    config = {"rollout_is": "token", "rollout_rs": "token_k1", "rollout_rs_threshold": 4.0, "loss_mode": "geo_mean"}
    applied = apply(VERL.correction(VERL.configure(config)), tokens_of([(0.1, 0.8), (0.8, 0.4)], None))
    assert applied.kept.tolist() == [False, True]
    assert applied.normalised[1].item() == pytest.approx(0.5)


def test_geo_mean_in_a_report(tmp_path: Path) -> None:
    """Rows of ratios (2, 1/2) and (1/4, 1/4): weights 1, 1 and 1/4, 1/4."""
    half, quarter = math.log(2.0), math.log(0.25)
    rows = [[half, -half], [quarter, quarter]]
    with ra.DumpWriter(tmp_path) as writer:
        writer.write(step=0, rollout_log_probs=[[-3.0] * 2] * 2, old_log_probs=[[d - 3.0 for d in row] for row in rows])
    config = {"rollout_is": "token", "loss_mode": "geo_mean"}
    report = ra.analyze(ra.open_dump(tmp_path), presets=[], trainer="verl", config=config, sweep=False)
    kept = report.corrections[0].stages.kept
    assert kept["weight_mean"] == pytest.approx((1 + 0.25) / 2)
    assert kept["weight_max"] == pytest.approx(1.0)
    assert kept["ess"] == pytest.approx((2.5 / 4) ** 2 / ((2 + 2 / 16) / 4))


@pytest.mark.parametrize(
    "config", [{"bypass_mode": True}, {"rollout_is": "sequence"}, {"rollout_is_batch_normalize": True}]
)
def test_where_geo_mean_changes_no_weight(config: dict[str, object]) -> None:
    given = {"rollout_is": "token", **config}
    assert VERL.correction(VERL.configure({**given, "loss_mode": "geo_mean"})) == VERL.correction(VERL.configure(given))


def test_bypass_takes_the_place_of_another_loss() -> None:
    config = {"loss_mode": "cispo", "bypass_mode": True}
    assert config_warnings("verl", config) == (
        "loss_mode = 'cispo': bypass_mode puts the loss of loss_type in its place",
    )
    assert config_warnings("verl", {"loss_mode": "bypass_mode", "bypass_mode": True}) == ()


@pytest.mark.parametrize(
    ("name", "config", "text"),
    [
        ("verl", {"loss_mode": "dppo"}, "loss_mode = 'dppo': must be one of vanilla, gspo"),
        ("verl", {"loss_mode": ["gspo"]}, "loss_mode = ['gspo']: must be one of vanilla"),
        ("verl", {**DPPO, "clip_ratio_low": -0.1}, "clip_ratio_low = -0.1: must not be negative"),
        ("verl", {**DPPO, "clip_ratio_c": 0}, "clip_ratio_c = 0: must be positive"),
        ("verl", {**DPPO, "clip_ratio_high": "a"}, "clip_ratio_high = 'a': expected a number"),
        ("verl-2026-01", DPPO, "loss_mode = 'dppo_tv': not in verl 2026-01; --trainer verl reads it"),
        ("verl-2025-10", {"loss_mode": "dppo_tv"}, "loss_mode = 'dppo_tv': must be one of vanilla"),
    ],
)
def test_refused(name: str, config: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        get_trainer(name).configure(config)
    assert str(caught.value).startswith(text)


def test_clip_ratios_of_ppo_are_no_setting_of_the_correction() -> None:
    config = {"actor_rollout_ref": {"actor": {"clip_ratio_low": 0.2, "policy_loss": {"loss_mode": "vanilla"}}}}
    settings, (note,) = VERL.settings(config)
    assert settings == {}
    assert note.startswith("no setting of verl is given: its defaults; there are actor_rollout_ref")


def test_a_misspelt_section_is_not_hidden_by_a_loss_mode() -> None:
    config = {
        "algorithm": {"rollout_corection": {"rollout_is": "token"}},
        "actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": "gspo"}}},
    }
    with pytest.raises(UsageError, match="unknown section 'rollout_corection'; did you mean 'rollout_correction'"):
        VERL.settings(config)


@pytest.mark.parametrize("name", ["bypass_dppo_tv", "bypass_dppo_kl"])
def test_round_trip(name: str, tmp_path: Path) -> None:
    wanted = PRESETS[name].correction
    found = VERL.express(wanted)
    assert isinstance(found, Expression)
    path = tmp_path / "run.yaml"
    path.write_text(pasted(VERL.nested(found.settings), "yaml"))
    assert VERL.correction(VERL.configure(path)) == wanted
    assert "loss_mode" in VERL.nested(found.settings)["actor_rollout_ref"]["actor"]["policy_loss"]


def test_prime_rl_differs_in_the_cap_alone() -> None:
    """prime-rl multiplies by the ratio itself; verl's largest cap that its recipe has is 10000."""
    found = VERL.express(PRESETS["prime_rl_default"].correction)
    assert isinstance(found, Unexpressible)
    assert found.nearest.correction == by_sign(Statistic.PROB_DIFF, 0.2, 0.2, 1e4)
    capped = replace(PRESETS["prime_rl_default"].correction, weight=Weight(Level.TOKEN, Bound.TRUNCATE, upper=5.0))
    assert isinstance(VERL.express(capped), Expression)
