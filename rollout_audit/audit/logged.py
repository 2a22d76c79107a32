"""A trainer's log held against the same metrics recomputed from the dump, step by step."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from rollout_audit.audit.report import LoggedMetric, LogReport
from rollout_audit.dumps.logs import Log, slashed
from rollout_audit.statistics.metrics import Metrics
from rollout_audit.trainers.base import Quirk

__all__ = ["ABSOLUTE", "BY_BATCH", "PREFIXES", "RELATIVE", "Tolerance", "compare", "matched_keys"]

RELATIVE = 1e-3
ABSOLUTE = 1e-6
"""Trainers compute in float32 and average over ranks: conformance/ agrees to 1e-6 relative, a wrong denominator does
not to 1e-2. Below 1e-6 a figure says nothing about the mismatch."""

PREFIXES = (
    "data/", "metrics/", "train/", "training/", "trainer/", "actor/", "critic/", "policy/", "rollout/", "loss/",
    "ppo_actor/update/", "global/",
)  # fmt: skip
"""What trainers and loggers set before a metric's name"""

HELD_OUT = ("val", "eval", "test", "validation", "evaluation")
"""First parts of keys that are of other data than the dump's"""

BY_BATCH: Mapping[str, tuple[str, ...]] = {
    "padding_passes": ("*_mask_mean*", "*clipfrac*"),
    "padding_in_ratios": ("*is_ratio_std", "*is_ratio_min", "*is_ratio_max"),
    "not_a_mean": ("sampling_importance_ratio",),
    "last_micro_batch": ("debug/vllm_*",),
    "packed_rows": ("val/rho_*",),
    "m2po_by_micro_batch": ("*n_valid_tokens", "*behave_*", "*rs_filtered_fraction"),
}
"""quirk → metrics whose logged value depends on padding, or on the micro-batches that the step was cut into"""

How = Literal["exact", "prefix", "file name"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two values agree where |logged − recomputed| ≤ max(relative · |recomputed|, absolute)."""

    relative: float = RELATIVE
    absolute: float = ABSOLUTE

    def excess(self, logged: float, recomputed: float) -> float:
        """How many times the tolerance they are apart; infinite where the log holds NaN or an infinity."""
        if not math.isfinite(logged):
            return math.inf
        return abs(logged - recomputed) / max(self.relative * abs(recomputed), self.absolute)


def compare(
    recomputed: Mapping[int, Metrics],
    log: Log,
    *,
    trainer: str,
    quirks: Sequence[Quirk] = (),
    tolerance: Tolerance = Tolerance(),
    offset: int = 0,
) -> LogReport:
    """Lay logged values beside recomputed ones and say where they first depart.

    Args:
        recomputed: step of the dump → the metrics of that step.
        log: what was logged.
        trainer: name and version of whose metrics they are.
        quirks: those of the trainer.
        tolerance: how far two values may be apart.
        offset: step in the log minus step in the dump of the same batch.
    """
    names = list(dict.fromkeys(name for metrics in recomputed.values() for name in metrics))
    keys = matched_keys(names, log)
    series = {name: _shifted(log.series[key], offset) for name, (key, _) in keys.items()}
    found = [_metric(n, *keys[n], series[n], recomputed, tolerance, _note(n, quirks, recomputed)) for n in keys]
    ranked = sorted(found, key=lambda one: _rank(one, tolerance))
    logged_steps = {step - offset for values in log.series.values() for step in values}
    doubtful = any(m.departing for m in found) or not any(m.steps for m in found)
    suggestion = _better_offset(keys, log, recomputed, tolerance, offset) if doubtful else None
    return LogReport(
        trainer=trainer,
        files=list(log.files),
        step_keys=list(log.step_keys),
        offset=offset,
        better_offset=suggestion,
        relative_tolerance=tolerance.relative,
        absolute_tolerance=tolerance.absolute,
        status=_status(found),
        sentence=_sentence(ranked, suggestion, log),
        compared=sum(len(one.steps) for one in found),
        departing=sum(one.departing for one in found),
        first_step=ranked[0].first_step if ranked else None,
        first_metric=ranked[0].metric if ranked and ranked[0].departing else None,
        metrics=ranked,
        unmatched_keys=sorted(log.series.keys() - {key for key, _ in keys.values()}),
        unlogged_metrics=[name for name in names if name not in keys],
        steps_in_log_alone=len(logged_steps - recomputed.keys()),
        steps_in_dump_alone=len(recomputed.keys() - logged_steps),
        notes=[*log.notes],
    )


def matched_keys(names: Sequence[str], log: Log) -> dict[str, tuple[str, How]]:
    """metric → its key in the log and how that was found: by its very name, else up to known prefixes of either, else
    as the end of one key alone, whatever stands before. W&B writes nested dicts with `.` for `/`, files spell it `_`.

    A key goes to one metric, and to a metric of several keys the one with the fewest prefixes. A name that two metrics
    share without their prefixes goes to neither.
    """
    found: dict[str, tuple[str, How]] = {name: (name, "exact") for name in names if name in log.series}
    shared = Counter(_stripped(name)[-1] for name in names)
    spellings = {name: _stripped(name) if shared[_stripped(name)[-1]] == 1 else [name] for name in names}
    ways: tuple[tuple[How, Mapping[str, str]], ...] = (
        ("prefix", _by_stripped(log.series.keys() - log.of_file_names, log)),
        ("prefix", _by_end(log.series.keys() - log.of_file_names)),
        ("file name", _by_file_name(log.of_file_names, {_spelt(one) for own in spellings.values() for one in own})),
    )
    for how, keys in ways:
        for name in names:
            taken = {key for key, _ in found.values()}
            options = (keys.get(one if how == "prefix" else _spelt(one)) for one in spellings[name])
            key = next((key for key in options if key is not None and key not in taken), None)
            if name not in found and key is not None:
                found[name] = (key, how)
    return {name: found[name] for name in names if name in found}


def _by_stripped(keys: Collection[str], log: Log) -> dict[str, str]:
    """name without some prefixes → the key with the fewest to take away, in the order of the log."""
    ways = [(i, one, key) for key in log.series if key in keys for i, one in enumerate(_stripped(slashed(key)))]
    found: dict[str, str] = {}
    for _, one, key in sorted(ways, key=lambda way: way[0]):
        found.setdefault(one, key)
    return found


def _by_end(keys: Iterable[str]) -> dict[str, str]:
    """`a/b/c` as `b/c` and `c`, where no other key of the log ends so; keys of held-out data left out."""
    own = [key for key in keys if slashed(key).partition("/")[0] not in HELD_OUT]
    ends = [(end, key) for key in own for end in _ends(slashed(key))]
    often = Counter(end for end, _ in ends)
    return {end: key for end, key in ends if often[end] == 1}


def _by_file_name(keys: Iterable[str], known: Collection[str]) -> dict[str, str]:
    """The longest known name that a file's name ends with → the file's name; of two files that with less before it."""
    ways = []
    for key in sorted(keys):
        parts = _spelt(key).split("_")
        tails = ((i, "_".join(parts[i:])) for i in range(len(parts)))
        ways += [(i, tail, key) for i, tail in tails if tail in known and not (i and parts[0] in HELD_OUT)][:1]
    found: dict[str, str] = {}
    for _, tail, key in sorted(ways):
        found.setdefault(tail, key)
    return found


def _ends(key: str) -> list[str]:
    parts = key.split("/")
    return ["/".join(parts[i:]) for i in range(1, len(parts))]


def _stripped(name: str) -> list[str]:
    """The name, and without its known prefixes one by one."""
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), None)
    return [name] if prefix is None else [name, *_stripped(name.removeprefix(prefix))]


def _spelt(name: str) -> str:
    """As a file's name spells it."""
    return re.sub(r"\W", "_", name)


def _shifted(values: Mapping[int, float], offset: int) -> dict[int, float]:
    return {step - offset: value for step, value in values.items()}


def _pairs(
    name: str, logged: Mapping[int, float], recomputed: Mapping[int, Metrics]
) -> Iterator[tuple[int, float, float]]:
    """(step, logged, recomputed) where both have a value."""
    for step in sorted(recomputed.keys() & logged.keys()):
        value = recomputed[step].get(name)
        if value is not None:
            yield step, logged[step], float(value)


def _metric(
    name: str,
    key: str,
    how: How,
    logged: Mapping[int, float],
    recomputed: Mapping[int, Metrics],
    tolerance: Tolerance,
    note: str | None,
) -> LoggedMetric:
    pairs = list(_pairs(name, logged, recomputed))
    excess = {step: tolerance.excess(theirs, ours) for step, theirs, ours in pairs}
    departing = [step for step, value in excess.items() if value > 1]
    worst = max(departing, key=lambda step: excess[step], default=None)
    difference = {step: _finite(theirs - ours) for step, theirs, ours in pairs}
    return LoggedMetric(
        metric=name,
        key=key,
        matched=how,
        steps=[step for step, *_ in pairs],
        logged=[_finite(theirs) for _, theirs, _ in pairs],
        recomputed=[ours for *_, ours in pairs],
        departing=len(departing),
        first_step=departing[0] if departing else None,
        worst_step=worst,
        worst_difference=None if worst is None else difference[worst],
        note=note,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _note(name: str, quirks: Sequence[Quirk], recomputed: Mapping[int, Metrics]) -> str | None:
    """Why the logged figure may be another without a fault of the trainer; why there is none to compare with."""
    texts = [q.sentence for q in quirks if any(fnmatchcase(name, one) for one in BY_BATCH.get(q.name, ()))]
    reasons = dict.fromkeys(m.reasons[name] for m in recomputed.values() if name in m.reasons)
    return " ".join([*texts, *(f"Recomputed: {reason}." for reason in reasons)]) or None


def _rank(one: LoggedMetric, tolerance: Tolerance) -> tuple[float, float]:
    """The earliest departure first, of one step the furthest; then what agrees."""
    if one.first_step is None:
        return math.inf, 0.0
    at = one.steps.index(one.first_step)
    logged, recomputed = one.logged[at], one.recomputed[at]
    return one.first_step, -tolerance.excess(math.nan if logged is None else logged, recomputed)


def _better_offset(
    keys: Mapping[str, tuple[str, How]],
    log: Log,
    recomputed: Mapping[int, Metrics],
    tolerance: Tolerance,
    offset: int,
) -> int | None:
    """The offset one off, or that which lays first or last steps on each other, at which nine values in ten agree where
    less than half do at the one in use."""

    def agreement(tried: int) -> float:
        pairs = [p for n, (key, _) in keys.items() for p in _pairs(n, _shifted(log.series[key], tried), recomputed)]
        return sum(tolerance.excess(a, b) <= 1 for _, a, b in pairs) / len(pairs) if pairs else 0.0

    if agreement(offset) >= 0.5:
        return None
    logged = sorted({step for key, _ in keys.values() for step in log.series[key]})
    ends = {logged[i] - sorted(recomputed)[i] for i in (0, -1)} if logged and recomputed else set()
    best = max((offset - 1, offset + 1, *sorted(ends - {offset})), key=agreement)
    return best if agreement(best) >= 0.9 else None


def _status(found: Iterable[LoggedMetric]) -> Literal["agrees", "departs", "nothing compared"]:
    if not any(one.steps for one in found):
        return "nothing compared"
    return "departs" if any(one.departing for one in found) else "agrees"


def _sentence(ranked: Sequence[LoggedMetric], suggestion: int | None, log: Log) -> str:
    compared = [one for one in ranked if one.steps]
    if not ranked:
        text = "Nothing of the log was compared: no key is a metric of this trainer under this configuration"
        return f"{text}{_of(log)}."
    if not compared:
        text = "Nothing of the log was compared: no metric has a value at the same step in log and dump."
        return f"{text}{_hint(suggestion)}"
    first, values = ranked[0], sum(len(one.steps) for one in compared)
    if first.first_step is None:
        return f"Log and dump agree: {values:,} values of {len(compared)} metrics."
    at = first.steps.index(first.first_step)
    logged = first.logged[at]
    text = (
        f"The log departs from the dump first at step {first.first_step} in {first.metric}: "
        f"logged {'NaN or infinite' if logged is None else f'{logged:.6g}'}, recomputed {first.recomputed[at]:.6g} "
        f"({sum(one.departing for one in ranked):,} of {values:,} values depart, in "
        f"{sum(one.departing > 0 for one in ranked)} of {len(compared)} metrics)."
    )
    return f"{text}{_hint(suggestion)}"


def _of(log: Log) -> str:
    """The keys that there are, or a file's name where it was all that could tell the metric."""
    keys = sorted(log.series)
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    named = "the file's name has to end with that of a metric" if log.of_file_names else "it has"
    return f"; {named}: {', '.join(keys[:NAMED])}{more}"


NAMED = 3
"""Keys of a log that fits nothing, which the sentence names"""


def _hint(offset: int | None) -> str:
    if offset is None:
        return ""
    return f" With --log-offset {offset} nine values in ten or more agree: the steps are counted differently."
