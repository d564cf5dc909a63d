"""Serves the fetches of followers: reads those partitions of a session that have something to send.

The sessions are in broker/replica_sessions.py. A request reads the partitions with news and no others, whatever the
number of partitions in the session. A high watermark or a log start that moved is news of its own: it goes with
the next response that is due, at the latest when the wait of a request ends.

A follower may send its next request while the one before it waits: that ends the wait.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Iterator

from ottla.broker.context import Services
from ottla.broker.delayed_operations import DelayedOperation
from ottla.broker.fetch_data import divergence, leader_of, offsets_of, records_of, refusal, size_of, topic_name
from ottla.core.errors import (
    FencedLeaderEpoch,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    KafkaError,
    NotLeaderOrFollower,
    UnknownTopicId,
)
from ottla.net.connection import PendingResponse
from ottla.replication.fetch_data_info import FetchDataInfo
from ottla.replication.partition import Partition
from ottla.wire.hot.fetch import (
    NO_EPOCH_END,
    NO_LEADER,
    NO_SNAPSHOT,
    NO_TOPIC_ID,
    FetchedTopic,
    FetchRequest,
    encode_fetch_response,
)
from ottla.wire.messages.fetch import FetchPartition, LeaderIdAndEpoch, PartitionData

log = logging.getLogger(__name__)

NO_SESSION = 0
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
FIRST_WITH_LEADERS = 16
READS_MAX = 250
"""Partitions that one response reads, five milliseconds of work; the next response has the others."""

RELEASES_MAX = 1_000
"""Partitions of a session that has ended, whose watchers are removed in one turn of the loop: two milliseconds."""

_EPOCH_MAX = (1 << 31) - 1

PartitionKey = tuple[str, bytes, int]
"""Topic name (empty from version 13 on), topic id (zero before), partition."""


class ReplicaPartition:
    """A partition of a session: the position that its follower named, and what the follower knows."""

    __slots__ = ("asked", "is_answered", "key", "partition", "sent_high_watermark", "sent_log_start")

    def __init__(self, key: PartitionKey, asked: FetchPartition) -> None:
        self.key = key
        self.asked = asked
        self.is_answered = False  # the follower got what there is at this position, and has to name the next one
        self.partition: Partition | None = None  # as last found
        self.sent_high_watermark = -1
        self.sent_log_start = -1


class _EndWatcher:
    """Called at each move of a log end."""

    __slots__ = ("_session",)

    def __init__(self, session: ReplicaSession) -> None:
        self._session = session

    def partition_changed(self, partition: Partition) -> None:
        """Note the partition, and end the wait of the session's request in this turn of the loop."""
        self._session.end_moved(partition)


class _HighWatermarkWatcher:
    """Called at each move of a high watermark or a log start."""

    __slots__ = ("_session",)

    def __init__(self, session: ReplicaSession) -> None:
        self._session = session

    def partition_changed(self, partition: Partition) -> None:
        """Note the partition: it has news that can wait."""
        self._session.watermark_moved(partition)


class ReplicaSession:
    """The partitions that one fetcher of a follower fetches from this broker."""

    __slots__ = (
        "_by_partition", "_end_watcher", "_watermark_watcher", "broker_epoch", "by_id", "connection_id", "epoch",
        "held_back", "moved", "news", "node_id", "partitions", "session_id", "waiting",
    )  # fmt: skip

    def __init__(self, session_id: int, *, node_id: int, broker_epoch: int, by_id: bool, connection_id: int) -> None:
        self.session_id = session_id
        self.node_id, self.broker_epoch = node_id, broker_epoch
        self.by_id = by_id
        self.connection_id = connection_id
        self.epoch = INITIAL_EPOCH
        self.partitions: dict[PartitionKey, ReplicaPartition] = {}
        self.news: dict[ReplicaPartition, None] = {}  # to be read; the one that has waited longest first
        self.held_back: dict[ReplicaPartition, None] = {}  # to be read when the rate of throttled replicas allows it
        self.moved: dict[ReplicaPartition, None] = {}  # with another high watermark or log start
        self.waiting: ReplicaFetch | None = None
        self._by_partition: dict[Partition, ReplicaPartition] = {}
        self._end_watcher = _EndWatcher(self)
        self._watermark_watcher = _HighWatermarkWatcher(self)

    def apply(self, request: FetchRequest) -> None:
        """Add, change and remove partitions as requested. Those that are named have news."""
        for topic in request.topics:
            for asked in topic.partitions:
                key = (topic.topic, topic.topic_id, asked.partition)
                known = self.partitions.get(key)
                if known is None:
                    known = self.partitions[key] = ReplicaPartition(key, asked)
                else:
                    known.asked = asked
                    known.is_answered = False
                    if asked.high_watermark < known.sent_high_watermark:  # of an answer that it could not use
                        known.sent_high_watermark = asked.high_watermark
                        self.moved[known] = None
                    if asked.log_start_offset < known.sent_log_start:
                        known.sent_log_start = asked.log_start_offset
                        self.moved[known] = None
                self.news[known] = None
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                removed = self.partitions.pop((forgotten.topic, forgotten.topic_id, index), None)
                if removed is not None:
                    self.news.pop(removed, None)
                    self.held_back.pop(removed, None)
                    self.moved.pop(removed, None)
                    self._release(removed)

    def bind(self, each: ReplicaPartition, partition: Partition) -> None:
        """Watch the replica that this broker has of a partition, now."""
        self._release(each)
        each.partition = partition
        self._by_partition[partition] = each
        partition.replica_watchers[self._end_watcher] = None
        partition.watchers[self._watermark_watcher] = None

    def _release(self, each: ReplicaPartition) -> None:
        partition, each.partition = each.partition, None
        if partition is not None:
            self._by_partition.pop(partition, None)
            partition.replica_watchers.pop(self._end_watcher, None)
            partition.watchers.pop(self._watermark_watcher, None)

    def end_moved(self, partition: Partition) -> None:
        """Something was appended, or the partition is no longer led here."""
        each = self._by_partition.get(partition)
        if each is not None and not each.is_answered:
            self.news[each] = None
            if self.waiting is not None:
                self.waiting.wake()

    def release_held_back(self) -> None:
        """Read the throttled partitions again."""
        self.news.update(self.held_back)
        self.held_back = {}

    def watermark_moved(self, partition: Partition) -> None:
        """The follower does not know a high watermark or a log start yet."""
        each = self._by_partition.get(partition)
        if each is not None:
            self.moved[each] = None

    def close(self) -> None:
        """Answer the request that waits, and watch nothing any more."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.complete()
        released = iter(self.partitions.values())
        self.partitions, self.news, self.held_back, self.moved = {}, {}, {}, {}
        self._by_partition = {}  # from now on the watchers find nothing
        self._release_some(released)

    def _release_some(self, released: Iterator[ReplicaPartition]) -> None:
        """Stop watching in slices: a follower may have thousands of partitions."""
        count = 0
        for each in itertools.islice(released, RELEASES_MAX):
            self._release(each)
            count += 1
        if count == RELEASES_MAX:
            asyncio.get_running_loop().call_soon(self._release_some, released)


class ReplicaSessions:
    """The sessions of all followers. One ends with its connection; fetches of consumers never evict it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._sessions: dict[int, ReplicaSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest, *, by_id: bool, connection_id: int) -> ReplicaSession:
        """Return the session of a request, with the partitions of the request; a new one for a full request.

        Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError.
        """
        node_id = request.replica_state.replica_id if request.replica_state.replica_id >= 0 else request.replica_id
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            session = self._new(request, node_id, by_id=by_id, connection_id=connection_id)
        else:
            session = self._continued(request, node_id, by_id=by_id)
        session.broker_epoch = request.replica_state.replica_epoch
        waiting = session.waiting
        if waiting is not None:
            waiting.complete()
        session.apply(request)
        return session

    def _new(self, request: FetchRequest, node_id: int, *, by_id: bool, connection_id: int) -> ReplicaSession:
        self.remove(request.session_id)
        self.remove_those_of(connection_id)
        session_id = NO_SESSION
        if request.session_epoch == INITIAL_EPOCH:
            while session_id == NO_SESSION or session_id in self._sessions:
                session_id = self._rng.randint(1, _EPOCH_MAX)
        session = ReplicaSession(session_id, node_id=node_id, broker_epoch=-1, by_id=by_id, connection_id=connection_id)
        if session_id != NO_SESSION:
            self._sessions[session_id] = session
        return session

    def _continued(self, request: FetchRequest, node_id: int, *, by_id: bool) -> ReplicaSession:
        session = self._sessions.get(request.session_id)
        if session is None or session.node_id != node_id:
            raise FetchSessionIdNotFound
        if request.session_epoch != (1 if session.epoch == _EPOCH_MAX else session.epoch + 1):
            raise InvalidFetchSessionEpoch
        if session.by_id != by_id:
            raise FetchSessionTopicIdError
        session.epoch = request.session_epoch
        return session

    def remove(self, session_id: int) -> None:
        """End a session, if there is one."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def remove_those_of(self, connection_id: int) -> None:
        """End the sessions of a connection."""
        for session in tuple(self._sessions.values()):
            if session.connection_id == connection_id:
                self.remove(session.session_id)


class ReplicaFetch(DelayedOperation):
    """One request until its response is sent."""

    __slots__ = (
        "_api_version", "_bytes", "_found", "_is_due", "_is_scheduled", "_request", "_services", "_session",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        api_version: int,
        request: FetchRequest,
        session: ReplicaSession,
        response: PendingResponse,
    ) -> None:
        super().__init__(response)
        self._services = services
        self._api_version = api_version
        self._request = request
        self._session = session
        self._found: dict[ReplicaPartition, PartitionData] = {}
        self._bytes = 0  # of all records found
        self._is_due = False  # there is an error or a divergence, or too much to read at once
        self._is_scheduled = False

    def begin(self) -> None:
        """Respond at once if there is enough or no time to wait; otherwise wait."""
        request, services = self._request, self._services
        self._read_news()
        if (
            self._has_enough
            or request.max_wait_ms <= 0
            or services.delayed_operations.is_stopping
            or request.session_epoch == INITIAL_EPOCH  # the follower can send what changes from now on
        ):
            self.complete()
            return
        assert self.response is not None
        self.response.is_pipelined = True
        self.response.connection.is_busy_polled = False  # a follower asks again when it has written
        self._put_back()
        self._session.waiting = self
        services.delayed_operations.add(self, request.max_wait_ms / 1000)

    @property
    def _has_enough(self) -> bool:
        return self._is_due or (self._bytes > 0 and self._bytes >= self._request.min_bytes)

    # ---- Reading

    def _read_news(self) -> None:
        """Read the partitions with news, within the limits of the request."""
        session, services = self._session, self._services
        left = min(self._request.max_bytes, services.config.server.fetch_bytes_max) - self._bytes
        now_s = services.clock.monotonic()
        if session.held_back and not services.replicas.context.leader_quota.wait_s(now_s):
            session.release_held_back()
        if len(session.news) > READS_MAX:
            self._is_due = True
        for each in tuple(itertools.islice(session.news, READS_MAX)):
            del session.news[each]
            data = self._read(each, max(left, 0), now_s)
            if data is None:
                continue
            self._found[each] = data
            if data.records is not None:
                size = size_of(data.records)
                left -= size
                self._bytes += size
            else:
                self._is_due = True

    def _read(self, each: ReplicaPartition, left: int, now_s: float) -> PartitionData | None:
        """Return what to send of a partition now; None if that is nothing."""
        asked, session = each.asked, self._session
        try:
            partition = each.partition
            if partition is None or not partition.is_serving:
                partition = self._find(each)
                session.bind(each, partition)
            found = partition.read_for_replica(
                (session.node_id, session.broker_epoch),
                fetch_offset=asked.fetch_offset,
                last_fetched_epoch=asked.last_fetched_epoch,
                current_leader_epoch=asked.current_leader_epoch,
                log_start_offset=asked.log_start_offset,
                max_bytes=min(asked.partition_max_bytes, left),
                at_least_one=not self._bytes,
                now_s=now_s,
            )
            if not isinstance(found, FetchDataInfo):
                each.is_answered = True
                return divergence(partition, found)
            if found.region is None:
                if asked.fetch_offset < partition.log.end_offset:
                    # there is no space left in this response; in an empty one it is the throttle
                    (session.news if self._bytes else session.held_back)[each] = None
                elif self._is_news(each, partition):
                    session.moved[each] = None
                return None
            records = records_of(partition, found.region)
        except (KafkaError, OSError) as error:
            each.is_answered = True
            return refusal(asked.partition, error, self._leader(each, error))
        each.is_answered = True
        return PartitionData(
            partition_index=asked.partition,
            high_watermark=found.high_watermark,
            last_stable_offset=found.last_stable_offset,
            log_start_offset=found.log_start_offset,
            diverging_epoch=NO_EPOCH_END,
            current_leader=NO_LEADER,
            snapshot_id=NO_SNAPSHOT,
            aborted_transactions=None,
            records=records,
        )

    def _leader(self, each: ReplicaPartition, error: BaseException) -> LeaderIdAndEpoch:
        if self._api_version < FIRST_WITH_LEADERS or not isinstance(error, NotLeaderOrFollower | FencedLeaderEpoch):
            return NO_LEADER
        name, topic_id, index = each.key
        view = self._services.cluster.current
        topic = view.topic_by_id.get(topic_id) or view.topics.get(name)
        return leader_of(topic, index)

    def _find(self, each: ReplicaPartition) -> Partition:
        """Find a partition by name or id. Raises the KafkaError to respond with."""
        name, topic_id, index = each.key
        found = self._services.replicas.find(topic_name(self._services.cluster.current, name, topic_id), index)
        if topic_id not in (NO_TOPIC_ID, found.log.topic_id.bytes):
            raise UnknownTopicId  # the replica of a deleted topic of the same name: the snapshot is being applied
        return found

    @staticmethod
    def _is_news(each: ReplicaPartition, partition: Partition) -> bool:
        return (
            partition.high_watermark != each.sent_high_watermark
            or partition.log.log_start_offset != each.sent_log_start
        )

    # ---- Waiting

    def wake(self) -> None:
        """Read what has news at the end of this turn of the loop, with all that is appended in it."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._wakened)

    def _wakened(self) -> None:
        self._is_scheduled = False
        if self.is_completed:
            return
        try:
            self._read_news()
        except Exception:
            log.exception("unexpected error while partitions were read for a follower")
            self.abandon()
            return
        if self._has_enough:
            self.complete()
        else:
            self._put_back()

    def _put_back(self) -> None:
        """Read again later what is not enough for a response: its file may be deleted while this waits."""
        for each in self._found:
            each.is_answered = False
            self._session.news[each] = None
        self._found, self._bytes = {}, 0

    def expire(self) -> None:
        """Respond with what there is, also of partitions that may not be throttled any more."""
        self._session.release_held_back()
        self._read_news()
        self.complete()

    def stop(self) -> None:
        """Complete now because the broker stops: there is nothing to wait for."""
        self.complete()

    def abandon(self) -> None:
        """Release the session, too."""
        self._leave()
        if self._session.session_id == NO_SESSION:
            self._session.close()
        super().abandon()

    def _leave(self) -> None:
        if self._session.waiting is self:
            self._session.waiting = None

    # ---- Responding

    def respond(self, response: PendingResponse) -> None:
        """Send what was found, and the high watermarks and log starts that moved."""
        session = self._session
        self._leave()
        found, self._found = self._found, {}
        for each in tuple(itertools.islice(session.moved, READS_MAX)):
            if each in session.news:
                continue  # it may diverge at the position that was named: a follower must not apply the watermark then
            del session.moved[each]
            partition = each.partition
            if partition is None or not partition.is_serving:
                continue
            if each not in found:
                if self._is_news(each, partition):
                    found[each] = offsets_of(partition)
            elif not found[each].error_code:  # it has moved since it was read
                found[each].high_watermark = partition.high_watermark
                found[each].log_start_offset = partition.log.log_start_offset
        topics: dict[tuple[str, bytes], FetchedTopic] = {}
        for each, data in found.items():
            if not data.error_code:
                each.sent_high_watermark, each.sent_log_start = data.high_watermark, data.log_start_offset
            name, topic_id, _ = each.key
            topic = topics.get((name, topic_id))
            if topic is None:
                topics[name, topic_id] = FetchedTopic(name, topic_id, [data])
            else:
                topic.partitions.append(data)
        response.send(
            encode_fetch_response(
                list(topics.values()),
                self._api_version,
                response.correlation_id,
                session_id=session.session_id,
            )
        )
        if session.session_id == NO_SESSION:
            session.close()
