"""The run's own correction and what its trainer would have logged, held to a golden file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import rollout_audit as ra
from rollout_audit.audit.dialect import trainer_evidence
from rollout_audit.audit.reading import Reading
from rollout_audit.golden.schemas import SCHEMAS
from rollout_audit.golden.tolerances import default_tolerance
from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]
CONFIG = '{"rollout_is": "token", "rollout_is_threshold": 1.05}'


@pytest.fixture
def recorded(run: Run, dump: Path) -> Path:
    made = run("check", dump, "--golden", "verl.json", "--trainer", "verl", "--config", CONFIG, "--update")
    assert made.code == 0
    assert made.err.startswith("verl 2026-08 reads: token weight capped at 1.05")
    return Path("verl.json")


def log_ratios(file: Path) -> np.ndarray:
    """d of every valid token."""
    rows = pq.read_table(file).to_pylist()
    return np.concatenate(
        [
            (np.float64(row["old_log_probs"]) - np.float64(row["rollout_log_probs"]))[np.bool_(row["response_mask"])]
            for row in rows
        ]
    )


def expecting(text: str, key: str, value: str) -> str:
    changed, count = re.subn(rf'"{re.escape(key)}": [^,]+,', f'"{key}": {value},', text)
    assert count == 1
    return changed


def test_the_file_holds_the_runs_figures_and_settings(recorded: Path, dump: Path) -> None:
    golden = json.loads(recorded.read_text())
    assert (golden["schema"]["version"], golden["settings"]["trainer"]) == (1, "verl")
    assert golden["settings"]["presets"] == ["verl-config"]
    own = {
        "rollout_is": "token",
        "rollout_is_threshold": 1.05,
        "rollout_is_batch_normalize": False,
        "rollout_rs": None,
        "rollout_rs_threshold": None,
        "bypass_mode": False,
        "loss_type": "ppo_clip",
    }
    assert own.items() <= golden["settings"]["config"].items()
    steps = {str(step): log_ratios(dump / f"step_{step}.parquet") for step in range(2)}
    for scope, d in {**steps, "pooled": np.concatenate(list(steps.values()))}.items():
        weights = np.minimum(np.exp(d), 1.05)
        logged, own = golden["figures"][f"verl:rollout_corr/kl@{scope}"], golden["figures"]
        assert logged == pytest.approx(-d.mean(), rel=1e-6, abs=1e-8)
        assert own[f"verl:rollout_corr/rollout_is_mean@{scope}"] == pytest.approx(weights.mean(), rel=1e-6)
        assert own[f"verl-config:kept.ess@{scope}"] == pytest.approx(
            weights.sum() ** 2 / (len(d) * (weights**2).sum()), rel=1e-12
        )
    assert golden["tolerances"]["verl:rollout_corr/kl"]["direction"] == "away from 0"


def test_a_golden_file_names_its_run_for_later_checks(recorded: Path, run: Run, dump: Path) -> None:
    """Without options the trainer and the settings of the file are used, and survive an update."""
    again = run("check", dump, "--golden", recorded)
    assert (again.code, again.err) == (0, "")
    assert re.fullmatch(r"OK  \d+ same, 7 of them null as approved\.\n", again.out)
    before = recorded.read_text()
    assert run("check", dump, "--golden", recorded, "--update").code == 0
    assert recorded.read_text() == before
    spelt_out = '{"rollout_is": "token", "rollout_is_threshold": 1.05, "loss_type": "ppo_clip"}'
    same = run("check", dump, "--golden", recorded, "--trainer", "verl", "--config", spelt_out)
    assert (same.code, same.out) == (0, again.out)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry each time that the dump is read."""
    found: list[object] = []
    before = Reading.map

    def counted(self: Reading, *given: object) -> object:
        found.append(self.fields)
        return before(self, *given)

    monkeypatch.setattr(Reading, "map", counted)
    return found


@pytest.mark.parametrize(
    ("trainer", "config", "times"),
    [
        ("verl", {"rollout_is": "token", "rollout_is_threshold": 1.05}, 1),
        ("nemo-rl", {}, 1),
        ("areal", {"m2_threshold": 0.0005}, 4),  # by batch: each of the two ways looks at the order first
    ],
)
def test_one_gathering_answers_for_the_dump_and_its_steps(
    trainer: str, config: dict[str, object], times: int, readings: list[object], dump: Path
) -> None:
    evidence = trainer_evidence(ra.open_dump(dump), trainer, config, by_step=True)
    whole, steps = evidence.pooled, evidence.by_step
    assert len(readings) == times
    assert steps is not None
    assert whole == ra.trainer_metrics(ra.open_dump(dump), trainer, config)
    assert whole.reasons == ra.trainer_metrics(ra.open_dump(dump), trainer, config).reasons
    assert steps == ra.trainer_metrics(ra.open_dump(dump), trainer, config, per_step=True)
    assert list(steps) == [0, 1]


def test_a_check_reads_the_dump_for_the_audit_the_trainer_and_the_masks(
    recorded: Path, readings: list[object], dump: Path
) -> None:
    readings.clear()
    assert ra.check(ra.open_dump(dump), recorded).exit_code == 0
    assert len(readings) == 3


def test_what_was_logged_of_steps_is_kept_where_asked_for(dump: Path) -> None:
    report = ra.analyze(ra.open_dump(dump), presets=[], trainer="verl", sweep=False, logged_steps=True)
    assert report.logged_steps == ra.trainer_metrics(ra.open_dump(dump), "verl", {}, per_step=True)
    with pytest.raises(ValueError, match="logged_steps=True"):
        ra.analyze(ra.open_dump(dump), presets=[], trainer="verl", sweep=False).logged_steps  # noqa: B018


def test_another_configuration_is_said_first(recorded: Path, run: Run, dump: Path) -> None:
    other = run(
        "check", dump, "--golden", recorded, "--trainer", "verl", "--config", CONFIG.replace("1.05", "1.02"), "-q"
    )
    assert (other.code, other.err) == (1, "")
    first, second = other.out.splitlines()[:2]
    assert first == "WARN  verl's rollout_is_threshold is 1.02, in the golden file 1.05"
    assert second.startswith("CRITICAL  ")
    assert any(
        line.startswith("worse") and "verl:rollout_corr/rollout_is_ratio_fraction_high@1" in line
        for line in other.out.splitlines()
    )
    slime = run("check", dump, "--golden", recorded, "--trainer", "slime")
    assert slime.code == 2
    assert "WARN  trainer is 'slime', in the golden file 'verl'" in slime.out.splitlines()[:2]


def test_a_figure_of_the_trainer_that_moved_or_is_gone(recorded: Path, run: Run, dump: Path) -> None:
    text = recorded.read_text()
    recorded.write_text(expecting(text, "verl:rollout_corr/k3_kl@1", "1e-9"))
    assert run("check", dump, "--golden", recorded).code == 1
    recorded.write_text(text.replace('"verl:rollout_corr/k3_kl@1"', '"verl:rollout_corr/k4_kl@1"'))
    gone = run("check", dump, "--golden", recorded)
    assert gone.code == 2
    assert gone.out.startswith("UNMEASURED  2 unmeasured, ")


def test_presets_and_gates_stand_beside_the_run(recorded: Path, run: Run, dump: Path) -> None:
    more = run(
        "check", dump, "--golden", recorded, "--presets", "seq_rs", "--fail-on", "verl-config:kept.weight_max > 2"
    )
    assert more.code == 0
    assert "WARN  presets is ['verl-config', 'seq_rs'], in the golden file ['verl-config']" in more.out
    assert "gate passed: verl-config:kept.weight_max > 2" in more.out


def test_tolerances_of_a_trainers_metric(recorded: Path, run: Run, dump: Path) -> None:
    recorded.write_text(expecting(recorded.read_text(), "verl:rollout_corr/kl@1", "1e-9"))
    table = '[check.metrics."verl:rollout_corr/kl"]\natol = 20\n'
    Path("rollout-audit.toml").write_text(table)
    assert run("check", dump, "--golden", recorded).code == 0
    Path("rollout-audit.toml").write_text(table.replace("/kl", "/kll"))
    misspelt = run("check", dump, "--golden", recorded)
    assert misspelt.code == 1
    assert misspelt.out.startswith(
        "WARN  check.metrics: 'verl:rollout_corr/kll' is not logged with these settings; did you mean "
        "'verl:rollout_corr/kl'?"
    )


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("verl:rollout_corr/rollout_is_eff_sample_size", "lower"),
        ("verl:rollout_corr/k3_kl", "higher"),
        ("nemo-rl:token_mult_prob_error", "higher"),
        ("roll:actor/train_infer_token_ratio_mask_mean@sum", "lower"),  # 1 − masked_fraction
        ("verl:rollout_corr/training_log_ppl", "neither"),
    ],
)
def test_a_trainers_metric_is_worse_where_its_native_figure_is(metric: str, direction: str) -> None:
    assert default_tolerance(metric).direction == direction


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--config", CONFIG], "error: --config needs --trainer: whose keys are these?"),
        (["--trainer", "verll"], "error: no trainer 'verll'; did you mean 'verl'?"),
        (["--trainer", "verl", "--config", '{"rollout_is": "tokens"}'], "rollout_is"),
    ],
)
def test_bad_options(options: list[str], message: str, run: Run, dump: Path) -> None:
    result = run("check", dump, "--golden", "g.json", "--update", *options)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err
    assert not Path("g.json").exists()


def test_settings_that_are_not_read_any_more(recorded: Path, run: Run, dump: Path) -> None:
    recorded.write_text(recorded.read_text().replace('"rollout_is": "token"', '"rollout_is": "tokens"'))
    result = run("check", dump, "--golden", recorded)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "verl.json: its settings of verl are not read any more (" in result.err
    assert "; give --trainer and --config" in result.err


def test_from_python_and_in_bypass(dump: Path) -> None:
    """A run whose correction compares another pair than the report's own."""
    config = {"bypass_mode": True, "loss_type": "ppo_clip", "rollout_rs": "token_k1", "rollout_rs_threshold": 2.0}
    ra.check(ra.open_dump(dump), "g.json", update=True, trainer="verl", config=config)
    golden = json.loads(Path("g.json").read_text())
    whole = ra.trainer_metrics(ra.open_dump(dump), "verl", config)
    steps = ra.trainer_metrics(ra.open_dump(dump), "verl", config, per_step=True)
    for scope, metrics in {"pooled": whole, **{str(step): its for step, its in steps.items()}}.items():
        found = {
            k.removeprefix("verl:").removesuffix(f"@{scope}"): v
            for k, v in golden["figures"].items()
            if k.startswith("verl:") and k.endswith(f"@{scope}")
        }
        held = {name: value for name, value in metrics.items() if not name.endswith("_ppl")}
        assert found == {name: value for name, value in held.items() if value is not None}
    assert ra.check(ra.open_dump(dump), "g.json").exit_code == 0


def test_files_without_a_trainer_stay_as_they_are(golden: Path) -> None:
    assert not {"trainer", "config"} & json.loads(golden.read_text())["settings"].keys()
    assert SCHEMAS["golden"]()["$defs"]["GoldenSettings"]["required"] == [
        *("mode", "training_column", "rollout_column", "presets", "on_fault")
    ]
