"""Chunks mapped on local threads: one reads ahead, the others compute, results come back in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
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

    At most `workers` + 2 items are alive at a time, so memory is bounded by the item, not by the input. What
    `items` raises is raised here.
    """
    source = iter(items)
    with ThreadPoolExecutor(1, "reader") as reader, ThreadPoolExecutor(workers, "worker") as pool:
        waiting: deque[Future[Result]] = deque()
        ahead = reader.submit(_take, source)
        while batch := ahead.result():
            ahead = reader.submit(_take, source)
            waiting.append(pool.submit(function, batch[0]))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()


def _take(source: Iterator[Item]) -> list[Item]:
    """The next item in a list; an empty list at the end."""
    return list(islice(source, 1))
