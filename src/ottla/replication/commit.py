"""Group commit: one fsync for everything that is pending, off the loop, with no wait added when the disk is idle.

While the disk is busy with one round, appends of all partitions pile up; the next takes them all. So a lone producer
waits for one fsync and a crowd shares one, without a timer to tune.

A failed fsync is never retried: Linux forgets the pages it could not write, so a second try would "succeed"
(fsyncgate); the log directory goes offline instead. A flush that could not be begun, because a small file found no room
or no file could be opened, has lost nothing: it is tried again until it works. Who waits for it is told after a while.

Station 7 of 9 on a batch's journey. Before: storage/log/segment.py. After: replication/partition.py wakes who waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from ottla.core.errors import StorageError
from ottla.storage.log.flush import DirectoryHealth, FlushJob

RETRY_SECONDS = 0.25
PATIENCE_SECONDS = 5.0  # so long who waits is left to wait while a flush cannot be begun


def _nothing() -> None:
    """A directory that cannot vanish."""


class Flushable(Protocol):
    """What a group commit needs of a partition."""

    def begin_flush(self) -> FlushJob:
        """Remember how far the log has been written; the job fsyncs up to there. Raises StorageError."""
        ...

    def complete_flush(self, job: FlushJob) -> None:
        """The job has run: what it covers is durable. Raises StorageError where it could not be done."""
        ...

    def fail_flush(self, error: StorageError) -> None:
        """The directory is lost: nothing above the last good flush will ever count."""
        ...

    def give_up_waiting(self, error: StorageError) -> None:
        """The flush is still to come, but nobody knows when: tell those who wait."""
        ...


Round = list[tuple[Flushable, FlushJob]]


class GroupCommit:
    """The fsyncs of one log directory: a thread that blocks so that the loop need not."""

    def __init__(self, health: DirectoryHealth, *, check_present: Callable[[], None] = _nothing) -> None:
        self._loop = asyncio.get_running_loop()
        self._health = health
        self._check_present = check_present  # raises OSError: an fsync of files that were removed proves nothing
        self._waiting: dict[Flushable, None] = {}  # a dict keeps the order of arrival
        self._refused: dict[Flushable, float] = {}  # whose flush could not be begun, and since when
        self._timers: dict[Flushable, asyncio.TimerHandle] = {}  # whose flush is due at some time
        self._retry: asyncio.TimerHandle | None = None
        self._busy = False
        self._failed: StorageError | None = None
        self._rounds: SimpleQueue[Round | None] = SimpleQueue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._worker = threading.Thread(target=self._work, name=f"group-commit {health.name}", daemon=True)
        self._worker.start()

    def schedule(self, partition: Flushable) -> None:
        """Make what `partition` has written durable, with everybody else's, as soon as the disk is free."""
        if self._failed is not None:
            partition.fail_flush(self._failed)
            return
        if not self._waiting and not self._busy:
            # One turn of the loop later, so that requests that arrived together share the first round too.
            self._loop.call_soon(self._begin_round)
        self._waiting[partition] = None

    def schedule_within(self, partition: Flushable, seconds: float) -> None:
        """The same after so many seconds at most, unless it is due sooner already."""
        due, timer = self._loop.time() + seconds, self._timers.get(partition)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[partition] = self._loop.call_at(due, self._is_due, partition)

    def _is_due(self, partition: Flushable) -> None:
        del self._timers[partition]
        self.schedule(partition)

    def forget(self, partition: Flushable) -> None:
        """The partition is gone: what it has not flushed need not be."""
        if (timer := self._timers.pop(partition, None)) is not None:
            timer.cancel()
        self._waiting.pop(partition, None)
        self._refused.pop(partition, None)
        self._rest_if_idle()

    def fail(self, error: StorageError) -> None:
        """The directory is lost: whoever waits is told, and whoever comes later."""
        self._failed = error
        told, self._waiting, self._refused = {**self._waiting, **self._refused}, {}, {}
        for partition in told:
            partition.fail_flush(error)
        self._rest_if_idle()

    async def drain(self) -> None:
        """Wait until nothing is pending but what the disk refuses."""
        while self._waiting or self._busy:
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Drain and stop the thread. What is due later is left to whoever closes the logs."""
        for timer in self._timers.values():
            timer.cancel()
        if self._retry is not None:
            self._retry.cancel()
        await self.drain()
        self._rounds.put(None)
        await asyncio.to_thread(self._worker.join)

    def _begin_round(self) -> None:
        if self._busy or not self._waiting:
            return
        partitions, self._waiting = self._waiting, {}
        work: Round = []
        for partition in partitions:
            try:
                work.append((partition, partition.begin_flush()))
            except StorageError as refused:
                if self._health.failure is not None:
                    self._lose(partitions, refused)
                    return
                self._put_off(partition, refused)
        if work:
            self._busy = True
            self._rounds.put(work)
        self._rest_if_idle()

    def _work(self) -> None:
        while (work := self._rounds.get()) is not None:
            failed: tuple[Flushable, FlushJob] | None = None
            vanished: OSError | None = None
            try:
                for failed in work:
                    failed[1].run()
                failed = None
                self._check_present()
            except StorageError:
                pass  # the job knows; those behind it are not even tried
            except OSError as error:
                vanished = error
            try:
                self._loop.call_soon_threadsafe(self._end_round, work, failed, vanished)
            except RuntimeError:  # the loop is gone: the process is ending without us
                return

    def _end_round(self, work: Round, failed: tuple[Flushable, FlushJob] | None, vanished: OSError | None) -> None:
        self._busy = False
        try:
            if failed is not None:
                self._complete(*failed)
            if vanished is not None:
                raise self._health.fail("the directory has vanished", vanished)
            self._health.check()  # something else may have failed meanwhile
            for partition, job in work:
                self._complete(partition, job)
        except StorageError as lost:
            self._lose(dict.fromkeys(partition for partition, _ in work), lost)
            return
        if not self._refused:
            self._health.accepted()
        if self._waiting:
            self._begin_round()
        self._rest_if_idle()

    def _complete(self, partition: Flushable, job: FlushJob) -> None:
        """Raises StorageError where the directory is lost."""
        try:
            partition.complete_flush(job)
            self._refused.pop(partition, None)
        except StorageError as refused:
            if self._health.failure is not None:
                raise
            self._put_off(partition, refused)

    def _put_off(self, partition: Flushable, why: StorageError) -> None:
        """Nothing is lost: try again soon, and tell those who wait if it takes long."""
        now = self._loop.time()
        if now - self._refused.setdefault(partition, now) >= PATIENCE_SECONDS:
            partition.give_up_waiting(why)
        if self._retry is None:
            self._retry = self._loop.call_later(RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._waiting.update(dict.fromkeys(self._refused))
        self._begin_round()

    def _lose(self, partitions: dict[Flushable, None], error: StorageError) -> None:
        self._waiting.update(partitions)
        self.fail(error)

    def _rest_if_idle(self) -> None:
        if not self._busy and not self._waiting:
            self._idle.set()
