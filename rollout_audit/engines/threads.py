"""Work mapped on local threads; results come back in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["default_workers", "map_in_order"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def default_workers() -> int:
    """Threads that compute when nobody says otherwise: the processors this process may use, at most 8."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(allowed or 1, 8))


def map_in_order(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """The results in the order of the items, whichever thread finishes first.

    At most twice as many results as workers wait to be taken, so memory is bounded by the item, not by the input.
    The first error in the order of the items is raised; items not yet begun are then left.
    """
    with ThreadPoolExecutor(workers, "worker") as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
