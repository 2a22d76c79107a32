"""Gates of the options and of the settings file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_audit.cli.parsing import several
from rollout_audit.golden.settings import gates_of, settings

if TYPE_CHECKING:
    from rollout_audit.audit.gates import Gate

__all__ = ["FailOn", "asked_gates"]

FailOn = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on",
        metavar="GATE",
        help=(
            "Exit 1 at critical, warn, [PRESET:]METRIC[@STEP|pooled|any-step|median] OP VALUE, or any of the limits "
            "that are usual for a dense or moe model. "
            "Repeatable; in ROLLOUT_AUDIT_FAIL_ON parted by ;"
        ),
        show_default=False,
    ),
]


def asked_gates(given: Sequence[str] | None) -> list[Gate]:
    """Those of --fail-on (or its variable), then those of the settings file.

    Raises:
        UsageError: a gate that does not follow the grammar.
    """
    texts = several(given, "ROLLOUT_AUDIT_FAIL_ON")
    own = gates_of(settings())
    if not texts:
        return own
    from rollout_audit.audit.gates import gates_in

    return [*gates_in(texts), *own]
