"""Gates on a report: `[PRESET, PAIR or TRAINER:]METRIC[@STEP|pooled|any-step|median] OP VALUE` fails where it holds."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal

from rollout_audit.errors import UsageError, suggest

if TYPE_CHECKING:
    from rollout_audit.audit.report import CorrectionReport, Report, StageReport, StepReport

__all__ = [
    "FAMILIES",
    "OPERATORS",
    "PER_STEP",
    "SCOPES",
    "Gate",
    "GateResult",
    "check_names",
    "evaluate",
    "exit_code",
    "gates_in",
    "is_step",
    "judge_gates",
    "parse_gate",
]

Number = float | int | None
OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_GRAMMAR = re.compile(
    r"\s*(?:(?P<preset>[\w.-]+):)?(?P<metric>[\w./-]+?(?:@sum)?)(?:@(?P<scope>[\w-]+))?"
    r"\s*(?P<op><=|>=|==|!=|<|>)\s*(?P<value>\S+)\s*"
)
"""A trainer's own name may hold slashes and end in @sum"""
SCOPES = ("pooled", "any-step", "median")
PER_STEP = "step"
"""A gate of a settings file that is held against each step by itself"""
FAMILIES: Mapping[str, Mapping[str, str]] = {
    "dense": {
        "log_prob_diff_abs_mean > 0.1": "slime, limit of its CI; 0.01 to 0.02 is usual between bf16 engines",
        "kl_k3 > 0.01": "prime-rl, stricter limit of its CI; health warns",
        "mult_prob_error > 1.1": "NeMo-RL, largest median of its test suites",
        "prob_diff_abs_mean > 0.01": "verl FAQ: points to the precision of an engine",
    },
    "moe": {
        "log_prob_diff_abs_mean > 0.4": "miles, 0.37 with natural routing and 0.14 with replayed experts",
        "kl_k3 > 0.15": "prime-rl, looser limit of its CI",
        "mult_prob_error > 1.5": "exp of the mean |d| of natural routing is 1.45",
    },
}
"""Sets of gates by model family → where each limit comes from: routers that choose differently move whole tokens"""
PAIRS = ("engine", "policy_update", "total")
"""As `audit.pairs.PairName`, without loading it: a test holds them equal"""
HOW = "write [PRESET:]METRIC[@STEP|pooled|any-step|median] OP VALUE, e.g. 'kl_k3@any-step > 0.05'"


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition under which the run is refused, or a severity of the health rules (`level`)."""

    text: str
    level: Literal["critical", "warn"] | None = None
    preset: str | None = None
    metric: str = ""
    scope: str = "pooled"
    op: str = ">"
    value: float = 0.0
    severity: Literal["critical", "warn"] = "critical"
    """a warning that holds is shown and refuses nothing"""
    origin: str = "--fail-on"
    """where it was written, for messages"""


@dataclass(frozen=True, slots=True)
class GateResult:
    gate: Gate
    value: Number
    failed: bool
    unmeasured: bool
    """nothing to compare: the gate could not tell"""
    text: str

    @property
    def verdict(self) -> Literal["failed", "warning", "unmeasured", "passed"]:
        if self.failed:
            return "failed" if self.gate.severity == "critical" else "warning"
        return "unmeasured" if self.unmeasured else "passed"


def parse_gate(text: str, origin: str = "--fail-on") -> Gate:
    """Read a gate.

    Raises:
        UsageError: it does not follow the grammar.
    """
    if text in ("critical", "warn"):
        return Gate(text, level="critical" if text == "critical" else "warn", origin=origin)
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise UsageError(f"{origin} {text!r}: {HOW}")
    parts = match.groupdict()
    scope = parts["scope"] or "pooled"
    if scope not in SCOPES and not is_step(scope):
        raise UsageError(f"{origin} {text!r}: no scope {scope!r}{suggest(scope, SCOPES)}; {HOW}")
    value = _number(parts["value"], f"{origin} {text!r}")
    return Gate(text, None, parts["preset"], parts["metric"], scope, parts["op"], value, origin=origin)


def gates_in(texts: Iterable[str], origin: str = "--fail-on") -> list[Gate]:
    """Each gate, and each of a family that is named.

    Raises:
        UsageError: as `parse_gate`.
    """
    return [parse_gate(gate, origin) for text in texts for gate in FAMILIES.get(text.strip(), [text])]


def check_names(gates: Sequence[Gate], corrections: Collection[str]) -> None:
    """Refuse, before a long pass, what no report could answer.

    Raises:
        UsageError: no such metric, or no such preset among the corrections of the report, or no run of that trainer.
    """
    # Late: a settings file with a gate is read by every command, and those that compute nothing shall not load torch.
    from rollout_audit.statistics.native import NATIVE_METRICS
    from rollout_audit.statistics.stages import METRICS_OF_STAGE
    from rollout_audit.trainers.registry import TRAINERS

    staged = [name for s, metrics in METRICS_OF_STAGE.items() for m in metrics for name in (m, f"{s}.{m}")]
    for gate in gates:
        if gate.preset in TRAINERS:
            if f"{gate.preset}-config" not in corrections:
                raise UsageError(f"{gate.origin} {gate.text!r}: what {gate.preset} logs needs --trainer {gate.preset}")
            continue
        if gate.preset in PAIRS:
            if gate.metric not in NATIVE_METRICS:
                near = suggest(gate.metric, NATIVE_METRICS)
                raise UsageError(f"{gate.origin} {gate.text!r}: a pair has no metric {gate.metric!r}{near}")
            continue
        if gate.preset is not None and gate.preset not in corrections:
            near = suggest(gate.preset, [*corrections, *PAIRS])
            raise UsageError(f"{gate.origin} {gate.text!r}: no preset {gate.preset!r} in the report{near}")
        known = staged if gate.preset else [*NATIVE_METRICS, *staged]
        if gate.level is None and gate.metric not in known:
            raise UsageError(f"{gate.origin} {gate.text!r}: no metric {gate.metric!r}{suggest(gate.metric, known)}")


def judge_gates(gates: Sequence[Gate], report: Report) -> list[GateResult]:
    """Hold gates against a report, those of scope `step` once for each step.

    Raises:
        UsageError: as `evaluate`.
    """
    return [evaluate(each, report) for gate in gates for each in _of_steps(gate, report)]


def _of_steps(gate: Gate, report: Report) -> list[Gate]:
    if gate.scope != PER_STEP:
        return [gate]
    steps = [str(step.step) for step in report.steps]
    return [replace(gate, scope=step, text=gate.text.replace(f"@{PER_STEP}", f"@{step}", 1)) for step in steps]


def exit_code(results: Sequence[GateResult]) -> int:
    """A gate that holds outranks one that could not tell; one of severity warn refuses nothing."""
    verdicts = {result.verdict for result in results}
    return 1 if "failed" in verdicts else 2 if "unmeasured" in verdicts else 0


def evaluate(gate: Gate, report: Report) -> GateResult:
    """Hold a gate against a report.

    A median of the steps that could be measured is not that of all: where one could not, neither can the gate tell.

    Raises:
        UsageError: no such preset, metric or step in the report.
    """
    if gate.level is not None:
        return _by_level(gate, report)
    values = _values(gate, report)
    measured = [v for v in values if v is not None]
    lacking = len(values) - len(measured)
    if not measured or (lacking and gate.scope == "median"):
        of = f" in {lacking} of {len(values)} steps" if gate.scope in ("median", "any-step") else ""
        return GateResult(gate, None, failed=False, unmeasured=True, text=f"{gate.text}: nothing to compare, null{of}")
    held = [median(measured)] if gate.scope == "median" else measured
    hits = [v for v in held if OPERATORS[gate.op](v, gate.value)]
    shown = hits[0] if hits else held[0]
    verdict = "holds" if hits else "does not hold"
    rest = f", {lacking} without a value" if lacking else ""
    text = f"{gate.text}: {verdict}, value {shown:.6g}{rest}"
    return GateResult(gate, shown, failed=bool(hits), unmeasured=bool(lacking) and not hits, text=text)


def _by_level(gate: Gate, report: Report) -> GateResult:
    """By the report's own status, in which a step past a limit weighs as a warning."""
    refused = {"critical"} if gate.level == "critical" else {"critical", "warn"}
    text = f"{gate.text}: the report is {report.status}: {report.headline}"
    return GateResult(gate, None, report.status in refused, unmeasured=False, text=text)


def _values(gate: Gate, report: Report) -> list[Number]:
    if gate.scope == "pooled":
        return [_pooled(gate, report)]
    steps = report.steps
    if is_step(gate.scope):
        steps = [step for step in report.steps if step.step == int(gate.scope)]
        if not steps:
            known = ", ".join(str(s.step) for s in report.steps[:10])
            raise UsageError(f"{gate.origin} {gate.text!r}: no step {gate.scope} in the dump; steps are {known}")
    return [_of_step(gate, step, report) for step in steps]


def _pooled(gate: Gate, report: Report) -> Number:
    if gate.preset is None and gate.metric in report.overall:
        return report.overall[gate.metric]
    if gate.preset in PAIRS:
        return _of_other(gate, {pair.name: pair.metrics for pair in report.pairs})
    if report.trainer is not None and gate.preset == report.trainer.name:
        return _of_other(gate, {report.trainer.name: report.trainer.metrics})
    stages = _correction(gate, report).stages
    return _look_up(gate, _by_name(stages))


def _of_step(gate: Gate, step: StepReport, report: Report) -> Number:
    if gate.preset is None and gate.metric in step.metrics:
        return step.metrics[gate.metric]
    if gate.preset in PAIRS:
        columns = (report.settings.training_column, report.settings.rollout_column)
        own = [pair.name for pair in report.pairs if (pair.training_column, pair.rollout_column) == columns]
        return _of_other(gate, dict.fromkeys(own, step.metrics))
    if report.trainer is not None and gate.preset == report.trainer.name:
        return _of_other(gate, {gate.preset: logged[step.step]} if (logged := report.logged_steps_kept) else {})
    stages = step.corrections[_correction(gate, report).name]
    return _look_up(gate, _by_name(stages))


def _of_other(gate: Gate, subjects: Mapping[str, Mapping[str, Number]]) -> Number:
    """Of a pair, or of what the run's trainer would have logged."""
    where = f"{gate.origin} {gate.text!r}"
    if gate.preset is None or gate.preset not in subjects:
        raise UsageError(
            f"{where}: the report does not hold {gate.preset} @{gate.scope}; another pair and what a "
            "trainer logs are pooled, and the latter by step in check alone"
        )
    figures = subjects[gate.preset]
    if gate.metric not in figures:
        raise UsageError(f"{where}: {gate.preset} has no {gate.metric!r} here{suggest(gate.metric, figures)}")
    return figures[gate.metric]


def _correction(gate: Gate, report: Report) -> CorrectionReport:
    name = gate.preset or report.settings.reference
    found = {c.name: c for c in report.corrections}
    if name not in found:
        raise UsageError(f"{gate.origin} {gate.text!r}: no preset {name!r} in the report{suggest(name, found)}")
    return found[name]


def _by_name(stages: StageReport) -> Mapping[str, Mapping[str, Number]]:
    """The stage that a bare metric is looked for in first, first."""
    return {stage: getattr(stages, stage) for stage in ("kept", "bounded", "normalised", "raw")}


def _look_up(gate: Gate, stages: Mapping[str, Mapping[str, Number]]) -> Number:
    """`metric` in the first stage that has it, or `stage.metric`; of an ess the smaller of raw and kept."""
    if gate.metric in ("ess", "ess_seq"):
        both = [stages["raw"][gate.metric], stages["kept"][gate.metric]]
        return None if None in both else min(x for x in both if x is not None)
    stage, _, metric = gate.metric.rpartition(".")
    if stage in stages and metric in stages[stage]:
        return stages[stage][metric]
    for figures in stages.values():
        if gate.metric in figures:
            return figures[gate.metric]
    known: Sequence[str] = [name for s, figures in stages.items() for m in figures for name in (m, f"{s}.{m}")]
    raise UsageError(f"{gate.origin} {gate.text!r}: no metric {gate.metric!r}{suggest(gate.metric, known)}")


def is_step(scope: str) -> bool:
    """Whether a scope is the number of a step."""
    digits = scope.removeprefix("-")
    return digits.isascii() and digits.isdigit()


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise UsageError(f"{where}: {text!r} is no number; {HOW}") from None
    if math.isnan(number):
        raise UsageError(f"{where}: nothing compares with nan; {HOW}")
    return number
