"""A dump read and worked on side by side: each thread takes some row groups from the file to their evidence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from rollout_audit.dumps.chunk import Chunk
from rollout_audit.dumps.dump import DEFAULT_CHUNK_TOKENS, Dump, Part
from rollout_audit.dumps.fault_log import FaultLog
from rollout_audit.engines.threads import map_in_order

__all__ = ["Reading"]

UNITS_A_FILE = 64
"""Opening a file reads its footer, which grows with its row groups: it is opened at most so many times"""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Reading:
    """What of a dump a pass reads; arguments as those of `Dump.chunks`."""

    dump: Dump
    fields: Collection[str]
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS
    on_fault: Literal["stop", "drop"] = "stop"
    steps: tuple[int | None, int | None] | None = None
    limit: int | None = None

    def map(self, function: Callable[[Chunk], Result], workers: int, log: FaultLog) -> Iterator[Result]:
        """`function` of each chunk, in the order of the files; what was found goes to the log.

        Neither chunks nor results nor the log depend on the number of workers.

        Raises:
            DumpError: as `Dump.chunks`.
        """
        for results, found in map_in_order(lambda parts: self._work(parts, function), self._units(), workers):
            log.merge(found)
            yield from results
        self.dump.require_valid(log)

    def chunks(self, log: FaultLog | None = None) -> Iterator[Chunk]:
        """The chunks one after another, in this thread; what was found goes to the log.

        Raises:
            DumpError: as `Dump.chunks`.
        """
        return self.dump.chunks(
            fields=self.fields,
            chunk_tokens=self.chunk_tokens,
            on_fault=self.on_fault,
            steps=self.steps,
            limit=self.limit,
            log=log,
        )

    def _work(self, parts: Sequence[Part], function: Callable[[Chunk], Result]) -> tuple[list[Result], FaultLog]:
        log = FaultLog()
        chunks = self.dump.chunks(
            fields=self.fields,
            chunk_tokens=self.chunk_tokens,
            on_fault=self.on_fault,
            steps=self.steps,
            limit=self.limit,
            log=log,
            parts=parts,
        )
        return [function(chunk) for chunk in chunks], log

    def _units(self) -> list[Sequence[Part]]:
        """Runs of row groups of one file; all of them in one where a limit makes each depend on those before."""
        parts = self.dump.parts()
        if self.limit is not None:
            return [parts]
        units: list[Sequence[Part]] = []
        for index, info in enumerate(self.dump.infos):
            rows = max(self.chunk_tokens * info.rows // max(info.values, 1), info.rows // UNITS_A_FILE, 1)
            units += _runs([part for part in parts if part.file == index], rows)
        return units


def _runs(parts: Sequence[Part], rows: int) -> Iterator[Sequence[Part]]:
    """Consecutive parts, each run the shortest that holds so many rows."""
    run: list[Part] = []
    for part in parts:
        run.append(part)
        if sum(p.rows for p in run) >= rows:
            yield run
            run = []
    if run:
        yield run
