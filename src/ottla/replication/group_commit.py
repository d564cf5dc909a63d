"""Commits in groups: one fsync for everything that is pending, without a timer.

A round takes everything that was appended until it begins. It begins at the end of the loop's turn, so that requests
that arrived together share it, and with it one fsync per log. Where the round runs depends on the disk:

- while the disk is fast, on the event loop itself: handing a round to a thread and back costs more than the fsync.
  The clients that were answered after the last round send their next requests while the loop is still busy with
  others. So a round that has fewer appends than the last one waits for the next turn while turns bring more;
- otherwise in an executor. While the disk is busy with one round, appends of all partitions pile up; the next round
  takes them all. So a lone producer waits for one fsync and many producers share one.

A failed fsync is never retried: Linux marks the pages it could not write as clean, so a second try would "succeed"
(fsyncgate); the log directory goes offline instead. A flush that could not begin, because a small file found no space
or no file could be opened, has lost nothing. It is retried every 250 ms; its waiters fail with StorageError after 5 s.

Step 7 of 9 on the path of a batch (ARCHITECTURE.md).
Before: storage/log/segment.py. Next: replication/partition.py wakes the waiters.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, Protocol

from ottla.core.clock import Clock
from ottla.core.errors import StorageError
from ottla.core.executors import Executor
from ottla.core.histogram import Histogram
from ottla.core.settings import LONG_MAX
from ottla.replication.truncations import Truncations
from ottla.storage.directory_health import DirectoryHealth
from ottla.storage.log.flush import FlushJob
from ottla.storage.log.partition_log import PartitionLog

RETRY_SECONDS = 0.25
PATIENCE_SECONDS = 5.0  # waiters fail after so long while a flush cannot begin

FAST_SYNC_SECONDS: Final = 500e-6
"""From this average fsync on down rounds move to the loop: a thread costs 50 to 150 us per round for its wake-ups.

The average of rounds in the thread includes the wait for the interpreter lock, and so is above the disk's own."""

SLOW_SYNC_SECONDS: Final = 1e-3
"""From this average up rounds move back to the executor. Twice the other limit, so that they do not move to and fro."""

OUTLIER_SECONDS: Final = 5e-3
"""After one round of this length on the loop the executor takes over at once."""

LOOP_ROUND_SECONDS_MAX: Final = 1e-3
"""A round that is expected to take longer, because it has many logs to sync, runs in the executor."""

GATHERING_TURNS_MAX: Final = 8
"""A round on the loop waits for more appends for so many turns at most."""

_AVERAGE_WEIGHT: Final = 1 / 8
_TRIAL_ROUNDS: Final = 16  # so many rounds in the executor at least before the loop takes over
_TRIAL_ROUNDS_MAX: Final = 4096  # doubled with each outlier on the loop: a disk with many of them rarely meets it


def _nothing() -> None:
    """Do nothing, for a directory that cannot vanish."""


log = logging.getLogger(__name__)


class Flushable(Protocol):
    """A partition that a group commit flushes."""

    def begin_flush(self) -> FlushJob:
        """Note how far the log has been written; the job fsyncs up to there. Raises StorageError."""
        ...

    def complete_flush(self, job: FlushJob) -> None:
        """Complete a job that has run: what it covers is durable. Raises StorageError where it could not be done."""
        ...

    def take_out_of_service(self, why: str) -> None:
        """Serve nothing any more: the state may be changed by half."""
        ...

    def fail_flush(self, error: StorageError) -> None:
        """Fail the flush because the directory is lost: nothing above the last good flush will ever be durable."""
        ...

    def give_up_waiting(self, error: StorageError) -> None:
        """Fail those who wait for the flush: it is still to come, at an unknown time."""
        ...


def _ignore(partition: Flushable, error: StorageError) -> None:
    """Do nothing, for partitions without an owner."""


class SyncSpeed:
    """Measures fsyncs and decides where the next round runs."""

    __slots__ = ("_rounds", "_trial", "average_seconds", "durations", "is_fast")

    def __init__(self) -> None:
        self.average_seconds = SLOW_SYNC_SECONDS  # of one fsync
        self.durations: Histogram | None = None  # of whole rounds, once metrics are served
        self._rounds = 0  # since the last move
        self._trial = _TRIAL_ROUNDS
        self.is_fast = False  # a disk is slow until it is measured

    def record(self, seconds: float, syncs: int, *, on_loop: bool) -> None:
        """Take a round into the average."""
        if self.durations is not None:
            self.durations.record(int(seconds * 1e6))
        self._rounds += 1
        if on_loop and seconds >= OUTLIER_SECONDS:
            self.average_seconds = seconds
            self._trial = min(self._trial * 2, _TRIAL_ROUNDS_MAX)
            self.is_fast = False
            self._rounds = 0
            return
        each = seconds / syncs if syncs else 0.0
        self.average_seconds += (each - self.average_seconds) * _AVERAGE_WEIGHT
        if self.is_fast:
            if self.average_seconds >= SLOW_SYNC_SECONDS:
                self.is_fast = False
                self._rounds = 0
            elif self._rounds >= _TRIAL_ROUNDS_MAX:
                self._trial = _TRIAL_ROUNDS  # the disk has been fast for long
        elif self.average_seconds <= FAST_SYNC_SECONDS and self._rounds >= self._trial:
            self.is_fast = True
            self._rounds = 0


class _Round:
    """The flushes of all logs that were pending when it began; the executor's job."""

    __slots__ = ("_commit", "flushes", "on_loop", "released", "seconds", "stopped_at", "syncs", "vanished")

    def __init__(self, commit: GroupCommit, flushes: list[tuple[Flushable, FlushJob]], syncs: int) -> None:
        self._commit = commit
        self.flushes = flushes
        self.syncs = syncs
        self.released: set[Flushable] = set()  # to be completed no more: their logs were replaced
        self.on_loop = False
        self.seconds = 0.0
        self.stopped_at: tuple[Flushable, FlushJob] | None = None  # its fsync failed; those after it were not tried
        self.vanished: OSError | None = None

    def run(self) -> None:
        """Run the fsyncs, on the loop or in the executor."""
        commit = self._commit
        began = commit.clock.monotonic()
        try:
            for flush in self.flushes:
                self.stopped_at = flush
                flush[1].run()
            self.stopped_at = None
            self.seconds = commit.clock.monotonic() - began
            commit.check_present()
        except StorageError:
            pass  # the job has the error
        except OSError as error:
            self.vanished = error

    def finished(self) -> None:
        """Complete the flushes, on the loop."""
        self._commit.end_round(self)


class GroupCommit:
    """The fsyncs of one log directory."""

    def __init__(
        self,
        health: DirectoryHealth,
        *,
        executor: Executor,
        clock: Clock,
        check_present: Callable[[], None] = _nothing,
        on_missing: Callable[[Flushable, StorageError], None] = _ignore,
        truncations: Truncations | None = None,
        slow_s: float = math.inf,
    ) -> None:
        self.truncations = truncations  # of the same directory; without it logs are truncated on the loop
        self._on_missing = on_missing  # the files of one partition were removed
        self.clock = clock
        self.check_present = check_present  # raises OSError: an fsync of files that were removed proves nothing
        self.speed = SyncSpeed()
        self._slow_s = slow_s  # a round that takes so long is an event
        self._loop = asyncio.get_running_loop()
        self._health = health
        self._executor = executor
        self._waiting: dict[Flushable, None] = {}  # a dict keeps the order of arrival
        self._refused: dict[Flushable, float] = {}  # partitions whose flush could not begin, and since when
        self._timers: dict[Flushable, asyncio.TimerHandle] = {}  # partitions whose flush is due at some time
        self._retry: asyncio.TimerHandle | None = None
        self._is_scheduled = False  # a round begins at the end of this turn of the loop
        self._is_busy = False
        self._running: _Round | None = None
        self._appends = 0  # since the last round began
        self._gathered = 0  # of them, before this turn of the loop
        self._turns = 0  # that the next round has waited for more
        self._last_appends = 0  # of the last round
        self._failed: StorageError | None = None
        self._is_draining = False
        self._idle = asyncio.Event()  # set while draining

    def schedule(self, partition: Flushable) -> None:
        """Make what `partition` has written durable, together with all others, as soon as the disk is free."""
        if self._failed is not None:
            partition.fail_flush(self._failed)
            return
        if not self._waiting and not self._is_busy:
            self._is_scheduled = True
            self._loop.call_soon(self._begin_round)
        self._waiting[partition] = None
        self._appends += 1

    def schedule_within(self, partition: Flushable, seconds: float) -> None:
        """Schedule a flush after so many seconds at most, unless it is due sooner already."""
        due, timer = self._loop.time() + seconds, self._timers.get(partition)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[partition] = self._loop.call_at(due, self._is_due, partition)

    def schedule_by_rule(self, partition: Flushable, log: PartitionLog, *, begins_segment: bool = False) -> None:
        """Flush with durability=page-cache after `flush.messages` records or `flush.ms`, whichever comes first.

        And as Kafka where the last append began a segment, so that the sealed one goes to the disk.
        """
        if begins_segment or log.end_offset - log.flushed_offset >= log.config.flush_messages:
            self.schedule(partition)
        elif log.config.flush_ms != LONG_MAX:
            self.schedule_within(partition, log.config.flush_ms / 1000)

    def _is_due(self, partition: Flushable) -> None:
        del self._timers[partition]
        self.schedule(partition)

    def forget(self, partition: Flushable) -> None:
        """Forget a partition that is removed: what it has not flushed need not be."""
        if (timer := self._timers.pop(partition, None)) is not None:
            timer.cancel()
        self._waiting.pop(partition, None)
        self._refused.pop(partition, None)
        if self._is_draining:
            self._set_idle_if_done()

    def release(self, partition: Flushable) -> None:
        """Release a partition with another log now, in another directory: nothing of it is flushed here any more."""
        self.forget(partition)
        if self._running is not None:
            self._running.released.add(partition)

    def fail(self, error: StorageError) -> None:
        """Fail those who wait, and all later ones, because the directory is lost."""
        self._failed = error
        failed, self._waiting, self._refused = {**self._waiting, **self._refused}, {}, {}
        for partition in failed:
            partition.fail_flush(error)
        if self._is_draining:
            self._set_idle_if_done()

    async def drain(self) -> None:
        """Wait until nothing is pending but what the disk refuses."""
        while self._waiting or self._is_busy:
            self._is_draining = True
            self._idle.clear()
            await self._idle.wait()
        self._is_draining = False

    async def close(self) -> None:
        """Drain and stop the executors. What is due later is left to the close of the logs."""
        if self.truncations is not None:
            await self.truncations.close()
        for timer in self._timers.values():
            timer.cancel()
        if self._retry is not None:
            self._retry.cancel()
        await self.drain()
        await asyncio.to_thread(self._executor.close)

    def _begin_round(self) -> None:
        """Begin a round; one that was scheduled first waits for the appends of other turns while they bring some."""
        appends, speed = self._appends, self.speed
        is_growing = self._is_scheduled and self._gathered < appends < self._last_appends
        if is_growing and speed.is_fast and self._turns < GATHERING_TURNS_MAX:
            self._gathered = appends
            self._turns += 1
            self._loop.call_soon(self._begin_round)
            return
        self._is_scheduled = False
        if self._is_busy or not self._waiting:
            return
        partitions, self._waiting = self._waiting, {}
        self._last_appends = appends
        self._appends = self._gathered = self._turns = 0
        flushes: list[tuple[Flushable, FlushJob]] = []
        syncs = 0
        for partition in partitions:
            try:
                job = partition.begin_flush()
            except StorageError as refused:
                if self._health.failure is not None:
                    self._lose(partitions, refused)
                    return
                self._put_off_or_lose(partition, refused)
            else:
                flushes.append((partition, job))
                syncs += job.syncs
        if flushes:
            self._is_busy = True
            started = self._running = _Round(self, flushes, syncs)
            if speed.is_fast and speed.average_seconds * syncs <= LOOP_ROUND_SECONDS_MAX:
                started.on_loop = True
                started.run()
                self.end_round(started)
            else:
                self._executor.submit(started)
        if self._is_draining:
            self._set_idle_if_done()

    def end_round(self, ended: _Round) -> None:
        """Complete the flushes of a round that has run."""
        self._is_busy, self._running = False, None
        try:
            if ended.stopped_at is not None:
                partition, job = ended.stopped_at
                if partition not in ended.released:
                    self._complete(partition, job)
                elif job.error is not None:
                    raise self._health.fail("fsync of a log that was replaced", job.error)
            if ended.vanished is not None:
                raise self._health.fail("the directory has vanished", ended.vanished)
            if self._health.failure is not None:
                self._health.check()  # something else may have failed meanwhile
            for partition, job in ended.flushes:
                if partition not in ended.released:
                    self._complete(partition, job)
        except StorageError as lost:
            self._lose(dict.fromkeys(each for each, _ in ended.flushes if each not in ended.released), lost)
            return
        self.speed.record(ended.seconds, ended.syncs, on_loop=ended.on_loop)
        if ended.seconds >= self._slow_s:
            self._health.slow_sync(ended.seconds, ended.syncs)
        if self._health.refusal is not None and not self._refused:
            self._health.accepted()
        if self._waiting and not self._is_scheduled:
            self._begin_round()
        if self._is_draining:
            self._set_idle_if_done()

    def _complete(self, partition: Flushable, job: FlushJob) -> None:
        """Complete a partition's flush. Raises StorageError where the directory is lost."""
        try:
            partition.complete_flush(job)
        except StorageError as refused:
            if self._health.failure is not None:
                raise
            self._put_off_or_lose(partition, refused)
            return
        except Exception as error:  # the other partitions of the round have been flushed
            log.exception("unexpected error when the flush of a partition was completed; it is taken out of service")
            partition.take_out_of_service(f"completing a flush failed: {error!r}")
        if self._refused:
            self._refused.pop(partition, None)

    def _put_off_or_lose(self, partition: Flushable, why: StorageError) -> None:
        """Retry what the disk refused; a log with missing files is lost."""
        if not why.missing_path:
            self._put_off(partition, why)
            return
        self._refused.pop(partition, None)
        partition.fail_flush(why)
        self._on_missing(partition, why)

    def _put_off(self, partition: Flushable, why: StorageError) -> None:
        """Try again soon, and fail those who wait if it takes long: nothing is lost."""
        now = self._loop.time()
        if now - self._refused.setdefault(partition, now) >= PATIENCE_SECONDS:
            partition.give_up_waiting(why)
        if self._retry is None:
            self._retry = self._loop.call_later(RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._waiting.update(dict.fromkeys(self._refused))
        if not self._is_scheduled:
            self._begin_round()

    def _lose(self, partitions: dict[Flushable, None], error: StorageError) -> None:
        self._waiting.update(partitions)
        self.fail(error)

    def _set_idle_if_done(self) -> None:
        if not self._is_busy and not self._waiting:
            self._idle.set()
