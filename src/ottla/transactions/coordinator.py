"""Coordinates the transactional ids whose partition of `__transaction_state` this broker leads.

Handlers call it with a transactional id; it finds the partition, checks that this broker leads it and has loaded it,
and passes the request to the state machine of the id. Raises KafkaError for an error of the whole request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode, InvalidRequest, KafkaError, error_for
from ottla.core.ids import NO_PRODUCER_EPOCH, TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicPartition
from ottla.internal_topics.led_partitions import LedPartitions
from ottla.internal_topics.topic_log import TopicLog
from ottla.metadata_store.cluster_view import ClusterView
from ottla.transactions.config import TransactionConfig
from ottla.transactions.events import AbortTimedOut, AddPartitions, EndTxn, Expire, InitProducerId, TransactionAnswer
from ottla.transactions.marker_port import MarkerSender
from ottla.transactions.metadata import TransactionMetadata, TransactionState, TransactionVersion
from ottla.transactions.shard import TransactionShard
from ottla.transactions.transaction_runtime import ProducerIds, TransactionRuntime

log = logging.getLogger(__name__)

CHECKED_AT_ONCE = 500
"""Transactional ids to check for timeouts before yielding to the loop."""


class TransactionCoordinator:
    """Coordinates transactions; one per broker. Call `follow` with each cluster snapshot, and `close` at the end."""

    def __init__(
        self,
        config: TransactionConfig,
        *,
        clock: Clock,
        log: TopicLog,
        node_id: int,
        markers: MarkerSender,
        producer_ids: ProducerIds,
    ) -> None:
        self.config = config
        self._clock, self._producer_ids = clock, producer_ids
        self.led = LedPartitions(
            TRANSACTIONS_TOPIC, log, node_id, lambda term: TransactionShard(term, log, clock, markers, producer_ids)
        )
        self._periodic: list[asyncio.Task[None]] = []

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Follow the leadership of the partitions."""
        self.led.follow(old, new)

    def start(self) -> None:
        """Begin to abort timed out transactions and to delete expired ids, periodically."""
        config = self.config
        self._periodic = [
            asyncio.get_running_loop().create_task(self._repeat(config.abort_interval_ms, self.abort_timed_out)),
            asyncio.get_running_loop().create_task(self._repeat(config.expiry_interval_ms, self.expire)),
        ]

    async def close(self) -> None:
        """Fail the waiting requests, complete the queued writes and stop."""
        for task in self._periodic:
            task.cancel()
        await asyncio.gather(*self._periodic, return_exceptions=True)
        self._periodic = []
        await self.led.close()

    # ---- Requests

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> TransactionAnswer:
        """Handle InitProducerId of a transactional producer. Raises KafkaError."""
        if not transactional_id:
            raise InvalidRequest
        if not 0 < timeout_ms <= self.config.max_timeout_ms:
            raise error_for(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        runtime = self.led.shard_of(transactional_id).find(transactional_id)
        if runtime is None:
            producer_id = await self._producer_ids.allocate()
            shard = self.led.shard_of(transactional_id)  # another broker may lead meanwhile
            runtime = shard.find(transactional_id) or shard.create(
                transactional_id, _new_metadata(producer_id, timeout_ms, self._clock.wall_ms())
            )
        return await runtime.ask(InitProducerId(timeout_ms=timeout_ms, expected=expected))

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        client_version: TransactionVersion = TransactionVersion.TV_0,
        verify_only: bool = False,
    ) -> ErrorCode:
        """Add partitions to a transaction, or verify that they were added (KIP-890); returns one error for all.

        While the previous transaction is being completed, or other partitions are being added, this waits for a short
        time. Never raises.
        """
        try:
            if verify_only:
                producer = ProducerIdAndEpoch(producer_id, producer_epoch)
                return self._existing(transactional_id).machine.verify(producer, partitions)
            event = AddPartitions(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=partitions,
                client_version=client_version,
            )
            return await self._add(transactional_id, event)
        except KafkaError as error:
            return error.code

    async def _add(self, transactional_id: str, event: AddPartitions) -> ErrorCode:
        gives_up_at = self._clock.monotonic() + self.config.add_partitions_retry_max_ms / 1000
        while True:
            runtime = self._existing(transactional_id)
            if runtime.machine.pending is None:
                return (await runtime.ask(event)).error
            remaining_ms = round((gives_up_at - self._clock.monotonic()) * 1000)
            if remaining_ms <= 0 or not await runtime.wait_until_settled(remaining_ms):
                return ErrorCode.CONCURRENT_TRANSACTIONS

    async def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        client_version: TransactionVersion,
    ) -> TransactionAnswer:
        """Handle EndTxn; returns when the outcome is durable. Raises KafkaError."""
        event = EndTxn(
            producer_id=producer_id, producer_epoch=producer_epoch, committed=committed, client_version=client_version
        )
        return await self._existing(transactional_id).ask(event)

    # ---- Listing

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Return the state of a transactional id. Raises KafkaError: TRANSACTIONAL_ID_NOT_FOUND and others."""
        if not transactional_id:
            raise InvalidRequest
        runtime = self.led.shard_of(transactional_id).find(transactional_id)
        if runtime is None:
            raise error_for(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return runtime.metadata

    def transactional_ids(self) -> list[TransactionRuntime]:
        """Return all transactional ids. Raises CoordinatorLoadInProgress: a partial list would look like expiry."""
        self.led.check_all_loaded()
        return [runtime for shard in self.led.shards() for runtime in shard.all()]

    # ---- Periodic work

    async def abort_timed_out(self) -> None:
        """Abort the transactions that exceed their timeout. Runs periodically; tests call it too."""
        await self._feed_all(AbortTimedOut())

    async def expire(self) -> None:
        """Delete the transactional ids that are unused for too long. Runs periodically; tests call it too."""
        await self._feed_all(Expire(self.config.id_expiration_ms))

    async def _feed_all(self, event: AbortTimedOut | Expire) -> None:
        fed = 0
        for shard in self.led.ready_shards():
            for runtime in shard.all():
                runtime.feed(event)
                fed += 1
                if fed % CHECKED_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _repeat(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except Exception:
                log.exception("a periodic task of the transaction coordinator failed; retrying at its next time")

    # ---- Internals

    def _existing(self, transactional_id: str) -> TransactionRuntime:
        """Find a transactional id. Raises KafkaError: an unknown one was never initialized or has expired."""
        if not transactional_id:
            raise InvalidRequest
        runtime = self.led.shard_of(transactional_id).find(transactional_id)
        if runtime is None:
            raise error_for(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return runtime


def _new_metadata(producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    return TransactionMetadata(
        producer_id=producer_id,
        producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        updated_wall_ms=now_ms,
    )
