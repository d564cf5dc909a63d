"""Simulates what a process takes from its operating system: random bytes, threads, a disk that takes time.

runtime = SimRuntime(loop, process)
context.run(use, runtime)            before the code of the process runs
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from ottla.core.executors import BlockingJob, Executor, Post
from ottla.testing.sim_disk import SimDisk
from ottla.testing.sim_executor import SimExecutor
from ottla.testing.sim_loop import EPOCH_WALL_MS, SimLoop, SimProcess, current_process

_SLOW_SHARE = 0.02
_SLOW_SECONDS = 0.2


class SimRuntime:
    """The `core.runtime.Runtime` of one simulated process."""

    def __init__(self, loop: SimLoop, process: SimProcess, *, job_s: float = 0.002) -> None:
        self._loop = loop
        self._rng = loop.rng_for(f"ids/{process}")
        self._threads = loop.rng_for(f"threads/{process}")
        self.job_s = job_s  # the longest that most jobs of threads take

    def random_bytes(self, size: int) -> bytes:
        """Return random bytes of this process's own generator."""
        return self._rng.randbytes(size)

    def make_executor(self, name: str, post: Post, threads: int) -> Executor:
        """Return an executor whose jobs begin and end at moments that the seed chooses."""
        del name, post, threads
        return SimExecutor(self._seconds, answer_after=lambda: self._seconds(None) / 4)

    def run_all(self, work: Sequence[Callable[[], None]], threads: int) -> None:
        """Run functions one after the other, in random order: threads begin them in any order."""
        del threads
        shuffled = list(work)
        self._threads.shuffle(shuffled)
        for each in shuffled:
            each()

    def _seconds(self, _: BlockingJob | None) -> float:
        if self._threads.random() < _SLOW_SHARE:
            return self._threads.random() * _SLOW_SECONDS
        return self._threads.random() * self.job_s


class ProcessClock:
    """The clock of one simulated process: the time of day is that of its machine, which may be wrong."""

    def __init__(self, loop: SimLoop, process: SimProcess) -> None:
        self._loop, self._process = loop, process

    def wall_ms(self) -> int:
        """Return the time of day of the machine."""
        return self._process.wall_offset_ms + round(self._loop.time() * 1000)

    def monotonic(self) -> float:
        """Return the simulated seconds."""
        return self._loop.time()


class TimedDisk(SimDisk):
    """A disk whose fsyncs take time, so that the code under test treats it as slow or as fast."""

    def __init__(self, loop: SimLoop, *, sync_s: float, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes=capacity_bytes)
        self._loop, self._sync_s = loop, sync_s
        self.set_clock(EPOCH_WALL_MS)
        self.on_stop: Callable[[], None] | None = None  # called at the moment that `stop_at` planned
        self.on_failed_sync: Callable[[], None] | None = None  # called at the failure that `fail_next_sync` planned
        self.failed = 0  # operations that failed as planned
        self.is_next_sync_failing = False

    def fail_next_sync(self) -> None:
        """Fail one fsync: the pages it should have written are lost, and the next fsync succeeds."""
        self.is_next_sync_failing = True
        self.refuse(errno.EIO, "sync")

    def cancel_stop(self) -> None:
        """Forget the planned stop."""
        self._stop_at, self.on_stop = None, None

    def step(self, what: str) -> None:
        """Count a change; a sync takes its time. A planned stop ends the process at once."""
        if what.startswith("sync"):
            self._loop.advance(self._sync_s)
        try:
            super().step(what)
        except OSError:
            self.failed += 1
            if self.is_next_sync_failing:
                self.is_next_sync_failing = False
                self.stop_refusing()
                if self.on_failed_sync is not None:
                    self.on_failed_sync()
            raise
        except BaseException:
            if self.on_stop is not None and not current_process.get().is_dead:
                self.on_stop()
            raise
