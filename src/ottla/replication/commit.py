"""Group commit: one fsync for everything that is pending, off the loop, with no wait added when the disk is idle.

While the disk is busy with one round, appends of all partitions pile up; the next takes them all. So a lone producer
waits for one fsync and a crowd shares one, without a timer to tune. A failed fsync is never retried: Linux forgets the
pages it could not write, so a second try would "succeed" (fsyncgate); the log directory goes offline instead.

Station 7 of 9 on a batch's journey. Before: storage/segment.py. After: replication/partition.py wakes who waits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from ottla.core.errors import StorageError
from ottla.storage.flush import FlushJob

log = logging.getLogger(__name__)


class Flushable(Protocol):
    """What a group commit needs of a partition."""

    def begin_flush(self) -> FlushJob:
        """Remember how far the log has been written; the job fsyncs up to there."""
        ...

    def complete_flush(self, job: FlushJob) -> None:
        """The job has run: what it covers is durable."""
        ...

    def fail_flush(self, error: StorageError) -> None:
        """The disk refused: nothing above the last good flush will ever count."""
        ...


Round = list[tuple[Flushable, FlushJob]]


class GroupCommit:
    """The fsyncs of one log directory: a thread that blocks so that the loop need not."""

    def __init__(self, name: str, *, on_failure: Callable[[StorageError], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Flushable, None] = {}  # a dict keeps the order of arrival
        self._busy = False
        self._failed: StorageError | None = None
        self._on_failure = on_failure
        self._rounds: SimpleQueue[Round | None] = SimpleQueue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._work, name=f"group-commit {name}", daemon=True)
        self._thread.start()

    def schedule(self, partition: Flushable) -> None:
        """Make what `partition` has written durable, with everybody else's, as soon as the disk is free."""
        if self._failed is not None:
            partition.fail_flush(self._failed)
            return
        if not self._waiting and not self._busy:
            # One turn of the loop later, so that requests that arrived together share the first round too.
            self._loop.call_soon(self._begin_round)
        self._waiting[partition] = None

    async def drain(self) -> None:
        """Wait until nothing is pending."""
        while self._waiting or self._busy:
            self._idle.clear()
            await self._idle.wait()

    async def close(self) -> None:
        """Drain and stop the thread."""
        await self.drain()
        self._rounds.put(None)
        await asyncio.to_thread(self._thread.join)

    def _begin_round(self) -> None:
        if self._busy or not self._waiting:
            return
        partitions = list(self._waiting)
        try:
            work = [(partition, partition.begin_flush()) for partition in partitions]
        except StorageError as refused:  # some last write of small files: nobody may be left waiting for this round
            self._fail((), refused)
            self._idle.set()
            return
        self._waiting = {}
        self._busy = True
        self._rounds.put(work)

    def _work(self) -> None:
        while (work := self._rounds.get()) is not None:
            error: StorageError | None = None
            try:
                for _, job in work:
                    job.run()
            except StorageError as refused:
                error = refused
            try:
                self._loop.call_soon_threadsafe(self._end_round, work, error)
            except RuntimeError:  # the loop is gone: the process is ending without us
                return

    def _end_round(self, work: Sequence[tuple[Flushable, FlushJob]], error: StorageError | None) -> None:
        self._busy = False
        if error is not None:
            self._fail(work, error)
        else:
            for partition, job in work:
                partition.complete_flush(job)
            if self._waiting:
                self._begin_round()
        if not self._busy and not self._waiting:
            self._idle.set()

    def _fail(self, work: Sequence[tuple[Flushable, FlushJob]], error: StorageError) -> None:
        log.error("fsync failed, the log directory goes offline: %s", error)
        self._failed = error
        waiting, self._waiting = self._waiting, {}
        for partition in [partition for partition, _ in work] + list(waiting):
            partition.fail_flush(error)
        self._on_failure(error)
