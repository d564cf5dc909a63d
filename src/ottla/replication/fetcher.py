"""Fetches from the leaders what this broker's followers lack: one fetcher, connection and fetch session per leader.

A request names only the partitions whose position differs from what the session knows, so an idle partition costs
nothing. It leaves when everything from the answer before it is flushed: a fetch offset counts only what is durable.

A partition is fetched again after an error when its back-off is over, and at once when the snapshot has a newer state
of it. While it must not be fetched it is not in the session.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import TYPE_CHECKING

from ottla.client.errors import CannotConnect
from ottla.core.error_codes import ErrorCode
from ottla.core.errors import CorruptMessage, KafkaError, StorageError, error_for
from ottla.core.files import FileRegion
from ottla.core.settings import MIB
from ottla.replication.config import ReplicationConfig
from ottla.replication.follower_state import FetchPosition, FetchState, SyncListener
from ottla.replication.partition import Partition
from ottla.replication.replication_context import ReplicationContext
from ottla.storage.state.leader_epochs import EpochEnd
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedRequest
from ottla.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    import uuid

    from ottla.client.connection import Connection, ConnectTo

log = logging.getLogger(__name__)

CONNECT_BACKOFF_MIN_S, CONNECT_BACKOFF_MAX_S = 0.05, 1.0
PARTITION_BACKOFF_MIN_S = 0.05
FLUSH_PATIENCE_S = 1.0
"""A partition whose flush takes longer leaves the session until it is flushed, so that the others go on."""

CATCH_UP_BYTES = 8 * MIB
"""The limit for a partition whose last answer was full: it is far from the leader's end."""

THROTTLE_CHECK_S = 1.0
"""A throttled partition is looked at this often: the rate or the list of throttled replicas may have changed."""

NO_SESSION, INITIAL_EPOCH = 0, 0
_EPOCH_MAX = (1 << 31) - 1
_EARLIEST, _LATEST = -2, -1
_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)  # fmt: skip
_NETWORK_ERRORS = (CannotConnect, KafkaError, OSError, MalformedRequest, struct.error)

PartitionKey = tuple["uuid.UUID", int]


class FetchedPartition:
    """One partition of a fetcher: what the session knows of it, and its back-off."""

    __slots__ = ("backoff_s", "is_catching_up", "is_repeated", "is_stopped", "key", "not_before_s", "partition", "sent")

    def __init__(self, partition: Partition, key: PartitionKey) -> None:
        self.partition = partition
        self.key = key
        self.sent: FetchPosition | None = None  # as the session has it; None: it is not in the session
        self.not_before_s = 0.0
        self.backoff_s = 0.0
        self.is_catching_up = False
        self.is_repeated = False  # it is named again: the leader sends what follows a position once
        self.is_stopped = False  # until the snapshot has a newer state


class ReplicaFetcher(SyncListener):
    """Fetches some partitions from one leader."""

    def __init__(self, leader: int, fetchers: ReplicaFetchers) -> None:
        self.leader = leader
        self._fetchers = fetchers
        self._config, self._context = fetchers.config, fetchers.context
        self._partitions: dict[PartitionKey, FetchedPartition] = {}
        self._dirty: dict[PartitionKey, None] = {}  # whose position may differ from what the session has
        self._forgotten: dict[PartitionKey, None] = {}  # in the session, and not to be fetched any more
        self._syncing: dict[Partition, None] = {}
        self._synced: asyncio.Event = asyncio.Event()
        self._changed: asyncio.Event = asyncio.Event()  # there is something to fetch
        self._session_id, self._session_epoch = NO_SESSION, INITIAL_EPOCH
        self._named_count = 0  # partitions in the session
        self._broker_epoch = -1
        self._backoff_s = CONNECT_BACKOFF_MIN_S
        self._connection: Connection | None = None
        self._is_closed = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"replica fetcher of broker {leader}")

    def __len__(self) -> int:
        return len(self._partitions)

    # ---- Partitions

    def add(self, partition: Partition) -> None:
        """Fetch a partition, or go on with it in a newer state."""
        key = (partition.log.topic_id, partition.topic_partition.partition)
        known = self._partitions.get(key)
        if known is None or known.partition is not partition:
            if known is not None:
                self.remove(partition)
            known = self._partitions[key] = FetchedPartition(partition, key)
        known.is_stopped, known.not_before_s, known.backoff_s = False, 0.0, 0.0
        assert partition.follower is not None
        partition.follower.fetcher = self
        self._touch(key)

    def remove(self, partition: Partition) -> None:
        """Fetch a partition no longer."""
        key = (partition.log.topic_id, partition.topic_partition.partition)
        known = self._partitions.pop(key, None)
        if known is None:
            return
        if known.sent is not None:
            self._forgotten[key] = None
            self._named_count -= 1
        self.follower_synced(known.partition)

    def follower_synced(self, partition: Partition) -> None:
        """The partition may be fetched further."""
        self._syncing.pop(partition, None)
        self._touch((partition.log.topic_id, partition.topic_partition.partition))
        if not self._syncing:
            self._synced.set()

    def _touch(self, key: PartitionKey) -> None:
        self._dirty[key] = None
        self._changed.set()

    async def close(self) -> None:
        """Stop fetching and close the connection."""
        self._is_closed = True  # a connection that is being closed swallows the cancellation
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._disconnect()

    # ---- The loop

    async def _run(self) -> None:
        while not self._is_closed:
            try:
                await self._fetch_for_ever()
            except _NETWORK_ERRORS as error:
                if self._backoff_s == CONNECT_BACKOFF_MIN_S:
                    log.info("fetching from broker %d failed, and is tried again: %s", self.leader, error)
            except Exception:
                log.exception("unexpected error of the replica fetcher of broker %d", self.leader)
            await self._disconnect()
            await asyncio.sleep(self._backoff_s * (0.75 + self._fetchers.jitter() / 2))
            self._backoff_s = min(self._backoff_s * 2, CONNECT_BACKOFF_MAX_S)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _fetch_for_ever(self) -> None:
        while not self._partitions:
            self._changed.clear()
            await self._changed.wait()
        connection = self._connection = await self._fetchers.connect(self.leader)
        self._begin_session()
        wait_s = (self._config.fetch_wait_max_ms + self._config.socket_timeout_ms) / 1000
        while True:
            self._changed.clear()
            request = self._request()
            if not self._named_count:
                self._begin_session()
                await self._changed.wait()  # all are in their back-off
                continue
            response = await connection.request(ApiKey.FETCH, request, timeout_s=wait_s)
            await self._process(connection, response)
            self._backoff_s = CONNECT_BACKOFF_MIN_S
            if self._syncing:
                await self._flushes()

    async def _flushes(self) -> None:
        """Wait until what was appended is flushed; a slow flush does not hold up the other partitions for long."""
        self._synced.clear()
        try:
            async with asyncio.timeout(FLUSH_PATIENCE_S):
                await self._synced.wait()
        except TimeoutError:
            for partition in self._syncing:
                self._dirty[(partition.log.topic_id, partition.topic_partition.partition)] = None
            self._syncing.clear()

    def _begin_session(self) -> None:
        """The next request names all partitions: it begins a session."""
        self._session_id, self._session_epoch = NO_SESSION, INITIAL_EPOCH
        self._forgotten.clear()
        self._named_count = 0
        for each in self._partitions.values():
            each.sent = None
        self._dirty = dict.fromkeys(self._partitions)
        self._broker_epoch = self._context.broker_epoch(self._fetchers.node_id) or -1

    # ---- Requests

    def _request(self) -> FetchRequest:
        """Name what has changed since the last request."""
        if (self._context.broker_epoch(self._fetchers.node_id) or -1) != self._broker_epoch:
            self._begin_session()  # this broker has registered again
        config = self._config
        request = FetchRequest(
            replica_id=self._fetchers.node_id,
            replica_state=ReplicaState(replica_id=self._fetchers.node_id, replica_epoch=self._broker_epoch),
            max_wait_ms=config.fetch_wait_max_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
        )
        dirty, self._dirty = self._dirty, {}
        now_s = self._context.clock.monotonic()
        topics: dict[uuid.UUID, FetchTopic] = {}
        for key in dirty:
            each = self._partitions.get(key)
            if each is None:
                continue
            if each.partition.is_throttled and (wait_s := self._context.follower_quota.wait_s(now_s)):
                self._put_off(each, min(wait_s, THROTTLE_CHECK_S))
            position = None if each.is_stopped or each.not_before_s > now_s else each.partition.next_fetch()
            if position == each.sent and not each.is_repeated:
                continue
            each.is_repeated = False
            if position is None:
                if each.sent is not None:
                    self._forgotten[key] = None
                    self._named_count -= 1
            else:
                self._forgotten.pop(key, None)
                self._named_count += each.sent is None
                name = each.partition.topic_partition.topic
                topic = topics.setdefault(key[0], FetchTopic(topic_id=key[0], topic=name))
                topic.partitions.append(self._named(each, position))
            each.sent = position
        request.topics = list(topics.values())
        forgotten: dict[uuid.UUID, ForgottenTopic] = {}
        for topic_id, index in self._forgotten:
            forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
        request.forgotten_topics_data = list(forgotten.values())
        self._forgotten.clear()
        return request

    def _named(self, each: FetchedPartition, position: FetchPosition) -> FetchPartition:
        limit = self._config.fetch_max_bytes
        return FetchPartition(
            partition=each.key[1],
            current_leader_epoch=position.leader_epoch,
            fetch_offset=position.fetch_offset,
            last_fetched_epoch=position.last_fetched_epoch,
            log_start_offset=position.log_start_offset,
            partition_max_bytes=max(limit, CATCH_UP_BYTES) if each.is_catching_up else limit,
            high_watermark=each.partition.high_watermark,
        )

    # ---- Answers

    async def _process(self, connection: Connection, response: FetchResponse) -> None:
        if response.error_code in _SESSION_ERRORS:
            self._begin_session()
            return
        if response.error_code != ErrorCode.NONE:
            raise error_for(response.error_code)
        self._session_id = response.session_id
        self._session_epoch = 1 if self._session_epoch == _EPOCH_MAX else self._session_epoch + 1
        out_of_range: list[FetchedPartition] = []
        for topic in response.responses:
            for data in topic.partitions:
                each_or_none = self._partitions.get((topic.topic_id, data.partition_index))
                if each_or_none is not None and each_or_none.sent is not None:
                    self._dirty[each_or_none.key] = None
                    self._take(each_or_none, data, out_of_range)
        if out_of_range:
            await self._find_range(connection, out_of_range)
        if response.session_id == NO_SESSION:
            self._begin_session()  # the leader has no slot for it: each request names all partitions

    def _take(self, each: FetchedPartition, data: PartitionData, out_of_range: list[FetchedPartition]) -> None:
        """Process the answer for one partition, unless its position has changed since the request."""
        partition = each.partition
        if partition.next_fetch() != each.sent:
            each.is_repeated = True  # it may come back to the position whose answer is dropped
            return
        try:
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                out_of_range.append(each)
            elif data.error_code != ErrorCode.NONE:
                self._refused(each, error_for(data.error_code))
            elif data.diverging_epoch.epoch >= 0:
                partition.truncate_to_leader(EpochEnd(data.diverging_epoch.epoch, data.diverging_epoch.end_offset))
            else:
                self._append(each, data)
        except (CorruptMessage, StorageError) as error:
            log.warning("what broker %d sent for %s is not appended: %s", self.leader, partition.topic_partition, error)
            self._delay(each)
        except Exception:  # one partition must not hold up the others, which share the session
            log.exception(
                "unexpected error while %s followed broker %d; it is not fetched until its state changes",
                partition.topic_partition, self.leader,
            )  # fmt: skip
            each.is_stopped = True

    def _append(self, each: FetchedPartition, data: PartitionData) -> None:
        partition, records = each.partition, data.records
        assert not isinstance(records, FileRegion)
        view = memoryview(records if records is not None else b"")
        each.is_catching_up = view.nbytes >= self._config.fetch_max_bytes
        each.is_repeated = view.nbytes > 0
        if partition.is_throttled:
            self._context.follower_quota.record(view.nbytes, self._context.clock.monotonic())
        partition.append_as_follower(
            view,
            high_watermark=data.high_watermark,
            log_start=data.log_start_offset,
            now_ms=self._context.clock.wall_ms(),
        )
        each.backoff_s = 0.0
        follower = partition.follower
        if follower is not None and follower.fetch_state is FetchState.SYNCING:
            self._syncing[partition] = None

    def _refused(self, each: FetchedPartition, error: KafkaError) -> None:
        """An error of one partition: wait for a newer term if it was fenced, else fetch it again later."""
        if error.code == ErrorCode.FENCED_LEADER_EPOCH:
            each.is_stopped = True
        else:
            level = logging.INFO if error.retriable else logging.WARNING
            log.log(
                level, "broker %d does not serve %s: %s", self.leader, each.partition.topic_partition, error.message
            )
            self._delay(each)

    def _delay(self, each: FetchedPartition) -> None:
        each.backoff_s = min(max(each.backoff_s * 2, PARTITION_BACKOFF_MIN_S), self._config.fetch_backoff_ms / 1000)
        each.is_repeated = True  # the back-off may be over before the next request, which then names it again
        self._dirty[each.key] = None
        self._put_off(each, each.backoff_s)

    def _put_off(self, each: FetchedPartition, seconds: float) -> None:
        each.not_before_s = self._context.clock.monotonic() + seconds
        asyncio.get_running_loop().call_later(seconds, self._touch, each.key)

    async def _find_range(self, connection: Connection, partitions: list[FetchedPartition]) -> None:
        """Bring logs into the range of their leader: below its start they begin there, beyond its end they end there.

        A leader that has an end at or above ours but refuses it has no epoch in common: it is asked again later.
        """
        positions = {each.key: each.sent for each in partitions}
        starts = await self._offsets(connection, partitions, _EARLIEST)
        ends = await self._offsets(connection, partitions, _LATEST)
        for each in partitions:
            partition = each.partition
            start, end = starts.get(each.key), ends.get(each.key)
            if start is None or end is None or partition.next_fetch() != positions[each.key]:
                self._delay(each)
                continue
            try:
                if start > partition.log.end_offset:
                    partition.restart_log_at(start)
                elif end < partition.log.end_offset:
                    partition.truncate(end)
                else:
                    self._delay(each)
            except StorageError as error:
                log.warning("%s cannot be truncated: %s", partition.topic_partition, error)
                self._delay(each)
            self._dirty[each.key] = None

    async def _offsets(
        self, connection: Connection, partitions: list[FetchedPartition], timestamp: int
    ) -> dict[PartitionKey, int]:
        """Ask the leader for the start or the end of its logs, as a replica: the end is not the high watermark."""
        topics: dict[str, ListOffsetsTopic] = {}
        keys: dict[tuple[str, int], PartitionKey] = {}
        for each in partitions:
            name, index = each.partition.topic_partition
            keys[(name, index)] = each.key
            topics.setdefault(name, ListOffsetsTopic(name=name)).partitions.append(
                ListOffsetsPartition(
                    partition_index=index, current_leader_epoch=each.partition.leader_epoch, timestamp=timestamp
                )
            )
        request = ListOffsetsRequest(replica_id=self._fetchers.node_id, topics=list(topics.values()))
        response = await connection.request(
            ApiKey.LIST_OFFSETS, request, timeout_s=self._config.socket_timeout_ms / 1000
        )
        return {
            keys[(topic.name, found.partition_index)]: found.offset
            for topic in response.topics
            for found in topic.partitions
            if found.error_code == ErrorCode.NONE and found.offset >= 0
        }


class ReplicaFetchers:
    """All fetchers of this broker."""

    def __init__(
        self, connect: ConnectTo, *, node_id: int, config: ReplicationConfig, context: ReplicationContext
    ) -> None:
        from ottla.core.runtime import new_random

        self.connect, self.node_id, self.config, self.context = connect, node_id, config, context
        self.jitter = new_random().random
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._of: dict[Partition, ReplicaFetcher] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def assign(self, partition: Partition) -> None:
        """Fetch a partition from its current leader; fetch it no longer if it is no follower."""
        follower = partition.follower
        if follower is None or follower.fetch_state is FetchState.FAILED:
            self.remove(partition)
            return
        topic_id, index = partition.log.topic_id, partition.topic_partition.partition
        where = (partition.leader, (topic_id.int + index) % self.config.fetchers)
        fetcher = self._fetchers.get(where)
        if fetcher is None:
            fetcher = self._fetchers[where] = ReplicaFetcher(partition.leader, self)
        before = self._of.get(partition)
        if before is not None and before is not fetcher:
            self.remove(partition)
        self._of[partition] = fetcher
        fetcher.add(partition)

    def remove(self, partition: Partition) -> None:
        """Fetch a partition no longer. A fetcher without partitions ends."""
        fetcher = self._of.pop(partition, None)
        if fetcher is None:
            return
        fetcher.remove(partition)
        if not len(fetcher):
            for where, other in list(self._fetchers.items()):
                if other is fetcher:
                    del self._fetchers[where]
            task = asyncio.get_running_loop().create_task(fetcher.close(), name="close replica fetcher")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Stop all."""
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        self._of.clear()
        for fetcher in fetchers:
            await fetcher.close()
        if self._closing:
            await asyncio.gather(*tuple(self._closing), return_exceptions=True)
