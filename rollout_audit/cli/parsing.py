"""What option values mean."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from rollout_audit.errors import UsageError

__all__ = ["parse_maps", "parse_presets", "parse_rules", "parse_steps", "several"]


def several(given: Sequence[str] | None, variable: str) -> list[str]:
    """A repeatable option, else its variable, whose values are parted by `;`: they may hold blanks themselves."""
    if given:
        return list(given)
    return [text.strip() for text in os.environ.get(variable, "").split(";") if text.strip()]


def parse_maps(given: Sequence[str] | None) -> dict[str, str]:
    """`FIELD=COLUMN` options as a mapping; a column name may hold `=`.

    Raises:
        UsageError: no `=`, or a field given twice.
    """
    mapping: dict[str, str] = {}
    for text in several(given, "ROLLOUT_AUDIT_MAP"):
        field, equals, column = text.partition("=")
        if not (field and equals and column):
            raise UsageError(f"--map {text!r}: expected FIELD=COLUMN, for example old_log_probs=prev_logprobs")
        if field in mapping:
            raise UsageError(f"--map {text!r}: {field} is already mapped to {mapping[field]!r}")
        mapping[field] = column
    return mapping


def parse_presets(text: str | None) -> Literal["all"] | list[str]:
    """`NAME,...` or `all`; empty where none is given."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    return "all" if names == ["all"] else names


def parse_rules(given: Sequence[str]) -> dict[str, str] | None:
    """`NAME=GRID` options as a mapping; empty for a lone `none`, None where none was given.

    Raises:
        UsageError: no `=`, a name given twice, or `none` beside a rule.
    """
    if not given or list(given) == ["none"]:
        return {} if given else None
    rules: dict[str, str] = {}
    for text in given:
        name, equals, grid = text.partition("=")
        if not (name and equals and grid):
            raise UsageError(f"--rule {text!r}: expected NAME=GRID, for example seq_mean_k1=0.99_1.01,0.999_1.001")
        if name in rules:
            raise UsageError(f"--rule {text!r}: {name} already has {rules[name]!r}; part thresholds by commas")
        rules[name] = grid
    return rules


def parse_steps(text: str | None) -> tuple[int | None, int | None] | None:
    """`A:B`, `A:`, `:B` or a single step.

    Raises:
        UsageError: not of that form, or empty.
    """
    if text is None:
        return None
    first, colon, stop = text.partition(":")
    try:
        start = int(first) if first else None
        end = (int(stop) if stop else None) if colon else int(first) + 1
    except ValueError:
        raise UsageError(f"--steps {text!r}: expected A:B, A:, :B or a single step") from None
    if start is not None and end is not None and start >= end:
        raise UsageError(f"--steps {text!r}: no step lies between {start} and {end} (B is the one after the last)")
    return start, end
