"""Keeps the sessions in which followers fetch: each knows which of its partitions have something to send.

A follower names a partition when its position changes, and gets the records after that position once. The session notes
the partitions with news: those that were named, and those to which the leader has appended while the follower was at
their end. broker/fetch/replica_fetch.py serves the requests.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from typing import Protocol

from ottla.broker.sessions.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    PartitionKey,
    epoch_after,
    new_session_id,
)
from ottla.core.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from ottla.replication.partition import Partition
from ottla.wire.hot.fetch import FetchPartition, FetchRequest

RELEASES_MAX = 1_000
"""Partitions of a session that has ended, whose watchers are removed in one turn of the loop: two milliseconds."""


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


class WaitingFetch(Protocol):
    """Port: the request of a session that waits for news."""

    def wake(self) -> None:
        """Look at the session again, at the end of this turn of the loop."""
        ...

    def complete(self) -> None:
        """Respond with what there is."""
        ...


class ReplicaSession:
    """The partitions that one fetcher of a follower fetches from this broker."""

    __slots__ = (
        "_by_partition",
        "_end_watcher",
        "_watermark_watcher",
        "broker_epoch",
        "by_id",
        "connection_id",
        "epoch",
        "held_back",
        "moved",
        "news",
        "node_id",
        "partitions",
        "session_id",
        "waiting",
    )

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
        self.waiting: WaitingFetch | None = None
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
        partition.watch_end(self._end_watcher)
        partition.watch(self._watermark_watcher)

    def _release(self, each: ReplicaPartition) -> None:
        partition, each.partition = each.partition, None
        if partition is not None:
            self._by_partition.pop(partition, None)
            partition.unwatch_end(self._end_watcher)
            partition.unwatch(self._watermark_watcher)

    def end_moved(self, partition: Partition) -> None:
        """Note that something was appended, or that the partition is no longer led here."""
        replica_partition = self._by_partition.get(partition)
        if replica_partition is not None and not replica_partition.is_answered:
            self.news[replica_partition] = None
            if self.waiting is not None:
                self.waiting.wake()

    def release_held_back(self) -> None:
        """Read the throttled partitions again."""
        self.news.update(self.held_back)
        self.held_back = {}

    def watermark_moved(self, partition: Partition) -> None:
        """Note that the follower does not know a high watermark or a log start yet."""
        replica_partition = self._by_partition.get(partition)
        if replica_partition is not None:
            self.moved[replica_partition] = None

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
        for partition in itertools.islice(released, RELEASES_MAX):
            self._release(partition)
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
        is_kept = request.session_epoch == INITIAL_EPOCH
        session_id = new_session_id(self._rng, self._sessions) if is_kept else NO_SESSION
        session = ReplicaSession(session_id, node_id=node_id, broker_epoch=-1, by_id=by_id, connection_id=connection_id)
        if is_kept:
            self._sessions[session_id] = session
        return session

    def _continued(self, request: FetchRequest, node_id: int, *, by_id: bool) -> ReplicaSession:
        session = self._sessions.get(request.session_id)
        if session is None or session.node_id != node_id:
            raise FetchSessionIdNotFound
        if request.session_epoch != epoch_after(session.epoch):
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
