"""Runs blocking work off the event loop: a port, as files and clocks are.

`ThreadExecutor` is the one of production; `testing/sim_executor.py` is the one that runs in simulated time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol


class BlockingJob(Protocol):
    """A piece of blocking work."""

    def run(self) -> None:
        """Do the work, off the loop. Must not raise: what goes wrong belongs into the job's own state."""
        ...

    def finished(self) -> None:
        """Continue on the loop after `run`."""
        ...


class Executor(Protocol):
    """Runs jobs in the order of their submission."""

    def submit(self, job: BlockingJob) -> None:
        """Run the job soon. Called on the loop."""
        ...

    def close(self) -> None:
        """Return once every submitted job has run: blocks. Their `finished` may not be called any more."""
        ...


Post = Callable[[Callable[[], None]], object]
"""Has a function called on the event loop; may be called in any thread (`loop.call_soon_threadsafe`)."""

MakeExecutor = Callable[[str, Post], Executor]
"""Makes an executor with a name for its threads."""


def run_all(work: Sequence[Callable[[], None]], *, threads: int) -> None:
    """Run functions that do not raise, in this thread or in several; returns when all have run."""
    if threads <= 1 or len(work) <= 1:
        for each in work:
            each()
        return
    waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
    for each in work:
        waiting.put(each)
    workers = [
        threading.Thread(target=_run_waiting, args=(waiting,), daemon=True) for _ in range(min(threads, len(work)))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _run_waiting(waiting: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        try:
            work = waiting.get_nowait()
        except Empty:
            return
        work()


class ThreadExecutor:
    """Daemon threads that take jobs from one queue. They start with the first job."""

    def __init__(self, name: str, post: Post, *, threads: int = 1) -> None:
        self._name = name
        self._post = post
        self._threads_max = threads
        self._jobs: SimpleQueue[BlockingJob | None] = SimpleQueue()
        self._workers: list[threading.Thread] = []

    def submit(self, job: BlockingJob) -> None:
        """Run the job in the first thread that is free."""
        if len(self._workers) < self._threads_max:
            worker = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._workers.append(worker)
            worker.start()
        self._jobs.put(job)

    def close(self) -> None:
        """Return once every submitted job has run and the threads have ended."""
        for _ in self._workers:
            self._jobs.put(None)
        for worker in self._workers:
            worker.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            try:
                self._post(job.finished)
            except RuntimeError:  # the loop is closed: the process is ending
                return
