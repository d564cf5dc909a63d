"""Writes the markers of transactions to the partitions that this broker leads.

Implements the port `MarkerSender` of `transactions`; WriteTxnMarkers of another broker ends here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol

from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode, error_code_for
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.replication.end_txn_markers import append_end_txn_marker
from ottla.replication.high_watermark_waiters import FutureWaiter
from ottla.replication.replicas import Replicas
from ottla.transactions.marker_port import TransactionMarker

TIMEOUT_S = 30.0
"""Timeout for a marker to be replicated (Kafka's request.timeout.ms); afterwards the coordinator writes it again."""

_COORDINATOR_NOT_READY = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)


class TransactionalOffsets(Protocol):
    """Port: the group coordinator, which keeps offsets of open transactions apart."""

    def marker_appended(self, partition: int, offset: int) -> None:
        """Note that a marker was appended to a partition of `__consumer_offsets` at an offset."""
        ...

    async def complete_transaction(self, partition: int, producer_id: int, *, commit: bool) -> None:
        """Make a producer's offsets in a partition of `__consumer_offsets` visible, or drop them. Raises KafkaError."""
        ...


class TransactionMarkerWriter:
    """Appends markers; one per broker."""

    def __init__(self, replicas: Replicas, offsets: TransactionalOffsets, clock: Clock) -> None:
        self._replicas, self._offsets, self._clock = replicas, offsets, clock

    async def send(
        self, marker: TransactionMarker, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Append the marker to these partitions; returns once each is replicated or has failed. Never raises."""
        now_ms = self._clock.wall_ms()
        results: dict[TopicPartition, ErrorCode] = {}
        appended: list[tuple[TopicPartition, asyncio.Future[None]]] = []
        for where in partitions:
            try:
                appended.append((where, self._append(marker, where, now_ms)))
            except Exception as error:  # noqa: BLE001  # each partition has its own result
                results[where] = error_code_for(error)
        try:
            for where, replicated in appended:
                results[where] = await self._complete(marker, where, replicated)
        finally:  # cancelled: nothing reads the outcome of the rest
            for _, replicated in appended:
                if not replicated.cancel() and not replicated.cancelled():
                    replicated.exception()
        return results

    def _append(self, marker: TransactionMarker, where: TopicPartition, now_ms: int) -> asyncio.Future[None]:
        partition = self._replicas.partition(where)
        appended = append_end_txn_marker(
            partition,
            marker.producer_id,
            marker.producer_epoch,
            commit=marker.committed,
            coordinator_epoch=marker.coordinator_epoch,
            now_ms=now_ms,
            transaction_version=marker.version,
        )
        if where.topic == OFFSETS_TOPIC:
            self._offsets.marker_appended(where.partition, appended.first_offset)
        replicated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partition.waiters.add(appended.last_offset + 1, FutureWaiter(), replicated)
        return replicated

    async def _complete(
        self, marker: TransactionMarker, where: TopicPartition, replicated: asyncio.Future[None]
    ) -> ErrorCode:
        try:
            await asyncio.wait_for(replicated, TIMEOUT_S)
            if where.topic == OFFSETS_TOPIC:
                await self._offsets.complete_transaction(where.partition, marker.producer_id, commit=marker.committed)
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT
        except Exception as error:  # noqa: BLE001  # each partition has its own result
            code = error_code_for(error)
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _COORDINATOR_NOT_READY else code
        return ErrorCode.NONE
