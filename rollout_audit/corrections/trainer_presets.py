"""What trainers other than verl do by default, and what their documentation and recipes recommend.

Each correction equals what the trainer's module makes of the configuration beside it: a test holds them equal.
Sources: reference/trainers.md, section of each trainer; reference/cases.md, published figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rollout_audit.corrections.model import (
    FLOAT32_END,
    Aggregation,
    Bound,
    Correction,
    Denominator,
    Level,
    Mode,
    Rows,
    Rule,
    Sign,
    Statistic,
    Weight,
)
from rollout_audit.corrections.preset import Preset

__all__ = ["OTHERS"]

SLIME, SLIME_DOCS = "slime 2026-08", "slime 2026-08, mis.yaml"
MILES, MILES_DOCS = "miles 2026-08", "miles 2026-08, mis.yaml"
MILES_GLM = "miles 2026-08, recipe of GLM-5.2"
TRL, TRL_DOCS = "trl 2026-07", "trl 2026-07, documented"
NEMO, NEMO_DOCS = "nemo-rl 2026-08", "nemo-rl 2026-08, documented"
OPENRLHF, OPENRLHF_DOCS = "openrlhf 2026-08", "openrlhf 2026-08, documented"
OPEN_INSTRUCT = "open-instruct 2026-08"

NEMO_SECTION, OPENRLHF_SECTION = ("loss_fn",), ("algo", "advantage")
MIS_FUNCTION = "examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
MILES_MIS_FUNCTION = "examples.infra_features.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
ICEPOP_FUNCTION = "slime.backends.megatron_utils.loss.icepop_function"
MIS_YAML: Mapping[str, object] = {
    "use_tis": True,
    "tis_level": "token",
    "tis_mode": "truncate",
    "tis_lower_bound": 0.5,
    "tis_upper_bound": 2.0,
    "tis_batch_normalize": True,
    "use_rs": True,
    "rs_level": "token",
    "rs_veto_threshold": 1e-4,
}
TOKEN_CAP = "upper 1.5 to 5"
ICEPOP_BAND = "0.5 to 5"

NOTHING = Correction(denominator=Denominator.ORIGINAL)
RAW = Weight(Level.TOKEN, clamp=None)
MIS = Correction(
    Weight(Level.TOKEN, Bound.TRUNCATE, upper=2.0, normalise=True, mean_over=Rows.ALL),
    (Rule(Statistic.RATIO, Aggregation.TOKEN, 0.5, 2.0, clamp=None),),
    veto=1e-4,
    denominator=Denominator.ORIGINAL,
)

TRL_DEFAULT = Correction(Weight(Level.SEQUENCE, Bound.MASK, None, 3.0, clamp=None), denominator=Denominator.ORIGINAL)
DRIFTED = Rule(Statistic.K1, Aggregation.SEQ_MEAN, None, 0.5, clamp=None, sign=Sign.NEGATIVE_MEAN)
OPSM = Correction(
    rules=(Rule(Statistic.K1, Aggregation.SEQ_MEAN, None, 1e-4, clamp=None, sign=Sign.NEGATIVE),),
    denominator=Denominator.ORIGINAL,
    mode=Mode.BYPASS,
)
OPSM_KEYS: Mapping[str, object] = {"use_rollout_logprobs": True, "use_opsm": True, "opsm_delta": 1e-4}


def _token(bound: Bound, lower: float | None, upper: float, clamp: float | None = None) -> Correction:
    weight = Weight(Level.TOKEN, bound, lower, upper, clamp=clamp)
    return Correction(weight, denominator=Denominator.ORIGINAL)


def _geometric(lower: float, upper: float) -> Correction:
    """Raw token weights of the sequences whose geometric ratio lies inside."""
    rule = Rule(Statistic.RATIO, Aggregation.SEQ_MEAN, lower, upper, clamp=None)
    return Correction(RAW, (rule,), denominator=Denominator.ORIGINAL)


def _trl(mode: str) -> dict[str, object]:
    return {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 3.0}


def _in_float32(correction: Correction) -> Correction:
    """What overflows float32 is 0 in NeMo-RL."""
    return replace(correction, weight=replace(correction.weight, overflow=FLOAT32_END))


def _nemo(kind: str, upper: float, lower: float | None = None) -> dict[str, object]:
    ratio = "truncated_importance_sampling_ratio"
    keys: dict[str, object] = {"use_importance_sampling_correction": True, "truncated_importance_sampling_type": kind}
    return {**keys, ratio: upper} | ({} if lower is None else {f"{ratio}_min": lower})


def _openrlhf(kind: str, lower: float, upper: float) -> dict[str, object]:
    return {
        "is_correction_enable": True,
        "is_correction_type": kind,
        "is_correction_threshold": [lower, upper],
    }


OTHERS: tuple[Preset, ...] = (
    Preset("slime_default", NOTHING, SLIME, "No correction: what slime does without --use-tis.", None,
           {"use_tis": False}),
    Preset("slime_tis", _token(Bound.CLIP, None, 2.0), SLIME,
           "Token weights capped at 2, unclamped before: the built-in --use-tis.", TOKEN_CAP,
           {"use_tis": True, "tis_clip": 2.0, "tis_clip_low": 0.0}),
    Preset("slime_icepop", _token(Bound.MASK, None, 2.0), SLIME,
           "Zeroes tokens above the cap only: icepop_function with slime's own bounds has no floor.", ICEPOP_BAND,
           {"use_tis": True, "custom_tis_function_path": ICEPOP_FUNCTION, "tis_clip": 2.0, "tis_clip_low": 0.0}),
    Preset("slime_mis", MIS, SLIME_DOCS,
           "Capped token weights of mean 1, tokens outside [0.5, 2] rejected, catastrophic responses vetoed.",
           TOKEN_CAP, {"custom_tis_function_path": MIS_FUNCTION, **MIS_YAML}),
    Preset("slime_opsm", OPSM, SLIME,
           "Drops what has a negative advantage in responses that the current policy finds a little less likely.",
           None, OPSM_KEYS),
    Preset("miles_default", NOTHING, MILES, "No correction: what miles does without --use-tis.", None,
           {"use_tis": False}),
    Preset("miles_tis", _token(Bound.CLIP, None, 2.0), MILES,
           "Token weights capped at 2, unclamped before: the built-in --use-tis.", TOKEN_CAP,
           {"use_tis": True, "tis_clip": 2.0, "tis_clip_low": 0.0}),
    Preset("miles_glm", _token(Bound.CLIP, 0.5, 2.0), MILES_GLM,
           "Token weights clipped into [0.5, 2]: the recipe for GLM-5.2.", "0.5 to 2",
           {"use_tis": True, "tis_clip": 2.0, "tis_clip_low": 0.5}),
    Preset("miles_opsm", OPSM, MILES,
           "Drops what has a negative advantage in responses that the current policy finds a little less likely.",
           None, OPSM_KEYS),
    Preset("miles_mis_default", Correction(Weight(Level.TOKEN, Bound.TRUNCATE, upper=2.0),
                                           denominator=Denominator.ORIGINAL), MILES,
           "Token weights capped at 2: mis.py where its file gives use_tis alone.", TOKEN_CAP,
           {"custom_tis_function_path": MILES_MIS_FUNCTION, "use_tis": True, "tis_level": "token",
            "tis_batch_normalize": False, "use_rs": False}),
    Preset("miles_mis", MIS, MILES_DOCS,
           "Capped token weights of mean 1, tokens outside [0.5, 2] rejected, catastrophic responses vetoed.",
           TOKEN_CAP, {"custom_tis_function_path": MILES_MIS_FUNCTION, **MIS_YAML}),
    Preset("trl_default", TRL_DEFAULT, TRL,
           "Product weights of whole responses, zeroed above 3; no floor, so long responses fade.", None,
           _trl("sequence_mask")),
    Preset("trl_token_truncate", _token(Bound.CLIP, None, 3.0), TRL,
           "Token weights capped at 3: the mildest of TRL's four modes.", TOKEN_CAP, _trl("token_truncate")),
    Preset("trl_token_mask", _token(Bound.MASK, None, 3.0), TRL,
           "Zeroes tokens above 3 and weighs the rest; no floor unless clip_min gives one.", None,
           _trl("token_mask")),
    Preset("trl_sequence_truncate", Correction(Weight(Level.SEQUENCE, Bound.CLIP, None, 3.0, clamp=None),
                                               denominator=Denominator.ORIGINAL), TRL,
           "Product weights of whole responses, capped at 3; no floor, so long responses fade.", None,
           _trl("sequence_truncate")),
    Preset("trl_off_policy_mask", replace(TRL_DEFAULT, rules=(DRIFTED,)), TRL_DOCS,
           "TRL's default, and responses of negative advantage that the trainer finds much less likely are zeroed.",
           "threshold 0.5", {**_trl("sequence_mask"), "off_policy_mask_threshold": 0.5}),
    Preset("nemo_rl_default", NOTHING, NEMO, "No correction: what NeMo-RL does unless asked.", None,
           {"use_importance_sampling_correction": False}, NEMO_SECTION),
    Preset("nemo_rl_tis", _in_float32(_token(Bound.CLIP, None, 2.0)), NEMO_DOCS,
           "Token weights capped at 2, of the published MoE run.", TOKEN_CAP, _nemo("tis", 2.0), NEMO_SECTION),
    Preset("nemo_rl_icepop", _in_float32(_token(Bound.MASK, 0.5, 5.0)), NEMO_DOCS,
           "Zeroes tokens outside [0.5, 5], the recipe for ProRL v2.", ICEPOP_BAND, _nemo("icepop", 5.0, 0.5),
           NEMO_SECTION),
    Preset("nemo_rl_seq_mask_tis", _in_float32(_geometric(0.999, 1.002)), NEMO_DOCS,
           "Raw token weights of responses whose mean log-ratio is tiny; blind to errors that cancel.",
           "0.999 to 1.002", _nemo("seq-mask-tis", 1.002, 0.999), NEMO_SECTION),
    Preset("nemo_rl_seq_error_mask",
           Correction(rules=(Rule(Statistic.MULT_ERROR, Aggregation.SEQ_MEAN, upper=2.0, clamp=None),)), NEMO_DOCS,
           "Drops responses by their mean exp |d|, in which errors cannot cancel; no weights.", "upper 1.5 to 2",
           {"grpo.seq_logprob_error_threshold": 2.0}),
    Preset("openrlhf_default", NOTHING, OPENRLHF, "No correction: what OpenRLHF does unless asked.", None,
           {"is_correction_enable": False}, OPENRLHF_SECTION),
    Preset("openrlhf_tis", _token(Bound.CLIP, 0.5, 5.0), OPENRLHF_DOCS,
           "Token weights clipped on both sides; the floor keeps unlikely tokens in.", "0.5 to 5",
           _openrlhf("tis", 0.5, 5.0), OPENRLHF_SECTION),
    Preset("openrlhf_icepop", _token(Bound.MASK, 0.5, 5.0), OPENRLHF_DOCS,
           "Zeroes tokens outside [0.5, 5], the recipe for ProRL v2.", ICEPOP_BAND,
           _openrlhf("icepop", 0.5, 5.0), OPENRLHF_SECTION),
    Preset("openrlhf_seq_mask_tis", _geometric(0.5, 5.0), OPENRLHF_DOCS,
           "Raw token weights of responses whose geometric ratio lies in [0.5, 5], which is nearly all of them.",
           "0.999 to 1.002", _openrlhf("seq-mask-tis", 0.5, 5.0), OPENRLHF_SECTION),
    Preset("open_instruct_default", _token(Bound.CLIP, None, 2.0, clamp=10.0), OPEN_INSTRUCT,
           "Token weights capped at 2, on by default.", TOKEN_CAP,
           {"use_rho_correction": True, "rho_clamp_upper_bound": 2.0}),
)  # fmt: skip
