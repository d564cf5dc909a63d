"""Runs jobs in simulated time: one at a time, each for its own duration, while the loop goes on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ottla.core.executors import BlockingJob


class SimExecutor:
    """Simulates one thread. A job works at the end of its duration; the loop learns of it after `answer_after`."""

    def __init__(
        self, seconds: Callable[[BlockingJob], float], *, answer_after: Callable[[], float] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._answer_after = answer_after
        self._waiting: deque[BlockingJob] = deque()
        self.submitted = 0
        self.is_running = False  # a job runs now

    def submit(self, job: BlockingJob) -> None:
        """Run the job when those before it are done and its own time has passed."""
        self.submitted += 1
        self._waiting.append(job)
        if len(self._waiting) == 1:
            self._start()

    def close(self) -> None:
        """Run what is left at once."""
        while self._waiting:
            self._run(self._waiting.popleft())

    def _start(self) -> None:
        self._loop.call_later(self._seconds(self._waiting[0]), self._finish)

    def _finish(self) -> None:
        if not self._waiting:  # closed meanwhile
            return
        job = self._waiting.popleft()
        self._run(job)
        if self._waiting:
            self._start()
        if self._answer_after is None:
            job.finished()
        else:
            self._loop.call_later(self._answer_after(), job.finished)

    def _run(self, job: BlockingJob) -> None:
        self.is_running = True
        try:
            job.run()
        finally:
            self.is_running = False
