"""Provides what brokers in a test take from their process: threads with the name of their kit, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.core.executors import BlockingJob, Executor, Post, ThreadExecutor
from ottla.core.runtime import SystemRuntime
from ottla.testing.kit.loop import AdvanceableLoop


class NamedThreads:
    """The system's threads; all names begin with that of the kit's own thread, whose loop counts their jobs."""

    def __init__(self, name: str, loop: AdvanceableLoop) -> None:
        self._name, self._loop, self._system = name, loop, SystemRuntime()

    def random_bytes(self, size: int) -> bytes:
        """Return unpredictable bytes."""
        return self._system.random_bytes(size)

    def run_all(self, work: Sequence[Callable[[], None]], threads: int) -> None:
        """Run functions in daemon threads."""
        self._system.run_all(work, threads)

    def make_executor(self, name: str, post: Post, threads: int) -> Executor:
        """Return an executor with daemon threads."""
        return _CountedExecutor(ThreadExecutor(f"{self._name}/{name}", post, threads=threads), self._loop)


class _CountedExecutor:
    """Informs the loop of jobs that run."""

    def __init__(self, executor: Executor, loop: AdvanceableLoop) -> None:
        self._executor, self._loop = executor, loop
        self._jobs = 0

    def submit(self, job: BlockingJob) -> None:
        """Run the job soon."""
        self._jobs += 1
        self._loop.job_begins()
        self._executor.submit(_CountedJob(job, self._job_ends))

    def close(self) -> None:
        """Return once every job has run; that some have finished may not be reported any more."""
        self._executor.close()
        while self._jobs:
            self._job_ends()

    def _job_ends(self) -> None:
        if self._jobs:
            self._jobs -= 1
            self._loop.job_ends()


class _CountedJob:
    """One job of a `_CountedExecutor`."""

    def __init__(self, job: BlockingJob, ends: Callable[[], None]) -> None:
        self._job, self._ends = job, ends
        self.run = job.run

    def finished(self) -> None:
        """Continue on the loop."""
        self._ends()
        self._job.finished()


class NoThreads:
    """Blocking work runs on the loop: files in memory do not block."""

    def __init__(self) -> None:
        self._system = SystemRuntime()

    def random_bytes(self, size: int) -> bytes:
        """Return unpredictable bytes."""
        return self._system.random_bytes(size)

    def make_executor(self, name: str, post: Post, threads: int) -> Executor:
        """Return an executor without threads."""
        del name, threads
        return _LoopExecutor(post)

    def run_all(self, work: Sequence[Callable[[], None]], threads: int) -> None:
        """Run functions one after the other."""
        del threads
        for function in work:
            function()


class _LoopExecutor:
    """Runs each job in a callback of the loop."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._jobs: list[BlockingJob] = []

    def submit(self, job: BlockingJob) -> None:
        """Run the job in the next turn of the loop."""
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._post(self._run)

    def close(self) -> None:
        """Run what is left."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.run()

    def _run(self) -> None:
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.run()
        for job in jobs:
            job.finished()
