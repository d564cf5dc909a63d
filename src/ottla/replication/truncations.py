"""Truncates the logs of a directory with all syncs off the event loop.

A truncation has steps that change the log, on the loop and one log in a turn, and syncs between them
(`storage/log/truncation_steps.py`). All truncations that wait go through their steps together, so that one checkpoint
of the directory counts for all of them: after the death of a broker thousands of followers may have to truncate.

    the recovery points are lowered in memory   checkpoint
    the segments after the new end are renamed  their directories are synced
    the last segment is cut                     file and directory are synced
    the recovery points are those of the logs   checkpoint

Nothing else may use the log from the first step to the last: the partition refuses to be read and is not fetched, and a
partition that is to lead does so afterwards. A crash between two steps leaves what recovery repairs, because the
recovery point on the disk is below everything that a step changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from ottla.core.errors import KafkaError, StorageError
from ottla.core.executors import Executor
from ottla.replication.directory_checkpoints import Checkpoint, DirectoryCheckpoints
from ottla.storage.directory_health import DirectoryHealth
from ottla.storage.log.truncation_steps import Truncation, TruncationSync

log = logging.getLogger(__name__)


OnEnded = Callable[[Exception | None], None]
"""Called on the loop after the last step, or with the error of a step that has failed."""


class _Checkpointing:
    """Writes the checkpoint files; the executor's job."""

    def __init__(self, checkpoint: Checkpoint, done: asyncio.Future[None]) -> None:
        self._checkpoint = checkpoint
        self._done = done
        self.is_written = False
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.is_written = self._checkpoint.run()
        except Exception as error:  # noqa: BLE001 - raised on the loop; here it would end the thread
            self.error = error

    def finished(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


class _Syncing:
    """Runs the syncs of some truncations, one after the other; the executor's job."""

    def __init__(self, syncs: Sequence[tuple[Truncation, TruncationSync]], done: asyncio.Future[None]) -> None:
        self._syncs = syncs
        self._done = done
        self.errors: dict[Truncation, OSError] = {}

    def run(self) -> None:
        for steps, sync in self._syncs:
            try:
                sync.run()
            except OSError as error:
                self.errors[steps] = error

    def finished(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


class Truncations:
    """The truncations of one log directory."""

    def __init__(self, checkpoints: DirectoryCheckpoints, health: DirectoryHealth, executor: Executor) -> None:
        self._checkpoints = checkpoints
        self._health, self._executor = health, executor
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Truncation, OnEnded] = {}
        self._running: dict[Truncation, OnEnded] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, steps: Truncation, on_ended: OnEnded) -> None:
        """Run the steps of a truncation; then call `on_ended`."""
        self._waiting[steps] = on_ended
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="truncate logs")

    def abandon(self, steps: Truncation) -> None:
        """Run no further step: the log is deleted or offline. `on_ended` is not called."""
        for truncations in (self._waiting, self._running):
            if truncations.pop(steps, None) is not None:
                steps.close()

    async def close(self) -> None:
        """End what has begun, and stop the executor. What has not begun is found again after the next start."""
        for steps in tuple(self._waiting):
            self.abandon(steps)
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._executor.close)

    async def _run(self) -> None:
        try:
            while self._waiting:
                self._running, self._waiting = self._waiting, {}
                try:
                    syncs = await self._continue({})
                    while syncs:
                        syncs = await self._continue(await self._sync(syncs))
                except Exception as unexpected:
                    log.exception("unexpected error while logs were truncated")
                    for steps in tuple(self._running):
                        self._end(steps, unexpected)
        finally:
            self._task = None

    async def _continue(
        self, errors: dict[Truncation, OSError | StorageError]
    ) -> dict[Truncation, TruncationSync | None]:
        """Run the next step of each truncation, one in a turn of the loop; return what must be synced after it."""
        syncs: dict[Truncation, TruncationSync | None] = {}
        for steps in tuple(self._running):
            if steps not in self._running:
                continue  # abandoned
            try:
                error = errors.get(steps)
                syncs[steps] = next(steps) if error is None else steps.throw(error)
            except StopIteration:
                self._end(steps, None)
            except KafkaError as refused:  # StorageError; CorruptMessage where a batch cannot be read
                self._end(steps, refused)
            except Exception as unexpected:
                log.exception("unexpected error while a log was truncated")
                self._end(steps, unexpected)
            await asyncio.sleep(0)
        return syncs

    def _end(self, steps: Truncation, error: Exception | None) -> None:
        on_ended = self._running.pop(steps, None)
        if on_ended is None:
            return  # abandoned meanwhile
        try:
            on_ended(error)
        except Exception:
            log.exception("unexpected error after a log was truncated")

    async def _sync(self, syncs: dict[Truncation, TruncationSync | None]) -> dict[Truncation, OSError | StorageError]:
        """Sync in the executor what the steps want; return what failed."""
        errors: dict[Truncation, OSError | StorageError] = {}
        files = [(steps, sync) for steps, sync in syncs.items() if sync is not None]
        if files:
            done: asyncio.Future[None] = self._loop.create_future()
            syncing = _Syncing(files, done)
            self._executor.submit(syncing)
            await done
            errors.update(syncing.errors)
        if len(files) < len(syncs):
            error = await self._checkpoint()
            if error is not None:
                errors.update((steps, error) for steps, sync in syncs.items() if sync is None)
        return errors

    async def _checkpoint(self) -> StorageError | None:
        """Write the checkpoint files; return the error where the disk refuses. Raises what is unexpected."""
        try:
            await self._checkpoints.write(self._write)
        except StorageError as offline:
            return offline
        except OSError as error:
            return self._health.refused("checkpoint", error)
        return None

    async def _write(self, checkpoint: Checkpoint) -> bool:
        self._health.check()
        done: asyncio.Future[None] = self._loop.create_future()
        checkpointing = _Checkpointing(checkpoint, done)
        self._executor.submit(checkpointing)
        await done
        if checkpointing.error is not None:
            raise checkpointing.error
        return checkpointing.is_written
