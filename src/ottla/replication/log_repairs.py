"""Fetches faulty parts of followers' logs again from their leaders, while the rest of the log is replicated.

A replica with corrupt or missing records is reported as impaired, so that another one leads it. As a follower it asks
its leader for the faulty ranges, as a consumer does: below the high watermark all replicas have the same records. Each
range takes the place of the faulty segment once it is whole and on the disk (`storage/cleaning/log_repair.py`):
nothing is removed before, for the leader may be faulty elsewhere. Then the replica may join the ISR again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ottla.client.connection import Connection, ConnectTo
from ottla.client.errors import CannotConnect
from ottla.core.error_codes import ErrorCode
from ottla.core.errors import CorruptMessage, KafkaError, StorageError, error_for
from ottla.core.ids import TopicPartition
from ottla.core.runtime import new_uuid
from ottla.core.settings import MIB
from ottla.metadata_store.znodes import Impairment
from ottla.replication.config import ReplicationConfig
from ottla.replication.leader_range import fetch_leader_ranges
from ottla.replication.partition import Partition
from ottla.replication.partition_logging import log_repair
from ottla.replication.replication_context import ReplicationContext
from ottla.storage.log.faulty_ranges import faulty_ranges, follow_leader_start
from ottla.storage.log.log_faults import FaultyRange
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedRequest

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 60.0
FETCH_BYTES: Final = MIB
_READ_COMMITTED: Final = 1
_ERRORS: Final = (CannotConnect, KafkaError, OSError, MalformedRequest)


class _Fetched(NamedTuple):
    """The leader's records from an offset on."""

    records: memoryview
    aborted: Sequence[tuple[int, int]]  # producers and first offsets of aborted transactions among them
    decided_end: int  # below it everything is committed and every transaction decided


class _Failure:
    """The last error of a partition's repair, and when it is tried again."""

    __slots__ = ("message", "not_before_s", "wait_s")

    def __init__(self) -> None:
        self.message = ""
        self.not_before_s = 0.0
        self.wait_s = CHECK_SECONDS / 2


class LogRepairs:
    """Repairs the logs that this broker follows, one after the other."""

    def __init__(
        self,
        connect: ConnectTo,
        partitions: Mapping[TopicPartition, Partition],
        *,
        node_id: int,
        config: ReplicationConfig,
        context: ReplicationContext,
    ) -> None:
        self._connect, self._partitions, self._node_id = connect, partitions, node_id
        self._config, self._context = config, context
        self._failures: dict[TopicPartition, _Failure] = {}
        self._task = asyncio.get_running_loop().create_task(self._run(), name="repair logs")

    async def close(self) -> None:
        """Stop. What was written for a repair that has not ended is removed by the next start."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            impaired = self._context.impaired
            for known in tuple(self._failures):
                if known not in impaired:
                    del self._failures[known]
            for topic_partition, reasons in tuple(impaired.items()):
                partition = self._partitions.get(topic_partition)
                if partition is not None and Impairment.CORRUPT in reasons:
                    await self._try(partition)

    async def _try(self, partition: Partition) -> None:
        """Repair a partition as far as its leader has what is faulty here."""
        failure = self._failures.get(partition.topic_partition)
        if not partition.may_be_repaired or (
            failure is not None and self._context.clock.monotonic() < failure.not_before_s
        ):
            return
        try:
            await self._repair(partition)
        except _ERRORS as error:
            self._failed(partition, str(error))
        except Exception:
            log.exception("unexpected error while %s was repaired", partition.topic_partition)
            self._failed(partition, "")

    def _failed(self, partition: Partition, message: str) -> None:
        failure = self._failures.setdefault(partition.topic_partition, _Failure())
        if message not in {"", failure.message}:
            log.warning("%s cannot be repaired now, and is tried again: %s", partition.topic_partition, message)
        failure.message, failure.wait_s = message, min(failure.wait_s * 2, RETRY_SECONDS_MAX)
        failure.not_before_s = self._context.clock.monotonic() + failure.wait_s

    async def _repair(self, partition: Partition) -> None:
        """Fetch all ranges again that can be. Raises one of the errors, if some could not be."""
        leader = partition.leader
        ranges = await fetch_leader_ranges(
            self._connect, leader, [partition], node_id=self._node_id, timeout_s=self._timeout_s
        )
        if partition not in ranges or not partition.may_be_repaired:
            return
        follow_leader_start(partition.log, ranges[partition].start)
        first: Exception | None = None
        connection = await self._connect(leader)
        try:
            for faulty in faulty_ranges(partition.log):
                if faulty.end_offset > partition.high_watermark:
                    continue  # not committed yet
                try:
                    await self._repair_range(connection, partition, faulty)
                except CorruptMessage as error:  # the leader's is faulty, too; it may have others
                    first = first or error
        finally:
            await connection.close()
        partition.repaired()
        if first is not None:
            raise first

    async def _repair_range(self, connection: Connection, partition: Partition, faulty: FaultyRange) -> None:
        from ottla.storage.cleaning.log_repair import LogRepair

        log_repair(partition.topic_partition, partition.leader, faulty.first_offset, faulty.end_offset)
        repair = LogRepair(partition.log, faulty, token=new_uuid().hex)
        is_complete = False
        try:
            while not is_complete:
                fetched = await self._fetch(connection, partition, repair.next_offset)
                if repair.is_overtaken or not partition.may_be_repaired:
                    raise StorageError(f"{partition.topic_partition} has changed while it was repaired")
                if fetched.records.nbytes:
                    is_complete = await asyncio.to_thread(repair.add, fetched.records, fetched.aborted)
                elif fetched.decided_end >= faulty.end_offset:
                    repair.skip_rest()
                    is_complete = True
                else:
                    raise StorageError(f"the records up to {faulty.end_offset} are not all decided yet")
            await asyncio.to_thread(repair.seal)
            if not repair.swap_in():
                raise StorageError(f"{partition.topic_partition} has changed while it was repaired")
        except BaseException:
            repair.discard()
            raise

    async def _fetch(self, connection: Connection, partition: Partition, offset: int) -> _Fetched:
        from ottla.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic

        name, index = partition.topic_partition
        asked = FetchPartition(
            partition=index,
            current_leader_epoch=partition.leader_epoch,
            fetch_offset=offset,
            partition_max_bytes=FETCH_BYTES,
        )
        request = FetchRequest(
            max_wait_ms=self._config.fetch_wait_max_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=_READ_COMMITTED,
            session_epoch=-1,
            topics=[FetchTopic(topic=name, topic_id=partition.log.topic_id, partitions=[asked])],
        )
        response = await connection.request(ApiKey.FETCH, request, timeout_s=self._timeout_s)
        if response.error_code != ErrorCode.NONE:
            raise error_for(response.error_code)
        data = response.responses[0].partitions[0]
        if data.error_code != ErrorCode.NONE:
            raise error_for(data.error_code)
        if partition.is_throttled:
            self._context.follower_quota.record(len(data.records or b""), self._context.clock.monotonic())
        aborted = [
            (aborted_transaction.producer_id, aborted_transaction.first_offset)
            for aborted_transaction in data.aborted_transactions or ()
        ]
        return _Fetched(memoryview(data.records or b""), aborted, data.last_stable_offset)

    @property
    def _timeout_s(self) -> float:
        return (self._config.fetch_wait_max_ms + self._config.socket_timeout_ms) / 1000
