"""What holds for every trainer module, and what each refuses or warns of."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_audit.corrections.model import (
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Loss,
    Mode,
    Rule,
    Statistic,
    Weight,
)
from rollout_audit.corrections.tokens import Tokens
from rollout_audit.errors import ConfigError, UsageError
from rollout_audit.statistics.metrics import Absent, Metrics
from rollout_audit.trainers.base import sorted_order
from rollout_audit.trainers.reductions import percentiles, row_order
from rollout_audit.trainers.registry import TRAINERS, get_trainer

MIS = "compute_mis_weights_with_cp"
NEMO_GEOMETRIC = {
    "use_importance_sampling_correction": True,
    "truncated_importance_sampling_type": "seq-mask-tis",
    "truncated_importance_sampling_ratio": 1.002,
    "truncated_importance_sampling_ratio_min": 0.999,
}
CONFIGS: list[tuple[str, dict[str, object]]] = [
    ("verl", {"rollout_is": "token", "rollout_is_batch_normalize": True}),
    ("verl", {"rollout_is": "sequence", "rollout_rs": "token_k1,seq_max_k2", "rollout_rs_threshold": 2.0}),
    ("verl-2026-01", {"rollout_is": "sequence", "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}),
    ("verl-2025-10", {"rollout_is_mode": "mask", "rollout_is_threshold": 2.0}),
    ("verl-2025-10", {"rollout_is_level": "geometric", "rollout_is_threshold": 2.0}),
    ("skyrl", {"tis_ratio_type": "sequence", "token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0}),
    ("areal", {"level": "sequence", "metric": "kl_k3", "agg": "max", "upper": 0.5}),
    ("roll", {"filters": [{"enabled": True}], "is_weight": {"enabled": True}}),
    ("ms-swift", {"rollout_importance_sampling_mode": "sequence_mask"}),
    ("prime-rl", {"type": "ipo"}),
    ("prime-rl", {}),
    ("miles", {"tis_mode": "clip", "tis_batch_normalize": True, "use_rs": True, "rs_veto_threshold": 1e-4}),
    ("slime", {"use_tis": True, "tis_clip_low": 0.5, "use_opsm": True}),
    ("slime", {"custom_tis_function_path": f"mis.{MIS}", "use_tis": True, "use_rs": True, "tis_level": "sequence"}),
    ("trl", {}),
    ("trl", {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_min": 0.5}),
    ("nemo-rl", {"sequence_level_importance_ratios": True, "token_level_loss": False}),
    ("nemo-rl", {"seq_logprob_error_threshold": 1.5, **NEMO_GEOMETRIC}),
    ("openrlhf", {"is_correction_type": "icepop"}),
    ("open-instruct", {"rho_mask_sequence_level": True, "rho_mask_upper_bound": 1.25}),
    ("open-instruct", {"use_rho_correction": False}),
]


def tokens_of(rows: list[list[float]]) -> Tokens:
    """Rows of log-ratios against a rollout log-prob of −1 everywhere."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    d = torch.tensor([value for row in rows for value in row], dtype=torch.float64)
    rollout = torch.full_like(d, -1.0)
    return Tokens(lengths, rollout + d, rollout, lengths[lengths > 0])


def metrics_of(name: str, config: dict[str, object], chunks: list[list[list[float]]]) -> Metrics:
    trainer = get_trainer(name)
    parsed = trainer.configure(config)
    batches = [tokens_of(chunk) for chunk in chunks]
    columns = [trainer.row_columns(batch, parsed) for batch in batches]
    rows = {key: np.concatenate([part[key].numpy() for part in columns]) for key in columns[0]}
    order = sorted_order(np.concatenate([batch.log_ratio.numpy() for batch in batches]))
    return trainer.metrics(rows, parsed, order)


@pytest.mark.parametrize("name", TRAINERS)
def test_every_module_has_one_shape(name: str) -> None:
    trainer = get_trainer(name)
    assert trainer.name == name
    assert all(quirk.name and quirk.sentence.endswith(".") and quirk.source for quirk in trainer.quirks)
    assert len({quirk.name for quirk in trainer.quirks}) == len(trainer.quirks)
    assert isinstance(trainer.correction(trainer.configure({})), Correction)
    assert trainer.configure(dict(trainer.defaults)) == trainer.configure({})


def test_an_unknown_trainer_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"^no trainer 'mile'; did you mean 'miles'\?$"):
        get_trainer("mile")


def test_the_table_of_names_needs_no_torch() -> None:
    code = "import sys, rollout_audit.trainers.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


rows_of_log_ratios = st.lists(st.lists(st.floats(-25, 25), max_size=6), min_size=1, max_size=8)


@pytest.mark.parametrize(("name", "config"), CONFIGS)
@settings(deadline=None, max_examples=50)
@given(rows=rows_of_log_ratios)
def test_chunking_changes_nothing(name: str, config: dict[str, object], rows: list[list[float]]) -> None:
    whole = metrics_of(name, config, [rows])
    pieces = metrics_of(name, config, [[row] for row in rows])
    # a vectorised exp or log may round the tokens of a longer chunk otherwise
    assert {k: v for k, v in whole.items() if v is None} == {k: v for k, v in pieces.items() if v is None}
    known = {name: value for name, value in pieces.items() if value is not None}
    assert {name: whole[name] for name in known} == pytest.approx(known, rel=1e-9, abs=1e-12)
    assert whole.reasons == pieces.reasons


@pytest.mark.parametrize(("name", "config"), CONFIGS)
def test_a_batch_without_valid_token_is_null_with_a_reason(name: str, config: dict[str, object]) -> None:
    empty, usual = metrics_of(name, config, [[[], []]]), metrics_of(name, config, [[[0.1], [0.2, -0.3]]])
    assert set(empty) == set(usual)
    assert set(empty.values()) == {None}
    assert set(empty.reasons.values()) == {"no valid token"}


@pytest.mark.parametrize("name", ["verl", "miles"])
def test_what_leaves_float64_is_null_with_reason_overflow(name: str) -> None:
    metrics = metrics_of(name, {} if name == "verl" else {"use_tis": True}, [[[800.0], [0.0]]])
    key = "rollout_corr/k3_kl" if name == "verl" else "mis_k3_kl"
    assert metrics[key] is None
    assert metrics.reasons[key].startswith("overflow")


def test_no_weight_left_is_an_effective_sample_size_of_zero() -> None:
    metrics = metrics_of("verl", {"rollout_is": "token", "rollout_is_threshold": "0.9_1.1"}, [[[1.0, -1.0]]])
    key = "rollout_corr/rollout_is_eff_sample_size"
    assert metrics[key] == 0.0
    assert metrics.reasons == {key: "every weight is 0"}


def test_metrics_are_immutable_and_finite_or_null() -> None:
    metrics = Metrics({"a": 1.5, "b": math.inf, "c": math.nan, "d": Absent("needs advantages")})
    assert dict(metrics) == {"a": 1.5, "b": None, "c": None, "d": None}
    assert set(metrics.reasons) == {"b", "c", "d"}
    assert metrics.reasons["d"] == "needs advantages"
    with pytest.raises(TypeError):
        metrics["a"] = 2.0  # type: ignore[index]
    with pytest.raises(TypeError):
        metrics.reasons["a"] = "no"  # type: ignore[index]


@given(st.lists(st.lists(st.floats(-3, 3), max_size=5), min_size=1).filter(any))
def test_percentiles_are_numpys(rows: list[list[float]]) -> None:
    levels = (0.25, 0.5, 0.75, 0.95, 0.99)
    tokens = np.array([value for row in rows for value in row])
    got = percentiles(levels, len(tokens), sorted_order(tokens), np.exp)
    np.testing.assert_allclose(got, np.quantile(np.exp(tokens), levels), rtol=1e-12)
    counts, means = (
        np.array([len(row) for row in rows]),
        np.array([np.mean(row) if row else 0.0 for row in rows]),
    )
    per_token = np.repeat(means, counts)
    got = percentiles(levels, len(tokens), row_order(means, counts.astype(float)), np.exp)
    np.testing.assert_allclose(got, np.quantile(np.exp(per_token), levels), rtol=1e-12)


def test_quantiles_are_asked_for_only_where_rows_do_not_answer() -> None:
    asked = {name: get_trainer(name).quantiles(get_trainer(name).configure(config)) for name, config in CONFIGS[:3]}
    assert set(asked.values()) == {()}
    legacy = get_trainer("verl-2025-10")
    assert legacy.quantiles(legacy.configure({"rollout_is_threshold": 2.0})) == (0.25, 0.5, 0.75, 0.95, 0.99)
    assert legacy.quantiles(legacy.configure({"rollout_is_threshold": 2.0, "rollout_is_level": "sequence"})) == ()


ICEPOP = Weight(Level.TOKEN, Bound.MASK, 0.5, 5.0)
RATIO = Statistic.RATIO


@pytest.mark.parametrize(
    ("name", "config", "correction"),
    [
        ("verl", {}, Correction()),
        ("verl", {"rollout_is": "token"}, Correction(Weight(Level.TOKEN, Bound.TRUNCATE, None, 2.0))),
        ("verl", {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}, Correction(ICEPOP)),
        ("verl", {"rollout_is": None, "rollout_is_threshold": None}, Correction()),
        (
            "verl",
            {
                "bypass_mode": True,
                "loss_type": "reinforce",
                "rollout_rs": "seq_mean_k3",
                "rollout_rs_threshold": 0.01,
            },
            Correction(
                rules=(Rule(Statistic.K3, Aggregation.SEQ_MEAN, upper=0.01),),
                mode=Mode.BYPASS,
                loss=Loss.REINFORCE,
            ),
        ),
        ("verl-2025-10", {}, Correction()),
        (
            "verl-2025-10",
            {"rollout_is": True, "rollout_is_threshold": 2.0, "rollout_is_veto_threshold": "1e-4"},
            Correction(Weight(Level.TOKEN, Bound.TRUNCATE, None, 2.0), veto=1e-4),
        ),
        (
            "verl-2025-10",
            {
                "rollout_is": True,
                "rollout_is_level": "geometric",
                "rollout_is_mode": "mask",
                "rollout_is_threshold": 2,
            },
            Correction(Weight(Level.GEOMETRIC), (Rule(RATIO, Aggregation.SEQ_MEAN, 0.5, 2.0, clamp=None),)),
        ),
        ("miles", {"use_tis": False, "tis_upper_bound": None}, Correction(denominator=Denominator.ORIGINAL)),
        (
            "miles",
            {
                "tis_mode": "mask",
                "tis_level": "sequence",
                "use_rs": True,
                "rs_upper_bound": 3,
                "rs_veto_threshold": 1e-4,
            },
            Correction(
                Weight(Level.SEQUENCE),
                (
                    Rule(RATIO, Aggregation.SEQ_SUM, 0.5, 2.0, clamp=None),
                    Rule(RATIO, Aggregation.TOKEN, 1 / 3, 3.0, clamp=None),
                ),
                veto=1e-4,
                denominator=Denominator.ORIGINAL,
            ),
        ),
    ],
)
def test_the_correction(name: str, config: dict[str, object], correction: Correction) -> None:
    trainer = get_trainer(name)
    assert trainer.correction(trainer.configure(config)) == correction


@pytest.mark.parametrize(
    ("name", "config", "text"),
    [
        (
            "verl",
            {"rollout_is_treshold": 2.0},
            "rollout_is_treshold = 2.0: unknown setting; did you mean 'rollout_is_threshold'?",
        ),
        (
            "verl",
            {"rollout_is": "geometric"},
            "rollout_is = 'geometric': a weight of verl in October to December 2025; --trainer verl-2025-11 reads it",
        ),
        ("verl", {"bypass_mode": "yes"}, "bypass_mode = 'yes': must be true or false"),
        (
            "verl",
            {"loss_type": "ppo-clip"},
            "loss_type = 'ppo-clip': must be one of ppo_clip, reinforce; did you mean 'ppo_clip'?",
        ),
        (
            "verl-2026-01",
            {"rollout_is": "token", "rollout_is_threshold": "0.5_2.0"},
            "rollout_is_threshold = '0.5_2.0': one number in verl 2026-01; bands came later",
        ),
        (
            "verl-2025-10",
            {"rollout_is_mode": "mask", "rollout_is_threshold": 0.5},
            "rollout_is_threshold = 0.5: a lone bound below 1 is the empty band [2, 0.5]; "
            "give rollout_is_threshold_lower",
        ),
        (
            "verl-2025-10",
            {"rollout_is_threshold": 2.0, "rollout_is_threshold_lower": 3.0},
            "rollout_is_threshold_lower = 3.0: above rollout_is_threshold = 2",
        ),
        (
            "miles",
            {"tis_level": "geometric", "tis_batch_normalize": True},
            "tis_batch_normalize = True: mis.py refuses it with tis_level geometric",
        ),
        (
            "miles",
            {"use_rs": True, "rs_upper_bound": 0.8},
            "rs_upper_bound = 0.8: a lone bound below 1 is the empty band [1.25, 0.8]; give rs_lower_bound",
        ),
        ("miles", {"tis_upper_bound": -2}, "tis_upper_bound = -2: must be positive"),
    ],
)
def test_refused_settings(name: str, config: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        get_trainer(name).configure(config)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("name", "config", "text"),
    [
        (
            "verl",
            {"rollout_is": "token", "rollout_is_threshold": 0.8},
            "rollout_is_threshold = 0.8: a cap below 1 shrinks weights where the policies agree",
        ),
        (
            "verl",
            {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_5.0"},
            "token_k1 '0.5_5' keeps ρ in [0.2, 2]: verl compares the bounds with −log ρ",
        ),
        (
            "verl",
            {"rollout_is": "token", "bypass_mode": True},
            "rollout_is: logged but not applied in bypass mode with ppo_clip (the ratio carries it)",
        ),
        ("verl-2025-10", {}, "rollout_is_threshold = null: verl computes and logs nothing"),
        (
            "verl-2025-10",
            {"rollout_is_threshold": 2.0},
            "rollout_is = False: weights are logged, not applied; mask mode and veto still remove",
        ),
        (
            "miles",
            {"tis_upper_bound": 0.8},
            "tis_upper_bound = 0.8: a cap below 1 shrinks weights where the policies agree",
        ),
    ],
)
def test_warnings(name: str, config: dict[str, object], text: str) -> None:
    trainer = get_trainer(name)
    of_mis = ("tis_upper_bound: of mis.py, which runs where custom_tis_function_path names it; read as if it did",)
    found = trainer.warnings(trainer.configure(config))
    assert tuple(one for one in found if name != "miles" or one not in of_mis) == (text,)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("verl", {"rollout_is": "token", "rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}),
        ("verl", {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}),
        ("verl", {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.99_1.01"}),
        ("verl", {"rollout_rs": "token_k3", "rollout_rs_threshold": 0.01}),
        ("miles", {}),
    ],
)
def test_usual_settings_are_not_warned_of(name: str, config: dict[str, object]) -> None:
    trainer = get_trainer(name)
    assert trainer.warnings(trainer.configure(config)) == ()
