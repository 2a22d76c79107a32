"""Command lines of slime and miles, and the scripts that they stand in."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_audit.audit.selection import config_warnings
from rollout_audit.corrections.model import Bound, Correction, Denominator, Level, Mode, Weight
from rollout_audit.corrections.presets import PRESETS
from rollout_audit.errors import ConfigError
from rollout_audit.reports.pasting import pasted
from rollout_audit.trainers.expression import Expression, Unexpressible
from rollout_audit.trainers.registry import get_trainer
from tests.trainers.reading import read_config
from tests.trainers.test_trainer_numbers import LOG2, LOG4, metrics_of, tokens_of

HELPER = "examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
MIS_YAML = "use_tis: true\ntis_level: sequence\ntis_mode: clip\ntis_lower_bound: 0.5\ntis_upper_bound: 3.0\n"
BOTH = pytest.mark.parametrize("name", ["slime", "miles"])


def clipped(lower: float | None, upper: float, bound: Bound = Bound.CLIP) -> Correction:
    return Correction(Weight(Level.TOKEN, bound, lower, upper, clamp=None), denominator=Denominator.ORIGINAL)


def read(name: str, source: str | Path) -> Correction:
    trainer = get_trainer(name)
    return trainer.correction(trainer.configure(source))


@BOTH
@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("--use-tis", clipped(None, 2.0)),
        ("--use-tis --tis-clip 3.0 --tis-clip-low 0.5", clipped(0.5, 3.0)),
        (
            "--use-tis --custom-tis-function-path a.b.icepop_function --tis-clip 5 --tis-clip-low 0.2",
            clipped(0.2, 5.0, Bound.MASK),
        ),
        ("--tis-clip 3.0", Correction(denominator=Denominator.ORIGINAL)),
        ("--use-rollout-logprobs", Correction(denominator=Denominator.ORIGINAL, mode=Mode.BYPASS)),
    ],
)
def test_flags(name: str, flags: str, wanted: Correction) -> None:
    assert read(name, flags) == wanted


@BOTH
def test_flags_of_the_file_of_mis_are_not_the_trainers(name: str) -> None:
    assert read(name, "--use-tis --tis-mode mask") == clipped(None, 2.0)
    assert config_warnings(name, "--use-tis --tis-mode mask") == (
        "tis_mode: of mis.py, not looked at by vanilla_tis_function",
    )


@BOTH
def test_a_flag_of_the_readme_alone_is_said(name: str) -> None:
    (line,) = config_warnings(name, "--use-rollout-correction --tis-clip 2.0")
    assert line.startswith("use_rollout_correction = True: of a README, no flag of the trainer; use_tis")


@BOTH
def test_the_file_that_the_command_line_names_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "mis.yaml").write_text(MIS_YAML)
    script = tmp_path / "run.sh"
    script.write_text(
        f"ARGS=(\n  --custom-config-path ${{SCRIPT_DIR}}/mis.yaml\n  --custom-tis-function-path {HELPER}\n)\n"
        "python train.py --lr 1e-6 ${ARGS[@]}\n"
    )
    weight = Weight(Level.SEQUENCE, Bound.CLIP, 0.5, 3.0)
    assert read(name, script) == Correction(weight, denominator=Denominator.ORIGINAL)
    assert config_warnings(name, script) == ()


@BOTH
def test_a_file_that_is_not_here_is_said(name: str) -> None:
    flags = f"--use-tis --custom-config-path nowhere.yaml --custom-tis-function-path {HELPER}"
    assert config_warnings(name, flags) == (
        "custom_config_path = 'nowhere.yaml': no such file here, its settings are taken for the defaults",
    )


def test_the_file_of_mis_alone_is_read_as_such(tmp_path: Path) -> None:
    path = tmp_path / "mis.yaml"
    path.write_text(MIS_YAML)
    assert read("slime", path) == read("miles", path)
    assert read("slime", path).weight == Weight(Level.SEQUENCE, Bound.CLIP, 0.5, 3.0)
    for name in ("miles", "slime"):
        (warning,) = config_warnings(name, path)
        assert "of mis.py, which runs where custom_tis_function_path names it; read as if it did" in warning
    path.write_text(f"custom_tis_function_path: {HELPER}\n{MIS_YAML}")
    assert config_warnings("miles", path) == config_warnings("slime", path) == ()


SHIPPED = {
    "use_tis": True, "tis_level": "token", "tis_mode": "truncate", "tis_lower_bound": 0.5, "tis_upper_bound": 2.0,
    "tis_batch_normalize": True, "use_rs": True, "rs_level": "token", "rs_veto_threshold": 1e-4,
}  # fmt: skip
"""mis.yaml as it comes with both"""


@BOTH
@pytest.mark.parametrize("preset", ["decoupled_seq_is", "token_is_rs", "slime_mis", "nemo_rl_seq_mask_tis"])
def test_what_is_pasted_over_the_shipped_file_means_the_same(name: str, preset: str) -> None:
    """Each key that the file sets otherwise than mis.py does is said, and which function reads it."""
    trainer = get_trainer(name)
    found = trainer.express(PRESETS[preset].correction)
    nearest = found.nearest if isinstance(found, Unexpressible) else found
    assert str(nearest.settings["custom_tis_function_path"]).startswith("examples.")
    over = {**SHIPPED, **nearest.settings}
    assert trainer.correction(trainer.configure(over)) == nearest.correction


@BOTH
def test_its_own_icepop_comes_before_that_of_the_helper(name: str) -> None:
    found = get_trainer(name).express(PRESETS["decoupled_token_icepop"].correction)
    assert isinstance(found, Expression)
    path = found.settings["custom_tis_function_path"]
    assert str(path).startswith(f"{name}.backends.")
    assert str(path).endswith(".icepop_function")
    assert (found.settings["tis_clip_low"], found.settings["tis_clip"]) == (0.5, 5.0)


@BOTH
@pytest.mark.parametrize("key", ["tis_clp", "tis_temperature", "rs_upper"])
def test_a_misspelt_setting_is_refused(name: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} = 2.0: unknown setting"):
        get_trainer(name).configure({"use_tis": True, key: 2.0})


def test_what_miles_logs_beside_what_slime_logs() -> None:
    """k3 of log 4 is 3 − log 4; of 30 it is clamped to 10; means of rows [3 − log 4, 0] and [10], an empty one is 0."""
    got = metrics_of("miles", {"use_tis": True, "tis_clip": 2.0}, tokens_of([[LOG4, 0.0], [30.0], []]))
    assert got["train_rollout_kl"] == pytest.approx(((3 - LOG4) / 2 + 10.0) / 3)
    got = metrics_of("miles", {"use_tis": True, "tis_clip": 2.0}, tokens_of([[LOG4, 0.0], [-LOG2], []]))
    assert got["tis"] == pytest.approx((2.5 + 0.5) / 3)
    assert got["tis_clipfrac"] == pytest.approx(0.5 / 3)


def test_miles_names_its_own_functions(tmp_path: Path) -> None:
    trainer = get_trainer("miles")
    found = trainer.express(PRESETS["openrlhf_icepop"].correction)
    assert isinstance(found, Expression)
    text = pasted(trainer.nested(found.settings), trainer.syntax_of(found.settings))
    assert "--custom-tis-function-path miles.backends.training_utils.loss_hub.corrections.icepop_function" in text
    path = tmp_path / "run.sh"
    path.write_text(text)
    assert read("miles", path) == clipped(0.5, 5.0, Bound.MASK)


SCRIPT = """#!/bin/bash
CAP=${CAP:-3.0}
LOW=0.5; echo "starting"
FLOOR="0.25"
export SAME=$CAP
if [ "$KIND" = a ]; then
  BRANCH=1.5
else
  BRANCH=2.5
fi
ARGS="--use-tis --tis-clip $CAP"
CORRECTION="
    algorithm.rollout_correction.rollout_is=token \\
    algorithm.rollout_correction.rollout_is_threshold=${SAME} \\
    +algorithm.rollout_correction.rollout_rs_threshold=${BRANCH}"
python train.py $ARGS --tis-clip-low ${FLOOR} --name 'a b' --other ${UNSET:-7} --flag $REST
"""


def test_variables_of_a_script(tmp_path: Path) -> None:
    """Set once, they stand for their value; set in two branches or not at all, they stay what they are."""
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    given = read_config(path)
    assert given["use_tis"] is True
    assert (given["tis_clip"], given["tis_clip_low"], given["other"], given["flag"]) == (3.0, 0.25, 7, "$REST")
    assert given["algorithm"] == {
        "rollout_correction": {
            "rollout_is": "token",
            "rollout_is_threshold": 3.0,
            "rollout_rs_threshold": "${BRANCH}",
        }
    }


def test_a_variable_that_depends_on_a_branch_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("A=1\nA=2\npython x.py algorithm.rollout_correction.rollout_is=token \\\n"
                    "  algorithm.rollout_correction.rollout_is_threshold=$A\n")  # fmt: skip
    with pytest.raises(ConfigError, match=r"rollout_is_threshold = '\$A'"):
        get_trainer("verl").configure(path)


def test_flags_in_the_strings_of_a_python_launcher(tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text(
        'def main(args):\n    # it\'s a launcher\n    tis = "--use-tis --tis-clip 3.0 "\n'
        '    more = f"--tis-clip-low 0.5 --lr {args.lr} "\n    execute(tis + more)\n'
    )
    assert read("miles", path) == clipped(0.5, 3.0)


def test_words_of_other_settings_need_be_no_yaml(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("ray job submit --env='{\"a\": {\"b\": 1}}' -- python x.py --use-tis --note '[open' --tis-clip 3\n")
    assert read("slime", path) == clipped(None, 3.0)
