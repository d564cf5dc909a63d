"""ShareFetch (key 78), versions 1 to 2.

What it does
  Delivers records of a share group to one of its consumers, which holds them until it acknowledges them or its lock
  expires (KIP-932). Acknowledgements may come with the request; they are carried out first. Waits up to `max_wait_ms`
  until `min_bytes` can be delivered. A response names the partitions with records, acknowledgements or errors, and
  the first one of a session all of them. The session ends with epoch -1 or with the connection.

What it does not do
  A share partition reads at most 1 MiB at once, or one larger batch.

Versions
  v2   how the limit of records applies (KIP-1206); acknowledgements that renew the lock (KIP-1222)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from ottla.broker.handler_parts.share_requests import (
    READ,
    READ_GROUP,
    RENEW_SINCE,
    acknowledge,
    check_group_and_member,
    leader_if_moved,
    partition_of,
)
from ottla.broker.requests.elements import Each, collect
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import (
    ErrorCode,
    InconsistentTopicId,
    InvalidRequest,
    KafkaError,
    UnknownTopicOrPartition,
    error_code_for,
)
from ottla.metadata_store.cluster_view import ClusterView
from ottla.replication.partition import Partition
from ottla.share_coordinator.records import SharePartitionKey
from ottla.share_partitions.acknowledgements import AcquiredRecords, AcquireMode
from ottla.share_partitions.partition_manager import AcknowledgeResult
from ottla.share_partitions.record_reading import ReadBatches
from ottla.share_partitions.sessions import FINAL_EPOCH, INITIAL_EPOCH, SessionPartition, ShareSession, is_limit
from ottla.share_partitions.share_partition import SharePartition
from ottla.wire.generated import share_fetch as messages
from ottla.wire.generated.share_fetch import (
    MESSAGES,
    LeaderIdAndEpoch,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)

_WORK = 4
"""Units of work of one partition."""


async def handle(request: Request, body: ShareFetchRequest) -> ShareFetchResponse:
    """Acknowledge, then deliver."""
    try:
        group_id, member_id = check_group_and_member(request, body.group_id, body.member_id)
        renews = request.api_version >= RENEW_SINCE and body.is_renew_ack
        if renews and (body.max_bytes or body.min_bytes or body.max_records or body.max_wait_ms):
            raise InvalidRequest("A request with is_renew_ack fetches nothing: its limits must be 0.")
        session = _session(request, body, group_id, member_id)
    except KafkaError as error:
        if is_limit(error):
            await asyncio.sleep(max(0, body.max_wait_ms) / 1000)
        return ShareFetchResponse(error_code=error.code, error_message=error.message)
    manager = request.services.coordinators.share_partitions
    acknowledged = await acknowledge(request, session, body.topics, renews=renews)
    delivered: dict[SessionPartition, PartitionData] = {}
    if body.share_session_epoch == FINAL_EPOCH:
        await manager.end_session(session)
    elif not renews and session.partitions and body.max_records > 0 and body.max_bytes > 0:
        delivered = await _Fetch(request, body, session).run()
    if body.share_session_epoch == INITIAL_EPOCH:  # as in Kafka, the first response names every partition
        delivered = {where: delivered.get(where) or _without_records(where) for where in session.partitions}
    limits = manager.settings(group_id).limits
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=limits.lock_duration_ms, responses=_topics(request, delivered, acknowledged)
    )


def _session(request: Request, body: ShareFetchRequest, group_id: str, member_id: str) -> ShareSession:
    manager = request.services.coordinators.share_partitions
    older = manager.sessions.find(group_id, member_id)
    session = manager.sessions.fetch(
        group_id,
        member_id,
        body.share_session_epoch,
        added=[
            SessionPartition(topic.topic_id, partition.partition_index)
            for topic in body.topics
            for partition in topic.partitions
        ],
        forgotten=[
            SessionPartition(topic.topic_id, index)
            for topic in body.forgotten_topics_data
            for index in topic.partitions
        ],
        acknowledges=any(partition.acknowledgement_batches for topic in body.topics for partition in topic.partitions),
        connection_id=request.connection_id,
    )
    if session is not older:
        request.call_when_lost("share sessions", partial(manager.connection_lost, request.connection_id))
    return session


def _topics(
    request: Request,
    delivered: Mapping[SessionPartition, PartitionData],
    acknowledged: Mapping[SessionPartition, AcknowledgeResult],
) -> list[ShareFetchableTopicResponse]:
    """Combine what is delivered with the results of the acknowledgements."""
    topics: dict[object, ShareFetchableTopicResponse] = {}
    for where in dict.fromkeys([*delivered, *acknowledged]):
        data = delivered.get(where) or _without_records(where)
        if where in acknowledged:
            error, message = acknowledged[where]
            data.acknowledge_error_code, data.acknowledge_error_message = error, message
            _name_leader(request, where, data, error)
        topic = topics.setdefault(where.topic_id, ShareFetchableTopicResponse(topic_id=where.topic_id))
        topic.partitions.append(data)
    return list(topics.values())


def _name_leader(request: Request, where: SessionPartition, data: PartitionData, error: ErrorCode) -> None:
    leader, epoch = leader_if_moved(request.services, where, error)
    if leader >= 0:
        data.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)


class _BytesLeft:
    """The size of the batches that may still be read."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class _Fetch:
    """One request that waits for records; wakes when a partition or a share partition changes."""

    def __init__(self, request: Request, body: ShareFetchRequest, session: ShareSession) -> None:
        self._ctx, self._request, self._session = request, body, session
        self._changed = asyncio.Event()
        self._watched: list[tuple[Partition, SharePartition]] = []
        self._errors: dict[SessionPartition, PartitionData] = {}

    def partition_changed(self, partition: Partition) -> None:  # noqa: ARG002  # the port of a watcher
        """Read again: the high watermark moved."""
        self._changed.set()

    def share_partition_changed(self) -> None:
        """Read again: records became available."""
        self._changed.set()

    async def run(self) -> dict[SessionPartition, PartitionData]:
        """Return what is delivered, with the errors of partitions."""
        services, loop = self._ctx.services, asyncio.get_running_loop()
        deadline = loop.time() + max(0, self._request.max_wait_ms) / 1000
        shares = self._share_partitions()
        try:
            while True:
                self._changed.clear()
                found = await self._read(shares)
                left_s = deadline - loop.time()
                size_bytes = sum(len(read.data) for read in found.values())
                if size_bytes >= max(1, self._request.min_bytes) or left_s <= 0 or services.stopping.is_set():
                    delivered = self._acquire(shares, found)
                    if delivered or left_s <= 0 or services.stopping.is_set():
                        return delivered | self._errors
                    if any(shares[where].next_fetch_offset > read.offset for where, read in found.items()):
                        continue  # only records of aborted transactions were read
                if len(self._errors) == len(self._session.partitions) or not self._is_open():
                    return self._errors
                try:
                    await asyncio.wait_for(self._changed.wait(), left_s)
                except TimeoutError:
                    continue
        finally:
            for partition, share in self._watched:
                partition.unwatch(self)
                share.watchers.pop(self, None)

    def _is_open(self) -> bool:
        return self._ctx.services.coordinators.share_partitions.sessions.is_open(self._session)

    def _share_partitions(self) -> dict[SessionPartition, SharePartition]:
        """Find the share partitions of the session, and watch them."""
        services = self._ctx.services
        shares = {}
        for where in self._session.in_turn():
            try:
                partition = self._find(where)
            except KafkaError as error:
                self._fail(where, error)
                continue
            key = SharePartitionKey(self._session.group_id, *where)
            share = shares[where] = services.coordinators.share_partitions.find_or_load(key, partition)
            partition.watch(self)
            share.watchers[self] = None
            self._watched.append((partition, share))
        return shares

    def _find(self, where: SessionPartition) -> Partition:
        """Return the partition that this broker leads. Raises the KafkaError to respond with.

        For a topic that the session found before, that is whether it was deleted, or created again after that.
        """
        services, names = self._ctx.services, self._session.partitions
        view, name = services.cluster.current, names.get(where, "")
        topic = view.topic_by_id.get(where.topic_id.bytes)
        if topic is not None and where in names:
            names[where] = topic.name
        elif topic is None and name:
            raise UnknownTopicOrPartition if view.partition(name, where.partition) is None else InconsistentTopicId
        return partition_of(self._ctx, where)

    async def _read(self, shares: dict[SessionPartition, SharePartition]) -> dict[SessionPartition, ReadBatches]:
        """Read what could be acquired now, up to the size that was asked for."""
        reads: dict[SessionPartition, ReadBatches] = {}
        left = _BytesLeft(min(self._request.max_bytes, self._ctx.services.config.server.fetch_bytes_max))
        partitions: Each[tuple[SessionPartition, SharePartition], None] = Each(
            list(shares.items()), partial(self._read_partition, shares, reads, left), work=_WORK
        )
        await collect(self._ctx, partitions)
        return reads

    def _read_partition(
        self,
        shares: dict[SessionPartition, SharePartition],
        reads: dict[SessionPartition, ReadBatches],
        left: _BytesLeft,
        _request: Request,
        asked: tuple[SessionPartition, SharePartition],
        _view: ClusterView,
    ) -> None:
        where, share = asked
        if left.size <= 0:
            return
        try:
            if share.failure is not None:
                raise share.failure
            read = share.fetch_batches(left.size)
        except (KafkaError, OSError) as error:
            self._fail(where, error)
            del shares[where]
            return
        if read is not None:
            reads[where] = read
            left.size -= len(read.data)

    def _acquire(
        self, shares: dict[SessionPartition, SharePartition], found: dict[SessionPartition, ReadBatches]
    ) -> dict[SessionPartition, PartitionData]:
        """Acquire from what was read, up to the number of records that was asked for."""
        delivered: dict[SessionPartition, PartitionData] = {}
        if not self._is_open():
            return delivered
        body, records_left = self._request, self._request.max_records
        mode = AcquireMode(body.share_acquire_mode) if body.share_acquire_mode in (0, 1) else AcquireMode(0)
        for where, read in found.items():
            acquired = shares[where].acquire(
                self._session.member_id, read, max_records=records_left, batch_size=body.batch_size, mode=mode
            )
            if acquired:
                records_left -= sum(one.last - one.first + 1 for one in acquired)
                delivered[where] = _data(where, read, acquired)
        return delivered

    def _fail(self, where: SessionPartition, error: BaseException) -> None:
        code = error_code_for(error)
        message = error.message if isinstance(error, KafkaError) else None
        data = self._errors[where] = _without_records(where)
        data.error_code, data.error_message = code, message
        _name_leader(self._ctx, where, data, code)


def _without_records(where: SessionPartition) -> PartitionData:
    return PartitionData(
        partition_index=where.partition, current_leader=LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1), records=b""
    )


def _data(where: SessionPartition, read: ReadBatches, acquired: list[AcquiredRecords]) -> PartitionData:
    return PartitionData(
        partition_index=where.partition,
        current_leader=LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1),
        records=bytes(read.holding(acquired)),
        acquired_records=[
            messages.AcquiredRecords(first_offset=one.first, last_offset=one.last, delivery_count=one.delivery_count)
            for one in acquired
        ],
    )


HANDLER = Awaited(MESSAGES, handle, access=(READ_GROUP, READ))
