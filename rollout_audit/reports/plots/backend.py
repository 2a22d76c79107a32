"""Keep a stranger's choice of matplotlib backend out of the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_chosen_backend"]


@contextmanager
def without_chosen_backend() -> Iterator[None]:
    """Hide MPLBACKEND while matplotlib is imported: a notebook's leftover value makes `import matplotlib` fail."""
    chosen = os.environ.pop("MPLBACKEND", None)
    try:
        yield
    finally:
        if chosen is not None:
            os.environ["MPLBACKEND"] = chosen
