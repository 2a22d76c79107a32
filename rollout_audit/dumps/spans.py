"""Where the response of a row lies among prompt and padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["response_span"]


def response_span(mask: Sequence[Any], stop: int) -> tuple[int, int]:
    """From the first 1 of the mask to `stop`; the whole of a row without a 1, which nothing says where to cut."""
    flags = np.asarray(mask[:stop], dtype=np.float64)
    ones = np.flatnonzero(flags)
    return (int(ones[0]) if len(ones) else 0), stop
