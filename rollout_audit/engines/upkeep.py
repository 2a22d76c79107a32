"""What the process does beside the work, held back while it only gets in the way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["no_collection", "one_torch_thread"]


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Chunks run side by side, and the rest is short: torch splitting an operation only makes threads wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def no_collection() -> Iterator[None]:
    """Thousands of figures that all live on set off a search of the whole heap for garbage, which takes 0.4 s."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
