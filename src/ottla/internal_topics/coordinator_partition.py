"""Loads one partition of an internal topic into a coordinator's memory, and writes the coordinator's changes.

A `CoordinatorPartition` exists while this broker leads the partition. Results after that are invalid, so `is_open` is
checked after every wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from ottla.core.errors import CoordinatorLoadInProgress, ErrorCode, NotCoordinator, error_for
from ottla.internal_topics.log import KeyValue, LoadedRecords, Producer, TopicLog
from ottla.internal_topics.writer import PartitionWriter

log = logging.getLogger(__name__)

LOADED_AT_ONCE = 500
"""Records to load before yielding to the loop: well under 5 ms."""

RETRY_LOAD_SECONDS = 1.0


class Loader(Protocol):
    """Builds a coordinator's state from the log; a new one for each attempt."""

    def apply(self, loaded: LoadedRecords) -> None:
        """Apply the next records; the last record of a key wins."""
        ...

    def complete(self) -> str:
        """Take the state into use; returns what was loaded, in words for the log."""
        ...


class WriteResult(Protocol):
    """Takes the result of a write; called once, in the order of the log."""

    def __call__(self, *, stored: bool) -> None:
        """Must not raise."""
        ...


class CoordinatorPartition:
    """Holds whether one partition is loaded, and its writer. `start` loads it."""

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_log: TopicLog,
        new_loader: Callable[[], Loader],
        *,
        write_timeout_ms: int,
    ) -> None:
        self.topic, self.partition = topic, partition
        self.writer = PartitionWriter(topic_log, partition)
        self.is_open = True
        self._topic_log, self._new_loader = topic_log, new_loader
        self._write_timeout_ms = write_timeout_ms
        self._is_loaded = False
        self._loading: asyncio.Task[None] | None = None

    # ---- Loading

    def start(self) -> None:
        """Begin to load."""
        assert self._loading is None, f"{self.topic}-{self.partition} is loaded once"
        name = f"load {self.topic}-{self.partition}"
        self._loading = asyncio.get_running_loop().create_task(self._load(), name=name)

    @property
    def is_ready(self) -> bool:
        """Return whether everything is loaded."""
        return self._is_loaded and self.is_open

    async def wait_until_loaded(self) -> None:
        """Wait until everything is loaded."""
        if self._loading is not None:
            await asyncio.shield(self._loading)

    def check_ready(self) -> None:
        """Raise NotCoordinator or CoordinatorLoadInProgress unless everything is loaded."""
        if not self.is_open:
            raise NotCoordinator(f"this broker does not lead {self.topic}-{self.partition} any more")
        if not self._is_loaded:
            raise CoordinatorLoadInProgress(f"{self.topic}-{self.partition} is being loaded")

    def stop(self) -> None:
        """Stop coordinating; the caller fails its waiting requests, then awaits `close`."""
        self.is_open = False
        if self._loading is not None:
            self._loading.cancel()

    async def close(self) -> None:
        """Wait until the queued writes are written or have failed."""
        if self._loading is not None:
            await asyncio.gather(self._loading, return_exceptions=True)
        await self.writer.close()

    async def _load(self) -> None:
        while self.is_open and not self._is_loaded:
            try:
                await self._load_once()
            except Exception:
                log.exception("loading %s-%d failed; retrying in 1 s", self.topic, self.partition)
                await asyncio.sleep(RETRY_LOAD_SECONDS)

    async def _load_once(self) -> None:
        loader = self._new_loader()
        count = since_yield = 0
        async for loaded in self._topic_log.read_all(self.partition):
            loader.apply(loaded)
            count += len(loaded.records)
            since_yield += len(loaded.records) or 1
            if since_yield >= LOADED_AT_ONCE:
                since_yield = 0
                await asyncio.sleep(0)
        found = loader.complete()
        self._is_loaded = True
        if count:
            log.info("loaded %s-%d: %s, %d records", self.topic, self.partition, found, count)

    # ---- Writing

    async def write(
        self,
        records: Sequence[KeyValue],
        finish: WriteResult,
        error_of: Callable[[ErrorCode], ErrorCode],
        *,
        producer: Producer | None = None,
    ) -> None:
        """Wait for a write up to the timeout. `finish` gets the result in any case, in the order of the log.

        Raises KafkaError: NotCoordinator if another broker leads meanwhile, or what `error_of` makes of a failure.
        After an error the records may still become durable.
        """
        if not records:
            finish(stored=True)
            return
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def written(error: ErrorCode) -> None:
            finish(stored=error is ErrorCode.NONE)
            if not done.done():
                done.set_result(error)

        self.writer.write(records, written, producer=producer)
        try:
            error = await asyncio.wait_for(done, self._write_timeout_ms / 1000)
        except TimeoutError:
            error = ErrorCode.REQUEST_TIMED_OUT
        if not self.is_open:
            raise NotCoordinator
        if error is not ErrorCode.NONE:
            raise error_for(error_of(error))
