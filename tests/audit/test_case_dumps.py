"""Dumps that real people had, as whole dumps: what is refused, what is said, what the likely cause is called.

Figures and sentences of faults are measured from the mistake itself, whatever tool made it first.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import rollout_audit as ra
from rollout_audit.audit.causes import Cause, causes_of_dump
from rollout_audit.dumps.inspection import inspect_dump
from tests.faults import Recording, sound, write

Rows = list[list[float | None]]


def dump_of(folder: Path, training: object, rollout: object, name: str = "a.parquet", **columns: object) -> Path:
    table = pa.table({"old_log_probs": training, "rollout_log_probs": rollout, **columns})
    pq.write_table(table, folder / name)
    return folder


def audited(folder: Path, **options: object) -> ra.Report:
    return ra.analyze(ra.open_dump(folder), presets=["decoupled_seq_is"], sweep=False, **options)


def inspected(folder: Path) -> list[Cause]:
    dump = ra.open_dump(folder)
    return causes_of_dump(dump, inspect_dump(dump).findings, workers=1)


def recorded(folder: Path, training: Rows, rollout: Rows, steps: list[int] | None = None) -> Path:
    arrays = [tuple(np.array(row, dtype=np.float64) for row in rows) for rows in (training, rollout)]
    return write(Recording(arrays[0], arrays[1], tuple(steps or [0] * len(training))), folder)


def kinds(report: ra.Report) -> dict[str, str]:
    return {finding.kind: finding.severity for finding in report.findings}


@pytest.mark.parametrize("masked", [math.nan, -math.inf, -1e10, 1e10])
def test_nothing_under_a_zero_mask_counts(tmp_path: Path, masked: float) -> None:
    """Cases 13, 14 A and 32."""
    rollout = [[-1.0, -2.0, masked]]
    report = audited(dump_of(tmp_path, [[-1.0, -2.0, -0.5]], rollout, response_mask=[[1, 1, 0]]))
    assert (report.overall["kl_k3"], report.overall["mult_prob_error"]) == (0.0, 1.0)
    assert report.counts.valid_tokens == 2
    assert "error" not in kinds(report).values()


@pytest.mark.parametrize(("value", "kind"), [(math.nan, "nan"), (None, "null"), (-math.inf, "infinite")])
def test_one_broken_value_under_the_mask_stops_the_audit(tmp_path: Path, value: float | None, kind: str) -> None:
    """Cases 14 B, 40 and 41: never averaged, never 0.0; out with its row where that is asked for."""
    rollout = [[-0.1, value, -0.3], [-0.1, -0.2, -0.3]]
    folder = dump_of(tmp_path, [[-0.1, -0.2, -0.31], [-0.1, -0.2, -0.31]], rollout)
    with pytest.raises(ra.DumpError, match=r"row 0, position 1: .*likely cause: broken_rows"):
        audited(folder)
    report = audited(folder, on_fault="drop")
    assert [(d.row, d.kind) for d in report.dropped] == [(0, kind)]
    assert (report.causes[0].cause, report.causes[0].severity) == ("broken_rows", "error")
    assert inspected(folder)[0].cause == "broken_rows"


def test_a_log_ratio_past_the_clamp_stays_what_it_is(tmp_path: Path) -> None:
    """Case 16: 25 and its ratio are shown as they are, and the weight as capped."""
    report = audited(dump_of(tmp_path, [[-0.5, -1.0]], [[-25.5, -1.0]]))
    assert report.worst_tokens[0].log_ratio == 25.0
    assert report.overall["sequences_past_clamp"] == 1
    stages = report.corrections[0].stages
    assert stages.raw["weight_max"] == pytest.approx(math.exp(25))
    assert (stages.bounded["weight_max"], stages.bounded["capped_fraction"]) == (2.0, 1.0)


def test_half_precision_is_widened_before_it_is_summed(tmp_path: Path) -> None:
    """Case 19: 3,000 times 0.1 in float16 is 299.93, not 256."""
    halves = pa.array([np.full(3000, -0.1, np.float16)], pa.list_(pa.float16()))
    report = audited(dump_of(tmp_path, pa.array([[0.0] * 3000], pa.list_(pa.float16())), halves))
    assert report.overall["log_ppl_diff"] == pytest.approx(-float(np.float16(0.1)), rel=1e-12)


def test_many_small_steps_are_summed_in_float64(tmp_path: Path) -> None:
    """Case 20, in small: float32 0.1 is 0.10000000149."""
    column = pa.array([np.full(1000, -0.1, np.float32)] * 400, pa.list_(pa.float32()))
    report = audited(dump_of(tmp_path, column, pa.array([[0.0] * 1000] * 400, pa.list_(pa.float32()))))
    assert report.overall["kl_k1"] == pytest.approx(float(np.float32(0.1)), rel=1e-13)


def test_bit_identical_columns(tmp_path: Path) -> None:
    """Case 37."""
    values = [(-np.random.default_rng(0).exponential(1, 120)).tolist()]
    report = audited(dump_of(tmp_path, values, values))
    assert [(c.cause, c.severity) for c in report.causes] == [("identical_columns", "warning")]
    assert kinds(report)["identical_columns"] == "warning"
    assert "no evidence of health" in report.causes[0].advice


def test_zeros_for_tokens_that_the_engine_did_not_sample(tmp_path: Path) -> None:
    """Case 43: out of the mask they do no harm, inside they stop the audit."""
    training, rollout = [[-0.51, -0.69, -6.0, -8.0, -7.0]], [[-0.5, -0.7, 0.0, 0.0, 0.0]]
    masked = dump_of(tmp_path, training, rollout, response_mask=[[1, 1, 0, 0, 0]])
    assert audited(masked).overall["log_prob_diff_abs_mean"] == pytest.approx(0.01)
    scored = dump_of(tmp_path, training, rollout)
    with pytest.raises(ra.DumpError, match=r"rollout_log_probs is 0\.0 in a run.*likely cause: placeholder"):
        audited(scored)
    [cause] = [cause for cause in inspected(scored) if cause.severity == "error"]
    assert (cause.cause, cause.figures["values"]) == ("placeholder", 3)


def test_genuine_zeros(tmp_path: Path) -> None:
    """Case 44."""
    report = audited(dump_of(tmp_path, [[-1e-6, -0.5, -1e-6]], [[0.0, -0.5, 0.0]]))
    assert "error" not in kinds(report).values()
    assert not [cause for cause in report.causes if cause.severity != "info"]


def test_one_as_a_sentinel(tmp_path: Path) -> None:
    """Case 46."""
    folder = dump_of(tmp_path, [[-0.5, -0.6], [-0.5, -0.6]], [[1.0, -0.6], [-0.5, -0.6]])
    with pytest.raises(ra.DumpError, match="placeholder 1 under mask 1"):
        audited(folder)
    assert inspected(folder)[0].cause == "placeholder"


@pytest.mark.parametrize(("value", "severity"), [(0.03, "warning"), (0.125, "warning"), (0.6, "error")])
def test_log_probs_above_zero(tmp_path: Path, value: float, severity: str) -> None:
    """Case 47."""
    folder = dump_of(tmp_path, [[value, -0.6], [-0.5, -0.6]], [[-0.01, -0.6], [-0.5, -0.6]])
    found = kinds(audited(folder, on_fault="drop"))
    assert found == {"positive_log_prob" if severity == "error" else "slightly_positive": severity, "no_mask": "info"}


def test_a_shift_by_one(tmp_path: Path) -> None:
    """Case 49: k1 looks perfect, the correlation peaks at lag +1."""
    rng = np.random.default_rng(0)
    rollout = -rng.exponential(0.6, 2000)
    training = np.minimum(rollout + rng.normal(0, 0.01, 2000), 0.0)
    sound_one = audited(recorded(tmp_path / "sound", [training.tolist()], [rollout.tolist()]))
    assert sound_one.overall["log_prob_diff_abs_mean"] == pytest.approx(0.008, abs=0.0005)
    report = audited(recorded(tmp_path / "shifted", [training[1:].tolist()], [rollout[:-1].tolist()]))
    assert report.overall["log_prob_diff_abs_mean"] == pytest.approx(0.614, abs=0.05)
    assert abs(report.overall["kl_k1"] or 0.0) < 0.01
    first = report.causes[0]
    assert (first.cause, first.severity, first.figures["lag"]) == ("shift_by_one", "error", 1)
    assert first.figures["correlation"] > 0.99
    assert abs(first.figures["correlation_at_0"]) < 0.1


def test_lists_of_one_row_that_differ_in_length(tmp_path: Path) -> None:
    """Case 50: nothing is cut or filled up."""
    folder = dump_of(tmp_path, [[-1.0] * 5], [[-1.0] * 6], token_ids=[[1, 2, 3, 4, 5]])
    with pytest.raises(ra.DumpError, match=r"row 0: .*differ in length") as caught:
        audited(folder)
    assert "6" in str(caught.value)
    assert "5" in str(caught.value)


def test_the_likeliest_token_in_place_of_the_sampled_one(tmp_path: Path) -> None:
    """Case 52: −2.30 was sampled, −0.10 recorded."""
    training = [[-0.1, -0.2, -2.3, -0.05, -2.4, -3.0, -0.1, -0.3, -4.0, -2.6] * 2] * 2
    rollout = [[-0.1 if t < -2 else t for t in row] for row in training]
    first = audited(recorded(tmp_path, training, rollout)).causes[0]
    assert (first.cause, first.severity) == ("top1_recorded", "error")
    assert first.figures["rollout_floor"] == pytest.approx(-0.3)
    assert first.figures["training_floor"] == pytest.approx(-4.0)


def test_an_appended_end_token(tmp_path: Path) -> None:
    """Case 53: the product ratio is 0.01 with it, 1 without."""
    body = [-0.5, -1.25, -0.125]
    report = audited(recorded(tmp_path, [[*body, -4.60517]] * 4 + [body], [[*body, 0.0]] * 4 + [body]))
    assert report.corrections[0].stages.raw["weight_min"] == pytest.approx(0.01, rel=1e-5)
    [cause] = report.causes
    assert (cause.cause, cause.figures["rows_share"]) == ("synthetic_eos", 0.8)
    assert "80%" in cause.evidence


@pytest.mark.parametrize("mask", [[1.0, 0.5], [1, -1], [1, 2]])
def test_mask_values_other_than_0_and_1(tmp_path: Path, mask: list[float]) -> None:
    """Case 55."""
    folder = dump_of(tmp_path, [[-1.0, -1.0]], [[-1.0, -1.0]], response_mask=[mask])
    with pytest.raises(ra.DumpError, match=f"response_mask holds {mask[1]:g}"):
        audited(folder)


def test_a_mask_of_zeros_has_nothing_to_audit(tmp_path: Path) -> None:
    """Case 56."""
    folder = dump_of(tmp_path, [[-1.0], [-1.0]], [[-1.0], [-1.0]], response_mask=[[0], [0]])
    with pytest.raises(ra.DumpError, match="no valid token in 2 rows"):
        audited(folder)
    assert inspected(folder) == []


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_an_empty_list_without_a_type_in_one_file(tmp_path: Path, order: tuple[str, str]) -> None:
    """Cases 58 and 59: the order of the files, and float32 beside float64, do no harm."""
    empty, single = pa.array([[]], pa.list_(pa.null())), pa.array([[-0.5]], pa.list_(pa.float32()))
    dump_of(tmp_path, empty, empty, f"{order[0]}.parquet")
    dump_of(tmp_path, single, pa.array([[-0.5]], pa.list_(pa.float64())), f"{order[1]}.parquet")
    assert audited(tmp_path).counts.valid_tokens == 1


def test_a_column_name_twice(tmp_path: Path) -> None:
    """Case 73."""
    column = pa.array([[-1.0]], pa.list_(pa.float32()))
    table = pa.table([column, column, column], names=["old_log_probs", "rollout_log_probs", "rollout_log_probs"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ra.RolloutAuditError, match="rollout_log_probs"):
        audited(tmp_path)


def test_a_tensor_that_was_saved_in_the_wrong_order(tmp_path: Path) -> None:
    """Case 65: the file alone does not tell, that the rows fit nothing does."""
    base = sound("llamacpp_q4")
    chosen = [i for i in range(base.rows) if len(base.training[i]) >= 64][:40]
    training, rollout = (np.stack([side[i][:64] for i in chosen]) for side in (base.training, base.rollout))
    scrambled = rollout.T.ravel().reshape(rollout.shape)
    found = inspected(recorded(tmp_path, training.tolist(), scrambled.tolist()))
    assert (found[0].cause, found[0].severity) == ("misordered_rows", "error")


def test_speculative_decoding_that_breaks_some_rows(tmp_path: Path) -> None:
    """Case 77: 2 of 50 sequences with |d| above 5 on more than 30% of their tokens."""
    rng = np.random.default_rng(0)
    rollout = [-rng.exponential(1.0, 80) for _ in range(50)]
    training = [np.minimum(r + rng.normal(0, 0.02, 80), 0.0) for r in rollout]
    for i in (7, 31):
        rollout[i] = np.where(rng.random(80) < 0.4, rollout[i] - rng.uniform(5, 9, 80), rollout[i])
    cause = inspected(recorded(tmp_path, [t.tolist() for t in training], [r.tolist() for r in rollout]))[0]
    assert (cause.cause, cause.severity, cause.figures["rows"]) == ("broken_rows", "error", 2)
    assert "row 7" in cause.evidence


def test_a_rollout_side_of_zeros(tmp_path: Path) -> None:
    """Case 77: 0.0 for every token."""
    rows = [(-np.random.default_rng(i).exponential(1.0, 20)).tolist() for i in range(4)]
    folder = recorded(tmp_path, rows, [[0.0] * 20] * 4)
    assert "0.0 over the whole response" in inspected(folder)[0].evidence
    assert (inspected(folder)[0].cause, inspected(folder)[0].severity) == ("broken_rows", "error")


def softmax_log(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def test_raw_log_probs_on_one_side(tmp_path: Path) -> None:
    """Case 79: whole distributions at T = 0.6; the rollout side reports them raw."""
    assert softmax_log(np.array([2.0, 1.0, 0.0]) / 0.6) == pytest.approx([-0.2026, -1.8692, -3.5359], abs=1e-4)
    training, rollout = sampled_pairs(lambda logits: (softmax_log(logits / 0.6), softmax_log(logits)))
    cause = inspected(recorded(tmp_path, training, rollout))[0]
    assert cause.cause == "temperature"
    assert cause.figures["temperature"] == pytest.approx(0.6, abs=0.02)
    assert "does not repair" in cause.advice


def test_truncated_support_on_one_side(tmp_path: Path) -> None:
    """Case 80: logits 2, 1, 0 of which two are kept: every ratio is 0.909969."""
    logits = softmax_log(np.array([2.0, 1.0, 0.0]))
    mass = float(np.exp(logits[:2]).sum())
    training = [np.tile(logits[:2], 20).tolist()] * 3
    report = audited(recorded(tmp_path, training, [(np.array(row) - np.log(mass)).tolist() for row in training]))
    first = report.causes[0]
    assert first.cause == "truncated_sampling"
    assert first.figures["mean_ratio"] == pytest.approx(0.909969, abs=1e-5)
    assert first.figures["one_sided"] == 1.0


def sampled_pairs(sides: object, rows: int = 12, length: int = 100) -> tuple[Rows, Rows]:
    """Tokens drawn from the training side's distributions over 50 tokens."""
    rng = np.random.default_rng(0)
    found: tuple[Rows, Rows] = ([], [])
    for _ in range(rows):
        both = [sides(rng.normal(0, 1, 50) * rng.uniform(1, 5)) for _ in range(length)]  # type: ignore[operator]
        tokens = [rng.choice(50, p=np.exp(training)) for training, _ in both]
        for side, values in enumerate(found):
            values.append([float(pair[side][token]) for pair, token in zip(both, tokens, strict=True)])
    return found


def test_weights_that_stopped_arriving(tmp_path: Path) -> None:
    """Case 94: mean |d| of 0.010, 0.018, 0.201, 0.20, 0.21: step 3 is the change point."""
    rng = np.random.default_rng(0)
    rollout, training, steps = [], [], []
    for step, size in enumerate((0.010, 0.018, 0.201, 0.20, 0.21), start=1):
        for _ in range(6):
            r = -rng.exponential(1.0, 60) - 0.01
            rollout.append(r.tolist())
            training.append(np.minimum(r + rng.normal(0, size * math.sqrt(math.pi / 2), 60), -1e-4).tolist())
            steps.append(step)
    cause = inspected(recorded(tmp_path, training, rollout, steps))[0]
    assert (cause.cause, cause.figures["change_point"]) == ("stale_weights", 3)
    assert "step 3 is the change point" in cause.evidence


def test_the_age_of_a_row_without_a_version_is_not_known(tmp_path: Path) -> None:
    """Two of four rows have both versions, and are 2 and 4 updates old."""
    lists = [[-0.5, -0.25]] * 4
    dump_of(tmp_path, lists, lists, policy_version=[-1, 3, 1, 4], trainer_version=[5, 5, 5, None])
    assert audited(tmp_path).steps[0].policy_age == 3.0


def test_a_second_moment_that_cannot_be_met(tmp_path: Path) -> None:
    """Case 34: of d = 0.1 three times and 1 one token goes at M2 0.04; of 1 three times one stays, and it is said."""
    rollout = [[-8.0] * 4, [-8.0] * 3]
    training = [[-7.9, -7.9, -7.9, -7.0], [-7.0] * 3]
    dump_of(tmp_path, training, rollout, step=[0, 1])
    dump = ra.open_dump(tmp_path)
    kept = [mask.tolist() for _, _, mask in ra.apply_correction(dump, {"m2_threshold": 0.04}, trainer="areal")]
    assert kept == [[True, True, True, False], [True, False, False]]
    report = ra.analyze(dump, presets=["areal_m2po"], sweep=False)
    (finding,) = [f for f in report.findings if f.kind == "constraint_infeasible"]
    assert (finding.severity, finding.count) == ("warning", 1)
    assert finding.message == (
        "a mean k2 < 0.02 of the batch is infeasible in 1 step (first: step 1): no token is below, and the one with "
        "the least stays alone"
    )
    feasible = ra.analyze(dump, presets=["areal_m2po"], sweep=False, steps=(0, 1))
    assert "constraint_infeasible" not in {f.kind for f in feasible.findings}
    assert report.corrections[0].formula == "largest k2 of the batch removed until the mean is < 0.02"


def test_off_policy_sequence_masks(tmp_path: Path) -> None:
    """Case 35: mean d −1 and mean A −1/6: ms-swift drops the response; slime asks each token, and keeps A > 0."""
    dump_of(tmp_path, [[-2.5] * 3], [[-1.5] * 3], advantages=[[-0.5, 0.25, -0.25]])
    dump = ra.open_dump(tmp_path)
    slime = "--use-opsm --use-rollout-logprobs --opsm-delta 0.1"
    for asked, trainer, mask in (("ms_swift_off_policy_mask", None, [0, 0, 0]), (slime, "slime", [0, 1, 0])):
        assert [m.tolist() for _, _, m in ra.apply_correction(dump, asked, trainer=trainer)] == [mask]
    dump_of(tmp_path, [[-2.5] * 3], [[-1.5] * 3])
    for asked, trainer in (("ms_swift_off_policy_mask", None), (slime, "slime")):
        with pytest.raises(ra.DumpError, match=r"^advantages: this correction looks at their sign"):
            list(ra.apply_correction(ra.open_dump(tmp_path), asked, trainer=trainer))


def test_shares_past_a_bound_are_of_raw_weights(tmp_path: Path) -> None:
    """Case 38: two responses of weight 3 under a cap of 2: all of them are past it, before and after."""
    dump_of(tmp_path, [[-8.0 + math.log(3.0)]] * 2, [[-8.0]] * 2)
    stages = audited(tmp_path).corrections[0].stages
    assert stages.raw["weight_mean"] == pytest.approx(3.0)
    assert (stages.bounded["weight_mean"], stages.bounded["capped_fraction"]) == (2.0, 1.0)
    config = {"rollout_is": "sequence", "rollout_is_threshold": 2.0}
    logged = ra.trainer_metrics(ra.open_dump(tmp_path), "verl", config)
    assert logged["rollout_corr/rollout_is_seq_fraction_high"] == 1.0


def test_a_lone_bound_below_one_is_an_empty_band(tmp_path: Path) -> None:
    """Case 10: 0.5 alone would be [2, 0.5]."""
    dump_of(tmp_path, [[-0.5] * 4], [[-0.5] * 4])
    config = {"rollout_rs": "token_k1", "rollout_rs_threshold": 0.5}
    with pytest.raises(ra.ConfigError, match=r"rollout_rs_threshold = 0\.5: .* is the empty band \[2, 0\.5\]"):
        ra.trainer_metrics(ra.open_dump(tmp_path), "verl", config)


def test_errors_that_cancel_are_flagged(tmp_path: Path) -> None:
    """Case 11, as a verdict."""
    rollout = [[-2.0, -1.75, -1.5, -2.25] * 30]
    training = [[r + d for r, d in zip(rollout[0], [0.5, -0.5] * 60, strict=True)]]
    report = audited(recorded(tmp_path, training, rollout))
    assert "cancellation" in [cause.cause for cause in report.causes]
