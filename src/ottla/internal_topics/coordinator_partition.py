"""Loads one partition of an internal topic into a coordinator's memory, and writes the coordinator's changes.

A `CoordinatorPartition` belongs to one term: a partition and the leader epoch in which this broker leads it. Results
after the term are invalid, so `is_open` is checked after every wait.

It loads to the end of the log, not to the high watermark: what the previous leader acknowledged may be above the high
watermark that this broker knows. It is ready when the high watermark has reached that end, so that nothing that it
shows can still be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from ottla.core.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    KafkaError,
    NotCoordinator,
    error_for,
)
from ottla.internal_topics.failed_steps import FailedStep
from ottla.internal_topics.topic_log import KeyValue, LoadedRecords, ProducerIdentity, TopicLog
from ottla.internal_topics.writer import PartitionWriter

log = logging.getLogger(__name__)

LOADED_AT_ONCE = 500
"""Records to load before yielding to the loop: well under 5 ms."""

RETRY_LOAD_SECONDS, RETRY_LOAD_SECONDS_MAX = 1.0, 60.0
"""After a load that failed; twice as long after each other one."""

TERM_POLL_SECONDS_MIN, TERM_POLL_SECONDS_MAX = 0.01, 0.5
"""Between two checks whether the replica has followed the cluster's decision that it leads."""


class Term(NamedTuple):
    """Names a partition that this broker leads, in one leader epoch."""

    partition: int
    leader_epoch: int
    load_again: Callable[[], None]  # called when the state in memory differs from the log
    step_failed: Callable[[FailedStep], None]  # called when a step may have changed the state by half
    load_turn: asyncio.Lock  # of all partitions of the coordinator: they are loaded one after the other


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
        """Receive the outcome of a write. It must not raise."""
        ...


class CoordinatorPartition:
    """Holds whether one partition is loaded, and its writer. `start` loads it."""

    def __init__(
        self,
        topic: str,
        term: Term,
        topic_log: TopicLog,
        new_loader: Callable[[], Loader],
        *,
        write_timeout_ms: int,
        before_ready: Callable[[], Awaitable[None]] | None = None,  # works in slices on what is loaded
    ) -> None:
        self.topic, self.partition = topic, term.partition
        self.writer = PartitionWriter(topic_log, term.partition, term.leader_epoch, on_diverged=self._diverged)
        self.is_open = True
        self._load_again, self._step_failed, self._load_turn = term.load_again, term.step_failed, term.load_turn
        self._topic_log, self._new_loader, self._before_ready = topic_log, new_loader, before_ready
        self._write_timeout_ms = write_timeout_ms
        self._is_loaded = False
        self._loading: asyncio.Task[None] | None = None

    # ---- The term

    @property
    def leader_epoch(self) -> int:
        """Return the leader epoch of its term."""
        return self.writer.leader_epoch

    def continue_in(self, leader_epoch: int) -> bool:
        """Continue in the next term, which this broker leads too; returns False if the state must be loaded again.

        The next epoch follows directly, so no other broker led meanwhile; the log must end where the state does.
        """
        if leader_epoch != self.leader_epoch + 1 or not self.is_ready:
            return False
        try:
            end_offset = self._topic_log.end_offset(self.partition)
        except KafkaError:
            return False
        if not self.writer.has_reached(end_offset):
            return False
        self.writer.leader_epoch = leader_epoch
        return True

    @property
    def _is_in_term(self) -> bool:
        """Return whether the replica still leads in this epoch: it may learn of its end before the coordinator does."""
        try:
            return self._topic_log.leader_epoch(self.partition) == self.leader_epoch
        except KafkaError:
            return False

    def _diverged(self) -> None:
        if self.is_open and self._is_in_term:  # the next term is loaded in any case
            log.warning("%s-%d has a batch that is not in memory; loading it again", self.topic, self.partition)
            self._load_again()

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
        """Wait until everything is loaded, or the term has ended: see `is_ready`."""
        if self._loading is not None:
            await asyncio.wait([self._loading])

    def check_ready(self) -> None:
        """Raise NotCoordinator or CoordinatorLoadInProgress unless everything is loaded."""
        if not self.is_open or (self._is_loaded and not self._is_in_term):
            raise NotCoordinator(f"this broker does not lead {self.topic}-{self.partition} any more")
        if not self._is_loaded:
            raise CoordinatorLoadInProgress(f"{self.topic}-{self.partition} is being loaded")

    def check_can_write(self) -> None:
        """Raise CoordinatorNotAvailable while too many writes wait: for changes that memory would make first."""
        if self.writer.is_full:
            raise CoordinatorNotAvailable(
                f"too many writes to {self.topic}-{self.partition} wait for its in-sync replicas"
            )

    def stop(self, *, refuse_writes: bool) -> None:
        """Stop coordinating; the caller fails its waiting requests, then awaits `close`.

        With `refuse_writes` the queued writes that are not appended yet fail: another term begins.
        """
        self.is_open = False
        if refuse_writes:
            self.writer.refuse()
        if self._loading is not None:
            self._loading.cancel()

    async def close(self) -> None:
        """Wait until the queued writes are written or have failed."""
        if self._loading is not None:
            await asyncio.gather(self._loading, return_exceptions=True)
        await self.writer.close()

    async def _load(self) -> None:
        delay_s = RETRY_LOAD_SECONDS
        while self.is_open and not self._is_loaded:
            try:
                await self._wait_for_term()
                await self._load_once()
            except Exception as error:
                if not self._is_in_term:  # the end of a term interrupts the load
                    continue
                text = "loading %s-%d failed%s; retrying in %d s"
                if delay_s == RETRY_LOAD_SECONDS:
                    log.exception(text, self.topic, self.partition, "", delay_s)
                else:
                    log.error(text, self.topic, self.partition, f" again ({error!r})", delay_s)  # noqa: TRY400
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_LOAD_SECONDS_MAX)

    async def _wait_for_term(self) -> None:
        """Wait until the replica leads in this epoch; many partitions that change their leaders are applied in turn."""
        delay_s = TERM_POLL_SECONDS_MIN
        while not self._is_in_term:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, TERM_POLL_SECONDS_MAX)

    async def _load_once(self) -> None:
        loader = self._new_loader()
        count = since_yield = 0
        end_offset = self._topic_log.end_offset(self.partition)
        self.writer.begin(end_offset)
        async with self._load_turn:  # slices of many partitions would make one long turn of the loop
            async for loaded in self._topic_log.read_all(self.partition, end_offset):
                loader.apply(loaded)
                count += len(loaded.records)
                since_yield += len(loaded.records) or 1
                if since_yield >= LOADED_AT_ONCE:
                    since_yield = 0
                    await asyncio.sleep(0)
        await self._topic_log.wait_until_replicated(self.partition, end_offset, leader_epoch=self.leader_epoch)
        if self._before_ready is not None:
            async with self._load_turn:
                await self._before_ready()
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
        producer: ProducerIdentity | None = None,
    ) -> None:
        """Wait for a write up to the timeout. `finish` gets the result in any case, in the order of the log.

        Raises KafkaError: NotCoordinator if another broker leads meanwhile, or what `error_of` makes of a failure.
        After an error the records may still become durable.
        """
        if not records:
            self._finish(finish, stored=True)
            return
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def written(error: ErrorCode) -> None:
            self._finish(finish, stored=error is ErrorCode.NONE)
            if not done.done():
                done.set_result(error)

        self.writer.write(records, written, producer=producer)
        timeout = asyncio.get_running_loop().call_later(self._write_timeout_ms / 1000, _time_out, done)
        try:
            error = await done
        finally:
            timeout.cancel()
        if not self.is_open:
            raise NotCoordinator
        if error is not ErrorCode.NONE:
            raise error_for(error_of(error))

    def _finish(self, finish: WriteResult, *, stored: bool) -> None:
        try:
            finish(stored=stored)
        except Exception as error:  # noqa: BLE001  # it is logged there, and the writes after it go on
            event = "the result of a write: " + ("stored" if stored else "not stored")
            self._step_failed(FailedStep("", event, None, error))


def _time_out(done: asyncio.Future[ErrorCode]) -> None:
    if not done.done():
        done.set_result(ErrorCode.REQUEST_TIMED_OUT)
