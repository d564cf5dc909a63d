"""Writes the checkpoint files of one log directory for several tasks: truncations, deletions of records.

A checkpoint is begun in slices on the event loop and written in a thread; one that a newer one has overtaken is not
written. So they go one after the other: two that were begun again and again would overtake each other for ever. One
counts for all that have asked for it before it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol


class Checkpoint(Protocol):
    """The checkpoint files of a directory as they shall be (`storage/directories/checkpoint_job.py`)."""

    def run(self) -> bool:
        """Write them, in any thread; return False if a newer checkpoint does, now or later. Raises OSError."""
        ...


async def _in_thread(checkpoint: Checkpoint) -> bool:
    return await asyncio.to_thread(checkpoint.run)


class DirectoryCheckpoints:
    """The checkpoints of one directory."""

    def __init__(self, begin: Callable[[], Awaitable[Checkpoint]]) -> None:
        self._begin = begin
        self._one_at_a_time = asyncio.Lock()
        self._begun = 0
        self._written = 0  # number of the last one that was written

    async def write(self, run: Callable[[Checkpoint], Awaitable[bool]] = _in_thread) -> None:
        """Return once the files have all that is so now. Raises OSError, and what `run` raises."""
        before = self._begun
        async with self._one_at_a_time:
            while self._written <= before:  # also if a cut or a truncation in place has overtaken it
                self._begun = number = self._begun + 1
                if await run(await self._begin()):
                    self._written = number
