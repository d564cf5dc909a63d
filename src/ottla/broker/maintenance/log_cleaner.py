"""Compacts logs: picks the dirtiest log, cleans it in a worker process and swaps in the cleaned segments.

The loop only picks the log and renames files; the worker reads, hashes, recompresses and writes (`storage/cleaning`).
A log whose cleaning fails does not delay the others: a corrupt log is skipped until a restart, as in Kafka; after any
other error the cleaning is retried with a growing delay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ottla.broker.maintenance.log_cleaner_worker import PassFailed, ProcessWorker, Worker, WorkerDied
from ottla.core.clock import Clock
from ottla.core.errors import StorageError
from ottla.core.events import EventKind, EventLog
from ottla.core.ids import TopicPartition
from ottla.core.runtime import random_bytes
from ottla.storage.cleaning import log_to_clean
from ottla.storage.cleaning.cleaner_config import CleanerConfig
from ottla.storage.cleaning.cleaning_pass import CleaningPass, start_cleaning
from ottla.storage.cleaning.cleaning_plan import Counts, PassDone
from ottla.storage.cleaning.log_to_clean import LogToClean
from ottla.storage.cleaning.worker_messages import Failure
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

_BACKOFF_SECONDS_MIN = 0.05  # the setting may be 0; this leaves processor time to others
_LATER_SECONDS_MAX = 900.0
_MIB = 1 << 20


class _Backoff(NamedTuple):
    times: int
    not_before: float  # monotonic seconds


class LogCleaner:
    """Runs cleaner threads, each with a worker, by default a process; `stop` ends them."""

    def __init__(
        self,
        directories: Callable[[], Iterable[LogDirectory]],
        *,
        config: Callable[[], CleanerConfig],
        clock: Clock,
        new_worker: Callable[[], Worker] = ProcessWorker,
        events: EventLog | None = None,
    ) -> None:
        self._directories, self._config, self._clock = directories, config, clock
        self._new_worker, self._events = new_worker, events
        self.uncleanable: dict[PartitionLog, str] = {}  # and why
        self.cleanings = self.bytes_read = self.bytes_written = 0  # since the start of the broker
        self.seconds = 0.0
        self._backoffs: dict[PartitionLog, _Backoff] = {}
        self._in_progress: set[PartitionLog] = set()
        self._threads: list[asyncio.Task[None]] = []
        self._task = asyncio.get_running_loop().create_task(self._keep_threads(), name="cleaner")

    async def stop(self) -> None:
        """Stop cleaning; a running pass is abandoned."""
        tasks = [self._task, *self._threads]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- Passes

    async def _keep_threads(self) -> None:
        """Keep `log.cleaner.threads` cleaner threads, a setting that may change."""
        loop = asyncio.get_running_loop()
        while True:
            wanted = self._config().threads
            while len(self._threads) < wanted:
                self._threads.append(loop.create_task(self._clean_continuously(), name="cleaner thread"))
            while len(self._threads) > wanted:
                surplus = self._threads.pop()
                surplus.cancel()
                await asyncio.gather(surplus, return_exceptions=True)
            await asyncio.sleep(max(self._config().backoff_ms / 1000, _BACKOFF_SECONDS_MIN))

    async def _clean_continuously(self) -> None:
        worker = self._new_worker()
        try:
            while True:
                if not await self._clean_dirtiest(worker):
                    await worker.stop()
                    await asyncio.sleep(max(self._config().backoff_ms / 1000, _BACKOFF_SECONDS_MIN))
        finally:
            await worker.kill()

    async def _clean_dirtiest(self, worker: Worker) -> bool:
        """Clean the dirtiest log; returns whether there was one and its cleaning was completed."""
        picked = self._pick()
        if picked is None:
            return False
        directory, chosen = picked
        self._in_progress.add(chosen.log)
        try:
            await self._clean(directory, chosen, worker)
        except (PassFailed, WorkerDied, StorageError, OSError) as error:
            self._failed(chosen.log, error)
        except Exception:
            self._failed(chosen.log, None)
            log.exception("cleaning %s failed", chosen.log.topic_partition)
        else:
            self._backoffs.pop(chosen.log, None)
            return True
        finally:
            self._in_progress.discard(chosen.log)
        return False

    def _pick(self) -> tuple[LogDirectory, LogToClean] | None:
        places: dict[PartitionLog, LogDirectory] = {}
        due: list[LogToClean] = []
        for directory, partition_log in self._compacted():
            if (candidate := self._candidate(directory, partition_log)) is not None:
                places[partition_log] = directory
                due.append(candidate)
        chosen = log_to_clean.dirtiest_log(due)
        return (places[chosen.log], chosen) if chosen is not None else None

    def _compacted(self) -> Iterator[tuple[LogDirectory, PartitionLog]]:
        """Iterate over the logs that may be cleaned now."""
        now = self._clock.monotonic()
        directories = tuple(self._directories())
        moving = {
            topic_partition for directory in directories for topic_partition in directory.future_logs
        }  # cleaned where they come to
        known = {partition_log for directory in directories for partition_log in directory.logs.values()}
        for gone in (self.uncleanable.keys() | self._backoffs.keys()) - known:
            self.uncleanable.pop(gone, None)
            self._backoffs.pop(gone, None)
        for directory in directories:
            for each in directory.logs.values():
                if not each.config.is_compacted or each in self._in_progress or each in self.uncleanable:
                    continue
                if each.topic_partition in moving:
                    continue
                backoff = self._backoffs.get(each)
                if backoff is None or backoff.not_before <= now:
                    yield directory, each

    def _failed(self, failed: PartitionLog, error: Exception | None) -> None:
        name = failed.topic_partition
        if isinstance(error, PassFailed) and error.kind is Failure.CORRUPT:
            self.uncleanable[failed] = str(error)
            if self._events is not None:
                self._events.record(
                    EventKind.COMPACTION,
                    f"it cannot be compacted and is skipped until a restart: {error}",
                    topic=name.topic,
                    partition=name.partition,
                )
            log.error("%s cannot be compacted and is skipped until a restart: %s", name, error)
            return
        times = self._backoffs[failed].times + 1 if failed in self._backoffs else 1
        seconds = min(self._config().backoff_ms / 1000 * 2**times, _LATER_SECONDS_MAX)
        self._backoffs[failed] = _Backoff(times, self._clock.monotonic() + seconds)
        if error is not None:
            log.warning("cleaning %s failed; retrying in %g s: %s", name, seconds, error)

    # ---- One log

    async def _clean(self, directory: LogDirectory, chosen: LogToClean, worker: Worker) -> None:
        """Clean a log in as many passes as the offset map needs. Stops if the log was changed meanwhile."""
        target, counts, passes = chosen.log, Counts(), 0
        await self._note_gaps(directory, target)
        first = left = self._candidate(directory, target)
        while left is not None:
            chosen = left
            cleaning = start_cleaning(chosen, self._config(), token=random_bytes(8).hex(), now_ms=self._clock.wall_ms())
            done = await self._pass(cleaning, worker)
            if done is None or not await self._note_cleaned(directory, target, cleaning, done):
                return
            passes += 1
            counts.add(done.counts)
            reached_end = done.end_offset >= chosen.first_uncleanable_offset
            left = None if reached_end else self._candidate(directory, target)
        self.cleanings += 1
        self.bytes_read += counts.bytes_read
        self.bytes_written += counts.bytes_written
        self.seconds += counts.seconds
        if first is not None:
            log.info("%s", _summary(target.topic_partition, first, counts, passes))

    def _candidate(self, directory: LogDirectory, target: PartitionLog) -> LogToClean | None:
        """Return what there is to clean now; None also if the log was deleted meanwhile, or moves.

        A copy that has a value already must not miss the tombstone that comes after it.
        """
        if directory.logs.get(target.topic_partition) is not target or not target.config.is_compacted:
            return None
        if any(target.topic_partition in log_directory.future_logs for log_directory in self._directories()):
            return None
        return log_to_clean.log_to_clean(target, now_ms=self._clock.wall_ms())

    async def _pass(self, cleaning: CleaningPass, worker: Worker) -> PassDone | None:
        """Run one pass and swap in each group as it is cleaned; None if the log was changed meanwhile."""
        ended = False
        try:
            async for step in worker.steps(cleaning.plan):
                why = cleaning.overtaken() if isinstance(step, PassDone) else cleaning.swap_in(step)
                if why:
                    log.info("cleaning %s was abandoned: %s", cleaning.plan.topic_partition, why)
                    return None
                if isinstance(step, PassDone):
                    ended = True
                    return step
        except PassFailed as failed:
            ended = True
            if failed.kind is Failure.GONE and cleaning.overtaken():
                log.info("cleaning %s was abandoned: %s", cleaning.plan.topic_partition, cleaning.overtaken())
                return None
            raise
        finally:
            if not ended:
                await worker.kill()  # before its files are removed: it must not write more
            cleaning.discard()
        return None

    async def _note_gaps(self, directory: LogDirectory, target: PartitionLog) -> None:
        """Record that batches may be missing, for recovery, before the first one is removed."""
        if not target.cleaner_line.is_written:
            target.cleaner_line.begin(target.log_start_offset)
            await self._checkpoint(directory)
            target.cleaner_line.written()

    async def _note_cleaned(
        self, directory: LogDirectory, target: PartitionLog, cleaning: CleaningPass, done: PassDone
    ) -> bool:
        """Sync the renames before the cleaner checkpoint, so that a crash leaves no dirty batch below it."""
        try:
            await asyncio.to_thread(target.files.sync_directory, target.directory)
        except FileNotFoundError:
            return False  # the topic was deleted
        except OSError as error:
            raise target.health.refused(f"compaction of {target.topic_partition}", error) from error
        if cleaning.overtaken() or directory.logs.get(target.topic_partition) is not target:
            return False
        target.cleaner_line.cleaned_to(done.end_offset)
        await self._checkpoint(directory)
        return True

    async def _checkpoint(self, directory: LogDirectory) -> None:
        directory.health.check()
        try:
            while not await asyncio.to_thread(directory.begin_checkpoint().run):
                pass  # a newer checkpoint was started but may not be complete yet
        except OSError as error:
            raise directory.health.refused("checkpoint of the cleaner", error) from error


def _summary(name: TopicPartition, first: LogToClean, counts: Counts, passes: int) -> str:
    """Describe the cleaning in one line."""
    more = f", {passes} passes" if passes > 1 else ""
    keyless = f", {counts.records_without_key:,} without a key" if counts.records_without_key else ""
    return (
        f"{name} compacted in {counts.seconds:.1f} s{more}: {counts.records_read:,} records read, "
        f"{counts.records_kept:,} kept{keyless}; {counts.bytes_read / _MIB:.1f} MiB became "
        f"{counts.bytes_written / _MIB:.1f} MiB; {first.dirty_ratio:.0%} of it was dirty; "
        f"{counts.keys:,} keys in {counts.map_bytes / _MIB:.1f} MiB"
    )
