"""Keeps fetch sessions (KIP-227): the partitions a consumer fetches, so that it need not repeat them in each request.

A session keeps its partitions in an order that rotates: those that had data go to the end, so that a full response does
not starve the rest. Sessions are bounded; the least recently used one is evicted if it is older than two minutes.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ottla.core.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from ottla.core.settings import INT_MAX
from ottla.net.identity import ConnectionIdentity

if TYPE_CHECKING:  # the message classes are imported with the first Fetch
    from ottla.replication.partition import Partition
    from ottla.wire.hot.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EVICT_AFTER_SECONDS: Final = 120.0

PartitionKey = tuple[str, bytes, int]
"""Topic name (empty from version 13 on), topic id (zero before), partition."""


def new_session_id(rng: random.Random, taken: Collection[int]) -> int:
    """Return a session id that no other session has."""
    session_id = rng.randint(1, INT_MAX)
    while session_id in taken:
        session_id = rng.randint(1, INT_MAX)
    return session_id


def epoch_after(epoch: int) -> int:
    """Return the epoch of the request that follows; the largest int32 is followed by 1."""
    return 1 if epoch == INT_MAX else epoch + 1


class FetchSessionPartition:
    """One partition of a fetch, and what its reader received last."""

    __slots__ = ("asked", "key", "name", "partition", "sent_high_watermark", "sent_log_start", "topic", "topic_id")

    def __init__(self, topic: str, topic_id: bytes, asked: FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.name = topic  # of the topic with this id, once it was found: a session knows it after the topic is gone
        self.asked = asked
        self.key: PartitionKey = (topic, topic_id, asked.partition)
        self.partition: Partition | None = None  # the replica as last found; valid while it is serving
        self.sent_high_watermark = -1
        self.sent_log_start = -1


class FetchSession:
    """The partitions of one consumer's fetches."""

    __slots__ = ("by_id", "epoch", "identity", "last_used", "partitions", "session_id")

    def __init__(self, session_id: int, identity: ConnectionIdentity, *, by_id: bool, now: float) -> None:
        self.session_id = session_id
        self.identity = identity  # of its client
        self.by_id = by_id
        self.epoch = INITIAL_EPOCH
        self.last_used = now
        self.partitions: OrderedDict[PartitionKey, FetchSessionPartition] = OrderedDict()

    def belongs_to(self, identity: ConnectionIdentity) -> bool:
        """Return whether it is a session of this user."""
        if self.identity is not identity:
            if self.identity[:2] != identity[:2]:
                return False
            self.identity = identity  # has signed in again, perhaps on another connection
        return True

    def apply(self, topics: Sequence[FetchTopic], forgotten_topics: Sequence[ForgottenTopic]) -> None:
        """Add, change and remove partitions as requested."""
        partitions = self.partitions
        for topic in topics:
            for asked in topic.partitions:
                known = partitions.get((topic.topic, topic.topic_id, asked.partition))
                if known is None:
                    known = FetchSessionPartition(topic.topic, topic.topic_id, asked)
                    partitions[known.key] = known
                else:
                    known.asked = asked
        for forgotten in forgotten_topics:
            for index in forgotten.partitions:
                partitions.pop((forgotten.topic, forgotten.topic_id, index), None)

    def rotate(self, served: Iterable[FetchSessionPartition]) -> None:
        """Move the partitions that had data to the end: they wait longest for their next turn."""
        partitions = self.partitions
        for partition in served:
            if partition.key in partitions:
                partitions.move_to_end(partition.key)


class FetchSessions:
    """All sessions of this broker."""

    def __init__(self, *, slots: int, rng: random.Random) -> None:
        self._slots = slots
        self._rng = rng
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self, request: FetchRequest, identity: ConnectionIdentity, *, by_id: bool, now: float
    ) -> tuple[FetchSession | None, Collection[FetchSessionPartition]]:
        """Find the session a request belongs to (None: it has none) and all partitions to fetch, to be read at once.

        Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError.
        """
        session = self.find(request, identity, by_id=by_id, now=now)
        if session is None:
            return None, partitions_of(request)
        session.apply(request.topics, request.forgotten_topics_data)
        return session, session.partitions.values()

    def find(
        self, request: FetchRequest, identity: ConnectionIdentity, *, by_id: bool, now: float
    ) -> FetchSession | None:
        """Return the session a request belongs to, without the partitions of the request. Raises as `resolve` does.

        One of another user is as good as none, and stays. In Kafka who guesses a number may use and end it.
        """
        session = self._sessions.get(request.session_id)
        if session is not None and not session.belongs_to(identity):
            session = None
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                del self._sessions[session.session_id]
            return self._new(identity, by_id=by_id, now=now) if request.session_epoch == INITIAL_EPOCH else None
        if session is None:
            raise FetchSessionIdNotFound
        if request.session_epoch != epoch_after(session.epoch):
            raise InvalidFetchSessionEpoch
        if session.by_id != by_id:
            raise FetchSessionTopicIdError
        session.epoch = request.session_epoch
        session.last_used = now
        self._sessions.move_to_end(session.session_id)
        return session

    def remove(self, session: FetchSession) -> None:
        """Remove a session whose client does not learn of it."""
        self._sessions.pop(session.session_id, None)

    def _new(self, identity: ConnectionIdentity, *, by_id: bool, now: float) -> FetchSession | None:
        if not self._slots:
            return None
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.last_used < EVICT_AFTER_SECONDS:
                return None
            del self._sessions[oldest.session_id]
        session_id = new_session_id(self._rng, self._sessions)
        session = self._sessions[session_id] = FetchSession(session_id, identity, by_id=by_id, now=now)
        return session


def partitions_of(request: FetchRequest) -> Collection[FetchSessionPartition]:
    """Return the partitions that a request without a session names; of duplicates the last, as in Kafka."""
    partitions: dict[PartitionKey, FetchSessionPartition] = {}
    for topic in request.topics:
        for asked in topic.partitions:
            partition = FetchSessionPartition(topic.topic, topic.topic_id, asked)
            partitions[partition.key] = partition
    return partitions.values()
