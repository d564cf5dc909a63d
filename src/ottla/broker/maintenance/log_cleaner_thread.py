"""Cleans logs in a thread of the broker's process: for files in memory, which no other process can read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from ottla.broker.maintenance.log_cleaner_worker import PassFailed
from ottla.core.clock import Clock
from ottla.core.files import FileSystem
from ottla.storage.cleaning.cleaner import run_pass
from ottla.storage.cleaning.cleaning_plan import CleanedGroup, CleaningPlan, PassDone
from ottla.storage.cleaning.errors import described, failure_of
from ottla.storage.cleaning.throttler import Throttler


class ThreadWorker:
    """Cleans in a thread, step by step: a `kill` waits for the end of the step."""

    def __init__(self, files: FileSystem, clock: Clock) -> None:
        self._files, self._clock = files, clock
        self._step: asyncio.Task[CleanedGroup | PassDone] | None = None

    async def steps(self, plan: CleaningPlan) -> AsyncIterator[CleanedGroup | PassDone]:
        """Yield the steps of a pass. Raises PassFailed."""
        throttle = Throttler(plan.io_bytes_per_second, clock=self._clock, sleep=time.sleep)
        steps = run_pass(plan, self._files, clock=self._clock, throttle=throttle)
        while True:
            self._step = asyncio.get_running_loop().create_task(asyncio.to_thread(next, steps))
            try:
                step = await asyncio.shield(self._step)
            except Exception as error:
                raise PassFailed(failure_of(error), described(error)) from error
            yield step
            if isinstance(step, PassDone):
                return

    async def stop(self) -> None:
        """Do nothing: it has nothing to do."""

    async def kill(self) -> None:
        """Return when it writes no more."""
        if self._step is not None:
            await asyncio.wait([self._step])
