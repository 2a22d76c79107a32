"""The audit of the trainer: its log beside the recomputed metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

import rollout_audit as ra
from rollout_audit.audit.logged import BY_BATCH, Tolerance, compare, matched_keys
from rollout_audit.audit.report import Report
from rollout_audit.cli.analyze import LOG_TOLERANCE
from rollout_audit.dumps.logs import Log
from rollout_audit.statistics.metrics import Absent, Metrics
from rollout_audit.trainers.registry import TRAINERS, get_trainer

GRPO = Path(__file__).resolve().parents[2] / "sample_data" / "grpo_run"
CONFIG = {"rollout_is": "token", "rollout_is_threshold": 2.0}
Spoil = Callable[[int, dict[str, float | None]], object]


def log_of(**series: dict[int, float]) -> Log:
    return Log(("l",), ("step",), {key.replace("__", "/"): values for key, values in series.items()})


def written(path: Path, spoil: Spoil, *, shift: int = 0, prefix: str = "") -> Path:
    """verl's log of the sample run, with something wrong in it."""
    by_step = ra.trainer_metrics(ra.open_dump(GRPO), "verl", CONFIG, per_step=True)
    lines = []
    for step, metrics in by_step.items():
        values = {f"{prefix}{name}": value for name, value in metrics.items()}
        spoil(step, values)
        lines.append(json.dumps({"global_step": step + shift, "actor/lr": 1e-6, **values}))
    path.write_text("\n".join(lines))
    return path


def compared(log: Path, **how: object) -> ra.LogReport:
    return ra.compare_log(ra.open_dump(GRPO), "verl", CONFIG, log, **how)  # type: ignore[arg-type]


def test_a_faithful_log_agrees(tmp_path: Path) -> None:
    found = compared(written(tmp_path / "l.jsonl", lambda *_: None, prefix="actor/"))
    assert (found.status, found.departing, found.first_step, found.first_metric) == ("agrees", 0, None, None)
    assert found.compared == sum(len(one.steps) for one in found.metrics) == 6 * len(found.metrics)
    assert {one.matched for one in found.metrics} == {"prefix"}
    assert found.unmatched_keys == ["actor/lr"]
    assert found.unlogged_metrics == []


def test_the_first_departure_is_named(tmp_path: Path) -> None:
    def spoil(step: int, values: dict[str, float | None]) -> None:
        if step >= 3:
            values["rollout_corr/kl"] *= 1.002  # type: ignore[operator]
        if step == 4:
            values["rollout_corr/k3_kl"] *= 2  # type: ignore[operator]
        values["rollout_corr/rollout_ppl"] *= 1.0005  # type: ignore[operator]

    found = compared(written(tmp_path / "l.jsonl", spoil))
    assert (found.status, found.first_step, found.first_metric) == ("departs", 3, "rollout_corr/kl")
    first, second, *rest = found.metrics
    assert (first.metric, first.first_step, first.departing) == ("rollout_corr/kl", 3, 3)
    assert (second.metric, second.first_step, second.worst_step) == ("rollout_corr/k3_kl", 4, 4)
    assert second.worst_difference == pytest.approx(second.recomputed[4], rel=1e-12)
    assert not any(one.departing for one in rest)
    assert found.sentence.startswith("The log departs from the dump first at step 3 in rollout_corr/kl: logged ")
    strict = compared(tmp_path / "l.jsonl", tolerance=1e-4)
    assert (strict.first_step, strict.first_metric) == (0, "rollout_corr/rollout_ppl")


def test_an_offset_of_one_is_said_and_not_applied(tmp_path: Path) -> None:
    log = written(tmp_path / "l.jsonl", lambda *_: None, shift=1)
    found = compared(log)
    assert (found.status, found.offset, found.better_offset) == ("departs", 0, 1)
    assert "With --log-offset 1 nine values in ten or more agree" in found.sentence
    assert (found.steps_in_log_alone, found.steps_in_dump_alone) == (1, 1)
    shifted = compared(log, offset=1)
    assert (shifted.status, shifted.offset, shifted.better_offset, shifted.steps_in_log_alone) == ("agrees", 1, None, 0)


def test_an_offset_that_lays_all_steps_beside_each_other_is_said(tmp_path: Path) -> None:
    found = compared(written(tmp_path / "l.jsonl", lambda *_: None, shift=100))
    assert (found.status, found.better_offset) == ("nothing compared", 100)
    assert found.sentence == (
        "Nothing of the log was compared: no metric has a value at the same step in log and dump. "
        "With --log-offset 100 nine values in ten or more agree: the steps are counted differently."
    )
    assert compared(tmp_path / "l.jsonl", offset=100).status == "agrees"


def test_a_key_may_end_in_the_name_whatever_stands_before() -> None:
    log = log_of(my_run__grpo__corr__kl={1: 1.0}, eval__corr__ess={1: 1.0}, a__corr__k3={1: 1.0}, b__corr__k3={1: 1.0})
    assert matched_keys(["corr/kl", "corr/ess", "corr/k3"], log) == {"corr/kl": ("my_run/grpo/corr/kl", "prefix")}
    dotted = Log(("l",), ("step",), {"train.corr.kl": {1: 1.0}, "corr.ess": {1: 1.0}})
    assert matched_keys(["corr/kl", "corr/ess"], dotted) == {
        "corr/kl": ("train.corr.kl", "prefix"),
        "corr/ess": ("corr.ess", "prefix"),
    }


CONFIGS: dict[str, dict[str, object]] = {
    "verl": CONFIG,
    "verl-2026-01": CONFIG,
    "verl-2025-10": {"rollout_is": True, "rollout_is_threshold": 2.0},
    "miles": {"use_tis": True},
    "slime": {"use_tis": True},
    "nemo-rl": {"use_importance_sampling_correction": True},
    "openrlhf": {"is_correction_enable": True},
    "skyrl": {"tis_ratio_type": "token"},
    "areal": {"use_decoupled_loss": True, "m2_threshold": 0.04},
    "roll": {"is_weight": {"enabled": True}},
    "ms-swift": {"rollout_importance_sampling_mode": "token_truncate", "log_rollout_offpolicy_metrics": True},
}
SHAPES: dict[str, tuple[str, str, str]] = {
    "verl": (".jsonl", "", "training/global_step"),
    "verl-2026-01": (".csv", "", "training/global_step"),
    "verl-2025-11": (".jsonl", "", "training/global_step"),
    "verl-2025-10": (".csv", "actor/", "_step"),
    "miles": (".csv", "train/", "train/step"),
    "slime": (".jsonl", "train/", "train/step"),
    "trl": (".csv", "train/", "train/global_step"),
    "nemo-rl": (".jsonl", "train/", "_step"),
    "openrlhf": (".csv", "train/", "train/global_step"),
    "open-instruct": (".csv", "", "training_step"),
    "skyrl": (".csv", "", "trainer/global_step"),
    "areal": (".jsonl", "", "global_step"),
    "roll": (".csv", "", "_step"),
    "ms-swift": (".jsonl", "", "global_step/max_steps"),
    "prime-rl": (".jsonl", "", "step"),
}
"""trainer → the kind of file, what stands before its names, and the key of the step, as it or its logger writes them"""


def test_every_trainer_has_its_shape() -> None:
    assert SHAPES.keys() == TRAINERS.keys()


@pytest.mark.parametrize("name", SHAPES)
def test_the_log_of_every_trainer_is_laid_beside_its_metrics(name: str, tmp_path: Path) -> None:
    suffix, prefix, step_key = SHAPES[name]
    by_step = ra.trainer_metrics(ra.open_dump(GRPO), name, CONFIGS.get(name, {}), per_step=True)
    spoilt = list(by_step[3])[-1]
    rows = []
    for step, metrics in by_step.items():
        values = {f"{prefix}{key}": value for key, value in metrics.items() if value is not None}
        if step in (3, 5):
            values[f"{prefix}{spoilt}"] = 7.5
        of_all = f"{step}/20" if "max_steps" in step_key else step
        rows.append({"_runtime": 60.5 * step, step_key: of_all, "lr": 1e-6, **values})
    log = tmp_path / f"log{suffix}"
    if suffix == ".csv":
        columns = list(dict.fromkeys(key for row in rows for key in row))
        cells = [columns, *([str(row.get(key, "")) for key in columns] for row in rows)]
        log.write_text("".join(",".join(line) + "\n" for line in cells))
    else:
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = ra.compare_log(ra.open_dump(GRPO), name, CONFIGS.get(name, {}), log)
    assert (found.status, found.first_step, found.first_metric, found.departing) == ("departs", 3, spoilt, 2)
    assert found.compared == sum(value is not None for m in by_step.values() for value in m.values())
    assert (found.unlogged_metrics, found.step_keys) == ([], [step_key])


def test_a_tolerance_is_a_share() -> None:
    with pytest.raises(ra.UsageError, match="--log-tolerance 0: give a share"):
        compared(Path("none"), tolerance=0.0)


def test_tolerance_is_the_wider_of_two() -> None:
    tolerance = Tolerance(1e-3, 1e-6)
    assert tolerance.excess(1.001, 1.0) == pytest.approx(1.0)
    assert tolerance.excess(2e-6, 0.0) == pytest.approx(2.0)
    assert tolerance.excess(math.nan, 1.0) == tolerance.excess(math.inf, 1.0) == math.inf
    assert Tolerance().relative == LOG_TOLERANCE


def test_nan_departs_and_null_is_not_compared() -> None:
    recomputed = {1: Metrics({"a": 1.0, "b": Absent("no valid token")}), 2: Metrics({"a": 2.0, "b": 1.0})}
    log = log_of(a={1: math.nan, 2: 2.0}, b={1: 5.0, 2: 1.0})
    found = compare(recomputed, log, trainer="t")
    a, b = found.metrics
    assert (a.first_step, a.logged, a.worst_difference) == (1, [None, 2.0], None)
    assert (b.steps, b.departing, b.note) == ([2], 0, "Recomputed: no valid token.")
    assert "logged NaN or infinite, recomputed 1" in found.sentence


def test_keys_match_by_name_then_by_prefix_then_by_file() -> None:
    names = ["actor/kl", "critic/kl", "ppl", "policy/ess", "mask_mean@sum"]
    keys = ["train/actor/kl", "kl", "data/ppl", "train/ppl", "ess", "policy_mask_mean_sum"]
    series = {key: {1: 1.0} for key in keys}
    log = Log((), (), series, frozenset({"policy_mask_mean_sum", "data_ppl"}))
    assert matched_keys(names, log) == {
        "actor/kl": ("train/actor/kl", "prefix"),
        "ppl": ("data/ppl", "prefix"),
        "policy/ess": ("ess", "prefix"),
        "mask_mean@sum": ("policy_mask_mean_sum", "file name"),
    }
    alone = matched_keys(["policy/mask_mean@sum"], Log((), (), {"policy_mask_mean_sum": {}}, frozenset(series)))
    assert alone == {"policy/mask_mean@sum": ("policy_mask_mean_sum", "file name")}
    assert matched_keys(["ppl"], log_of(ppl={}, train__ppl={})) == {"ppl": ("ppl", "exact")}


def test_a_files_name_may_have_something_before_the_metric() -> None:
    """The longest metric that it ends with: k3_kl and not kl; a name that only holds one is none."""
    names = ["corr/kl", "corr/k3_kl", "corr/ess"]
    keys = ["tb_run1_corr_k3_kl", "corr_kl", "a_corr_kl", "corr_ess_smoothed", "eval_corr_ess"]
    log = Log((), (), {key: {1: 1.0} for key in keys}, frozenset(keys))
    assert matched_keys(names, log) == {
        "corr/kl": ("corr_kl", "file name"),
        "corr/k3_kl": ("tb_run1_corr_k3_kl", "file name"),
    }


def test_what_the_log_has_is_said_where_nothing_of_it_fits() -> None:
    recomputed = {1: Metrics({"a": 1.0})}
    found = compare(recomputed, log_of(e={1: 1.0}, b={1: 1.0}, c={1: 1.0}, d={1: 1.0}), trainer="t")
    assert found.sentence.endswith("under this configuration; it has: b, c, d and 1 more.")
    named = Log((), (), {"foo": {1: 1.0}}, frozenset({"foo"}))
    assert compare(recomputed, named, trainer="t").sentence.endswith(
        "; the file's name has to end with that of a metric: foo."
    )


def test_nothing_in_common_is_said() -> None:
    recomputed = {1: Metrics({"a": 1.0})}
    assert compare(recomputed, log_of(b={1: 1.0}), trainer="t").status == "nothing compared"
    found = compare(recomputed, log_of(a={7: 1.0}), trainer="t")
    assert (found.status, found.first_metric) == ("nothing compared", None)
    assert "no metric has a value at the same step" in found.sentence


def test_what_depends_on_the_cut_of_the_batch_says_so() -> None:
    known = {quirk.name for name in TRAINERS for quirk in get_trainer(name).quirks}
    assert set(BY_BATCH) <= known
    recomputed = {1: Metrics({"sampling_importance_ratio": 1.0, "gen_kl_error": 1.0})}
    log = log_of(sampling_importance_ratio={1: 4.0}, gen_kl_error={1: 1.0})
    found = compare(recomputed, log, trainer="nemo-rl", quirks=get_trainer("nemo-rl").quirks)
    assert found.first_metric == "sampling_importance_ratio"
    assert "times the micro-batch" in str(found.metrics[0].note)
    assert found.metrics[1].note is None


def test_a_report_holds_it_and_reads_back(tmp_path: Path) -> None:
    log = compared(written(tmp_path / "l.jsonl", lambda *_: None))
    report = ra.analyze(ra.open_dump(GRPO), presets=["decoupled_token_is"], sweep=False).with_log(log)
    again = Report.model_validate_json(report.to_json())
    assert again.log == log
    assert report.pictures is not None
