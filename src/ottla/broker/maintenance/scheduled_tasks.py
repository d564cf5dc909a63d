"""Schedules the periodic tasks of a broker: retention, checkpoints, removal of deleted files, producers, garbage.

Each task has its own period and uses a thread for long disk work. A task that fails is logged and retried after its
period: one corrupt segment must not end retention for all the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from ottla.core import garbage_collection
from ottla.core.clock import Clock
from ottla.core.errors import StorageError
from ottla.limits.loop_slices import LoopSlices
from ottla.replication.replicas import Replicas
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.directories.space_reserve import SpaceReserve

log = logging.getLogger(__name__)

PURGE_SECONDS = 5.0
SPACE_SECONDS = 1.0
DELETIONS_SECONDS = 60.0
LATE_TRANSACTIONS_SECONDS = 60.0
REPORT_SECONDS = 1.0

COLLECTION_SECONDS = 10.0


class ScheduledTasks:
    """Runs the periodic tasks of a broker."""

    def __init__(
        self,
        replicas: Replicas,
        *,
        config: LogConfig,
        clock: Clock,
        slices: LoopSlices,
        complete_deletions: Callable[[], Awaitable[None]],
        check_transactions: Callable[[], Awaitable[None]],
        reserves: Sequence[SpaceReserve] = (),
        report_replicas: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._reserves = reserves
        self._retention_requests: dict[LogDirectory, int] = {}  # of the directories that are short of space
        self._replicas, self._clock, self._slices = replicas, clock, slices
        self._tasks = [
            asyncio.get_running_loop().create_task(self._fill_first_reserves(), name="space reserves"),
            self._every("retention", config.retention_check_interval_ms / 1000, self.delete_expired),
            self._every("checkpoint", config.recovery_point_checkpoint_interval_ms / 1000, self._checkpoint),
            self._every("purge", PURGE_SECONDS, self._purge),
            self._every("free space", SPACE_SECONDS, self._free_space),
            self._every("producers", config.producer_id_expiration_check_interval_ms / 1000, self._producers),
            self._every("deletions", DELETIONS_SECONDS, complete_deletions),
            self._every("late transactions", LATE_TRANSACTIONS_SECONDS, check_transactions),
            self._every("collection", COLLECTION_SECONDS, self._collection),
        ]
        if report_replicas is not None:
            self._tasks.append(self._every("replica report", REPORT_SECONDS, report_replicas))

    async def stop(self) -> None:
        """Stop scheduling, and wait for tasks that are running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _every(self, name: str, seconds: float, job: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._repeat(name, seconds, job), name=name)

    async def _repeat(self, name: str, seconds: float, job: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await job()
            except Exception:
                log.exception("the scheduled task %s failed; retrying in %g s", name, seconds)

    async def delete_expired(self) -> None:
        """Delete the segments that are older or more than their topics keep."""

        async def delete(directory: LogDirectory) -> None:
            now_ms = self._clock.wall_ms()
            if directory.begin_retention(now_ms):
                await self._write_checkpoint(directory)  # on the loop `run_retention` does it otherwise
            directory.run_retention(now_ms)

        await self._in_each("retention", delete)

    async def _checkpoint(self) -> None:
        await self._in_each("checkpoint", self._write_checkpoint)

    async def _write_checkpoint(self, directory: LogDirectory) -> None:
        job = await self._slices.run(directory.begin_checkpoint_slices(self._slices))
        await asyncio.to_thread(job.run)

    async def _purge(self) -> None:
        """Remove deleted files, and detect log directories that another program removed."""
        for directory in self._replicas.directories.online:
            try:
                await asyncio.to_thread(directory.check_present)
                self._replicas.check_logs(directory, await asyncio.to_thread(directory.missing_logs))
            except OSError as error:
                directory.health.fail("the directory was removed", error)
        await self._in_each("purge", self._remove_deleted)
        await self._fill_reserves()

    async def _free_space(self) -> None:
        """Free space at once where there is little: what commands have made deletable waits for no delay."""
        directories = self._replicas.directories.online
        await asyncio.to_thread(self._look_at_space, directories)
        for directory in directories:
            if directory.is_short_of_space:
                await self._in("retention", directory, self._retain_at_once)
                await self._in("purge", directory, self._remove_deleted)
            else:
                self._retention_requests.pop(directory, None)
        for reserve in self._reserves:
            if reserve.is_needed:
                await asyncio.to_thread(reserve.fill)

    def _retain_at_once(self, directory: LogDirectory) -> None:
        requests = directory.health.retention_requests
        if self._retention_requests.get(directory) != requests:
            directory.run_retention(self._clock.wall_ms())
            self._retention_requests[directory] = requests

    async def _remove_deleted(self, directory: LogDirectory) -> None:
        await asyncio.to_thread(directory.purge_deleted, self._clock.wall_ms())

    def _look_at_space(self, directories: Sequence[LogDirectory]) -> None:
        for directory in directories:
            directory.look_at_space()

    async def _fill_first_reserves(self) -> None:
        await asyncio.sleep(SPACE_SECONDS)  # a start has other things to write
        await self._fill_reserves()

    async def _fill_reserves(self) -> None:
        """Fill the space reserves where they are missing and there is free space."""
        for reserve in self._reserves:
            await asyncio.to_thread(reserve.fill)

    async def _producers(self) -> None:
        await self._in_each("producers", lambda directory: directory.expire_producers(self._clock.wall_ms()))

    async def _collection(self) -> None:
        garbage_collection.collect()

    async def _in_each(self, name: str, work: Callable[[LogDirectory], Awaitable[object] | object]) -> None:
        """Run the work for every online directory; disk errors are reported by its health."""
        for directory in self._replicas.directories.online:
            await self._in(name, directory, work)

    async def _in(
        self, name: str, directory: LogDirectory, work: Callable[[LogDirectory], Awaitable[object] | object]
    ) -> None:
        try:
            done = work(directory)
            if isinstance(done, Awaitable):
                await done
        except OSError as error:
            directory.health.refused(name, error)
        except StorageError:
            pass  # already reported; retried at the next run
