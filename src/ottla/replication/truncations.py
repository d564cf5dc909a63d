"""Truncates the logs of a directory with all syncs off the event loop.

A truncation has steps that change the log, on the loop and one log in a turn, and syncs between them
(`storage/log/truncation.py`). All truncations that wait go through their steps together, so that one checkpoint of the
directory counts for all of them: after the death of a broker thousands of followers may have to truncate.

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
from collections.abc import Sequence
from typing import Protocol

from ottla.core.errors import KafkaError, StorageError
from ottla.core.executors import Executor
from ottla.replication.directory_checkpoints import Checkpoint, DirectoryCheckpoints
from ottla.storage.log.flush import DirectoryHealth
from ottla.storage.log.truncation import Truncation, TruncationSync

log = logging.getLogger(__name__)


class TruncationListener(Protocol):
    """Receives the end of a truncation."""

    def truncation_ended(self, error: Exception | None) -> None:
        """React on the loop to the end of the last step, or to one that has failed."""
        ...


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

    def __init__(self, syncs: Sequence[tuple[TruncationListener, TruncationSync]], done: asyncio.Future[None]) -> None:
        self._syncs = syncs
        self._done = done
        self.errors: dict[TruncationListener, OSError] = {}

    def run(self) -> None:
        for listener, sync in self._syncs:
            try:
                sync.run()
            except OSError as error:
                self.errors[listener] = error

    def finished(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


class Truncations:
    """The truncations of one log directory."""

    def __init__(self, checkpoints: DirectoryCheckpoints, health: DirectoryHealth, executor: Executor) -> None:
        self._checkpoints = checkpoints
        self._health, self._executor = health, executor
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[TruncationListener, Truncation] = {}
        self._running: dict[TruncationListener, Truncation] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, listener: TruncationListener, steps: Truncation) -> None:
        """Run the steps of a truncation; then call `truncation_ended`."""
        self._waiting[listener] = steps
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="truncate logs")

    def abandon(self, listener: TruncationListener) -> None:
        """Run no further step: the log is deleted or offline. `truncation_ended` is not called."""
        for each in (self._waiting, self._running):
            steps = each.pop(listener, None)
            if steps is not None:
                steps.close()

    async def close(self) -> None:
        """End what has begun, and stop the executor. What has not begun is found again after the next start."""
        for listener in tuple(self._waiting):
            self.abandon(listener)
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
                    for listener in tuple(self._running):
                        self._end(listener, unexpected)
        finally:
            self._task = None

    async def _continue(
        self, errors: dict[TruncationListener, OSError | StorageError]
    ) -> dict[TruncationListener, TruncationSync | None]:
        """Run the next step of each truncation, one in a turn of the loop; return what must be synced after it."""
        syncs: dict[TruncationListener, TruncationSync | None] = {}
        for listener in tuple(self._running):
            steps = self._running.get(listener)
            if steps is None:
                continue  # abandoned
            try:
                error = errors.get(listener)
                syncs[listener] = next(steps) if error is None else steps.throw(error)
            except StopIteration:
                self._end(listener, None)
            except KafkaError as refused:  # StorageError; CorruptMessage where a batch cannot be read
                self._end(listener, refused)
            except Exception as unexpected:
                log.exception("unexpected error while a log was truncated")
                self._end(listener, unexpected)
            await asyncio.sleep(0)
        return syncs

    def _end(self, listener: TruncationListener, error: Exception | None) -> None:
        if self._running.pop(listener, None) is None:
            return  # abandoned meanwhile
        try:
            listener.truncation_ended(error)
        except Exception:
            log.exception("unexpected error after a log was truncated")

    async def _sync(
        self, syncs: dict[TruncationListener, TruncationSync | None]
    ) -> dict[TruncationListener, OSError | StorageError]:
        """Sync in the executor what the steps want; return what failed."""
        errors: dict[TruncationListener, OSError | StorageError] = {}
        files = [(listener, sync) for listener, sync in syncs.items() if sync is not None]
        if files:
            done: asyncio.Future[None] = self._loop.create_future()
            syncing = _Syncing(files, done)
            self._executor.submit(syncing)
            await done
            errors.update(syncing.errors)
        if len(files) < len(syncs):
            error = await self._checkpoint()
            if error is not None:
                errors.update((listener, error) for listener, sync in syncs.items() if sync is None)
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
